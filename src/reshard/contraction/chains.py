"""More than two operands: contracted at once in one layout, or two at a time with products resharded in between.

Along every path that is worth comparing, each product is tried in the places where it is cheapest, its sums made or
left to the next contraction, and the few cheapest chains so far go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from reshard.contraction.choices import Problem
from reshard.contraction.einsum_plan import EinsumPlan, Price
from reshard.contraction.moves import Moves
from reshard.contraction.paths import Path, pair_pattern, paths_of
from reshard.contraction.search import Search
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
"""How much is planned along one path before the cheapest chain so far goes on alone; see `Moves.allow`."""


@dataclass(frozen=True)
class _Live:
    """A tensor that is still to be contracted."""

    term: Term
    sharding: Sharding
    given: int | EinsumPlan


def chains(problem: Problem, moves: Moves, prove: bool) -> list[EinsumPlan]:
    """The cheapest plan along every path, best first; none where no path has a plan."""
    found = []
    for path in paths_of(problem.pattern, problem.sizes):
        moves.allow(None if prove else BUDGET)
        made = _along(path, problem, moves, prove)
        if made is not None:
            found.append(made)
    return sorted(found, key=lambda made: made.price)


def _along(path: Path, problem: Problem, moves: Moves, prove: bool) -> EinsumPlan | None:
    """The cheapest chain along one path that is found; once the budget is spent, the cheapest so far goes on alone."""
    operands = zip(problem.pattern.operands, problem.sources, strict=True)
    kept = [tuple(_Live(term, source, number) for number, (term, source) in enumerate(operands))]
    for pair in path:
        further: list[tuple[Price, tuple[_Live, ...]]] = []
        for live in kept:
            if further and moves.is_spent:
                break
            for made in _products(live, pair, problem, moves, prove):
                rest = [one for place, one in enumerate(live) if place not in pair]
                product = _Live(made.pattern.output, made.target, made)
                further.append((_spent([*rest, product]), (*rest, product)))
        kept = [live for _, live in sorted(further, key=lambda one: one[0])[:KEPT]]
    whole = [live[0].given for live in kept]
    return next((replace(made, is_proved=False) for made in whole if isinstance(made, EinsumPlan)), None)


def _spent(live: list[_Live]) -> Price:
    """What the products that are made cost together."""
    prices = [one.given.price for one in live if isinstance(one.given, EinsumPlan)]
    return Price(
        sum(price.seconds for price in prices),
        sum(price.received_bytes for price in prices),
        sum(price.total_received_bytes for price in prices),
        sum(price.steps for price in prices),
        sum(price.flops for price in prices),
    )


def _products(
    live: tuple[_Live, ...],
    pair: tuple[int, int],
    problem: Problem,
    moves: Moves,
    prove: bool,
) -> Iterator[EinsumPlan]:
    """Plans of the product of two tensors: where it is wanted, if it is the last, or in several places."""
    is_last = len(live) == 2
    pattern = pair_pattern([one.term for one in live], pair, problem.pattern.output)
    chosen = [live[place] for place in pair]
    sources = tuple(one.sharding for one in chosen)
    sizes = {label: problem.sizes[label] for label in pattern.labels}
    part = Problem(pattern, problem.mesh, sources, problem.target if is_last else None, sizes)
    seen: set[Sharding] = set()
    for may_stay_partial in [problem.may_stay_partial] if is_last else [True, False]:
        part = replace(part, may_stay_partial=may_stay_partial)
        if seen and moves.is_spent:
            break
        try:
            search = Search(part, moves)
            made = (
                search.best(1, search.work_in_vain(prove))
                if is_last
                else search.best(PLACES, search.hasty(WORK_IN_VAIN))
            )
        except ReshardError:
            continue  # a product that cannot be made so is none
        for one in made:
            if one.target not in seen:
                seen.add(one.target)
                yield replace(one, inputs=tuple(operand.given for operand in chosen))
