"""The price of an einsum against an exhaustive search over compute layouts, written apart.

An axis cuts one label, keeps an operand unreduced, or does nothing; several axes on one label are tried in all orders.
Every layout is priced with the planner's own plans, received bytes added up device by device.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import permutations, product

import numpy as np
import pytest

import reshard as rs
from reshard.axis import Axis
from reshard.mesh import Mesh
from reshard.sharding import Sharding

TERMS = (("i", "j"), ("j", "k"), ("i", "k"))
SIZES = {"i": 12, "j": 24, "k": 36}
SHAPES = tuple(tuple(SIZES[label] for label in term) for term in TERMS)
SMALL = Mesh.of(x=2, y=3)
CUBE = Mesh.of(x=2, y=2, z=2)
SPLIT = Mesh.of(x=4, y=2)
PIECES = ("x:(1)2", "x:(2)2", "y")
"""Of the axes of SPLIT."""

Price = tuple[int, int, int]


def matrix_shardings(mesh: Mesh, *, partial: bool, pieces: Sequence[str] | None = None) -> list[Sharding]:
    """Every sharding of a matrix over whole axes or these pieces, with partial values along some or without."""
    names = pieces or [name for name, _ in mesh.axes]
    found = []
    for roles in product(("none", "rows", "columns", *(["partial"] if partial else [])), repeat=len(names)):
        rows, columns, unreduced = (
            [n for n, r in zip(names, roles, strict=True) if r == role] for role in ("rows", "columns", "partial")
        )
        orders = product(permutations(rows), permutations(columns))
        found += [Sharding.of(mesh, *dims, unreduced=unreduced) for dims in orders]
    return found


def is_partial(sharding: Sharding, name: str) -> bool:
    """Whether a sharding is unreduced along an axis or a piece of one."""
    return any(axis.contains(Axis.of(name)) for axis in sharding.unreduced)


Layout = tuple[Sharding, Sharding, Sharding]


def layouts(mesh: Mesh, operands: tuple[Sharding, Sharding], pieces: Sequence[str] | None = None) -> list[Layout]:
    """Every compute layout over whole axes or these pieces: how both operands and the result lie in it."""
    names = tuple(pieces or [name for name, _ in mesh.axes])
    kept = [tuple(f"P{n}" for n in (0, 1) if is_partial(operands[n], name)) for name in names]
    return layouts_of(mesh, names, tuple(kept))


@cache
def layouts_of(mesh: Mesh, names: tuple[str, ...], kept: tuple[tuple[str, ...], ...]) -> list[Layout]:
    """Those of any operands that are partial along the same axes: per axis the operands that may be kept so."""
    found = []
    for chosen in product(*(("none", "i", "j", "k", *partial) for partial in kept)):
        given = {
            role: [n for n, r in zip(names, chosen, strict=True) if r == role] for role in ("i", "j", "k", "P0", "P1")
        }
        for i, j, k in product(*(permutations(given[label]) for label in "ijk")):
            layout = (
                Sharding.of(mesh, i, j, unreduced=given["P0"]),
                Sharding.of(mesh, j, k, unreduced=given["P1"]),
                Sharding.of(mesh, i, k, unreduced=[*j, *given["P0"], *given["P1"]]),
            )
            found.append(layout)
    return found


@cache
def cost(source: Sharding, target: Sharding, shape: tuple[int, int]) -> tuple[np.ndarray, int]:
    """What every device receives, and in how many steps."""
    plan = rs.plan(source, target, shape, "int8")
    return np.array([plan.received_bytes_on(device) for device in source.mesh.devices]), len(plan.steps)


def exhaustive(operands: tuple[Sharding, Sharding], target: Sharding, pieces: Sequence[str] | None = None) -> Price:
    """The least price of all layouts: bytes of the busiest device, bytes in all, steps."""
    prices = []
    for *used, made in layouts(target.mesh, operands, pieces):
        parts = [
            cost(*pair, shape)
            for pair, shape in zip((*zip(operands, used, strict=True), (made, target)), SHAPES, strict=True)
        ]
        received = sum(part[0] for part in parts)
        prices.append((int(received.max()), int(received.sum()), sum(part[1] for part in parts)))
    return min(prices)


def check(operands: tuple[Sharding, Sharding], target: Sharding, pieces: Sequence[str] | None = None) -> None:
    plan = rs.einsum("ij,jk->ik", *operands, shapes=SHAPES[:2], dtype="int8", target=target)
    found = plan.price[1:4]
    assert found == exhaustive(operands, target, pieces), (operands, target, plan.layout)


@pytest.mark.parametrize("first", matrix_shardings(SMALL, partial=False), ids=lambda one: one.text())
def test_no_layout_over_whole_axes_is_cheaper(first: Sharding) -> None:
    every = matrix_shardings(SMALL, partial=False)
    for second, target in product(every, every):
        check((first, second), target)


@pytest.mark.parametrize("seed", range(4))
def test_no_layout_is_cheaper_where_anything_may_be_partial(seed: int) -> None:
    rng = random.Random(seed)
    every = matrix_shardings(SMALL, partial=True)
    for _ in range(25):
        first, second, target = rng.choices(every, k=3)
        check((first, second), target)


@pytest.mark.parametrize("seed", range(4))
def test_no_layout_on_three_axes_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    every = matrix_shardings(CUBE, partial=False)
    for _ in range(10):
        first, second, target = rng.choices(every, k=3)
        check((first, second), target)


@pytest.mark.parametrize("seed", range(4))
def test_no_layout_over_parts_of_axes_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    every = matrix_shardings(SPLIT, partial=True, pieces=PIECES)
    for _ in range(5):
        first, second, target = rng.choices(every, k=3)
        check((first, second), target, PIECES)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10))
def test_no_layout_of_five_thousand_drawn_is_cheaper(seed: int) -> None:
    rng = random.Random(1000 + seed)
    every = matrix_shardings(CUBE, partial=True)
    for _ in range(500):
        first, second, target = rng.choices(every, k=3)
        check((first, second), target)
