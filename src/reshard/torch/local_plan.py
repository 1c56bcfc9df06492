"""One rank's part of a whole plan: its part of every exchange, made once from its own coordinates and run many times.

By hand, `[Shard(0)] -> [Replicate()]` of 4 elements over 2 ranks is one exchange: rank 1 sends its elements 2 and 3
to rank 0, receives 0 and 1 into the front of its new tile, and copies 2 and 3 into the rest of it meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.plans import Plan
from reshard.steps import Step
from reshard.tiling import Tiling
from reshard.torch.carriers import carrier_for, joint_carrier_for
from reshard.torch.exchange import (
    COMBINE,
    Finish,
    FinishHop,
    LocalExchange,
    Post,
    PostHop,
    ended,
    is_plain,
    local_exchange,
)
from reshard.torch.rank_messages import UNWATCHED, Watch
from reshard.torch.turns import check_limit, turnwise


@dataclass(frozen=True)
class LocalPlan:
    """What one rank does to take a tile along a plan."""

    plan: Plan
    source_shape: tuple[int, ...] | None
    """Of the rank's tile; None where it has none."""
    target_shape: tuple[int, ...]
    """Of the rank's new tile; (0,) where it gets none."""
    exchanges: tuple[LocalExchange, ...]
    words: str
    """What is done, for a sentence."""
    parts: tuple[LocalPlan, ...] = ()
    """What is done with each part of the tensor, where it goes in parts that overlap."""
    stretches: tuple[LocalPlan, ...] = ()
    """What is done one after another, where only some of it is done in parts."""

    @property
    def workspace_size(self) -> int:
        """The number of elements of the largest buffers of an exchange."""
        return max((exchange.send_size + exchange.receive_size for exchange in self.exchanges), default=0)

    def check_tile(self, tile: torch.Tensor) -> None:
        """Refuse a tile that is not the rank's.

        Raises:
            ReshardError: `bad-tiles`.
        """
        if self.source_shape is not None and tile.shape != self.source_shape:
            raise ReshardError(
                "bad-tiles", f"the tile of this rank has shape {tuple(tile.shape)}; it must be {self.source_shape}"
            )

    def run(self, tile: torch.Tensor, watch: Watch = UNWATCHED) -> torch.Tensor:
        """The target tile, the tile itself where nothing changes.

        What is watched is what the first exchange reads and the last one writes.

        Raises:
            ReshardError: `exchange-failed`.
        """
        return self.pack(tile, watch=watch)()()

    def pack(
        self,
        tile: torch.Tensor,
        out: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        watch: Watch = UNWATCHED,
    ) -> Post:
        """Make ready; what is given back begins. Plans that run at once are all packed before the first begins.

        A tile that is conjugated or negated only when it is read becomes one whose memory holds its values.
        Where `out` lies in the memory that the tile is in, or has another dtype than what is combined, the result is
        made apart and copied there.

        Raises:
            ReshardError: `exchange-failed`, here or later.
        """
        if (self.parts or self.stretches) and watch == UNWATCHED:
            result = self._in_parts(tile) if self.parts else tile
            for stretch in self.stretches:
                result = stretch.run(result)
            return lambda: lambda: result if out is None else out.copy_(result)
        shares = out is not None and out.untyped_storage().data_ptr() == tile.untyped_storage().data_ptr()
        if not self.exchanges:  # an empty tile may be empty in another dim
            result = tile if tile.numel() or tile.shape == self.target_shape else tile.reshape(self.target_shape)
            return lambda: lambda: result if out is None else out.copy_(result.clone() if shares else result)
        combines = self.exchanges[-1].reduction is not None
        staged = out if out is not None and (shares or (combines and not is_plain(out, tile))) else None
        out = out if staged is None else None

        first = tile.resolve_conj().resolve_neg()

        def pack(number: int, tile: torch.Tensor) -> PostHop:
            is_last = number + 1 == len(self.exchanges)
            ends = Watch(watch.before_read if number == 0 else None, watch.after_write if is_last else None)
            return self.exchanges[number].pack(tile, out if is_last else None, workspace, ends, first)

        breaking = BreakingOff(self.words)
        with breaking:
            post = pack(0, first)

        def begin() -> Finish:
            with breaking:
                finish = post()
            return lambda: end(finish)

        def end(finish: FinishHop) -> torch.Tensor:
            with breaking:
                result = ended(finish)
                for number in range(1, len(self.exchanges)):
                    result = ended(pack(number, result)())
            if staged is not None:
                return staged.copy_(result.view(staged.shape))
            return result if result.shape == self.target_shape else result.view(self.target_shape)

        return begin

    def _in_parts(self, tile: torch.Tensor) -> torch.Tensor:
        """The target tile, its parts one behind the other: while one is in an exchange, the next is in that before.

        So it is with hops: those that are under way are all posted before any is waited for.
        """
        parting, parts, tile = self.plan.parting, self.parts, tile.resolve_conj().resolve_neg()
        tiles = [parting.cut(tile, len(parts), number, torch.cat) for number in range(len(parts))]
        kept = [
            tile if any(step.kept for step in part.plan.steps) else None
            for tile, part in zip(tiles, parts, strict=True)
        ]
        to_come = [list(part.exchanges) for part in parts]
        waves = max(n + sum(1 + len(one.later) for one in part.exchanges) for n, part in enumerate(parts))
        under_way: dict[int, FinishHop] = {}
        with BreakingOff(self.words):
            for wave in range(waves):
                beginning = [n for n in range(min(wave + 1, len(parts))) if n not in under_way and to_come[n]]
                posts = [
                    to_come[number].pop(0).pack(tiles[number].contiguous(), kept=kept[number]) for number in beginning
                ]
                under_way |= {number: post() for number, post in zip(beginning, posts, strict=True)}
                for number in sorted(under_way):
                    result = under_way.pop(number)()
                    if isinstance(result, torch.Tensor):
                        tiles[number] = result
                    else:
                        under_way[number] = result
        moved = [tile.view(part.target_shape) for tile, part in zip(tiles, parts, strict=True)]
        whole: torch.Tensor = parting.joined(moved, torch.cat)
        return whole.view(self.target_shape)


class BreakingOff(NamedTuple):
    """Says of what torch refuses meanwhile that what was done broke off."""

    words: str

    def __enter__(self) -> None:
        """Nothing to do before."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Say so.

        Raises:
            ReshardError: `exchange-failed` in place of an error of torch.
        """
        if isinstance(error, RuntimeError):
            reason = str(error).splitlines()[0]
            raise ReshardError("exchange-failed", f"{self.words} broke off: {reason}") from None


def local_plan(
    plan: Plan,
    rank: int,
    meshes: Mapping[Mesh, DeviceMesh],
    dtype: torch.dtype,
    words: str,
    *,
    joint: bool = False,
) -> LocalPlan:
    """The part of a rank in a plan; under a limit on memory its pieces go one after the other.

    Args:
        plan: what all ranks do.
        rank: a global rank.
        meshes: those of torch, by what they are here; that of the source lends its process groups.
        dtype: of the tiles.
        words: what is done, for a sentence.
        joint: whether messages go by a collective of a whole group, where there is a group of just these ranks.

    Raises:
        ReshardError: `reduction-dtype` where torch cannot combine values of the dtype; `no-plan` where a plan with a
            memory limit goes along rings; `exchange-failed` where no backend carries tensors on such devices.
    """
    before, after = plan.source, plan.target
    for step in plan.steps:
        _check_combines(step, dtype)
    check_limit(plan)
    device_mesh = meshes.get(before.mesh) if rank in before.mesh else None
    ours = before.mesh if before.mesh == after.mesh else None
    exchanges = []
    for step in plan.steps:
        for move in [move.one_way for move in step.transfers]:
            exchange = local_exchange(move, rank, step.dtype)
            together = joint_carrier_for(move.exchange, device_mesh, ours) if joint else None
            if together is not None:
                exchange = replace(exchange, carrier=together)
            elif exchange.has_messages:
                carrier = carrier_for(move.exchange, device_mesh, ours, device_type_of(meshes))
                exchange = replace(exchange, carrier=carrier)
            if plan.options.memory_limit is not None:
                exchange = turnwise(exchange, move, rank, step.chunks)
            exchanges.append(exchange)
    sides = (Tiling.of(side, plan.shape) for side in (before, after))
    shapes = [side.tile(rank, once=True).shape if rank in side.mesh else None for side in sides]
    parts: tuple[LocalPlan, ...] = ()
    stretches: tuple[LocalPlan, ...] = ()
    if plan.parts > 1 and before.mesh == after.mesh:
        nested = plan.plans_of_parts if len(plan.stretches) == 1 else plan.stretches
        distinct = {id(one): one for one in nested}
        by_plan = {key: local_plan(one, rank, meshes, dtype, words, joint=joint) for key, one in distinct.items()}
        local = tuple(by_plan[id(one)] for one in nested)
        parts, stretches = (local, ()) if len(plan.stretches) == 1 else ((), local)
    target_shape = (0,) if shapes[1] is None else shapes[1]
    return LocalPlan(plan, shapes[0], target_shape, tuple(exchanges), words, parts, stretches)


def device_type_of(meshes: Mapping[Mesh, DeviceMesh]) -> str:
    """Where the tiles on these meshes are."""
    return next((mesh.device_type for mesh in meshes.values()), "cpu")


def tile_of(x: DTensor) -> torch.Tensor:
    """The tile of a rank, waited for where it is still on its way."""
    tile: torch.Tensor = x._local_tensor
    if isinstance(tile, AsyncCollectiveTensor):
        tile = tile.trigger_wait()  # type: ignore[no-untyped-call]
    return tile


def _check_combines(step: Step, dtype: torch.dtype) -> None:
    """Refuse a reduction that torch cannot do on a dtype.

    Raises:
        ReshardError: `reduction-dtype`.
    """
    reductions = {move.fill or move.reduction for move in step.transfers}
    for reduction in reductions - {None}:
        try:
            value = torch.empty(1, dtype=dtype)
            COMBINE[str(reduction)](value, value, out=value)
        except RuntimeError:
            raise ReshardError("reduction-dtype", f"torch has no {reduction} of values of dtype {dtype}") from None
