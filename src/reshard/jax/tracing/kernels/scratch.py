"""Whether a kernel hands anything on from one place of its grid to the next.

Scratch memory keeps what it has from place to place; what runs along an axis in it is no device's alone.
But nearly always it is begun anew: `pl.when(pl.program_id(2) == 0)` writes all of it before anything reads it.
So the kernel is gone through as it runs at a place that is the first along all inner axes, where these program ids are
0: if every scratch is written whole there before it is read, no place of the axes up to these knows of another.

By hand, of a kernel that sums over axis 1: at the places where that is 0 the sum is put to 0, so axis 0 is free; axis 1
is not, as what is there before the second block is no number that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from reshard.jax.tracing.emitter import CALLS
from reshard.jax.tracing.evaluation import literal_array, numbers_of

ASKING = ("program_id", "num_programs")
"""Primitives that ask where in its grid a kernel is."""
OF_THE_DEVICE = frozenset(
    [
        "axis_index",
        "core_map",
        "get_barrier_semaphore",
        "prng_random_bits",
        "prng_seed",
        "run_state",
        "semaphore_signal",
    ]
)
"""Primitives of which nobody says that they are alike on other devices, or in another order."""


def equations_in(jaxpr: Any) -> Any:
    """All equations of a jaxpr, with those in the jaxprs of its equations."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_of(equation):
            yield from equations_in(inner)


def jaxprs_of(equation: Any) -> list[Any]:
    """The jaxprs that an equation has among its parameters."""
    leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "jaxpr"))
    return [getattr(leaf, "jaxpr", leaf) for leaf in leaves if hasattr(getattr(leaf, "jaxpr", leaf), "eqns")]


def is_begun_anew(jaxpr: Any, scratch: Sequence[Any], numbers: Mapping[int, int]) -> bool:
    """Whether a kernel writes all of its scratch before it reads any, at places of its grid.

    Args:
        jaxpr: of the kernel.
        scratch: its variables that are scratch.
        numbers: per axis what its program id is there, as far as that is known.
    """
    walk = _Walk({var: number for number, var in enumerate(scratch)}, numbers)
    walk.through(jaxpr, {})
    return not walk.is_read


class _Walk:
    """A way through a kernel."""

    def __init__(self, scratch: Mapping[Any, int], numbers: Mapping[int, int]) -> None:
        self.scratch, self.numbers = dict(scratch), numbers
        self.written: set[int] = set()
        self.is_read = False
        """Whether any was read that was not written before."""

    def through(self, jaxpr: Any, known: dict[Any, Any]) -> None:
        """Go on through a jaxpr, of whose variables some have a known number."""
        used = {var for equation in jaxpr.eqns for var in equation.invars if not isinstance(var, Literal)}
        used |= {var for var in jaxpr.outvars if not isinstance(var, Literal)}
        for equation in jaxpr.eqns:
            name = str(equation.primitive)
            if name == "program_id":
                if equation.params["axis"] in self.numbers:
                    known[equation.outvars[0]] = np.int32(self.numbers[equation.params["axis"]])
            elif not any(self._is_scratch(var) for var in equation.invars):
                self._calculate(equation, known)
            elif name == "cond":
                self._choose(equation, known)
            elif name in CALLS:
                (called,) = jaxprs_of(equation)
                self._into(called, called.invars, equation.invars, known)
            elif name == "run_scoped":
                (called,) = jaxprs_of(equation)
                self._into(called, called.constvars, equation.invars, known)
            elif name == "scan" and equation.params["length"]:
                (turn,) = jaxprs_of(equation)
                self._into(turn, turn.invars, equation.invars, {})
            elif name == "swap" and not any(var in used for var in equation.outvars):
                target, value, *rest = equation.invars
                self.is_read |= any(self._is_scratch(var) for var in (value, *rest))
                if not rest and equation.params["tree"].num_leaves == 0 and value.aval.shape == target.aval.shape:
                    self.written.add(self.scratch[target])
            else:
                self.is_read |= any(self._is_unwritten(var) for var in equation.invars)

    def _is_scratch(self, atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in self.scratch

    def _is_unwritten(self, atom: Any) -> bool:
        return self._is_scratch(atom) and self.scratch[atom] not in self.written

    def _calculate(self, equation: Any, known: dict[Any, Any]) -> None:
        """Take a scalar for known that is made of such."""
        if any(var.aval.shape for var in equation.outvars if hasattr(var.aval, "shape")) or equation.effects:
            return
        if all(isinstance(atom, Literal) or atom in known for atom in equation.invars) and equation.invars:
            operands = [literal_array(atom) if isinstance(atom, Literal) else known[atom] for atom in equation.invars]
            known.update(zip(equation.outvars, numbers_of(equation, operands), strict=True))

    def _choose(self, equation: Any, known: dict[Any, Any]) -> None:
        """Into the branch that is chosen there; where that is not known, into each."""
        which, *operands = equation.invars
        branches = [branch.jaxpr for branch in equation.params["branches"]]
        number = which.val if isinstance(which, Literal) else known.get(which)
        if number is not None:
            branches = [branches[int(np.clip(int(number), 0, len(branches) - 1))]]
        before, written = set(self.written), []
        for branch in branches:
            self.written = set(before)
            self._into(branch, branch.invars, operands, known)
            written.append(self.written)
        self.written = set.intersection(*written)

    def _into(self, jaxpr: Any, variables: Sequence[Any], operands: Sequence[Any], known: Mapping[Any, Any]) -> None:
        """Into a jaxpr, of which some variables stand for operands here."""
        inside: dict[Any, Any] = {}
        for var, atom in zip(variables, operands, strict=False):
            if self._is_scratch(atom):
                self.scratch[var] = self.scratch[atom]
            elif isinstance(atom, Literal):
                inside[var] = literal_array(atom)
            elif atom in known:
                inside[var] = known[atom]
        self.through(jaxpr, inside)
