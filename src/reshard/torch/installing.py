"""Plans under DTensor's own redistribution: what `DTensor.redistribute`, `full_tensor` and torch's operations call.

    with reshard.torch.install() as installation:
        loss = model(batch)                      # its implicit redistributions too
    print(installation.planned, installation.handed_back)

All of these go through one function of torch's, from a local tensor to a local tensor; while plans are installed,
another stands in its place wherever torch has imported it.
Results, placements and gradients are torch's; what differs is what travels: one all-to-all, seen by torch's
`CommDebugMode`, `DebugMode` and profiler, in place of one collective per mesh dim.
In a graph that is traced it is the operator `reshard::exchange`.

Values that become partial do so as torch has them, divided among the ranks, by a map of the tile after the plan.

What has no plan runs as torch runs it, on all ranks alike, and is counted under its reason.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import Partial, Placement, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.utils._debug_mode import get_active_debug_mode

from reshard.checks import check_mode
from reshard.errors import ReshardError
from reshard.torch.dtensor_specs import spelled_out
from reshard.torch.graph_operator import exchanged_in_graph, is_traced
from reshard.torch.redistribute import EagerCall, Memory
from reshard.torch.redistribution import redistribution_for
from reshard.torch.stand_ins import stand_ins
from reshard.torch.world import current_world

HOOK = "redistribute_local_tensor"
"""What torch calls its function, in the module that has it and in those that import it."""
TILES = (torch.Tensor, torch.nn.Parameter, AsyncCollectiveTensor)
"""Local tensors that have their values in memory, besides those of a trace."""


class Installation:
    """Plans under DTensor's redistribution, until they are removed: by `remove`, or at the end of a `with`."""

    def __init__(self, check: str) -> None:
        """Put them there."""
        from torch.distributed.tensor import _redistribute  # noqa: PLC0415  # private to torch, as its name says

        self.planned = 0
        """How many redistributions went by a plan."""
        self.handed_back: Counter[str] = Counter()
        """How many torch ran itself, by the reason."""
        self._check = check
        self._original: Callable[..., torch.Tensor] = getattr(_redistribute, HOOK)
        self._put(self._original, self._redistribute)

    def remove(self) -> None:
        """Put torch's own function back; nothing where that has been done."""
        global _installed  # noqa: PLW0603  # torch is one per process, and so is what is installed in it
        if _installed is self:
            self._put(self._redistribute, self._original)
            _installed = None

    def __enter__(self) -> Installation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _put(self, present: Callable[..., Any], wanted: Callable[..., Any]) -> None:
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(HOOK) == present:
                setattr(module, HOOK, wanted)

    def _redistribute(
        self,
        local_tensor: torch.Tensor,
        current_spec: DTensorSpec,
        target_spec: DTensorSpec,
        *,
        async_op: bool = False,
        use_graph_based_transform: bool | None = None,
        is_explicit: bool = False,
    ) -> torch.Tensor:
        """What torch calls: from the tile of one spec to that of another."""
        if current_spec.mesh != target_spec.mesh or not current_spec.mesh._is_current_rank_part_of_mesh():
            reason = "" if current_spec.mesh == target_spec.mesh else "another mesh"
        else:
            try:
                run = self._planned(local_tensor, current_spec, target_spec, async_op=async_op)
                self.planned += 1
                with _recorded(local_tensor, current_spec, target_spec, is_explicit=is_explicit):
                    return run()
            except _HandedBack as refused:
                reason = str(refused)
        if reason:
            self.handed_back[reason] += 1
        return self._original(
            local_tensor,
            current_spec,
            target_spec,
            async_op=async_op,
            use_graph_based_transform=use_graph_based_transform,
            is_explicit=is_explicit,
        )

    def _planned(
        self, tile: torch.Tensor, source: DTensorSpec, target: DTensorSpec, *, async_op: bool
    ) -> Callable[[], torch.Tensor]:
        """What runs a plan.

        Raises:
            _HandedBack: where there is none.
        """
        traced = is_traced(tile)
        if not traced and type(tile) not in TILES:
            raise _HandedBack(f"a tile that is a {type(tile).__name__}")
        if tile.layout != torch.strided:
            raise _HandedBack(f"a tile with the layout {tile.layout}")
        through, divided = _before_dividing(source, target)
        try:
            if traced:
                planned = stand_ins(source, through, source.mesh)
                moved = exchanged_in_graph(planned, tile, self._check)
            else:
                world = current_world()
                redistribution = redistribution_for(world, source, through, None, joint=True)
                redistribution.local.check_tile(tile)
                memory = Memory(async_op and not divided)
                call = EagerCall(redistribution, world, self._check, memory, tile.dtype, tile.dtype)
                held = tile.trigger_wait() if isinstance(tile, AsyncCollectiveTensor) else tile  # type: ignore[no-untyped-call]
                moved = lambda: call.tile(held)  # noqa: E731
        except ReshardError as refused:
            raise _HandedBack(f"{refused.code}: {refused}") from None

        def run() -> torch.Tensor:
            result = moved()
            for mesh_dim, placement in divided:
                result = placement._partition_value(result, source.mesh, mesh_dim)
            return result

        return run


class _HandedBack(Exception):  # noqa: N818  # it is no error: torch runs what has no plan
    """There is no plan, and why."""


_installed: Installation | None = None


def install(check: str = "never") -> Installation:
    """Put plans under DTensor's own redistribution, explicit and implicit, on this rank; all ranks must.

    Args:
        check: when ranks compare what they are about to do, as `redistribute` has it; torch itself never does.

    Returns:
        what says how many redistributions were planned and which were handed back; `remove` or the end of a `with`
        puts torch's function back.

    Raises:
        ReshardError: `bad-argument` where plans are installed already, or of `check`.

    >>> with install() as installation:
    ...     installation.planned, dict(installation.handed_back)
    (0, {})
    """
    global _installed  # noqa: PLW0603  # as in `Installation.remove`
    check_mode(check)
    if _installed is not None:
        raise ReshardError("bad-argument", "plans are installed already; remove what installed them first")
    _installed = Installation(check)
    return _installed


def uninstall() -> None:
    """Remove what is installed, if anything is."""
    if _installed is not None:
        _installed.remove()


def _before_dividing(source: DTensorSpec, target: DTensorSpec) -> tuple[tuple[Placement, ...], list[tuple[int, Any]]]:
    """What a plan leads to, and the mesh dims along which torch then divides values among ranks, with how.

    Raises:
        _HandedBack: where values partial in one way become so in another.
    """
    partial = {mesh_dim: placement for mesh_dim, placement in enumerate(target.placements) if placement.is_partial()}
    known = tuple(Partial() if place in partial else placement for place, placement in enumerate(target.placements))
    try:
        spelled = spelled_out(replace(target, placements=known))
    except ReshardError as refused:
        raise _HandedBack(f"{refused.code}: {refused}") from None
    goal = [partial.get(mesh_dim, placement) for mesh_dim, placement in enumerate(spelled)]
    through, divided = list(goal), []
    for mesh_dim, (before, after) in enumerate(zip(source.placements, goal, strict=True)):
        if not after.is_partial() or before == after:
            continue
        if before.is_partial():
            raise _HandedBack("from one partial value to another")
        if type(after) is not Partial or before.is_replicate():
            through[mesh_dim] = Replicate()
            divided.append((mesh_dim, after))
    return tuple(through), divided


def _recorded(tile: torch.Tensor, source: DTensorSpec, target: DTensorSpec, *, is_explicit: bool) -> Any:
    """Tell torch's DebugMode, where it is on, as torch does."""
    mode = get_active_debug_mode()
    if mode is None:
        return contextlib.nullcontext()
    ends = (DTensorSpec.format_shard_order_str(spec.placements, spec.shard_order) for spec in (source, target))
    return mode.record_redistribute_calls(
        tile, source.placements, target.placements, "->".join(ends), is_explicit=is_explicit
    )
