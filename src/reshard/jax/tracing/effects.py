"""What must happen once, on however many devices a program runs: calls of Python that print, count or write.

The first device has all operands and calls; its results are rows of bytes, one per device, of which all others have
zeros, and what everybody gets is the sum of the rows.
So what is not read is not sent, and a result goes to where it is needed as any partial sum does.

By hand, on 2 devices a call that gives a `float32` is a 2 x 4 tensor of bytes with a row on each, summed to 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from reshard.jax.tracing.emitter import Emitter, labels
from reshard.jax.tracing.evaluation import results_of
from reshard.operations.interpreter import Extents
from reshard.propagation import Value
from reshard.sharding import Sharding

FINE = frozenset(map(np.dtype, (np.bool_, jnp.int2, jnp.uint2, jnp.int4, jnp.uint4)))
"""Of fewer bits than a byte."""


def done_once(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The results of an equation that the first device alone carries out."""
    avals, mesh = [var.aval for var in equation.outvars], emitter.program.mesh
    sources = list(operands) or [emitter.literal(np.int32(0))]
    sizes = [prod(_words(aval).shape) for aval in avals]

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        device: Any = extents.device  # type: ignore[attr-defined]  # of JAX, which alone runs it

        def called() -> Any:
            results = map(to_bytes, results_of(equation, tiles if operands else ()))
            return jnp.concatenate([jnp.zeros(0, np.uint8), *results])

        row = lax.cond(device.position == 0, called, lambda: jnp.zeros(sum(sizes), np.uint8))
        others = extents.shapes[-1][0] - 1
        if others:  # which the first device has too, and not alone
            row = lax.psum(row, device.names)
            row = jnp.where(extents.start(len(sources), 0) == 0, row, 0)
        return jnp.pad(row[None], ((0, others), (0, 0)))

    terms = [labels(len(value.shape), f"a{number}_") for number, value in enumerate(sources)]
    alone = tuple(label for (label,) in (*(group for term in terms for group in term), ("bytes",)))
    terms.append((("devices",), ("bytes",)))
    room = jax.ShapeDtypeStruct((mesh.size, sum(sizes)), np.uint8)
    name = str(equation.primitive)
    rows = emitter.emit(name, sources, terms, room, run, replicated=alone, attributes=(("effect", 1),))
    rows = emitter.program.constrain(rows, Sharding.of(mesh, [*mesh.sizes], None))

    def results_in(rows: Any) -> list[Any]:
        total = lax.reduce_sum(rows, (0,))
        ends = accumulate(sizes)
        return [
            of_bytes(lax.slice(total, (end - size,), (end,)), aval)
            for end, size, aval in zip(ends, sizes, avals, strict=True)
        ]

    return emitter.closed(jax.make_jaxpr(results_in)(room), [rows]) if avals else []


def _words(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(to_bytes, jax.ShapeDtypeStruct(aval.shape, aval.dtype))


def to_bytes(x: Any) -> Any:
    """The bytes of an array; what has fewer bits than a byte takes one.

    >>> to_bytes(jnp.float32([1, 2])).tolist()
    [0, 0, 128, 63, 0, 0, 0, 64]
    """
    if jnp.iscomplexobj(x):
        x = jnp.stack([x.real, x.imag], -1)
    return lax.bitcast_convert_type(x.astype(np.int8) if x.dtype in FINE else x, np.uint8).reshape(-1)


def of_bytes(data: Any, aval: Any) -> Any:
    """The array of a shape and a dtype with these bytes.

    >>> of_bytes(to_bytes(jnp.complex64([1 + 2j])), jax.ShapeDtypeStruct((1,), np.complex64)).tolist()
    [(1+2j)]
    """
    dtype = np.dtype(aval.dtype)
    if dtype.kind == "c":
        parts = of_bytes(data, jax.ShapeDtypeStruct((*aval.shape, 2), np.dtype(f"f{dtype.itemsize // 2}")))
        return lax.complex(parts[..., 0], parts[..., 1])
    if dtype in FINE:
        return lax.bitcast_convert_type(data, np.int8).reshape(aval.shape).astype(dtype)
    rows = data.reshape(*aval.shape, *[dtype.itemsize] * (dtype.itemsize > 1))
    return lax.bitcast_convert_type(rows, dtype)
