"""The elements of a dim in an order that is known: each the one at some place, or zero.

Where the dim is cut, a device reads the run of the operand from the first to the last place that its tile of the result
has elements of (`Reach.places`), so rows that stay near each other move as borders do, and whole tiles that change
places once.

By hand, `places=(2, 0, 3, -1)` of `a b c d` is `c a d 0`; with a row per device, device 0 receives c.

>>> from reshard.mesh import Mesh
>>> from reshard.reach import window_for
>>> from reshard.sharding import Sharding
>>> window_for({0: Reach(places=(2, 0, 3, -1))}, rows := Sharding.of(Mesh.of(x=4), "x"), rows, (4,)).text()
'[{"x", window(2:3, 0:1, 3:4, 0:0, pad)}]'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive

from reshard.jax.tracing.emitter import Emitter, labels
from reshard.operations.interpreter import Extents
from reshard.operations.reaching import attribute_of
from reshard.propagation import Value
from reshard.reach import Reach

REORDER = Primitive("reorder")
"""A tensor with the elements of `dim` at `places`, zeros for places below 0."""


def _abstract(x: Any, *, dim: int, places: Sequence[int]) -> Any:
    return x.update(shape=(*x.shape[:dim], len(places), *x.shape[dim + 1 :]))


def taken(x: Any, places: Any, dim: int) -> Any:
    """The elements of a dim at places, zeros for places below 0."""
    shape = [1] * x.ndim
    shape[dim] = len(places)
    there = jnp.reshape(places >= 0, shape)
    elements = x if x.shape[dim] == len(places) == 1 else jnp.take(x, jnp.maximum(places, 0), dim, mode="clip")
    return jnp.where(there, elements, jnp.zeros((), x.dtype))


REORDER.def_abstract_eval(_abstract)
REORDER.def_impl(lambda x, *, dim, places: taken(x, np.array(places), dim))


def reorder(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The elements of a dim in another order, read where they lie."""
    dim, places, out = equation.params["dim"], equation.params["places"], equation.outvars[0].aval
    term, label = labels(out.ndim), f"d{equation.params['dim']}"

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        count = extents.shapes[-1][dim]
        longer = np.array([*places, *[-1] * count], np.int32)  # as tiles may end beyond the dim
        first, begins = extents.start(1, dim), extents.start(0, dim)
        mine = lax.dynamic_slice(longer, (first,), (count,))
        return taken(tiles[0], jnp.where(mine < 0, mine, mine - begins), dim)

    reach = attribute_of(0, label, Reach(places=tuple(places)))
    return [emitter.emit("reorder", operands, [term, term], out, run, shifted=(label,), attributes=(reach,))]
