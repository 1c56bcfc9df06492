"""Plans of steps along a ring, as many as may be, for tests of engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from random import Random

import problems

import reshard as rs
from reshard.digits import Digit


def ring_plans(mesh: rs.Mesh, shape: tuple[int, ...], dtype: str) -> Iterator[rs.Plan]:
    """Of one step along a ring of all devices."""
    shardings = list(problems.full_axis_shardings(mesh, len(shape)))
    for ends in product(shardings, repeat=2):
        reshard = rs.plan(*ends, shape, dtype).reshard
        with suppress(rs.ReshardError):  # what is no digit of both
            yield rs.Plan(reshard, (rs.Step(reshard, ring=Digit(1, mesh.size)),))


def plans_with_kept(mesh: rs.Mesh, shape: tuple[int, ...], dtype: str, count: int) -> Iterator[rs.Plan]:
    """Of two steps, the second of which sends what devices kept from the source."""
    shardings, rng = list(problems.full_axis_shardings(mesh, len(shape))), Random(7)
    while count:
        source, middle, target = (rng.choice(shardings) for _ in range(3))
        reshard = rs.plan(source, target, shape, dtype).reshard
        with suppress(rs.ReshardError):
            along = rs.Step(replace(reshard, source=middle), ring=Digit(1, mesh.size), kept=source)
            plan = rs.Plan(reshard, (rs.Step(replace(reshard, target=middle)), along))
            exchange = along.moves[0].exchange
            sent = [piece for device in mesh.devices for piece in exchange.outgoing(device) if piece.round < 2]
            if not all(exchange.holds(piece.sender, piece.box) for piece in sent):
                yield plan
                count -= 1
