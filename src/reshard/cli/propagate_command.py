"""`reshard propagate`: a program in text with its shardings carried through, and what that costs."""

from __future__ import annotations

import argparse
from typing import Any

from reshard.cli import output
from reshard.cli.commands import Commands, add_command
from reshard.cli.program_arguments import PROGRAM_FORM, add_placing, add_program
from reshard.cli.programs_in_files import read_program
from reshard.propagation import Placement

EXAMPLES = (
    """\
examples:
  reshard propagate layer.txt
  reshard propagate layer.txt --until-priority 0 --text
  reshard propagate layer.txt --network h100-2x8 --why scores
  reshard propagate layer.txt --memory-limit 80000000000
  reshard propagate model.mlir

"""
    + PROGRAM_FORM
)


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "propagate", run, "carry the shardings of a program through all of it", EXAMPLES)
    parser.add_argument("--until-priority", type=int, metavar="N", help="stop after the dims of this priority")
    add_placing(parser)
    parser.add_argument("--work-limit", type=int, metavar="OPERATIONS", help="what a device may compute in all")
    parser.add_argument("--why", metavar="VALUE", help="say only where the sharding of this value comes from")
    parser.add_argument("--text", action="store_true", help="print the placed program as text, to be read again")
    parser.add_argument("--trace", metavar="OUT", help="write a Chrome trace of the reshards, for Perfetto")
    add_program(parser)


def subject(args: argparse.Namespace) -> Placement:
    """What the command is about."""
    return read_program(args.file).propagate(
        args.network,
        args.until_priority,
        goal=args.goal,
        seconds=args.seconds,
        memory_limit=args.memory_limit,
        work_limit=args.work_limit,
    )


def run(args: argparse.Namespace) -> None:
    """Propagate and print."""
    placed = subject(args)
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
        "memory_limit": placed.memory_limit,
        "work_limit": placed.work_limit,
        "peak_values": [{"value": name, "bytes": size} for name, size in placed.peak_values],
        "seconds": placed.seconds,
        "flops": placed.flops,
        "goal": placed.goal.name,
        "lower_bound_bytes": placed.lower_bound_bytes,
        "lower_bound_seconds": placed.lower_bound_seconds,
        "schedule_bound_seconds": placed.schedule_bound_seconds,
        "is_proved": placed.is_proved,
    }
