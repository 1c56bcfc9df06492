"""What adds the operations of a jaxpr to a program, each with what one device does.

An operation that came from JAX carries the primitive itself as a function of tiles where its kind does not say all that
it does: a precision, what a sort compares, or nothing at all, for a name that is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from reshard.jax.tracing.evaluation import results_of
from reshard.operations.interpreter import Extents
from reshard.operations.kinds import KINDS
from reshard.operations.pattern import Pattern, Shape, Term
from reshard.propagation import Program, Value
from reshard.propagation.builder import NewValue
from reshard.sharding import Sharding

CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_lin": "call_jaxpr",
    "custom_vmap_call": "call",
    "linear_call": "callee",
    "composite": "jaxpr",
    "custom_partitioning": "call",
}
"""Primitives that call a jaxpr, and the parameter that has it."""
TileFunction = Callable[[Extents, Sequence[Any]], Any]
"""From the tiles of the operands, and where they lie, to the tile of the result."""


class Signature(NamedTuple):
    """How a traced function takes its arguments and gives its results: as pytrees."""

    in_tree: Any
    out_tree: Any


_pattern = lru_cache(1024)(Pattern)
"""A pattern: one object for all operations that have it, which keeps what it has found out about itself."""


class Emitter:
    """A program under construction from equations."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._keys: dict[Value, Any] = {}
        """The values that are keys of random numbers, with their dtypes."""
        self._scalars: dict[tuple[str, bytes], Value] = {}

    def closed(self, called: Any, operands: Sequence[Value]) -> list[Value]:
        """The results of a jaxpr that may have constants of its own."""
        raise NotImplementedError

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        terms: Sequence[Term],
        aval: Any,
        run: TileFunction | None = None,
        joined: tuple[str, ...] = (),
        **fields: Any,
    ) -> Value:
        """Add an operation; terms are those of the operands, and last of the result."""
        pattern = _pattern(tuple(terms[:-1]), terms[-1], joined)
        result = NewValue(None, aval.shape, plain_dtype(aval.dtype))
        value = self.program.add(
            name, operands, result, opaque=name not in KINDS, pattern=pattern, payload=run, **fields
        )
        return self.keyed(value, aval.dtype)

    def emit_results(
        self, name: str, equation: Any, operands: Sequence[Value], terms: Sequence[Term], **fields: Any
    ) -> list[Value]:
        """Add an operation for each result of an equation, which is done as the primitive does it."""
        return [
            self.emit(name, operands, terms, var.aval, evaluated(equation, number), **fields)
            for number, var in enumerate(equation.outvars)
        ]

    def keyed(self, value: Value, dtype: Any) -> Value:
        """The value; where it is keys of random numbers, every device is to have them all."""
        if is_key(dtype):
            self._keys[value] = dtype
            self.program.constrain(value, Sharding.of(self.program.mesh, *[None] * len(value.shape)))
        return value

    def argument(self, value: Value, dtype: Any) -> Value:
        """An input as it is read: keys that are told how they come are brought together first."""
        if not is_key(dtype) or value not in self.program.annotations:
            return self.keyed(value, dtype)
        self._keys[value] = dtype
        return self.emit("copy", [value], [labels(len(value.shape))] * 2, self.aval(value))

    def like(self, value: Value, result: Value) -> Value:
        """The result, which is keys of random numbers where the value is."""
        return self.keyed(result, self.aval(value).dtype)

    def aval(self, value: Value) -> jax.ShapeDtypeStruct:
        """The shape and the dtype of a value, as JAX has them."""
        return jax.ShapeDtypeStruct(value.shape, self._keys.get(value, value.dtype.name))

    def literal(self, value: Any) -> Value:
        """A value that is known: one number, or an array of which every device takes its part."""
        if is_key(getattr(value, "dtype", None)):
            number = self.literal(np.int32(0))
            return self.emit("array", [number], [(), labels(value.ndim)], value, lambda extents, _: value)
        array = np.asarray(value)
        if array.ndim == 0 and array.dtype.kind == "c" and array.imag:
            numbers = [self.literal(part) for part in (array.real, array.imag)]
            return self.emit("complex", numbers, [(), (), ()], array)
        if array.ndim and array.size and array.dtype.kind in "biu" and (array == array.flat[0]).all():
            return self.program.constant(array.flat[0].item(), array.shape, array.dtype)
        if array.ndim == 0:
            key = str(array.dtype), array.tobytes()
            if key not in self._scalars:
                scalar = array.item() if array.dtype.kind in "iuf" else float(array.real)
                self._scalars[key] = self.program.constant(scalar, (), array.dtype)
            return self._scalars[key]

        def part(extents: Extents, _: Sequence[Any]) -> Any:
            shape = extents.shapes[-1]
            room = [(0, local if size % max(local, 1) else 0) for size, local in zip(array.shape, shape, strict=True)]
            starts = [extents.start(1, dim) for dim in range(array.ndim)]
            return lax.dynamic_slice(np.pad(array, room), starts, shape) if shape != array.shape else array

        terms, counted = [(), labels(array.ndim)], counted_dim(array)
        if counted is not None:
            return self.emit("iota", [self.literal(np.int32(0))], terms, array, attributes=(("dim", counted),))
        return self.emit("array", [self.literal(np.int32(0))], terms, array, part)


def counted_dim(array: np.ndarray[Any, Any]) -> int | None:
    """The dim along which the elements of an array are its own numbers.

    >>> counted_dim(np.arange(4)[:, None]), counted_dim(np.array([0, 2]))
    (0, None)
    """
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 4 or not array.size:  # of a few bits no engine counts
        return None
    places = np.indices(array.shape, array.dtype, sparse=True)
    longer = [dim for dim, size in enumerate(array.shape) if size > 1]
    return next((dim for dim in longer if (array == places[dim]).all()), None)


def is_key(dtype: Any) -> bool:
    """Whether these are keys of random numbers, with which there is no arithmetic."""
    return dtype is not None and bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


def plain_dtype(dtype: Any) -> Any:
    """The dtype by which a program knows it: keys stand there as numbers of 8 bytes."""
    return np.dtype(np.uint64) if is_key(dtype) else dtype


def known_number(program: Program, value: Value) -> Any:
    """The number that all elements of a value are, where the program says so and no dtype rounds it; else None."""
    operation, cast = program.operations[value.number], False
    while operation.name in ("broadcast", "copy", "convert", "cast"):
        cast |= operation.name in ("convert", "cast")
        operation = program.operations[operation.operands[0].number]
    if operation.name != "constant" or value.dtype.kind == "c":
        return None
    number = operation.attribute("value")
    return number if not cast or number in (-1, 0, 1) else None


@lru_cache(256)
def labels(ndim: int, stem: str = "d") -> Term:
    """The term of a tensor with one label per dim."""
    return tuple((f"{stem}{dim}",) for dim in range(ndim))


def product_labels(operands: Sequence[Value], numbers: Any) -> list[list[str]]:
    """Per dim of two operands its label in their product: `b` of batches, `c` of what is contracted, `l` and `r`."""
    (contracted, batch) = numbers
    pair = zip("lr", operands, strict=True)
    named = [[f"{side}{dim}" for dim in range(len(operand.shape))] for side, operand in pair]
    for kind, dims in (("b", batch), ("c", contracted)):
        for number, (left, right) in enumerate(zip(*dims, strict=True)):
            named[0][left] = named[1][right] = f"{kind}{number}"
    return named


@lru_cache(1024)
def within(shape: Shape, result: Shape) -> Term:
    """The term of an operand that is as the result, or repeated where it is a scalar or has size 1."""
    return tuple(
        (f"d{dim}",) if size == whole else () for dim, (size, whole) in enumerate(zip(shape, result, strict=False))
    )


def evaluated(equation: Any, number: int = 0, **changed: Any) -> TileFunction:
    """The primitive itself, with parameters changed; where it has several results, one of them."""

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        return results_of(equation, tiles, {**equation.params, **changed})[number]

    return run


def whole(emitter: Emitter, equation: Any, operands: Sequence[Value], batch: int = 0) -> list[Value]:
    """What every device makes of all of its operands; their first dims may be those of a batch."""
    sources = list(operands) or [emitter.literal(np.int32(0))]
    first = labels(batch, "b")
    terms = [(*first, *labels(len(value.shape) - batch, f"a{number}_")) for number, value in enumerate(sources)]
    results = []
    for number, var in enumerate(equation.outvars):
        result = (*first, *labels(var.aval.ndim - batch, "r"))
        run = evaluated(equation, number)
        results.append(
            emitter.emit(
                str(equation.primitive).replace("-", "_"),
                sources,
                [*terms, result],
                var.aval,
                run if operands else lambda extents, _, run=run: run(extents, ()),  # type: ignore[misc]
                replicated=tuple(group[0] for term in (*terms, result) for group in term[batch:]),
            )
        )
    return results
