"""More than two operands: contracted at once in one layout, or two at a time with products resharded in between.

Along every path that is worth comparing, each product is tried in the places where it is cheapest, its sums made or
left to the next contraction, and the few cheapest chains so far go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reshard.contraction.best_first import Search, best_of
from reshard.contraction.chooser import Chooser, Chosen, ends_of
from reshard.contraction.einsum_plan import EinsumPlan
from reshard.contraction.paths import Path, pair_pattern, paths_of
from reshard.contraction.prices import NOTHING, Effort, Ends, Price, added, price_of
from reshard.contraction.tasks import Calculation, Task
from reshard.errors import ReshardError
from reshard.operations.pattern import Term
from reshard.sharding import Sharding

PLACES = 3
"""In how many places a product is tried, with its sums made and without."""
WORK_IN_VAIN = 16
"""After how much work that found no better place the search for a product that goes on ends; there are many such."""
KEPT = 4
"""How many chains go on after each contraction."""
BUDGET = 512
"""How much is planned along one path before the cheapest chain so far goes on alone; see `Effort.allow`."""
BUDGET_AT_ONCE = 1024
"""How much is planned where all operands are contracted at once, with the layouts near the best among it."""


@dataclass(frozen=True)
class Contracted:
    """A contraction whose layout is chosen, after those that make its operands."""

    task: Task
    chosen: Chosen
    inputs: tuple[int | Contracted, ...]
    """Per operand, the number of the tensor that is handed in, or what makes it."""

    def parts(self) -> Iterator[Contracted]:
        """The contractions in the order in which they are done, this one last."""
        for operand in self.inputs:
            if isinstance(operand, Contracted):
                yield from operand.parts()
        yield self

    def reshards(self) -> list[Ends]:
        """Of its operands and its result, from where to where."""
        return ends_of(self.task, self.chosen.layout, self.chosen.target)

    def received_in_turn(self, chooser: Chooser) -> int:
        """Bytes that the busiest device of each reshard receives, reshard by reshard, as `Moved.share` counts them."""
        return sum(
            chooser.prices.moved(*ends).share * trips
            for part in self.parts()
            for ends, trips in zip(part.reshards(), part.task.trip_counts, strict=True)
        )

    def price(self, chooser: Chooser) -> Price:
        """Of all parts, and of the device that is busiest over all their reshards."""
        parts = list(self.parts())
        if len(parts) == 1:
            return self.chosen.price
        moved = [chooser.prices.moved(*ends) for part in parts for ends in part.reshards()]
        flops = [part.chosen.price.flops for part in parts]
        work = (chooser.work(part.task, part.chosen.layout, each) for part, each in zip(parts, flops, strict=True))
        return price_of(moved, [1] * len(moved), sum(flops), sum(work))

    def plan(self, chooser: Chooser) -> EinsumPlan:
        """With the plans of all reshards.

        Raises:
            ReshardError: of the planner, where it refuses a reshard.
        """
        calculation = self.task.calculation
        *operands, output = [chooser.prices.plan(*ends) for ends in self.reshards()]
        inputs = tuple(maker if isinstance(maker, int) else maker.plan(chooser) for maker in self.inputs)
        return EinsumPlan(
            calculation.pattern,
            calculation.sizes,
            self.chosen.layout,
            tuple(operands),
            output,
            inputs,
            chooser.goal,
            self.chosen.is_proved,
        )


@dataclass(frozen=True)
class _Live:
    """A tensor that is still to be contracted."""

    term: Term
    sharding: Sharding
    origin: int | Contracted


def best_way(task: Task, chooser: Chooser, effort: Effort, *, prove: bool = False) -> Contracted:
    """The cheapest way to compute an einsum, at once or, of more than two operands, two at a time.

    Raises:
        ReshardError: of the planner, where no layout can be reached.
    """
    is_long = len(task.sources) > 2 and task.is_einsum
    if is_long and not prove:
        effort.allow(BUDGET_AT_ONCE)
    ways = [Contracted(task, best_of(task, chooser, effort, prove=prove), tuple(range(len(task.sources))))]
    if is_long:
        ways += pairwise(task, chooser, effort, prove=prove)
    best = min(ways, key=lambda way: way.price(chooser))
    if is_long and best.chosen.price.cost > 0:  # of the chains only some were searched
        best = replace(best, chosen=best.chosen._replace(is_proved=False))
    return best


def pairwise(task: Task, chooser: Chooser, effort: Effort, *, prove: bool) -> list[Contracted]:
    """The cheapest chain along every path; none where no path has one."""
    chains = []
    for path in paths_of(task.pattern, task.sizes):
        effort.allow(None if prove else BUDGET)
        chains += _along(path, task, chooser, effort, prove=prove)
    return chains


def _along(path: Path, task: Task, chooser: Chooser, effort: Effort, *, prove: bool) -> list[Contracted]:
    """The cheapest chain along one path that is found; once the budget is spent, the cheapest so far goes on alone."""
    operands = zip(task.pattern.operands, task.sources, strict=True)
    states = [tuple(_Live(term, source, number) for number, (term, source) in enumerate(operands))]
    for pair in path:
        further: list[tuple[Price, tuple[_Live, ...]]] = []
        for live in states:
            if further and effort.is_over:
                break
            for product in _products(live, pair, task, chooser, effort, prove=prove):
                waiting = [tensor for place, tensor in enumerate(live) if place not in pair]
                after = (*waiting, _Live(product.task.pattern.output, product.chosen.target, product))
                further.append((_spent(after), after))
        states = [live for _, live in sorted(further, key=lambda state: state[0])[:KEPT]]
    chains = [live[0].origin for live in states[:1]]
    return [
        replace(chain, chosen=chain.chosen._replace(is_proved=False))
        for chain in chains
        if isinstance(chain, Contracted)
    ]


def _spent(live: Sequence[_Live]) -> Price:
    """What the products that are made cost one after the other."""
    products = [tensor.origin for tensor in live if isinstance(tensor.origin, Contracted)]
    return added(NOTHING, *(part.chosen.price for product in products for part in product.parts()))


def _products(
    live: tuple[_Live, ...], pair: tuple[int, int], task: Task, chooser: Chooser, effort: Effort, *, prove: bool
) -> Iterator[Contracted]:
    """The product of two tensors: where it is wanted, if it is the last, or in several places."""
    is_last = len(live) == 2
    operands = [live[place] for place in pair]
    pattern = pair_pattern([tensor.term for tensor in live], pair, task.pattern.output)
    product = Task(
        Calculation.of_einsum(pattern, task.sizes, task.calculation.dtypes[-1]),
        task.mesh,
        tuple(operand.sharding for operand in operands),
        task.target if is_last else None,
    )
    seen: set[Sharding] = set()
    for may_stay_unreduced in [task.may_stay_unreduced] if is_last else [True, False]:
        product = replace(product, may_stay_unreduced=may_stay_unreduced)
        if seen and effort.is_over:
            break
        try:
            search = Search(product, chooser, effort)
            if is_last:
                places = search.best(None, 1, search.work_in_vain(prove))
            else:
                places = search.best(None, PLACES, search.hasty(WORK_IN_VAIN))
        except ReshardError:
            continue  # a product that cannot be made so is none
        for chosen in places:
            if chosen.target not in seen:
                seen.add(chosen.target)
                yield Contracted(product, chosen, tuple(operand.origin for operand in operands))
