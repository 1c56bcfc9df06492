"""Plan a reshard: candidates, and a policy that chooses among them.

    candidates.py   chains of steps that lead from source to target
    spread.py       middles in which all devices of a host share what crosses between hosts
    legs.py         a chain whose parts are planned anew
    policy.py       which is best: fewest bytes, then steps, then rounds; or the least time on a network
    memory.py       a limit on what a device holds at once

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(D=2, Y=8, X=4, T=4)
>>> source = Sharding.of(mesh, "D", ("X", "Y"))
>>> target = Sharding.of(mesh, None, ("D", "Y", "X", "T"))
>>> plan(source, target, (2048, 2048), "float32").received_bytes
65536
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from typing import Any

from reshard.chains import Chain, chain_through, shortest_chain
from reshard.checks import expect, integer, shown
from reshard.collectives.named import cache_clear as forget_searches
from reshard.collectives.named import fewest_bytes_chain
from reshard.collectives.one_axis import one_axis_chain
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.planner.candidates import candidates
from reshard.planner.legs import with_better_legs
from reshard.planner.memory import least_peak_bytes, within_limit
from reshard.planner.policy import best_first, priced
from reshard.plans import Plan
from reshard.sharding import Sharding, checked_shape, with_mesh

__all__ = ["BASES", "cache_clear", "plan"]

LOGGER = logging.getLogger("reshard")
CACHED_PLANS = 1024
"""Plans that are kept; the one that was used longest ago makes room."""
BASES = ("any", "collectives", "one-axis", "one-axis-document")
"""Which steps a plan may have: all; named collectives; those of one mesh axis at a time, in the cheapest order or
in the order of the MLIR document."""


@dataclass(frozen=True)
class Request:
    """Everything that a plan depends on: the key of the cache."""

    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    dtype: DType
    network: Network | None
    basis: str
    memory_limit: int | None


def plan(
    source: Sharding,
    target: Sharding,
    shape: Sequence[int],
    dtype: Any = "float32",
    *,
    network: Network | str | None = None,
    basis: str = "any",
    memory_limit: int | None = None,
) -> Plan:
    """The plan that takes a tensor from one sharding to another.

    Without a network each device receives the bytes that it lacks and no others; of all such plans this is the
    one with the fewest steps, then the fewest rounds.
    With a network it is the one that takes the least time there, of those known in which no tile on the way is
    larger than the larger of the two ends; where it moves more than the bound it says so and why.
    Where an end lies on the empty mesh, it is taken as replicated on the mesh of the other.
    Plans are cached by all arguments; the cache is bounded and may be used by many threads.

    Args:
        source: where the tensor is.
        target: where it is wanted, on the same mesh or any other.
        shape: the sizes of the whole tensor.
        dtype: its element type, by either name or as NumPy's.
        network: what the devices are connected by, or the name of a preset.
        basis: which steps the plan may have: one of `BASES`.
        memory_limit: bytes that a device may hold at once; pieces then go in chunks where that is needed, and
            a tile on the way may be larger than both ends where the limit has room for it.

    Raises:
        ReshardError: `rank-mismatch`, `bad-shape`, `too-large`, `unknown-dtype`, `reduction-dtype`, `bad-network`,
            `bad-argument`; `no-plan` where parts would become partial under avg, where the basis has no way, or
            where no plan keeps the limit: the sentence names the smallest that would do.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=4)
    >>> [step.kind for step in plan(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "x", None), (8, 8)).steps]
    ['AllGather']
    """
    for sharding in (source, target):
        expect(sharding, Sharding, "an end of a plan")
    network = Network.named(network, "the network of a plan")
    if expect(basis, str, "the basis of a plan") not in BASES:
        raise ReshardError("bad-argument", f"basis {shown(basis)} must be one of {', '.join(BASES)}")
    if memory_limit is not None:
        memory_limit = integer(memory_limit, "memory_limit")
        if memory_limit < 0:
            raise ReshardError("bad-argument", f"memory_limit must be at least 0 bytes, got: {memory_limit}")
    return _planned(Request(source, target, checked_shape(shape), dtype_named(dtype), network, basis, memory_limit))


@lru_cache(CACHED_PLANS)
def _planned(request: Request) -> Plan:
    source = with_mesh(request.source, request.target.mesh)
    target = with_mesh(request.target, source.mesh)
    for sharding in (source, target):
        sharding.layout_for(request.shape)
        if sharding.unreduced:
            request.dtype.check_reduction(sharding.reduction)
    request = replace(request, source=source, target=target)
    found = _among_candidates(request) if request.basis == "any" else [_in_basis(request)]
    kept = _within([priced(one, request.network) for one in found], request)
    best = kept[0] if len(kept) == 1 else best_first(kept, request.network)[0]
    best = _with_better_legs(best, request)
    LOGGER.debug("%s -> %s: %s", source, target, ", ".join(step.kind for step in best.steps) or "nothing to do")
    return best.with_planner(partial(_alternatives, request, best), partial(_collectives, request))


def _in_basis(request: Request) -> Plan:
    """The one plan of a basis; its reason says where the search ended before it was proved the cheapest.

    Raises:
        ReshardError: `no-plan` where the search finds no chain whose steps all are what the basis has.
    """
    ends = request.source, request.target, request.shape, request.dtype
    try:
        if request.basis == "collectives":
            steps, proved = fewest_bytes_chain(*ends)
            return Plan(
                *ends, steps, reason="" if proved else "not proved to be the cheapest: the search was cut short"
            )
        order = "document" if request.basis == "one-axis-document" else "cheapest"
        return Plan(*ends, one_axis_chain(*ends, order=order))
    except ReshardError as error:
        if error.code in ("no-plan", "too-large", "reduction-dtype"):
            raise
        text = f"{request.source.text()} -> {request.target.text()}"
        raise ReshardError("no-plan", f"no chain in the basis {request.basis} is known for {text}: {error}") from error


def _chains(request: Request) -> Iterator[Chain]:
    """The chains of any steps that are worth comparing: on a network, that of named collectives too."""
    ends = request.source, request.target, request.shape, request.dtype
    if request.network is None:
        yield from candidates(*ends)
        return
    size = request.target.mesh.size
    slower = (outer.stride for inner, outer in pairwise(request.network.levels) if outer.bandwidth < inner.bandwidth)
    strides = sorted({*_strides(request), size} - {1})
    yield from candidates(*ends, strides, {stride for stride in slower if stride < size})
    with suppress(ReshardError):  # not all ends have one
        yield fewest_bytes_chain(*ends)[0]


def _strides(request: Request) -> list[int]:
    """The strides of the device number at which a level of the network begins, the innermost left out."""
    return [level.stride for level in request.network.levels[1:]] if request.network else []


def _among_candidates(request: Request) -> list[Plan]:
    """A plan of each chain worth comparing, that of the shortest first.

    No tile on the way is larger than both ends, unless a memory limit says how large it may be.
    """
    ends = request.source, request.target, request.shape, request.dtype
    found = [Plan(*ends, steps) for steps in dict.fromkeys(_chains(request))]
    if request.memory_limit is None:
        return [one for one in found if _shrinks_first(one)]
    with suppress(ReshardError):
        found.append(Plan(*ends, _gather(request)))
    return found


def _gather(request: Request) -> Chain:
    """Everything to everyone, then each its part."""
    whole = Sharding.of(request.target.mesh, *[None] * len(request.target.dims))
    return chain_through((request.source, whole, request.target), request.shape, request.dtype)


@lru_cache(CACHED_PLANS)
def _best_leg(request: Request) -> Plan:
    """The best way between points that one step joins: that step, near replicas sending or not, or collectives."""
    ends = request.source, request.target, request.shape, request.dtype
    chains = [shortest_chain(*ends, near) for near in (0, *_strides(request))]
    with suppress(ReshardError):
        chains.append(fewest_bytes_chain(*ends)[0])
    found = [priced(Plan(*ends, chain), request.network) for chain in chains]
    return best_first([one for one in found if _shrinks_first(one)], request.network)[0]


@lru_cache(CACHED_PLANS)
def _best_candidate(request: Request) -> Plan:
    """The best of the candidates on a network, its legs as they are."""
    return best_first([priced(found, request.network) for found in _among_candidates(request)], request.network)[0]


def _with_better_legs(best: Plan, request: Request) -> Plan:
    """The plan, its legs planned anew where messages wait: then what is cheapest whole need not be so in parts."""
    network = request.network
    if request.basis != "any" or network is None or not any(level.latency_s for level in network.levels):
        return best

    def replan(source: Sharding, target: Sharding, steps: int) -> Plan:
        leg = replace(request, source=source, target=target, memory_limit=None)
        return _best_leg(leg) if steps == 1 else _best_candidate(leg)

    better = with_better_legs(best, replan)
    limit = request.memory_limit
    return better if (_shrinks_first(better) if limit is None else better.peak_bytes <= limit) else best


def _shrinks_first(found: Plan) -> bool:
    """Whether no tile between is larger than the larger of the two ends."""
    sizes = [prod(end.local_shape(found.shape)) for end in (found.source, *(step.after for step in found.steps))]
    return max(sizes[1:-1], default=0) <= max(sizes[0], prod(found.target.local_shape(found.shape)))


def _within(plans: list[Plan], request: Request) -> list[Plan]:
    """The plans that keep the memory limit, in as many chunks as it takes.

    Raises:
        ReshardError: `no-plan`, with the smallest limit that would do.
    """
    limit = request.memory_limit
    if limit is None:
        return plans
    kept = [fitted for found in plans if (fitted := within_limit(found, limit)) is not None]
    if not kept:
        least = min(map(least_peak_bytes, plans))
        raise ReshardError(
            "no-plan",
            f"{request.source.text()} -> {request.target.text()} needs {least} bytes on a device at the least; "
            f"memory_limit is {limit}",
        )
    return [priced(found, request.network) for found in kept]


def _collectives(request: Request) -> Plan:
    """The plan for the same request in the basis of named collectives."""
    return _planned(replace(request, basis="collectives"))


def _alternatives(request: Request, best: Plan) -> tuple[Plan, ...]:
    """What else would do: every candidate, the collectives, and a gather of everything; each distinct, best first.

    Those whose tiles grow on the way are among them; those beyond the memory limit are not.
    """
    ends = request.source, request.target, request.shape, request.dtype
    ways: list[Callable[[], list[Chain]]] = [
        lambda: list(_chains(request)),
        lambda: [fewest_bytes_chain(*ends)[0]],
        lambda: [_gather(request)],
    ]
    plans: list[Plan] = []
    for way in ways:
        try:
            plans += [priced(Plan(*ends, steps), request.network) for steps in way()]
        except ReshardError:
            continue  # a way that does not exist for these ends is no alternative
    if request.memory_limit is not None:
        fitted = (within_limit(found, request.memory_limit) for found in plans)
        plans = [priced(found, request.network) for found in fitted if found is not None]
    distinct: dict[tuple[Any, ...], Plan] = {_outline(best): best}
    for other in best_first(plans, request.network):
        distinct.setdefault(_outline(other), other)
    return tuple(distinct.values())[1:]


def _outline(found: Plan) -> tuple[Any, ...]:
    return tuple((step.kind, step.after) for step in found.steps)


def cache_clear() -> None:
    """Forget the cached plans."""
    _planned.cache_clear()
    _best_candidate.cache_clear()
    _best_leg.cache_clear()
    forget_searches()
