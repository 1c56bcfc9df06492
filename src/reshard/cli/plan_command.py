"""`reshard plan`: what a reshard does and what it costs, before it is done."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from reshard.box import Box
from reshard.cli import output
from reshard.cli.arguments import add_meshes, add_shape, mesh_of, parse_pair, tensor_said
from reshard.cli.commands import Commands, add_command
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.exchange import Exchange, Piece
from reshard.planner import BASES, alternatives
from reshard.planner import plan as make_plan
from reshard.plans import Plan, blocks
from reshard.sharding import Sharding
from reshard.tables import bytes_text
from reshard.xla.partitioner import explain

EXAMPLES = """\
examples:
  reshard plan --mesh D=2,Y=8,X=4,T=4 --shape 2048,2048 '[{"D"}, {"X", "Y"}]' '[{}, {"D", "Y", "X", "T"}]'
  reshard plan --mesh x=2,y=4 --shape 8,8 --dtype bf16 'A[I_y, J]' 'A[I_x, J_y]' --device 5
  reshard plan --mesh h=2,g=8 --shape 8192,8192 --network h100-2x8 --alternatives '[{}, {"h"}]' '[{"h"}, {}]'
  reshard plan --mesh x=2,y=4 'bf16[8@x,8]' "P(None, 'y')"
  reshard plan --mesh x=8 --target-mesh '<["x"=4], device_ids=[3, 2, 1, 0]>' --shape 64 '[{"x"}]' '[{"x"}]' --json
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "plan", run, "say what a reshard does and what it costs", EXAMPLES)
    add_meshes(parser)
    add_shape(parser, required=False)
    parser.add_argument("--dtype", metavar="NAME", help="the element type, as f32 or float32")
    parser.add_argument("--device", type=int, metavar="N", help="add what this device receives and sends")
    parser.add_argument("--network", metavar="NAME", help="choose by time on this network, as h100-2x8")
    parser.add_argument("--basis", default="any", choices=BASES, help="which steps the plan may have")
    parser.add_argument("--memory-limit", type=int, metavar="BYTES", help="what a device may hold at once")
    parser.add_argument("--alternatives", action="store_true", help="add the other plans, best first")
    parser.add_argument("--mlir", choices=("sdy", "shard"), help="print the plan in this dialect of MLIR instead")
    parser.add_argument("--trace", metavar="FILE", help="write a Chrome trace of the priced plan, for Perfetto")
    parser.add_argument(
        "--explain-xla", action="store_true", help="say which branch of XLA's partitioner it falls into"
    )
    parser.add_argument("source", metavar="SOURCE", help="the sharding in which the tensor is")
    parser.add_argument("target", metavar="TARGET", help="the sharding in which it is wanted")
    parser.set_defaults(misuse=parser.error)


def subject(args: argparse.Namespace, basis: str | None = None) -> Plan:
    """What the command is about: the plan, in another basis where one is given."""
    shape, dtype = tensor_said(args)
    source, target = parse_pair(args.source, args.target, mesh_of(args.mesh), mesh_of(args.target_mesh), len(shape))
    return make_plan(
        source,
        target,
        shape,
        dtype_named(dtype),
        network=args.network,
        basis=basis or args.basis,
        memory_limit=args.memory_limit,
    )


def run(args: argparse.Namespace) -> None:
    """Plan and print."""
    plan = subject(args)
    if args.trace:
        output.write_file(args.trace, plan.to_trace())
    mlir = ""
    if args.mlir:
        if any(step.kind == "Exchange" for step in plan.steps):  # which MLIR does not have
            plan = subject(args, "collectives")
        mlir = plan.to_mlir(args.mlir)
    ways = alternatives(plan) if args.alternatives else ()
    branch = explain(plan.source, plan.target, plan.shape) if args.explain_xla else None
    traffic = None if args.device is None else device_traffic(plan, args.device)
    if args.json:
        extra: dict[str, Any] = {"mlir": mlir} if args.mlir else {}
        extra |= {"alternatives": [way.as_dict() for way in ways]} if args.alternatives else {}
        if branch is not None:
            extra["xla"] = {"branch": branch.branch.name, "collectives": branch.collectives, "why": branch.why}
        extra |= {} if traffic is None else {"device": traffic}
        output.write_json(plan.as_dict() | extra) if extra else print(plan.to_json())
        return
    if args.mlir:
        print(mlir)
        return
    output.write_shown(plan, blocks(plan))
    for number, way in enumerate(ways, 1):
        print(f"\nalternative {number}")
        output.write_shown(way, blocks(way))
    if branch is not None:
        print(f"\nXLA: {branch.branch.name}, by {', '.join(branch.collectives) or 'nothing'}: {branch.why}")
    if traffic is not None:
        print("\n" + traffic_text(traffic))


def device_traffic(plan: Plan, device: int) -> dict[str, Any]:
    """What one device receives, sends and keeps, step by step and exchange by exchange.

    Raises:
        ReshardError: `unknown-device`.
    """
    if device not in plan.source.mesh and device not in plan.target.mesh:
        raise ReshardError("unknown-device", f"device {device} is neither in the source nor in the target")
    boxes = [_place_of(end, device, plan) for end in (plan.source, plan.target)]
    return {
        "device": device,
        "source_box": boxes[0],
        "target_box": boxes[1],
        "received_bytes": plan.received_bytes_on(device),
        "lower_bound_bytes": plan.lower_bound_bytes_on(device),
        "steps": [
            {
                "kind": step.kind,
                "exchanges": [
                    _pieces(move.exchange, device, plan.dtype.itemsize) | {"reduction": move.reduction}
                    for move in step.moves
                ],
            }
            for step in plan.steps
        ],
    }


def _place_of(end: Sharding, device: int, plan: Plan) -> Box | list[Box] | None:
    """The box that a device holds of an end, or its boxes where they are several; None where it holds nothing."""
    if device not in end.mesh:
        return None
    return list(end.boxes(device, plan.shape)) if end.is_woven else end.box(device, plan.shape)


def _pieces(exchange: Exchange, device: int, itemsize: int) -> dict[str, Any]:
    if device not in exchange.source.mesh and device not in exchange.target.mesh:
        return {"keeps": [], "receives": [], "hands_on": [], "sends": []}

    def records(pieces: Iterable[Piece], verb: str, peer: str) -> list[dict[str, Any]]:
        return [
            {verb: getattr(piece, peer), "box": piece.box, "bytes": piece.box.size * itemsize, "round": piece.round}
            for piece in pieces
        ]

    incoming, passing, outgoing = exchange.incoming(device), exchange.passing(device), exchange.outgoing(device)
    return {
        "keeps": [piece.box for piece in incoming if piece.sender == device],
        "receives": records((piece for piece in incoming if piece.sender != device), "from", "sender"),
        "hands_on": records(passing, "from", "sender"),
        "sends": records((piece for piece in outgoing if piece.receiver != device), "to", "receiver"),
    }


def traffic_text(traffic: dict[str, Any]) -> str:
    """What `device_traffic` found, to read."""
    held, needed = (
        " and ".join(map(str, box)) if isinstance(box, list) else box or "nothing"
        for box in (traffic["source_box"], traffic["target_box"])
    )
    received, bound = bytes_text(traffic["received_bytes"]), bytes_text(traffic["lower_bound_bytes"])
    lines = [f"device {traffic['device']}: holds {held}, needs {needed}; receives {received}, lower bound {bound}"]
    for number, step in enumerate(traffic["steps"], 1):
        many = len(step["exchanges"]) > 1
        for turn, exchange in enumerate(step["exchanges"], 1):
            part = f", exchange {turn} of {len(step['exchanges'])}" if many else ""
            what = f": what arrives for one box is combined by {exchange['reduction']}" if exchange["reduction"] else ""
            lines.append(f"step {number} {step['kind']}{part}{what}")
            lines += [f"  keeps {box}" for box in exchange["keeps"]]
            for verb, preposition in (("receives", "from"), ("hands on", "from"), ("sends", "to")):
                lines += [
                    f"  {verb} {piece['box']} {preposition} device {piece[preposition]}, {bytes_text(piece['bytes'])}"
                    for piece in exchange[verb.replace(" ", "_")]
                ]
        if not step["exchanges"]:
            lines.append(f"step {number} {step['kind']}: nothing is sent")
    return "\n".join(lines)
