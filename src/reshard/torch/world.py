"""What is kept for as long as the default process group lives: what was made once, and what ranks have agreed on."""

from __future__ import annotations

import atexit
import gc
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from reshard.errors import ReshardError
from reshard.torch.agreement import Agreement, Statement
from reshard.torch.dtensor_specs import forget_meshes
from reshard.torch.lifting import forget_lifted

T = TypeVar("T")
CAPACITY = 4096
"""How many calls are remembered, and how many kinds of call as agreed on per set of ranks; then the oldest goes."""


class World:
    """What is kept for one default process group."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.rank = dist.get_rank()
        self._made: dict[Any, Any] = {}
        self.agreed: set[str] = set()
        self._agreed_in_order: dict[tuple[int, ...], deque[str]] = {}
        self.agreement = Agreement()
        # One process plays all ranks of torch's fake backend: there is nobody to agree with.
        self.is_fake = dist.get_backend() == "fake"
        self.timeout = _timeout()

    def check(self, statement: Statement, mode: str) -> None:
        """Agree with the other ranks on what is done, if the mode, one of `CHECKS`, asks for it.

        Raises:
            ReshardError: `ranks-disagree`, `exchange-failed`.
        """
        ranks, digest, _ = statement
        if not self._is_due(statement, mode):
            return
        self.agreement.agree(statement, self.timeout)
        if digest not in self.agreed:
            self.agreed.add(digest)
            # The same ranks have agreed in the same order, so that all of them forget the same.
            order = self._agreed_in_order.setdefault(ranks, deque())
            order.append(digest)
            if len(order) > CAPACITY:
                self.agreed.discard(order.popleft())

    def telling(self, ranks: Callable[[], Sequence[int]], mode: str) -> Telling:
        """Tell the other ranks of what is refused meanwhile, or breaks, if the mode has them ask."""
        return Telling(self, ranks, mode)

    def check_replicas(self, statement: Statement, replicas: Sequence[int], tile: torch.Tensor, mode: str) -> None:
        """Compare the tile of this rank with those that must equal it, whenever `check` compares the statement.

        Raises:
            ReshardError: `ranks-disagree`, `exchange-failed`.
        """
        if len(replicas) < 2 or not self._is_due(statement, mode):
            return
        held = tile.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
        content = hashlib.blake2b(held.numpy().tobytes(), digest_size=8).hexdigest()
        words = f"{statement.words}, its tile with the digest {content}, where ranks {tuple(replicas)} must hold one"
        self.agreement.agree(Statement(tuple(replicas), content, words), self.timeout)

    def _is_due(self, statement: Statement, mode: str) -> bool:
        ranks, digest, _ = statement
        return mode != "never" and (mode != "first" or digest not in self.agreed) and self.is_one_of_many(ranks)

    def is_one_of_many(self, ranks: Sequence[int]) -> bool:
        """Whether there is anybody to agree with."""
        return len(ranks) > 1 and self.rank in ranks and not self.is_fake

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What was made for a key before, or is made now."""
        value: T | None = self._made.get(key)
        if value is None:
            with _disable_current_modes():  # what torch can do is tried on values, which a trace has not
                value = make()
            if len(self._made) >= CAPACITY:
                del self._made[next(iter(self._made))]
            self._made[key] = value
        return value


_WORLDS: list[tuple[Any, World]] = []
"""The default process group and what is kept for it; another group takes its place."""


class Telling(NamedTuple):
    """Tells other ranks of errors meanwhile; who they are is asked only then, for every call goes through here."""

    world: World
    ranks: Callable[[], Sequence[int]]
    mode: str

    def __enter__(self) -> None:
        """Nothing to do before."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tell of an error, which goes on."""
        if not isinstance(error, Exception) or self.mode == "never":
            return
        ranks = self.ranks()
        if self.world.is_one_of_many(ranks):
            what = error.code if isinstance(error, ReshardError) else type(error).__name__
            self.world.agreement.refuse(ranks, f"{what}: {error}")


def current_world() -> World:
    """What is kept for the default process group.

    Raises:
        ReshardError: `exchange-failed` where there is none.
    """
    group = dist.GroupMember.WORLD
    if group is None:
        raise ReshardError("exchange-failed", "torch.distributed has no default process group")
    for known, world in _WORLDS:
        if known is group:
            return world
    world = World()
    _WORLDS[:] = [(group, world)]
    return world


@atexit.register
def forget() -> None:
    """Let go of all process groups.

    The threads of a group that outlives Python may end it: one that gives back a value then is stopped in the midst
    of C++, which calls that an error. So groups that were destroyed go before Python does.
    """
    _WORLDS.clear()
    forget_meshes()
    forget_lifted()
    gc.collect()


def _timeout() -> timedelta:
    """The timeout of the default process group."""
    group: Any = dist.group.WORLD
    try:
        backend = group._get_backend(group._device_types[-1])
        return timedelta(seconds=backend.options._timeout.total_seconds())
    except (AttributeError, IndexError, RuntimeError):  # a backend without options
        return dist.default_pg_timeout
