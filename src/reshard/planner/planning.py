"""Choose a plan among candidates, and say what else would do.

Both are questions to the planner: a plan is a value that holds what was asked (`Plan.reshard`, `Plan.options`), so
whoever has an equal one, pickled, copied or read from JSON, gets the same answers.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4)
>>> chosen = plan(Sharding.of(mesh, "y", None), Sharding.of(mesh, "x", "y"), (8, 8))
>>> [[step.kind for step in way.steps] for way in (chosen, *alternatives(chosen))]
[['Exchange'], ['Slice', 'Permute', 'AllToAll'], ['AllGather', 'Slice']]
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from reshard.checks import checked_shape
from reshard.collectives.fewest_bytes import fewest_bytes_chain
from reshard.collectives.one_axis import one_axis_chain
from reshard.errors import ReshardError
from reshard.garbage import uncollected
from reshard.network import Network, best_cut, forget_steps, least_transfers
from reshard.notation.described import array_said, check_settled, described, dtype_said, shape_said
from reshard.planner import better_legs, soonest
from reshard.planner.candidates import all_gathered, candidates, gathered
from reshard.planner.level_ways import LevelWays
from reshard.planner.memory_limit import least_peak_bytes, within_limit
from reshard.planner.number_of_parts import overlapped
from reshard.planner.policy import best_first, best_plan, explained, shrinks_first
from reshard.planner.route_prices import RoutePrices, has_too_many_pieces
from reshard.planner.soonest import CACHED_PLANS, fastest_plan
from reshard.planner.spread import all_cuts
from reshard.planner.step_prices import StepPrices
from reshard.plans import Options, Plan
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Route, chains_of, step_of

LOGGER = logging.getLogger("reshard")


def plan(
    source: Any,
    target: Any,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    *,
    network: Network | str | None = None,
    basis: str = "any",
    memory_limit: int | None = None,
) -> Plan:
    """The plan that takes a tensor from one sharding to another.

    Without a network each device receives the bytes that it lacks and no others; of all such plans this is the
    one with the fewest steps, then the fewest rounds.
    With a network it is the one that takes the least time there, of those known in which no tile on the way is
    larger than the larger of the two ends, or than 64 MiB; where it moves more than the bound it says so and why.
    Where an end lies on the empty mesh, it is taken as replicated on the mesh of the other.
    Plans are cached by all arguments; the cache is bounded and may be used by many threads.

    Args:
        source: where the tensor is: a `Sharding`, a text of any form, a sharding, spec or placements of JAX or torch;
            or the array itself, which brings its shape and dtype. One that lies nowhere in particular, such as
            NumPy's, is whole on every device.
        target: where it is wanted, on the same mesh or any other, likewise. A side without a mesh is on the other's.
        shape: the sizes of the whole tensor; that of the array unless given. An array or a type, as `bf16[8,4]`,
            says its dtype too.
        dtype: its element type, by any name or as NumPy's, JAX's or torch's; that of the array unless given, and
            float32 where there is none.
        network: what the devices are connected by, or the name of a preset.
        basis: which steps the plan may have: one of `BASES`.
        memory_limit: bytes that a device may hold at once; pieces then go in chunks where that is needed, and
            a tile on the way may be larger than both ends where the limit has room for it, and steps do not overlap.

    Raises:
        ReshardError: `rank-mismatch`, `bad-shape`, `too-large`, `unknown-dtype`, `reduction-dtype`, `bad-network`,
            `bad-argument`; `no-plan` where parts would become partial under avg, where the basis has no way, or
            where no plan keeps the limit: the sentence names the smallest that would do.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=4)
    >>> [step.kind for step in plan(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "x", None), (8, 8)).steps]
    ['AllGather']
    """
    options = Options(Network.named(network, "the network of a plan"), basis, memory_limit)
    return _planned(reshard_of(source, target, shape, dtype), options)


def reshard_of(source: Any, target: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Reshard:
    """What is to be moved, by whatever words `plan` takes.

    Raises:
        ReshardError: as `plan`; `unknown-mesh` where neither side has a mesh.

    >>> print(reshard_of("S(0)", '<mesh<["x"=4]>, [{}, {"x"}]>', (8, 8)))
    [{"x"}, {}], uneven=chunk -> [{}, {"x"}]
    """
    if type(shape) is not tuple and (said := array_said(shape)) is not None:
        is_list = len(said.shape) == 1 and isinstance(shape, Iterable)  # of sizes, in an array
        shape, dtype = (shape, dtype) if is_list else (said.shape, said.dtype if dtype is None else dtype)
    if isinstance(source, Sharding) and isinstance(target, Sharding) and shape is not None:
        return Reshard.of(source, target, shape, "float32" if dtype is None else dtype)
    check_settled(target)
    rank = None if shape is None else len(checked_shape(shape))
    for tensor in (source, target):  # whoever knows how many dims there are says it to the other
        if rank is None:
            array = array_said(tensor)
            rank = len(array.shape) if array is not None else tensor.ndim if isinstance(tensor, Sharding) else None
    ends = described([source, target], [rank, rank])
    return Reshard.of(
        ends[0].sharding, ends[1].sharding, shape_said(ends, shape, "the tensor"), dtype_said(ends, dtype)
    )


@lru_cache(CACHED_PLANS)
def _planned(reshard: Reshard, options: Options) -> Plan:
    network = options.network
    if options.basis == "any" and network is not None and options.memory_limit is None:
        with uncollected():
            best = fastest_plan(reshard, network, options)
            if best.received_bytes > best.lower_bound_bytes:
                steps = Route().chain(reshard)
                if not has_too_many_pieces(steps):
                    best = explained(best, Plan(reshard, steps, options))
    else:
        plans = _within(_known_plans(reshard, options))
        best = best_plan(plans)
        if network is not None:
            best = explained(better_legs.with_better_legs(best), plans[0])
    LOGGER.debug("%s: %s", reshard, ", ".join(step.kind for step in best.steps) or "nothing to do")
    return best


def _known_plans(reshard: Reshard, options: Options) -> list[Plan]:
    """Every plan of a basis that is known; without a memory limit none whose tiles grow on the way, if any do not."""
    if options.basis != "any":
        return [_in_basis(reshard, options)]
    routes = candidates(reshard, options.network)
    if options.memory_limit is not None:  # in chunks, values would be combined in another order on every device
        routes = (route for route in routes if route.near != 1)
    plans = [Plan(reshard, steps, options) for steps in chains_of(reshard, routes)]
    if options.memory_limit is None:
        return list(filter(shrinks_first, plans)) or plans
    with suppress(ReshardError):
        plans.append(Plan(reshard, gathered(reshard).chain(reshard), options))
    return plans


def _in_basis(reshard: Reshard, options: Options) -> Plan:
    """The one plan of a basis; its reason says where the search ended before it was proved the cheapest.

    Raises:
        ReshardError: `no-plan` where the search finds no chain whose steps all are what the basis has.
    """
    try:
        if options.basis == "collectives":
            steps, is_proved = fewest_bytes_chain(reshard)
            reason = "" if is_proved else "not proved to be the cheapest: the search was cut short"
            return Plan(reshard, steps, options, reason)
        order = "document" if options.basis == "one-axis-document" else "cheapest"
        return Plan(reshard, one_axis_chain(reshard, order=order), options)
    except ReshardError as error:
        if error.code in ("no-plan", "too-large", "reduction-dtype"):
            raise
        raise ReshardError(
            "no-plan", f"no chain in the basis {options.basis} is known for {reshard}: {error}"
        ) from error


def _within(plans: list[Plan]) -> list[Plan]:
    """The plans that keep their memory limit, in as many chunks as it takes.

    Raises:
        ReshardError: `no-plan`, with the smallest limit that would do.
    """
    fitting = [fitted for plan in plans if (fitted := within_limit(plan)) is not None]
    if not fitting:
        least = min(map(least_peak_bytes, plans))
        raise ReshardError(
            "no-plan",
            f"{plans[0].reshard} needs {least} bytes on a device at the least; "
            f"memory_limit is {plans[0].options.memory_limit}",
        )
    return fitting


@lru_cache(CACHED_PLANS)
def alternatives(plan: Plan) -> tuple[Plan, ...]:
    """What else would do: every candidate, the collectives, and a gather of everything; each distinct, best first.

    Those whose tiles grow on the way are among them; those beyond the memory limit of the plan are not.
    """
    plans: list[Plan] = []
    for route in _all_ways(plan.reshard, plan.options.network):
        with suppress(ReshardError):  # what cannot be made, or has pieces too many to be priced
            way = within_limit(Plan(plan.reshard, route.chain(plan.reshard), plan.options))
            plans += [] if way is None else [overlapped(way)]
    distinct = {_outline(plan): plan}
    for way in best_first(plans):
        distinct.setdefault(_outline(way), way)
    return tuple(distinct.values())[1:]


def _all_ways(reshard: Reshard, network: Network | None) -> Iterator[Route]:
    with suppress(ReshardError):  # a way that does not exist for these ends is no alternative
        yield from candidates(reshard, network)
    with suppress(ReshardError):
        yield Route(steps=fewest_bytes_chain(reshard)[0])
    with suppress(ReshardError):
        yield all_gathered(reshard)


def _outline(plan: Plan) -> tuple[tuple[str, Sharding], ...]:
    return tuple((step.kind, step.after) for step in plan.steps)


def cache_clear() -> None:
    """Forget the cached plans; what is known of digits, whatever tensor they cut, is kept."""
    _planned.cache_clear()
    soonest.cache_clear()
    alternatives.cache_clear()
    better_legs.cache_clear()
    all_cuts.cache_clear()
    RoutePrices.of.cache_clear()
    StepPrices.of.cache_clear()
    LevelWays.of.cache_clear()
    step_of.cache_clear()
    forget_steps()
    best_cut.cache_clear()
    least_transfers.cache_clear()
