"""One rank's part of a whole plan: the legs of its steps, made once and run many times.

A `Route` takes a tile along a plan; a `Transfer` is one that belongs to a source spec and a target.
Every rank makes its own, from its own coordinates.
`transfer_for` keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from reshard.box import Box
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.planner import plan as planned
from reshard.plans import Plan
from reshard.sharding import Sharding
from reshard.steps import Step
from reshard.torch.agreement import digest_of
from reshard.torch.conversions import dtype_of, gradient_placements, mesh_of, sharding_of, target_placements, text_of
from reshard.torch.exchange import COMBINE, UNWATCHED, Carrier, Finish, Leg, Post, Watch, make_leg
from reshard.torch.world import World


@dataclass(frozen=True)
class Fill:
    """Values become partial: this rank's tile, with the identity of the reduction where others hold the value."""

    shape: tuple[int, ...]
    kept: tuple[tuple[slice, ...], tuple[slice, ...]] | None
    """Where in the new tile the rank's values go, and where in the old they are."""
    identity: Any

    buffer_size = 0
    sent_size = 0
    received_size = 0
    mesh_dim = None

    def pack(
        self, tile: torch.Tensor, _carrier: Any, out: torch.Tensor | None, _workspace: Any, _watch: Watch = UNWATCHED
    ) -> Post:
        """The new tile; nothing travels."""
        if out is None:
            out = tile.new_empty(self.shape)
        out.fill_(self.identity)
        if self.kept is not None:
            out[self.kept[0]] = tile[self.kept[1]]
        return lambda: lambda: out


@dataclass(frozen=True)
class Route:
    """What one rank does to take a tile along a plan."""

    plan: Plan
    source_shape: tuple[int, ...] | None
    """Of the rank's tile; None where it has none."""
    target_shape: tuple[int, ...] | None
    stages: tuple[Leg | Fill, ...]
    carriers: tuple[Carrier | None, ...]
    """Per stage what brings its messages to others; None where there are none."""
    words: str
    """What is done, for a sentence."""
    divisor: int = 1
    """What the values are divided by at the end, where averages were taken as sums."""

    @property
    def workspace_size(self) -> int:
        """The number of elements of the largest buffers of a stage."""
        return max((stage.buffer_size for stage in self.stages), default=0)

    @property
    def keeps_tile(self) -> bool:
        """Whether source and target are one placement, so that the tile itself is the result."""
        return not self.stages

    def check_tile(self, tile: torch.Tensor) -> None:
        """Refuse a tile that is not the rank's.

        Raises:
            ReshardError: `bad-tiles`.
        """
        if self.source_shape is not None and tile.shape != self.source_shape:
            raise ReshardError(
                "bad-tiles", f"the tile of this rank has shape {tuple(tile.shape)}; it must be {self.source_shape}"
            )

    def start(
        self,
        tile: torch.Tensor,
        out: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        watch: Watch = UNWATCHED,
    ) -> Finish:
        """Begin; what is given back ends it and gives the target tile.

        What is watched is what the first stage reads and the last one writes.

        Raises:
            ReshardError: `exchange-failed`, here or at the end.
        """
        return self.pack(tile, out, workspace, watch)()

    def pack(
        self,
        tile: torch.Tensor,
        out: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        watch: Watch = UNWATCHED,
    ) -> Post:
        """Make ready; what is given back begins. Routes that travel together are all packed before the first begins.

        A tile that is conjugated or negated only when it is read becomes one whose memory holds its values.

        Raises:
            ReshardError: `exchange-failed`, here or later.
        """
        if not self.stages:
            shape = tile.shape if self.target_shape is None else self.target_shape
            result = tile if tile.shape == shape else tile.reshape(shape)  # empty in another dim
            return lambda: lambda: result if out is None else out.copy_(result)
        try:
            post = self._pack(0, tile.resolve_conj().resolve_neg(), out, workspace, watch)
        except RuntimeError as error:
            raise self._failed(error) from error

        def begin() -> Finish:
            try:
                finish = post()
            except RuntimeError as error:
                raise self._failed(error) from error
            return lambda: self._end(finish, out, workspace, watch)

        return begin

    def _end(
        self, finish: Finish, out: torch.Tensor | None, workspace: torch.Tensor | None, watch: Watch
    ) -> torch.Tensor:
        """End the first stage, and run those after it."""
        try:
            result = finish()
            for number in range(1, len(self.stages)):
                result = self._pack(number, result, out, workspace, watch)()()
        except RuntimeError as error:
            raise self._failed(error) from error
        if self.divisor > 1:
            result /= self.divisor
        shape = (0,) if self.target_shape is None else self.target_shape
        return result if result.shape == shape else result.view(shape)

    def _pack(
        self, number: int, tile: torch.Tensor, out: torch.Tensor | None, workspace: torch.Tensor | None, watch: Watch
    ) -> Post:
        stage = self.stages[number]
        is_last = number + 1 == len(self.stages)
        if len(self.stages) > 1:
            watch = Watch(watch.before_read if number == 0 else None, watch.after_write if is_last else None)
        if isinstance(stage, Leg):
            if stage.source_shape is not None and tile.shape != stage.source_shape:  # a scalar, seen as a vector
                tile = tile.reshape(stage.source_shape)
            if not is_last:
                out = None
            elif out is not None and stage.target_shape is not None:
                out = out.view(stage.target_shape)
        return stage.pack(tile, self.carriers[number], out if is_last else None, workspace, watch)

    def _failed(self, error: RuntimeError) -> ReshardError:
        return ReshardError("exchange-failed", f"{self.words} broke off: {str(error).splitlines()[0]}")


@dataclass(frozen=True)
class Transfer(Route):
    """What one rank does to take a tensor from its source to its target."""

    source: DTensorSpec = field(kw_only=True)
    target: DTensorSpec = field(kw_only=True)
    back: tuple[Placement, ...] = field(kw_only=True)
    """The placements of the gradient on the source's mesh: those of the source, partial ones replicated."""
    ranks: tuple[int, ...] = field(kw_only=True)
    """All that take part."""
    digest: str = field(kw_only=True)


def transfer_for(
    here: World, source: DTensorSpec, target: Sharding | Sequence[Placement], mesh: DeviceMesh | None
) -> Transfer:
    """The transfer of this rank, kept or made.

    Raises:
        ReshardError: as `redistribute` where the target cannot be.
    """
    key = (source, target if isinstance(target, Sharding) else tuple(target), mesh)
    return here.once(key, lambda: _made(source, target, mesh, here.rank))


def _made(source: DTensorSpec, target: Sharding | Sequence[Placement], mesh: DeviceMesh | None, rank: int) -> Transfer:
    meta = source.tensor_meta
    if meta is None:
        raise ReshardError("bad-argument", "a DTensor without shape and dtype cannot be redistributed")
    shape, dtype = tuple(meta.shape), dtype_of(meta.dtype)
    target_mesh = source.mesh if mesh is None else mesh
    if target_mesh.device_type != source.mesh.device_type:
        raise ReshardError(
            "bad-argument",
            f"a tensor on {source.mesh.device_type} cannot go to a mesh of {target_mesh.device_type}; move it first",
        )
    placements = _placements(target, source.mesh, mesh, shape)
    as_sums, placed, divisor = _averages_as_sums(source, placements, target_mesh)
    before = sharding_of(as_sums)
    after = sharding_of(placed, target_mesh, len(shape))
    plan = planned(before, after, shape, dtype)
    words = (
        f"redistribute {'x'.join(map(str, shape)) or 'a scalar'} of {dtype} from {text_of(source.placements)} to "
        f"{text_of(placements)}" + ("" if mesh is None else f" on {mesh_of(mesh)}")
    )
    route = route_of(plan, rank, {before.mesh: source.mesh}, meta.dtype, words)
    return Transfer(
        route.plan,
        route.source_shape,
        route.target_shape,
        route.stages,
        route.carriers,
        route.words,
        divisor,
        source=source,
        target=DTensorSpec(target_mesh, placements, tensor_meta=meta),
        back=gradient_placements(source.placements),
        ranks=tuple(sorted({*before.mesh.devices, *after.mesh.devices})),
        digest=digest_of(str(before), str(after), shape, dtype.name),
    )


def route_of(plan: Plan, rank: int, meshes: Mapping[Mesh, DeviceMesh], dtype: torch.dtype, words: str) -> Route:
    """The part of a rank in a plan.

    Args:
        plan: what all ranks do.
        rank: a global rank.
        meshes: those of torch, by what they are here; that of the source lends its process groups.
        dtype: of the tiles.
        words: what is done, for a sentence.

    Raises:
        ReshardError: `reduction-dtype` where torch cannot combine values of the dtype; `exchange-failed` where no
            backend carries tensors on such devices.
    """
    before, after = plan.source, plan.target
    for step in plan.steps:
        _check_combines(step, dtype)
    own = meshes.get(before.mesh) if rank in before.mesh else None
    stages = tuple(stage for step in plan.steps for stage in _stages(step, rank, before, after))
    return Route(
        plan,
        before.box(rank, plan.shape).shape if rank in before.mesh else None,
        after.box(rank, plan.shape).shape if rank in after.mesh else None,
        stages,
        tuple(_carrier_of(stage, own, device_type_of(meshes)) for stage in stages),
        words,
    )


def device_type_of(meshes: Mapping[Mesh, DeviceMesh]) -> str:
    """Where the tiles on these meshes are."""
    return next((mesh.device_type for mesh in meshes.values()), "cpu")


def _carrier_of(stage: Leg | Fill, mesh: DeviceMesh | None, device_type: str) -> Carrier | None:
    """The group of a mesh dim where messages stay within one and go in batches, which all of a group may have to open.

    Else the default group, whose connections are in use anyway.
    """
    if not isinstance(stage, Leg) or not (stage.sends or stage.receives):
        return None
    try:
        if mesh is not None and stage.mesh_dim is not None:
            group = mesh.get_group(stage.mesh_dim)
            if _batches(group, device_type):
                return Carrier(group, batches=True)
        return Carrier(dist.group.WORLD, _batches(dist.group.WORLD, device_type))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ReshardError("exchange-failed", f"no messages go between devices of {device_type}: {reason}") from None


def _batches(group: Any, device_type: str) -> bool:
    return bool(group._get_backend(torch.device(device_type)).supports_coalescing)


def _averages_as_sums(
    source: DTensorSpec, placements: tuple[Placement, ...], mesh: DeviceMesh
) -> tuple[DTensorSpec, tuple[Placement, ...], int]:
    """Source and target with sums in place of averages, and what to divide by, where the source has both.

    An average is a sum divided by the number of ranks, so sums and averages side by side are sums; what is reduced
    of the averages is divided at the end, what stays partial is left as it is.
    """
    partial = {placement.reduce_op for placement in source.placements if isinstance(placement, Partial)}
    if partial != {"sum", "avg"} or source.tensor_meta is None:
        return source, placements, 1
    dtype_of(source.tensor_meta.dtype).check_reduction("avg")
    same = mesh == source.mesh
    divisor = 1
    for number, placement in enumerate(source.placements):
        kept = same and placements[number] == placement
        if placement == Partial("avg") and not kept:
            divisor *= source.mesh.size(number)
    target = placements
    if same:
        both = zip(source.placements, placements, strict=True)
        target = tuple(Partial() if new == old == Partial("avg") else new for old, new in both)
    before = tuple(Partial() if placement == Partial("avg") else placement for placement in source.placements)
    return replace(source, placements=before), target, divisor


def _placements(
    target: Sharding | Sequence[Placement], source_mesh: DeviceMesh, mesh: DeviceMesh | None, shape: tuple[int, ...]
) -> tuple[Placement, ...]:
    """The target as placements on its mesh."""
    try:
        return target_placements(target, mesh or source_mesh, len(shape), shape)
    except ReshardError as error:
        if mesh is None and isinstance(target, Sharding) and error.code in ("different-meshes", "cannot-express"):
            raise ReshardError(error.code, f"{error}; give the DeviceMesh that the result is on") from None
        raise


def _stages(step: Step, rank: int, before: Sharding, after: Sharding) -> list[Leg | Fill]:
    if step.kind == "ToUnreduced":
        return [_fill(step, rank)] if rank in step.before.mesh else []
    mesh = before.mesh if before.mesh == after.mesh else None
    return [make_leg(move, rank, mesh) for move in step.moves]


def _fill(step: Step, rank: int) -> Fill:
    old, new = step.before.box(rank, step.shape), step.after.box(rank, step.shape)
    kept: Box | None = step.contribution(rank)
    inside = None if kept is None or kept.is_empty else (kept.slices(new), kept.slices(old))
    return Fill(new.shape, inside, step.dtype.identity(step.after.reduction))


def _check_combines(step: Step, dtype: torch.dtype) -> None:
    """Refuse a reduction that torch cannot do on a dtype.

    Raises:
        ReshardError: `reduction-dtype`.
    """
    reductions = {move.reduction for move in step.moves} if step.moves else {step.after.reduction}
    for reduction in reductions - {None}:
        try:
            value = torch.empty(1, dtype=dtype)
            COMBINE[str(reduction)](value, value, out=value)
        except RuntimeError:
            raise ReshardError("reduction-dtype", f"torch has no {reduction} of values of dtype {dtype}") from None
