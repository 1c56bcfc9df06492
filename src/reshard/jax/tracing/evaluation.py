"""What equations of a jaxpr make of arrays, one by one.

By hand, of `x + 2`:

>>> import jax
>>> (equation,) = jax.make_jaxpr(lambda x: x + 2)(1).eqns
>>> [int(result) for result in results_of(equation, [3, literal_array(equation.invars[1])])]
[5]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal
from numpy.typing import NDArray


def literal_array(literal: Any) -> NDArray[Any]:
    """The array of a literal, without the mesh on which it was."""
    return np.asarray(literal.val, literal.aval.dtype)


def results_of(equation: Any, operands: Sequence[Any], params: Mapping[str, Any] | None = None) -> list[Any]:
    """What an equation makes of operands, with its own parameters unless others are given."""
    bound = equation.primitive.get_bind_params(equation.params if params is None else params)
    results = equation.primitive.bind(*operands, **bound)
    return list(results) if equation.primitive.multiple_results else [results]


def numbers_of(equation: Any, operands: Sequence[Any]) -> list[NDArray[Any]]:
    """What an equation makes of numbers that are known: of integers by NumPy where it can, so that nothing is compiled.

    >>> (equation,) = jax.make_jaxpr(jax.lax.rem)(1, 1).eqns
    >>> [int(result) for result in numbers_of(equation, [np.array(-7, np.int32), np.array(3, np.int32)])]
    [-1]
    """
    arrays, calculation = [*map(np.asarray, operands)], OF_INTEGERS.get(str(equation.primitive))
    if calculation is not None and all(array.dtype.kind in "iub" for array in arrays):
        (result,) = equation.outvars
        with np.errstate(all="ignore"):  # what is too large begins anew from the least, as in XLA
            made = calculation(equation, *arrays)
        if made is not None:
            return [np.asarray(made, result.aval.dtype)]
    with jax.ensure_compile_time_eval():
        return [*map(np.asarray, results_of(equation, [*map(jax.numpy.asarray, arrays)]))]


def _repeated(equation: Any, array: NDArray[Any]) -> NDArray[Any]:
    """A `broadcast_in_dim`."""
    shape, dims = equation.params["shape"], equation.params["broadcast_dimensions"]
    sides = [array.shape[dims.index(dim)] if dim in dims else 1 for dim in range(len(shape))]
    return np.broadcast_to(array.reshape(sides), shape)


def _counted(equation: Any) -> NDArray[Any]:
    """An `iota`."""
    shape, dim = equation.params["shape"], equation.params["dimension"]
    numbers = np.arange(shape[dim], dtype=equation.outvars[0].aval.dtype)
    return np.broadcast_to(numbers.reshape([-1 if place == dim else 1 for place in range(len(shape))]), shape)


def _remainder(_: Any, array: NDArray[Any], by: NDArray[Any]) -> NDArray[Any] | None:
    """A `rem`, of the sign of what is divided; of nothing by 0."""
    return np.fmod(array, by) if by.all() else None


def _selected(_: Any, which: NDArray[Any], *cases: NDArray[Any]) -> NDArray[Any] | None:
    """A `select_n` of two cases."""
    return np.where(which, cases[1], cases[0]) if which.dtype == np.bool_ else None


_UFUNCS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert,
}  # fmt: skip
OF_INTEGERS: Mapping[str, Callable[..., NDArray[Any] | None]] = {
    **{name: lambda _, *arrays, ufunc=ufunc: ufunc(*arrays) for name, ufunc in _UFUNCS.items()},
    "broadcast_in_dim": _repeated,
    "convert_element_type": lambda equation, array: array.astype(equation.params["new_dtype"]),
    "iota": _counted,
    "rem": _remainder,
    **dict.fromkeys(("reshape", "squeeze"), lambda equation, array: array.reshape(equation.outvars[0].aval.shape)),
    "select_n": _selected,
}
"""Per primitive what NumPy makes of integers, as JAX does; None where it would be something else."""


def values_of(
    closed: Any, arguments: Sequence[Any], results: Callable[[Any, Sequence[Any]], Sequence[Any]] = results_of
) -> list[Any]:
    """What a closed jaxpr makes of arguments, each of its equations in a way that may be another than its own."""
    jaxpr = closed.jaxpr
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *arguments], strict=True))

    def read(atom: Any) -> Any:
        return literal_array(atom) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        known.update(zip(equation.outvars, results(equation, [read(atom) for atom in equation.invars]), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def in_place_of(equation: Any, operands: Sequence[Any], function: Callable[..., Any]) -> Any:
    """A call of a function of some values in place of an equation; one that is named twice is handed in once."""
    once = [*{id(operand): operand for operand in operands}.values()]  # of which some are numbers
    places = [next(place for place, atom in enumerate(once) if atom is operand) for operand in operands]
    function_of_once = lambda *arrays: function(*(arrays[place] for place in places))  # noqa: E731
    avals = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in once]
    (call,) = jax.make_jaxpr(jax.jit(function_of_once))(*avals).jaxpr.eqns
    return call.replace(invars=once, outvars=equation.outvars)
