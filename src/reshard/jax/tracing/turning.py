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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jax import lax

from reshard.jax.tracing.centring import ELEMENTWISE
from reshard.jax.tracing.evaluation import results_of
from reshard.jax.tracing.rewriting import Rewriting

RUNNING = frozenset(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
"""Primitives that run along a dim."""


class Turning(Rewriting):
    """What is computed of tensors that are turned round, as a function of them as they are.

    Args:
        makers: per variable the equation that makes it.
        dims: those that are turned round.
    """

    def __init__(self, makers: Mapping[Any, Any], dims: Sequence[int]) -> None:
        super().__init__(makers)
        self.dims = frozenset(dims)
        self.turns = 0

    def operands_of(self, maker: Any, result: Any) -> Iterable[Any] | None:
        """What is turned round back is a source."""
        name = str(maker.primitive)
        if self._turns_back(maker):
            self.sources[maker.invars[0]] = None
            self.turns += 1
            return ()
        if name == "broadcast_in_dim" and maker.invars[0].aval.shape != ():
            return None
        is_turned = name in ELEMENTWISE | RUNNING | {"slice", "pad", "concatenate", "broadcast_in_dim"}
        return maker.invars if is_turned else None

    def anew(self, maker: Any, result: Any, sources: Mapping[Any, Any], value_of: Callable[[Any], Any]) -> Any:
        """What an equation makes, turned round."""
        if self._turns_back(maker):
            return sources[maker.invars[0]]
        return self._turned(maker, [value_of(operand) for operand in maker.invars])

    def _turns_back(self, maker: Any) -> bool:
        return str(maker.primitive) == "rev" and frozenset(maker.params["dimensions"]) == self.dims

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
