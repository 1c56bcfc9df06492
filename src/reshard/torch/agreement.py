"""Whether all ranks of an exchange ask for the same thing, before anything moves.

Every rank makes a statement: a digest of what it is about to do, and the words for it.
The first writes it into the store that the default process group was made with; the others compare, and the last
one to arrive, or the first to differ, writes the verdict that all wait for.
That takes four requests to the store per rank and no process group, so any set of ranks can agree, and one that
does not come is named when the time is up.

A rank that refuses its own call writes that as the verdict and waits for nobody.

Statements are counted per set of ranks.
A rank that comes when the others have given up gets their error, and is in step with their next call.
One that never made the call that they gave up, because something else failed on it, passes over that and comes to
what they do now.
By hand, rank 0 fails between two calls and makes the second statement only: it finds that number 1, another statement
than its own, was given up, passes on to number 2, and agrees.
Ranks that call in different order, or a rank that is elsewhere, are seen as a disagreement or as absent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from reshard.errors import ReshardError

AGREED = "agreed"
ABSENT = "absent: "
"""What a verdict begins with where a rank did not come."""


class Statement(NamedTuple):
    """What a rank says that it is about to do."""

    ranks: tuple[int, ...]
    """All that take part."""
    digest: str
    """What is done, in short."""
    words: str
    """What is done, for a sentence."""


def digest_of(*parts: Any) -> str:
    """A short name for the parts, the same in every process."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


class Agreement:
    """The statements that one process has made, per set of ranks."""

    def __init__(self) -> None:
        """Start counting; to be made anew with every default process group."""
        self._counts: dict[tuple[int, ...], int] = {}

    def agree(self, statement: Statement, timeout: timedelta) -> None:
        """Wait until all ranks of a statement have made the same.

        Raises:
            ReshardError: `ranks-disagree` on every rank where one states something else, `exchange-failed` where
                one does not come in time.
        """
        ranks, digest, words = statement
        members, me = tuple(sorted(ranks)), dist.get_rank()
        store = dist.distributed_c10d._get_default_store()
        name, number = self._next(members)
        number = self._counts[members] = _caught_up(store, name, number, digest)
        key = f"{name}/{number}"
        store.set(f"{key}/{me}", "here")
        first = store.compare_set(f"{key}/first", "", f"{digest}|{me}|{words}").decode()
        first_digest, first_rank, first_words = first.split("|", 2)
        if first_digest != digest:
            store.compare_set(f"{key}/verdict", "", f"rank {me} asks for {words}, rank {first_rank} for {first_words}")
        elif store.add(f"{key}/count", 1) == len(members):
            store.compare_set(f"{key}/verdict", "", AGREED)
            for entry in ("first", "count", "verdict", *map(str, members)) if number > 1 else ():
                store.delete_key(f"{name}/{number - 1}/{entry}")  # all have left that one behind
        try:
            store.wait([f"{key}/verdict"], timeout)
        except RuntimeError:  # out of time, for those too that come later: they would begin alone
            absent = [rank for rank in members if not store.check([f"{key}/{rank}"])]
            store.compare_set(
                f"{key}/verdict",
                "",
                f"{ABSENT}rank{'s' if len(absent) != 1 else ''} {', '.join(map(str, absent)) or 'unknown'} did not "
                f"come to {words} within {timeout.total_seconds():g} s",
            )
        verdict = store.get(f"{key}/verdict").decode()
        if verdict.startswith(ABSENT):
            raise ReshardError("exchange-failed", verdict.removeprefix(ABSENT))
        if verdict != AGREED:
            raise ReshardError("ranks-disagree", verdict)

    def refuse(self, ranks: Sequence[int], reason: str) -> None:
        """Tell those ranks that wait for this one to agree, or will, that it does not come, and why."""
        members = tuple(sorted(ranks))
        name, number = self._next(members)
        with suppress(RuntimeError):  # where the store is gone, nobody can be told
            store = dist.distributed_c10d._get_default_store()
            number = self._counts[members] = _caught_up(store, name, number, "")
            store.compare_set(f"{name}/{number}/verdict", "", f"rank {dist.get_rank()} refuses its own call: {reason}")

    def _next(self, members: tuple[int, ...]) -> tuple[str, int]:
        """What the statements of these ranks begin with in the store, and the number of the next one."""
        number = self._counts[members] = self._counts.get(members, 0) + 1
        return f"reshard/{digest_of(members)}", number


def _caught_up(store: Any, name: str, number: int, digest: str) -> int:
    """The number under which a statement is made: the next, or a later one where the others have given up that one.

    That with the same statement counts as the same call; a rank that is only late stays with what was given up.
    """
    if not store.check([f"{name}/{number}/verdict"]):
        return number
    if not store.get(f"{name}/{number}/verdict").decode().startswith(ABSENT):
        return number
    begun = number
    while store.check([f"{name}/{begun + 1}/first"]):
        begun += 1
        if store.get(f"{name}/{begun}/first").decode().startswith(f"{digest}|"):
            return begun
    is_late = store.get(f"{name}/{number}/first").decode().startswith(f"{digest}|")
    return number if is_late else max(begun, number + 1)
