"""The chain of collectives that receives least, for compilers that have no free exchange.

A chain is made of AllGather, Slice, AllToAll, Permute, ReduceScatter and AllReduce, each as portable collectives
have them:

    AllGather       the minor-most axes of dims leave
    Slice           axes that are free are appended to dims
    AllToAll        the minor-most axes of a dim go, in their order, to the end of another; several dims at once,
                    each in one move only
    Permute         any sharding of the same number of parts per dim, and any order of devices
    ReduceScatter   all that is partial and is wanted reduced is appended to dims, where no axis is free
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
>>> steps, proved = fewest_bytes_chain(source, target, (8, 8), "int8")
>>> [(step.kind, step.after.text(), step.total_received_bytes) for step in steps], proved
([('AllToAll', '[{"y", "z"}, {"x"}]', 48), ('AllToAll', '[{"y", "z", "x"}, {}]', 32)], True)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd, prod

from reshard.chains import Chain, shortest_chain
from reshard.collectives.frame import Entries, Frame, frame_of
from reshard.collectives.labelled import search
from reshard.collectives.states import State, Task
from reshard.collectives.weak import NODES, node_count, weak_graph
from reshard.digits import Digit, nest
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.sharding import DimSharding, Sharding, becomes_unreduced, checked_shape, with_mesh
from reshard.steps import Step, step_between

COLLECTIVES = ("AllGather", "Slice", "AllToAll", "Permute", "ReduceScatter", "AllReduce", "ToUnreduced")
"""The kinds of steps that a chain is made of."""
BUDGET = 30_000
"""How many chains are made and joined in a search before the best so far is taken: well under a second."""
CACHED = 4096
"""How many searches are kept."""
MOST_DEVICES = 2**26
"""Costs are exact integers up to here."""

Name = Callable[[int], Sharding]


def fewest_bytes_chain(
    source: Sharding, target: Sharding, shape: Sequence[int], dtype: DType | str, *, budget: int = BUDGET
) -> tuple[Chain, bool]:
    """The chain of collectives that receives least in all, and whether that is proved.

    Args:
        source: where the tensor is.
        target: where it is wanted.
        shape: of the whole tensor.
        dtype: its element type.
        budget: how many chains a search makes and joins, at most.

    Raises:
        ReshardError: `no-plan` where no chain of collectives leads there, and as `Step`.
    """
    sizes, kind = checked_shape(shape), dtype_named(dtype)
    source, target = with_mesh(source, target.mesh), with_mesh(target, source.mesh)
    for sharding in (source, target):
        sharding.layout_for(sizes)
    return _Planner(sizes, kind, budget).chain(source, target)


def cache_clear() -> None:
    """Forget what was searched."""
    _search.cache_clear()


def total_bytes(steps: Sequence[Step]) -> int:
    """The bytes that all devices together receive over all steps."""
    return sum(step.total_received_bytes for step in steps)


class _Planner:
    """What all searches for one tensor share."""

    def __init__(self, shape: tuple[int, ...], dtype: DType, budget: int) -> None:
        self.shape, self.dtype, self.budget = shape, dtype, budget

    def chain(self, source: Sharding, target: Sharding) -> tuple[Chain, bool]:
        if source == target:
            return (), True
        single = self._step(source, target)
        if single is not None and single.kind == "Slice" and source.is_equivalent_to(target, self.shape):
            return (), True
        if single is not None and single.kind != "AllToAll":
            return (single,), True
        if becomes_unreduced(source, target):
            return self._made_partial(source, target)
        if not self.shape or not prod(self.shape):
            return self._gathered(source, target), False
        if source.mesh.size != target.mesh.size or source.mesh.size > MOST_DEVICES:
            raise self._refusal(source, target)
        return self._even(source, target) or self._searched(source, target)

    def _refusal(self, source: Sharding, target: Sharding) -> ReshardError:
        return ReshardError("no-plan", f"no chain of collectives leads from {source} to {target}")

    def _step(self, before: Sharding, after: Sharding) -> Step | None:
        """The one collective that leads there, if one does."""
        try:
            step = step_between(before, after, self.shape, self.dtype)
        except ReshardError as error:
            if error.code != "bad-step":
                raise
            return None
        return step if step.kind in COLLECTIVES else None

    def _made_partial(self, source: Sharding, target: Sharding) -> tuple[Chain, bool]:
        """To a target that is newly partial: first to where nothing has to move any more."""
        last = shortest_chain(source, target, self.shape, self.dtype)[-1]
        first, proved = self.chain(source, last.before) if source != last.before else ((), True)
        if not first and not source.mesh.same_order_as(target.mesh):
            first = (step_between(source, last.before, self.shape, self.dtype),)  # the last step must know the order
        before = first[-1].after if first else source
        steps = (*first, step_between(before, target, self.shape, self.dtype))
        return steps, proved and len(first) < 2 and not total_bytes(first)

    def _even(self, source: Sharding, target: Sharding) -> tuple[Chain, bool] | None:
        """By way of shardings that cut evenly where an end does not; None where both do, or cut alike."""
        ends = []
        for sharding, other in ((source, target), (target, source)):
            dims = list(sharding.dims)
            for dim, size in enumerate(self.shape):
                alike = sharding.layout.dims[dim] == other.layout.dims[dim] and source.mesh.same_order_as(target.mesh)
                if size % sharding.layout.shards(dim) and not alike:
                    dims[dim] = DimSharding()
            ends.append(
                sharding if tuple(dims) == sharding.dims else replace(sharding, dims=tuple(dims), replicated=())
            )
        if ends == [source, target]:
            return None
        for before, after in ((source, ends[0]), (ends[1], target)):
            if before != after and self._step(before, after) is None:
                raise self._refusal(source, target)
        return self._through([source, *ends, target]), False

    def _through(self, points: Sequence[Sharding]) -> Chain:
        """The chains from point to point, joined."""
        steps: list[Step] = []
        here = points[0]
        for point in points[1:]:
            if here != point:
                steps += self.chain(here, point)[0]
                here = steps[-1].after if steps else here
        if here != points[-1]:
            steps.append(self._step(here, points[-1]) or _raise(self._refusal(here, points[-1])))
        return self._merged(steps)

    def _merged(self, steps: Sequence[Step]) -> Chain:
        """The steps, two after each other as one where one collective does both."""
        merged: list[Step] = []
        for step in steps:
            both = self._step(merged[-1].before, step.after) if merged else None
            if both is not None and both.kind in (step.kind, merged[-1].kind) and both.kind in ("AllGather", "Slice"):
                merged.pop()
                step = both
            merged.append(step)
        return tuple(merged)

    def _searched(self, source: Sharding, target: Sharding) -> tuple[Chain, bool]:
        frame = frame_of(source, target)
        if frame is None:
            return (self._reordered if not source.mesh.same_order_as(target.mesh) else self._parted)(
                source, target
            ), False
        proved = True
        found = _solve(frame, self.shape, self.budget)
        if found is None:
            proved, frame = False, frame_of(source, target, split=False) or frame
            found = _solve(frame, self.shape, self.budget)
        if found is None:
            return self._gathered(source, target), False
        states, best = found
        return self._named(frame, states, source, target), proved and best

    def _named(
        self, frame: Frame, states: list[tuple[Entries, frozenset[int]]], source: Sharding, target: Sharding
    ) -> Chain:
        """The steps between states, of which the first is the source and the last the target."""
        last = len(states) - 1

        def here(number: int) -> Sharding:
            return source if number == 0 else frame.here.sharding(*states[number], source)

        def there(number: int) -> Sharding:
            return target if number == last else frame.there.sharding(*states[number], source)

        if source.mesh.same_order_as(target.mesh):
            points = [*map(here, range(last)), target]
            return tuple(
                self._step(before, after) or _raise(self._refusal(before, after))
                for before, after in itertools.pairwise(points)
            )
        return self._turned(last, here, there)

    def _turned(self, last: int, here: Name, there: Name) -> Chain:
        """The steps along states 0 to last, going over from one order of devices to another where that is cheapest."""
        found: list[Chain] = []
        for number in range(last + 1):
            for skip in (1, 0):
                if number + skip <= last:
                    points = [*map(here, range(number + 1)), *map(there, range(number + skip, last + 1))]
                    steps = [self._step(before, after) for before, after in itertools.pairwise(points)]
                    if None not in steps:
                        found.append(tuple(step for step in steps if step is not None))
        if not found:
            raise self._refusal(here(0), there(last))
        return min(found, key=lambda steps: (total_bytes(steps), len(steps)))

    def _reordered(self, source: Sharding, target: Sharding) -> Chain:
        """To other devices, or to an order that is no transposition of digits: as if there were none, and a Permute."""
        order = replace(target, mesh=Mesh(target.mesh.axes, source.mesh.device_ids or tuple(range(source.mesh.size))))
        steps = self.chain(source, order)[0]
        points = [source, *(step.after for step in steps)]

        def there(number: int) -> Sharding:
            mesh = Mesh(points[number].mesh.axes, target.mesh.device_ids or tuple(range(target.mesh.size)))
            return target if number == len(steps) else replace(points[number], mesh=mesh)

        return self._turned(len(steps), points.__getitem__, there)

    def _parted(self, source: Sharding, target: Sharding) -> Chain:
        """Between digits that no split of the devices holds together: those of one side are gathered first."""
        chains = []
        for side, other in ((source, target), (target, source)):
            clear = _without_conflicts(side, other)
            if clear is not None:
                chains.append(self._through([source, clear, target]))
        if not chains:
            return self._gathered(source, target)
        return min(chains, key=lambda steps: (total_bytes(steps), len(steps)))

    def _gathered(self, source: Sharding, target: Sharding) -> Chain:
        """The plainest chain: all is gathered, then sliced."""
        none = (DimSharding(),) * len(self.shape)
        whole = replace(source, dims=none, replicated=())
        kept = target.unreduced if source.mesh == target.mesh else ()
        reduced = replace(whole, unreduced=kept) if kept or not target.unreduced else whole
        points = [source, whole, reduced, target]
        steps = [
            self._step(before, after) or _raise(self._refusal(source, target))
            for before, after in itertools.pairwise(points)
            if before != after
        ]
        return tuple(steps)


def _raise(error: ReshardError) -> Step:
    raise error


def _without_conflicts(side: Sharding, other: Sharding) -> Sharding | None:
    """One side without the axes that no split holds together with those of the other; None if all fit."""
    ends = other.layout.used.cuts

    def fits(digit: Digit) -> bool:
        return digit.size == 1 or all(nest(pair) for pair in itertools.product((digit.stride, digit.end), ends))

    dims = tuple(
        replace(dim, axes=tuple(axis for axis in dim.axes if fits(side.mesh.digit_of(axis)))) for dim in side.dims
    )
    return None if dims == side.dims else replace(side, dims=dims, replicated=())


def _solve(
    frame: Frame, shape: tuple[int, ...], budget: int
) -> tuple[list[tuple[Entries, frozenset[int]]], bool] | None:
    """The states from source to target, each with what is partial there, and whether none are cheaper.

    None where the search would be too large.
    """
    source, target = frame.source, frame.target
    kept = frame.source_unreduced & frame.target_unreduced
    fixed = [
        dim for dim, size in enumerate(shape) if size % _parts(frame, source[dim]) or size % _parts(frame, target[dim])
    ]
    locked = kept | {entry for dim in fixed for entry in source[dim]}
    free = [dim for dim in range(len(shape)) if dim not in fixed]
    if not free:
        return None
    digits = [number for number in range(len(frame.digits)) if number not in locked]
    used = {entry for dims in (source, target) for dim in dims for entry in dim} | frame.source_unreduced
    proved = True
    if node_count(_classes(frame, digits), len(free)) > NODES:
        digits, proved = [number for number in digits if number in used], False
    classes = _classes(frame, digits)
    if node_count(classes, len(free)) > NODES:
        return None
    numbers = {digit: number for number, digit in enumerate(digits)}
    sizes = [size for size, _ in classes]
    pending = frame.source_unreduced - kept
    ends = [tuple(tuple(numbers[entry] for entry in dims[dim]) for dim in free) for dims in (source, target)]
    most = prod(size**count for size, count in classes)
    found, best = _search(
        frame.digits.size,
        classes,
        tuple(sizes.index(frame.digits[digit].size) for digit in digits),
        ends[0],
        ends[1],
        tuple(gcd(shape[dim], most) for dim in free),  # shapes that the same parts divide are searched once
        sum(1 << numbers[digit] for digit in pending),
        budget,
    )
    if not found:
        return None
    states = []
    for state, partial in found:
        dims = list(source)
        for dim, entries in zip(free, state, strict=True):
            dims[dim] = tuple(digits[entry] for entry in entries)
        states.append((tuple(dims), kept | pending if partial else kept))
    return states, proved and best


@lru_cache(CACHED)
def _search(
    devices: int,
    classes: tuple[tuple[int, int], ...],
    digit_classes: tuple[int, ...],
    source: State,
    target: State,
    shape: tuple[int, ...],
    pending: int,
    budget: int,
) -> tuple[list[tuple[State, bool]], bool]:
    """What `search` finds, for digits and dims that have numbers."""
    graph = weak_graph(devices, classes, len(shape))
    return search(Task(graph, digit_classes, source, target, shape, pending), budget)


def _parts(frame: Frame, entries: tuple[int, ...]) -> int:
    return prod(frame.digits[entry].size for entry in entries)


def _classes(frame: Frame, digits: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The sizes of the digits, ascending, with how many there are of each."""
    sizes = [frame.digits[digit].size for digit in digits]
    return tuple((size, sizes.count(size)) for size in sorted(set(sizes)))
