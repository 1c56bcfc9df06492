"""What a loop or a block is handed though it is made of nothing that is given: made within.

A mask of places is made once, before the layers that a scan goes through, and handed to each turn.
There nobody sees any more what it is; made anew in the turn it costs a comparison, which a compiler moves out again.

By hand, a scan that is handed a mask takes nothing but its carry when that is made within:

>>> import jax, jax.numpy as jnp
>>> from reshard.jax.tracing.bands.planes import flattened
>>> def turns(x):
...     mask = jnp.arange(4)[:, None] >= jnp.arange(4)
...     return jax.lax.scan(lambda x, _: (jnp.where(mask, x, 0), None), x, None, 2)[0]
>>> closed = jax.make_jaxpr(turns)(jnp.zeros((4, 4)))
>>> flat = flattened(closed.jaxpr, closed.consts)
>>> [len(equation.invars) for equation in (flat.equations[-1], Sinking(flat).of(flat.equations[-1]))]
[2, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from reshard.jax.tracing.bands.planes import Flat, number_kind
from reshard.jax.tracing.evaluation import literal_array, results_of

REMATERIALIZED = ("checkpoint", "remat2")
"""Blocks of which nothing is kept for a gradient."""
MOST_STEPS = 64
"""What takes more equations to make is handed in."""


class Sinking:
    """Which values of flat equations are made of nothing that is given."""

    def __init__(self, flat: Flat) -> None:
        self.makers = {var: equation for equation in flat.equations for var in equation.outvars}
        self.lines = {var: line for var, value in flat.constants.items() if (line := _line(value)) is not None}
        self.steps: dict[Any, int | None] = {}

    def of(self, equation: Any) -> Any:
        """An equation, or the same with masks made in what it calls."""
        name, params = str(equation.primitive), equation.params
        if name == "scan":
            sunk = self._sunk(equation.invars[: params["num_consts"]])
            body = params["jaxpr"]
        elif name in REMATERIALIZED:
            sunk, body = self._sunk(equation.invars), ClosedJaxpr(params["jaxpr"], ())
        else:
            return equation
        if not sunk:
            return equation
        shorter_body = self._made(body, equation.invars, sunk)
        kept = [atom for number, atom in enumerate(equation.invars) if number not in sunk]
        if name == "scan":
            changed = {**params, "jaxpr": shorter_body, "num_consts": params["num_consts"] - len(sunk)}
        elif shorter_body.consts:
            return equation
        else:
            held = params["prevent_cse"]
            if isinstance(held, tuple):
                held = tuple(each for number, each in enumerate(held) if number not in sunk)
            changed = {**params, "jaxpr": shorter_body.jaxpr, "prevent_cse": held}
        return equation.replace(invars=kept, params=changed)

    def _sunk(self, atoms: Sequence[Any]) -> set[int]:
        """Which operands are to be made within."""
        return {
            number
            for number, atom in enumerate(atoms)
            if not isinstance(atom, Literal)
            and (atom in self.makers or atom in self.lines)
            and number_kind(atom.aval.dtype) in set("biu")
            and atom.aval.ndim
            and (steps := self._steps(atom)) is not None
            and steps <= MOST_STEPS
        }

    def _steps(self, atom: Any) -> int | None:
        """How many equations make a value, if they take nothing that is given."""
        if isinstance(atom, Literal) or atom in self.lines:
            return 0
        if atom not in self.steps:
            self.steps[atom] = None
            maker = self.makers.get(atom)
            if maker is not None and not maker.effects and len(maker.outvars) == 1:
                steps = [self._steps(source) for source in maker.invars]
                known = [count for count in steps if count is not None]
                self.steps[atom] = 1 + sum(known) if len(known) == len(steps) else None
        return self.steps[atom]

    def _made(self, body: Any, atoms: Sequence[Any], sunk: set[int]) -> Any:
        """A jaxpr that makes some of its operands itself."""

        def function(*arrays: Any) -> list[Any]:
            given, made = iter(arrays), dict[Any, Any]()
            operands = [
                self._array(atoms[number], made) if number in sunk else next(given)
                for number in range(len(body.jaxpr.invars))
            ]
            return jaxpr_as_fun(body)(*operands)

        avals = [
            jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
            for number, var in enumerate(body.jaxpr.invars)
            if number not in sunk
        ]
        return jax.make_jaxpr(function)(*avals)

    def _array(self, atom: Any, made: dict[Any, Any]) -> Any:
        if isinstance(atom, Literal):
            return literal_array(atom)
        if atom not in made:
            if atom in self.lines:
                made[atom] = self.lines[atom]()
            else:
                maker = self.makers[atom]
                operands = [self._array(source, made) for source in maker.invars]
                (made[atom],) = results_of(maker, operands)
        return made[atom]


def _line(value: Any) -> Callable[[], Any] | None:
    """How known numbers that follow each other evenly are made."""
    dtype: Any = getattr(value, "dtype", None)
    if number_kind(dtype) not in set("iu") or value.ndim != 1 or not len(value):
        return None
    numbers = np.asarray(value).astype(np.int64)
    step = int(numbers[1] - numbers[0]) if len(numbers) > 1 else 0
    if (numbers != numbers[0] + step * np.arange(len(numbers))).any():
        return None
    count, first = len(numbers), int(numbers[0])
    return lambda: lax.iota(dtype, count) * np.array(step, dtype) + np.array(first, dtype)
