"""What adds the operations of a jaxpr to a program, each with what one device does.

An operation that came from JAX carries a `Local`: a function from the tiles of its operands to that of its result.
What it may ask about them is `Here`; in which loops it stands is there too, for a program is a flat list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jax import lax

from reshard.patterns import Pattern, Term
from reshard.propagation import Program, Value

Shape = tuple[int, ...]


class Here(Protocol):
    """What an operation may ask about the tiles on a device; a term is the number of an operand, or of the result."""

    @property
    def shapes(self) -> Sequence[Shape]:
        """The shapes of the tiles of the operands, and last of the result."""

    def start(self, term: int, dim: int) -> Any:
        """Where the tile begins in its tensor."""


Run = Callable[[Here, Sequence[Any]], Any]
"""From the tiles of the operands to the tile of the result."""


@dataclass(frozen=True, eq=False)
class Loop:
    """A scan."""

    length: int
    reverse: bool
    unroll: int


@dataclass(frozen=True, eq=False)
class Local:
    """What stands with an operation that came from JAX."""

    run: Run
    """What a device does."""
    loops: tuple[Loop, ...] = ()
    """The loops around it, outermost first."""
    part: str = ""
    """Of the loop that it enters or leaves: `carry`, `element`, `last`, `stack`."""
    place: int = 0
    """The number of the carry."""
    loop: Loop | None = None
    """The loop that it enters or leaves."""


class Emitter:
    """A program under construction from equations."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.loops: tuple[Loop, ...] = ()
        self.without_rule: Counter[str] = Counter()
        self._scalars: dict[tuple[str, bytes], Value] = {}

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        terms: Sequence[Term],
        aval: Any,
        run: Run,
        *,
        local: Mapping[str, Any] | None = None,
        result: str | None = None,
        **fields: Any,
    ) -> Value:
        """Add an operation; terms are those of the operands, and last of the result."""
        pattern = Pattern(tuple(terms[:-1]), terms[-1])
        payload = Local(run, **{"loops": self.loops, **(local or {})})
        return self.program.add(
            name, operands, result, aval.shape, aval.dtype, pattern=pattern, payload=payload, **fields
        )

    def literal(self, value: Any) -> Value:
        """A value that is known: one number, or an array of which every device takes its part."""
        array = np.asarray(value)
        if array.ndim == 0:
            key = str(array.dtype), array.tobytes()
            if key not in self._scalars:
                self._scalars[key] = self.program.add(
                    "constant",
                    (),
                    None,
                    (),
                    array.dtype,
                    attributes=(("value", array.item() if array.dtype.kind in "iuf" else float(array.real)),),
                    payload=Local(lambda here, _: lax.full((), array[()], array.dtype)),
                )
            return self._scalars[key]

        def part(here: Here, _: Sequence[Any]) -> Any:
            shape = here.shapes[-1]
            room = [(0, local if size % max(local, 1) else 0) for size, local in zip(array.shape, shape, strict=True)]
            starts = [here.start(1, dim) for dim in range(array.ndim)]
            return lax.dynamic_slice(np.pad(array, room), starts, shape) if shape != array.shape else array

        return self.emit("array", [self.literal(np.int32(0))], [(), labels(array.ndim)], array, part)


def labels(ndim: int, stem: str = "d") -> Term:
    """The term of a tensor with one label per dim."""
    return tuple((f"{stem}{dim}",) for dim in range(ndim))


def within(shape: Shape, result: Shape) -> Term:
    """The term of an operand that is as the result, or repeated where it is a scalar or has size 1."""
    return tuple(
        (f"d{dim}",) if size == whole else () for dim, (size, whole) in enumerate(zip(shape, result, strict=False))
    )


def evaluated(equation: Any, number: int | None = None, **changed: Any) -> Run:
    """The primitive itself, with parameters changed; of several results, one."""

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        params = equation.primitive.get_bind_params({**equation.params, **changed})
        made = equation.primitive.bind(*tiles, **params)
        return made if number is None else made[number]

    return run
