"""The chain of collectives that receives least, for compilers that have no free exchange.

A chain is made of AllGather, Slice, AllToAll, Permute, ReduceScatter and AllReduce, each as portable collectives
have them:

    AllGather       the minor-most axes of dims leave
    Slice           axes that are free are appended to dims
    AllToAll        the minor-most axes of a dim go, in their order, to the end of another; several dims at once,
                    each in one move only
    Permute         any sharding of the same number of parts per dim, and any order of devices
    ReduceScatter   all that is unreduced and is wanted reduced is appended to dims, where no axis is free
    AllReduce       the same becomes free

**What is least** is the bytes that all devices together receive, summed over the steps; among equals, the number of
steps.
The search is that of `labelled`, guided by the distances of `weak`; axes may be split into parts of prime size.
It says whether it has proved that no chain is cheaper.

**Where it falls back**, and proves nothing: a dim that its parts do not divide is gathered whole and sliced at the
end, unless both sides cut it alike; sub-axes that no split of an axis holds together are gathered on one side;
orders of devices that are no transposition of digits are reached by a Permute where that is cheapest.

By hand, x=2, y=2, z=2 and 8 x 8 from `[{}, {"x", "y", "z"}]` to `[{"y", "z", "x"}, {}]`, in elements of a tile of
8 on 8 devices: moving y and z first, 3/4 of it, leaves tiles of 8, then x, 1/2 of it: 8 * 8 * 5/4 = 80.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=2, z=2)
>>> source, target = Sharding.of(mesh, None, ("x", "y", "z")), Sharding.of(mesh, ("y", "z", "x"), None)
>>> steps, is_proved = fewest_bytes_chain(Reshard.of(source, target, (8, 8), "int8"))
>>> [(step.kind, step.after.text(), step.total_received_bytes) for step in steps], is_proved
([('AllToAll', '[{"y", "z"}, {"x"}]', 48), ('AllToAll', '[{"y", "z", "x"}, {}]', 32)], True)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from reshard.collectives.frame import Frame, FrameState, frame_of
from reshard.collectives.labelled import search
from reshard.collectives.states import DigitLists, SearchTask
from reshard.collectives.weak import NODES, node_count
from reshard.digits import Digit, nest
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.problem import Reshard, becomes_unreduced
from reshard.sharding import Sharding
from reshard.steps import Chain, Step, shortest_chain, step_of

COLLECTIVES = ("AllGather", "Slice", "AllToAll", "Permute", "ReduceScatter", "AllReduce", "ToUnreduced")
"""The kinds of steps that a chain is made of."""
BUDGET = 30_000
"""How many chains are made and joined in a search before the best so far is taken: well under a second."""
CACHED = 4096
"""How many searches are kept."""
MOST_DEVICES = 2**26
"""Costs are exact integers up to here."""


def fewest_bytes_chain(reshard: Reshard, *, budget: int = BUDGET) -> tuple[Chain, bool]:
    """The chain of collectives that receives least in all, and whether that is proved.

    Args:
        reshard: what is to be moved.
        budget: how many chains a search makes and joins, at most.

    Raises:
        ReshardError: `no-plan` where no chain of collectives leads there, and as `Step`.
    """
    if reshard.source.is_woven or reshard.target.is_woven:
        raise ReshardError("no-plan", f"no collective leads to or from tiles of several boxes or windows: {reshard}")
    return _Planner(reshard, budget).chain(reshard.source, reshard.target)


def fewest_bytes_middles(reshard: Reshard, is_one: bool | None = None) -> tuple[Sharding, ...]:
    """What such a chain passes between even ends on the same devices, nothing partial; no step is made.

    It is the first chain that is found, which seldom is not that of fewest bytes.

    Args:
        reshard: what is to be moved.
        is_one: whether one collective other than an AllToAll leads there; where that is unknown the step says it.

    Raises:
        ReshardError: `no-plan` where no chain is known.
    """
    if reshard.source.is_woven or reshard.target.is_woven:
        raise ReshardError("no-plan", f"no collective leads to or from tiles of several boxes or windows: {reshard}")
    planner = _Planner(reshard, BUDGET, is_first_enough=True)
    if is_one is None:
        step = step_of(reshard)
        is_one = step.kind in COLLECTIVES and step.kind != "AllToAll"
    if is_one:
        return ()
    way = planner.way(reshard.source, reshard.target)
    if way is None:
        raise _refusal(reshard.source, reshard.target)
    return tuple(way.frame.by_source.sharding(state, reshard.source) for state in way.states[1:-1])


def total_bytes(steps: Sequence[Step]) -> int:
    """The bytes that all devices together receive over all steps."""
    return sum(step.total_received_bytes for step in steps)


class _Way(NamedTuple):
    """The states of a chain."""

    frame: Frame
    states: list[FrameState]
    """From source to target."""
    is_proved: bool
    """Whether no chain is cheaper."""


class _Planner:
    """What all searches for one tensor share."""

    def __init__(self, tensor: Reshard, budget: int, *, is_first_enough: bool = False) -> None:
        self.tensor, self.budget, self.is_first_enough = tensor, budget, is_first_enough
        self.shape = tensor.shape

    def chain(self, source: Sharding, target: Sharding) -> tuple[Chain, bool]:
        if source == target:
            return (), True
        single = self._step(source, target)
        if single is not None and single.kind == "Slice" and source.is_equivalent_to(target, self.shape):
            return (), True
        if single is not None and single.kind != "AllToAll":
            return (single,), True
        if becomes_unreduced(source, target):
            return self._to_unreduced(source, target)
        if not self.shape or not prod(self.shape):
            return self._gathered(source, target), False
        if source.mesh.size != target.mesh.size or source.mesh.size > MOST_DEVICES:
            raise _refusal(source, target)
        return self._even(source, target) or self._searched(source, target)

    def _between(self, source: Sharding, target: Sharding) -> Reshard:
        return replace(self.tensor, source=source, target=target)

    def _step(self, before: Sharding, after: Sharding) -> Step | None:
        """The one collective that leads there, if one does."""
        try:
            step = step_of(self._between(before, after))
        except ReshardError as error:
            if error.code != "bad-step":
                raise
            return None
        return step if step.kind in COLLECTIVES else None

    def _steps(self, points: Sequence[Sharding]) -> Chain | None:
        """The collectives from point to point; None where two are not joined by one."""
        steps = [self._step(before, after) for before, after in itertools.pairwise(points)]
        return None if None in steps else tuple(step for step in steps if step is not None)

    def _all_steps(self, points: Sequence[Sharding]) -> Chain:
        """The collectives from point to point.

        Raises:
            ReshardError: `no-plan` where two are not joined by one.
        """
        steps = self._steps(points)
        if steps is None:
            raise _refusal(points[0], points[-1])
        return steps

    def _to_unreduced(self, source: Sharding, target: Sharding) -> tuple[Chain, bool]:
        """To a target that is newly unreduced: first to where nothing has to move any more."""
        last = shortest_chain(self._between(source, target))[-1]
        first, is_proved = self.chain(source, last.before)
        if not first and not source.mesh.same_order_as(target.mesh):
            first = (step_of(self._between(source, last.before)),)  # the last step must know the order
        before = first[-1].after if first else source
        steps = (*first, step_of(self._between(before, target)))
        return steps, is_proved and len(first) < 2 and not total_bytes(first)

    def _even(self, source: Sharding, target: Sharding) -> tuple[Chain, bool] | None:
        """By way of shardings that cut evenly where an end does not; None where both do, or cut alike."""
        ends = []
        for sharding, opposite in ((source, target), (target, source)):
            dims = list(sharding.dims)
            for dim, size in enumerate(self.shape):
                is_same_cut = sharding.layout.dims[dim] == opposite.layout.dims[dim]
                if size % sharding.layout.shards(dim) and not (is_same_cut and source.mesh.same_order_as(target.mesh)):
                    dims[dim] = DimSharding()
            ends.append(
                sharding if tuple(dims) == sharding.dims else replace(sharding, dims=tuple(dims), replicated=())
            )
        if ends == [source, target]:
            return None
        for before, after in ((source, ends[0]), (ends[1], target)):
            if before != after and self._step(before, after) is None:
                raise _refusal(source, target)
        return self._through([source, *ends, target]), False

    def _through(self, points: Sequence[Sharding]) -> Chain:
        """The chains from point to point, joined; two steps after each other as one where one collective does both."""
        steps: list[Step] = []
        reached = points[0]
        for point in points[1:]:
            if reached != point:
                steps += self.chain(reached, point)[0]
                reached = steps[-1].after if steps else reached
        if reached != points[-1]:
            steps += self._all_steps([reached, points[-1]])
        merged: list[Step] = []
        for step in steps:
            both = self._step(merged[-1].before, step.after) if merged else None
            if both is not None and both.kind in (step.kind, merged[-1].kind) and both.kind in ("AllGather", "Slice"):
                merged.pop()
                step = both
            merged.append(step)
        return tuple(merged)

    def _searched(self, source: Sharding, target: Sharding) -> tuple[Chain, bool]:
        is_same_order = source.mesh.same_order_as(target.mesh)
        if frame_of(source, target) is None:
            return (self._parted if is_same_order else self._reordered)(source, target), False
        way = self.way(source, target)
        if way is None:
            return self._gathered(source, target), False
        before = [source, *(way.frame.by_source.sharding(state, source) for state in way.states[1:])]
        if is_same_order:
            return self._all_steps([*before[:-1], target]), way.is_proved
        after = [*(way.frame.by_target.sharding(state, source) for state in way.states[:-1]), target]
        return self._reordering(before, after), way.is_proved

    def way(self, source: Sharding, target: Sharding) -> _Way | None:
        """What the search finds; None where no digits hold both ends, or there are too many."""
        for split in (True, False):
            frame = frame_of(source, target, split=split)
            solved = (
                None if frame is None else _solve(frame, self.shape, self.budget, is_first_enough=self.is_first_enough)
            )
            if frame is not None and solved is not None:
                return _Way(frame, solved[0], split and solved[1])
        return None

    def _reordering(self, before: Sequence[Sharding], after: Sequence[Sharding]) -> Chain:
        """The steps along points, going over from one order of devices to another where that is cheapest.

        Args:
            before: the points in the order of the source's devices.
            after: the same in the order of the target's.
        """
        chains: list[Chain] = []
        for number in range(len(before)):
            for skip in (1, 0):
                if number + skip < len(after):
                    steps = self._steps([*before[: number + 1], *after[number + skip :]])
                    chains += [] if steps is None else [steps]
        if not chains:
            raise _refusal(before[0], after[-1])
        return min(chains, key=_by_bytes)

    def _reordered(self, source: Sharding, target: Sharding) -> Chain:
        """To other devices, or to an order that is no transposition of digits: as if there were none, and a Permute."""
        order = replace(target, mesh=Mesh(target.mesh.axes, source.mesh.device_ids or tuple(range(source.mesh.size))))
        before = [source, *(step.after for step in self.chain(source, order)[0])]
        devices = target.mesh.device_ids or tuple(range(target.mesh.size))
        after = [replace(point, mesh=Mesh(point.mesh.axes, devices)) for point in before[:-1]]
        return self._reordering(before, [*after, target])

    def _parted(self, source: Sharding, target: Sharding) -> Chain:
        """Between digits that no split of the devices holds together: those of one side are gathered first."""
        middles = [_without_conflicts(source, target), _without_conflicts(target, source)]
        chains = [self._through([source, middle, target]) for middle in middles if middle is not None]
        return min(chains, key=_by_bytes) if chains else self._gathered(source, target)

    def _gathered(self, source: Sharding, target: Sharding) -> Chain:
        """The plainest chain: all is gathered, then sliced."""
        whole = replace(source, dims=(DimSharding(),) * len(self.shape), replicated=())
        unreduced = target.unreduced if source.mesh == target.mesh else ()
        reduced = replace(whole, unreduced=unreduced) if unreduced or not target.unreduced else whole
        return self._all_steps([point for point, _ in itertools.groupby([source, whole, reduced, target])])


def _by_bytes(steps: Chain) -> tuple[int, int]:
    return total_bytes(steps), len(steps)


def _refusal(source: Sharding, target: Sharding) -> ReshardError:
    return ReshardError("no-plan", f"no chain of collectives leads from {source} to {target}")


def _without_conflicts(side: Sharding, opposite: Sharding) -> Sharding | None:
    """One side without the axes that no split holds together with those of the other; None if all fit."""
    ends = opposite.layout.used.cuts

    def fits(digit: Digit) -> bool:
        return digit.size == 1 or all(nest(pair) for pair in itertools.product((digit.stride, digit.end), ends))

    dims = tuple(
        replace(dim, axes=tuple(axis for axis in dim.axes if fits(side.mesh.digit_of(axis)))) for dim in side.dims
    )
    return None if dims == side.dims else replace(side, dims=dims, replicated=())


def _solve(
    frame: Frame, shape: tuple[int, ...], budget: int, *, is_first_enough: bool
) -> tuple[list[FrameState], bool] | None:
    """The states from source to target, each with the digits unreduced there, and whether none are cheaper.

    None where the search would be too large.
    """
    source, target = frame.source.dims, frame.target.dims
    unreduced = frame.source.unreduced & frame.target.unreduced
    pending = frame.source.unreduced - unreduced
    uneven = [dim for dim, size in enumerate(shape) if any(size % frame.parts(side[dim]) for side in (source, target))]
    locked = unreduced | {digit for dim in uneven for digit in source[dim]}
    dims = [dim for dim in range(len(shape)) if dim not in uneven]
    if not dims:
        return None
    digits = [digit for digit in range(len(frame.digits)) if digit not in locked]
    has_all_digits = node_count(frame.classes(digits), len(dims)) <= NODES
    if not has_all_digits:
        used = {digit for side in (source, target) for stage in side for digit in stage} | frame.source.unreduced
        digits = [digit for digit in digits if digit in used]
    classes = frame.classes(digits)
    if node_count(classes, len(dims)) > NODES:
        return None
    numbers = {digit: number for number, digit in enumerate(digits)}
    sizes = [size for size, _ in classes]

    def numbered(side: DigitLists) -> DigitLists:
        return tuple(tuple(numbers[digit] for digit in side[dim]) for dim in dims)

    most_parts = prod(size**count for size, count in classes)
    task = SearchTask(
        frame.digits.size,
        classes,
        tuple(sizes.index(frame.digits[digit].size) for digit in digits),
        numbered(source),
        numbered(target),
        shape=tuple(gcd(shape[dim], most_parts) for dim in dims),  # shapes that the same parts divide are searched once
        pending=sum(1 << numbers[digit] for digit in pending),
    )
    way, is_proved = _search(task, budget, is_first_enough=is_first_enough)
    if not way:
        return None
    states = []
    for state, is_pending in way:
        stages = list(source)
        for dim, stage in zip(dims, state, strict=True):
            stages[dim] = tuple(digits[number] for number in stage)
        states.append(FrameState(tuple(stages), unreduced | pending if is_pending else unreduced))
    return states, has_all_digits and is_proved


_search = lru_cache(CACHED)(search)
