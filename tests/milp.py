"""The best placement of a small program, as a 0/1 program that HiGHS solves: slow, plain, written apart.

A value is in a *state*: for every axis of the mesh the dim that it cuts, or `FREE`, or `PARTIAL` where devices along it
hold summands.
Axes of one dim cut it in the order of the mesh, evenly; there are no parts of axes.
An operation has a *layout*: for every axis the label that it cuts, or `FREE`, or "wait n", under which operand n (of a
sum of terms all operands) is partial along it; along a label that the result lacks the result comes out partial.
A layout makes the result in one state and needs each operand in one.

A value is moved from the state in which it is made to those in which it is needed, also from one of these to another or
by way of a third, and no move is made twice.
What is minimised is the received bytes of the busiest device of every move, added up, plus the work of a device over
`WORK_PER_BYTE`.

The answer is the best of this file's own space only: a program that also uses parts of axes, or other orders of them,
may do better.

By hand, on x=2: `[x, .]` to `[., x]` of 4 x 4 elements of 4 bytes: a device needs 8 elements and has 4 of them.

>>> moves = Moves((2,), (4, 4))
>>> moves.states
[(0,), (1,), (-1,), (-2,)]
>>> (moves.prices * 4).tolist()
[[0.0, 16.0, 32.0, inf], [16.0, 0.0, 32.0, inf], [0.0, 0.0, 0.0, inf], [32.0, 32.0, 64.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import permutations, product
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

FREE, PARTIAL = -1, -2
WORK_PER_BYTE = 2000
State = tuple[int, ...]
"""Per axis of the mesh a dim, `FREE` or `PARTIAL`."""


class Step(NamedTuple):
    """An operation: one letter per dim of each operand and of the result."""

    kind: str
    """`product`: multiplies, and sums over letters that the result lacks; `terms`: adds or subtracts; `each`: any
    other function of elements; `sum`, `max`: of one operand, over letters that it lacks; `take`: rows of the first
    operand, by its first letter, that the second names."""
    letters: tuple[str, ...]
    """Of the operands, and last of the result."""
    operands: tuple[str, ...]
    result: str

    @property
    def summed(self) -> frozenset[str]:
        """The letters that the result lacks; where they are cut it is partial."""
        return frozenset("".join(self.letters[:-1])) - frozenset(self.letters[-1])

    @property
    def counted(self) -> tuple[frozenset[str], int]:
        """The letters over which a device loops, and the operations that it does there."""
        if self.kind in ("sum", "max"):
            return frozenset(self.letters[0]), 1
        if self.kind == "product":
            return frozenset("".join(self.letters)), len(self.operands) - 1 + bool(self.summed)
        return frozenset(self.letters[-1]), 1

    def waits(self, maxima: frozenset[str]) -> list[tuple[int, ...]]:
        """The operands that may be partial together; `maxima` are values that are so as maxima."""
        if self.kind == "max":
            return [(0,)] if self.operands[0] in maxima else []
        sets = {
            "product": [(n,) for n in range(len(self.operands))],
            "terms": [tuple(range(len(self.operands)))],
            "sum": [(0,)],
            "take": [(0,)],
            "each": [],
        }[self.kind]
        return [operands for operands in sets if not maxima & {self.operands[n] for n in operands}]


@dataclass
class Description:
    """A program as this file sees it."""

    axes: tuple[int, ...]
    """The sizes of the mesh."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of all values."""
    itemsizes: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, State] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    outputs: list[tuple[str, State | None]] = field(default_factory=list)
    """What is given back, and how; None where any state will do that is not partial."""

    def sizes(self, step: Step) -> dict[str, int]:
        """Of the letters of an operation."""
        values = (*step.operands, step.result)
        return {
            letter: size
            for letters, value in zip(step.letters, values, strict=True)
            for letter, size in zip(letters, self.shapes[value], strict=True)
        }

    def work(self, step: Step, cut: Mapping[str, int] | None = None) -> int:
        """Of a device where letters are cut into so many parts; else of one device alone."""
        letters, operations = step.counted
        sizes = self.sizes(step)
        return operations * prod(sizes[letter] // (cut or {}).get(letter, 1) for letter in letters)

    @property
    def even_share(self) -> float:
        """The work of a device where every operation is cut over all."""
        return sum(self.work(step) for step in self.steps) / prod(self.axes)


class Answer(NamedTuple):
    """What the solver says."""

    cost: float
    """Of the best placement that it has; infinite where it has none."""
    bound: float
    """No placement of the space costs less."""
    received_bytes: float
    work: float
    at_most: float
    """What it was given as reached."""
    layouts: dict[str, tuple[State, ...]]
    """Per result of an operation the states that its operands are needed in, and last the one in which it is made."""

    @property
    def is_optimal(self) -> bool:
        """Whether there is no better one, nor one better than what was given."""
        return min(self.cost, self.at_most) <= self.bound * (1 + 1e-5) + 1e-3


class Moves:
    """The states of a tensor, and the elements that the busiest device receives from each to each."""

    def __init__(self, axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.axes, self.shape = axes, shape
        self.states = [
            state for state in product((*range(len(shape)), FREE, PARTIAL), repeat=len(axes)) if self._divides(state)
        ]
        self.number = {state: n for n, state in enumerate(self.states)}
        self.places = np.array(list(product(*map(range, axes))))

    def _divides(self, state: State) -> bool:
        parts = [prod(self.axes[n] for n, at in enumerate(state) if at == dim) for dim in range(len(self.shape))]
        return all(size % count == 0 for size, count in zip(self.shape, parts, strict=True))

    def parts(self, state: State, where: int) -> int:
        """The devices along the axes that are there: on a dim, free, or partial."""
        return prod(self.axes[n] for n, at in enumerate(state) if at == where)

    def tile(self, state: State) -> int:
        """The elements of a device."""
        return prod(size // self.parts(state, dim) for dim, size in enumerate(self.shape))

    def box(self, dims: Sequence[Sequence[int]]) -> NDArray[Any]:
        """Per device and dim the first index and the one past the last, where these axes cut the dims."""
        ends = np.zeros((len(self.places), len(self.shape), 2))
        for dim, (size, axes) in enumerate(zip(self.shape, dims, strict=True)):
            number, count = np.zeros(len(self.places)), 1
            for axis in axes:
                number, count = number * self.axes[axis] + self.places[:, axis], count * self.axes[axis]
            ends[:, dim] = np.stack([number, number + 1], axis=1) * (size / count)
        return ends

    def cut(self, state: State) -> list[list[int]]:
        """Per dim its axes, in the order of the mesh."""
        return [[n for n, at in enumerate(state) if at == dim] for dim in range(len(self.shape))]

    @cached_property
    def boxes(self) -> NDArray[Any]:
        """Per state those of the devices."""
        return np.array([self.box(self.cut(state)) for state in self.states])

    def homes(self, state: State) -> Iterator[NDArray[Any]]:
        """The boxes of refinements of a state: free axes cut dims after those that do already."""
        free = [n for n, at in enumerate(state) if at == FREE]
        seen = set()
        for order in permutations(free):
            for dims in product(range(FREE, len(self.shape)), repeat=len(order)):
                cut = self.cut(state)
                for axis, dim in zip(order, dims, strict=True):
                    if dim != FREE:
                        cut[dim].append(axis)
                key = tuple(map(tuple, cut))
                parts = [prod(self.axes[n] for n in axes) for axes in cut]
                even = all(size % count == 0 for size, count in zip(self.shape, parts, strict=True))
                if key not in seen and even:
                    seen.add(key)
                    yield self.box(cut)

    @cached_property
    def prices(self) -> NDArray[Any]:
        """From each state to each, elements; infinite where the target is partial along what the source is not.

        What only moves: a tile less what a device has of it.
        What is summed: each element first at one device, or at several, which get the summands that they do not have;
        these then hand their sums on.
        """
        count = len(self.states)
        partial = [frozenset(n for n, at in enumerate(state) if at == PARTIAL) for state in self.states]
        tiles = np.array([self.tile(state) for state in self.states])
        has = np.stack([_overlap(self.boxes, boxes).min(axis=-1) for boxes in self.boxes], axis=1)
        prices: NDArray[Any] = tiles[None, :] - has
        for target in range(count):
            summed = [n for n in range(count) if partial[n] > partial[target]]
            prices[[n for n in range(count) if not partial[n] >= partial[target]], target] = inf
            if not summed:
                continue
            classes = np.array([prod(self.axes[a] for a in partial[n] - partial[target]) for n in summed])
            best = np.full(len(summed), inf)
            for home in self.homes(self.states[target]):
                part = np.prod(home[0, :, 1] - home[0, :, 0])
                lacking = classes * part - _overlap(self.boxes[summed], home).min(axis=-1)
                best = np.minimum(best, lacking + tiles[target] - part)
            prices[summed, target] = best
        return prices


def _overlap(boxes: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Per device the elements that are in its box of both."""
    low = np.maximum(boxes[..., 0], others[..., 0])
    high = np.minimum(boxes[..., 1], others[..., 1])
    return np.prod(np.maximum(high - low, 0), axis=-1)


moves_of = cache(Moves)


class Layouts:
    """What an operation may make and need, and the least work for each."""

    def __init__(self, description: Description, step: Step, maxima: frozenset[str]) -> None:
        self.step, axes = step, description.axes
        sizes, waits = description.sizes(step), step.waits(maxima)
        every = sorted(sizes)
        self.work: dict[tuple[State, ...], int] = {}
        for places in product((*every, FREE, *range(len(waits))), repeat=len(axes)):
            waiting = {waits[at] for at in places if isinstance(at, int) and at != FREE}
            cut = {letter: prod(axes[n] for n, at in enumerate(places) if at == letter) for letter in every}
            if len(waiting) > 1 or any(sizes[letter] % cut[letter] for letter in every):
                continue
            patient = waiting.pop() if waiting else ()
            states = [
                tuple(
                    self._state(at, term, is_patient=n in patient, is_result=n == len(step.operands)) for at in places
                )
                for n, term in enumerate(step.letters)
            ]
            work, key = description.work(step, cut), tuple(states)
            self.work[key] = min(work, self.work.get(key, work))

    def _state(self, at: str | int, letters: str, is_patient: bool, is_result: bool) -> int:
        if isinstance(at, str):
            return letters.index(at) if at in letters else PARTIAL if is_result and at in self.step.summed else FREE
        return PARTIAL if at != FREE and (is_patient or is_result) else FREE


class _Columns:
    """A 0/1 program under construction."""

    def __init__(self) -> None:
        self.bytes: list[float] = []
        self.work: list[float] = []
        self.whole: list[bool] = []
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def column(self, received: float = 0, work: float = 0, *, whole: bool = False) -> int:
        self.bytes.append(received)
        self.work.append(work)
        self.whole.append(whole)
        return len(self.bytes) - 1

    def row(self, terms: Mapping[int, float] | Sequence[tuple[int, float]], low: float, high: float) -> None:
        items = terms.items() if isinstance(terms, Mapping) else terms
        self.entries += [(len(self.low), column, factor) for column, factor in items]
        self.low.append(low)
        self.high.append(high)

    def solve(self, bytes_per_work: float, cap: float, seconds: float) -> Any:
        if cap < inf:
            self.row(list(enumerate(self.work)), 0, cap)
        rows, columns, factors = zip(*self.entries, strict=True)
        matrix = csr_array((factors, (rows, columns)), shape=(len(self.low), len(self.bytes)))
        goal = np.array(self.bytes) + bytes_per_work * np.array(self.work)
        scale = max(goal.max(), 1.0) / 1000
        result = milp(
            goal / scale,
            integrality=np.array(self.whole, dtype=int),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, self.low, self.high),
            options={"time_limit": seconds, "mip_rel_gap": 1e-6},
        )
        return result, scale


Marginal = dict[State, list[int]]
"""Per state the columns of which one is 1 where a value is made, or needed, in it."""


def best(
    description: Description,
    *,
    bytes_per_work: float = 1 / WORK_PER_BYTE,
    work_cap: float = inf,
    seconds: float = 20.0,
    at_most: float = inf,
) -> Answer:
    """The placement of least received bytes plus work times `bytes_per_work`.

    Args:
        description: of the program.
        bytes_per_work: what an operation counts; 0 for bytes alone.
        work_cap: the most work of a device, as a multiple of the even share.
        seconds: after which the solver gives what it has.
        at_most: a cost that is known to be reached: what costs more by itself is left out, which saves much time.
            Where that leaves no placement the cost is infinite, and `at_most` the bound.
    """
    columns = _Columns()
    maxima = frozenset(step.result for step in description.steps if step.kind == "max")
    made: dict[str, Marginal] = {}
    needed: dict[str, list[Marginal]] = {value: [] for value in description.shapes}
    chosen: dict[str, dict[int, tuple[State, ...]]] = {}
    for value, state in description.inputs.items():
        column = columns.column()
        columns.row({column: 1}, 1, 1)
        made[value] = {state: [column]}
    for step in description.steps:
        marginals: list[Marginal] = [{} for _ in step.letters]
        chosen[step.result] = {}
        for states, work in Layouts(description, step, maxima).work.items():
            if work * bytes_per_work > at_most or work > work_cap * description.even_share:
                continue
            column = columns.column(work=work, whole=True)
            chosen[step.result][column] = states
            for marginal, state in zip(marginals, states, strict=True):
                marginal.setdefault(state, []).append(column)
        columns.row(dict.fromkeys(chosen[step.result], 1.0), 1, 1)
        made[step.result] = marginals.pop()
        for operand, marginal in zip(step.operands, marginals, strict=True):
            needed[operand].append(marginal)
    for value, wanted in description.outputs:
        states = moves_of(description.axes, description.shapes[value]).states
        wholes = [state for state in states if PARTIAL not in state] if wanted is None else [wanted]
        needs: Marginal = {state: [columns.column()] for state in wholes}
        columns.row({column: 1 for numbers in needs.values() for column in numbers}, 1, 1)
        needed[value].append(needs)
    for value, shape in description.shapes.items():
        moves = moves_of(description.axes, shape)
        itemsize = description.itemsizes[value]

        def price(source: State, target: State, moves: Moves = moves, itemsize: int = itemsize) -> float:
            received = float(moves.prices[moves.number[source], moves.number[target]]) * itemsize
            return received if received <= at_most else inf

        _connect(columns, made[value], needed[value], price, moves.states)
    result, scale = columns.solve(bytes_per_work, work_cap * description.even_share, seconds)
    if result.x is None:
        bound = at_most if result.status == 2 else 0.0
        return Answer(inf, bound, inf, inf, at_most, {})
    taken = np.round(result.x, 6)
    received, work = float(taken @ np.array(columns.bytes)), float(taken @ np.array(columns.work))
    layouts = {
        value: next(states for column, states in options.items() if taken[column] > 0.5)
        for value, options in chosen.items()
    }
    bound = result.mip_dual_bound * scale if result.mip_dual_bound is not None else 0.0
    return Answer(received + bytes_per_work * work, bound, received, work, at_most, layouts)


def _connect(
    columns: _Columns,
    made: Marginal,
    needed: Sequence[Marginal],
    price: Callable[[State, State], float],
    states: Sequence[State],
) -> None:
    """The moves of a value, from where it is made to where it is needed.

    For one user a column per pair of states; for several a flow for each of them, along moves that all may use.
    """
    if not needed:
        return
    several = len(needed) > 1
    sources, targets = (states, states) if several else (list(made), list(needed[0]))
    prices = {(source, target): price(source, target) for source in sources for target in targets}
    pairs = {(s, t): received for (s, t), received in prices.items() if received < inf and not (several and s == t)}
    shared = {pair: columns.column(received, whole=True) for pair, received in pairs.items() if several and received}
    after = 0 if several else 1  # moves end where the next begin, or where nothing follows
    for marginal in needed:
        moved = {pair: columns.column(0.0 if several else received) for pair, received in pairs.items()}
        rows: dict[tuple[int, State], list[tuple[int, float]]] = {}
        for side, flows in enumerate((made, marginal)):
            for state, numbers in flows.items():
                rows.setdefault((side * after, state), []).extend((column, 1.0 - 2 * side) for column in numbers)
        for (source, target), column in moved.items():
            rows.setdefault((0, source), []).append((column, -1.0))
            rows.setdefault((after, target), []).append((column, 1.0))
        for terms in rows.values():
            columns.row(terms, 0, 0)
        for pair, column in shared.items():
            columns.row([(column, 1), (moved[pair], -1)], 0, inf)
