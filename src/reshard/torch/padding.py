"""Pads on DTensors: of a constant, or of what lies in the tensor, mirrored, repeated or gone round to.

A constant and what goes round are windows with an edge (`reshard.reach`).
Of a mirrored or a repeated border a tile is made of a run of the tensor too, of which some elements come more than once
or backwards: the window is that run, and the rest is done on the rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from reshard.deal import Window
from reshard.errors import ReshardError
from reshard.reach import Reach
from reshard.torch.dtensor_specs import sharding_of
from reshard.torch.halo import check_tensor, window
from reshard.torch.sliding import several, slid, tensor_of

EDGES = {"constant": "pad", "circular": "wrap"}
"""By the mode the edge of the windows."""
INSIDE = ("reflect", "replicate")
"""Modes of which the border lies in the tensor."""


def pad(x: DTensor, widths: Sequence[int], mode: str = "constant", value: float = 0) -> DTensor:
    """`torch.nn.functional.pad`: `constant`, `circular`, `reflect` or `replicate`; the last dim's ends come first.

    The result is cut as torch cuts a tensor of its size, so rows move to where they belong then.

    Raises:
        ReshardError: `bad-argument`, `rank-mismatch`, and as `halo`.
    """
    check_tensor(x)
    numbers = several(widths, "widths")
    if (mode not in EDGES and mode not in INSIDE) or len(numbers) % 2 or len(numbers) > 2 * x.ndim:
        raise ReshardError(
            "bad-argument", f"a pad must be {', '.join([*EDGES, *INSIDE])}, of pairs, got: {mode} {numbers}"
        )
    ends = {x.ndim - 1 - place // 2: (numbers[place], numbers[place + 1]) for place in range(0, len(numbers), 2)}
    shape = list(x.shape)
    for dim, (low, high) in ends.items():
        size = x.shape[dim]
        shape[dim] += low + high
        most = {"circular": size, "reflect": size - 1}.get(mode)
        if mode == "circular" and min(low, high) < 0:
            raise ReshardError("bad-argument", f"a circular pad must not be below 0, got: {low}, {high}")
        if most is not None and max(low, high) > max(most, 0):
            raise ReshardError("bad-argument", f"a {mode} pad of size {size} is at most {most}, got: {low}, {high}")
        if mode == "replicate" and not size and max(low, high) > 0:
            raise ReshardError("bad-argument", "a replicate pad of size 0 has nothing to repeat")
        if shape[dim] < 0 or (mode in EDGES and size + min(low, 0) + min(high, 0) < 0):
            raise ReshardError("bad-argument", f"a pad of {low}, {high} leaves nothing of size {size}")
    if mode in INSIDE:
        return _of_inside(x, ends, tuple(shape), mode)
    reaches = {dim: Reach(low=low, edge=EDGES[mode]) for dim, (low, _) in ends.items()}
    return slid(x, reaches, tuple(shape), lambda part: part, value)


def _of_inside(x: DTensor, ends: dict[int, tuple[int, int]], shape: tuple[int, ...], mode: str) -> DTensor:
    """A pad of elements of the tensor, each from where its place in the whole is mirrored, or the nearest to it."""
    source = sharding_of(x)
    layout, box = source.layout_for(shape), source.box(torch.distributed.get_rank(), shape)
    windows, chosen = {}, {}
    for dim, (low, high) in ends.items():
        size = x.shape[dim]
        numbers = np.arange(-low, size + high)
        mirrored = abs(np.where(numbers < size, numbers, 2 * (size - 1) - numbers))
        places = mirrored if mode == "reflect" else numbers.clip(0, max(size - 1, 0))
        runs = [places[start:stop] for start, stop in zip(*layout.blocks(dim, shape[dim]), strict=True)]
        spans = [(int(run.min()), int(run.max()) + 1) if len(run) else (0, 0) for run in runs]
        own = places[box[dim][0] : box[dim][1]]
        windows[dim] = Window.of(spans, "clip")
        chosen[dim] = torch.as_tensor(own - (own.min() if len(own) else 0))
    part = window(x, source.with_windows(windows))
    for dim, indices in chosen.items():
        part = part.index_select(dim, indices.to(part.device))
    return tensor_of(part, x, shape)
