"""Kernels of Pallas that are drawn: grids, index maps, scratch and places that are asked for, as users write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from random import Random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Numbering = Callable[..., Any]
"""From a place of the grid to the number of a block along a dim."""


class Drawn(NamedTuple):
    """A kernel that is interpreted, as a function of arrays."""

    function: Callable[..., tuple[Any, ...]]
    operands: list[tuple[int, ...]]
    """The shapes that it takes."""
    results: list[tuple[int, ...]]


class Tensor(NamedTuple):
    """What a kernel reads or writes."""

    shape: tuple[int, ...]
    blocks: pl.BlockSpec


def drawn_kernel(random: Random) -> Drawn:
    """A kernel that adds up what it reads, with places, scratch and numbers that are read before, or without."""
    grid = tuple(random.choice([1, 2, 2, 3, 4, 4, 6, 8]) for _ in range(random.randint(1, 3)))
    operands = [_operand(random, grid) for _ in range(random.randint(1, 3))]
    results = [_result(random, grid) for _ in range(random.choice([1, 1, 2]))]
    asked = [axis for axis in range(len(grid)) if random.random() < 0.4]
    has_numbers, scratch = random.random() < 0.25, random.choice(["", "", "along the last axis", "carried", "always"])

    def kernel(*refs: Any) -> None:
        numbers, refs = (refs[0], refs[1:]) if has_numbers else (None, refs)
        total = sum((number + 1) * ref[...].sum() for number, ref in enumerate(refs[: len(operands)]))
        total += sum(pl.program_id(axis) * 10.0**axis for axis in asked)
        if has_numbers:
            total += numbers[pl.program_id(0)]
        if scratch:
            total = _kept(refs[-1], total, scratch, len(grid))
        for ref in refs[len(operands) : len(operands) + len(results)]:
            ref[...] = total + jnp.arange(prod(ref.shape) or 1, dtype=jnp.float32).reshape(ref.shape)

    def function(*arrays: Any) -> tuple[Any, ...]:
        how: dict[str, Any] = {
            "grid": grid,
            "in_specs": [each.blocks for each in operands],
            "out_specs": [each.blocks for each in results],
            "scratch_shapes": [pltpu.VMEM((2, 2), np.float32)] if scratch else [],
        }
        if has_numbers:
            how = {"grid_spec": pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, **how)}
            arrays = (jnp.arange(grid[0]) * 7, *arrays)
        made = [jax.ShapeDtypeStruct(each.shape, np.float32) for each in results]
        return tuple(pl.pallas_call(kernel, out_shape=made, interpret=True, **how)(*arrays))

    return Drawn(function, [each.shape for each in operands], [each.shape for each in results])


def _kept(scratch: Any, total: Any, how: str, axes: int) -> Any:
    """What is summed up in scratch, which begins anew in one of several ways."""
    first = pl.program_id(axes - 1) if how == "along the last axis" else sum(pl.program_id(n) for n in range(axes))
    if how == "always":
        scratch[...] = jnp.zeros_like(scratch)
    else:

        @pl.when(first == 0)
        def _() -> None:
            scratch[...] = jnp.zeros_like(scratch)

    scratch[...] += total
    return scratch[0, 0]


def _spec(blocks: list[int | None], numberings: list[Numbering], axes: int) -> pl.BlockSpec:
    return pl.BlockSpec(tuple(blocks), lambda *place: tuple(each(*place[:axes]) for each in numberings))


def _operand(random: Random, grid: tuple[int, ...]) -> Tensor:
    """A tensor that is read by digits, by their products, at a neighbour's place or at none, and sometimes not all."""
    shape, blocks, numberings = [], [], []
    for _ in range(random.randint(1, 3)):
        numbering, count = _read(random, grid)
        block = random.choice([None, 1, 2, 3])
        rest = (block or 1) if random.random() < 0.2 else 0
        shape.append(count * (block or 1) + rest)
        blocks.append(block)
        numberings.append(numbering)
    return Tensor(tuple(shape), _spec(blocks, numberings, len(grid)))


def _read(random: Random, grid: tuple[int, ...]) -> tuple[Numbering, int]:
    """How blocks are numbered that are read, and how many there are."""
    a, b = random.randrange(len(grid)), random.randrange(len(grid))
    size = grid[a]
    part = random.choice([part for part in range(1, size + 1) if size % part == 0])
    ways: list[tuple[Numbering, int]] = [
        (lambda *place: place[a], size),
        (lambda *place: place[a], size),
        (lambda *place: place[a] // part, size // part),
        (lambda *place: place[a] % part, part),
        (lambda *place: place[a] * grid[b] + place[b], size * grid[b]),
        (lambda *place: 0, 1),
        (lambda *place: jnp.minimum(place[a] + 1, size - 1), size),
    ]
    return random.choice(ways)


def _result(random: Random, grid: tuple[int, ...]) -> Tensor:
    """A tensor that is written at digits of most axes, in some order; along the others it is written again."""
    axes = [axis for axis in random.sample(range(len(grid)), len(grid)) if random.random() < 0.85]
    numberings: list[tuple[Numbering, int]] = []
    while axes:
        a = axes.pop()
        size = grid[a]
        part = random.choice([part for part in range(1, size + 1) if size % part == 0])
        if axes and random.random() < 0.3:
            b = axes.pop()
            numberings.append((partial(_product, a, b, grid[b]), size * grid[b]))
        elif random.random() < 0.3:
            numberings.append((partial(_quotient, a, part), size // part))
            numberings.append((partial(_rest, a, part), part))
        else:
            numberings.append((partial(_product, a, a, 0), size))
    if not numberings or random.random() < 0.3:
        numberings.insert(random.randint(0, len(numberings)), (lambda *place: 0, 1))
    blocks = [random.choice([None, 1, 2]) for _ in numberings]
    shape = tuple(count * (block or 1) for (_, count), block in zip(numberings, blocks, strict=True))
    return Tensor(shape, _spec(blocks, [numbering for numbering, _ in numberings], len(grid)))


def _product(a: int, b: int, size: int, *place: Any) -> Any:
    return place[a] * size + place[b]


def _quotient(axis: int, part: int, *place: Any) -> Any:
    return place[axis] // part


def _rest(axis: int, part: int, *place: Any) -> Any:
    return place[axis] % part
