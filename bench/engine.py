"""The NumPy engine against one copy of the same bytes into fresh memory, in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np

import reshard as rs
from bench.timing import Row, seconds

SIDE = 8192
RUNS = 15


def rows() -> Iterator[Row]:
    """256 MiB of float32 over 8 devices; the runs of the last case are shorter than 4 KiB."""
    array = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    mesh = rs.Mesh.of(x=2, y=4)
    ends = [
        (("y", None), ("x", "y"), True),
        (("x", "y"), ("y", "x"), True),
        ((("x", "y"), None), (None, ("x", "y")), True),
        ((("x", "y"), None), (("y", "x"), None), True),
        ((("x", "y"), None), ("y", None), True),
        ((("x", "y"), None), (None, ("x", "y")), False),
    ]
    for source_dims, target_dims, long_runs in ends:
        whole = array if long_runs else array.reshape(-1, 512)
        source, target = rs.Sharding.of(mesh, *source_dims), rs.Sharding.of(mesh, *target_dims)
        plan = rs.plan(source, target, whole.shape)
        tiles = rs.numpy.scatter(whole, source)
        ready = rs.numpy.run(plan, tiles)
        ratios = []
        for _ in range(RUNS):
            ours = seconds(lambda plan=plan, tiles=tiles: rs.numpy.run(plan, tiles))
            ratios.append(ours / seconds(lambda ready=ready: {device: tile.copy() for device, tile in ready.items()}))
        runs = min(tile.shape[1] * tile.itemsize for tile in (tiles[0], ready[0]))
        ratio = statistics.median(ratios)
        limit = "at most 1.3 times" if long_runs else ""
        what = f"run {source.text()} -> {target.text()}, 256 MiB, runs of {runs} bytes, over a copy"
        yield Row(
            what, f"{ratio:.2f} times ({min(ratios):.2f} to {max(ratios):.2f})", limit, ratio <= 1.3 if limit else None
        )
