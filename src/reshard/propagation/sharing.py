"""Choices looked at again with reshards shared.

Tables of single operations do not see that two operations may read one and the same reshard of a value.
Here the whole program is priced with equal reshards made once, and changed as long as that lowers the price: one
value to another of its candidates, two that are made of the same value, or a part of the program to what one run of
propagation says there.
Of all changes the best is made first, so that no order has a say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from reshard.errors import ReshardError
from reshard.propagation.conflicts import preferences
from reshard.propagation.layouts import IMPOSSIBLE, NOTHING, Cost, Pricer, added
from reshard.propagation.rounds import Flow, Net
from reshard.sharding import Sharding

MOST_PRICED = 200_000
"""How many operations are priced again at most, in all tries together."""
Choice = tuple[int, ...]


def improved(
    net: Net, pricer: Pricer, found: Sequence[Sequence[Sharding]], flows: Sequence[Flow], chosen: Sequence[Sharding]
) -> list[Sharding]:
    """The choice after the last change that lowers the price of the program."""
    variables = [number for number, some in enumerate(found) if len(some) > 1]
    if not variables or not _shares(net):
        return list(chosen)
    liked = preferences(net, found, variables)
    runs = [_choice_of(flow, found, pricer, net) for flow in flows]
    here: Choice = tuple(found[number].index(sharding) for number, sharding in enumerate(chosen))

    def price(choice: Choice) -> tuple[Cost, int]:
        likes = sum(liked[value][choice[value]] for value in variables)
        return shared_cost(net, pricer, [some[c] for some, c in zip(found, choice, strict=True)]), likes

    def descended(choice: Choice, budget: int) -> tuple[tuple[Cost, int], Choice]:
        now = price(choice)
        while budget > 0:
            moves = list(dict.fromkeys(itertools.islice(_moves(net, found, runs, variables, choice), budget)))
            budget -= len(moves)
            best_price, best = min((price(move), move) for move in moves)
            if best_price >= now:
                break
            now, choice = best_price, best
        return now, choice

    _, best = descended(here, max(MOST_PRICED // len(found), 1))
    return [some[c] for some, c in zip(found, best, strict=True)]


def shared_cost(net: Net, pricer: Pricer, chosen: Sequence[Sharding]) -> Cost:
    """What the program costs when equal reshards of a value are made once."""
    costs: list[Cost] = []
    seen: set[tuple[int, Sharding]] = set()
    for number, operation in enumerate(net.graph.operations):
        if not operation.operands:
            continue
        result = chosen[number]
        kept = tuple(chosen[operand.number] for operand in operation.operands)
        if operation.name in ("reshard", "output"):
            needed: tuple[Sharding, ...] = (result,)
        else:
            try:
                computed = pricer.compute(operation, net.rules[number], kept, result)
            except ReshardError:
                return IMPOSSIBLE
            needed = computed.operands
            costs.append(computed.work)
            costs.append(pricer.price(computed.result, result, operation.result.shape, operation.result.dtype))
        for operand, own, target in zip(operation.operands, kept, needed, strict=True):
            if own != target and (operand.number, target) not in seen:
                seen.add((operand.number, target))
                costs.append(pricer.price(own, target, operand.shape, operand.dtype))
    return added(*costs) if costs else NOTHING


def _shares(net: Net) -> bool:
    """Whether a value is used twice."""
    used = [operand.number for operation in net.graph.operations for operand in {*operation.operands}]
    return len(used) > len(set(used))


def _choice_of(flow: Flow, found: Sequence[Sequence[Sharding]], pricer: Pricer, net: Net) -> Choice:
    """The candidates that a run of propagation had."""
    choice = []
    for number, some in enumerate(found):
        dims = [tuple(dim.axes) for dim in some[0].dims]
        wanted = list(flow.dims[number])
        if dims != wanted:
            wished = pricer.sharding(net.meshes[number], wanted, some[0].unreduced, some[0].reduction, some[0].uneven)
            choice.append(some.index(wished) if wished in some else 0)
        else:
            choice.append(0)
    return tuple(choice)


def _moves(
    net: Net, found: Sequence[Sequence[Sharding]], runs: Sequence[Choice], variables: Sequence[int], here: Choice
) -> Iterator[Choice]:
    for run in runs:
        other = [value for value in variables if run[value] != here[value]]
        for part in (set(other), *_parts(net, other)):
            yield tuple(run[value] if value in part else c for value, c in enumerate(here))
    for value in variables:
        for choice in range(len(found[value])):
            yield (*here[:value], choice, *here[value + 1 :])
    for one, two in _pairs(net, set(variables)):
        for first, second in itertools.product(range(len(found[one])), range(len(found[two]))):
            changed = list(here)
            changed[one], changed[two] = first, second
            yield tuple(changed)


def _pairs(net: Net, variables: set[int]) -> Iterator[tuple[int, int]]:
    """Values that are made of one and the same, which may share a reshard of it."""
    users: dict[int, set[int]] = {}
    for number, operation in enumerate(net.graph.operations):
        for operand in operation.operands:
            users.setdefault(operand.number, set()).add(number)
    pairs = {pair for some in users.values() for pair in itertools.combinations(sorted(some & variables), 2)}
    yield from sorted(pairs)


def _parts(net: Net, values: Sequence[int]) -> Iterator[set[int]]:
    """The values, in groups that operations connect."""
    left = set(values)
    while left:
        part, edge = set[int](), [left.pop()]
        while edge:
            value = edge.pop()
            part.add(value)
            near = {other for op in net.neighbours[value] for other in net.places[op]} & left
            left -= near
            edge += near
        yield part
