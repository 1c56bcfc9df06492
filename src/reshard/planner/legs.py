"""A chain whose legs are planned anew: what is cheapest whole need not be cheapest in parts.

Where messages wait, the candidates between two ends do not hold those between an end and a point on the way:
two steps may be one exchange, and an exchange a chain of collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from reshard.plans import Plan
from reshard.sharding import Sharding

SETTLED = ("Slice", "AllGather", "AllToAll")
"""Steps that no other chain takes the place of."""


def with_better_legs(plan: Plan, replan: Callable[[Sharding, Sharding, int], Plan]) -> Plan:
    """The plan, with every leg from or to an end that `replan` knows a cheaper way for put right, until none is left.

    Args:
        plan: priced.
        replan: the cheapest plan that is known between two shardings that so many steps join now, priced alike.
    """
    known: dict[tuple[Sharding, Sharding], Plan] = {}
    improved = True
    while improved:
        improved = False
        for start, stop in _legs(len(plan.steps)):
            leg = plan.steps[start:stop]
            if len(leg) == 1 and leg[0].kind in SETTLED:
                continue
            ends = leg[0].before, leg[-1].after
            if ends not in known:
                known[ends] = replan(*ends, len(leg))
            seconds = plan.step_seconds or ()
            if (known[ends].seconds or 0.0) < sum(seconds[start:stop]) * (1 - 1e-9):
                plan = replace(
                    plan,
                    steps=(*plan.steps[:start], *known[ends].steps, *plan.steps[stop:]),
                    step_seconds=(*seconds[:start], *(known[ends].step_seconds or ()), *seconds[stop:]),
                )
                improved = True
                break
    return plan


def _legs(count: int) -> list[tuple[int, int]]:
    """Every part of a chain from its start or to its end, the whole left out.

    >>> _legs(3)
    [(0, 1), (1, 3), (0, 2), (2, 3)]
    """
    return [leg for place in range(1, count) for leg in ((0, place), (place, count))]
