"""A placed program as a function of DTensors.

A value is the rank's tile of it, an operation its local computation, a reshard the plan's exchange.
So whatever the program says can be: sub-axes, several meshes, dims that the shards do not divide; only what goes in
and comes out must have placements.

**Gradients.** A reshard is linear, and its transpose goes from the dual of the target to the dual of the source: what
is replicated has a gradient that is unreduced, and the reverse.
Between reshards the gradients are those of torch for the local computation.
What flows in with the gradient of a result is brought to its dual, and what flows out to an input is summed: it comes
where the input is, replicated where that is unreduced, as `redistribute` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch.distributed import tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from reshard.checks import expect, shown
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.operations.interpreter import BoxExtents, check_computable, compute
from reshard.propagation import Operation, Placement, Value
from reshard.propagation.running import Engine, run
from reshard.sharding import Sharding
from reshard.tiling import Tiling
from reshard.torch.dtensor_specs import gradient_placements, mesh_of, placements_of, spec_of
from reshard.torch.graph_operator import refuse_traced
from reshard.torch.halo import HeldWindow
from reshard.torch.local_plan import device_type_of, local_plan
from reshard.torch.redistribute import Linear, redistribute
from reshard.torch.verbs import VERBS
from reshard.torch.world import World, current_world

RankFunction = Callable[..., torch.Tensor]
PASSED = ("input", "carry", "element", "last", "chosen", "test")
"""Ends of programs and blocks that hand tiles on as they are."""


class DTensorFunction:
    """A function of DTensors: the inputs of a program one after another; its output, or a tuple of its outputs.

    An input that lies elsewhere than the program has it is brought there.
    """

    def __init__(self, placed: Placement, device_mesh: DeviceMesh | None) -> None:
        """As `to_torch`."""
        self.placed = placed
        self.device_mesh = device_mesh
        self._ready: tuple[World, dict[Mesh, DeviceMesh], _Rank] | None = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *inputs: DTensor) -> DTensor | tuple[DTensor, ...]:
        """The results; all ranks of the program must call it.

        Inside `torch.compile` it runs eagerly, which breaks the graph; whatever else traces it is refused.

        Raises:
            ReshardError: `bad-argument` where the inputs are not those of the program, `bad-shape`,
                `cannot-express`, `different-meshes`; `bad-program` where an operation is not known here;
                and as `redistribute`.
        """
        values = self.placed.inputs
        if len(inputs) != len(values):
            raise ReshardError("bad-argument", f"the program has {len(values)} inputs, got {len(inputs)}")
        for value, x in zip(values, inputs, strict=True):
            if not isinstance(x, DTensor):
                raise ReshardError("bad-argument", f"input {value.name} must be a DTensor, got: {shown(x)}")
            if tuple(x.shape) != value.shape or x.dtype != _dtype(value):
                raise ReshardError(
                    "bad-shape",
                    f"input {value.name} is {tuple(x.shape)} of {x.dtype}; it must be {value.shape} of {_dtype(value)}",
                )
        refuse_traced("a program on DTensors", *(x._local_tensor for x in inputs))
        rank = self._rank(inputs)
        tiles = [rank.ends[value].entered(x) for value, x in zip(values, inputs, strict=True)]
        results = tuple(run(self.placed, rank, tiles).values())
        return results[0] if len(results) == 1 else results

    def _rank(self, inputs: tuple[DTensor, ...]) -> _Rank:
        """What this rank does; made at the first call."""
        world, first = current_world(), inputs[0].device_mesh if inputs else self.device_mesh
        meshes = [self.device_mesh or first, *(x.device_mesh for x in inputs)]
        known = {mesh_of(mesh): mesh for mesh in reversed(meshes) if mesh is not None}
        if self._ready is None or self._ready[0] is not world or self._ready[1] != known:
            self._ready = world, known, _Rank(self.placed, world.rank, known)
        return self._ready[2]


def to_torch(placed: Placement, device_mesh: DeviceMesh | None = None) -> DTensorFunction:
    """The function of a placed program: the values of the original, moved by its plans, with gradients.

    Args:
        placed: what is run.
        device_mesh: what results are on, where no input lies on their devices.

    Raises:
        ReshardError: `bad-argument`.
    """
    if device_mesh is not None:
        expect(device_mesh, DeviceMesh, "device_mesh")
    return DTensorFunction(expect(placed, Placement, "what becomes a function of torch"), device_mesh)


class _Rank(Engine):
    """One rank, with what it does for every operation."""

    def __init__(self, placed: Placement, rank: int, meshes: Mapping[Mesh, DeviceMesh]) -> None:
        self.placed, self.rank, self.meshes, self.device = placed, rank, meshes, device_type_of(meshes)
        self.ends = {value: self._end(value) for value in (*placed.inputs, *placed.outputs)}
        computed = (operation for operation in placed.operations if operation.name not in PASSED)
        self.runs = {operation.result: self._run_of(operation) for operation in computed}

    def compute(self, operation: Operation, tiles: Sequence[torch.Tensor]) -> Any:
        """The rank's tile of a result; of an output, a DTensor."""
        return self.runs[operation.result](*tiles)

    def number(self, tile: torch.Tensor) -> int:
        """The one number of a tile.

        Raises:
            ReshardError: `cannot-express` on a rank that does not have it.
        """
        if tile.dim():
            raise ReshardError("cannot-express", "a loop or a choice depends on a number that is not on this rank")
        return int(tile)

    def part(self, tile: torch.Tensor, turn: int) -> torch.Tensor:
        """A part of dim 0, of which the rank has all."""
        return tile[turn] if len(tile) else tile  # a rank that has no part in the value

    def stacked(self, stack: Operation, tiles: list[torch.Tensor]) -> torch.Tensor:
        """Tiles one after another in a new dim 0."""
        return self.runs[stack.result](*tiles)

    def _run_of(self, operation: Operation) -> RankFunction:
        """What is called with the tiles of the operands."""
        value = operation.result
        sharding = self.placed.sharding(value)
        if operation.name == "output":
            return self.ends[value].left
        if operation.name == "constant":
            tile = self._constant(operation, sharding)
            return lambda: tile
        if operation.name == "stack":
            blank = torch.empty(self._shape(value, sharding), dtype=_dtype(value), device=self.device)
            return lambda *tiles: torch.stack(tiles).reshape(blank.shape) if tiles else blank
        if value in self.placed.plans:
            if sharding.has_windows and self.rank in sharding.mesh:
                view = HeldWindow.of(Tiling.of(sharding, value.shape), self.rank)
                bring = self._moved(value)
                return lambda tile: view.stored(bring(tile), 0)
            return self._moved(value)
        check_computable(operation)
        if self.rank not in sharding.mesh:
            # The empty tile of a rank that has no part in the value, for the gradient a function of all operands.
            return lambda *tiles: torch.cat([tile.reshape(-1)[:0].to(_dtype(value)) for tile in tiles])
        shardings = [self.placed.sharding(value) for value in operation.values]
        extents = BoxExtents(operation, shardings, self.rank)
        return lambda *tiles: compute(VERBS, operation, extents, tiles).contiguous()

    def _moved(self, value: Value) -> RankFunction:
        """What brings a tile to where a value is; of a window each element once."""
        plan, words = self.placed.plans[value], f"reshard {value.name}"
        forward = local_plan(plan, self.rank, self.meshes, _dtype(value), words)
        if not forward.exchanges:
            return forward.run
        # That of the gradient is made when it is asked for: where a reduction is no sum there is none.
        backward = cache(lambda: local_plan(plan.transpose(), self.rank, self.meshes, _dtype(value), words))

        def run_back(gradient: torch.Tensor) -> torch.Tensor:
            refuse_traced("the gradient of a program", gradient)
            return backward().run(gradient.contiguous())

        return lambda tile: Linear.apply(tile, forward.run, run_back)  # type: ignore[no-untyped-call]

    def _end(self, value: Value) -> _DTensorEnd:
        """An input or a result, on the mesh of torch that has its devices."""
        sharding = self.placed.sharding(value)
        devices = {*sharding.mesh.devices}
        fitting = [theirs for mesh, theirs in self.meshes.items() if {*mesh.devices} == devices]
        if not fitting:
            raise ReshardError("different-meshes", f"no DeviceMesh is given for {sharding.mesh}")
        return _DTensorEnd(value, sharding, self.meshes.get(sharding.mesh, fitting[0]))

    def _shape(self, value: Value, sharding: Sharding) -> tuple[int, ...]:
        """Of the rank's tile."""
        return sharding.box(self.rank, value.shape).shape if self.rank in sharding.mesh else (0,)

    def _constant(self, operation: Operation, sharding: Sharding) -> torch.Tensor:
        value = operation.result
        number: Any = operation.attribute("value")
        counts = sharding.unreduced and self.rank in sharding.mesh and sharding.reduction != "avg"
        if counts and sharding.layout.unreduced.index_of(sharding.mesh.position_of(self.rank)):
            number = value.dtype.identity(sharding.reduction)
        return torch.full(self._shape(value, sharding), number, dtype=_dtype(value), device=self.device)


def _dtype(value: Value) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, value.dtype.name)
    return dtype


class _DTensorEnd:
    """An input or a result of a program, as a DTensor."""

    def __init__(self, value: Value, sharding: Sharding, mesh: DeviceMesh) -> None:
        """Find the placements, of the value and of its gradient.

        Raises:
            ReshardError: `cannot-express` where there are none.
        """
        self.sharding, self.mesh, self.shape = sharding, mesh, value.shape
        self.placements = placements_of(sharding, mesh, value.shape)
        self.dtype = _dtype(value)

    @cached_property
    def dual(self) -> tuple[tensor.Placement, ...]:
        """How the gradient lies."""
        return placements_of(self.sharding.dual(), self.mesh, self.shape)

    def entered(self, x: DTensor) -> Any:
        """The tile of an input, which is brought to where the program has it."""

        def back(gradient: torch.Tensor) -> DTensor:
            unreduced = self._tensor(gradient.contiguous(), self.dual)
            return redistribute(unreduced, gradient_placements(self.placements))

        if x.device_mesh != self.mesh or x.placements != self.placements:
            x = redistribute(x, self.placements, self.mesh)
        return Linear.apply(x, lambda x: x._local_tensor.view_as(x._local_tensor), back)  # type: ignore[no-untyped-call]

    def left(self, tile: torch.Tensor) -> Any:
        """A tile of a result as part of its DTensor."""

        def run(tile: torch.Tensor) -> DTensor:
            return self._tensor(tile.view_as(tile), self.placements, tile.requires_grad)

        def back(gradient: DTensor) -> torch.Tensor:
            return redistribute(gradient, self.dual, self.mesh)._local_tensor

        return Linear.apply(tile, run, back)  # type: ignore[no-untyped-call]

    def _tensor(
        self, tile: torch.Tensor, placements: tuple[tensor.Placement, ...], wants_gradient: bool = False
    ) -> DTensor:
        spec = spec_of(self.mesh, placements, self.shape, self.dtype)
        return DTensor(tile, spec, requires_grad=wants_gradient)  # type: ignore[no-untyped-call]
