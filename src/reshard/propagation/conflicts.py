"""The shardings among which a program's values choose, and the choice by price.

Where proposals excluded one another, or a closed dim refused one, propagation is run again with each annotation in
turn ahead of the others.
Every value has as candidates the shardings that it had in any of the runs, these with one dim of another, and, around
a choice that was made before, these with one dim or all cut back to what was given; or, for one axis of the mesh at a
time, its choice with that axis where any of the runs has it, or where it was given.
A result that comes out partial has one more: to stay so, as long as what uses it can wait.
The price of the whole program is a sum of one table per operation, over the candidates of its operands and its
result; `reshard.propagation.elimination` finds the choice with the least sum.

Most of the time goes into pricing the entries of the tables.
So a value has as many candidates, from `MOST_CANDIDATES` down to two, as keep the entries of all tables within a
budget.
Operations that are equal in pattern, sizes and candidates share a table, so a stack of layers costs little more than
one; partial candidates come on top.

By hand: x is kept by rows, y by columns, and z = x + y may be either. The tables of the operation are {rows: the
price of moving y, columns: that of moving x}; with x the smaller, z is kept by columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from reshard.axis import Axes, is_prefix
from reshard.contraction.chooser import Chooser
from reshard.contraction.prices import IMPOSSIBLE, NOTHING, Price, times
from reshard.errors import ReshardError
from reshard.operations.operation import Operation, Value
from reshard.operations.projection import shards
from reshard.operations.rules import COMBINED, waiting_operands
from reshard.propagation.elimination import LARGEST_TABLE, Costs, CostTable, Ranked, least
from reshard.propagation.fixpoint import Flow, Net
from reshard.sharding import Sharding

MOST_LEADERS = 12
"""How many annotations go ahead in turn, at most: those of the largest values."""
MOST_VISITED = 10_000
"""How many operations such runs go through at most where nothing was disputed, and something only refused."""
MOST_CANDIDATES = 10
KNOWN = 100
"""An entry that was priced for an equal operation takes so many times less."""


def runs(net: Net, until_priority: int | None) -> list[Flow]:
    """Propagation from all annotations at once; where there is a choice, also with each ahead in turn."""
    flows = [net.run(until_priority)]
    if flows[0].disputed or flows[0].refused:
        leaders = sorted(
            net.graph.annotations, key=lambda v: (-prod(v.shape) * v.dtype.itemsize, net.weights[v.number])
        )
        most = MOST_LEADERS if flows[0].disputed else min(MOST_LEADERS, MOST_VISITED // len(net.rules))
        flows += [net.run(until_priority, value.number) for value in leaders[:most]]
    return flows


def candidates(
    net: Net, chooser: Chooser, flows: Sequence[Flow], most_effort: float, around: Sequence[Sharding] | None = None
) -> list[list[Sharding]]:
    """Per value the shardings that it may have, the first that of the first run.

    Args:
        net: the program.
        chooser: what prices it.
        flows: the runs.
        most_effort: how many entries the tables may have, before partial candidates.
        around: a choice whose dims, and those of the runs, may also be cut back to what was given.
    """
    found = []
    for value in net.graph.values:
        mesh, given = net.meshes[value.number], net.graph.annotations.get(value)
        dims = dict.fromkeys(flow.dims[value.number] for flow in flows)
        if len(flows) > 1 and not mesh.is_maximal:
            own = _given(net, value, flows[0])
            found_by_runs = list(dims)
            dims.update(dict.fromkeys(_crossed(found_by_runs, own)))
            if around is not None:
                dims.update(dict.fromkeys(_cut(found_by_runs, own)))
        found.append([net.sharding(value.number, one, given) for one in dims][:MOST_CANDIDATES])
    most = _affordable(net, found, most_effort)
    if most < MOST_CANDIDATES:
        if around is not None and len(flows) > 1:
            found = [_nearest(net, flows[0], *one) for one in zip(net.graph.values, around, found, strict=True)]
        found = [some[:most] for some in found]
    add_made(net, chooser, found, most + 2, whole=True)
    _thin(net, found)
    return found


def candidates_along(
    net: Net, chooser: Chooser, flows: Sequence[Flow], chosen: Sequence[Sharding], axis: str, most_effort: float
) -> list[list[Sharding]]:
    """Per value its choice, and that with one axis of the mesh where it was given, or where a run has it."""
    found = []
    for value, here in zip(net.graph.values, chosen, strict=True):
        mesh, given = net.meshes[value.number], net.graph.annotations.get(value)
        dims = tuple(dim.axes for dim in here.dims)
        own = _given(net, value, flows[0])
        others = () if mesh.is_maximal else dict.fromkeys((own, *(flow.dims[value.number] for flow in flows)))
        made = [_with_axis(dims, other, axis) for other in others]
        right = [one for one in made if _may_be(one, own, value.shape, mesh.sizes)]
        some = [net.sharding(value.number, one, given) for one in right]
        found.append(list(dict.fromkeys([here, *some])))
    most = _affordable(net, found, most_effort)
    found = [some[:most] for some in found]
    add_made(net, chooser, found, max(map(len, found)))
    _thin(net, found)
    return found


def _with_axis(dims: tuple[Axes, ...], other: tuple[Axes, ...], axis: str) -> tuple[Axes, ...]:
    """A sharding with one axis of the mesh as another has it, minor to the others unless that has just these."""
    mixed = []
    for here, there in zip(dims, other, strict=True):
        axes = (*(a for a in here if a.name != axis), *(a for a in there if a.name == axis))
        mixed.append(there if {*there} == {*axes} else axes)
    return tuple(mixed)


def _may_be(dims: tuple[Axes, ...], own: tuple[Axes, ...], shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Whether a value may be cut so: no part of an axis twice, evenly, and as was given."""
    used = [axis for axes in dims for axis in axes]
    return (
        not any(a.overlaps(b) for a, b in itertools.combinations(used, 2))
        and all(size % shards(axes, sizes) == 0 for axes, size in zip(dims, shape, strict=True))
        and all(is_prefix(given, axes) for given, axes in zip(own, dims, strict=True))
    )


def _affordable(net: Net, found: Sequence[Sequence[Sharding]], most_effort: float) -> int:
    """How many candidates a value may have with no more effort than that; two at the least."""
    limits = range(MOST_CANDIDATES, 2, -1)
    return next((n for n, size in zip(limits, effort(net, found, limits), strict=True) if size <= most_effort), 2)


def effort(net: Net, found: Sequence[Sequence[Sharding]], most: Iterable[int] = (MOST_CANDIDATES,)) -> list[float]:
    """What the tables take to price, counted in entries, for every number of candidates that a value may have."""
    scopes = [
        (_signature(net, number, found), [len(found[n]) for n in {value.number for value in operation.values}])
        for number, operation in enumerate(net.graph.operations)
        if operation.operands
    ]
    efforts = []
    for limit in most:
        sizes = [(key, prod(min(count, limit) for count in counts)) for key, counts in scopes]
        efforts.append(sum(dict(sizes).values()) + sum(size for _, size in sizes) / KNOWN)
    return efforts


def _given(net: Net, value: Value, flow: Flow) -> tuple[Axes, ...]:
    """What was said about the dims of a value, as far as a run has seen it."""
    given, dims = net.graph.annotations.get(value), flow.dims[value.number]
    if given is None:
        return ((),) * len(dims)
    return tuple(dim.axes if is_prefix(dim.axes, axes) else () for dim, axes in zip(given.dims, dims, strict=False))


def _nearest(net: Net, flow: Flow, value: Value, chosen: Sharding, some: Sequence[Sharding]) -> list[Sharding]:
    """The candidates of a value, those first that differ from its choice by a cut."""
    mesh = net.meshes[value.number]
    if mesh.is_maximal:
        return list(some)
    own = _given(net, value, flow)
    dims = tuple(dim.axes for dim in chosen.dims)
    near = [net.sharding(value.number, one, some[0]) for one in (dims, *_cut([dims], own))]
    return list(dict.fromkeys([some[0], *near, *some]))


def _thin(net: Net, found: list[list[Sharding]]) -> None:
    """Take from the values of operations of many operands their last candidates, until their tables are small."""
    for operation in net.graph.operations:
        scope = sorted({value.number for value in operation.values}, key=lambda number: net.weights[number])
        while prod(len(found[number]) for number in scope) > LARGEST_TABLE:
            found[max(scope, key=lambda number: len(found[number]))].pop()


def _crossed(dims: list[tuple[Axes, ...]], own: tuple[Axes, ...]) -> list[tuple[Axes, ...]]:
    """The shardings with one dim as another has it; dims that have its axes go back to what was given."""
    made = []
    for axes, other in itertools.permutations(dims, 2):
        for dim, taken in enumerate(other):
            if not taken or taken == axes[dim]:
                continue
            mixed = [
                own[n] if n != dim and any(a.overlaps(b) for a in here for b in taken) else here
                for n, here in enumerate(axes)
            ]
            mixed[dim] = taken
            if not any(a.overlaps(b) for n, here in enumerate(mixed) if n != dim for a in here for b in taken):
                made.append(tuple(mixed))
    return made


def _cut(dims: list[tuple[Axes, ...]], own: tuple[Axes, ...]) -> list[tuple[Axes, ...]]:
    """The shardings with all dims, or one, cut back to what was given."""
    one = [(*axes[:n], own[n], *axes[n + 1 :]) for axes in dims for n in range(len(own))]
    return [own, *one]


def add_made(
    net: Net, chooser: Chooser, found: list[list[Sharding]], most: int = MOST_CANDIDATES, *, whole: bool = False
) -> None:
    """To every value, as its operation makes it: partial, where what uses it can wait.

    And, if wanted, whole along labels that the operation needs whole, where what uses it needs some whole too.
    """
    users: list[list[int]] = [[] for _ in found]
    for number, operation in enumerate(net.graph.operations):
        for operand in {*operation.operands}:
            users[operand.number].append(number)
    for number, (operation, rule) in enumerate(zip(net.graph.operations, net.rules, strict=True)):
        value = operation.result
        if not operation.operands or value in net.graph.annotations or operation.name in ("output", "reshard"):
            continue
        may_be_partial = any(role in COMBINED for role in rule.roles) or any(
            one.unreduced for operand in operation.operands for one in found[operand.number]
        )
        may_be_partial = may_be_partial and any(_can_wait(net.graph.operations[user]) for user in users[value.number])
        stays_whole = whole and rule.needs_whole and any(net.rules[user].needs_whole for user in users[value.number])
        if not may_be_partial and not stays_whole:
            continue
        choices = itertools.islice(
            itertools.product(*(found[o.number] for o in operation.operands)), MOST_CANDIDATES**2
        )
        for operands in choices:
            if len(found[value.number]) >= min(most, MOST_CANDIDATES):
                break
            chosen = chooser.choose(net.calculations[number], operands, None, net.trip_counts(number))
            made = chosen.layout.shardings[-1]
            if (made.unreduced or stays_whole) and made not in found[value.number]:
                found[value.number].append(made)


def _can_wait(operation: Operation) -> bool:
    return operation.name not in ("reshard", "output") and any(
        waiting_operands(operation, reduction) for reduction in ("sum", "max", "min", "product")
    )


def cheapest(net: Net, chooser: Chooser, found: Sequence[Sequence[Sharding]]) -> list[Sharding]:
    """Per value, that of its candidates with which the program costs least."""
    variables = [number for number, some in enumerate(found) if len(some) > 1]
    if not variables:
        return [some[0] for some in found]
    tables: list[CostTable] = []
    priced: dict[tuple[object, ...], Costs] = {}
    for number in sorted(_makers(net, variables)):
        operation = net.graph.operations[number]
        scope = tuple(dict.fromkeys(v.number for v in operation.values if len(found[v.number]) > 1))
        key = _signature(net, number, found)
        if key not in priced:
            priced[key] = {}
            for choice in itertools.product(*(range(len(found[v])) for v in scope)):
                picked = dict(zip(scope, choice, strict=True))
                kept = [found[v.number][picked.get(v.number, 0)] for v in operation.values]
                priced[key][choice] = Ranked(*operation_cost(net, chooser, number, kept), 0)
        tables.append(CostTable(scope, priced[key]))
    for value, likes in preferences(net, found, variables).items():
        costs: Costs = {(choice,): Ranked(*NOTHING, like) for choice, like in enumerate(likes)}
        tables.append(CostTable((value,), costs))
    chosen = least(tables, {value: len(found[value]) for value in variables}, net.weights)
    return [some[chosen.get(number, 0)] for number, some in enumerate(found)]


def _signature(net: Net, number: int, found: Sequence[Sequence[Sharding]]) -> tuple[object, ...]:
    """What the table of an operation depends on, so that equal operations share one."""
    operation = net.graph.operations[number]
    numbers = [value.number for value in operation.values]
    some = [tuple(found[value.number]) for value in operation.values]
    return (
        net.trip_counts(number),
        net.calculations[number],
        operation.name in ("reshard", "output"),
        tuple(map(numbers.index, numbers)),
        tuple(some),
    )


def preferences(net: Net, found: Sequence[Sequence[Sharding]], variables: Iterable[int]) -> dict[int, list[int]]:
    """Per value and candidate, the number that decides between choices of equal cost; the least is taken."""
    likes = {}
    for value in variables:
        keys = [_text(net, value, sharding) for sharding in found[value]]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        likes[value] = [order.index(choice) * net.weights[value] for choice in range(len(keys))]
    return likes


def _makers(net: Net, variables: Iterable[int]) -> set[int]:
    """The operations that have the values, those on another mesh too."""
    wanted = set(variables)
    return {n for n, operation in enumerate(net.graph.operations) if any(v.number in wanted for v in operation.values)}


def operation_cost(net: Net, chooser: Chooser, number: int, shardings: Sequence[Sharding]) -> Price:
    """What an operation costs with its operands, and last its result, in given shardings."""
    operation = net.graph.operations[number]
    if not operation.operands:
        return NOTHING
    *operands, result = shardings
    kept = tuple(operands)
    if operation.name in ("reshard", "output"):
        moved = chooser.prices.moved(kept[0], result, operation.result.shape, operation.result.dtype)
        return times(moved.price, operation.trip_count)
    try:
        return chooser.choose(net.calculations[number], kept, result, net.trip_counts(number)).price
    except ReshardError:
        return IMPOSSIBLE


def _text(net: Net, value: int, sharding: Sharding) -> tuple[object, ...]:
    """A key for a sharding in which no name counts: few partial axes first, then many shards."""
    names = list(net.meshes[value].sizes)
    axes = [[(names.index(a.name), a.start, a.stop) for a in dim.axes] for dim in sharding.dims]
    parts = prod(shards(dim.axes, net.meshes[value].sizes) for dim in sharding.dims)
    return (len(sharding.unreduced), -parts, axes, [(names.index(a.name), a.start, a.stop) for a in sharding.unreduced])
