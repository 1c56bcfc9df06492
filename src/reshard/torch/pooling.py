"""Pooling on DTensors: the largest or the average of what a window of the tensor has, with its border alone received.

Where torch rounds the number of places up (`ceil_mode`), or counts what is not padded only, an average is a sum over a
number that arithmetic tells: per dim, how many places of the window are in the tensor, or in its padding too.

By hand, 5 elements, a kernel of 3 in steps of 2, padded by 1: places 0 to 2 of what is padded are 2 elements and one
that is padded; rounded up or not there are 3 windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # as all of torch's users call it
from torch.distributed.tensor import DTensor

from reshard.errors import ReshardError
from reshard.torch.dtensor_specs import sharding_of
from reshard.torch.sliding import Numbers, each, reduced, slid, slid_sizes, sliding_reaches


def max_pool(
    x: DTensor,
    kernel: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    *,
    ceil_mode: bool = False,
) -> DTensor:
    """`max_pool1d`, `2d` or `3d` by the number of dims after batch and channels: only borders travel.

    Raises:
        ReshardError: `bad-argument`, `rank-mismatch`, and as `halo`.
    """
    x, pool = _pool(x, kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    if not x.dtype.is_floating_point:
        raise ReshardError("bad-argument", f"a pooling by maximum is of floating point numbers, got: {x.dtype}")
    function: Callable[..., torch.Tensor] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(pool.lengths) - 1]
    options = {"stride": pool.steps, "dilation": pool.spread}
    reaches = sliding_reaches(pool.lengths, pool.steps, pool.pads, pool.spread)
    return slid(x, reaches, pool.shape, lambda part: function(part, pool.lengths, **options), float("-inf"))


def avg_pool(
    x: DTensor,
    kernel: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> DTensor:
    """`avg_pool1d`, `2d` or `3d` by the number of dims after batch and channels: only borders travel.

    Raises:
        ReshardError: `bad-argument`, `rank-mismatch`, and as `halo`.
    """
    x, pool = _pool(x, kernel, stride, padding, 1, ceil_mode=ceil_mode)
    if divisor_override == 0:
        raise ReshardError("bad-argument", "a divisor_override must not be 0")
    function: Callable[[torch.Tensor], torch.Tensor]
    if not ceil_mode and count_include_pad and divisor_override is None:
        average = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(pool.lengths) - 1]
        function = lambda part: average(part, pool.lengths, pool.steps)  # noqa: E731
    else:
        box = sharding_of(x).box(torch.distributed.get_rank(), pool.shape)[2:]
        counts = pool.counts(box, with_padding=count_include_pad)
        function = lambda part: _sums(part, pool) / (divisor_override or counts.to(part))  # noqa: E731
    return slid(x, sliding_reaches(pool.lengths, pool.steps, pool.pads, pool.spread), pool.shape, function)


class _Pool(NamedTuple):
    """A pooling of some dims."""

    lengths: tuple[int, ...]
    steps: tuple[int, ...]
    pads: tuple[int, ...]
    spread: tuple[int, ...]
    sizes: tuple[int, ...]
    """Of the tensor."""
    shape: tuple[int, ...]
    """Of the result, batch and channels too."""

    def counts(self, box: Sequence[tuple[int, int]], *, with_padding: bool) -> torch.Tensor:
        """Of how many places each element of a box of the result is made."""
        total = torch.ones((), dtype=torch.float64)
        for dim, (start, stop) in enumerate(box):
            length, low, size = self.lengths[dim], self.pads[dim], self.sizes[dim]
            first = torch.arange(start, stop) * self.steps[dim] - low
            last = (first + length).clamp(max=size + low)
            places = last - first if with_padding else last.clamp(max=size) - first.clamp(min=0)
            total = total[..., None] * places
        return total


def _pool(
    x: DTensor, kernel: Numbers, stride: Numbers | None, padding: Numbers, dilation: Numbers, *, ceil_mode: bool
) -> tuple[DTensor, _Pool]:
    """What is pooled, reduced, and how."""
    x = reduced(x)
    count = x.ndim - 2
    if not 1 <= count <= 3:
        raise ReshardError("rank-mismatch", f"a pooling is of batch, channels and 1 to 3 dims, got: {tuple(x.shape)}")
    lengths = each(kernel, count)
    steps = lengths if stride is None else each(stride, count)
    pads, spread = each(padding, count), each(dilation, count)
    if any(2 * low > length or low < 0 for low, length in zip(pads, lengths, strict=True)):
        raise ReshardError("bad-argument", f"a pooling is padded by half its kernel {lengths} at most, got: {pads}")
    sizes = slid_sizes(x.shape[2:], lengths, steps, pads, spread)
    if ceil_mode:
        for dim, (length, step, low, apart) in enumerate(zip(lengths, steps, pads, spread, strict=True)):
            size = x.shape[2 + dim]
            places = -(-(size + 2 * low - apart * (length - 1) - 1) // step) + 1
            sizes[dim] = places - ((places - 1) * step >= size + low)  # none begins behind the tensor
    return x, _Pool(lengths, steps, pads, spread, tuple(x.shape[2:]), (*x.shape[:2], *sizes))


def _sums(part: torch.Tensor, pool: _Pool) -> torch.Tensor:
    """The sums of windows."""
    if len(pool.lengths) == 3:
        return F.avg_pool3d(part, pool.lengths, pool.steps, divisor_override=1)
    if len(pool.lengths) == 2:
        return F.avg_pool2d(part, pool.lengths, pool.steps, divisor_override=1)
    flat = F.avg_pool2d(part.unsqueeze(2), (1, *pool.lengths), (1, *pool.steps), divisor_override=1)
    return flat.squeeze(2)
