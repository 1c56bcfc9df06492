"""`reshard bench planner`: how long planning takes on this machine, and what the plans come to."""

from __future__ import annotations

import argparse
import collections
import random
import statistics
import time
from typing import Any

from reshard.cli import output
from reshard.cli.arguments import mesh_of, shape_of
from reshard.cli.commands import Commands, add_command
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.planner import BASES, cache_clear
from reshard.planner import plan as make_plan
from reshard.plans import Plan
from reshard.sharding import Sharding

SUBJECTS = ("planner",)
EXAMPLES = """\
examples:
  reshard bench planner
  reshard bench planner --mesh h=32,g=8 --shape 8192,8192 --network h100-32x8
  reshard bench planner --mesh x=2,y=3,z=5 --shape 60,60 --basis collectives --json
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "bench", run, "measure how long planning takes here", EXAMPLES)
    parser.add_argument("subject", choices=SUBJECTS, help="what to measure")
    parser.add_argument("--mesh", default="A=4,B=4,C=2,D=2,E=4", metavar="MESH", help="axes and sizes")
    parser.add_argument("--shape", default="2048,2048", metavar="SIZES", help="of the tensors")
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="of their elements")
    parser.add_argument("--network", metavar="NAME", help="choose by time on this network, as h100-2x8")
    parser.add_argument("--basis", default="any", choices=BASES, help="which steps the plans may have")
    parser.add_argument("--pairs", type=int, default=200, metavar="N", help="how many random pairs of shardings")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw")


def run(args: argparse.Namespace) -> None:
    """Draw pairs, plan each afresh, print the figures."""
    mesh, shape = mesh_of(args.mesh), shape_of(args.shape)
    if mesh is None or mesh.is_maximal or not shape:
        raise ReshardError("bad-argument", "a mesh with axes and a shape with dims are needed to draw shardings")
    if not 1 <= args.pairs <= 100_000:
        raise ReshardError("bad-argument", f"--pairs must be from 1 to 100000, got: {args.pairs}")
    network = None if args.network is None else Network.preset(args.network)
    rng, dtype = random.Random(args.seed), dtype_named(args.dtype)
    plans, times = [], []
    for _ in range(args.pairs):
        ends = drawn(mesh, len(shape), rng), drawn(mesh, len(shape), rng)
        cache_clear()
        start = time.perf_counter()
        plans.append(make_plan(*ends, shape, dtype, network=network, basis=args.basis))
        times.append(1e3 * (time.perf_counter() - start))
    figures = {"mesh": args.mesh, "shape": list(shape), "network": args.network, "basis": args.basis} | summary(
        plans, times
    )
    output.write_json(figures) if args.json else print(text(figures))


def drawn(mesh: Mesh, ndim: int, rng: random.Random) -> Sharding:
    """A sharding in which every axis cuts any dim or none, in any order."""
    dims: list[list[str]] = [[] for _ in range(ndim)]
    for name, _ in rng.sample(mesh.axes, len(mesh.axes)):
        place = rng.randrange(ndim + 1)
        if place < ndim:
            dims[place].append(name)
    return Sharding.of(mesh, *dims)


def summary(plans: list[Plan], milliseconds: list[float]) -> dict[str, Any]:
    """Quantiles of the times, how far the plans are from the bound, and how many steps they have."""
    ordered = sorted(milliseconds)
    ratios = sorted(plan.received_bytes / plan.lower_bound_bytes for plan in plans if plan.lower_bound_bytes)
    return {
        "pairs": len(plans),
        "milliseconds": {
            "median": statistics.median(ordered),
            "p90": ordered[len(ordered) * 9 // 10],
            "p99": ordered[len(ordered) * 99 // 100],
            "max": ordered[-1],
        },
        "received_over_bound": {"median": statistics.median(ratios), "max": ratios[-1]} if ratios else None,
        "steps": dict(sorted(collections.Counter(len(plan.steps) for plan in plans).items())),
        "not_proved": sum("not proved" in plan.reason for plan in plans),
    }


def text(figures: dict[str, Any]) -> str:
    """The figures, to read."""
    shape = " x ".join(map(str, figures["shape"]))
    on = f" on {figures['network']}" if figures["network"] else ""
    lines = [f"{figures['pairs']} random pairs of shardings of {shape}, mesh {figures['mesh']}{on}"]
    lines.append("planning   " + ", ".join(f"{name} {value:.3g} ms" for name, value in figures["milliseconds"].items()))
    ratios = figures["received_over_bound"]
    if ratios:
        lines.append("received   " + ", ".join(f"{name} {value:.3g} times the bound" for name, value in ratios.items()))
    lines.append("steps      " + ", ".join(f"{count} plans of {steps}" for steps, count in figures["steps"].items()))
    if figures["not_proved"]:
        lines.append(f"not proved to be the cheapest: {figures['not_proved']}")
    return "\n".join(lines)
