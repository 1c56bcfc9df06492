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
>>> ends = Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "y", "x")
>>> for step in one_axis_chain(*ends, (4, 4), "int8", order="document"):
...     print(step.kind, step.after.text())
AllGather [{"x"}, {}]
AllToAll [{}, {"x"}]
Slice [{"y"}, {"x"}]
>>> [step.kind for step in one_axis_chain(*ends, (4, 4), "int8")]
['AllToAll', 'Permute', 'AllToAll']
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from reshard.axis import Axis, aligned, merged
from reshard.chains import Chain, shortest_chain
from reshard.collectives.states import Tables, Task
from reshard.collectives.weak import FAR, NODES, STEP_LIMIT, node_count, weak_graph
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.sharding import DimSharding, Sharding, becomes_unreduced, checked_shape, with_mesh
from reshard.steps import Step, step_between

Dims = tuple[tuple[int, ...], ...]
"""Per dim its axes, major to minor, by number."""
ORDERS = ("cheapest", "document")
BUDGET = 20_000
"""How many states are looked at before the document's order is taken."""


@dataclass(frozen=True)
class Problem:
    """Axes by number, and where they are and should be."""

    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]
    source: Dims
    target: Dims
    shape: tuple[int, ...]

    def parts(self, axes: Sequence[int]) -> int:
        """Into how many parts axes cut a dim."""
        return prod(self.sizes[axis] for axis in axes)

    def is_even(self, dims: Dims) -> bool:
        """Whether all tiles have one shape."""
        return all(size % self.parts(axes) == 0 for size, axes in zip(self.shape, dims, strict=True))


def one_axis_chain(
    source: Sharding, target: Sharding, shape: Sequence[int], dtype: DType | str, *, order: str = "cheapest"
) -> Chain:
    """The chain from source to target that handles one mesh axis at a time.

    Axes are those of the mesh, or the parts of them that both sides respect.
    Partial values that the target does not keep are reduced in one first step, and made in one last.

    Args:
        source: where the tensor is.
        target: where it is wanted, on the same mesh.
        shape: of the whole tensor.
        dtype: its element type.
        order: one of `ORDERS`.

    Raises:
        ReshardError: `bad-argument` for an unknown order; `no-plan` where the meshes differ, where no split of an
            axis has the sub-axes of both sides, or where a step on a dim that its parts do not divide would be no
            collective; and as `Step`.
    """
    if order not in ORDERS:
        raise ReshardError("bad-argument", f"order {order!r} must be one of {', '.join(ORDERS)}")
    sizes, kind = checked_shape(shape), dtype_named(dtype)
    source, target = with_mesh(source, target.mesh), with_mesh(target, source.mesh)
    if source.is_equivalent_to(target, sizes):
        return ()
    if source.mesh != target.mesh:
        raise ReshardError("no-plan", f"one axis at a time leads to no other mesh: {source} -> {target}")
    ends = [source]
    last = target
    if becomes_unreduced(source, target):
        last = shortest_chain(source, target, sizes, kind)[-1].before
    if source.unreduced != last.unreduced:
        ends.append(replace(source, unreduced=last.unreduced, replicated=()))
    start = ends[-1]
    problem = problem_of(start, last, sizes)
    chain = in_order(problem) if order == "document" else cheapest(problem) or in_order(problem)
    ends += [_named(problem, dims, start) for dims in chain[1:]]
    if becomes_unreduced(source, target):
        ends.append(target)
    elif len(ends) > 1:
        ends[-1] = target
    return tuple(_step(before, after, sizes, kind) for before, after in itertools.pairwise(ends))


def problem_of(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> Problem:
    """Source and target over the axes, or parts of axes, that both respect.

    Raises:
        ReshardError: `no-plan` where there are none.
    """
    mesh = source.mesh
    used = [[axis for dim in side.dims for axis in dim.axes] for side in (source, target)]
    whole = [Axis(name) for name, size in mesh.axes if size > 1]
    ours, theirs = aligned(used[0], used[1], mesh.sizes)
    pieces = sorted({*ours, *theirs}, key=lambda axis: (list(mesh.sizes).index(axis.name), axis.start))
    free = [axis for axis in whole if all(axis.name != piece.name for piece in pieces)]
    if any(a.overlaps(b) or not a.can_coexist(b) for a, b in itertools.combinations(pieces, 2)):
        raise ReshardError("no-plan", f"no split of the axes has the parts of both {source.text()} and {target.text()}")
    axes = tuple(piece for piece in (*pieces, *free) if piece.size_in(mesh.sizes[piece.name]) > 1)
    partial = {axis.name for axis in source.unreduced}
    axes = tuple(axis for axis in axes if axis in pieces or axis.name not in partial)

    def numbered(side: Sharding) -> Dims:
        return tuple(
            tuple(number for axis in dim.axes for number, piece in enumerate(axes) if axis.contains(piece))
            for dim in side.dims
        )

    return Problem(
        axes, tuple(axis.size_in(mesh.sizes[axis.name]) for axis in axes), numbered(source), numbered(target), shape
    )


def in_order(problem: Problem) -> list[Dims]:
    """The dims after each step in the document's order, the source first."""
    chain = [problem.source]
    while chain[-1] != problem.target:
        dims = chain[-1]
        rules = (_sliced, _moved, _gathered, _turned, _given_up)
        chain.append(next(after for rule in rules for after in rule(problem, dims)))
    return chain


def _lacks(problem: Problem, dims: Dims, number: int) -> int | None:
    """The axis that a dim lacks next; None where it is finished or has one that is not in place."""
    have, want = dims[number], problem.target[number]
    return want[len(have)] if have == want[: len(have)] and len(have) < len(want) else None


def _sliced(problem: Problem, dims: Dims) -> Iterator[Dims]:
    held = {axis for axes in dims for axis in axes}
    for number, axes in enumerate(dims):
        axis = _lacks(problem, dims, number)
        if axis is not None and axis not in held:
            yield _with(dims, number, (*axes, axis))


def _moved(problem: Problem, dims: Dims) -> Iterator[Dims]:
    for number, axes in enumerate(dims):
        for other, more in enumerate(dims):
            if axes and other != number and _lacks(problem, dims, other) == axes[-1]:
                yield _with(_with(dims, number, axes[:-1]), other, (*more, axes[-1]))


def _gathered(problem: Problem, dims: Dims) -> Iterator[Dims]:
    wanted = {axis for axes in problem.target for axis in axes}
    for number, axes in enumerate(dims):
        if axes and axes[-1] not in wanted:
            yield _with(dims, number, axes[:-1])


def _turned(problem: Problem, dims: Dims) -> Iterator[Dims]:
    """Axes that stay are major, in their order; then those that move, the first to arrive minor-most; then the rest."""
    homes = {axis: (number, place) for number, axes in enumerate(problem.target) for place, axis in enumerate(axes)}
    for number, axes in enumerate(dims):
        ranks = []
        for axis in axes:
            home, place = homes.get(axis, (None, 0))
            ranks.append((0, place) if home == number else (2, 0) if home is None else (1, -place))
        for place in range(len(axes) - 1):
            if ranks[place] > ranks[place + 1]:
                yield _with(dims, number, _swapped(axes, place))


def _given_up(problem: Problem, dims: Dims) -> Iterator[Dims]:
    for number in reversed(range(len(dims))):
        if dims[number] != problem.target[number][: len(dims[number])]:
            yield _with(dims, number, dims[number][:-1])


def cheapest(problem: Problem) -> list[Dims]:
    """The dims after each step of the cheapest chain, the source first; none where the budget does not reach."""
    costs = _Costs(problem)
    heap: list[tuple[int, int, Dims]] = [(costs.ahead(problem.source), 0, problem.source)]
    came: dict[Dims, tuple[int, Dims]] = {problem.source: (0, problem.source)}
    closed: set[Dims] = set()
    while heap and len(closed) < BUDGET:
        _, minus, dims = heapq.heappop(heap)
        if dims == problem.target:
            chain = [dims]
            while chain[-1] != problem.source:
                chain.append(came[chain[-1]][1])
            return chain[::-1]
        if dims in closed:
            continue
        closed.add(dims)
        for after, cost in costs.steps(dims):
            total = cost - minus
            if total < came.get(after, (FAR, dims))[0]:
                came[after] = (total, dims)
                heapq.heappush(heap, (total + costs.ahead(after), -total, after))
    return []


class _Costs:
    """What the steps of the basis cost, and what is left at the least: in the units of the weak graph."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        counts = tuple((size, problem.sizes.count(size)) for size in sorted(set(problem.sizes)))
        classes = tuple([size for size, _ in counts].index(size) for size in problem.sizes)
        self.devices = prod(problem.sizes)
        even = problem.is_even(problem.source) and problem.is_even(problem.target)
        self.tables: Tables | None = None
        if even and node_count(counts, len(problem.shape)) <= NODES:
            graph = weak_graph(self.devices, counts, len(problem.shape))
            self.tables = Tables(Task(graph, classes, problem.source, problem.target, problem.shape))

    def ahead(self, dims: Dims) -> int:
        """What no chain from here to the target costs less than."""
        if self.tables is None:
            return 0
        return int(self.tables.ahead[self.tables.task.node_of(dims)])

    def steps(self, dims: Dims) -> Iterator[tuple[Dims, int]]:
        """What one step makes of the dims, and what it costs."""
        problem = self.problem
        tile = self.devices**2 // prod(map(problem.parts, dims))
        held = {axis for axes in dims for axis in axes}
        free = [axis for axis in range(len(problem.axes)) if axis not in held]
        for number, axes in enumerate(dims):
            for axis in free:
                after = _with(dims, number, (*axes, axis))
                if problem.is_even(after) or after[number] == problem.target[number]:
                    yield after, 1
            if not axes:
                continue
            size = problem.sizes[axes[-1]]
            shorter = _with(dims, number, axes[:-1])
            yield shorter, tile * (size - 1) * STEP_LIMIT + 1
            for other, more in enumerate(dims):
                after = _with(shorter, other, (*more, axes[-1]))
                if other != number and (problem.is_even(after) or after[other] == problem.target[other]):
                    yield after, (tile - tile // size) * STEP_LIMIT + 1
            for place in range(len(axes) - 1):
                first, second = (problem.sizes[axis] for axis in axes[place : place + 2])
                kept = gcd(first - 1, second - 1) + 1  # blocks whose number is the same either way
                cost = tile - tile * kept // (first * second)
                yield _with(dims, number, _swapped(axes, place)), cost * STEP_LIMIT + 1


def _with(dims: Dims, number: int, axes: tuple[int, ...]) -> Dims:
    return (*dims[:number], axes, *dims[number + 1 :])


def _swapped(axes: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*axes[:place], axes[place + 1], axes[place], *axes[place + 2 :])


def _named(problem: Problem, dims: Dims, like: Sharding) -> Sharding:
    """The sharding whose dims are cut so."""
    sizes = like.mesh.sizes
    named = tuple(DimSharding(merged([problem.axes[axis] for axis in axes], sizes)) for axes in dims)
    return replace(like, dims=named, replicated=())


def _step(before: Sharding, after: Sharding, shape: tuple[int, ...], dtype: DType) -> Step:
    step = step_between(before, after, shape, dtype)
    if step.kind == "Exchange":
        raise ReshardError(
            "no-plan", f"no one collective leads from {before.text()} to {after.text()} for shape {shape}"
        )
    return step
