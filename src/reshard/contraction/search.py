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
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.mesh import LIMIT
from reshard.network import Network
from reshard.planner import plan
from reshard.planner.candidates import refinements
from reshard.plans import Plan
from reshard.sharding import Sharding

ROWS_IN_VAIN = 8
"""After how many rows that were no better a search in haste ends, though its bounds do not rule out the rest.
Of each of its rows it prices one order of the axes, that which moves the fewest bytes."""
PROVED_ROWS = 1024
"""Up to how many rows a search without a network goes on until no other can be better."""
SLACK = 1 - 1e-9
"""Bounds in seconds are sums of other numbers than prices are, so they may come out higher by a rounding."""


class Search:
    """The compute layouts of a problem and their prices."""

    def __init__(self, problem: Problem, dtype: DType, network: Network | None = None) -> None:
        self.problem = problem
        self.dtype = dtype
        self.network = network
        self.refusal: ReshardError | None = None
        self._plans: dict[tuple[int, Sharding, Sharding, bool], Plan | None] = {}
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
            if limit is not None and rows_in_vain is not None and vain > rows_in_vain:
                proved = False
                break
            made = self._cheapest_of(row, limit, all_orders=not in_haste)
            vain += 1
            if made is not None:
                found = sorted([*found, (made.price, count, made)], key=lambda one: one[:2])[:keep]
                vain = 0
        if not found:
            raise self.refusal or ReshardError("no-plan", f"no compute layout is known for {self.problem.pattern}")
        return [made if proved else replace(made, is_proved=False) for _, _, made in found]

    def _cheapest_of(self, row: int, limit: Price | None, *, all_orders: bool = True) -> EinsumPlan | None:
        """The best plan of a row, in any order of its pieces or the leanest; None where none is below the limit."""
        best: EinsumPlan | None = None
        lowest = tuple(bound[row] for bound in self._lowest)
        layouts = list(self.table.layouts(self.table.rows[row].tolist()))
        for layout in layouts if all_orders or len(layouts) == 1 else [min(layouts, key=self._bytes_of)]:
            bar = limit if best is None else best.price
            made = self._plan_for(layout, row, bar)
            if made is not None and (bar is None or made.price < bar):
                best = made
                if best.price <= lowest:
                    break  # no other order can be better
        return best

    def _ends(self, layout: ComputeLayout) -> list[tuple[Sharding, Sharding]]:
        """Per term, from where to where a layout takes it."""
        local = layout.sharding_of(len(self.problem.sources))
        used = [(source, layout.sharding_of(number)) for number, source in enumerate(self.problem.sources)]
        return [*used, (local, self._target(local))]

    def _bytes_of(self, layout: ComputeLayout) -> int:
        """Bytes that a layout moves, whatever the network."""
        plans = [self._plan(term, *ends, without_network=True) for term, ends in enumerate(self._ends(layout))]
        return sum(LIMIT if moved is None else moved.received_bytes for moved in plans)

    def _plan_for(self, layout: ComputeLayout, row: int, limit: Price | None) -> EinsumPlan | None:
        """The plan of one layout; None where it has none below the limit."""
        if self._is_hopeless(layout, row, limit):
            return None
        spent = self._time_left(row)
        plans: list[Plan] = []
        for term, (source, target) in enumerate(self._ends(layout)):
            moved = self._plan(term, source, target)
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

    def _is_hopeless(self, layout: ComputeLayout, row: int, limit: Price | None) -> bool:
        """Whether the bytes that this order of the axes asks for take longer than the limit, whatever way they go."""
        if self.network is None or limit is None:
            return False
        spent = self._time_left(row)
        for term, (source, target) in enumerate(self._ends(layout)):
            if source.unreduced or target.unreduced:
                continue  # of these no bytes are a bound
            free = self._plan(term, source, target, without_network=True)
            least = 0.0 if free is None else free.received_bytes / bandwidth_into(self.network)
            spent += max(0.0, least - float(self._seconds[term, row]))
        return spent * SLACK > limit.seconds

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

    def _target(self, local: Sharding) -> Sharding:
        """Where the result may go; where that is open, sums are scattered, over any dims that they divide."""
        if self.problem.target is not None:
            return self.problem.target
        if self.problem.may_stay_partial or not local.unreduced:
            return local
        anywhere = Sharding.of(local.mesh, *[None] * len(local.dims))
        scattered = refinements(local, local.unreduced, anywhere, self.problem.shapes[-1])
        return next(scattered, replace(local, unreduced=()))

    def _plan(self, term: int, source: Sharding, target: Sharding, *, without_network: bool = False) -> Plan | None:
        """The planner's plan for one term; None where it refuses."""
        network = None if without_network else self.network
        key = (term, source, target, network is None)
        if key not in self._plans:
            try:
                self._plans[key] = plan(source, target, self.problem.shapes[term], self.dtype, network=network)
            except ReshardError as error:
                self.refusal, self._plans[key] = error, None
        return self._plans[key]

    def alternatives(self, best: EinsumPlan, keep: int) -> Callable[[], tuple[EinsumPlan, ...]]:
        """A function that finds the other plans."""

        def others() -> tuple[EinsumPlan, ...]:
            return tuple(made for made in self.best(keep + 1, ROWS_IN_VAIN) if made.layout != best.layout)[:keep]

        return others
