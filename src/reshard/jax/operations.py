"""The operations of a program that was written by hand, on the tiles of one device.

A tile is seen with one dim per label, so that a pattern says all that is to be done; the names are those that
`reshard.numpy.operations` has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from reshard.dtypes import identity
from reshard.errors import ReshardError
from reshard.jax.tracing.emitter import Run
from reshard.jax.tracing.slices import counting, picking, putting
from reshard.numpy.operations import ATTRIBUTED
from reshard.operations.rules import REDUCTIONS, Rule, operation_rule
from reshard.propagation import Operation

if TYPE_CHECKING:
    from reshard.jax.programs import Tiles

_LIKE_NUMPY = """
cbrt ceil conj cos cosh exp2 expm1 floor log1p sign sin sinh square tan imag real
"""
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{name: getattr(jnp, name) for name in _LIKE_NUMPY.split()},
    "ne": jnp.not_equal,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
    "not": jnp.invert,
    "rem": lax.rem,
    "atan2": lax.atan2,
    "erf": lax.erf,
    "clamp": lax.clamp,
    "complex": lax.complex,
    "is_finite": lax.is_finite,
    "select_n": lax.select_n,
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "pow": jnp.power,
    "neg": jnp.negative,
    "exp": jnp.exp,
    "log": jnp.log,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "tanh": jnp.tanh,
    "abs": jnp.abs,
    "relu": lambda a: jnp.maximum(a, 0),
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "equal": jnp.equal,
    "less": jnp.less,
    "select": jnp.where,
    **dict.fromkeys(("copy", "convert", "cast", "transpose", "reshape", "broadcast"), lambda a: a),
    "stop_gradient": lax.stop_gradient,
    "integer_pow": lax.integer_pow,
    "round": lambda a, rounding_method=1: lax.round(a, lax.RoundingMethod(rounding_method)),
}
"""What is done element by element, by the name of the operation."""
WHOLE: dict[str, Callable[..., Any]] = {
    "sort": jnp.sort,
    "softmax": jax.nn.softmax,
    **{name: getattr(lax, name) for name in ("cumsum", "cumprod", "cummax", "cummin")},
}
"""What needs all elements of one dim, by the name of the operation."""
AT_PLACES: dict[str, Callable[[Operation], Run]] = {
    "pick": lambda op: picking(op.attribute("dims"), op.attribute("start"), op.operands[0].shape),
    "put": lambda op: putting(op.attribute("dims"), op.attribute("start"), op.attribute("value")),
    "iota": lambda op: counting(op.attribute("dim"), op.result.dtype.name),
}
"""What depends on where a tile begins, by the name of the operation."""
COMBINE: dict[str, Callable[..., Any]] = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "product": jnp.prod}


def compute(here: Tiles, tiles: Sequence[Any]) -> Any:
    """The device's tile of the result of an operation.

    Raises:
        ReshardError: `bad-program` where the operation is not known here.
    """
    operation, rule = here.operation, operation_rule(here.operation)
    if operation.name in AT_PLACES:
        return AT_PLACES[operation.name](operation)(here, tiles)
    labels = [[label for group in term for label in group] for term in rule.terms]
    arrays = [lax.reshape(tile, here.label_shape(term)) for term, tile in enumerate(tiles)]
    result = _applied(here, operation, rule, arrays, labels)
    return lax.reshape(result, here.shapes[-1]).astype(operation.result.dtype.name)


def _applied(here: Tiles, operation: Operation, rule: Rule, arrays: list[Any], labels: list[list[int]]) -> Any:
    name, out = operation.name, labels[-1]

    def spread(array: Any, own: Sequence[int]) -> Any:
        """An array with the labels of the result, in its order, those that it lacks repeated."""
        own = list(own)
        turned = jnp.transpose(array, [own.index(label) for label in out if label in own])
        index = tuple(slice(None) if label in own else None for label in out)
        return jnp.broadcast_to(turned[index], here.label_shape(len(arrays)))

    if name == "einsum":
        kept = [label for label in out if any(label in some for some in labels[:-1])]
        pairs = [part for pair in zip(arrays, labels, strict=False) for part in pair]
        return spread(jnp.einsum(*pairs, kept), kept)
    if name in REDUCTIONS:
        gone = tuple(place for place, label in enumerate(labels[0]) if label not in out)
        start = identity(REDUCTIONS[name], arrays[0].dtype)
        reduced = COMBINE[REDUCTIONS[name]](arrays[0], axis=gone, initial=start)
        return spread(reduced, [label for label in labels[0] if label in out])
    if name in ("slice", "pad", "concatenate"):
        return _shifted(operation, arrays)
    if name == "take":
        return _taken(here, arrays)
    if name in WHOLE and operation.replicated and operation.pattern is not None:
        place = operation.pattern.labels.index(operation.replicated[0])
        return WHOLE[name](arrays[0], labels[0].index(place))
    if name == "reshape" and labels[0] != out:
        sizes = here.label_shape(0)
        local = [sizes[labels[0].index(label)] if label in labels[0] else rule.sizes[label] for label in out]
        if sorted(labels[0]) == sorted(out):
            return jnp.transpose(arrays[0], [labels[0].index(label) for label in out])
        if prod(local) == arrays[0].size:
            return lax.reshape(arrays[0], local)
    elif name in ELEMENTWISE and all(label in out for some in labels for label in some):
        given = (spread(*pair) for pair in zip(arrays, labels, strict=False))
        return ELEMENTWISE[name](*given, **dict(operation.attributes if name in ATTRIBUTED else ()))
    raise ReshardError("bad-program", f"value {operation.result.name}: operation {name} is not known here")


def _shifted(operation: Operation, arrays: list[Any]) -> Any:
    """A slice, a pad or a concatenation; a dim that is sharded is one that it does not change."""
    attribute = operation.attribute
    if operation.name == "concatenate":
        return lax.concatenate(arrays, attribute("dim"))
    if operation.name == "slice":
        steps = zip(attribute("start"), attribute("stop"), attribute("step"), strict=True)
        sizes = zip(operation.operands[0].shape, operation.result.shape, strict=True)
        return arrays[0][
            tuple(slice(*step) if a != b else slice(None) for step, (a, b) in zip(steps, sizes, strict=True))
        ]
    width = list(zip(attribute("low"), attribute("high"), strict=True))
    return jnp.pad(arrays[0], width, constant_values=attribute("value", 0))


def _taken(here: Tiles, arrays: list[Any]) -> Any:
    """Rows of the part of the table that is here; zeros for rows that are elsewhere."""
    table, rows = arrays
    at = rows - here.start(0, 0)
    mine = (at >= 0) & (at < here.length(0, 0))
    found = table[jnp.where(mine, at, 0)]
    return jnp.where(mine.reshape(*mine.shape, *[1] * (table.ndim - 1)), found, jnp.zeros((), table.dtype))
