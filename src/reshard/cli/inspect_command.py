"""`reshard inspect`: what XLA's texts say is sent between devices, and what that needs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshard.cli import output
from reshard.cli.arguments import mesh_of
from reshard.cli.commands import Commands, add_command
from reshard.errors import ReshardError

if TYPE_CHECKING:
    from reshard.mesh import Mesh
    from reshard.xla.report import Report

EXAMPLES = """\
examples:
  reshard inspect -- python train.py
  python train.py 2>&1 | reshard inspect --mesh data=2,model=4
  reshard inspect compiled.txt lowered.mlir
  XLA_FLAGS=--xla_dump_to=dump python train.py 2>train.log; reshard inspect dump train.log --json
  reshard inspect dump --fail-above 1.5

Behind -- stands a command, which is run with what XLA needs to dump its programs; they are read when it ends.
A text may be HLO before or after partitioning, a lowered module, a log, or a mixture; whole or cut anywhere.
Of a dump folder the last module before partitioning and the one after optimisation are read; a dump made with
--xla_dump_hlo_pass_re=spmd.* tells the most.
Modules of one name belong together: what one asks for is joined with what the other sends.
Modules that JAX_DUMP_IR_TO=FOLDER has JAX write, or XLA's text before optimizations,
tell what propagate would receive.
"""
DUMP = "--xla_dump_to={} --xla_dump_hlo_pass_re=spmd.* --xla_dump_hlo_as_text"


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "inspect", run, "read what XLA prints and say what its reshards need", EXAMPLES)
    parser.add_argument(
        "paths", nargs="*", default=["-"], metavar="PATH", help="files and folders; - or none is standard input"
    )
    parser.add_argument("--mesh", metavar="MESH", help="names the axes where a text has none, as x=2,y=4")
    parser.add_argument(
        "--fail-above", type=float, metavar="RATIO", help="end with 1 where anything receives more times its bound"
    )
    parser.set_defaults(program=None)
    parse = parser.parse_known_args

    def parse_up_to_command(args: Any = None, namespace: Any = None) -> Any:
        """Leave a command behind `--` as it is."""
        listed = list(args or ())
        stop = listed.index("--") if "--" in listed else len(listed)
        parsed, unknown = parse(listed[:stop], namespace)
        if listed[stop + 1 :]:
            parsed.program = listed[stop + 1 :]
        return parsed, unknown

    parser.parse_known_args = parse_up_to_command  # type: ignore[method-assign]


def subject(args: argparse.Namespace) -> Report:
    """What the command is about."""
    return _inspected(args)[0]


def run(args: argparse.Namespace) -> None:
    """Read and print."""
    # The readers of XLA's texts take a fifth of the time in which any other command starts, and none needs them.
    from reshard.xla.report.sections import blocks  # noqa: PLC0415

    report, status = _inspected(args)
    if args.json:
        print(report.to_json())
    else:
        output.write_shown(report, blocks(report))
    output.flush()
    if status:
        raise ReshardError("bad-file", f"{args.program[0]} ended with {status}; what it dumped until then was read")
    if args.fail_above is not None and report.worst_ratio > args.fail_above:
        raise ReshardError(
            "bad-argument", f"{report.worst_ratio:.2f} times its bound is received, more than {args.fail_above:g}"
        )


def _inspected(args: argparse.Namespace) -> tuple[Report, int]:
    """What is read, and the exit status of the program that was run, if one was."""
    from reshard.cli.placed_programs import modules_in, tell_placed  # noqa: PLC0415  # as above
    from reshard.xla.report import inspect_paths  # noqa: PLC0415  # as above

    mesh, status = mesh_of(args.mesh), 0
    if args.program is None:
        report = inspect_paths(args.paths or ["-"], mesh=mesh)
        folders = [path for path in args.paths if Path(path).is_dir()]
        if folders:
            tell_placed(report, modules_in(map(Path, folders)), folders[0])
    else:
        if args.paths not in ([], ["-"]):
            raise ReshardError("bad-argument", "files and folders, or a command behind --, but not both")
        report, status = _program_inspected(args.program, mesh)
    if not report.is_recognised:
        raise ReshardError("bad-file", "nothing of XLA's was recognised: no module and no warning of its partitioner")
    return report, status


def _program_inspected(program: Sequence[str], mesh: Mesh | None) -> tuple[Report, int]:
    """Run a command, its output on standard error, and read what XLA dumps and logs; its exit status beside it.

    Raises:
        ReshardError: `bad-file` where it cannot be run or XLA dumps nothing.
    """
    from reshard.cli.placed_programs import modules_in, tell_placed  # noqa: PLC0415  # as above
    from reshard.xla.report import inspect_dump  # noqa: PLC0415  # as above

    with tempfile.TemporaryDirectory(prefix="reshard-") as name:
        folder, lowered = Path(name) / "xla", Path(name) / "jax"
        folder.mkdir()
        flags = f"{os.environ.get('XLA_FLAGS', '')} {DUMP.format(folder)}".strip()
        try:
            with subprocess.Popen(
                program,
                env={
                    "JAX_DUMP_IR_TO": str(lowered),
                    "JAX_DUMP_IR_MODES": "stablehlo",
                    **os.environ,
                    "XLA_FLAGS": flags,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process:
                lines = []
                for line in process.stdout or ():
                    sys.stderr.write(line)
                    lines.append(line)
        except OSError as error:
            raise ReshardError("bad-file", f"{program[0]} cannot be run: {error.strerror or error}") from None
        (folder / "output.log").write_text("".join(lines))
        if not any(path.suffix == ".txt" for path in folder.iterdir()):
            what = f"{program[0]} ended with {process.returncode}, and XLA dumped nothing"
            hint = "; it must not set XLA_FLAGS itself, but add to them" if any(lowered.glob("*")) else ""
            raise ReshardError("bad-file", what + hint)
        report = inspect_dump(folder, mesh=mesh)
        tell_placed(report, modules_in([lowered, folder]), os.environ.get("JAX_DUMP_IR_TO", "FOLDER"))
    return report, process.returncode
