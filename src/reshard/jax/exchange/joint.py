"""The collectives of several plans at once: those of one kind between the same devices go as one.

What a device does for a plan is a generator: it packs its tile, asks for a collective, and goes on with what came in.
Alone, every call is carried out as it is asked for.
Of several plans, each runs up to its next call; calls that are alike go as one, of all their elements in one row, and
each plan goes on with its own part.
No byte more is sent, and a collective costs its start once; but elements are copied into the row and out of it, so it
pays for small tiles alone.

By hand, two devices gather `a` of 2 elements and `b` of 3 each: one gather of a row of 5, which comes as 2 x 5, and is
2 x 2 of `a` beside 2 x 3 of `b`.

>>> def gathered(array):
...     parts = yield GroupCall("all_gather", None, array)
...     return parts.sum(0)
>>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
>>> ones = jax.numpy.ones((3,)), jax.numpy.ones((2, 2))
>>> def body(*arrays):
...     return tuple(run_together([gathered(array) for array in arrays], Device.here(("x",))))
>>> spec = jax.P()
>>> function = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
>>> str(jax.make_jaxpr(function)(*ones)).count("all_gather[")
1
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import prod
from typing import Literal, NamedTuple

import jax
from jax import lax

from reshard.jax.exchange.device import Device, looks_up_places

Devices = Sequence[Sequence[int]]
CallKind = Literal["psum", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute"]


class GroupCall(NamedTuple):
    """A collective that a device asks for."""

    kind: CallKind
    between: Devices | None
    """The groups, each in the order of its members, or None for all devices; of `ppermute` sender and receiver."""
    array: jax.Array
    """With a dim of the members where each has a part: of `psum_scatter` the first, of `all_to_all` as said."""
    dim: int = 0

    @property
    def members(self) -> int:
        """In how many parts the array goes."""
        return self.array.shape[self.dim] if self.kind in ("all_to_all", "psum_scatter") else 1


DeviceRun = Generator[GroupCall, jax.Array, jax.Array]
"""From what comes in, call by call, to a tile."""


def run_alone(run: DeviceRun, device: Device) -> jax.Array:
    """What a device makes of its tile, each call by itself."""
    return run_together([run], device)[0]


def run_together(runs: Sequence[DeviceRun], device: Device) -> list[jax.Array]:
    """What a device makes of several tiles, calls that are alike as one.

    Args:
        runs: of plans between the same devices.
        device: that runs them.
    """
    results: dict[int, jax.Array] = {}
    coming: dict[int, jax.Array | None] = dict.fromkeys(range(len(runs)))
    while coming:
        calls: dict[int, GroupCall] = {}
        for number, array in coming.items():
            try:
                calls[number] = next(runs[number]) if array is None else runs[number].send(array)
            except StopIteration as end:
                results[number] = end.value
        coming = dict(zip(calls, _carried_out([*calls.values()], device), strict=True))
    return [results[number] for number in range(len(runs))]


def _carried_out(calls: Sequence[GroupCall], device: Device) -> list[jax.Array]:
    """What each call brings."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, call in enumerate(calls):
        between = None if call.between is None else tuple(map(tuple, call.between))
        alike.setdefault((call.kind, between, call.array.dtype, call.members), []).append(number)
    results: dict[int, jax.Array] = {}
    for numbers in alike.values():
        group = [calls[number] for number in numbers]
        arrays = _as_one(group, device) if len(group) > 1 else [_by_itself(group[0], device)]
        results.update(zip(numbers, arrays, strict=True))
    return [results[number] for number in range(len(calls))]


def _by_itself(call: GroupCall, device: Device) -> jax.Array:
    """A collective of JAX.

    Of an array whose first dim is split XLA may lay out each part in another way and then refuse them, so there
    the parts are seen as lists, which lie in one way alone.
    XLA for CPUs cuts what goes all to all into parts, a kernel each; here they are cut before, all by one.
    """
    (kind, between, array, dim), names = call, device.names
    if kind == "ppermute":
        return lax.ppermute(array, names, between)
    if kind == "all_gather":
        return lax.all_gather(array, names, axis_index_groups=between)
    if kind == "psum_scatter":
        row = lax.psum_scatter(array, names, axis_index_groups=between, tiled=True)  # in one run: faster
        return lax.reshape(row, array.shape[1:])
    if kind == "all_to_all":
        shape = array.shape
        parts = device.parts(array, dim, [1] * shape[dim]) if looks_up_places() else [array]
        parts = parts if dim else [lax.reshape(part, (part.size,)) for part in parts]
        row = lax.concatenate(parts, dim)
        return lax.reshape(lax.all_to_all(row, names, dim, dim, axis_index_groups=between, tiled=True), shape)
    combine = {"psum": lax.psum, "pmax": lax.pmax, "pmin": lax.pmin}[kind]
    return combine(array, names, axis_index_groups=between)


def _as_one(calls: Sequence[GroupCall], device: Device) -> list[jax.Array]:
    """Calls that are alike: one of all their elements, a row per member."""
    kind, members = calls[0].kind, calls[0].members
    turned = [jax.numpy.moveaxis(call.array, call.dim, 0) if call.dim else call.array for call in calls]
    sizes = [array.size // members for array in turned]
    rows = [lax.reshape(array, (members, size)) for array, size in zip(turned, sizes, strict=True)]
    row = _by_itself(GroupCall(kind, calls[0].between, lax.concatenate(rows, 1)), device)
    lead = row.shape[:-2] if kind == "all_gather" else ()  # of the members, before the one part of each
    row = lax.reshape(row, (*lead, row.size // prod(lead) // sum(sizes), sum(sizes)))
    parts, results = device.parts(row, row.ndim - 1, sizes), list[jax.Array]()
    for call, array, part in zip(calls, turned, parts, strict=True):
        shape = array.shape[1:] if kind == "psum_scatter" else (*lead, *array.shape)
        result = lax.reshape(part, shape)
        results.append(jax.numpy.moveaxis(result, 0, call.dim) if call.dim else result)
    return results
