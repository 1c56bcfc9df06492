"""`reshard calibrate`: measures the network of the devices at hand, and writes it as a file."""

from __future__ import annotations

import argparse
import importlib

import reshard
from reshard.cli import output
from reshard.cli.commands import Commands, add_command
from reshard.errors import ReshardError
from reshard.network import Calibration, Network
from reshard.notation import parse_mesh

EXAMPLES = """\
examples:
  reshard calibrate --mesh host=2,gpu=8 --out cluster.json
  torchrun --nproc_per_node=8 -m reshard calibrate --engine torch --mesh gpu=8 --out host.json
  mpiexec -n 4 python -m mpi4py -m reshard calibrate --engine mpi --mesh rank=4 --out host.json
  reshard plan --network cluster.json --mesh host=2,gpu=8 --shape 8192,8192 '[{}, {"host"}]' '[{"host"}, {}]'

Every axis of the mesh is a level of the network; along each, all devices that come first send to the next, at once.
The file is what `reshard networks NAME --json` prints, and its figures may be changed.
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "calibrate", run, "measure the network at hand and write it as a file", EXAMPLES)
    parser.add_argument("--mesh", required=True, metavar="MESH", help="all devices, as host=2,gpu=8")
    parser.add_argument(
        "--engine",
        choices=("jax", "torch", "mpi"),
        default="jax",
        help="who sends; torch under torchrun, mpi under mpiexec",
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="how often each size is measured")
    parser.add_argument("--out", metavar="FILE", help="the file to write, which must be new and end in .json")


def run(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    if args.out is not None and not args.out.endswith(".json"):
        raise ReshardError("bad-argument", f"a network's file must end in .json, got: {args.out}")
    measured = _measured(args)
    if measured is None:  # another rank writes
        return
    network, calibration = measured
    if args.out is not None:
        output.write_file(args.out, output.json_text(network.as_dict()) + "\n")
    if args.json:
        output.write_json(network.as_dict())
    else:
        print(f"{network}\n\n{calibration}")


def _measured(args: argparse.Namespace) -> tuple[Network, Calibration] | None:
    """What the engine measures; None on a rank that is not to write it."""
    mesh = parse_mesh(args.mesh)
    engine = getattr(reshard, args.engine)
    calibration = importlib.import_module(f"{engine.__name__}.calibration")
    calibrated: tuple[Network, Calibration] | None = calibration.calibrate_like(mesh, repeats=args.repeats)
    return calibrated
