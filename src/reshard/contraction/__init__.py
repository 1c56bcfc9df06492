"""Sharded einsum, and the one chooser of an operation's compute layout: where it is computed, at the least cost.

An operation on sharded tensors is computed in a compute layout: every axis of the mesh cuts one label, or none.
Operands are brought to their part of it, each device computes, and the result is brought to where it is wanted.
What that costs is said in one place (`prices.py`): the bytes of the busiest device over all these reshards together,
or seconds on a network, arithmetic included, counted along the path of the contraction.
Programs (`reshard.propagation`) ask the same chooser.

    tasks.py           what is computed, from where to where
    compute_layout.py  which axes cut which label meanwhile
    rows.py            all ways to give axes to labels
    goal.py            what is made least
    prices.py          what things cost, and the memo of the planner's answers
    chooser.py         the cheapest of the layouts that the tensors have
    best_first.py      the cheapest of all, best first
    bounds.py          what each way costs at the least
    ranking.py         which way to price next
    targets.py         where a result may go whose place is open
    einsum_plan.py     `EinsumPlan`
    cases.py           the four cases of a product of sharded matrices
    pairwise.py        more than two operands: at once, or two at a time
    paths.py           in which order
    formula.py         a plan as text

By hand, on X = 4: A[I, J_X] of 64 x 8 and B[J, K] of 8 x 64, to C whole. To gather A costs a device 3/4 of 64 x 8
elements of 4 bytes, 1536; to slice B and sum up C twice 3/4 of 64 x 64 of them, 24576. So A is gathered.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(X=4)
>>> plan = einsum(
...     "ij,jk->ik", Sharding.of(mesh, None, "X"), Sharding.of(mesh, None, None), shapes=[(64, 8), (8, 64)],
...     target=Sharding.of(mesh, None, None),
... )
>>> plan.case, [step.kind for step in plan.operands[0].steps], plan.received_bytes
('case 2', ['AllGather'], 1536)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, overload

from reshard import planner
from reshard.checks import listed
from reshard.contraction.best_first import Search
from reshard.contraction.chooser import Chooser
from reshard.contraction.einsum_plan import EinsumPlan
from reshard.contraction.goal import Goal
from reshard.contraction.pairwise import Contracted, best_way, pairwise
from reshard.contraction.prices import Effort
from reshard.contraction.tasks import Calculation, Task
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.garbage import uncollected
from reshard.mesh import Mesh
from reshard.network import Network, check_reach
from reshard.notation.described import check_settled, described, dtype_said, shape_said
from reshard.operations.pattern import Pattern
from reshard.plans import Plan
from reshard.sharding import Sharding, with_mesh

__all__ = ["EinsumPlan", "alternatives", "cache_clear", "einsum"]

LOGGER = logging.getLogger("reshard")
CACHED_PLANS = 256
"""Plans that are kept; the one that was used longest ago makes room."""
ALTERNATIVES = 8
"""How many alternatives a plan has at most."""


@dataclass(frozen=True)
class Asked:
    """Everything that the plan of an einsum depends on: the key of the cache."""

    pattern: Pattern
    sources: tuple[Sharding, ...]
    sizes: tuple[int, ...]
    """Of the labels, in the pattern's order."""
    dtype: DType
    target: Sharding | None
    goal: Goal
    may_stay_unreduced: bool = False
    prove: bool = False

    def tasks(self) -> list[Task]:
        """The einsum as a task on every mesh on which some end of it lies."""
        sizes = dict(zip(self.pattern.labels, self.sizes, strict=True))
        calculation = Calculation.of_einsum(self.pattern, sizes, self.dtype)
        meshes = dict.fromkeys(end.mesh for end in (*self.sources, self.target) if end is not None)
        return [Task(calculation, mesh, self.sources, self.target, self.may_stay_unreduced) for mesh in meshes]


def einsum(
    expression: str | Pattern,
    *operands: Any,
    shapes: Sequence[Sequence[int]] | None = None,
    dtype: Any = None,
    target: Any = None,
    network: Network | str | None = None,
    goal: str | None = None,
    sizes: Mapping[str, int] | None = None,
    leave_partial: bool = False,
    prove: bool = False,
) -> EinsumPlan:
    """The cheapest plan of an einsum of sharded operands.

    Operands are resharded into a compute layout, in which every axis or part of an axis cuts one label or none, then
    contracted on every device, and the result is brought to the target.
    Without a network the price is the bytes that the busiest device receives, then bytes in all, steps, operations;
    under the goal `balanced` bytes and operations weighed (`reshard.contraction.goal`), as in programs.
    With one it is seconds: communication and arithmetic one after the other.
    Without a target the result lies where it is cheapest, its sums made.
    Operands may be unreduced, and stay so where nothing else needs the axis; so may the target.
    Plans are cached by all arguments; the cache is bounded and may be used by many threads.

    Args:
        expression: a pattern as of `reshard.operations.pattern`, such as `ij,jk->ik` or `(a b) c -> a (b c)`.
        operands: where the operands are: by whatever `plan` takes, or arrays, which bring their shapes and dtype.
        shapes: of the whole operands; those of the arrays unless given.
        dtype: of the elements of operands and result, by any name or as NumPy's, JAX's or torch's; that of the first
            array unless given, and float32 where there is none.
        target: where the result is wanted, likewise.
        network: what the devices are connected by and how fast they compute, or the name of a preset.
        goal: `bytes`, unless given, or `balanced`; on a network `seconds`, or `balanced` as its devices compute.
        sizes: of labels that the shapes do not determine.
        leave_partial: whether, without a target, sums over cut labels may be left to the next operation to make.
        prove: whether to search on until no other layout can be cheaper; without it a search on a network, or of
            many axes, ends once much was planned in vain, the later the more there seems to be saved, or, of more
            than two operands, once so many moves are planned as a budget allows, and `is_proved` says so.

    Raises:
        ReshardError: `syntax`, `rank-mismatch`, `bad-shape`, `bad-argument`, `unknown-dtype`, `reduction-dtype`,
            `bad-network`, `different-meshes`, `no-plan`, `too-large`.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=4)
    >>> plan = einsum("(a b) -> a b", Sharding.of(mesh, "x"), shapes=[(8,)], sizes={"a": 2})
    >>> plan.target.text(), plan.received_bytes
    ('[{"x":(1)2}, {"x":(2)2}]', 0)
    """
    pattern = Pattern.of(expression)
    pattern.check_count(len(operands), " shardings")
    if target is not None:
        check_settled(target)
    tensors = described([*operands, *([] if target is None else [target])], [len(term) for term in pattern.terms])
    said_shapes = [None] * len(operands) if shapes is None else listed(shapes, "the shapes of the operands")
    pattern.check_count(len(said_shapes), " shapes")
    listing = [
        shape_said([tensor], shape, f"operand {number}")
        for number, (tensor, shape) in enumerate(zip(tensors, said_shapes, strict=False), 1)
    ]
    solved = pattern.solve_sizes(listing, sizes)
    shardings = [tensor.sharding for tensor in tensors]
    aim = Goal.of(goal, Network.named(network, "the network of an einsum"))
    mesh = _mesh_of(shardings)
    for number, sharding in enumerate(shardings):
        sharding.check_plain("an operand of an einsum" if number < len(operands) else "the target of an einsum")
    sources = tuple(with_mesh(sharding, mesh) for sharding in shardings[: len(operands)])
    wanted_target = None if target is None else with_mesh(shardings[-1], mesh)
    kind = dtype_named(dtype_said(tensors, dtype))
    for term, end in zip(pattern.terms, [*sources, wanted_target], strict=True):
        if end is not None:
            end.layout_for(pattern.shape_of(term, solved))
            if end.unreduced:
                kind.check_reduction(end.reduction)
    labels = tuple(solved[label] for label in pattern.labels)
    return _planned(Asked(pattern, sources, labels, kind, wanted_target, aim, bool(leave_partial), bool(prove)))


def _mesh_of(shardings: Sequence[Sharding]) -> Mesh:
    """The first mesh with axes.

    Raises:
        ReshardError: `different-meshes` where an operand lies on a mesh of one device, without axes.
    """
    for sharding in shardings:
        if sharding.mesh.is_maximal:
            raise ReshardError("different-meshes", f"sharding {sharding} is on a mesh without axes, which cut no label")
    return next((sharding.mesh for sharding in shardings if not sharding.mesh.is_empty), shardings[0].mesh)


@lru_cache(CACHED_PLANS)
@uncollected()
def _planned(asked: Asked) -> EinsumPlan:
    tasks = asked.tasks()
    network = asked.goal.network
    if network is not None:
        for task in tasks:
            check_reach(network, task.mesh)
    chooser = Chooser(asked.goal, by_larger=not asked.prove)
    candidates = [best_way(task, chooser, Effort(network), prove=asked.prove).plan(chooser) for task in tasks]
    best = min(candidates, key=lambda plan: plan.price)
    LOGGER.debug("%s: %s", asked.pattern, best.case)
    return best


@overload
def alternatives(plan: Plan) -> tuple[Plan, ...]: ...
@overload
def alternatives(plan: EinsumPlan, *, anywhere: bool = False) -> tuple[EinsumPlan, ...]: ...
def alternatives(plan: Plan | EinsumPlan, *, anywhere: bool = False) -> tuple[Plan, ...] | tuple[EinsumPlan, ...]:
    """What else would do what a plan does, on its network, best first: for a reshard, the planner's other plans.

    Args:
        plan: of a reshard, or of an einsum.
        anywhere: whether the result of an einsum may also lie elsewhere.

    >>> mesh = Mesh.of(X=4)
    >>> ends = Sharding.of(mesh, None, "X"), Sharding.of(mesh, "X", None)
    >>> plan = einsum("ij,jk->ik", *ends, shapes=[(8, 64), (64, 8)], target=Sharding.of(mesh, None, None))
    >>> plan.received_bytes, alternatives(plan)[0].received_bytes
    (384, 1024)
    """
    if not isinstance(plan, EinsumPlan):
        return planner.alternatives(plan)
    sources = {
        origin: operand.source
        for part in plan.parts()
        for origin, operand in zip(part.inputs, part.operands, strict=True)
        if isinstance(origin, int)
    }
    asked = Asked(
        plan.expression,
        tuple(sources[number] for number in sorted(sources)),
        tuple(plan.expression_sizes.values()),
        plan.dtype,
        None if anywhere else plan.target,
        plan.goal,
    )
    return tuple(other for other in _ranked(asked) if other != replace(plan, is_proved=other.is_proved))[:ALTERNATIVES]


@lru_cache(CACHED_PLANS)
def _ranked(asked: Asked) -> tuple[EinsumPlan, ...]:
    """The cheapest plans of distinct layouts, and along distinct paths, best first."""
    plans: list[EinsumPlan] = []
    for task in asked.tasks():
        chooser, effort = Chooser(asked.goal, by_larger=True), Effort(asked.goal.network)
        numbers = tuple(range(len(asked.sources)))
        search = Search(task, chooser, effort)
        best = search.best(chooser.first(task), ALTERNATIVES + 1, search.hasty())
        ways = [Contracted(task, chosen, numbers) for chosen in best]
        if len(asked.sources) > 2:
            ways += pairwise(task, chooser, effort, prove=False)
        plans += [way.plan(chooser) for way in ways]
    return tuple(sorted(dict.fromkeys(plans), key=lambda plan: plan.price))


def cache_clear() -> None:
    """Forget the cached plans."""
    _planned.cache_clear()
    _ranked.cache_clear()
