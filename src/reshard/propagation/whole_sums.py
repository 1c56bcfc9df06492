"""Small sums of which little is made between a scatter and a gather, added up whole.

Where devices add up a small value, each a part of it, make something of their parts, and gather that, the placement
saves a little work; but a collective costs its start however little it moves, and two cost two.
The same sum made whole on every device receives what both receive, and is one.

By hand, on x = 2, of the sums of two rows each device takes one root, and both gather them, in two steps of a row
each; added up whole it is one step of two.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(x=2))
>>> a = program.input("a", (2, 64), "float32", Sharding.of(program.mesh, None, "x"))
>>> roots = program.op("i->i", program.op("ij->i", a, name="sum"), name="sqrt")
>>> _ = program.constrain(roots, Sharding.of(program.mesh, "x"))
>>> whole = program.reshard(roots, Sharding.of(program.mesh, None))
>>> placed = program.propagate()
>>> kinds = lambda placed: [step.kind for plan in placed.plans.values() for step in plan.steps]
>>> kinds(placed), kinds(with_whole_sums(placed, small=1024))
(['ReduceScatter', 'AllGather'], ['AllReduce'])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import prod
from typing import NamedTuple

from reshard.axis import Axes, difference
from reshard.errors import ReshardError
from reshard.operations.kinds import KINDS, KindForm
from reshard.operations.operation import Operation, Value
from reshard.planner import plan as make_plan
from reshard.plans import Plan
from reshard.propagation.placement import Placement
from reshard.sharding import Sharding

LOCAL = (KindForm.ELEMENTWISE, KindForm.MOVED, KindForm.REDUCED, KindForm.CONTRACTED)
"""What is made of parts, and as well of all of them."""


class _Between(NamedTuple):
    """What stands between a scatter and the gathers of what is made of it."""

    whole: dict[Value, Sharding]
    """What is made, as it lies when the sum is whole."""
    reshards: list[Value]
    """What gathers make, and reshards that move nothing."""


def with_whole_sums(placed: Placement, small: int) -> Placement:
    """The placed program with fewer collectives, and as many bytes.

    Args:
        placed: what was chosen.
        small: up to how many bytes a tile may have that every device makes whole.
    """
    users: dict[Value, list[Operation]] = {}
    for operation in placed.operations:
        for operand in operation.operands:
            users.setdefault(operand, []).append(operation)
    shardings, plans = dict(placed.shardings), dict(placed.plans)
    for value, plan in placed.plans.items():
        if _kinds(plan) != ["ReduceScatter"]:
            continue
        between = _between(placed, value, plan, users, small)
        if between is None:
            continue
        try:
            total = make_plan(plan.source, between.whole[value], plan.shape, plan.dtype)
        except ReshardError:
            continue
        apart = plan.received_bytes + sum(placed.plans[each].received_bytes for each in between.reshards)
        if _kinds(total) == ["AllReduce"] and total.received_bytes <= apart:
            shardings.update(between.whole)
            plans[value] = total
            for each in between.reshards:
                plans[each] = make_plan(shardings[each], shardings[each], each.shape, each.dtype)
    return replace(placed, shardings=shardings, plans=plans)


def _kinds(plan: Plan) -> list[str]:
    return [step.kind for step in plan.steps]


def _between(
    placed: Placement, scattered: Value, plan: Plan, users: Mapping[Value, Sequence[Operation]], small: int
) -> _Between | None:
    """What is made of a scattered sum, where it is small and all of it is gathered again."""
    axes, block = plan.source.unreduced, placed.operations[scattered.number].block
    between, lacking = _Between({}, []), [scattered]
    while lacking:
        value = lacking.pop()
        if value in between.whole:
            continue
        sharding = placed.shardings[value]
        whole = _uncut(sharding, axes)
        if whole == sharding or sharding.unreduced:
            return None
        if prod(whole.local_shape(value.shape)) * value.dtype.itemsize > small or value not in users:
            return None
        between.whole[value] = whole
        for operation in users[value]:
            result = operation.result
            if operation.block != block:
                return None
            if result in placed.plans:
                between.reshards.append(result)
                steps = _kinds(placed.plans[result])
                if steps == ["AllGather"] and placed.shardings[result] == whole:
                    continue
                if steps:
                    return None
            elif not _is_local(operation, {*between.whole, *lacking}):
                return None
            lacking.append(result)
    return between


def _uncut(sharding: Sharding, axes: Axes) -> Sharding:
    """A sharding whose dims some axes do not cut."""
    sizes = sharding.mesh.sizes
    return replace(sharding, dims=tuple(replace(dim, axes=difference(dim.axes, axes, sizes)) for dim in sharding.dims))


def _is_local(operation: Operation, made: Set[Value]) -> bool:
    """Whether an operation makes of whole tiles what it makes of parts: its other operands are numbers."""
    kind = KINDS.get(operation.name)
    is_known = kind is not None and kind.form in LOCAL and not operation.attribute("barrier")
    return is_known and all(not each.shape or each in made for each in operation.operands)
