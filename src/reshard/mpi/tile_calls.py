"""`reshard` and `run`: a rank hands in its tile and gets that of the target.

Datatypes are made at the first call of a kind and kept with the communicator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from reshard.array_tiles import Array, holds, plain
from reshard.checks import check_mode, checked_shape, expect
from reshard.dtypes import DType, dtype_named, value_dtype
from reshard.errors import ReshardError
from reshard.mpi.local_moves import RankPlan
from reshard.mpi.participants import NO_TILE, participants_of
from reshard.mpi.shared_tiles import SharedTile, number_of
from reshard.planner import plan as make_plan
from reshard.plans import Plan
from reshard.sharding import Sharding


def reshard(
    tile: Array | None,
    source: Sharding,
    target: Sharding,
    shape: Sequence[int],
    comm: MPI.Intracomm | None = None,
    *,
    dtype: Any = None,
    out: Array | None = None,
    check: str = "first",
) -> Array | None:
    """The tile of this rank under another sharding; it receives what it lacks.

    All ranks of both meshes must call it alike; one that is in neither may.

    Args:
        tile: of this rank under the source; None on a rank that the source has not.
        source: where the tensor is.
        target: where it is wanted.
        shape: of the whole tensor.
        comm: whose ranks are the devices; the world where it is not given.
        dtype: of the elements; that of the tile where it is not given.
        out: memory for the result, contiguous.
        check: when ranks compare what they are about to do before anything moves: at the "first" call of a kind, and
            wherever they have shared tiles; "always"; or "never", and then nothing is read from shared tiles.

    Returns:
        The tile, `out` where it is given; None on a rank that the target has not.

    Raises:
        ReshardError: `bad-argument`, `bad-tiles`, `rank-mismatch`, `bad-shape`, `no-plan`, `ranks-disagree`,
            `exchange-failed`.
    """
    kind = dtype if dtype is not None else getattr(tile if tile is not None else out, "dtype", None)
    if kind is None:
        raise ReshardError("bad-argument", "a rank without a tile must say the dtype")
    return run(_plan_of(source, target, kind, shape), tile, comm, out=out, check=check)


class KnownCall(NamedTuple):
    """What a call asked for, and its plan."""

    source: Sharding
    target: Sharding
    kind: Any
    shape: tuple[int, ...]
    plan: Plan


_LAST: list[KnownCall] = []
"""What was asked for last, if anything: it is known at a glance.

A move leaves nothing of Python in the caches of the processor, so that each function of the next call takes some µs.
"""


def _plan_of(source: Sharding, target: Sharding, kind: Any, shape: Sequence[int]) -> Plan:
    """The plan of a call, by what it is told."""
    is_plain = type(source) is type(target) is Sharding and type(shape) is tuple
    for last in _LAST if is_plain else ():
        is_same = last.source is source and last.target is target and last.kind is kind
        if is_same and last.shape == checked_shape(shape):
            return last.plan
    named = _dtype_of(kind) if isinstance(kind, np.dtype) else dtype_named(kind)
    plan = make_plan(source, target, shape, named)
    if is_plain:
        _LAST[:] = [KnownCall(source, target, kind, checked_shape(shape), plan)]
    return plan


@lru_cache(64)
def _dtype_of(dtype: np.dtype[Any]) -> DType:
    """The dtype that one of NumPy's is, whose name NumPy makes anew whenever it is asked."""
    return dtype_named(dtype)


def run(
    plan: Plan,
    tile: Array | None,
    comm: MPI.Intracomm | None = None,
    *,
    out: Array | None = None,
    check: str = "first",
) -> Array | None:
    """The tile of this rank that a plan leads to.

    All ranks of the plan must call it alike; one that is none of its devices may.
    Of a plan under a limit on memory the ranks hold the two tiles and no buffers, unless values are combined.

    Args:
        plan: what to do.
        tile: of this rank under the plan's source; None on a rank that the source has not.
        comm: whose ranks are the devices; the world where it is not given.
        out: memory for the result, contiguous.
        check: as of `reshard`.

    Returns:
        The tile, `out` where it is given; None on a rank that the target has not.

    Raises:
        ReshardError: as `reshard`.
    """
    check_mode(check)
    expect(plan, Plan, "what is run")
    participants = participants_of(comm, plan.devices)
    if participants is None:
        return None
    local: RankPlan | None = participants.last_made(plan)
    if local is None:
        with participants.telling(check != "never"):
            local = participants.once(plan, lambda: RankPlan(plan, participants))
    is_due = participants.is_due(local.digest, check)
    with participants.telling(is_due):
        tile = _checked_tile(tile, local)
        dtype = tile.dtype if tile is not None else _kind(out, plan)
        _check_out(out, local, dtype)
        is_own = out is not None and tile is not None and np.may_share_memory(out, tile)
        tile = tile.copy() if is_own and tile is not None else tile
        number = number_of(tile, participants) if is_due and local.moves else NO_TILE
    if is_due:
        number = participants.agree(
            local.digest, lambda: f"{plan.source.text()} to {plan.target.text()} of {plan.shape} {plan.dtype}", number
        )
    else:
        number = NO_TILE
    shared: SharedTile | None = participants.shared.get(number)
    try:
        if shared is None:
            return local.run(tile, dtype, out)
        shared.see()
        moved = local.run(tile, dtype, out, shared.near)
        shared.wait()  # what others read of this rank's tile stays as it is until they have
    except MPI.Exception as error:
        words, reason = f"{plan.source.text()} to {plan.target.text()}", error.Get_error_string()
        raise ReshardError("exchange-failed", f"{words} broke off: {reason}") from None
    return moved


def _checked_tile(tile: Any, local: RankPlan) -> Array | None:
    """The tile, contiguous, if it is the rank's; None where the rank has none.

    Raises:
        ReshardError: `bad-tiles`.
    """
    if local.source_shape is None:
        return None
    if type(tile) is not np.ndarray or tile.shape != local.source_shape or tile.dtype is not local.dtype:
        what = f"the tile of rank {local.device}"
        if tile is None:
            raise ReshardError("bad-tiles", f"{what} is missing")
        tile = plain(tile, what)
        if tile.shape != local.source_shape:
            raise ReshardError("bad-tiles", f"{what} has shape {tile.shape}; it must be {local.source_shape}")
        _check_kind(tile, local.plan, what)
        local.dtype = tile.dtype
    array: Array = tile
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _check_out(out: Any, local: RankPlan, dtype: np.dtype[Any]) -> None:
    """Refuse memory that the result does not fit.

    Raises:
        ReshardError: `bad-tiles`, `bad-argument`.
    """
    if out is None or local.target_shape is None:
        return
    if not isinstance(out, np.ndarray) or not out.flags.c_contiguous or not out.flags.writeable:
        raise ReshardError("bad-argument", "out must be a contiguous array that can be written")
    if out.shape != local.target_shape or out.dtype != dtype:
        raise ReshardError(
            "bad-tiles", f"out is {out.dtype} of shape {out.shape}; it must be {dtype} of shape {local.target_shape}"
        )


def _check_kind(array: Array, plan: Plan, what: str) -> None:
    if not holds(array.dtype, plan.dtype, _combines(plan)):
        raise ReshardError("bad-tiles", f"{what} is of dtype {array.dtype}; it must be {plan.dtype}")


def _combines(plan: Plan) -> bool:
    return bool(plan.source.unreduced or plan.target.unreduced)


def _kind(array: Any, plan: Plan) -> np.dtype[Any]:
    """NumPy's dtype of the elements: that of `out`, else its own, else bytes, which may travel unknown.

    Raises:
        ReshardError: `bad-tiles`; `missing-extra` where values are combined that NumPy does not know.
    """
    if isinstance(array, np.ndarray):
        _check_kind(array, plan, "out")
        dtype: np.dtype[Any] = array.dtype
        return dtype
    try:
        return value_dtype(plan.dtype)
    except ReshardError:
        if _combines(plan):
            raise
        return np.dtype(f"u{plan.dtype.itemsize}")
