"""`reshard inspect`: what XLA's texts say is sent between devices, and what that needs."""

from __future__ import annotations

import argparse

from reshard.cli import output
from reshard.cli.arguments import Commands, add_command, mesh_of

EXAMPLES = """\
examples:
  python train.py 2>&1 | reshard inspect
  reshard inspect compiled.txt lowered.mlir
  XLA_FLAGS=--xla_dump_to=dump python train.py 2>train.log; reshard inspect dump train.log --json

A text may be HLO before or after partitioning, a lowered module, a log, or a mixture; whole or cut anywhere.
Of a dump folder the last module before partitioning and the one after optimisation are read; a dump made with
--xla_dump_hlo_pass_re=spmd.* tells the most.
Modules of one name belong together: what one asks for is joined with what the other sends.
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "inspect", run, "read what XLA prints and say what its reshards need", EXAMPLES)
    parser.add_argument(
        "paths", nargs="*", default=["-"], metavar="PATH", help="files and folders; - or none is standard input"
    )
    parser.add_argument("--mesh", metavar="MESH", help="names the axes where a text has none, as x=2,y=4")


def run(args: argparse.Namespace) -> None:
    """Read and print."""
    # The readers of XLA's texts take a fifth of the time in which any other command starts, and none needs them.
    from reshard.xla.report import inspect_paths  # noqa: PLC0415
    from reshard.xla.report.sections import blocks  # noqa: PLC0415

    report = inspect_paths(args.paths or ["-"], mesh=mesh_of(args.mesh))
    if args.json:
        print(report.to_json())
    else:
        output.write_shown(report, blocks(report))
