"""A plan as what one device does, inside a `shard_map` over the whole mesh.

Every move of a plan is lowered by what its exchange is:

| exchange | becomes |
|---|---|
| an AllReduce by sum, max or min | `psum`, `pmax` or `pmin` of a share, then `all_gather` where there are shares |
| in digits, every device its own sender in round 0 | `all_gather`, `all_to_all` or `psum_scatter` of groups |
| any other, along a ring too | rounds of `ppermute`: `permutations.py`, `rounds.py` |
| any, of a plan with a memory limit | loops of chunks: `chunked.py` |
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from reshard.digits import Digits
from reshard.exchange import DigitExchange, KeptExchange
from reshard.jax.exchange.chunked import chunk_elements, moved_in_chunks
from reshard.jax.exchange.device import Device, of_device
from reshard.jax.exchange.in_groups import groups_of, in_groups, lacked_in_groups
from reshard.jax.exchange.joint import CallKind, DeviceRun, GroupCall, run_alone
from reshard.jax.exchange.repeated_places import added, repeated
from reshard.jax.exchange.rounds import bits_of, in_rounds
from reshard.plans import Plan
from reshard.steps import Move, Step, step_of

GROUP_REDUCTIONS: dict[str, CallKind] = {"sum": "psum", "max": "pmax", "min": "pmin"}
"""Reductions that are one collective."""


def run_on_device(plan: Plan, names: tuple[str, ...], tile: jax.Array) -> jax.Array:
    """The target tile of a device, from its source tile, where all axes of the mesh are manual.

    Args:
        plan: what to do, over the same devices; in several orders only where nothing is reduced.
        names: the axes of the target's mesh, in its order.
        tile: the source tile.
    """
    device = Device.here(names)
    return run_alone(on_device(plan, device, tile), device)


def on_device(plan: Plan, device: Device, tile: jax.Array) -> DeviceRun:
    """The same, call by call: what `run_together` takes of several plans."""
    local_shape = plan.target.local_shape(plan.shape)
    if 0 in plan.shape:
        return lax.full(local_shape, 0, tile.dtype)
    if plan.options.memory_limit is not None:
        return lax.reshape((yield from _in_bounded_memory(plan, device, tile)), local_shape)
    if plan.parts > 1:
        for stretch in plan.stretches:
            tile = yield from (_in_parts if stretch.parts > 1 else on_device)(stretch, device, tile)
        return lax.reshape(tile, local_shape)
    transfers = [move for step in plan.steps for move in step.transfers]
    combines = any(move.reduction or move.fill not in (None, "sum") for move in transfers)  # zero is so in bits too
    dtype, bits = tile.dtype, None if combines else bits_of(tile.dtype)
    tile = lax.bitcast_convert_type(tile, bits) if bits else tile
    tiles = {plan.source: tile}
    for step in plan.steps:
        tile = yield from _after(step, device, tile, None if step.kept is None else tiles[step.kept])
        tiles[step.after] = tile
    return lax.reshape(lax.bitcast_convert_type(tile, dtype) if bits else tile, local_shape)


def _in_parts(plan: Plan, device: Device, tile: jax.Array) -> DeviceRun:
    """The target tile, its parts moved by calls that do not wait for one another."""
    parts = []
    for number, of_part in enumerate(plan.plans_of_parts):
        part = yield from on_device(of_part, device, plan.parting.cut(tile, plan.parts, number, lax.concatenate))
        parts.append(part)
    return plan.parting.joined(parts, lax.concatenate)


def _in_bounded_memory(plan: Plan, device: Device, tile: jax.Array) -> DeviceRun:
    """The target tile, each move in a loop of chunks, so that the peak is what the plan says."""
    tiles = {plan.source: tile}
    for step in plan.steps:
        room = chunk_elements(step)
        kept = None if step.kept is None else tiles[step.kept]
        for move in step.transfers:
            if len(move.exchange.target.shape) != tile.ndim:  # of a scalar, seen as a vector
                tile = lax.reshape(tile, (1,))
            if step.moves:
                tile = moved_in_chunks(move, room, device, added(move.exchange.source, device, tile), kept)
                tile = repeated(move.exchange.target, device, tile)
            else:
                tile = yield from _moved(move, device, tile)
        tile = tiles[step.after] = tile if step.shape else lax.reshape(tile, ())
    return tile


def _after(step: Step, device: Device, tile: jax.Array, kept: jax.Array | None) -> DeviceRun:
    if step.near == 1 and _combines_in_rounds(step):  # each device in another order: replicas would not be equal
        step = step_of(step.reshard)
    if step.kind == "AllReduce" and step.before.reduction in GROUP_REDUCTIONS:
        return (yield from _all_reduced(step, device, tile))
    for move in step.transfers:
        if len(move.exchange.target.shape) != tile.ndim:  # of a scalar, seen as a vector
            tile = lax.reshape(tile, (1,))
        tile = yield from _moved(move, device, tile, kept)
    return tile if step.shape else lax.reshape(tile, ())


def _combines_in_rounds(step: Step) -> bool:
    if not step.moves or step.moves[0].reduction is None:
        return False
    exchange = step.moves[0].exchange
    is_in_groups = isinstance(exchange, DigitExchange) and exchange.is_in_groups
    return not is_in_groups and not exchange.target.layout.has_windows


def _moved(move: Move, device: Device, tile: jax.Array, kept: jax.Array | None = None) -> DeviceRun:
    exchange = move.exchange
    if isinstance(exchange, DigitExchange) and exchange.is_in_groups:
        tile = yield from in_groups(exchange, device, tile, move.reduction or "sum")
    elif isinstance(exchange, KeptExchange) and exchange.slab is not None and kept is not None:
        tile = yield from lacked_in_groups(exchange, exchange.slab, device, tile, kept)
    else:
        tile = added(exchange.source, device, tile)
        tile = yield from in_rounds(exchange, device, tile, reduction=move.reduction or move.fill, kept=kept)
        tile = repeated(exchange.target, device, tile)
    return lax.div(tile, lax.full_like(tile, move.classes)) if move.reduction == "avg" else tile


def _all_reduced(step: Step, device: Device, tile: jax.Array) -> DeviceRun:
    """What the members of each group hold, combined.

    Of more than two parts each is sent less often where the c devices that hold the same one combine a share of the
    tile each and then gather them: p parts of n bytes in c copies are n (p c + p - 2) / (p c) received bytes, and
    2 n (p - 1) / p were all combined by every device.
    """
    before, after = (sharding.layout_for(step.shape) for sharding in (step.before, step.after))
    parts = before.unreduced.without(after.unreduced)
    shared = Digits()
    if parts.size > 2:
        for digit in before.free.primes():
            if tile.size % (shared.size * digit.size) == 0:
                shared = Digits((*shared, digit))
    combine, groups = GROUP_REDUCTIONS[step.before.reduction], groups_of(parts, before.positions)
    if not shared:
        return (yield GroupCall(combine, groups, tile))
    number = device.row_of(shared.index_of(np.arange(before.positions)).astype(np.int32))
    share = of_device(lax.reshape(tile, (shared.size, tile.size // shared.size)), number)
    share = yield GroupCall(combine, groups, share)
    shares = yield GroupCall("all_gather", groups_of(shared, before.positions), share)
    return lax.reshape(shares, tile.shape)
