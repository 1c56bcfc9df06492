"""What the attributes of an operation say: places in its tensors, the shape of its result, and the numbers in it.

They come from outside, by hand or as text, so each is held here to the shapes that it speaks of; engines take them as
they are.

>>> shifted_shape("slice", [(7, 4)], {"start": (1, 0), "stop": (6, 4), "step": (2, 1)})
(3, 4)
>>> shifted_shape("concatenate", [(7, 4), (2, 4)], {"dim": 0})
(9, 4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reshard.checks import shown
from reshard.errors import ReshardError
from reshard.operations.operation import Operation
from reshard.operations.pattern import Shape

SHIFTING = ("slice", "pad", "concatenate", "roll", "reverse")
"""Operations whose attributes tell the shape of their result."""


def check_attributes(operation: Operation) -> None:
    """Refuse attributes that do not fit an operation.

    Raises:
        ReshardError: `bad-argument`; `bad-shape` where the result must have another shape; `bad-program` where dims
            are named that the pattern lets stay.
    """
    name, attributes, result = operation.name, dict(operation.attributes), operation.result.shape
    shapes = [operand.shape for operand in operation.operands]
    if name in SHIFTING:
        expected = shifted_shape(name, shapes, attributes)
        if expected != result:
            raise ReshardError("bad-shape", f"{name} must have a result of {expected}, got: {result}")
    elif name in ("pick", "put") and operation.pattern is not None:
        few, all_dims = operation.pattern.terms if name == "put" else operation.pattern.terms[::-1]
        whole = result if name == "put" else shapes[0]
        dims, places = (_integers(name, attributes, key) for key in ("dims", "start"))
        if few != tuple(() if dim in dims else group for dim, group in enumerate(all_dims)):
            raise ReshardError("bad-program", f"{name} of {operation.pattern} must lack the dims {dims} on one side")
        if len(dims) != len(places) or not all(0 <= n < whole[dim] for dim, n in zip(dims, places, strict=True)):
            raise ReshardError("bad-argument", f"{name} at {places} of the dims {dims} is not in {whole}")
    elif operation.kind is not None and "before" in operation.kind.options:
        before, turned = attributes.get("before", 0), attributes.get("reverse", 0)
        if not operation.result.dtype.holds(before) or turned not in (0, 1):
            text = f"{name} must have a number of dtype {operation.result.dtype} as before and 0 or 1 as reverse"
            raise ReshardError("bad-argument", f"{text}, got: {shown(before)} and {shown(turned)}")
    elif name == "iota":
        _dim(name, attributes, result)
    elif name == "integer_pow" and not isinstance(attributes["y"], int):
        raise ReshardError("bad-argument", f"integer_pow must have an integer as y, got: {shown(attributes['y'])}")
    elif name == "round" and attributes.get("rounding_method", 1) not in (0, 1):
        raise ReshardError("bad-argument", "the rounding_method of round must be 0 or 1")
    number, dtype = attributes.get("value", 0), operation.result.dtype
    if name in ("constant", "pad", "put") and not dtype.holds(number):
        raise ReshardError("bad-argument", f"{name} must have a number of dtype {dtype} as value, got: {shown(number)}")


def shifted_shape(name: str, shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    """The shape of what shifts: a slice, a pad, a concatenation, a roll or a reversal.

    Raises:
        ReshardError: `bad-argument`; `bad-shape` where what is concatenated differs in another dim.
    """
    first = shapes[0]
    if name == "concatenate":
        dim = _dim(name, attributes, first)
        for shape in shapes[1:]:
            if [*shape[:dim], 0, *shape[dim + 1 :]] != [*first[:dim], 0, *first[dim + 1 :]]:
                raise ReshardError(
                    "bad-shape", f"what is concatenated, {first} and {shape}, may differ in dim {dim} only"
                )
        return (*first[:dim], sum(shape[dim] for shape in shapes), *first[dim + 1 :])
    if name == "pad":
        before, after = (_integers(name, attributes, key, len(first)) for key in ("low", "high"))
        padded = tuple(low + size + high for low, size, high in zip(before, first, after, strict=True))
        if min(padded, default=0) < 0:
            raise ReshardError("bad-argument", f"a pad of {before} and {after} leaves nothing of {first}")
        step = _integers(name, attributes, "step", len(first)) if "step" in attributes else (1,) * len(first)
        if min(step, default=1) < 1:
            raise ReshardError("bad-argument", f"a pad must have steps above 0, got: {step}")
        return tuple(-(-size // every) for size, every in zip(padded, step, strict=True))
    if name in ("roll", "reverse"):
        dims = _integers(name, attributes, "dims")
        if len({*dims}) < len(dims) or not all(0 <= dim < len(first) for dim in dims):
            raise ReshardError("bad-argument", f"{name} must name dims of {first} once each, got: {dims}")
        if name == "reverse":
            return first
        _integers(name, attributes, "shifts", len(dims))
        sizes = dict(enumerate(first))
        if "sizes" in attributes:
            sizes.update(zip(dims, _integers(name, attributes, "sizes", len(dims)), strict=True))
        if any(sizes[dim] < 0 or (sizes[dim] and not first[dim]) for dim in dims):
            raise ReshardError("bad-argument", f"a roll of {first} cannot have the sizes {tuple(sizes.values())}")
        return tuple(sizes.values())
    start, stop, step = (_integers(name, attributes, key, len(first)) for key in ("start", "stop", "step"))
    if not all(0 <= a <= b <= n and s > 0 for a, b, s, n in zip(start, stop, step, first, strict=True)):
        raise ReshardError("bad-argument", f"a slice from {start} to {stop} by {step} is not in {first}")
    return tuple(-(-(b - a) // s) for a, b, s in zip(start, stop, step, strict=True))


def _integers(name: str, attributes: Mapping[str, Any], key: str, count: int | None = None) -> tuple[int, ...]:
    """The integers of an attribute."""
    numbers = attributes[key]
    if not isinstance(numbers, tuple) or count not in (None, len(numbers)):
        many = "integers" if count is None else f"{count} integers"
        raise ReshardError("bad-argument", f"{name} must have {many} as {key}, got: {shown(numbers)}")
    return numbers


def _dim(name: str, attributes: Mapping[str, Any], shape: Shape) -> int:
    """The dim of a tensor that an attribute names."""
    dim = attributes["dim"]
    if not isinstance(dim, int) or not 0 <= dim < len(shape):
        raise ReshardError("bad-argument", f"dim {shown(dim)} of {name} is no dim of {shape}")
    return dim
