"""What every rank of the benchmark for MPI runs: `reshard.mpi` beside what one writes by hand for just this move.

Rows of a square of float32 become columns. All ways are checked bit for bit, then timed in drawn orders, from a barrier
to the last rank; written results go to memory that is there. What stands in shared memory before is so for both sides,
each in a window that nothing else reads.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import reshard as rs

RUNS = 21


def by_hand(tile: Any, out: Any) -> dict[str, Callable[[], Any]]:
    """The ways that are usual."""
    comm = MPI.COMM_WORLD
    count, rank = comm.size, comm.rank
    rows, size = tile.shape
    sent = [MPI.FLOAT.Create_subarray([rows, size], [rows, rows], [0, p * rows]).Commit() for p in range(count)]
    taken = [MPI.FLOAT.Create_subarray([size, rows], [rows, rows], [p * rows, 0]).Commit() for p in range(count)]
    ones, zeros, packed = [1] * count, [0] * count, np.empty((count, rows, rows), tile.dtype)
    windows = [MPI.Win.Allocate_shared(tile.nbytes, 1, comm=comm) for _ in range(2)]
    rooms_of = [
        [
            np.frombuffer(window.Shared_query(p)[0], tile.dtype, tile.size).reshape(tile.shape)  # type: ignore[call-overload]
            for p in range(count)
        ]
        for window in windows
    ]
    for window in windows:
        window.Lock_all()

    def alltoall() -> None:
        np.copyto(packed, tile.reshape(rows, count, rows).transpose(1, 0, 2))
        comm.Alltoall(packed, out)

    def sends() -> None:
        others = [(rank + turn) % count for turn in range(1, count)]
        requests = [comm.Irecv([out, 1, taken[peer]], peer) for peer in others]
        requests += [comm.Isend([tile, 1, sent[peer]], peer) for peer in others]
        out[rank * rows : (rank + 1) * rows] = tile[:, rank * rows : (rank + 1) * rows]
        MPI.Request.Waitall(requests)

    def read(number: int) -> None:
        window, rooms = windows[number], rooms_of[number]
        window.Sync()
        comm.Barrier()
        window.Sync()
        for turn in range(count):
            peer = (rank + turn) % count
            out[peer * rows : (peer + 1) * rows] = rooms[peer][:, rank * rows : (rank + 1) * rows]
        comm.Barrier()

    def window_from_tile() -> None:
        np.copyto(rooms_of[0][rank], tile)
        read(0)

    np.copyto(rooms_of[1][rank], tile)
    return {
        "Alltoallw": lambda: comm.Alltoallw([tile, ones, zeros, sent], [out, ones, zeros, taken]),
        "pack and Alltoall": alltoall,
        "Isend and Irecv": sends,
        "shared window": window_from_tile,
        "tile in a window": lambda: read(1),
        "free": lambda: [(window.Unlock_all(), window.Free()) for window in windows],
    }


def main(size: int, out_path: str) -> None:
    """Time all ways; the first rank writes the medians in milliseconds."""
    comm = MPI.COMM_WORLD
    mesh = rs.Mesh.of(x=comm.size)
    ends = rs.Sharding.of(mesh, "x", None), rs.Sharding.of(mesh, None, "x")
    tile = np.random.default_rng(comm.rank).random((size // comm.size, size), np.float32)
    out = np.empty((size, size // comm.size), np.float32)
    ways = by_hand(tile, out)
    free = ways.pop("free")
    other = comm.Dup()  # where there are shared tiles, ranks agree at every call
    shared: Any = rs.mpi.empty(ends[0], (size, size), "f32", other)
    shared[...] = tile
    ways["rs.mpi.reshard"] = lambda: rs.mpi.reshard(tile, *ends, (size, size), out=out)
    ways["rs.mpi.reshard of rs.mpi.empty"] = lambda: rs.mpi.reshard(shared, *ends, (size, size), other, out=out)
    times: dict[str, list[float]] = {name: [] for name in ways}
    ways["Alltoallw"]()
    expected = out.copy()
    for name, call in ways.items():
        out[...] = 0
        call()
        if not np.array_equal(out, expected):
            raise RuntimeError(f"{name} gives another result")
    draw = random.Random(0)  # alike on all ranks: no way always finds what another left in the caches
    for _ in range(RUNS):
        for name in draw.sample(list(ways), len(ways)):
            comm.Barrier()
            start = time.perf_counter()
            ways[name]()
            comm.Barrier()
            times[name].append(1e3 * (time.perf_counter() - start))
    free()
    ways.clear()
    other.Free()
    if comm.rank == 0:
        medians = {name: statistics.median(column) for name, column in times.items()}
        Path(out_path).write_text(json.dumps(medians))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
