"""Whether all ranks of an exchange ask for the same thing, before anything moves.

Every rank makes a statement: a digest of what it is about to do, and the words for it.
The first writes it into the store that the default process group was made with; the others compare, and the last
one to arrive, or the first to differ, writes the verdict that all wait for.
That takes four requests to the store per rank and no process group, so any set of ranks can agree, and one that
does not come is named when the time is up.

Statements are counted per set of ranks.
Ranks that call in different order, or a rank that is elsewhere, are seen as a disagreement or as absent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from reshard.errors import ReshardError

AGREED = b"agreed"


def digest_of(*parts: Any) -> str:
    """A short name for the parts, the same in every process."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


class Agreement:
    """The statements that one process has made, per set of ranks."""

    def __init__(self) -> None:
        """Start counting; to be made anew with every default process group."""
        self._counts: dict[tuple[int, ...], int] = {}

    def agree(self, ranks: Sequence[int], digest: str, words: str, timeout: timedelta) -> None:
        """Wait until all ranks have stated the same.

        Raises:
            ReshardError: `ranks-disagree` on every rank where one states something else, `exchange-failed` where
                one does not come in time.
        """
        members, me = tuple(sorted(ranks)), dist.get_rank()
        number = self._counts[members] = self._counts.get(members, 0) + 1
        store = dist.distributed_c10d._get_default_store()
        name = f"reshard/{digest_of(members)}"
        key = f"{name}/{number}"
        store.set(f"{key}/{me}", "here")
        first = store.compare_set(f"{key}/first", "", f"{digest}|{me}|{words}").decode()
        agreed_with, rank, said = first.split("|", 2)
        if agreed_with != digest:
            store.set(f"{key}/verdict", f"rank {me} asks for {words}, rank {rank} for {said}")
        elif store.add(f"{key}/count", 1) == len(members):
            store.set(f"{key}/verdict", AGREED.decode())
            for left in ("first", "count", "verdict", *map(str, members)) if number > 1 else ():
                store.delete_key(f"{name}/{number - 1}/{left}")  # all have left that one behind
        try:
            store.wait([f"{key}/verdict"], timeout)
        except RuntimeError:  # out of time
            absent = [rank for rank in members if not store.check([f"{key}/{rank}"])]
            raise ReshardError(
                "exchange-failed",
                f"rank{'s' if len(absent) != 1 else ''} {', '.join(map(str, absent)) or 'unknown'} did not come to "
                f"{words} within {timeout.total_seconds():g} s",
            ) from None
        verdict = store.get(f"{key}/verdict")
        if verdict != AGREED:
            raise ReshardError("ranks-disagree", verdict.decode())
