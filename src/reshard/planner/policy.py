"""Which of several plans is best."""

from __future__ import annotations

from reshard.errors import ReshardError
from reshard.plans import Plan


def fewest_bytes(plan: Plan) -> tuple[int, int, int, int]:
    """Fewest bytes on the busiest device, then in all, then fewest steps, then fewest rounds."""
    try:
        rounds = plan.rounds
    except ReshardError:
        rounds = 2**62
    return plan.received_bytes, plan.total_received_bytes, len(plan.steps), rounds
