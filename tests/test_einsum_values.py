"""What the NumPy engine makes of a plan, against NumPy's einsum of the whole arrays, device by device.

Values are small integers, so that every sum is exact in any order.
Tiles are cut by the tests' own index arithmetic, bytes are counted while they move.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import oracle
import pytest

import reshard as rs
from reshard.contraction import EinsumPlan
from reshard.mesh import Mesh
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding

Array = np.ndarray[Any, Any]


def whole(pattern: Pattern, sizes: dict[str, int], arrays: Sequence[Array]) -> Array:
    """The result by NumPy, of arrays that are not cut."""
    numbers = {label: number for number, label in enumerate(pattern.labels)}
    arguments: list[Any] = []
    held: set[str] = set()
    for array, term in zip(arrays, pattern.operands, strict=True):
        labels = [label for group in term for label in group]
        held.update(labels)
        arguments += [array.reshape([sizes[label] for label in labels]), [numbers[label] for label in labels]]
    wanted = [label for group in pattern.output for label in group]
    made = np.einsum(*arguments, [numbers[label] for label in wanted if label in held])
    for place, label in enumerate(wanted):
        if label not in held:
            made = np.repeat(np.expand_dims(made, place), sizes[label], axis=place)
    return np.asarray(made).reshape(pattern.output_shape(sizes))


def check(text: str, sources: Sequence[Sharding], shapes: Sequence[tuple[int, ...]], **options: Any) -> EinsumPlan:
    """Plan, run, and compare: values on every device, and counted bytes with those of the plan."""
    plan = rs.einsum(text, *sources, shapes=shapes, dtype="int64", **options)
    rng = np.random.default_rng(len(shapes))
    classes = [
        rng.integers(-9, 10, (oracle.class_count(end), *shape)) for end, shape in zip(sources, shapes, strict=True)
    ]
    arrays = [oracle.reduced(list(one), end) for one, end in zip(classes, sources, strict=True)]
    tiles = [oracle.partial_tiles(list(one), end) for one, end in zip(classes, sources, strict=True)]
    before = [{device: tile.copy() for device, tile in one.items()} for one in tiles]
    counts: dict[int, int] = {}
    made = rs.numpy.einsum(plan, *tiles, received_bytes=counts)
    for one, kept in zip(tiles, before, strict=True):
        assert all(np.array_equal(one[device], kept[device]) for device in kept), "operands were written to"
    assert counts == {device: plan.received_bytes_on(device) for device in counts}
    assert max(counts.values(), default=0) == plan.received_bytes
    assert sum(counts.values()) == plan.total_received_bytes
    expected = whole(plan.expression, plan.expression_sizes, arrays)
    assert plan.expression == Pattern.of(text)
    assert set(made) == set(plan.target.mesh.devices)
    assert np.array_equal(oracle.values(plan.target, expected.shape, made), expected)
    return plan


LINE = Mesh.of(x=4)


def one_axis(mesh: Mesh) -> dict[str, Sharding]:
    """The four places of a matrix on one axis."""
    return {
        "R": Sharding.of(mesh, None, None),
        "S0": Sharding.of(mesh, "x", None),
        "S1": Sharding.of(mesh, None, "x"),
        "P": Sharding.of(mesh, None, None, unreduced="x"),
    }


PAIRS = list(product(["R", "S0", "S1", "P"], repeat=2))


@pytest.mark.parametrize("shapes", [[(8, 12), (12, 16)], [(5, 6), (6, 7)], [(2, 3), (3, 1)]], ids=str)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_every_product_on_one_axis(first: str, second: str, shapes: list[tuple[int, int]]) -> None:
    places = one_axis(LINE)
    for target in [None, *places.values()]:
        check("ij,jk->ik", [places[first], places[second]], shapes, target=target)
    check("ij,jk->ik", [places[first], places[second]], shapes, leave_partial=True)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("seed", range(10))
def test_products_on_two_axes(seed: int, sizes: tuple[int, int]) -> None:
    rng = random.Random(seed)
    mesh = Mesh.of(x=sizes[0], y=sizes[1], device_ids=rng.sample(range(8), sizes[0] * sizes[1]))
    for _ in range(6):
        shapes = rng.choice([[(12, 12), (12, 12)], [(7, 5), (5, 9)], [(6, 1), (1, 6)]])
        ends = [drawn(mesh, 2, rng) for _ in range(3)]
        check("ij,jk->ik", ends[:2], shapes, target=rng.choice([None, ends[2]]))


EXPRESSIONS = [
    "bij,bjk->bik", "ij,ij->ij", "ij->ji", "ij->", "ij->i", "ii->i", "ii->", "ij,j->i", "i,j->ij", ",ij->ij",
    "iij,jk->ik", "ij,ij,ij->j", "ij,jk,kl->il", "ij,jk,kl,lm->im", "bthd,bshd->bhts", "(a b) c -> a (b c)",
    "a b -> (a b)", "(a b) -> a b", "(a b), (b a) -> b a", "a b c -> (b a) c", "i 1 -> i", "i -> i n", "->",
]  # fmt: skip
MESHES = [{"x": 4}, {"x": 6}, {"x": 8}, {"x": 2, "y": 3}, {"x": 4, "y": 2}, {"x": 1, "y": 3}, {"x": 2, "y": 2, "z": 2}]


def drawn(mesh: Mesh, ndim: int, rng: random.Random) -> Sharding:
    """Any sharding: axes whole or in part, in any order, unreduced or unused."""
    axes: list[str] = []
    for name, size in mesh.axes:
        whole_axis = size not in (4, 8) or rng.random() < 0.6
        axes += [name] if whole_axis else [f"{name}:(1)2", f"{name}:(2){size // 2}"]
    rng.shuffle(axes)
    dims: list[list[str]] = [[] for _ in range(ndim)]
    unreduced = []
    for axis in axes:
        place = rng.randrange(-2, ndim)
        if place >= 0:
            dims[place].append(axis)
        elif place == -2 and rng.random() < 0.6:
            unreduced.append(axis)
    return Sharding.of(mesh, *dims, unreduced=unreduced, uneven=rng.choice(["ceil", "ceil", "chunk"]))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_any_expression_from_anywhere_to_anywhere(text: str) -> None:
    rng = random.Random(text)
    pattern = Pattern.of(text)
    for _ in range(4 if len(pattern.operands) > 2 else 12):
        axes = rng.choice(MESHES if len(pattern.operands) < 3 else MESHES[:-1])
        count = int(np.prod(list(axes.values())))
        mesh = Mesh.of(axes, device_ids=rng.sample(range(count), count) if rng.random() < 0.3 else None)
        sizes = {label: rng.choice([1, 2, 3, 4, 5, 6, 8, 12]) for label in pattern.labels}
        if pattern.labels and "(" not in text and rng.random() < 0.1:
            sizes[rng.choice(pattern.labels)] = 0
        shapes = [pattern.shape_of(term, sizes) for term in pattern.operands]
        target = rng.choice([None, drawn(mesh, len(pattern.output), rng)])
        options = {"target": target, "sizes": sizes, "leave_partial": rng.random() < 0.5}
        check(text, [drawn(mesh, len(shape), rng) for shape in shapes], shapes, **options)


def test_meshes_of_operands_and_target_may_differ() -> None:
    first, second, third = Mesh.of(x=2, y=2), Mesh.of(z=4), Mesh.of(w=4, device_ids=[7, 3, 2, 0])
    sources = [Sharding.of(first, "x", "y"), Sharding.of(second, None, "z")]
    check("ij,jk->ik", sources, [(8, 8), (8, 8)], target=Sharding.of(third, "w", None))


@pytest.mark.parametrize("reduction", ["max", "avg", "product"])
def test_what_no_product_may_keep_partial_is_combined_first(reduction: str) -> None:
    mesh = Mesh.of(x=2)
    source = Sharding.of(mesh, None, None, unreduced="x", reduction=reduction)
    plan = rs.einsum("ij,jk->ik", source, Sharding.of(mesh, None, None), shapes=[(4, 4), (4, 4)], leave_partial=True)
    assert not plan.layouts[0].unreduced
    turned = rs.einsum("ij->ji", source, shapes=[(4, 6)], leave_partial=True)
    assert (turned.target.unreduced, turned.target.reduction, turned.received_bytes) == (source.unreduced, reduction, 0)


def test_floats_of_any_size_keep_their_dtype() -> None:
    mesh = Mesh.of(x=2)
    rows = Sharding.of(mesh, "x", None)
    plan = rs.einsum("ij,jk->ik", rows, rows, shapes=[(4, 4), (4, 4)], dtype="float16", target=rows)
    array = np.eye(4, dtype="float16")
    made = rs.numpy.einsum(plan, rs.numpy.scatter(array, rows), rs.numpy.scatter(array, rows))
    assert {tile.dtype for tile in made.values()} == {np.dtype("float16")}
