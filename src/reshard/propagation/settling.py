"""Single operations of a chosen placement, looked at again among all compute layouts.

A program's space has no finer pieces of axes than it needs, and contracts all operands of an einsum at once.
Of a small program every operation that costs anything is asked about as an einsum is: in any layout, two operands at a
time too, between its values as they are kept.
"""

from __future__ import annotations

from reshard.contraction.chooser import Chooser
from reshard.contraction.pairwise import Contracted, best_way
from reshard.contraction.prices import Effort
from reshard.errors import ReshardError
from reshard.propagation.model import Model
from reshard.propagation.optimum import Optimum, paid_for

MOST_OPERATIONS = 48
"""Up to how many operations that compute are looked at."""
ALIKE = 1e-6
"""By how much, as a part of them, costs may differ that count as equal."""
EFFORT = 400
"""After how much effort no further one is."""


def settled(model: Model, chooser: Chooser, best: Optimum) -> Optimum:
    """A choice with what is cheaper for an operation that pays for all its reshards alone."""
    if len(best.layouts) > MOST_OPERATIONS:
        return best
    net, costs = model.net, paid_for(model, best)
    layouts, chains = dict(best.layouts), dict[int, Contracted]()
    saved, spent = 0.0, 0
    for number, paid in sorted(costs.items(), key=lambda item: (-item[1], net.weights[item[0]])):
        if spent > EFFORT:
            break
        if net.calculations[number].reaches:  # whose windows an einsum does not know
            continue
        effort = Effort(chooser.network)
        try:
            way = best_way(net.task(number, best.shardings), chooser, effort)
        except ReshardError:
            continue
        spent += effort.spent
        cost = _cost(way, chooser, 0.0 if len(costs) == 1 else model.tie_break)
        if cost <= paid * (1 + ALIKE):  # of equals, what an einsum alone would have
            saved += paid - cost
            if len(list(way.parts())) > 1:
                chains[number] = way
            else:
                layouts[number] = way.chosen.layout
    return best._replace(layouts=layouts, chains=chains, cost=best.cost - saved)


def _cost(way: Contracted, chooser: Chooser, tie_break: float) -> float:
    """What the goal adds up; of equal bytes the work, but for one operation alone, which goes as an einsum does.

    Reshard by reshard, as the whole program: an einsum counts those together that keep different devices busy.
    """
    price = way.price(chooser)
    return price.cost if chooser.goal.is_sum else way.received_in_turn(chooser) + tie_break * price.flops
