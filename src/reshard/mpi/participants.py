"""The ranks that make a call together: whether they ask for the same, and what is kept for them.

They have a communicator of their own, so that their messages meet no others; it is made with their first call, by
themselves alone, and kept with the communicator that they are ranks of.

Before anything moves all of them compare a digest of what they are about to do, by one all-reduce: the largest digest
and the largest complement of one are those of a rank only where all are equal.
Where they are not, or a rank refuses its own call, the ranks tell each other in words, and all raise.
The same all-reduce finds whether all tiles are shared, see `shared_tiles`.
"""

from __future__ import annotations

import atexit
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from struct import unpack
from typing import Any, Protocol, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from reshard.checks import shown
from reshard.errors import ReshardError

CAPACITY = 256
"""How many kinds of call are kept for a set of ranks."""
MOST_ROOM_BYTES = 2**26
"""Up to so much memory of one use is kept from call to call."""
ANY_TILE = 0
"""The number of a shared tile that a rank gives that has none to give."""
NO_TILE = 2**64 - 1
"""The number that one gives whose tile is not shared."""


class Freed(Protocol):
    """What is kept, and freed when it goes."""

    def free(self) -> None:
        """Give back what MPI holds for it."""


class Board(Freed, Protocol):
    """Where ranks show each other numbers."""

    def largest(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """The largest of each that any rank shows, once all have shown theirs."""


T = TypeVar("T", bound=Freed)


class Participants:
    """A set of ranks of a communicator, this one among them."""

    def __init__(self, comm: MPI.Intracomm, devices: tuple[int, ...]) -> None:
        """To be made by all of them at once.

        Args:
            comm: what they are ranks of.
            devices: their numbers there, ascending.
        """
        group = comm.Get_group()
        chosen = group.Incl(devices)
        self.comm: MPI.Intracomm = comm.Create_group(chosen)
        chosen.Free()
        group.Free()
        self.devices = devices
        self.place_of = {device: place for place, device in enumerate(devices)}
        self.device = comm.rank
        self.agreed: set[str] = set()
        self.shared: dict[int, Any] = {}
        """By their number, tiles that are shared."""
        self.board: Board | None = None
        """Where all are on one host and share tiles: what is cheaper than an all-reduce there."""
        self._made: OrderedDict[Any, Any] = OrderedDict()
        self._last: tuple[Any, Any] = None, None
        """The key that was last asked for, and what was made for it."""
        self._rooms: dict[str, NDArray[np.uint8]] = {}

    def is_due(self, digest: str, mode: str) -> bool:
        """Whether what has this digest is to be compared in one of the modes `CHECKS`.

        Where there are shared tiles it is at every call, for any of them may be what is read from.
        """
        return mode == "always" or (mode == "first" and (digest not in self.agreed or bool(self.shared)))

    def agree(self, digest: str, words: Callable[[], str], shared_tile: int = ANY_TILE) -> int:
        """Wait until all ranks have said what they do.

        Args:
            digest: of what this one does.
            words: gives the same for a sentence, where ranks disagree.
            shared_tile: the number of the shared tile that it reads from.

        Returns:
            The number of the shared tile, where all that have a tile name that one; else `ANY_TILE` or `NO_TILE`.

        Raises:
            ReshardError: `ranks-disagree` on all of them.
        """
        numbers = _numbers_of(digest)
        complement = shared_tile if shared_tile in (ANY_TILE, NO_TILE) else NO_TILE - shared_tile
        largest = self._largest((*numbers, shared_tile, complement))
        if largest[:4] != numbers:
            raise self._disagreement(words(), is_refusal=False)
        self.agreed.add(digest)
        number = largest[4]
        return number if number + largest[5] == NO_TILE and number not in (ANY_TILE, NO_TILE) else NO_TILE

    def telling(self, is_due: bool) -> ToldRefusals:
        """Tell the others of what is refused meanwhile, if they come to agree."""
        return ToldRefusals(self, is_due)

    def tell(self, error: Exception) -> None:
        """Tell the others, who come to agree, that this rank refuses its call."""
        what = error.code if isinstance(error, ReshardError) else type(error).__name__
        self._largest((NO_TILE,) * 6)
        self._disagreement(f"{what}: {error}", is_refusal=True)

    def _largest(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        if self.board is not None:
            return self.board.largest(numbers)
        result = np.zeros(6, np.uint64)
        self.comm.Allreduce(np.array(numbers, np.uint64), result, MPI.MAX)
        return tuple(result.tolist())

    def _disagreement(self, words: str, *, is_refusal: bool) -> ReshardError:
        """What all ranks say, as a sentence."""
        said = self.comm.allgather((is_refusal, words))
        for device, (refuses, reason) in zip(self.devices, said, strict=True):
            if refuses:
                return ReshardError("ranks-disagree", f"rank {device} refuses its own call: {reason}")
        place, other = next((place, text) for place, (_, text) in enumerate(said) if text != said[0][1])
        return ReshardError(
            "ranks-disagree", f"rank {self.devices[place]} asks for {other}, rank {self.devices[0]} for {said[0][1]}"
        )

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What was made for a key before, or is made now."""
        value: T | None = self._made.get(key)
        if value is None:
            value = make()
            self.keep(key, value)
        self._last = key, value
        return value

    def last_made(self, key: Any) -> Any:
        """What `once` gave last, if it was for just this key, which need not be hashed; else None."""
        return self._last[1] if self._last[0] is key else None

    def room(self, use: str, nbytes: int) -> NDArray[np.uint8]:
        """Memory that a call needs for itself; for one use the same each time, unless it is much.

        Fresh memory is handed out by the system page by page, which takes longer than to fill it.
        """
        if nbytes > MOST_ROOM_BYTES:
            return np.empty(nbytes, np.uint8)
        room = self._rooms.get(use)
        if room is None or room.size < nbytes:
            room = self._rooms[use] = np.empty(nbytes, np.uint8)
        return room[:nbytes]

    def kept(self, key: Any) -> Any:
        """What is kept for a key, or None."""
        return self._made.get(key)

    def keep(self, key: Any, value: Freed) -> None:
        """Keep something in the place of what was kept for a key; the oldest goes where there are too many."""
        self._last = None, None
        if key in self._made:
            self._made.pop(key).free()
        elif len(self._made) >= CAPACITY:
            self._made.popitem(last=False)[1].free()
        self._made[key] = value

    def free(self) -> None:
        """Let go of all that is kept; all of the ranks do so in the same order, or none."""
        for made in (*self._made.values(), *self.shared.values()):
            made.free()
        self._made.clear()
        self._last = None, None
        self._rooms.clear()
        self.shared.clear()
        if self.board is not None:
            self.board.free()
        self.comm.Free()


@lru_cache(CAPACITY)
def _numbers_of(digest: str) -> tuple[int, ...]:
    """A digest as two numbers, and their complements."""
    halves = unpack("2Q", hashlib.blake2b(digest.encode(), digest_size=16).digest())
    return (*halves, *(NO_TILE - half for half in halves))


class ToldRefusals:
    """Tells of what is refused meanwhile; a class, for it takes half as long as a generator, and each call has two."""

    __slots__ = ("is_due", "participants")

    def __init__(self, participants: Participants, is_due: bool) -> None:
        self.participants, self.is_due = participants, is_due

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self.is_due and isinstance(error, Exception):
            self.participants.tell(error)


def _forget(_comm: MPI.Comm, _key: int, known: dict[tuple[int, ...], Participants]) -> None:
    for participants in known.values():
        participants.free()
    known.clear()
    for noted in [noted for noted, (_, attribute) in _NOTED.items() if attribute is known]:
        del _NOTED[noted]


_NOTED: dict[int, tuple[MPI.Intracomm, dict[tuple[int, ...], Participants]]] = {}
"""What is kept for communicators, by the identity of their objects, until they are freed: nobody asks MPI for it."""
_KEY = MPI.Comm.Create_keyval(delete_fn=_forget)
_WORLDS: list[MPI.Intracomm] = []
"""Communicators that outlive the program, those of the whole world."""


def participants_of(comm: MPI.Intracomm | None, devices: tuple[int, ...]) -> Participants | None:
    """What is kept for some ranks of a communicator; None on a rank that is none of them.

    Args:
        comm: None for the world.
        devices: ascending.

    Raises:
        ReshardError: `bad-argument` where it is no communicator, or has no such ranks.
    """
    if comm is None:
        comm = MPI.COMM_WORLD
    if not isinstance(comm, MPI.Intracomm):
        raise ReshardError("bad-argument", f"comm must be a communicator of mpi4py, got: {shown(comm)}")
    noted = _NOTED.get(id(comm))
    if noted is not None and noted[0] is comm and devices in noted[1]:
        return noted[1][devices]
    known: Any = comm.Get_attr(_KEY)
    if devices and devices[-1] >= comm.size:
        raise ReshardError("bad-argument", f"device {devices[-1]} is none of the {comm.size} ranks of the communicator")
    if comm.rank not in devices:
        return None
    if known is None:
        known = {}
        comm.Set_attr(_KEY, known)
        if comm == MPI.COMM_WORLD:
            _WORLDS.append(comm)
    if devices not in known:
        known[devices] = Participants(comm, devices)
    if len(_NOTED) >= CAPACITY:
        _NOTED.clear()
    _NOTED[id(comm)] = comm, known
    participants: Participants = known[devices]
    return participants


@atexit.register
def forget() -> None:
    """Let go of what is kept for the world, while MPI is there: shared memory that is not freed holds up its end."""
    if MPI.Is_initialized() and not MPI.Is_finalized():
        for comm in _WORLDS:
            comm.Delete_attr(_KEY)
    _WORLDS.clear()
