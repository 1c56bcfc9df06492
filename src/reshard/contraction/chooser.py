"""The chooser: in which layout an operation is computed, of those that its tensors have, and at what price.

The tensors of an operation lie in a few ways, and the cheapest layout is mostly made of these.
Programs, which ask of thousands of operations, take it as the answer, and for an einsum it is where the search among
all layouts begins (`reshard.contraction.best_first`).
Every question is looked at once, and so are the layouts: they depend only on which axes cut which labels, in whatever
tensor.

By hand, `bd,df->bf` on x=2, y=2, with x on b, y on d in both operands and nothing on the result's f: computed as it
lies, the result is unreduced along y, and one all-reduce makes it whole.

>>> from reshard.operations.pattern import Pattern
>>> from reshard.contraction.tasks import dtype_named
>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=2)
>>> product = Calculation.of_einsum(Pattern.of("bd,df->bf"), {"b": 8, "d": 8, "f": 8}, dtype_named("float32"))
>>> ends = Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "y", None)
>>> chosen = Chooser(Goal()).choose(product, ends, Sharding.of(mesh, "x", None))
>>> chosen.layout.shardings[-1].text(), chosen.price.received_bytes
('[{"x"}, {}], unreduced={"y"}', 128)
"""

from __future__ import annotations

from typing import NamedTuple

from reshard.contraction.compute_layout import ComputeLayout
from reshard.contraction.goal import Goal
from reshard.contraction.prices import ROUNDING, Ends, Moved, Price, Prices, local_flops, price_of
from reshard.contraction.rows import Table
from reshard.contraction.targets import targets
from reshard.contraction.tasks import Calculation, Task
from reshard.errors import ReshardError
from reshard.sharding import Sharding


class Chosen(NamedTuple):
    """Where a task is done."""

    layout: ComputeLayout
    target: Sharding
    """Where the result is in the end."""
    price: Price
    is_proved: bool = False
    """Whether no other layout can be cheaper."""


class Ready(NamedTuple):
    """The layouts that the tensors of tasks have which are cut alike."""

    layouts: list[ComputeLayout]
    flops: list[int]
    """Of a device, per layout, on one trip."""
    work: list[float]
    """What these cost."""
    used: list[list[Sharding]]
    """Per term, the shardings that it has in any of them."""
    numbers: list[tuple[int, ...]]
    """Per layout and term, which of these."""


class Place(NamedTuple):
    """A layout by its number, with where its result goes."""

    layout: int
    target: Sharding
    least: float
    """What it costs at the least, or, where costs are not added up, the bytes."""


class Least(NamedTuple):
    """What a reshard takes at the least."""

    busiest: float
    """Cost, or, where costs are not added up, bytes of the device that receives most."""
    total: float
    """Bytes that all devices receive together."""


class Chooser:
    """The layouts of tasks and their prices under one goal.

    Args:
        goal: what is made least.
        is_for_many: whether the tasks are many, as those of a program are.
        by_larger: that of `Prices`.
    """

    def __init__(self, goal: Goal, *, is_for_many: bool = False, by_larger: bool = False) -> None:
        self.goal, self.network = goal, goal.network
        self.prices = Prices(goal, by_smaller=is_for_many, by_larger=by_larger, evenly=is_for_many)
        self._chosen: dict[tuple[object, ...], Chosen] = {}
        self._layouts: dict[tuple[object, ...], Ready] = {}
        self._open: dict[tuple[Sharding, tuple[int, ...]], list[Sharding]] = {}
        self._amounts: dict[tuple[object, ...], list[Least]] = {}

    @property
    def asked(self) -> int:
        """How many questions were answered."""
        return len(self._chosen)

    def choose(
        self,
        calculation: Calculation,
        sources: tuple[Sharding, ...],
        target: Sharding | None,
        trips: tuple[int, ...] | None = None,
    ) -> Chosen:
        """The cheapest of the layouts that the tensors have.

        Args:
            calculation: what is computed.
            sources: where the operands are kept, without open dims.
            target: where the result is kept; None where it may stay as it comes out, on the mesh of the first operand.
            trips: how often each operand is moved where it must be, and last how often the result is made.

        Raises:
            ReshardError: `no-plan` where the operands can be brought to none.
        """
        key = calculation, sources, target, trips
        chosen = self._chosen.get(key)
        if chosen is None:
            mesh = sources[0].mesh if target is None else target.mesh
            chosen = self.first(Task(calculation, mesh, sources, target, True, trips))
            if chosen is None:
                raise self.prices.refusal or ReshardError(
                    "no-plan", f"the operands of {calculation.pattern} cannot be brought to any layout"
                )
            self._chosen[key] = chosen
        return chosen

    def answer(self, task: Task) -> Chosen:
        """As `choose`, of a task."""
        return self.choose(task.calculation, task.sources, task.target, task.trips)

    def keep(self, task: Task, chosen: Chosen) -> None:
        """Answer so from now on."""
        self._chosen[task.calculation, task.sources, task.target, task.trips] = chosen

    def layouts(self, task: Task) -> list[ComputeLayout]:
        """Those that the tensors of a task have."""
        return self._ready(task).layouts

    def first(self, task: Task, *, is_begun: bool = False) -> Chosen | None:
        """The cheapest of the layouts that the tensors of a task have; None where none can be reached.

        Those that can cost least are priced first; of equal ones the first counts, whichever was priced first.

        Args:
            task: what is computed, and from where to where.
            is_begun: whether the first that can be reached will do.
        """
        ready = self._ready(task)
        places = self._places(task, ready)
        best: tuple[Price, int] | None = None
        for number in sorted(range(len(places)), key=lambda number: places[number].least):
            place = places[number]
            layout, flops = ready.layouts[place.layout], ready.flops[place.layout]
            if best is not None:
                dearest = (1 + ROUNDING) * best[0].cost if self.goal.is_sum else best[0].received_bytes
                if place.least > dearest:
                    break
            price = self.price(task, layout, flops, place.target, None if best is None else best[0])
            if price is not None and (best is None or (price, number) < best):
                best = price, number
                if is_begun:
                    break
        if best is None:
            return None
        place = places[best[1]]
        return Chosen(ready.layouts[place.layout], place.target, best[0])

    def _places(self, task: Task, ready: Ready) -> list[Place]:
        """The layouts, with where the result goes, and the seconds or bytes that it takes at the least."""
        calculation, goal, trips = task.calculation, self.goal, task.trip_counts
        least_of_operands = [self._least_of(task, ready, term) for term in range(len(task.sources))]
        results = [
            [
                (
                    target,
                    self._least(Ends(output, target, calculation.shapes[-1], calculation.dtypes[-1]), trips[-1])[0],
                )
                for target in self.targets(task, output)
            ]
            for output in ready.used[-1]
        ]
        devices = None if goal.is_sum else _devices_of(task)
        places = []
        for number, (*operand_numbers, output) in enumerate(ready.numbers):
            operands = [*map(list.__getitem__, least_of_operands, operand_numbers)]
            for target, result in results[output]:
                moves = [*operands, result]
                if goal.is_sum:
                    least = sum(move.busiest for move in moves)
                else:  # no device receives less than the even share of what all do
                    shared = -(-sum(move.total for move in moves) // devices) if devices else 0
                    least = max(shared, *(move.busiest for move in moves))
                places.append(Place(number, target, least + trips[-1] * ready.work[number]))
        return places

    def _least_of(self, task: Task, ready: Ready, term: int) -> list[Least]:
        """What an operand takes at the least to each sharding that it may be used in; kept once all of it is known."""
        trips = task.trip_counts[term]
        key = id(ready), term, task.sources[term], trips
        amounts = self._amounts.get(key)
        if amounts is None:
            kind = task.calculation.shapes[term], task.calculation.dtypes[term]
            bounds = [self._least(Ends(task.sources[term], used, *kind), trips) for used in ready.used[term]]
            amounts = [amount for amount, _ in bounds]
            if all(is_exact for _, is_exact in bounds):
                self._amounts[key] = amounts
        return amounts

    def _least(self, ends: Ends, trips: int) -> tuple[Least, bool]:
        """What a reshard takes at the least, so many times, and whether that is known exactly."""
        moved = self.prices.known(ends)
        if moved is None:
            received = self.prices.least_bytes(ends)
            amount = received * self.goal.per_byte
            return Least(amount * trips, received * trips), False
        amount = moved.price.cost if self.goal.is_sum else moved.price.received_bytes
        return Least(amount * trips, moved.price.total_received_bytes * trips), True

    def targets(self, task: Task, output: Sharding) -> list[Sharding]:
        """Where a result may go that comes out so."""
        if task.target is not None:
            return [task.target]
        if task.may_stay_unreduced:
            return [output]
        key = output, task.calculation.shapes[-1]
        if key not in self._open:
            self._open[key] = targets(*key, is_sum=self.goal.is_sum)
        return self._open[key]

    def flops(self, task: Task, layout: ComputeLayout) -> int:
        """Operations of the busiest device on one trip."""
        return local_flops(task.calculation.stages, layout.largest_parts(task.sizes))

    def work(self, task: Task, layout: ComputeLayout, flops: int) -> float:
        """What the operations of a device cost on one trip."""
        calculation, touched = task.calculation, 0
        if self.goal.per_touched_byte:
            touched = local_flops(calculation.touched, layout.largest_parts(task.sizes))
        return self.goal.of_work(flops, touched, calculation.dtype)

    def price(
        self, task: Task, layout: ComputeLayout, flops: int, target: Sharding, limit: Price | None = None
    ) -> Price | None:
        """What a task costs in a layout; None where that cannot be, or costs more than a limit."""
        trips = task.trip_counts
        work = self.work(task, layout, flops) * trips[-1]
        cost = work
        dearest = None if limit is None else (1 + ROUNDING) * limit.cost
        moved: list[Moved] = []
        for number, ends in enumerate(ends_of(task, layout, target)):
            move = self.prices.moved(*ends)
            cost += move.price.cost * trips[number]
            if (
                limit is not None
                and dearest is not None
                and (
                    cost > dearest
                    or (not self.goal.is_sum and move.price.received_bytes * trips[number] > limit.received_bytes)
                )
            ):
                return None
            moved.append(move)
        if cost == float("inf"):
            return None
        return price_of(moved, trips, flops * trips[-1], work)

    def _ready(self, task: Task) -> Ready:
        """The layouts that the tensors have."""
        cuts = frozenset(
            (group, dim.axes)
            for term, end in zip(task.pattern.terms, task.ends, strict=True)
            if end is not None
            for group, dim in zip(term, end.dims, strict=False)
        )
        unreduced = tuple(
            (wait, *(None if (end := task.ends[operand]) is None else end.unreduced for operand in wait.operands))
            for wait in task.waits
        )
        key = task.calculation, task.mesh, task.uneven, cuts, unreduced
        ready = self._layouts.get(key)
        if ready is None:
            table = Table(task, is_led=True)
            layouts = [layout for row in table.rows.tolist() for layout in table.layouts(row)]
            used = [list(dict.fromkeys(term)) for term in zip(*(layout.shardings for layout in layouts), strict=True)]
            numbers = [tuple(map(list.index, used, layout.shardings)) for layout in layouts]
            flops = [self.flops(task, layout) for layout in layouts]
            work = [self.work(task, *pair) for pair in zip(layouts, flops, strict=True)]
            ready = self._layouts[key] = Ready(layouts, flops, work, used, numbers)
        return ready


def _devices_of(task: Task) -> int | None:
    """How many devices a task has, where all its tensors are on the same."""
    meshes = {(end.mesh.size, end.mesh.device_ids) for end in (*task.sources, task.target) if end is not None}
    return task.mesh.size if meshes <= {(task.mesh.size, task.mesh.device_ids)} else None


def ends_of(task: Task, layout: ComputeLayout, target: Sharding) -> list[Ends]:
    """Per term, from where to where a layout takes it."""
    calculation = task.calculation
    *operands, output = layout.shardings
    return list(map(Ends, (*task.sources, output), (*operands, target), calculation.shapes, calculation.dtypes))
