"""`redistribute` inside a graph that torch traces: by `torch.compile`, without a break, by `make_fx` or for export.

In a graph an exchange is one operator, `reshard::exchange`, from local tensor to local tensor: its shapes are
known while the graph is traced, its gradient is the same operator on the way back, and the messages are those of
the eager call.
Which rank runs it, the operator asks when it runs, so that all ranks of a mesh trace the same.
What it does stands in the graph as a name for meshes and placements, which are constants there, beside the sizes of
the whole tensor: a graph is for one shape, and is traced again for another local shape.
What torch 2.13 does not guard is the shape of a DTensor whose local shape stays: 5 rows after 6, both 3 on the first
of two ranks, run the graph of 6 there.
Give uneven shapes that change to functions of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import _are_we_tracing
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from reshard.errors import ReshardError
from reshard.sharding import Sharding
from reshard.torch.agreement import digest_of
from reshard.torch.conversions import gradient_placements, mesh_of, target_placements
from reshard.torch.transfer import Transfer, transfer_for
from reshard.torch.world import CAPACITY, world


class Way(NamedTuple):
    """What a graph names: from where to where, for tensors of any shape."""

    source_mesh: DeviceMesh
    source: tuple[Placement, ...]
    mesh: DeviceMesh
    target: tuple[Placement, ...]
    dtype: torch.dtype
    check: str

    def back(self) -> Way:
        """The way of the gradient."""
        ends = gradient_placements(self.target), gradient_placements(self.source)
        return Way(self.mesh, ends[0], self.source_mesh, ends[1], self.dtype, self.check)


_NAMED: dict[str, Way] = {}
"""What graphs name; beyond `CAPACITY`, the name that was traced longest ago goes."""


def is_traced(*tiles: torch.Tensor) -> bool:
    """Whether what is done with local tensors goes into a graph, or is done for its shapes alone."""
    if torch.compiler.is_compiling() or _are_we_tracing():
        return True
    return any(isinstance(tile, FakeTensor) for tile in tiles)


def refuse_traced(what: str, *tiles: torch.Tensor) -> None:
    """Refuse what would leave the messages of one rank in a graph.

    Raises:
        ReshardError: `bad-argument`.
    """
    if is_traced(*tiles):
        raise ReshardError("bad-argument", f"{what} cannot be traced: call it outside of the graph")


def redistribute_traced(
    x: DTensor, target: Sharding | Sequence[Placement], mesh: DeviceMesh | None, check: str
) -> DTensor:
    """What is traced in place of an eager redistribute."""
    wanted = target if isinstance(target, Sharding) else tuple(target)
    asked = (x.device_mesh, x.placements, x.device_mesh if mesh is None else mesh, wanted, x.dtype, check, x.dim())
    back = gradient_placements(x.placements)
    tile = torch.ops.reshard.exchange(x.to_local(grad_placements=back), _name_of(*asked), x.shape)
    return DTensor.from_local(tile, asked[2], _target_of(*asked), run_check=False, shape=x.shape, stride=x.stride())


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _name_of(*asked: Any) -> str:
    """The name of a way, kept with the way back."""
    way = _way(*asked)
    ends = (str(mesh_of(way.source_mesh)), str(way.source), str(mesh_of(way.mesh)), str(way.target))
    name = digest_of(*ends, str(way.dtype), way.check)
    for named, there in ((name, way), (f"{name}/back", way.back())):
        _NAMED.pop(named, None)
        _NAMED[named] = there
    while len(_NAMED) > CAPACITY:
        del _NAMED[next(iter(_NAMED))]
    return name


def _named(name: str) -> Way:
    """What a graph means by a name."""
    if name not in _NAMED:
        raise ReshardError(
            "bad-argument",
            f"this process has not traced {name}, or {CAPACITY // 2} other ways since; trace it again, after "
            "torch.compiler.reset() where it was compiled",
        )
    return _NAMED[name]


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _target_of(*asked: Any) -> tuple[Placement, ...]:
    """The placements of the target."""
    return _way(*asked).target


def _way(
    source_mesh: DeviceMesh,
    source: tuple[Placement, ...],
    mesh: DeviceMesh,
    target: Sharding | tuple[Placement, ...],
    dtype: torch.dtype,
    check: str,
    ndim: int,
) -> Way:
    placements = target_placements(target, mesh, ndim)
    return Way(source_mesh, tuple(source), mesh, placements, dtype, check)


def _transfer(name: str, sizes: Sequence[int]) -> Transfer:
    """The transfer of a way for one shape; sizes that are symbols become numbers, on which the graph then depends."""
    way, shape = _named(name), tuple(int(size) for size in sizes)
    stride = make_contiguous_strides_for(shape)  # whatever it is: a transfer does not depend on it
    meta = TensorMeta(torch.Size(shape), tuple(stride), way.dtype)
    spec = DTensorSpec(way.source_mesh, way.source, tensor_meta=meta)
    return transfer_for(world(), spec, way.target, way.mesh)


@torch.library.custom_op("reshard::exchange", mutates_args=())
def exchange(tile: torch.Tensor, name: str, sizes: Sequence[int]) -> torch.Tensor:
    """The named transfer of a local tensor, whose whole has these sizes."""
    transfer = _transfer(name, sizes)
    transfer.check_tile(tile)
    world().check(transfer, _named(name).check)
    result = transfer.start(tile)()
    return result.clone() if result is tile else result  # an operator gives no memory of its input


@exchange.register_fake
def _exchange_shape(tile: torch.Tensor, name: str, sizes: Sequence[int]) -> torch.Tensor:
    transfer = _transfer(name, sizes)
    transfer.check_tile(tile)  # the graph must depend on the local shape too, which torch guards no further
    shape = transfer.target_shape
    return tile.new_empty((0,) if shape is None else shape)


def _keep_name(ctx: Any, inputs: tuple[torch.Tensor, str, Sequence[int]], output: torch.Tensor) -> None:
    ctx.name, ctx.sizes = inputs[1:]


def _exchange_back(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    if ctx.name.endswith("/back"):
        raise ReshardError("bad-argument", "a traced redistribute has a first derivative and no second")
    return torch.ops.reshard.exchange(gradient, f"{ctx.name}/back", ctx.sizes), None, None


exchange.register_autograd(_exchange_back, setup_context=_keep_name)
