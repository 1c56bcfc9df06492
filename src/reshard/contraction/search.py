"""The cheapest compute layouts: best first, by bounds that no price goes below.

The rows of all choices are sorted by their bounds, and their exact prices found in that order with the planner's own
plans, until the next bound is no lower than the best price.
On a network, where a price takes long to find and bounds are loose, and where rows are many, a search in haste ends
when a few rows were no better, and says whether the bounds of others leave anything open.
A price is compared component by component: seconds on the network, where one is given, then bytes on the busiest
device, bytes in all, steps, operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from reshard.contraction.bounds import Bounds, bandwidth_into
from reshard.contraction.choices import Problem, Table
from reshard.contraction.einsum_plan import EinsumPlan, Price, busiest
from reshard.contraction.layouts import ComputeLayout
from reshard.contraction.moves import Move, Moves
from reshard.contraction.targets import targets
from reshard.errors import ReshardError
from reshard.plans import Plan
from reshard.sharding import Sharding

ROWS_IN_VAIN = 4
"""After how many rows that were no better a search in haste ends, though its bounds do not rule out the rest.
Of each of its rows it prices one order of the axes, that which lacks the fewest elements."""
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
        self._lowest = self._lower_bounds()

    def _lower_bounds(self) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
        """The bounds of every component of a price."""
        bounds = self.bounds
        received = bounds.received.sum(axis=0) * self.dtype.itemsize
        total = np.where(bounds.is_even, received * self.problem.mesh.size, received)
        seconds = np.zeros(len(received))
        if self.network is not None:
            self._seconds, guess = bounds.seconds(self.network, self.dtype.itemsize)
            self._arithmetic = bounds.flops / self.network.flops if self.network.flops else np.zeros(len(received))
            seconds = (self._seconds.sum(axis=0) + self._arithmetic) * SLACK
            self._guess = guess.sum(axis=0) + self._arithmetic
        return [seconds, np.ceil(received * SLACK), np.ceil(total * SLACK), bounds.steps, bounds.flops]

    def rows_in_vain(self, prove: bool) -> int | None:
        """After how many rows that were no better to end: none where it is to be proved, or soon is."""
        soon = self.network is None and len(self.table.rows) <= PROVED_ROWS
        return None if prove or soon else ROWS_IN_VAIN

    def best(self, keep: int = 1, rows_in_vain: int | None = None) -> list[EinsumPlan]:
        """The cheapest plans of distinct rows, best first.

        Args:
            keep: how many.
            rows_in_vain: after how many rows that were no better to stop, though a better one may come; never unless
                given. What is found is then marked as not proved.

        Raises:
            ReshardError: of the planner, where no row has a plan.
        """
        found: list[tuple[Price, int, EinsumPlan]] = []
        in_haste = rows_in_vain is not None
        guess = [self._guess] if in_haste and self.network is not None else []
        vain, proved = 0, True
        for count, row in enumerate(np.lexsort([*self._lowest[::-1], *guess]).tolist()):
            limit = found[-1][0] if len(found) == keep else None
            if limit is not None and tuple(bound[row] for bound in self._lowest) >= limit:
                if guess:
                    continue
                break
            if limit is not None and rows_in_vain is not None and (vain > rows_in_vain or self.moves.is_spent):
                proved = False
                break
            made = self._cheapest_of(row, limit, all_orders=not in_haste)
            vain += 1
            if made is not None:
                found = sorted([*found, (made.price, count, made)], key=lambda one: one[:2])[:keep]
                vain = 0
        if not found:
            raise self.moves.refusal or ReshardError(
                "no-plan", f"no compute layout is known for {self.problem.pattern}"
            )
        return [made if proved else replace(made, is_proved=False) for _, _, made in found]

    def _cheapest_of(self, row: int, limit: Price | None, *, all_orders: bool = True) -> EinsumPlan | None:
        """The best plan of a row, in any order of its pieces or the leanest; None where none is below the limit."""
        best: EinsumPlan | None = None
        lowest = tuple(bound[row] for bound in self._lowest)
        layouts = list(self.table.layouts(self.table.rows[row].tolist()))
        kept = layouts if all_orders or len(layouts) == 1 else [min(layouts, key=self._elements_of)]
        for layout, target in [(one, target) for one in kept for target in self._targets(one)]:
            bar = limit if best is None else best.price
            made = self._plan_for(layout, target, row, bar)
            if made is not None and (bar is None or made.price < bar):
                best = made
                if best.price <= lowest:
                    break  # no other order can be better
        return best

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

    def _plan_for(self, layout: ComputeLayout, target: Sharding, row: int, limit: Price | None) -> EinsumPlan | None:
        """The plan of one layout; None where it has none below the limit."""
        moves = self._moves_of(layout, target)
        if self._is_hopeless(moves, row, limit):
            return None
        spent = self._time_left(row)
        plans: list[Plan] = []
        for term, move in enumerate(moves):
            moved = self.moves.plan(*move)
            if moved is None:
                return None
            plans.append(moved)
            spent = self._after(spent, term, row, moved)
            if self._is_beyond(spent, plans, limit):
                return None
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
        into = bandwidth_into(self.network)
        more = sum(max(0.0, received / into - float(self._seconds[term, row])) for term, received in least.items())
        return (self._time_left(row) + more) * SLACK > limit.seconds

    def _time_left(self, row: int) -> float:
        """What the whole takes at the least on the network."""
        return 0.0 if self.network is None else float(self._seconds[:, row].sum() + self._arithmetic[row])

    def _after(self, spent: float, term: int, row: int, moved: Plan) -> float:
        """What the whole takes at the least now that the plan of one term is known."""
        if self.network is None:
            return spent
        return spent + (moved.seconds or 0.0) - float(self._seconds[term, row])

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
            return tuple(made for made in self.best(keep + 1, ROWS_IN_VAIN) if made.layout != best.layout)[:keep]

        return others
