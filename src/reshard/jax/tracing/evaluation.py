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
