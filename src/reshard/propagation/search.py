"""The search for the shardings of a program's values, try by try.

Every try chooses the cheapest among candidates, as `reshard.propagation.conflicts` has them, and is kept if that
lowers the price.
The first chooses among the runs of propagation; then each axis of the mesh is laid anew in turn, with the others where
they are, until that helps for none; and the last looks around what was found.
Where a program has more than one axis in conflict, few values have the right place for all of them in any one run, and
most have it for each of them in some run: so an axis at a time needs few candidates to find what is best for all.

By hand: a weight is fully sharded along `data`, an input has `data` on its batch and `model` on its sequence. With the
input ahead its sequence is cut where heads should be, with the weight ahead its features where the batch should be.
`data` goes back to the batch first, wherever `model` is, then `model` to the heads.

**Budget.** What counts is how many ways to compute an operation are priced. The tables of a try may have
`FIRST_EFFORT`, `AXIS_EFFORT` or `LAST_EFFORT` entries, before partial candidates; after `WHOLE_EFFORT` no axis is laid
anew, and the last try has few candidates.
The numbers are such that a layer of a transformer or of experts, forward and backward on 64 devices, with its weights
and activations cut by two or three axes, is placed in about a second.
"""

from __future__ import annotations

import itertools

from reshard.contraction.chooser import Chooser, Chosen, ends_of
from reshard.contraction.pairwise import Contracted, best_way
from reshard.contraction.prices import IMPOSSIBLE, Effort, Price, added, arithmetic, times
from reshard.contraction.tasks import Task
from reshard.propagation.conflicts import candidates, candidates_along, cheapest, operation_cost, runs
from reshard.propagation.fixpoint import Flow, Net
from reshard.propagation.sharing import improved, shared_cost
from reshard.sharding import Sharding

MOST_WORK = 2
"""Without a network, fewer bytes are taken for at most so many times the work: values that are not cut are computed
by everybody, and receive nothing.
Where nothing was disputed, and closed dims only refused what was proposed, for hardly more."""
SETTLING_EFFORT = 400
"""After how much effort no further operation is asked about among all layouts."""
HARDLY_MORE = 1.25
"""How many times the work that is."""
FIRST_EFFORT, AXIS_EFFORT, LAST_EFFORT, WHOLE_EFFORT = 1500, 3000, 5000, 8000


def search(net: Net, chooser: Chooser, until_priority: int | None) -> tuple[list[Sharding], list[Flow]]:
    """Per value its sharding, and the runs of propagation from which they come."""
    flows = runs(net, until_priority)
    disputed = bool(flows[0].disputed)
    looked = flows if disputed else flows[:1]
    found = candidates(net, chooser, looked, FIRST_EFFORT)
    chosen = improved(net, chooser, found, looked, cheapest(net, chooser, found))
    if len(flows) == 1:
        return chosen, looked
    cost = shared_cost(net, chooser, chosen)
    most_work = (MOST_WORK if disputed else HARDLY_MORE) * cost.flops
    names = list(dict.fromkeys(name for mesh in net.graph.meshes.values() for name in mesh.sizes)) if disputed else []
    tries = 1
    quiet = 0
    for axis in itertools.cycle(names):
        if quiet == len(names) or _left(net, chooser, tries) <= 0:
            break
        found = candidates_along(net, chooser, flows, chosen, axis, AXIS_EFFORT)
        other = cheapest(net, chooser, found)
        price = shared_cost(net, chooser, other)
        tries += 1
        quiet += 1
        if _is_better(chooser, price, cost, most_work):
            chosen, cost, quiet = other, price, 1
    found = candidates(net, chooser, flows, min(_left(net, chooser, tries), LAST_EFFORT), chosen)
    other = improved(net, chooser, found, flows, cheapest(net, chooser, found))
    if _is_better(chooser, shared_cost(net, chooser, other), cost, most_work):
        return other, flows
    return chosen, looked


def _left(net: Net, chooser: Chooser, tries: int) -> int:
    """What is left of the budget after so many tries: in each, an operation takes about as long as to price one."""
    return WHOLE_EFFORT - chooser.asked - tries * len(net.rules)


def _is_better(chooser: Chooser, price: Price, cost: Price, most_work: float) -> bool:
    """Whether a price is lower, and buys that with no more work than it may."""
    counts = chooser.network is not None and chooser.network.flops is not None  # then the price has the work in it
    return price < cost and (counts or price.flops <= most_work)


def apart(chooser: Chooser, task: Task, chosen: Chosen) -> Price:
    """What a task costs where each of its reshards counts by its own busiest device."""
    reshards = zip(ends_of(task, chosen.layout, chosen.target), task.trip_counts, strict=True)
    moved = [times(chooser.prices.moved(*ends).price, trips) for ends, trips in reshards]
    return added(arithmetic(chosen.price.flops, chooser.network), *moved)


def settle(net: Net, chooser: Chooser, shardings: list[Sharding]) -> dict[int, Contracted]:
    """Let what only an output reads be made where it wants it, and ask of the costliest operations among all layouts.

    What is cheaper, with equal reshards made once, the chooser keeps.
    Returns the einsums of more than two operands that are cheaper two at a time, by their numbers.
    """
    for number, target in net.wanted.items():
        ends = [*(shardings[operand.number] for operand in net.graph.operations[number].operands), target]
        if operation_cost(net, chooser, number, ends) != IMPOSSIBLE:
            shardings[number] = target
    cost = shared_cost(net, chooser, shardings)
    tasks = {number: net.task(number, shardings) for number in net.computed}
    weights = {task: net.weights[number] for number, task in tasks.items()}
    order = [(chooser.answer(task).price, weight, task) for task, weight in weights.items()]
    spent = 0
    chains: dict[Task, Contracted] = {}
    for price, _, task in sorted(order, key=lambda entry: entry[:2], reverse=True):
        if spent > SETTLING_EFFORT or (price.steps == 0 and chooser.network is None):
            break
        effort = Effort(chooser.network)
        before, way = chooser.answer(task), best_way(task, chooser, effort)
        spent += effort.spent
        if len(list(way.parts())) > 1:
            if way.price(chooser) < before.price:
                chains[task] = way
            continue
        after = way.chosen
        if after.price < before.price:
            chooser.keep(task, after)
            now = shared_cost(net, chooser, shardings)
            # with less on the busiest device it may cost more reshard by reshard: so what other operations pay decides
            others = [
                added(total, times(apart(chooser, task, one), -1)) for total, one in ((cost, before), (now, after))
            ]
            if now <= cost or (chooser.network is None and others[1] <= others[0]):
                cost = now
            else:
                chooser.keep(task, before)
    return {number: chains[task] for number, task in tasks.items() if task in chains}
