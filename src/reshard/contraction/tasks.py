"""What a layout is chosen for: a calculation, wherever it is done, and the task of doing it from here to there.

An einsum multiplies and sums.
An operation of a program may do anything else: need all of a label, wait for other sums than a product does, combine
what it reduces by a maximum, or work element by element.

By hand: a product of matrices loops over all three labels, with a multiplication and an addition each; a maximum of
two matrices over the elements of the result.

>>> product = Calculation.of_einsum(Pattern.of("ij,jk->ik"), {"i": 8, "j": 8, "k": 8}, dtype_named("float32"))
>>> [(sorted(stage.labels), stage.operations) for stage in product.stages]
[(['i', 'j', 'k'], 2)]
>>> [wait.operands for wait in product.waits if wait.reduction == "sum"]
[(0,), (1,)]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from math import prod
from typing import NamedTuple

from reshard.contraction.paths import paths_of, steps_along
from reshard.dtypes import REDUCTIONS, DType, dtype_named, widest
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.operations.operation import Operation
from reshard.operations.pattern import Pattern
from reshard.operations.reaching import Reached
from reshard.operations.rules import Rule, reduction_of, waiting_operands
from reshard.sharding import Sharding

__all__ = ["Calculation", "Stage", "Task", "Wait", "dtype_named", "stages_of"]


class Stage(NamedTuple):
    """A loop of a device."""

    labels: frozenset[str]
    """Over which it runs."""
    operations: int
    """On each element; or bytes."""


class Wait(NamedTuple):
    """Operands that may stay unreduced together, and then the result is."""

    operands: tuple[int, ...]
    reduction: str


@dataclass(frozen=True)
class Calculation:
    """What is computed, wherever that is."""

    pattern: Pattern
    sizes: tuple[int, ...]
    """Per label of the pattern, its size."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the operands, and last of the result."""
    dtypes: tuple[DType, ...]
    """Of the same."""
    stages: tuple[Stage, ...]
    """What a device computes, one after the other."""
    waits: tuple[Wait, ...]
    whole: frozenset[str] = frozenset()
    """Labels of which every device needs all, so that nothing may cut them."""
    reduction: str = "sum"
    """How what is summed over a cut label combines."""
    reaches: tuple[Reached, ...] = ()
    """What operands are read for along labels that may be cut though elements change their place."""

    @classmethod
    def of_einsum(cls, pattern: Pattern, sizes: Mapping[str, int], dtype: DType) -> Calculation:
        """An einsum: it is linear in each operand, and, where elements only change places, waits for any reduction."""
        if pattern.joined:
            raise ReshardError("syntax", f"an einsum sums what its result lacks, and joins no label, as {pattern} does")
        reductions = REDUCTIONS if pattern.is_rearrangement else ("sum",)
        waits = [Wait((n,), reduction) for reduction in reductions for n in range(len(pattern.operands))]
        return cls(
            pattern,
            tuple(sizes[label] for label in pattern.labels),
            tuple(pattern.shape_of(term, sizes) for term in pattern.terms),
            (dtype,) * len(pattern.terms),
            stages_of(pattern, sizes),
            tuple(waits),
            pattern.repeated,
        )

    @property
    def dtype(self) -> DType:
        """What the arithmetic is in: the widest of the operands."""
        return widest(self.dtypes[:-1] or self.dtypes)

    @cached_property
    def label_sizes(self) -> dict[str, int]:
        """The size of every label."""
        return dict(zip(self.pattern.labels, self.sizes, strict=True))

    @cached_property
    def touched(self) -> tuple[Stage, ...]:
        """Per tensor, which is read or written once, the loop over its elements, with the bytes of each."""
        stages = []
        for term, shape, dtype in zip(self.pattern.terms, self.shapes, self.dtypes, strict=True):
            kept = [bool(group) and self.whole.issuperset(group) for group in term]
            labels = frozenset(chain.from_iterable(g for g, is_whole in zip(term, kept, strict=True) if not is_whole))
            sizes = (size for size, is_whole in zip(shape, kept, strict=True) if is_whole)
            stages.append(Stage(labels, prod(sizes, start=dtype.itemsize)))
        return tuple(stages)

    @cached_property
    def _hash(self) -> int:
        own = self.pattern, self.sizes, self.shapes, self.dtypes, self.waits, self.whole, self.reduction, self.reaches
        return hash(own)

    def __hash__(self) -> int:
        return self._hash


def calculation_of(operation: Operation, rule: Rule) -> Calculation:
    """What an operation of a program computes, whose rule is known."""
    waits = tuple(
        Wait(operands, reduction) for reduction in REDUCTIONS for operands in waiting_operands(operation, reduction)
    )
    dtypes = tuple(value.dtype for value in operation.values)
    return _calculation(
        operation.pattern or _copy(len(operation.result.shape)),
        rule,
        dtypes,
        waits,
        reduction_of(operation),
        operation.name == "einsum",
        operation.reaches,
    )


@lru_cache(4096)
def _calculation(
    pattern: Pattern,
    rule: Rule,
    dtypes: tuple[DType, ...],
    waits: tuple[Wait, ...],
    reduction: str,
    multiplies: bool,
    reaches: tuple[Reached, ...],
) -> Calculation:
    sizes = dict(zip(pattern.labels, rule.sizes, strict=True))
    roles = dict(zip(pattern.labels, rule.roles, strict=True))
    whole = frozenset(label for label, role in roles.items() if role in ("replicated", "shifted"))
    if multiplies:
        einsum = Calculation.of_einsum(pattern, sizes, dtypes[-1])
        return replace(einsum, shapes=rule.shapes, dtypes=dtypes, whole=whole)
    if "reduced" in rule.roles:
        stages: tuple[Stage, ...] = stages_of(pattern, sizes)
    else:
        stages = (Stage(frozenset(pattern.term_labels[-1]), 1),)
    return Calculation(pattern, rule.sizes, rule.shapes, dtypes, stages, waits, whole, reduction, reaches)


@lru_cache(64)
def _copy(ndim: int) -> Pattern:
    term = tuple((f"d{dim}",) for dim in range(ndim))
    return Pattern((term,), term)


def stages_of(pattern: Pattern, sizes: Mapping[str, int]) -> tuple[Stage, ...]:
    """Per contraction of two tensors, or of all that there are, its loop over all labels that it reads.

    Each element takes a multiplication, and an addition where anything is summed.
    """
    if len(pattern.operands) < 3:
        return (_stage(pattern),)
    return tuple(_stage(step) for _, step in steps_along(pattern, paths_of(pattern, sizes)[0]))


def _stage(pattern: Pattern) -> Stage:
    sums = bool(pattern.reduced)
    read = frozenset(label for label in pattern.labels if pattern.role(label) != "broadcast")
    return Stage(read, len(pattern.operands) - 1 + sums)


@dataclass(frozen=True)
class Task:
    """A calculation to be done: from where, to where."""

    calculation: Calculation
    mesh: Mesh
    """On which it is computed."""
    sources: tuple[Sharding, ...]
    """Where the operands are."""
    target: Sharding | None
    """Where the result is wanted; None where that is open."""
    may_stay_unreduced: bool = False
    """Whether, where no target is given, sums over cut labels may be left to the next operation."""
    trips: tuple[int, ...] | None = None
    """How often each operand is moved where it must be, and last how often the result is made; once unless given."""

    @property
    def pattern(self) -> Pattern:
        """Of the calculation."""
        return self.calculation.pattern

    @property
    def sizes(self) -> dict[str, int]:
        """Of the labels."""
        return self.calculation.label_sizes

    @cached_property
    def ends(self) -> tuple[Sharding | None, ...]:
        """Per term its sharding, where it has one on the mesh of the computation."""
        return tuple(end if end is not None and end.mesh == self.mesh else None for end in (*self.sources, self.target))

    @cached_property
    def is_even(self) -> bool:
        """Whether every dim is cut evenly where it is and where it is wanted, and would be by all devices."""
        ends = zip((*self.sources, self.target), self.calculation.shapes, strict=True)
        return all(size == 1 or size % self.mesh.size == 0 for size in self.calculation.sizes) and all(
            size % end.layout_for(shape).shards(dim) == 0
            for end, shape in ends
            if end is not None
            for dim, size in enumerate(shape)
        )

    @property
    def is_einsum(self) -> bool:
        """Whether it multiplies and sums once, so that operands may be contracted two at a time."""
        calculation = self.calculation
        einsum = Calculation.of_einsum(calculation.pattern, calculation.label_sizes, calculation.dtypes[-1])
        return calculation == einsum and {*self.trip_counts} == {1}

    @property
    def trip_counts(self) -> tuple[int, ...]:
        """Per term, how often it is moved."""
        return self.trips or (1,) * len(self.calculation.shapes)

    @property
    def uneven(self) -> str:
        """The rule by which labels are cut: that of the operands that are cut, where they have one."""
        cut = [source for source in self.sources if any(dim.axes for dim in source.dims)]
        rules = {source.uneven for source in cut or self.sources}
        return rules.pop() if len(rules) == 1 else "ceil"

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """The operands that may stay unreduced and are so, those of one reduction together."""
        return tuple(
            wait
            for wait in self.calculation.waits
            if any(
                end is not None and end.unreduced and end.reduction == wait.reduction
                for end in (self.ends[operand] for operand in wait.operands)
            )
        )
