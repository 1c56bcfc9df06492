"""Which branch a pair of shardings takes: the questions that XLA's partitioner asks, in its order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reshard.errors import ReshardError
from reshard.notation.plain import check_blocks
from reshard.sharding import Sharding, checked_shape
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
    inner: tuple[str, ...]
    """The names of the branches that are taken within it, in order."""
    collectives: tuple[str, ...]
    """What is sent, in order."""
    communication: str
    """What it comes to, one of `COMMUNICATIONS`."""


class _Route(NamedTuple):
    branch: str
    why: str
    sends: tuple[str, ...]
    inner: tuple[str, ...] = ()
    warned: bool = False

    @property
    def communication(self) -> str:
        """One of `COMMUNICATIONS`."""
        if self.warned:
            return "full gather"
        return next((name for name in ("all-gather", "all-to-all", "collective-permute") if name in self.sends), "none")


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
    route = _route_or_gather(DeviceArray.of(source), DeviceArray.of(target), shape)
    return TakenBranch(_BRANCH_NAMED[route.branch], route.why, route.inner, route.sends, route.communication)


# The questions, in order. None says no; a route ends in the target.


def _route(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...]) -> _Route | None:
    if source.equals(target):
        return _Route("same", "both shardings are one", ())
    if source.is_replicated:
        return _Route("slice the whole", "every device holds the whole tensor and cuts its tile from it", ())
    for ask in (_permute, _all_to_all, _slice, _shift_then_slice, _gather, _gather_then_shift):
        route = ask(source, target)
        if route is not None:
            return route
    if target.is_replicated:
        return _Route("replicate", "every device needs the whole tensor", ("all-gather",))
    return _complex(source, target, shape) or _group(source, target, shape)


def _route_or_gather(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...]) -> _Route:
    route = _route(source, target, shape)
    if route is not None:
        return route
    why = f"no branch leads from {_described(source)} to {_described(target)}"
    return _Route("full gather", why, ("all-gather",), warned=True)


def _described(array: DeviceArray) -> str:
    return f"{array.counts_text} tiles" + (f" in {array.copies} copies" if array.has_copies else "")


def _joined(branch: str, why: str, *routes: _Route | None) -> _Route | None:
    """One route after another, all of them found within one branch; None where one was not found."""
    taken = [route for route in routes if route is not None]
    if len(taken) < len(routes):
        return None
    names = tuple(name for route in taken for name in (route.branch, *route.inner) if route.branch != "same")
    sent = tuple(name for route in taken for name in route.sends)
    return _Route(branch, why, sent, names, any(route.warned for route in taken))


def _in_order(source: DeviceArray, target: DeviceArray) -> tuple[str, ...]:
    return ("collective-permute",) if can_permute(source, target) else ()


def _permute(source: DeviceArray, target: DeviceArray) -> _Route | None:
    if not can_permute(source, target):
        return None
    why = f"both have {_described(source)}, on other devices"
    return _Route("permute", why, ("collective-permute",))


def _all_to_all(source: DeviceArray, target: DeviceArray) -> _Route | None:
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
    return _Route("all-to-all", why, (*sends, *_in_order(reached, target)))


def _slice(source: DeviceArray, target: DeviceArray) -> _Route | None:
    between = None if target.is_replicated else refined(source, target)
    if between is None:
        return None
    why = f"the source is replicated, and its {source.counts_text} tiles can be cut further into {target.counts_text}"
    sends = _in_order(between, target)
    return _Route("slice", why + ("; a permute then sets the order of devices" if sends else ""), sends)


def _gather(source: DeviceArray, target: DeviceArray) -> _Route | None:
    between = None if target.is_replicated else refined(target, source)
    if between is None:
        return None
    why = f"the target is replicated, and its {target.counts_text} tiles are made of {source.counts_text} ones"
    sends = _in_order(source, between)
    return _Route(
        "gather",
        why + ("; a permute first sets the order of devices" if sends else ""),
        (*sends, "all-gather"),
    )


def _shift_then_slice(source: DeviceArray, target: DeviceArray) -> _Route | None:
    between = None if target.is_replicated else shifted(target, source)
    route = None if between is None else _all_to_all(source, between)
    return _joined("shift then slice", "the source's cuts move on by one dim, and its copies cut the last", route)


def _gather_then_shift(source: DeviceArray, target: DeviceArray) -> _Route | None:
    between = None if target.is_replicated else shifted(source, target)
    route = None if between is None else _all_to_all(between, target)
    if between is None or route is None:
        return None
    why = "the last cut dim is gathered, and the other cuts move back by one dim"
    return _joined("gather then shift", why, _gather(source, between), route)


# Branches that change the question and ask again.


def _complex(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...]) -> _Route | None:
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


def _split(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...], dim: int) -> _Route | None:
    low = min(source.counts[dim], target.counts[dim])

    def cut(array: DeviceArray) -> DeviceArray:
        sizes = list(array.devices.shape)
        sizes[dim : dim + 1] = [low, sizes[dim] // low]
        return DeviceArray(array.devices.reshape(sizes), array.has_copies)

    rest = -(-shape[dim] // source.counts[dim]) * cut(source).counts[dim + 1]
    longer = (*shape[:dim], max(shape[dim] // max(rest, 1), 1), rest, *shape[dim + 1 :])
    why = f"dim {dim}, in {source.counts[dim]} parts here and in {target.counts[dim]} there, is taken as two dims"
    return _joined("split a dim", why, _route(cut(source), cut(target), longer))


def _group(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...]) -> _Route | None:
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
    sends = route.sends + _in_order(ungrouped(groups, target_within, target, equal), target)
    why = f"dims {', '.join(map(str, equal))} have as many parts in both, so devices that agree there form groups"
    return _joined("group equal dims", why, route._replace(sends=sends))
