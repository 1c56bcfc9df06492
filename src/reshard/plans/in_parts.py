"""What a plan that takes a tensor in parts is made of: plans one after another, and a plan for each part.

By hand, 8 elements on x=2 to all, in two parts: each is a plan for 4 of the elements, 2 on a device.

>>> from reshard.mesh import Mesh
>>> from reshard.plans.plan import Plan
>>> mesh = Mesh.of(x=2)
>>> reshard = Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (8,), "int8")
>>> plan = Plan(reshard, (step_of(reshard),), parts=2)
>>> [(part.shape, part.received_bytes) for part in plans_of_parts(plan)], plan.received_bytes
([((4,), 2), ((4,), 2)], 4)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from reshard.plans.options import Options
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Chain, Share, Step, keeping_nothing, step_of

if TYPE_CHECKING:
    from reshard.plans.plan import Plan


def stretches(plan: Plan) -> tuple[Plan, ...]:
    """The plan as plans one after another: what the whole tensor does first, what goes in parts, what is last."""
    if plan.whole == (0, 0):
        return (plan,)
    first, last = plan.whole
    inner = [steps[first : len(steps) - last] for steps, _ in plan.shares]
    source, target = inner[0][0].before, inner[0][-1].after
    reshard = replace(plan.reshard, source=source, target=target)
    beside = tuple(Share(steps, share.parts) for steps, share in zip(inner[1:], plan.beside, strict=True))
    in_parts = replace(plan, reshard=reshard, steps=inner[0], beside=beside, whole=(0, 0), remark="")
    before, after = plan.steps[:first], plan.steps[len(plan.steps) - last :]
    legs = [(before, plan.source, source), (after, target, plan.target)]
    led, followed = (
        [of_the_whole(plan, replace(plan.reshard, source=start, target=stop), steps, plan.options)] if steps else []
        for steps, start, stop in legs
    )
    return (*led, in_parts, *followed)


def plans_of_parts(plan: Plan) -> tuple[Plan, ...]:
    """What every part goes through, those of all shares in turn; equal ones are one."""
    turns = [
        ((place + 0.5) / share.parts, number)
        for number, share in enumerate(plan.shares)
        for place in range(share.parts)
    ]
    largest = plan.parting.shape(plan.shape, plan.parts)
    plans = {(number, largest): of_share for number, of_share in enumerate(plan.plans_by_share)}
    listed = []
    for place, (_, number) in enumerate(sorted(turns)):
        key = number, plan.parting.shape(plan.shape, plan.parts, place)
        if key not in plans:
            plans[key] = plan_of_part(plan, number, place)
        listed.append(plans[key])
    return tuple(listed)


def plan_of_part(plan: Plan, share: int, number: int = 0) -> Plan:
    """What a part of a share goes through: the same steps, on a tensor of its size; the first part is the largest."""
    if plan.parts == 1:
        return plan
    parting, shape = plan.parting, plan.parting.shape(plan.shape, plan.parts, number)

    def end(sharding: Sharding) -> Sharding:
        return parting.of_part(sharding, plan.shape, shape, plan.parts)

    def of_part(step: Step) -> Step:
        reshard = Reshard(end(step.before), end(step.after), shape, plan.dtype)
        kept = None if step.kept is None else end(step.kept)
        part = step_of(reshard, step.near, step.ring, kept, step.across)
        return part if step.chunks == 1 else replace(part, chunks=step.chunks)

    steps = tuple(map(of_part, plan.shares[share].steps))
    return of_the_whole(plan, Reshard(end(plan.source), end(plan.target), shape, plan.dtype), steps, Options())


def taken_whole(plan: Plan) -> Plan:
    """A plan that takes all through the steps of its first share, one after the other.

    Tiles that parts keep once a first step has led to them are not kept there.
    """
    steps = tuple(step if step.kept == plan.source else keeping_nothing(step) for step in plan.steps)
    return of_the_whole(plan, plan.reshard, steps, plan.options)


def of_the_whole(plan: Plan, reshard: Reshard, steps: Chain, options: Options) -> Plan:
    """A plan that takes all of what is to be moved through these steps."""
    return replace(plan, reshard=reshard, steps=steps, options=options, parts=1, beside=(), whole=(0, 0), remark="")
