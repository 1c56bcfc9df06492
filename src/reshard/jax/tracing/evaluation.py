"""What equations of a jaxpr make of arrays, one by one.

By hand, of `x + 2`:

>>> import jax
>>> (equation,) = jax.make_jaxpr(lambda x: x + 2)(1).eqns
>>> [int(result) for result in results_of(equation, [3, literal_array(equation.invars[1])])]
[5]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def literal_array(literal: Any) -> NDArray[Any]:
    """The array of a literal, without the mesh on which it was."""
    return np.asarray(literal.val, literal.aval.dtype)


def results_of(equation: Any, operands: Sequence[Any], params: Mapping[str, Any] | None = None) -> list[Any]:
    """What an equation makes of operands, with its own parameters unless others are given."""
    bound = equation.primitive.get_bind_params(equation.params if params is None else params)
    results = equation.primitive.bind(*operands, **bound)
    return list(results) if equation.primitive.multiple_results else [results]
