"""`reshard propagate`: a program in text with its shardings carried through, and what that costs."""

from __future__ import annotations

import argparse
from typing import Any

from reshard.cli import output
from reshard.cli.arguments import Commands, add_command
from reshard.cli.programs_in_files import read_program
from reshard.propagation import Placement

EXAMPLES = """\
examples:
  reshard propagate layer.txt
  reshard propagate layer.txt --until-priority 0 --text
  reshard propagate layer.txt --network h100-2x8 --why scores
  reshard propagate model.mlir

FILE holds meshes and then one line per value:
  sdy.mesh @mesh = <["data"=2, "model"=4]>
  x = input : bf16[1024, 512] <@mesh, [{"data"}, {?}]>
  w = input : bf16[512, 2048] <@mesh, [{}, {"model"}]>
  h = einsum "bd,df->bf" (x, w)
  a = relu "bf->bf" (h)
  out = output (a)
or a module of StableHLO with shardings of the sdy dialect, as jax.jit(f).lower(...).as_text() gives it, by itself or
somewhere in a log; it may be a folder of dumps that holds one such module, and - is standard input.
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "propagate", run, "carry the shardings of a program through all of it", EXAMPLES)
    parser.add_argument("--until-priority", type=int, metavar="N", help="stop after the dims of this priority")
    parser.add_argument("--network", metavar="NAME", help="choose by time on this network, as h100-2x8")
    parser.add_argument("--goal", choices=("bytes", "balanced"), help="what is least; balanced weighs work in")
    parser.add_argument("--seconds", type=float, metavar="N", help="end the search after so long, with the best so far")
    parser.add_argument("--why", metavar="VALUE", help="say only where the sharding of this value comes from")
    parser.add_argument("--text", action="store_true", help="print the placed program as text, to be read again")
    parser.add_argument("--trace", metavar="OUT", help="write a Chrome trace of the reshards, for Perfetto")
    parser.add_argument("file", metavar="FILE", help="the program; a folder, or - for standard input")


def run(args: argparse.Namespace) -> None:
    """Propagate and print."""
    program = read_program(args.file)
    placed = program.propagate(args.network, args.until_priority, goal=args.goal, seconds=args.seconds)
    if args.trace:
        output.write_file(args.trace, placed.to_trace())
    if args.why is not None:
        value = placed.value(args.why)
        if args.json:
            output.write_json(
                {"value": value.name, "sharding": placed.sharding(value).text(), "why": placed.why(value)}
            )
        else:
            print(f"{value.name} {placed.sharding(value).text()}: {placed.why(value)}")
    elif args.json:
        output.write_json(record(placed) | ({"text": placed.text()} if args.text else {}))
    else:
        print(placed.text() if args.text else placed.table())


def record(placed: Placement) -> dict[str, Any]:
    """A placed program for programs."""
    values = []
    for operation in placed.operations:
        value = operation.result
        plan = placed.plans.get(value)
        values.append(
            {
                "value": value.name,
                "operation": operation.name,
                "operands": [operand.name for operand in operation.operands],
                "shape": list(value.shape),
                "dtype": value.dtype.name,
                "sharding": str(placed.sharding(value)),
                "local_shape": list(placed.sharding(value).local_shape(value.shape)),
                "steps": None if plan is None else [step.kind for step in plan.steps],
                "trip_count": operation.trip_count,
                "received_bytes": placed.received(value),
                "why": placed.why(value),
            }
        )
    return {
        "values": values,
        "received_bytes": placed.received_bytes,
        "peak_bytes": placed.peak_bytes,
        "peak_values": [{"value": name, "bytes": size} for name, size in placed.peak_values],
        "seconds": placed.seconds,
        "flops": placed.flops,
        "goal": placed.goal.name,
        "lower_bound_bytes": placed.lower_bound_bytes,
        "lower_bound_seconds": placed.lower_bound_seconds,
        "is_proved": placed.is_proved,
    }

