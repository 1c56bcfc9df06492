"""Operations that reach over the edge of a tile: roll, flip, convolutions; pads and pooling rest on it.

Each rank makes its tile of the result out of a window of the operand: what the tile reaches is arithmetic
(`reshard.reach`), filling the window is one exchange of what the rank lacks (`halo`), and the rest is torch's own
function on the window.
The result is cut as the operand is; dims that an operation sums over, as the channels of a convolution, are made whole
first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as all of torch's users call it
from torch._prims_common import make_contiguous_strides_for
from torch.distributed.tensor import DTensor, Partial, Replicate

from reshard.checks import integer, listed, shown
from reshard.errors import ReshardError
from reshard.reach import Reach, window_for
from reshard.torch.dtensor_specs import sharding_of
from reshard.torch.halo import check_tensor, window
from reshard.torch.redistribute import redistribute

Numbers = int | Sequence[int]


def roll(x: DTensor, shifts: Numbers, dims: Numbers) -> DTensor:
    """`torch.roll` along dims: only what crosses an edge travels.

    Raises:
        ReshardError: `bad-argument`, `rank-mismatch`, and as `halo`.
    """
    check_tensor(x)
    by, along = several(shifts, "shifts"), [dim_of(x, dim) for dim in several(dims, "dims")]
    if len(by) != len(along) or len(set(along)) < len(along):
        raise ReshardError("bad-argument", f"shifts and dims must be as many, of different dims, got: {by} and {along}")
    reaches = {
        dim: Reach(low=shift % x.shape[dim], edge="wrap")
        for shift, dim in zip(by, along, strict=True)
        if x.shape[dim] and shift % x.shape[dim]
    }
    return slid(x, reaches, tuple(x.shape), lambda part: part)


def flip(x: DTensor, dims: Numbers) -> DTensor:
    """`torch.flip`: every rank takes the mirror image of its tile.

    Raises:
        ReshardError: `bad-argument`, `rank-mismatch`, and as `halo`.
    """
    check_tensor(x)
    along = [dim_of(x, dim) for dim in several(dims, "dims")]
    reaches = {dim: Reach(stride=-1, low=1 - x.shape[dim], edge="clip") for dim in along}
    return slid(x, reaches, tuple(x.shape), lambda part: part.flip(along))


def conv1d(x: DTensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> DTensor:
    """`torch.nn.functional.conv1d` of a batch, cut in any dim; as `conv2d`."""
    return _convolved(1, x, weight, bias, **options)


def conv2d(x: DTensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> DTensor:
    """`torch.nn.functional.conv2d` of a batch, cut in any dim: only the borders of images travel.

    Args:
        x: batch, channels, rows, columns; channels are made whole.
        weight: replicated; as a DTensor if a gradient of it is wanted, which is partial then.
        bias: likewise, or None.
        options: `stride`, `padding`, `dilation` and `groups`, as of torch.

    Raises:
        ReshardError: `bad-argument`, `rank-mismatch`, and as `halo`.
    """
    return _convolved(2, x, weight, bias, **options)


def conv3d(x: DTensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> DTensor:
    """`torch.nn.functional.conv3d` of a batch, cut in any dim; as `conv2d`."""
    return _convolved(3, x, weight, bias, **options)


def _channels_whole(x: DTensor, weight: torch.Tensor, count: int) -> DTensor:
    """The batch of a convolution over so many dims, reduced, its channels on every device.

    Raises:
        ReshardError: `rank-mismatch`.
    """
    x = _whole(reduced(x), {1})
    if x.ndim != count + 2 or weight.ndim != count + 2:
        raise ReshardError("rank-mismatch", f"a convolution over {count} dims has operands of {count + 2}")
    return x


def _convolved(
    count: int,
    x: DTensor,
    weight: Any,
    bias: Any = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> DTensor:
    x = _channels_whole(x, weight, count)
    kernel = tuple(weight.shape[2:])
    steps, spread = (each(numbers, count) for numbers in (stride, dilation))
    if isinstance(padding, str):
        pads, sizes = _named_padding(padding, tuple(x.shape[2:]), kernel, steps, spread)
    else:
        pads = each(padding, count)
        sizes = slid_sizes(x.shape[2:], kernel, steps, pads, spread)
    reaches = sliding_reaches(kernel, steps, pads, spread)
    shape = (x.shape[0], weight.shape[0], *sizes)
    weight, bias = (_local_weight(one, x) for one in (weight, bias))
    function: Callable[..., torch.Tensor] = (F.conv1d, F.conv2d, F.conv3d)[count - 1]
    options = {"stride": steps, "dilation": spread, "groups": groups}
    weights = [one for one in (weight, bias) if one is not None]
    return slid(x, reaches, shape, lambda part: function(part, weight, bias, **options), weights=weights)


def _named_padding(
    padding: str, sizes: tuple[int, ...], kernel: tuple[int, ...], steps: tuple[int, ...], spread: tuple[int, ...]
) -> tuple[tuple[int, ...], Sequence[int]]:
    """What torch means by `valid`, and by `same`, which has one place more behind where it cannot have as many before.

    Raises:
        ReshardError: `bad-argument`.
    """
    if padding == "valid":
        return (0,) * len(kernel), slid_sizes(sizes, kernel, steps, (0,) * len(kernel), spread)
    if padding != "same" or set(steps) != {1}:
        raise ReshardError("bad-argument", f"a padding is numbers, valid, or same with a stride of 1, got: {padding}")
    return tuple(apart * (length - 1) // 2 for length, apart in zip(kernel, spread, strict=True)), sizes


def conv_transpose1d(x: DTensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> DTensor:
    """`torch.nn.functional.conv_transpose1d` of a batch, cut in any dim; as `conv_transpose2d`."""
    return _transposed(1, x, weight, bias, **options)


def conv_transpose2d(x: DTensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> DTensor:
    """`torch.nn.functional.conv_transpose2d` of a batch, cut in any dim: only the borders of images travel.

    Args:
        x: batch, channels, rows, columns; channels are made whole.
        weight: replicated; as a DTensor if a gradient of it is wanted, which is partial then.
        bias: likewise, or None.
        options: `stride`, `padding`, `output_padding`, `groups` and `dilation`, as of torch.

    Raises:
        ReshardError: `bad-argument`, `rank-mismatch`, and as `halo`.
    """
    return _transposed(2, x, weight, bias, **options)


def conv_transpose3d(x: DTensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> DTensor:
    """`torch.nn.functional.conv_transpose3d` of a batch, cut in any dim; as `conv_transpose2d`."""
    return _transposed(3, x, weight, bias, **options)


def _transposed(
    count: int,
    x: DTensor,
    weight: Any,
    bias: Any = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
) -> DTensor:
    x = _channels_whole(x, weight, count)
    kernel = tuple(weight.shape[2:])
    steps, pads, more, spread = (each(numbers, count) for numbers in (stride, padding, output_padding, dilation))
    if min(steps) < 1 or any(
        extra >= max(pair) for extra, pair in zip(more, zip(steps, spread, strict=True), strict=True)
    ):
        raise ReshardError("bad-argument", f"an output_padding must be below stride or dilation, got: {more}")
    widths = [apart * (length - 1) for length, apart in zip(kernel, spread, strict=True)]
    numbers = zip(x.shape[2:], steps, pads, widths, more, strict=True)
    sizes = [(size - 1) * step - 2 * low + width + extra + 1 for size, step, low, width, extra in numbers]
    if min(sizes) < 0:
        raise ReshardError("bad-argument", f"a padding of {pads} leaves nothing of sizes {tuple(x.shape[2:])}")
    reaches = {
        dim: Reach(length, 1, apart, width - low, spread=step)
        for dim, (length, step, apart, width, low) in enumerate(
            zip(kernel, steps, spread, widths, pads, strict=True), 2
        )
    }
    shape = (x.shape[0], weight.shape[1] * groups, *sizes)
    box = sharding_of(x).box(torch.distributed.get_rank(), shape)
    weight, bias = (_local_weight(one, x) for one in (weight, bias))
    function: Callable[..., torch.Tensor] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[count - 1]

    def tile(part: torch.Tensor) -> torch.Tensor:
        """All that the window makes, then of that what the tile is: it may begin before it and end behind it."""
        windows = _every(function, part, weight, {"stride": steps, "groups": groups, "dilation": spread})
        ends: list[int] = []
        for dim, step, low in zip(reversed(range(2, x.ndim)), reversed(steps), reversed(pads), strict=True):
            start, stop = box[dim]
            first = start + low - reaches[dim].of(start, stop)[0] * step
            ends += [-first, first + stop - start - windows.shape[dim]]
        windows = F.pad(windows, ends)
        return windows if bias is None else windows + bias.reshape(-1, *[1] * count)

    weights = [one for one in (weight, bias) if one is not None]
    return slid(x, reaches, shape, tile, weights=weights)


def _every(
    function: Callable[..., torch.Tensor], part: torch.Tensor, weight: torch.Tensor, options: dict[str, Any]
) -> torch.Tensor:
    """A transposed convolution, of a part that may have no elements too."""
    if part.numel():
        return function(part, weight, **options)
    channels = weight.shape[1] * options["groups"]
    return part.new_zeros((part.shape[0], channels, *[0] * (part.ndim - 2))) + 0 * (part.sum() + weight.sum())


def slid(
    x: DTensor,
    reaches: dict[int, Reach],
    shape: tuple[int, ...],
    function: Callable[[torch.Tensor], torch.Tensor],
    fill: float = 0,
    weights: Sequence[torch.Tensor] = (),
) -> DTensor:
    """The result of a shape, cut as the operand is, of a function of windows and weights."""
    source = sharding_of(x)
    part = window(x, window_for(reaches, source, source, shape), fill)
    local_shape = source.box(torch.distributed.get_rank(), shape).shape
    if 0 in local_shape:  # nothing to make, and yet the gradients take part in their exchanges
        local = part.new_zeros(local_shape) + sum(one.sum() * 0 for one in (part, *weights))
    else:
        local = function(part)
    return tensor_of(local, x, shape)


def tensor_of(local: torch.Tensor, like: DTensor, shape: Sequence[int]) -> DTensor:
    """A tile as the tensor of a shape, cut as another."""
    stride = make_contiguous_strides_for(tuple(shape))
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
    )


def reduced(x: DTensor) -> DTensor:
    """The same without partial values."""
    if any(placement.is_partial() for placement in getattr(x, "placements", ())):
        return redistribute(x, [Replicate() if placement.is_partial() else placement for placement in x.placements])
    check_tensor(x)
    return x


def _whole(x: DTensor, dims: set[int]) -> DTensor:
    """The same with some dims not cut."""
    placements = [Replicate() if any(p.is_shard(dim) for dim in dims) else p for p in x.placements]
    return x if tuple(placements) == tuple(x.placements) else redistribute(x, placements)


def _local_weight(weight: Any, x: DTensor) -> Any:
    """A replicated weight on a rank; its gradient is partial along what cuts the operand."""
    if weight is None:
        return None
    if not isinstance(weight, DTensor):
        if not isinstance(weight, torch.Tensor) or weight.requires_grad:
            raise ReshardError("bad-argument", f"a weight must be a DTensor, or need no gradient, got: {shown(weight)}")
        return weight
    if weight.device_mesh != x.device_mesh:
        raise ReshardError("different-meshes", "a weight must be on the mesh of what it is applied to")
    weight = redistribute(weight, [Replicate()] * x.device_mesh.ndim)
    gradients = [Partial() if placement.is_shard() else Replicate() for placement in x.placements]
    return weight.to_local(grad_placements=gradients)


def sliding_reaches(kernel: Any, steps: Any, pads: Any, spread: Any) -> dict[int, Reach]:
    """Per dim what a kernel reaches, after batch and channels."""
    numbers = enumerate(zip(kernel, steps, pads, spread, strict=True), 2)
    return {dim: Reach(length, step, apart, low) for dim, (length, step, low, apart) in numbers}


def slid_sizes(sizes: Any, kernel: Any, steps: Any, pads: Any, spread: Any) -> list[int]:
    """Of the result: one per place where the whole kernel fits into what is padded."""
    numbers = zip(sizes, kernel, steps, pads, spread, strict=True)
    result = [(size + 2 * low - apart * (length - 1) - 1) // step + 1 for size, length, step, low, apart in numbers]
    if min(result) < 0 or any(step < 1 for step in steps):
        raise ReshardError("bad-argument", f"a kernel of {tuple(kernel)} does not fit into sizes {tuple(sizes)}")
    return result


def several(numbers: Numbers, what: str) -> list[int]:
    """One number or more.

    Raises:
        ReshardError: `bad-argument`.
    """
    listing = [numbers] if isinstance(numbers, int) else listed(numbers, what)
    return [integer(number, f"each of {what}") for number in listing]


def each(numbers: Numbers, count: int) -> tuple[int, ...]:
    """A number for each of so many dims.

    Raises:
        ReshardError: `bad-argument`.
    """
    listing = several(numbers, "numbers")
    listing = listing * count if len(listing) == 1 else listing
    if len(listing) != count:
        raise ReshardError("bad-argument", f"{count} numbers or one are needed, got: {listing}")
    return tuple(listing)


def dim_of(x: DTensor, dim: int) -> int:
    """A dim, counted from the first.

    Raises:
        ReshardError: `rank-mismatch`.
    """
    if not -x.ndim <= integer(dim, "a dim") < x.ndim:
        raise ReshardError("rank-mismatch", f"dim {dim} is none of {x.ndim} dims")
    return dim % x.ndim
