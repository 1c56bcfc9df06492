"""What an operation of MLIR says beside its operands, in values of Python.

>>> from jax._src.interpreters import mlir
>>> with mlir.make_ir_context():
...     module = ir.Module.parse("%0 = stablehlo.constant dense<[1.5, 0x7F80]> : tensor<2xbf16>")
>>> constant_array(module.body.operations[0].operation)
array([1.5, inf], dtype=bfloat16)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from reshard.dtypes import dtype_named
from reshard.errors import ReshardError

ArrayFunction = Callable[..., Any]
"""From arrays to an array, or to one per result."""

_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_COMPLEX = {"complex<f32>": "complex64", "complex<f64>": "complex128"}
_PLACE = re.compile(r'loc\("-":(\d+):\d+\)')


def line_of(location: Any) -> str:
    """Where an operation stands: its line in the text, or where the text says that it comes from."""
    place = _PLACE.search(str(location))
    return f"line {place[1]}" if place else str(location)


def type_of(value: ir.Value[Any]) -> jax.ShapeDtypeStruct:
    """The shape and the dtype of a value.

    Raises:
        ReshardError: `cannot-express` where it is no tensor, or of sizes that only a run tells; `unknown-dtype`.
    """
    if not isinstance(value.type, ir.RankedTensorType) or not value.type.has_static_shape:
        raise ReshardError("cannot-express", f"a value must be a tensor of known sizes, got: {value.type}")
    element = str(value.type.element_type)
    dtype = jax.numpy.dtype(dtype_named(_COMPLEX.get(element, element)).name)
    return jax.ShapeDtypeStruct(tuple(value.type.shape), dtype)


def maker(value: Any) -> ir.Operation | None:
    """The operation that makes a value; None of an argument of a region or a function."""
    return None if isinstance(value, ir.BlockArgument) else value.owner.operation


def said(op: ir.Operation, name: str) -> Any:
    """An attribute as MLIR has it; None where it is left out."""
    return op.attributes.get(name)


def integers(op: ir.Operation, name: str, default: Any = ()) -> tuple[int, ...]:
    """An attribute that is a list of integers or of truth values; the default where it is left out."""
    numbers = said(op, name)
    return tuple(default if numbers is None else map(int, numbers))


def integer(op: ir.Operation, name: str, default: int = 0) -> int:
    """An attribute that is one integer or truth value."""
    number = said(op, name)
    return default if number is None else int(number.value)


def word(op: ir.Operation, name: str, default: str = "") -> str:
    """An attribute that is a word: one of a closed set, a text, or the name of a function."""
    attribute = said(op, name)
    if attribute is None:
        return default
    if isinstance(attribute, ir.StringAttr | ir.FlatSymbolRefAttr):
        return attribute.value
    return re.sub(r".*[<\s](\w+)>$", r"\1", str(attribute))


def padding(op: ir.Operation, dims: int) -> list[tuple[int, int]]:
    """How much is put before and after every dim over which a window moves."""
    pairs = said(op, "padding")
    return [(0, 0)] * dims if pairs is None else [(int(low), int(high)) for low, high in np.array(pairs)]


def is_constant(op: ir.Operation) -> bool:
    """Whether it makes elements that stand in the text."""
    return op.name in ("stablehlo.constant", "sdy.constant")


def constant_array(op: ir.Operation) -> Any:
    """The elements of a constant; of one that is the same everywhere, that one, without dims.

    Raises:
        ReshardError: `cannot-express` where they are not in the text.
    """
    aval = type_of(op.results[0])
    text = re.search(r"dense<(.*)> : [^:]*$", str(op), re.DOTALL)
    if text is None:
        raise ReshardError("cannot-express", "the elements of the constant are not in the text")
    elements = text[1]
    if elements.startswith('"0x'):
        array = np.frombuffer(bytes.fromhex(elements[3:-1]), aval.dtype)
    elif aval.dtype.isbuiltin == 1 and aval.dtype.kind != "c":
        values = said(op, "value")
        array = np.array(values, aval.dtype)
        return array.flat[0] if values.is_splat and array.size else array
    else:
        part = np.dtype(f"float{4 * aval.dtype.itemsize}") if aval.dtype.kind == "c" else aval.dtype
        numbers = [_number(number, part) for number in _NUMBER.findall(elements)]
        array = np.array(numbers, part).view(aval.dtype)
    return array[0] if array.size == 1 else array.reshape(aval.shape)


def _number(text: str, dtype: np.dtype[Any]) -> Any:
    """A number as MLIR prints it: where it is no finite one, its bits."""
    if text.startswith("0x"):
        return np.array(int(text, 16), f"uint{8 * dtype.itemsize}").view(dtype)[()]
    return dtype.type(float(text))
