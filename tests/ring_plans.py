"""Plans of steps along a ring, as many as may be, for tests of engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product
from random import Random

import problems

import reshard as rs
from reshard.digits import Digit
from reshard.planner.larger_tensors import plans_ended_inside


def ring_plans(mesh: rs.Mesh, shape: tuple[int, ...], dtype: str) -> Iterator[rs.Plan]:
    """Of one step along a ring of all devices."""
    shardings = list(problems.full_axis_shardings(mesh, len(shape)))
    for ends in product(shardings, repeat=2):
        reshard = rs.plan(*ends, shape, dtype).reshard
        with suppress(rs.ReshardError):  # what is no digit of both
            yield rs.Plan(reshard, (rs.Step(reshard, ring=Digit(1, mesh.size)),))


def plans_with_kept(
    mesh: rs.Mesh, shape: tuple[int, ...], dtype: str, count: int, ring: Digit | None = None
) -> Iterator[rs.Plan]:
    """Of two steps, the second of which uses what devices kept from the source, along a ring or without."""
    shardings, rng = list(problems.full_axis_shardings(mesh, len(shape))), Random(7)
    while count:
        source, middle, target = (rng.choice(shardings) for _ in range(3))
        reshard = rs.plan(source, target, shape, dtype).reshard
        with suppress(rs.ReshardError):
            last = rs.Step(replace(reshard, source=middle), ring=ring, kept=source)
            plan = rs.Plan(reshard, (rs.Step(replace(reshard, target=middle)), last))
            exchange = last.moves[0].exchange
            sent = [piece for device in mesh.devices for piece in exchange.outgoing(device) if piece.round < 2]
            if any(exchange.is_kept(piece.sender, piece.box) for piece in sent):
                yield plan
                count -= 1


def plan_that_keeps_blocks(rows: int) -> rs.Plan:
    """On 2 x 2, in 5 parts, once a first step has put a tensor in blocks of 260 rows that devices keep for a ring."""
    network, mesh = rs.Network((rs.network.Level(1, 4, "ring", 1, 0),)), rs.Mesh.of(a=2, b=2)
    ends = rs.Sharding.of(mesh, "a", None), rs.Sharding.of(mesh, "b", None)
    larger = replace(rs.plan(*ends, (260, 43), "int32", network=network), parts=5)
    plan = next(plans_ended_inside(replace(larger.reshard, shape=(rows, 43)), larger))
    assert plan.whole == (1, 1)
    assert plan.steps[0].after in [step.kept for step in plan.steps]
    return plan


def two_rings_in_blocks(shape: tuple[int, int]) -> rs.Plan:
    """Devices of 3 x 3 change places while a tensor lies in longer blocks than at its ends, the last of them short."""
    mesh, longer = rs.Mesh.of(x=3, y=3), rs.Deal.blocks(-(-shape[0] // 3) + 1)
    points = [
        rs.Sharding.of(mesh, *dims) for dims in (("x", "y"), ((longer, "x"), "y"), ((longer, "y"), "x"), ("y", "x"))
    ]
    reshard = rs.plan(points[0], points[-1], shape, "float32").reshard
    legs = [replace(reshard, source=before, target=after) for before, after in pairwise(points)]
    along = rs.Step(legs[1], ring=Digit(3, 3), across=Digit(1, 3))
    return rs.Plan(reshard, (rs.Step(legs[0]), along, rs.Step(legs[2])))
