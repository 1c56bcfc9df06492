"""Tiles in memory that the ranks of a host share: what one of them has, the others read by themselves.

Nothing is sent then, and every element is copied once instead of twice.
That needs a tile that was made for it, by all ranks at once, and a wait of all ranks before the reading and of those of
a host after it.

The ranks of a host wait by counters in their shared memory, and give way to each other meanwhile.
A barrier of MPI is as good where each rank has a processor; where they share processors, ranks that wait in it hold up
those that still copy: 64 MiB between 8 ranks on 2 processors took 54 ms with it where they take 38.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from math import prod
from struct import Struct
from typing import Any

import numpy as np
from mpi4py import MPI

from reshard.array_tiles import Array
from reshard.checks import checked_shape, expect
from reshard.dtypes import dtype_named, value_dtype
from reshard.mpi.participants import ANY_TILE, NO_TILE, Participants, participants_of
from reshard.sharding import Sharding
from reshard.tiling import Tiling

LINE_BYTES = 64
"""Of a processor's cache: a tile begins with one, and what a rank counts lies in one by itself."""
QUICK_POLLS = 64
"""So often a waiting rank looks for a counter before it sleeps in between; it lets MPI go on with messages of the
program's own then."""
SLEEP_S = 2e-5
SIX = Struct("6Q")
_give_way = getattr(os, "sched_yield", partial(time.sleep, 0))


class SharedTile:
    """One rank's tile, and what it sees of those of the ranks on its host."""

    def __init__(self, participants: Participants, nbytes: int) -> None:
        """To be made by all of them at once."""
        comm = participants.comm
        host: Any = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.host: MPI.Intracomm = host
        self.window: MPI.Win = MPI.Win.Allocate_shared((-(-nbytes // LINE_BYTES) + 1) * LINE_BYTES, 1, comm=self.host)
        rooms: list[Any] = [self.window.Shared_query(rank)[0] for rank in range(self.host.size)]
        self.turns = [memoryview(room).cast("B")[-8:].cast("Q") for room in rooms]
        """Of each rank of the host, to how many waits it has come."""
        self.window.Lock_all()
        self.turns[self.host.rank][0] = 0
        self.memories: dict[int, Any] = {}
        for room, place, size in zip(rooms, self._places_on(comm), self.host.allgather(nbytes), strict=True):
            self.memories[participants.devices[place]] = np.frombuffer(room, np.uint8)[:size]
        self.own = self.memories[participants.device]
        self.near = {device: memory for device, memory in self.memories.items() if device != participants.device}
        """Of the other ranks, by device."""
        self.address = _address(self.own)

    def _places_on(self, comm: MPI.Intracomm) -> list[int]:
        """The ranks of a communicator that are on this host."""
        groups = self.host.Get_group(), comm.Get_group()
        places = MPI.Group.Translate_ranks(groups[0], list(range(self.host.size)), groups[1])
        for group in groups:
            group.Free()
        return list(places)

    def holds(self, tile: Array) -> bool:
        """Whether an array is all of this memory."""
        return tile.nbytes == self.own.nbytes and _address(tile) == self.address and tile.flags.c_contiguous

    def wait(self) -> None:
        """Until all ranks of the host are here."""
        turns, polls = self.turns, 0
        turn = turns[self.host.rank][0] + 1
        self.window.Sync()  # what this rank has written goes before what says so
        turns[self.host.rank][0] = turn
        for others in turns:
            while others[0] < turn:
                polls += 1
                if polls <= QUICK_POLLS:
                    _give_way()
                else:
                    self.host.Iprobe()
                    time.sleep(SLEEP_S)
        self.window.Sync()

    def see(self) -> None:
        """Take notice of what others have written."""
        self.window.Sync()

    def free(self) -> None:
        """Give the memory back, with all ranks of the host."""
        self.memories.clear()
        self.near.clear()
        self.turns.clear()
        self.window.Unlock_all()
        self.window.Free()
        self.host.Free()


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class NumberBoard:
    """Six numbers of each rank of a host, that all read: an all-reduce for the price of a barrier.

    There are two boards, that are taken in turn: who writes on one has seen all others done with it, for they have
    come to the barrier of the other.
    """

    def __init__(self, participants: Participants) -> None:
        """To be made by all of them at once, all being on one host."""
        self.tile = SharedTile(participants, 2 * SIX.size)
        parts = slice(SIX.size), slice(SIX.size, None)
        self.boards = [[memoryview(memory)[part] for memory in self.tile.memories.values()] for part in parts]
        self.own = [memoryview(self.tile.own)[part] for part in parts]
        self.turn = 0

    def largest(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """The largest of each that any rank shows, once all have shown theirs."""
        SIX.pack_into(self.own[self.turn], 0, *numbers)
        self.tile.wait()
        shown = set(map(bytes, self.boards[self.turn]))
        self.turn = 1 - self.turn
        return numbers if len(shown) == 1 else tuple(map(max, *map(SIX.unpack, shown)))

    def free(self) -> None:
        """Give the memory back, with all ranks of the host."""
        self.boards.clear()
        self.own.clear()
        self.tile.free()


def empty(sharding: Sharding, shape: Sequence[int], dtype: Any, comm: MPI.Intracomm | None = None) -> Array | None:
    """An array for the tile of this rank, not filled, in memory that the ranks of a host share.

    All ranks of the mesh must call it. A plan that is run from such tiles, by the same ranks, sends nothing between
    ranks of one host. The memory is held until the communicator is freed, that of the world to the end.

    Args:
        sharding: whose tile it is.
        shape: of the whole tensor.
        dtype: of its elements.
        comm: whose ranks are the devices of the mesh; the world where it is not given.

    Returns:
        The array; None on a rank that the mesh does not have.

    Raises:
        ReshardError: `bad-argument`, `bad-shape`, `rank-mismatch`, `unknown-dtype`, `missing-extra`, `ranks-disagree`.
    """
    tiling = Tiling.of(expect(sharding, Sharding, "what a tile is of"), checked_shape(shape))
    kind = value_dtype(dtype_named(dtype))
    participants = participants_of(comm, tuple(sorted(sharding.mesh.devices)))
    if participants is None:
        return None
    words = f"a shared tile of {sharding.text()} of {tuple(tiling.shape)} {kind}"
    participants.agree(f"{sharding} {words}", lambda: words)
    local_shape = tiling.tile(participants.device).shape
    number = 1 + max(participants.shared, default=0)
    tile = participants.shared[number] = SharedTile(participants, prod(local_shape) * kind.itemsize)
    if participants.board is None and tile.host.size == len(participants.devices):
        participants.board = NumberBoard(participants)
    array: Array = tile.own.view(kind).reshape(local_shape)
    return array


def number_of(tile: Array | None, participants: Participants) -> int:
    """The number of the shared tile that an array is."""
    if tile is None:
        return ANY_TILE
    for number, shared in participants.shared.items():
        if shared.holds(tile):
            shared.see()  # what this rank has written goes before what it says next
            return number
    return NO_TILE if tile.size else ANY_TILE
