"""Sharded einsum: the cheapest layout to compute in, planned.

    layouts.py      which axes cut which label while it is computed
    choices.py      all ways to give axes to labels
    groups.py       how fast data come into parts of a network
    bounds.py       what each way costs at the least
    moves.py        plans of single tensors, each made once
    targets.py      where a result may go whose place is open
    ranking.py      which way to price next
    search.py       the cheapest, best first
    einsum_plan.py  `EinsumPlan`
    cases.py        the four cases of a product of sharded matrices
    chains.py       more than two operands: at once, or two at a time
    paths.py        in which order
    table.py        a plan as text

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from reshard.checks import expect, listed, shown
from reshard.contraction.chains import BUDGET, chains
from reshard.contraction.choices import Problem
from reshard.contraction.einsum_plan import EinsumPlan
from reshard.contraction.moves import Moves
from reshard.contraction.search import Search
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding, with_mesh

__all__ = ["EinsumPlan", "cache_clear", "einsum"]

LOGGER = logging.getLogger("reshard")
CACHED_PLANS = 256
"""Plans that are kept; the one that was used longest ago makes room."""
ALTERNATIVES = 8
"""How many alternatives a plan has at most."""


Others = Callable[[], tuple[EinsumPlan, ...]]


@dataclass(frozen=True)
class Request:
    """Everything that a plan depends on: the key of the cache."""

    pattern: Pattern
    sources: tuple[Sharding, ...]
    sizes: tuple[int, ...]
    """Of the labels, in the pattern's order."""
    dtype: DType
    target: Sharding | None
    network: Network | None
    may_stay_partial: bool
    prove: bool


def einsum(
    expression: str | Pattern,
    *operands: Sharding,
    shapes: Sequence[Sequence[int]],
    dtype: Any = "float32",
    target: Sharding | None = None,
    network: Network | str | None = None,
    sizes: Mapping[str, int] | None = None,
    leave_partial: bool = False,
    prove: bool = False,
) -> EinsumPlan:
    """The cheapest plan of an einsum of sharded operands.

    Operands are resharded into a compute layout, in which every axis or part of an axis cuts one label or none, then
    contracted on every device, and the result is brought to the target.
    Without a network the price is the bytes that the busiest device receives, then bytes in all, steps, operations.
    With one it is seconds: communication and arithmetic one after the other.
    Without a target the result lies where it is cheapest, its sums made.
    Operands may be unreduced, and stay so where nothing else needs the axis; so may the target.
    Plans are cached by all arguments; the cache is bounded and may be used by many threads.

    Args:
        expression: a pattern as of `reshard.patterns`, such as `ij,jk->ik` or `(a b) c -> a (b c)`.
        operands: where the operands are.
        shapes: of the whole operands.
        dtype: of the elements of operands and result, by either name or as NumPy's.
        target: where the result is wanted.
        network: what the devices are connected by and how fast they compute, or the name of a preset.
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
    for sharding in operands:
        expect(sharding, Sharding, "an operand of an einsum")
    if len(operands) != len(pattern.operands):
        raise ReshardError(
            "bad-argument", f"{pattern} has {len(pattern.operands)} operands, got {len(operands)} shardings"
        )
    given = listed(shapes, "the shapes of the operands")
    if len(given) != len(operands):
        raise ReshardError("bad-argument", f"{pattern} has {len(operands)} operands, got {len(given)} shapes")
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ReshardError("bad-argument", f"sizes must be a mapping from label to size, got: {shown(sizes)}")
    found = pattern.solve_sizes(given, sizes or {})
    if target is not None:
        expect(target, Sharding, "the target of an einsum")
    network = Network.named(network, "the network of an einsum")
    mesh = _mesh_of([*operands, *([] if target is None else [target])])
    sources = tuple(with_mesh(sharding, mesh) for sharding in operands)
    target = None if target is None else with_mesh(target, mesh)
    kind = dtype_named(dtype)
    for term, end in zip(pattern.terms, [*sources, target], strict=True):
        if end is not None:
            end.layout_for(pattern.shape_of(term, found))
            if end.unreduced:
                kind.check_reduction(end.reduction)
    labels = tuple(found[label] for label in pattern.labels)
    return _planned(Request(pattern, sources, labels, kind, target, network, bool(leave_partial), bool(prove)))


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
def _planned(request: Request) -> EinsumPlan:
    pattern = request.pattern
    sizes = dict(zip(pattern.labels, request.sizes, strict=True))
    meshes = dict.fromkeys(end.mesh for end in (*request.sources, request.target) if end is not None)
    found: list[tuple[EinsumPlan, Others]] = []
    for mesh in meshes:
        problem = Problem(pattern, mesh, request.sources, request.target, sizes, request.may_stay_partial)
        moves = Moves(request.dtype, request.network)
        search = Search(problem, moves)
        if len(request.sources) > 2 and not request.prove:
            moves.allow(BUDGET)
        best = search.best(1, search.work_in_vain(request.prove))[0]
        found.append((best, search.alternatives(best, ALTERNATIVES)))
        if len(request.sources) > 2:
            found += [(made, tuple) for made in chains(problem, moves, request.prove)]
    (best, others), *rest = sorted(found, key=lambda pair: pair[0].price)
    LOGGER.debug("%s: %s", pattern, best.case)
    return best.with_alternatives(partial(_alternatives, others, [made for made, _ in rest]))


def _alternatives(others: Others, rest: Sequence[EinsumPlan]) -> tuple[EinsumPlan, ...]:
    """Other layouts of the same search, and what else was found; best first."""
    return tuple(sorted([*others(), *rest], key=lambda made: made.price)[:ALTERNATIVES])


def cache_clear() -> None:
    """Forget the cached plans."""
    _planned.cache_clear()
