"""Which of several plans is best, and what it costs."""

from __future__ import annotations

from dataclasses import replace

from reshard.errors import ReshardError
from reshard.network import Network, seconds_of
from reshard.plans import Plan, seconds_text


def priced(plan: Plan, network: Network | None) -> Plan:
    """The plan with what each step takes on the network."""
    if network is None:
        return plan
    return replace(plan, step_seconds=tuple(seconds_of(step, network) for step in plan.steps))


def fewest_bytes(plan: Plan) -> tuple[int, int, int, int]:
    """Fewest bytes on the busiest device, then in all, then fewest steps, then fewest rounds."""
    try:
        rounds = plan.rounds
    except ReshardError:
        rounds = 2**62
    return plan.received_bytes, plan.total_received_bytes, len(plan.steps), rounds


def best_first(plans: list[Plan], network: Network | None) -> list[Plan]:
    """The plans by time on the network, then as without one; the best says why, where it moves more than the first.

    The first given is that of the shortest chain, which moves least.
    """
    if network is None:
        return sorted(plans, key=fewest_bytes)
    ordered = sorted(plans, key=lambda plan: plan.seconds or 0.0)
    fastest = [plan for plan in ordered if plan.seconds == ordered[0].seconds]
    best = fastest[0] if len(fastest) == 1 else min(fastest, key=fewest_bytes)
    others = [plan for plan in ordered if plan is not best]
    if best.received_bytes > best.lower_bound_bytes:
        leanest = plans[0]
        if leanest.received_bytes < best.received_bytes:
            time = seconds_text(leanest.seconds or 0.0)
            best = replace(best, reason=f"on {network.name or 'the network'} fewer bytes would take {time}")
    return [best, *others]
