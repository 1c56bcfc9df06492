"""Which branch a pair of shardings takes: the questions that XLA's partitioner asks, in its order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reshard.checks import checked_shape
from reshard.errors import ReshardError
from reshard.notation.plain import check_blocks
from reshard.sharding import Sharding
from reshard.xla.partitioner.branches import BRANCHES, Branch
from reshard.xla.partitioner.device_arrays import (
    DeviceArray,
    can_permute,
    dim_to_split,
    grouped,
    refined,
    renumbering,
    shifted,
    spread,
    swapped,
    swaps,
    ungrouped,
    whole_dim,
)

_BRANCH_NAMED = {branch.name: branch for branch in BRANCHES}


@dataclass(frozen=True, slots=True)
class TakenBranch:
    """Which branch a pair of shardings takes."""

    branch: Branch
    """The first that says yes."""
    why: str
    """A sentence."""
    collectives: tuple[str, ...] = ()
    """What is sent, in order."""
    inner: tuple[str, ...] = ()
    """The names of the branches that are taken within it, in order."""
    is_warned: bool = False
    """Whether the log says that the whole tensor is gathered."""

    @property
    def communication(self) -> str:
        """What it comes to, one of `COMMUNICATIONS`."""
        if self.is_warned:
            return "full gather"
        kinds = ("all-gather", "all-to-all", "collective-permute")
        return next((kind for kind in kinds if kind in self.collectives), "none")


def explain(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> TakenBranch:
    """The branch that XLA takes from one sharding to another.

    Args:
        source: where the tensor is.
        target: where it is wanted, on the same devices.
        shape: of the whole tensor.

    Raises:
        ReshardError: `bad-argument` for unreduced values and meshes without axes; `cannot-express` for chunks of
            chunks; `different-meshes` where the devices are others; `rank-mismatch`, `bad-shape`.
    """
    shape = checked_shape(shape)
    for sharding in (source, target):
        if sharding.mesh.is_maximal or sharding.mesh.is_empty or sharding.unreduced:
            raise ReshardError("bad-argument", f"{sharding} is no placement of whole values over a mesh")
        check_blocks(sharding, "XLA's partitioner")
        sharding.layout_for(shape)
    if not np.array_equal(np.sort(source.mesh.device_array), np.sort(target.mesh.device_array)):
        raise ReshardError("different-meshes", f"meshes {source.mesh} and {target.mesh} are of different devices")
    return _route_or_gather(DeviceArray.of(source), DeviceArray.of(target), shape)


# The questions, in order. None says no; a route ends in the target.


def _route(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...]) -> TakenBranch | None:
    if source.equals(target):
        return TakenBranch(_BRANCH_NAMED["same"], "both shardings are one")
    if source.is_replicated:
        why = "every device holds the whole tensor and cuts its tile from it"
        return TakenBranch(_BRANCH_NAMED["slice the whole"], why)
    for ask in (_permute, _all_to_all, _slice, _shift_then_slice, _gather, _gather_then_shift):
        route = ask(source, target)
        if route is not None:
            return route
    if target.is_replicated:
        return TakenBranch(_BRANCH_NAMED["replicate"], "every device needs the whole tensor", ("all-gather",))
    return _complex(source, target, shape) or _group(source, target, shape)


def _route_or_gather(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...]) -> TakenBranch:
    why = f"no branch leads from {_described(source)} to {_described(target)}"
    gather = TakenBranch(_BRANCH_NAMED["full gather"], why, ("all-gather",), is_warned=True)
    return _route(source, target, shape) or gather


def _described(array: DeviceArray) -> str:
    return f"{array.counts_text} tiles" + (f" in {array.copies} copies" if array.has_copies else "")


def _joined(branch: str, why: str, *routes: TakenBranch | None) -> TakenBranch | None:
    """One route after another, all of them found within one branch; None where one was not found."""
    taken = [route for route in routes if route is not None]
    if len(taken) < len(routes):
        return None
    names = tuple(name for route in taken for name in (route.branch.name, *route.inner) if route.branch.name != "same")
    sent = tuple(name for route in taken for name in route.collectives)
    return TakenBranch(_BRANCH_NAMED[branch], why, sent, names, any(route.is_warned for route in taken))


def _in_order(source: DeviceArray, target: DeviceArray) -> tuple[str, ...]:
    return ("collective-permute",) if can_permute(source, target) else ()


def _permute(source: DeviceArray, target: DeviceArray) -> TakenBranch | None:
    if not can_permute(source, target):
        return None
    why = f"both have {_described(source)}, on other devices"
    return TakenBranch(_BRANCH_NAMED["permute"], why, ("collective-permute",))


def _all_to_all(source: DeviceArray, target: DeviceArray) -> TakenBranch | None:
    pairs = swaps(source, target)
    if pairs is None:
        return None
    reached, sends = source, []
    # One all-to-all makes all swaps whose dims are in no other; each of the rest takes its own.
    seen: set[int] = set()
    together: list[tuple[int, int]] = []
    apart: list[tuple[int, int]] = []
    for pair in sorted(pairs, key=lambda pair: pair[1]):
        if seen & set(pair):
            apart.append(pair)
        else:
            together.append(pair)
            seen |= set(pair)
    groups = [together, *([pair] for pair in apart)] if len(together) > 1 else [[pair] for pair in pairs]
    for group in groups:
        for large, small in group:
            if reached.devices.shape[large] % reached.devices.shape[small]:
                return None
            reached = swapped(reached, large, small)
        sends.append("all-to-all")
    dims = ", ".join(f"{large} to {small}" for large, small in pairs)
    why = f"the tiles of {source.counts_text} become {target.counts_text} by moving cuts between dims: {dims}"
    if not reached.equals(target):
        why += "; a permute then sets the order of devices"
    return TakenBranch(_BRANCH_NAMED["all-to-all"], why, (*sends, *_in_order(reached, target)))


def _slice(source: DeviceArray, target: DeviceArray) -> TakenBranch | None:
    between = None if target.is_replicated else refined(source, target)
    if between is None:
        return None
    why = f"the source is replicated, and its {source.counts_text} tiles can be cut further into {target.counts_text}"
    permutes = _in_order(between, target)
    why += "; a permute then sets the order of devices" if permutes else ""
    return TakenBranch(_BRANCH_NAMED["slice"], why, permutes)


def _gather(source: DeviceArray, target: DeviceArray) -> TakenBranch | None:
    between = None if target.is_replicated else refined(target, source)
    if between is None:
        return None
    why = f"the target is replicated, and its {target.counts_text} tiles are made of {source.counts_text} ones"
    permutes = _in_order(source, between)
    why += "; a permute first sets the order of devices" if permutes else ""
    return TakenBranch(_BRANCH_NAMED["gather"], why, (*permutes, "all-gather"))


def _shift_then_slice(source: DeviceArray, target: DeviceArray) -> TakenBranch | None:
    between = None if target.is_replicated else shifted(target, source)
    route = None if between is None else _all_to_all(source, between)
    return _joined("shift then slice", "the source's cuts move on by one dim, and its copies cut the last", route)


def _gather_then_shift(source: DeviceArray, target: DeviceArray) -> TakenBranch | None:
    between = None if target.is_replicated else shifted(source, target)
    route = None if between is None else _all_to_all(between, target)
    if between is None or route is None:
        return None
    why = "the last cut dim is gathered, and the other cuts move back by one dim"
    return _joined("gather then shift", why, _gather(source, between), route)


# Branches that change the question and ask again.


def _complex(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...]) -> TakenBranch | None:
    dim = dim_to_split(source, target, shape)
    if dim is not None:
        return _split(source, target, shape, dim)
    gathered = whole_dim(source, target)
    if gathered is not None:
        why = f"as many copies as the target has come from one dim of {source.counts_text}, which is gathered first"
        routes = _route_or_gather(source, gathered, shape), _route(gathered, target, shape)
        return _joined("gather a dim first", why, *routes)
    thinned = spread(source, target)
    if thinned is not None:
        why = f"the {source.copies} copies of the source first cut a dim of their own"
        routes = _route_or_gather(source, thinned, shape), _route(thinned, target, shape)
        return _joined("spread copies first", why, *routes)
    return None


def _split(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...], dim: int) -> TakenBranch | None:
    low = min(source.counts[dim], target.counts[dim])

    def cut(array: DeviceArray) -> DeviceArray:
        sizes = list(array.devices.shape)
        sizes[dim : dim + 1] = [low, sizes[dim] // low]
        return DeviceArray(array.devices.reshape(sizes), array.has_copies)

    rest = -(-shape[dim] // source.counts[dim]) * cut(source).counts[dim + 1]
    longer = (*shape[:dim], max(shape[dim] // max(rest, 1), 1), rest, *shape[dim + 1 :])
    why = f"dim {dim}, in {source.counts[dim]} parts here and in {target.counts[dim]} there, is taken as two dims"
    return _joined("split a dim", why, _route(cut(source), cut(target), longer))


def _group(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...]) -> TakenBranch | None:
    equal = [dim for dim, (a, b) in enumerate(zip(source.counts, target.counts, strict=True)) if a == b > 1]
    if not equal:
        return None
    groups, source_within = grouped(source, equal)
    target_groups, target_within = grouped(target, equal)
    order = renumbering(target_groups, groups)
    if order is not None and not target_within.is_replicated:
        target_within = DeviceArray(order[target_within.devices], target_within.has_copies)
    local = tuple(-(-size // source.counts[dim]) if dim in equal else size for dim, size in enumerate(shape))
    route = _route_or_gather(source_within, target_within, local)
    permutes = _in_order(ungrouped(groups, target_within, target, equal), target)
    why = f"dims {', '.join(map(str, equal))} have as many parts in both, so devices that agree there form groups"
    return _joined("group equal dims", why, replace(route, collectives=route.collectives + permutes))
