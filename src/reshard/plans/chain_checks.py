"""What is refused as a plan: steps that do not lead from its source to its target, and parts that leave them.

By hand, rows on their way to everywhere: steps that go back again do not end there, and the way back alone does not
start at the rows.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> from reshard.steps import Step
>>> mesh = Mesh.of(x=2)
>>> rows, whole = Sharding.of(mesh, "x"), Sharding.of(mesh, None)
>>> there, back = Reshard.of(rows, whole, (4,)), Reshard.of(whole, rows, (4,))
>>> check_chain(there, (Step(there),))
>>> for steps in ((Step(there), Step(back)), (Step(back),)):
...     try:
...         check_chain(there, steps)
...     except ReshardError as error:
...         print(error)
the steps end at #sdy.sharding<mesh<["x"=2]>, [{"x"}]>, not at #sdy.sharding<mesh<["x"=2]>, [{}]>
step 1 starts at [{}], the one before ends at [{"x"}]
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.checks import all_of, shown
from reshard.errors import ReshardError
from reshard.problem import Reshard
from reshard.steps import Chain, Share


def check_chain(reshard: Reshard, steps: Chain, led: int = 0) -> None:
    """Refuse steps that do not lead from the source to the target, as `broken-chain`.

    Args:
        reshard: what is to be moved.
        steps: the chain.
        led: how many of the first steps the whole tensor takes before it goes in parts, which may use what is there.
    """
    if len(steps) == 1 and steps[0].reshard is reshard:  # nearly every plan
        return
    reached = kept = reshard.source
    for number, step in enumerate(steps):
        if (step.shape, step.dtype) != (reshard.shape, reshard.dtype):
            raise ReshardError("broken-chain", f"step {number + 1} is for another shape or dtype than the plan")
        if number == led:
            kept = reached
        if step.kept not in (None, kept):
            raise ReshardError(
                "broken-chain", f"step {number + 1} uses tiles of {step.kept}, which are not the plan's source"
            )
        if step.before != reached:
            raise ReshardError(
                "broken-chain",
                f"step {number + 1} starts at {step.before.text()}, the one before ends at {reached.text()}",
            )
        reached = step.after
    if reached != reshard.target and (steps or not reshard.source.is_equivalent_to(reshard.target, reshard.shape)):
        raise ReshardError("broken-chain", f"the steps end at {reached}, not at {reshard.target}")


def checked_whole(whole: tuple[int, int]) -> tuple[int, int]:
    """How many of the first and of the last steps the whole tensor takes.

    Raises:
        ReshardError: `bad-argument` where these are no two counts.
    """
    counts = all_of(whole, int, "the steps that the whole tensor takes")
    if len(counts) != 2 or min(counts) < 0:
        raise ReshardError("bad-argument", f"{shown(counts)} steps before and after parts are no two counts")
    return counts[0], counts[1]


def check_whole(reshard: Reshard, whole: tuple[int, int], shares: Sequence[Share]) -> None:
    """Refuse steps of the whole tensor that shares do not have alike, and parts between them that there are not.

    Args:
        reshard: what is to be moved.
        whole: how many of the first and of the last steps the whole tensor takes, some of them.
        shares: the parts, by the steps that they go through.

    Raises:
        ReshardError: `bad-argument`.
    """
    (first, last), parts = whole, sum(share.parts for share in shares)
    if parts == 1:
        raise ReshardError("bad-argument", f"{shown(whole)} steps before and after {parts} parts are no two counts")
    ends = {(steps[:first], steps[len(steps) - last :]) for steps, _ in shares if len(steps) > first + last}
    if len(ends) != 1 or any(len(steps) <= first + last for steps, _ in shares):
        raise ReshardError("bad-argument", f"the shares of {reshard} part before step {first + 1} or join after it")
