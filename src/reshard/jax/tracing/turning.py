"""What is turned round, worked on and turned back: the same work from the other end.

`flip(cumsum(flip(x)))` is a running sum from behind, and so is what `associative_scan(reverse=True)` writes: all of it
is moved to the other end of the mesh and back again, though nothing is needed there.
Between two reversals of the same dims what goes element by element stays as it is, a slice or a pad counts from the
other end, what is joined is joined in the other order, and what runs along runs the other way.

By hand, of 8 elements:

>>> import jax
>>> from jax import lax
>>> traced = jax.make_jaxpr(lambda x: lax.rev(lax.cumsum(lax.rev(x, (0,))), (0,)))(jax.numpy.zeros(8)).jaxpr
>>> turning = Turning({var: equation for equation in traced.eqns for var in equation.outvars}, (0,))
>>> turning.reaches(traced.eqns[1].outvars[0])
True
>>> made = jax.make_jaxpr(turning.function(traced.eqns[1].outvars[0]))(jax.numpy.zeros(8))
>>> [(str(equation.primitive), equation.params["reverse"]) for equation in made.eqns]
[('cumsum', True)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import Literal

from reshard.jax.tracing.centring import ELEMENTWISE
from reshard.jax.tracing.evaluation import literal_array, results_of

RUNNING = frozenset(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
"""Primitives that run along a dim."""
MOST_EQUATIONS = 400
"""Between reversals that are so far apart nothing is changed."""


class Turning:
    """What is computed of tensors that are turned round, as a function of them as they are.

    Args:
        makers: per variable the equation that makes it.
        dims: those that are turned round.
    """

    def __init__(self, makers: Mapping[Any, Any], dims: Sequence[int]) -> None:
        self.makers, self.dims = makers, frozenset(dims)
        self.sources: dict[Any, None] = {}
        """What it is made of, in order: scalars, and what is turned round."""
        self.turns = 0
        self.known: dict[Any, bool] = {}

    def reaches(self, atom: Any) -> bool:
        """Whether a value is made of what is turned round, of numbers, and of nothing else."""
        if isinstance(atom, Literal):
            return jax.numpy.ndim(atom.val) == 0
        if atom not in self.known:
            self.known[atom] = False
            self.known[atom] = len(self.known) <= MOST_EQUATIONS and self._reaches(atom)
        return self.known[atom]

    def _reaches(self, atom: Any) -> bool:
        if atom.aval.shape == ():
            self.sources[atom] = None
            return True
        maker = self.makers.get(atom)
        if maker is None:
            return False
        name = str(maker.primitive)
        if name == "rev" and frozenset(maker.params["dimensions"]) == self.dims:
            self.sources[maker.invars[0]] = None
            self.turns += 1
            return True
        if name == "broadcast_in_dim":
            return maker.invars[0].aval.shape == () and self.reaches(maker.invars[0])
        is_turned = name in ELEMENTWISE | RUNNING | {"slice", "pad", "concatenate"}
        return is_turned and all(self.reaches(source) for source in maker.invars)

    def function(self, atom: Any) -> Callable[..., Any]:
        """What makes it turned round, of its sources."""

        def made(*arrays: Any) -> Any:
            values = dict(zip(self.sources, arrays, strict=True))
            results: dict[Any, Any] = {}

            def value(atom: Any) -> Any:
                if isinstance(atom, Literal):
                    return jax.numpy.asarray(literal_array(atom))
                if atom.aval.shape == ():
                    return values[atom]
                if atom not in results:
                    maker = self.makers[atom]
                    is_source = str(maker.primitive) == "rev"
                    results[atom] = values[maker.invars[0]] if is_source else of(maker)
                return results[atom]

            def of(maker: Any) -> Any:
                return self._turned(maker, [value(source) for source in maker.invars])

            return value(atom)

        return made

    def _turned(self, maker: Any, operands: list[Any]) -> Any:
        """What an equation makes, turned round, of operands that are."""
        name, params = str(maker.primitive), maker.params
        if name in RUNNING and params["axis"] in self.dims:
            return results_of(maker, operands, {**params, "reverse": not params["reverse"]})[0]
        if name == "concatenate" and params["dimension"] in self.dims:
            return lax.concatenate(operands[::-1], params["dimension"])
        if name == "pad":
            config = [
                (high, low, gap) if dim in self.dims else (low, high, gap)
                for dim, (low, high, gap) in enumerate(params["padding_config"])
            ]
            return lax.pad(operands[0], operands[1], config)
        if name == "slice":
            (array,) = operands
            strides = params["strides"] or (1,) * array.ndim
            ends = [
                _from_behind(size, *end) if dim in self.dims else end
                for dim, (size, *end) in enumerate(
                    zip(array.shape, params["start_indices"], params["limit_indices"], strides, strict=True)
                )
            ]
            start, stop, step = zip(*ends, strict=True)
            return lax.slice(array, start, stop, step)
        if name in ELEMENTWISE and name not in ("clamp", "select_n"):
            shape = maker.outvars[0].aval.shape
            operands = [lax.broadcast(operand, shape) if operand.ndim == 0 else operand for operand in operands]
        return results_of(maker, operands)[0]


def _from_behind(size: int, start: int, stop: int, step: int) -> tuple[int, int, int]:
    """The places of a slice counted from the other end.

    >>> _from_behind(8, 1, 7, 3)  # 1 and 4, so 3 and 6
    (3, 7, 3)
    """
    count = -(-(stop - start) // step)
    return (size - start - (count - 1) * step - 1, size - start, step) if count > 0 else (0, 0, step)
