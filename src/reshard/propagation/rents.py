"""What it costs to hold values at moments at which a device holds too much.

A moment is an operation of the program, while it runs.
Where a device holds more than it may, a byte held then costs something, and more each time that it still does: a
value pays for all such moments at which it is held, as it is kept, as it is brought to where it is read, or as it
comes out.
That is the relaxation of Lagrange, its multipliers raised by a factor and added for moments as they are found too
full; whether a placement fits is counted anew for each (`memory.py`).

By hand: of `a` kept from 0 to 3 and read at 2 and 3, and moments 1 and 3 at which a byte costs 5 and 7, `a` pays 12 for
each byte that it is kept in, and 7 for each of what is made of it for both readers.

>>> of_life(Life(range(0, 4), range(2, 4)), 0, {1: 5.0, 3: 7.0})
Rent(kept=12.0, wanted=7.0, made=0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reshard.propagation.memory import Life
from reshard.propagation.nodes import Besides, Rent

FIRST = 0.2
"""What a byte costs that is held too much, when that is first found: so many received bytes."""
RAISED = 3.0
"""By how much that rises while it is still too much."""
MOST_MOMENTS = 8
"""At how many moments costs are raised at a time."""


def raised(
    costs: Mapping[int, float], during: Mapping[int, int], lives: Mapping[int, Life], limit: int, per_byte: float
) -> dict[int, float]:
    """What a byte costs per moment, raised where too much is held: at the fullest, and where other values are held.

    Args:
        costs: as they were.
        during: per moment the bytes that a device holds.
        lives: of the values that are large enough to matter, by their numbers.
        limit: what it may hold.
        per_byte: what a received byte costs.
    """
    risen = dict(costs)
    full = sorted((moment for moment, held in during.items() if held > limit), key=lambda n: (-during[n], n))
    seen: set[int] = set()
    count = 0
    for moment in full:
        alive = {number for number, life in lives.items() if moment in life.kept or moment in life.read}
        if alive <= seen:
            continue
        seen |= alive
        risen[moment] = max(RAISED * costs.get(moment, 0.0), FIRST * per_byte)
        count += 1
        if count == MOST_MOMENTS:
            break
    return risen


def rents(lives: Sequence[Life], costs: Mapping[int, float]) -> dict[int, Rent]:
    """Per number of a value what it costs to hold a byte of it, where that costs something."""
    prices = {number: of_life(life, number, costs) for number, life in enumerate(lives)}
    return {number: rent for number, rent in prices.items() if any(rent)}


def of_life(life: Life, number: int, costs: Mapping[int, float]) -> Rent:
    """What it costs to hold a byte of a value.

    Args:
        life: when it is held.
        number: of the operation that makes it.
        costs: per moment.
    """
    kept = sum(cost for moment, cost in costs.items() if moment in life.kept)
    wanted = sum(cost for moment, cost in costs.items() if moment in life.read)
    return Rent(kept, wanted, costs.get(number, 0))


def halfway(low: Besides, high: Besides) -> Besides:
    """What holding and computing cost between two: of bytes the mean, of operations, which rise by a factor, its root.

    >>> halfway(Besides(), Besides({3: Rent(kept=2.0)}, per_flop=0.0)).rents
    {3: Rent(kept=1.0, wanted=0.0, made=0.0)}
    """
    nothing = Rent()
    means = {
        number: Rent(*((one + other) / 2 for one, other in zip(low.rents.get(number, nothing), rent, strict=True)))
        for number, rent in high.rents.items()
    }
    return Besides(means, (max(low.per_flop, high.per_flop / RAISED**2) * high.per_flop) ** 0.5)
