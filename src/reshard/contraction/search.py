"""The cheapest compute layouts: best first, by bounds that no price goes below.

The exact price of a row of choices is found with the planner's own plans, one reshard after the other, and always in
the row that is expected to cost least; until no bound is lower than the best price.
On a network, where a price takes long to find and bounds are loose, and where rows are many, a search in haste ends
when much work was in vain, and says whether the bounds of other rows leave anything open.
A price is compared component by component: seconds on the network, where one is given, then bytes on the busiest
device, bytes in all, steps, operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reshard.contraction.bounds import Bounds
from reshard.contraction.choices import Problem, Table
from reshard.contraction.einsum_plan import EinsumPlan, Price, busiest
from reshard.contraction.layouts import ComputeLayout
from reshard.contraction.moves import Move, Moves
from reshard.contraction.ranking import Ranking
from reshard.contraction.targets import targets
from reshard.errors import ReshardError
from reshard.network.inflow import fastest_into
from reshard.plans import Plan
from reshard.sharding import Sharding

Choice = tuple[ComputeLayout, Sharding]
"""A compute layout, and where its result goes."""

WORK_IN_VAIN = 25
"""After how much work that found nothing better a search in haste ends, though bounds do not rule out the rest."""
TIMES_ON_NETWORK = 3
"""How many times that on a network, where a plan counts more."""
PATIENCE = 30
"""How many times as much again where all of a price is expected to be saved; by the square of the part that is."""
PROVED_ROWS = 1024
"""Up to how many rows a search without a network goes on until no other can be better."""
SLACK = 1 - 1e-9
"""Bounds in seconds are sums of other numbers than prices are, so they may come out higher by a rounding."""


class Search:
    """The compute layouts of a problem and their prices."""

    def __init__(self, problem: Problem, moves: Moves) -> None:
        self.problem = problem
        self.moves = moves
        self.dtype, self.network = moves.dtype, moves.network
        network = moves.network
        self._open: dict[Sharding, list[Sharding]] = {}
        self.table = Table(problem, [level.stride for level in network.levels] if network else ())
        self.bounds = Bounds(self.table)
        self._seconds = np.zeros((len(problem.shapes), len(self.table.rows)))
        self._alike = self._seconds
        self._arithmetic = np.zeros(len(self.table.rows))
        if network is not None:
            self._seconds, self._alike = self.bounds.seconds(network, self.dtype.itemsize)
            if network.flops:
                self._arithmetic = self.bounds.flops / network.flops
        self._lowest = self._lower_bounds()

    def _lower_bounds(self) -> list[NDArray[np.float64]]:
        """The bounds of every component of a price."""
        bounds = self.bounds
        received = bounds.received.sum(axis=0) * self.dtype.itemsize
        total = np.where(bounds.is_even, received * self.problem.mesh.size, received)
        seconds = self._seconds.sum(axis=0) + self._arithmetic
        return [seconds * SLACK, np.ceil(received * SLACK), np.ceil(total * SLACK), bounds.steps, bounds.flops]

    def work_in_vain(self, prove: bool) -> int | None:
        """After how much work in vain to end: none where all is to be proved, or soon is."""
        soon = self.network is None and len(self.table.rows) <= PROVED_ROWS
        return None if prove or soon else self.hasty()

    def hasty(self, work: int = WORK_IN_VAIN) -> int:
        """After how much work in vain to end in haste, from how much without a network."""
        return work if self.network is None else work * TIMES_ON_NETWORK

    def best(self, keep: int = 1, work_in_vain: int | None = None) -> list[EinsumPlan]:
        """The cheapest plans of distinct rows, best first.

        Args:
            keep: how many.
            work_in_vain: after how much work that found none better to stop, though a better one may come; never
                unless given. What is found is then marked as not proved.

        Raises:
            ReshardError: of the planner, where no row has a plan.
        """
        found: dict[int, EinsumPlan] = {}
        choices: dict[int, list[Choice]] = {}
        ranking = Ranking(self._lowest, self.bounds.steps, self._seconds, self._alike, self._arithmetic)
        useful, limit, proved = self.moves.work, None, True
        while (best := ranking.next()) is not None:
            row, rival = best
            if not found and self._is_vast:
                row, rival = ranking.simplest(), np.inf
            if work_in_vain is not None:
                most = work_in_vain * (1 + PATIENCE * ranking.gain() ** 2)
                if self.moves.is_spent or self.moves.work - useful > most:
                    if limit is not None:
                        proved = False
                        break
                    rival = np.inf  # on to a price, whatever others are expected to take
            if row not in choices:
                choices[row] = self._choices(row)
            is_known, made = self._plan_for(choices[row][0], row, limit, ranking, rival)
            if is_known:
                del choices[row][0]
                ranking.put_back(row)
            if not choices[row]:
                ranking.drop(row)
            if made is None or (row in found and made.price >= found[row].price):
                continue
            found[row] = made
            found = dict(sorted(found.items(), key=lambda item: item[1].price)[:keep])
            useful = self.moves.work
            if len(found) == keep:
                limit = max(one.price for one in found.values())
                ranking.limit_to(limit)
        if not found:
            raise self.moves.refusal or ReshardError(
                "no-plan", f"no compute layout is known for {self.problem.pattern}"
            )
        return [made if proved else replace(made, is_proved=False) for made in found.values()]

    @property
    def _is_vast(self) -> bool:
        """Whether bounds are too far from prices to lead to a good one soon."""
        return len(self.table.rows) > PROVED_ROWS or len(self.problem.sources) > 2

    def _choices(self, row: int) -> list[Choice]:
        """The orders of the pieces of a row, with where the result goes; the leanest, which lacks least, first."""
        layouts = list(self.table.layouts(self.table.rows[row].tolist()))
        if len(layouts) > 1:
            layouts.sort(key=self._elements_of)
        return [(layout, target) for layout in layouts for target in self._targets(layout)]

    def _targets(self, layout: ComputeLayout) -> list[Sharding]:
        """Where the result of a layout may go."""
        if self.problem.target is not None:
            return [self.problem.target]
        local = layout.sharding_of(len(self.problem.sources))
        if self.problem.may_stay_partial:
            return [local]
        if local not in self._open:
            self._open[local] = targets(local, self.problem.shapes[-1])
        return self._open[local]

    def _moves_of(self, layout: ComputeLayout, target: Sharding) -> list[Move]:
        """Per term, from where to where a layout takes it."""
        used = [(source, layout.sharding_of(number)) for number, source in enumerate(self.problem.sources)]
        ends = [*used, (layout.sharding_of(len(used)), target)]
        return [(*pair, shape) for pair, shape in zip(ends, self.problem.shapes, strict=True)]

    def _elements_of(self, layout: ComputeLayout) -> int:
        """Elements that lie elsewhere than a layout has them: of the orders of a row, the leanest has the fewest."""
        moves = self._moves_of(layout, self._targets(layout)[0])
        return sum(int(self.moves.missing(*move).max(initial=0)) for move in moves)

    def _plan_for(
        self, choice: Choice, row: int, limit: Price | None, ranking: Ranking, rival: float
    ) -> tuple[bool, EinsumPlan | None]:
        """Whether it is known what a choice costs, and its plan, where that is below the limit.

        Its reshards are planned one by one, at least one more, until another row is expected to cost less.
        """
        moves = self._moves_of(*choice)
        self.moves.work += 1  # a look, however soon it ends
        if self._is_hopeless(moves, row, limit):
            return True, None
        least, expected, is_new = self._time_left(row), ranking.expected(row), False
        plans: list[Plan] = []
        for term, move in enumerate(moves):
            if is_new and expected > rival:
                return False, None
            is_new = is_new or not self.moves.has(*move)
            moved = self.moves.plan(*move)
            if moved is None:
                return True, None
            plans.append(moved)
            seconds = moved.seconds or 0.0
            least += seconds - float(self._seconds[term, row])
            expected += seconds - ranking.expected_of(term, row)
            ranking.learn(term, row, seconds)
            if self._is_beyond(least, plans, limit):
                return True, None
        made = self._made(choice[0], plans)
        return True, made if limit is None or made.price < limit else None

    def _made(self, layout: ComputeLayout, plans: list[Plan]) -> EinsumPlan:
        """The plan of a layout, from the plans of its reshards."""
        *operands, output = plans
        sizes = tuple(self.problem.sizes[label] for label in self.problem.pattern.labels)
        inputs = tuple(range(len(operands)))
        return EinsumPlan(self.problem.pattern, sizes, layout, tuple(operands), output, inputs, self.network)

    def _is_hopeless(self, moves: list[Move], row: int, limit: Price | None) -> bool:
        """Whether the elements that this order of the axes asks for alone cost more than the limit, whatever way."""
        if limit is None:
            return False
        # of partial values no elements are a bound
        known = {term: move for term, move in enumerate(moves) if not (move[0].unreduced or move[1].unreduced)}
        least = {
            term: int(self.moves.missing(*move).max(initial=0)) * self.dtype.itemsize for term, move in known.items()
        }
        if self.network is None:
            return max(least.values(), default=0) > limit.received_bytes
        into = fastest_into(self.network)
        more = sum(max(0.0, received / into - float(self._seconds[term, row])) for term, received in least.items())
        return (self._time_left(row) + more) * SLACK > limit.seconds

    def _time_left(self, row: int) -> float:
        """What the whole takes at the least on the network."""
        return float(self._seconds[:, row].sum() + self._arithmetic[row])

    def _is_beyond(self, spent: float, plans: list[Plan], limit: Price | None) -> bool:
        """Whether the plans alone cost more than the limit."""
        if limit is None:
            return False
        if self.network is not None:
            return spent * SLACK > limit.seconds
        return max(one.received_bytes for one in plans) > limit.received_bytes or (
            len(plans) > len(self.problem.sources) and busiest(plans) > limit.received_bytes
        )

    def alternatives(self, best: EinsumPlan, keep: int) -> Callable[[], tuple[EinsumPlan, ...]]:
        """A function that finds the other plans."""

        def others() -> tuple[EinsumPlan, ...]:
            return tuple(made for made in self.best(keep + 1, self.hasty()) if made.layout != best.layout)[:keep]

        return others
