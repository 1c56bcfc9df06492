"""`reshard einsum`: where a contraction of sharded tensors is computed, and what that costs."""

from __future__ import annotations

import argparse

from reshard.cli import output
from reshard.cli.arguments import mesh_of, shape_of
from reshard.cli.commands import Commands, add_command
from reshard.cli.programs_in_files import read_program
from reshard.contraction import EinsumPlan, alternatives, einsum
from reshard.contraction.formula import comparison
from reshard.errors import ReshardError
from reshard.notation import parse_sharding
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding

EXAMPLES = """\
examples:
  reshard einsum 'ij,jk->ik' --mesh X=4,Y=2 --shape 2048,8192 --shape 8192,28672 \\
      --operand '[{"Y"}, {"X"}]' --operand '[{"X"}, {}]' --target '[{"Y"}, {"X"}]'
  reshard einsum 'bd,df->bf' --mesh data=8 --shape 4096,4096 --shape 4096,14336 --dtype bf16 \\
      --operand 'A[B_data, D]' --operand 'W[D_data, F]' --network h100-1x8 --alternatives
  reshard einsum '(a b) c -> a (b c)' --mesh x=4 --shape 8,3 --size a=2 --operand '[{"x"}, {}]'
  reshard einsum --file lowered.mlir --network h100-2x8
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    summary = "say where an einsum of sharded tensors is computed and what that costs"
    parser = add_command(commands, "einsum", run, summary, EXAMPLES)
    parser.add_argument(
        "expression", nargs="?", metavar="EXPRESSION", help="as ij,jk->ik, or with words as (a b) c -> a (b c)"
    )
    parser.add_argument("--file", metavar="FILE", help="plan every contraction of a program, as propagate reads it")
    parser.add_argument("--mesh", metavar="MESH", help='the devices, as x=2,y=4 or <["x"=2, "y"=4]>')
    parser.add_argument("--shape", action="append", default=[], metavar="N,N", help="the sizes of an operand; one each")
    parser.add_argument(
        "--operand",
        action="append",
        default=[],
        metavar="SHARDING",
        help="the sharding of an operand; one each, or none",
    )
    parser.add_argument("--target", metavar="SHARDING", help="the sharding of the result; the cheapest unless given")
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="the element type, as f32 or float32")
    parser.add_argument("--size", action="append", default=[], metavar="LABEL=N", help="the size of a label")
    parser.add_argument("--network", metavar="NAME", help="choose by time on this network, as h100-2x8")
    parser.add_argument(
        "--goal", choices=("bytes", "balanced"), help="what is least; balanced weighs work in, as the network computes"
    )
    parser.add_argument("--leave-partial", action="store_true", help="without a target, let sums be left to be made")
    parser.add_argument("--prove", action="store_true", help="search on until no other layout can be cheaper")
    parser.add_argument("--alternatives", action="store_true", help="add a table of the other layouts, best first")
    parser.set_defaults(misuse=parser.error)


def subject(args: argparse.Namespace) -> EinsumPlan:
    """What the command is about."""
    mesh = mesh_of(args.mesh)
    if mesh is None or args.expression is None:
        args.misuse("--mesh must be given with an EXPRESSION")
        raise SystemExit(2)  # not reached: argparse ends the program
    pattern = Pattern.of(args.expression)
    shapes = [shape_of(text) for text in args.shape]
    texts = args.operand or [None] * len(pattern.operands)
    operands = [
        Sharding.of(mesh, *[None] * len(term)) if text is None else parse_sharding(text, mesh, len(term))
        for text, term in zip(texts, pattern.operands, strict=False)
    ]
    pattern.check_count(len(texts), " shardings")
    return einsum(
        pattern,
        *operands,
        shapes=shapes,
        dtype=args.dtype,
        target=None if args.target is None else parse_sharding(args.target, mesh, len(pattern.output)),
        network=args.network,
        goal=args.goal,
        sizes=dict(_size(text) for text in args.size),
        leave_partial=args.leave_partial,
        prove=args.prove,
    )


def run(args: argparse.Namespace) -> None:
    """Plan and print."""
    if (args.file is None) == (args.expression is None):
        args.misuse("either EXPRESSION or --file FILE must be given")
    if args.file is not None:
        _run_file(args)
        return
    plan = subject(args)
    other_plans = alternatives(plan) if args.alternatives else ()
    if args.json:
        extra = {"alternatives": [other.as_dict() for other in other_plans]} if args.alternatives else {}
        output.write_json(plan.as_dict() | extra)
        return
    print(str(plan))
    if other_plans:
        print(f"\nall layouts, best first\n{comparison([plan, *other_plans])}")


def _run_file(args: argparse.Namespace) -> None:
    """Plan every contraction of a program, with its operands as they are kept and its result where it is wanted."""
    placed = read_program(args.file).propagate(args.network, goal=args.goal)
    plans = {
        operation.result.name: einsum(
            operation.pattern,
            *map(placed.sharding, operation.operands),
            shapes=[operand.shape for operand in operation.operands],
            dtype=operation.arithmetic,
            target=placed.sharding(operation.result),
            network=args.network,
            goal=args.goal or placed.goal.name,
        )
        for operation in placed.operations
        if operation.pattern is not None and operation.name == "einsum" and len(operation.operands) > 1
    }
    if args.json:
        output.write_json([{"value": name} | plan.as_dict() for name, plan in plans.items()])
        return
    for name, plan in plans.items():
        print(f"{name}\n{plan}\n")
    print(f"{len(plans)} contractions in {args.file}")


def _size(text: str) -> tuple[str, int]:
    """A label and its size.

    Raises:
        ReshardError: `bad-argument`.
    """
    label, _, size = text.partition("=")
    if not size.isascii() or not size.isdigit() or len(size) > 40:
        raise ReshardError("bad-argument", f"--size must be a label and its size, as a=2, got: {text!r}")
    return label.strip(), int(size)
