"""What is computed of tensors, as a function of others from which each value of it follows.

A value and all that it is made of, down to its sources, is computed anew in another form: turned round
([`turning`][reshard.jax.tracing.turning]), or in the places of a larger tensor
([`centring`][reshard.jax.tracing.centring]).
What can be taken so, and how, is each form's own; how it is gone through is here, without a frame of Python for each
operation, for chains of thousands occur.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import jax
from jax.extend.core import Literal

from reshard.jax.tracing.evaluation import literal_array


class Rewriting:
    """Values computed anew of sources.

    Args:
        makers: per variable the equation that makes it.
    """

    def __init__(self, makers: Mapping[Any, Any]) -> None:
        self.makers: Final = makers
        self.sources: dict[Any, None] = {}
        """What it is made of, in order: scalars, and what `operands_of` adds."""
        self.known: dict[Any, bool] = {}
        self.in_order: list[Any] = []
        """What is computed anew, each after what it is made of."""

    def operands_of(self, maker: Any, result: Any) -> Iterable[Any] | None:
        """What must be computed anew for a result of an equation.

        Nothing where it is read off sources, which are noted; None where it cannot be.
        """
        raise NotImplementedError

    def anew(self, maker: Any, result: Any, sources: Mapping[Any, Any], value_of: Callable[[Any], Any]) -> Any:
        """A result of an equation in the new form, of the sources as they are, and operands in the new form."""
        raise NotImplementedError

    def reaches(self, atom: Any) -> bool:
        """Whether a value is made of sources, of numbers, and of nothing else."""
        if isinstance(atom, Literal):
            return jax.numpy.ndim(atom.val) == 0
        if atom not in self.known:
            self.known[atom] = self._reaches(atom)
        return self.known[atom]

    def _reaches(self, atom: Any) -> bool:
        seen, pending = {*self.in_order}, [(atom, False)]
        while pending:
            value, is_ready = pending.pop()
            if is_ready:
                self.in_order.append(value)
            elif isinstance(value, Literal):
                if jax.numpy.ndim(value.val):
                    return False
            elif value.aval.shape == ():
                self.sources[value] = None
            elif value not in seen:
                seen.add(value)
                maker = self.makers.get(value)
                operands = None if maker is None else self.operands_of(maker, value)
                if operands is None:
                    return False
                pending.append((value, True))
                pending.extend((operand, False) for operand in reversed([*operands]))
        return True

    def function(self, atom: Any) -> Callable[..., Any]:
        """What makes a value that is reached, in the new form, of its sources."""

        def computed(*arrays: Any) -> Any:
            sources = dict(zip(self.sources, arrays, strict=True))
            values: dict[Any, Any] = {}

            def value_of(atom: Any) -> Any:
                if isinstance(atom, Literal):
                    return jax.numpy.asarray(literal_array(atom))
                return sources[atom] if atom.aval.shape == () else values[atom]

            for value in self.in_order:
                values[value] = self.anew(self.makers[value], value, sources, value_of)
            return value_of(atom)

        return computed
