"""The basis of the MLIR document: resharding with one mesh axis at a time.

    Slice       one free axis is appended to a dim                      [[]] -> [[1]]
    AllGather   the minor-most axis of a dim leaves it                  [[0, 1]] -> [[0]]
    Permute     two axes side by side in a dim change places            [[0, 1]] -> [[1, 0]]
    AllToAll    the minor-most axis of a dim goes to the end of another [[0], []] -> [[], [0]]

The document also lists `[[0, 1]] -> [[1]]` as a gather; the tiles that this joins do not lie side by side, so it is
two steps here, as in its own later example: `[[0, 1]] -> [[1, 0]] -> [[1]]`.

**Two orders.** `cheapest` is the chain that receives least in all, then the one with the fewest steps, found by A*
with distances of the weak graph.
`document` repeats the first of these rules that applies, and so gives the document's two worked chains:

    1. a free axis is sliced onto a dim that lacks just it
    2. a minor-most axis goes to a dim that lacks just it
    3. a minor-most axis that the target does not have is gathered
    4. two axes side by side change places where the major one must leave first
    5. nothing fits: the minor-most axis of the last unfinished dim is gathered, to be sliced when its turn comes

By hand, `[{"x"}, {"y"}] -> [{"y"}, {"x"}]`: neither axis finds its dim ready, so y is gathered (5), x moves (2), and
y is sliced (1).

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=2)
>>> reshard = Reshard.of(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "y", "x"), (4, 4), "int8")
>>> for step in one_axis_chain(reshard, order="document"):
...     print(step.kind, step.after.text())
AllGather [{"x"}, {}]
AllToAll [{}, {"x"}]
Slice [{"y"}, {"x"}]
>>> [step.kind for step in one_axis_chain(reshard)]
['AllToAll', 'Permute', 'AllToAll']
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from reshard.axis import Axis, aligned, merged
from reshard.collectives.cheapest_way import cheapest_way
from reshard.collectives.states import DigitLists, SearchTask, Tables
from reshard.collectives.weak import NODES, STEP_LIMIT, node_count
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.problem import Reshard, becomes_unreduced
from reshard.sharding import Sharding
from reshard.steps import Chain, Step, shortest_chain

ORDERS = ("cheapest", "document")
BUDGET = 20_000
"""How many states are looked at before the document's order is taken."""


@dataclass(frozen=True)
class OneAxisTask:
    """Axes by number, and where they are and should be."""

    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]
    source: DigitLists
    target: DigitLists
    shape: tuple[int, ...]

    def parts(self, axes: Sequence[int]) -> int:
        """Into how many parts axes cut a dim."""
        return prod(self.sizes[axis] for axis in axes)

    def is_even(self, dims: DigitLists) -> bool:
        """Whether all tiles have one shape."""
        return all(size % self.parts(axes) == 0 for size, axes in zip(self.shape, dims, strict=True))


def one_axis_chain(reshard: Reshard, *, order: str = "cheapest") -> Chain:
    """The chain from source to target that handles one mesh axis at a time.

    Axes are those of the mesh, or the parts of them that both sides respect.
    Unreduced values that the target does not keep are reduced in one first step, and made in one last.

    Args:
        reshard: what is to be moved, on one mesh.
        order: one of `ORDERS`.

    Raises:
        ReshardError: `bad-argument` for an unknown order; `no-plan` where the meshes differ, where no split of an
            axis has the sub-axes of both sides, or where a step on a dim that its parts do not divide would be no
            collective; and as `Step`.
    """
    if order not in ORDERS:
        raise ReshardError("bad-argument", f"order {order!r} must be one of {', '.join(ORDERS)}")
    source, target, shape = reshard.source, reshard.target, reshard.shape
    if source.is_equivalent_to(target, shape):
        return ()
    if source.is_woven or target.is_woven:
        raise ReshardError("no-plan", f"no collective leads to or from tiles of several boxes or windows: {reshard}")
    if source.mesh != target.mesh:
        raise ReshardError("no-plan", f"one axis at a time leads to no other mesh: {source} -> {target}")
    ends = [source]
    last = target
    if becomes_unreduced(source, target):
        last = shortest_chain(reshard)[-1].before
    if source.unreduced != last.unreduced:
        ends.append(replace(source, unreduced=last.unreduced, replicated=()))
    start = ends[-1]
    task = task_of(start, last, shape)
    chain: list[DigitLists] = []
    if order == "cheapest":  # there is none where the budget does not reach
        ahead = _costs_ahead(task)
        chain, _ = cheapest_way(
            task.source, task.target, lambda dims, _: _steps_from(task, dims), ahead, most_states=BUDGET
        )
    chain = chain or in_order(task)
    ends += [_named(task, dims, start) for dims in chain[1:]]
    if becomes_unreduced(source, target):
        ends.append(target)
    elif len(ends) > 1:
        ends[-1] = target
    steps = [Step(replace(reshard, source=before, target=after)) for before, after in itertools.pairwise(ends)]
    for step in steps:
        if step.kind == "Exchange":
            raise ReshardError(
                "no-plan", f"no one collective leads from {step.before.text()} to {step.after.text()} for shape {shape}"
            )
    return tuple(steps)


def task_of(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> OneAxisTask:
    """Source and target over the axes, or parts of axes, that both respect.

    Raises:
        ReshardError: `no-plan` where there are none.
    """
    mesh = source.mesh
    used = [[axis for dim in side.dims for axis in dim.axes] for side in (source, target)]
    whole = [Axis(name) for name, size in mesh.axes if size > 1]
    pieces = sorted(
        {piece for cut in aligned(used[0], used[1], mesh.sizes) for piece in cut},
        key=lambda axis: (list(mesh.sizes).index(axis.name), axis.start),
    )
    free = [axis for axis in whole if all(axis.name != piece.name for piece in pieces)]
    if any(a.overlaps(b) or not a.can_coexist(b) for a, b in itertools.combinations(pieces, 2)):
        raise ReshardError("no-plan", f"no split of the axes has the parts of both {source.text()} and {target.text()}")
    axes = tuple(piece for piece in (*pieces, *free) if piece.size_in(mesh.sizes[piece.name]) > 1)
    unreduced = {axis.name for axis in source.unreduced}
    axes = tuple(axis for axis in axes if axis in pieces or axis.name not in unreduced)

    def numbered(side: Sharding) -> DigitLists:
        return tuple(
            tuple(number for axis in dim.axes for number, piece in enumerate(axes) if axis.contains(piece))
            for dim in side.dims
        )

    return OneAxisTask(
        axes, tuple(axis.size_in(mesh.sizes[axis.name]) for axis in axes), numbered(source), numbered(target), shape
    )


def in_order(task: OneAxisTask) -> list[DigitLists]:
    """The dims after each step in the document's order, the source first."""
    chain = [task.source]
    while chain[-1] != task.target:
        chain.append(next(_by_rules(task, chain[-1])))
    return chain


def _by_rules(task: OneAxisTask, dims: DigitLists) -> Iterator[DigitLists]:
    """What the rules of the document make of the dims, in their order."""
    homes = {axis: (number, place) for number, axes in enumerate(task.target) for place, axis in enumerate(axes)}
    held = {axis for axes in dims for axis in axes}
    lacking = {  # per dim that has nothing out of place and is not finished, the axis that comes next
        number: wanted[len(axes)]
        for number, (axes, wanted) in enumerate(zip(dims, task.target, strict=True))
        if axes == wanted[: len(axes)] and len(axes) < len(wanted)
    }
    for number, axis in lacking.items():
        if axis not in held:
            yield _with(dims, number, (*dims[number], axis))
    for number, axes in enumerate(dims):
        for goal, axis in lacking.items():
            if axes and goal != number and axis == axes[-1]:
                yield _with(_with(dims, number, axes[:-1]), goal, (*dims[goal], axis))
    for number, axes in enumerate(dims):
        if axes and axes[-1] not in homes:
            yield _with(dims, number, axes[:-1])
    # Axes that stay are major, in their order; then those that move, the first to arrive minor-most; then the rest.
    for number, axes in enumerate(dims):
        ranks = []
        for axis in axes:
            home, place = homes.get(axis, (None, 0))
            ranks.append((0, place) if home == number else (2, 0) if home is None else (1, -place))
        for place in range(len(axes) - 1):
            if ranks[place] > ranks[place + 1]:
                yield _with(dims, number, _swapped(axes, place))
    for number in reversed(range(len(dims))):
        if dims[number] != task.target[number][: len(dims[number])]:
            yield _with(dims, number, dims[number][:-1])


def _costs_ahead(task: OneAxisTask) -> Callable[[DigitLists], int]:
    """What no chain from given dims to the target costs less than, in the units of the weak graph."""
    counts = tuple((size, task.sizes.count(size)) for size in sorted(set(task.sizes)))
    if not (task.is_even(task.source) and task.is_even(task.target)) or node_count(counts, len(task.shape)) > NODES:
        return lambda dims: 0
    classes = tuple([size for size, _ in counts].index(size) for size in task.sizes)
    tables = Tables(SearchTask(prod(task.sizes), counts, classes, task.source, task.target, task.shape))
    return lambda dims: int(tables.ahead[tables.task.node_of(dims)])


def _steps_from(task: OneAxisTask, dims: DigitLists) -> Iterator[tuple[int, DigitLists]]:
    """What each step from the dims costs, in the units of the weak graph, and what it makes of them."""
    tile = prod(task.sizes) ** 2 // prod(map(task.parts, dims))
    held = {axis for axes in dims for axis in axes}
    free = [axis for axis in range(len(task.axes)) if axis not in held]
    for number, axes in enumerate(dims):
        for axis in free:
            after = _with(dims, number, (*axes, axis))
            if task.is_even(after) or after[number] == task.target[number]:
                yield 1, after
        if not axes:
            continue
        size = task.sizes[axes[-1]]
        shorter = _with(dims, number, axes[:-1])
        yield tile * (size - 1) * STEP_LIMIT + 1, shorter
        for goal, goal_axes in enumerate(dims):
            after = _with(shorter, goal, (*goal_axes, axes[-1]))
            if goal != number and (task.is_even(after) or after[goal] == task.target[goal]):
                yield (tile - tile // size) * STEP_LIMIT + 1, after
        for place in range(len(axes) - 1):
            first, second = (task.sizes[axis] for axis in axes[place : place + 2])
            staying = gcd(first - 1, second - 1) + 1  # blocks whose number is the same either way
            received = tile - tile * staying // (first * second)
            yield received * STEP_LIMIT + 1, _with(dims, number, _swapped(axes, place))


def _with(dims: DigitLists, number: int, axes: tuple[int, ...]) -> DigitLists:
    return (*dims[:number], axes, *dims[number + 1 :])


def _swapped(axes: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*axes[:place], axes[place + 1], axes[place], *axes[place + 2 :])


def _named(task: OneAxisTask, dims: DigitLists, like: Sharding) -> Sharding:
    """The sharding whose dims are cut so."""
    sizes = like.mesh.sizes
    named = tuple(DimSharding(merged([task.axes[axis] for axis in axes], sizes)) for axes in dims)
    return replace(like, dims=named, replicated=())
