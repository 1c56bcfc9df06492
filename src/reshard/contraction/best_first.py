"""The cheapest compute layouts: best first, by bounds that no price goes below.

A task is first priced in the layouts that its tensors have; what that costs is the limit for all others.
On a network, where a price takes long to find, only the one of these that can cost least is priced at first.
The exact price of a row is found with the planner's own plans, one reshard after the other, and always in the row
that is expected to cost least; until no bound is lower than the best price.
On a network, where a price takes long to find and bounds are loose, and where rows are many, a search in haste ends
when much work was in vain, and says whether the bounds of other rows leave anything open.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.contraction.bounds import Bounds
from reshard.contraction.chooser import Chooser, Chosen, ends_of
from reshard.contraction.compute_layout import ComputeLayout
from reshard.contraction.prices import Effort, Ends, Moved, Price, busiest, price_of
from reshard.contraction.ranking import SLACK, Ranking
from reshard.contraction.rows import Table
from reshard.contraction.tasks import Task
from reshard.errors import ReshardError
from reshard.sharding import Sharding

WORK_IN_VAIN = 25
"""After how much work that found nothing better a search in haste ends, though bounds do not rule out the rest."""
BEFORE_NEAR = 12
"""After how much work in vain the rows near the best are looked at."""
LOWEST = 4
"""How many rows with the lowest bounds count as near."""
TIMES_ON_NETWORK = 6
"""How many times that on a network, where a plan counts more."""
PATIENCE = 30
"""How many times as much again where all of a price is expected to be saved; by the square of the part that is."""
PROVED_ROWS = 1024
"""Up to how many rows a search without a network goes on until no other can be better."""
PROVED_ROWS_ON_NETWORK = 32
"""Up to how many it does so on a network, where a price takes long to find."""


class Candidate(NamedTuple):
    """One order of the pieces of a row."""

    row: int
    """Its number in the table."""
    layout: ComputeLayout
    target: Sharding
    """Where the result goes."""


class Priced(NamedTuple):
    """What came of pricing a layout."""

    is_known: bool
    """Whether it is known what it costs, or that it costs more than the limit."""
    price: Price | None = None
    """That, if it is below the limit."""
    is_own: bool = True
    """Whether no reshard of it was priced by another that is alike."""


class Search:
    """All compute layouts of a task and their prices."""

    def __init__(self, task: Task, chooser: Chooser, effort: Effort) -> None:
        self.task = task
        self.chooser = chooser
        self.effort = effort
        self.prices = chooser.prices
        self.goal, network = chooser.goal, chooser.network
        self.table = Table(task, [level.stride for level in network.levels] if network else ())
        self.bounds = Bounds(self.table)
        self._costs = np.zeros((len(task.calculation.shapes), len(self.table.rows)))
        self._alike = self._costs
        if network is not None:
            self._costs, self._alike = self.bounds.seconds(network)
        elif self.goal.is_sum:
            self._costs = self._alike = self.bounds.received
        self._arithmetic = self.bounds.work(self.goal)
        self._lowest = self._lower_bounds()

    def _lower_bounds(self) -> list[NDArray[np.float64]]:
        """The bounds of every component of a price."""
        bounds = self.bounds
        received = bounds.received.sum(axis=0)
        total = np.where(bounds.is_even, received * self.task.mesh.size, received)
        cost = self._costs.sum(axis=0) + self._arithmetic
        return [cost * SLACK, np.ceil(received * SLACK), np.ceil(total * SLACK), bounds.steps, bounds.flops]

    def work_in_vain(self, prove: bool) -> int | None:
        """After how much work in vain to end: none where all is to be proved, or soon is."""
        most = PROVED_ROWS if self.goal.network is None else PROVED_ROWS_ON_NETWORK
        return None if prove or len(self.table.rows) <= most else self.hasty()

    def hasty(self, work: int = WORK_IN_VAIN) -> int:
        """After how much work in vain to end in haste, from how much without a network."""
        return work if self.goal.network is None else work * TIMES_ON_NETWORK

    def best(self, first: Chosen | None, keep: int = 1, work_in_vain: int | None = None) -> list[Chosen]:
        """The cheapest layouts of distinct rows, best first.

        Args:
            first: what is known already.
            keep: how many.
            work_in_vain: after how much work that found none better to stop, though a better one may come; never
                unless given. What is chosen is then marked as not proved.

        Raises:
            ReshardError: of the planner, where no row has a plan.
        """
        chosen: dict[int, Chosen] = {}
        candidates: dict[int, list[Candidate]] = {}
        ranking = Ranking(self._lowest, self._costs, self._alike, self._arithmetic)
        limit, is_proved, is_exact = None, True, True
        if first is not None:
            chosen[self.table.row_of(first.layout)] = first
            if keep == 1:
                limit = first.price
                ranking.limit_to(limit)
        useful = self.effort.spent
        looks_near = first is not None and keep == 1 and self.goal.network is not None
        while (best := ranking.next()) is not None:
            row, rival = best
            if work_in_vain is not None:
                most = work_in_vain * (1 + PATIENCE * ranking.gain() ** 2)
                if self.effort.is_over or self.effort.spent - useful > most:
                    near = None
                    if looks_near and not self.effort.is_over:
                        near = ranking.next_of(self._near(next(iter(chosen))))
                    if near is None and limit is not None:
                        is_proved = self.goal.is_sum and ranking.least() >= limit.cost * SLACK
                        break
                    row = row if near is None else near
                    rival = np.inf  # on to a price, whatever others are expected to take
            if row not in candidates:
                candidates[row] = self._candidates(row)
            candidate = candidates[row][0]
            is_known, price, is_own = self._price_for(
                candidate, limit, ranking, rival, is_hasty=work_in_vain is not None
            )
            if is_known:
                del candidates[row][0]
                ranking.put_back(row)
                is_exact &= is_own
            if not candidates[row]:
                ranking.drop(row)
            if price is None or (row in chosen and price >= chosen[row].price):
                continue
            chosen[row] = Chosen(candidate.layout, candidate.target, price)
            chosen = dict(sorted(chosen.items(), key=lambda item: item[1].price)[:keep])
            useful = self.effort.spent
            if len(chosen) == keep:
                limit = max(choice.price for choice in chosen.values())
                ranking.limit_to(limit)
        if not chosen:
            raise self.prices.refusal or ReshardError("no-plan", f"no compute layout is known for {self.task.pattern}")
        return [choice._replace(is_proved=is_proved and is_exact) for choice in chosen.values()]

    def _near(self, row: int) -> NDArray[np.bool_]:
        """The rows near one: where one piece does another thing, or one axis as a whole; and those that always are."""
        rows = self.table.rows
        near: NDArray[np.bool_] = np.asarray(~rows.any(axis=1))
        near[np.argsort(self._lowest[0], kind="stable")[:LOWEST]] = True
        near[[self.table.row_of(layout) for layout in self.chooser.layouts(self.task)]] = True
        if row < 0:
            return near
        differs = rows != rows[row]
        names = [piece.name for piece in self.table.pieces]
        near |= differs.sum(axis=1) <= 1
        for name in dict.fromkeys(names):
            own = np.array([name == other for other in names])
            does_one_thing = (rows[:, own] == rows[:, own][:, :1]).all(axis=1)
            near |= does_one_thing & ~differs[:, ~own].any(axis=1)
        return near

    def _candidates(self, row: int) -> list[Candidate]:
        """The orders of the pieces of a row, with where the result goes; the leanest, which lacks least, first."""
        layouts = list(self.table.layouts(self.table.rows[row].tolist()))
        if len(layouts) > 1:
            layouts.sort(key=self._elements_of)
        return [
            Candidate(row, layout, target)
            for layout in layouts
            for target in self.chooser.targets(self.task, layout.shardings[-1])
        ]

    def _elements_of(self, layout: ComputeLayout) -> tuple[int, int]:
        """Elements that lie elsewhere than a layout has them: of the orders of a row, the leanest has the fewest.

        First those of the busiest devices: of `[{"y", "x"}]` into `[{"z", "x"}]` or `[{"x", "z"}]` one lacks its whole
        tile both ways, but of the first half of the devices nothing.
        """
        ends = ends_of(self.task, layout, self.chooser.targets(self.task, layout.shardings[-1])[0])
        lacking = [self.prices.missing(source, target, shape) for source, target, shape, _ in ends]
        return sum(each.busiest for each in lacking), sum(each.total for each in lacking)

    def _price_for(
        self, candidate: Candidate, limit: Price | None, ranking: Ranking, rival: float, *, is_hasty: bool
    ) -> Priced:
        """What a layout costs, if that is known and below the limit.

        Its reshards are priced one by one, in the order of `_terms`, at least one more, until another row is expected
        to cost less; in haste by others that are alike, until the price is below the limit.
        """
        row, layout, target = candidate
        reshards, trips = ends_of(self.task, layout, target), self.task.trip_counts
        self.effort.spent += 1  # a look, however soon it ends
        if self._is_hopeless(reshards, row, limit):
            return Priced(True)
        least, expected, is_new = self._least(row), ranking.expected(row), False
        moved: dict[int, Moved] = {}
        is_own = True
        for term in self._terms(row, reshards, ranking):
            ends, bound = reshards[term], float(self._costs[term, row])
            if is_new and expected > rival:
                return Priced(False)
            if limit is not None and self.goal.is_sum and expected >= limit.cost and self.prices.known(ends) is None:
                more = self.prices.least_seconds(ends) * trips[term] - bound
                if self._is_beyond(least + max(more, 0.0), moved, limit):
                    self.effort.ask(ends)  # it counts as much, and so a search ends where it would
                    return Priced(True, None, is_own)
            is_new |= self.effort.ask(ends)
            moved[term] = self.prices.moved_about(ends) if is_hasty else self.prices.moved(*ends)
            is_own &= self.prices.is_own(ends)
            cost = moved[term].price.cost * trips[term]
            if cost == np.inf:
                return Priced(True, None, is_own)
            least += cost - bound
            expected += cost - ranking.expected_of(term, row)
            ranking.learn(term, row, cost)
            if self._is_beyond(least, moved, limit):
                return Priced(True, None, is_own)
        flops = self.chooser.flops(self.task, layout)
        work = self.chooser.work(self.task, layout, flops)
        operations = flops * trips[-1], work * trips[-1]
        price = price_of([moved[term] for term in range(len(reshards))], trips, *operations)
        if limit is None or price < limit:  # by its own plans too, where others stood in for them
            price = price_of([self.prices.moved(*ends) for ends in reshards], trips, *operations)
            if price.cost < np.inf and (limit is None or price < limit):
                return Priced(True, price, all(map(self.prices.is_own, reshards)))
        return Priced(True, None, is_own)

    def _terms(self, row: int, reshards: list[Ends], ranking: Ranking) -> list[int]:
        """The terms in the order in which their reshards are priced: first those that were asked for already.

        On a network then the operands, of which that first which takes most seconds in all rows that wait and have it
        in common: one price may rule out many.
        """

        def place(term: int) -> tuple[bool, bool, float]:
            if self.goal.network is None or self.effort.has_asked(reshards[term]):
                return not self.effort.has_asked(reshards[term]), False, 0.0
            doing = self.bounds.doing[term]
            count = ranking.count((doing == doing[row]).all(axis=1))
            return True, term == len(reshards) - 1, -count * float(self._costs[term, row])

        return sorted(range(len(reshards)), key=place)

    def _is_hopeless(self, reshards: list[Ends], row: int, limit: Price | None) -> bool:
        """Whether the elements that this order of the axes asks for alone cost more than the limit, whatever way."""
        if limit is None:
            return False
        least = [
            self.prices.least_bytes(ends) * trips for ends, trips in zip(reshards, self.task.trip_counts, strict=True)
        ]
        if not self.goal.is_sum:
            return max(least) > limit.received_bytes
        more = sum(
            max(0.0, received * self.goal.per_byte - float(self._costs[term, row]))
            for term, received in enumerate(least)
            if received
        )
        return (self._least(row) + more) * SLACK > limit.cost

    def _least(self, row: int) -> float:
        """What the whole costs at the least."""
        return float(self._costs[:, row].sum() + self._arithmetic[row])

    def _is_beyond(self, spent: float, moved: dict[int, Moved], limit: Price | None) -> bool:
        """Whether the reshards of some terms alone cost more than the limit."""
        if limit is None:
            return False
        if self.goal.is_sum:
            return spent * SLACK > limit.cost
        trips = self.task.trip_counts
        return busiest((move, trips[term]) for term, move in moved.items()) > limit.received_bytes


def best_of(task: Task, chooser: Chooser, effort: Effort, *, prove: bool = False) -> Chosen:
    """The cheapest layout of all.

    Raises:
        ReshardError: of the planner, where no layout can be reached.
    """
    is_begun = chooser.network is not None and not effort.is_limited  # the others are near, and so are looked at
    first = chooser.first(task, is_begun=is_begun)
    if first is not None and task.target is not None and not chooser.goal.is_sum and first.price.steps == 0:
        return first._replace(is_proved=True)  # there is one layout at most in which everything stays
    search = Search(task, chooser, effort)
    work_in_vain = search.work_in_vain(prove)
    if work_in_vain is not None and chooser.goal.network is not None:
        work_in_vain = search.hasty(BEFORE_NEAR)
    return search.best(first, 1, work_in_vain)[0]
