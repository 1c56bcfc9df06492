"""Single operations of a chosen placement, looked at again among all compute layouts.

A program's space has no finer pieces of axes than it needs, and contracts all operands of an einsum at once.
Of a small program every operation that costs anything is asked about as an einsum is: in any layout, two operands at a
time too, between its values as they are kept.
"""

from __future__ import annotations

from dataclasses import replace

from reshard.contraction.chooser import Chooser
from reshard.contraction.pairwise import Contracted, best_way
from reshard.contraction.prices import Effort
from reshard.errors import ReshardError
from reshard.propagation.model import Model
from reshard.propagation.solution import Optimum, asked_for, descent_of, origins_without, paid_for

MOST_OPERATIONS = 48
"""Up to how many operations that compute are looked at."""
ALIKE = 1e-6
"""By how much, as a part of them, costs may differ that count as equal."""
EFFORT = 400
"""After how much effort no further one is."""


def settled(model: Model, chooser: Chooser, best: Optimum) -> Optimum:
    """A choice with what is cheaper for an operation that pays for all its reshards alone.

    What nothing but an output reads may be made where that wants it too.
    """
    if len(best.layouts) > MOST_OPERATIONS:
        return best
    net, descent = model.net, descent_of(model, best)
    costs, asked = paid_for(descent, best.layouts), asked_for(descent)
    shardings, ways = list(best.shardings), dict[int, Contracted]()
    saved, spent = 0.0, 0
    for number, paid in sorted(costs.items(), key=lambda item: (-item[1], net.weights[item[0]])):
        if spent > EFFORT:
            break
        if net.calculations[number].reaches:  # whose windows an einsum does not know
            continue
        effort, tie_break = Effort(chooser.network), 0.0 if len(costs) == 1 else model.tie_break
        paid_to = {best.shardings[number]: paid}
        if number in asked:
            wanted, brought = asked[number]
            paid_to[wanted] = paid + brought
        most = 0.0
        for target, before in paid_to.items():
            try:
                way = best_way(replace(net.task(number, best.shardings), target=target), chooser, effort)
            except ReshardError:
                continue
            saves = before - _cost(way, chooser, tie_break)
            if saves >= most - paid * ALIKE:  # of equals, what an einsum alone would have
                most, ways[number], shardings[number] = saves, way, target
        saved += most if number in ways else 0.0
        spent += effort.spent
    if not ways:
        return best
    chains = {number: way for number, way in ways.items() if len(list(way.parts())) > 1}
    at_once = {number: way.chosen.layout for number, way in ways.items() if number not in chains}
    return best._replace(
        shardings=shardings,
        layouts={**best.layouts, **at_once},
        origins=origins_without(descent, ways),
        chains=chains,
        cost=best.cost - saved,
    )


def _cost(way: Contracted, chooser: Chooser, tie_break: float) -> float:
    """What the goal adds up; of equal bytes the work, but for one operation alone, which goes as an einsum does.

    Reshard by reshard, as the whole program: an einsum counts those together that keep different devices busy.
    """
    price = way.price(chooser)
    return price.cost if chooser.goal.is_sum else way.received_in_turn(chooser) + tie_break * price.flops
