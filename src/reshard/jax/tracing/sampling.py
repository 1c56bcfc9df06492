"""Random numbers: every device has all keys, and makes for itself the part of the numbers that it needs.

A key is a few words, so keys are whole everywhere, and no number is sent.
By hand, `gamma` of 8 shapes that 2 devices have by halves: both split the key into 8, each takes the 4 keys of its half
and draws from them until it takes what it drew; how often is its own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src.random.core import _gamma_one

from reshard.jax.tracing.emitter import Emitter, TileFunction, labels, whole
from reshard.operations.interpreter import Extents
from reshard.operations.pattern import Shape
from reshard.propagation import Value


def counts(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The numbers of elements in two words each; a device counts its own, as long as the lower word is enough."""
    shape = equation.params["shape"]
    if prod(shape) > 2**32:
        return whole(emitter, equation, operands)

    def high(extents: Extents, _: Sequence[Any]) -> Any:
        return lax.full(extents.shapes[-1], 0, np.uint32)

    runs: list[TileFunction] = [high, lambda extents, _: numbers_in(extents, shape)]
    terms = [(), labels(len(shape))]
    return [
        emitter.emit("counts", [emitter.literal(np.int32(0))], terms, var.aval, run)
        for var, run in zip(equation.outvars, runs, strict=True)
    ]


def numbers_in(extents: Extents, shape: Shape) -> Any:
    """The numbers of the elements in the tile of a result, counted row by row through all of it."""
    last, local = len(extents.shapes) - 1, extents.shapes[-1]
    total: Any = np.uint32(0)
    for dim in range(len(shape)):
        start = lax.convert_element_type(extents.start(last, dim), np.uint32)
        total = total + (lax.broadcasted_iota(np.uint32, local, dim) + start) * np.uint32(
            prod(shape[dim + 1 :]) % 2**32
        )
    return total


def random_bits(keys: Any, *, bit_width: int, shape: Shape) -> Any:
    """Random bits from the words of their keys, in operations of which any part can be made alone."""

    def bits(words: Any) -> Any:
        return keys.dtype._impl.random_bits(words, bit_width, shape)

    for _ in keys.shape:
        bits = jax.vmap(bits)
    return bits(jax.random.key_data(keys))


def gamma(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A number for each shape, from a key of its own, split from those of the first dims."""
    keys, shapes = operands
    (out,) = equation.outvars
    draw = partial(_gamma_one, log_space=equation.params["log_space"])
    own = prod(shapes.shape[len(keys.shape) :])

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        split = jax.vmap(lambda key: jax.random.split(key, own))(tiles[0].reshape(-1)).reshape(-1)
        places = lax.reshape(numbers_in(extents, shapes.shape), (tiles[1].size,))
        each = split.at[places].get(mode="clip"), lax.reshape(tiles[1], (tiles[1].size,))
        if jax.random.key_impl(tiles[0]) == "threefry2x32":
            drawn = jax.vmap(draw)(*each)
        else:  # whose numbers many keys at once do not give
            drawn = lax.map(lambda pair: draw(*pair), each)
        return lax.reshape(drawn, tiles[1].shape)

    terms = [labels(len(keys.shape), "k"), labels(out.aval.ndim), labels(out.aval.ndim)]
    alone = tuple(label for (label,) in terms[0])
    return [emitter.emit("random_gamma", operands, terms, out.aval, run, replicated=alone)]


KEYS = """
random_clone random_fold_in random_seed random_split random_unwrap random_wrap rng_bit_generator rng_uniform
"""
"""What is made whole by every device: keys, and numbers that a generator makes one after another."""
