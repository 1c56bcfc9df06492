"""A transfer whose first buckets are under way: the caller goes on, and waits for a bucket, a tensor, or all.

Nothing runs in the background but what the process group does by itself: buckets are packed, posted and put in their
places in the calls of this object, at the same places of the program on all ranks, so that they meet no other
collective of the caller's on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from reshard.checks import integer, shown
from reshard.errors import ReshardError
from reshard.models.laid_buckets import Progress

DEPTH = 2
"""Buckets under way at a time."""


class Copies(NamedTuple):
    """Copies that are made together."""

    to: list[torch.Tensor]
    of: list[torch.Tensor]

    def add(self, to: torch.Tensor, of: torch.Tensor) -> None:
        """One more."""
        self.to.append(to)
        self.of.append(of)

    def run(self) -> None:
        """Make them."""
        if self.to:
            torch._foreach_copy_(self.to, self.of)


class Bucket(NamedTuple):
    """What a rank does for one bucket."""

    number: int
    """In the plan."""
    packing: Copies
    post: Callable[[], tuple[list[Any], list[Any]]]
    """Gives what sends and what receives."""
    unpacking: Copies
    nbytes: int
    """What is sent and received."""


class TransferUnderWay:
    """What `transfer` gives where it does not wait: a handle to be waited for, in the same way on all ranks."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        keeping: Copies,
        last_bucket: Mapping[str, int],
        finish: Callable[[], dict[str, torch.Tensor]],
        progress: Progress | None,
    ) -> None:
        """Post the first buckets.

        Args:
            buckets: of this rank, in the global order.
            keeping: what the rank has itself.
            last_bucket: by tensor, the number of the last bucket that brings some of it, -1 where none does.
            finish: what is done once all are there; gives the result.
            progress: told how far this rank is.
        """
        self._buckets, self._last_bucket, self._finish, self._progress = buckets, last_bucket, finish, progress
        self._total, self._done = sum(bucket.nbytes for bucket in buckets) if progress else 0, 0
        self._posted, self._finished = 0, 0
        self._under_way: list[tuple[Bucket, list[Any], list[Any]]] = []
        self._result: dict[str, torch.Tensor] | None = None
        self._error: ReshardError | None = None
        UNDER_WAY.add(self)
        self._told(lambda: self._begin(keeping))

    @property
    def is_done(self) -> bool:
        """Whether all has been waited for; nothing more is sent or received then, nor where it broke off."""
        return self._result is not None or self._error is not None

    @property
    def buckets(self) -> tuple[int, ...]:
        """The numbers of the plan's buckets in which this rank has something to do."""
        return tuple(bucket.number for bucket in self._buckets)

    def wait(self, bucket: int | None = None) -> dict[str, torch.Tensor] | None:
        """Wait until a bucket is in its place, and all before it; or all of them.

        Args:
            bucket: its number in the plan, from 0 to `plan.buckets.total` - 1; all where it is not given.

        Returns:
            The tensors by buffer once all are there; None where only some were waited for.

        Raises:
            ReshardError: `exchange-failed` where a rank goes or does not come in time, again at every call;
                `verify-failed`; `bad-argument`.
        """
        if self._error is not None:
            raise self._error
        if self._result is not None:
            return self._result
        if bucket is not None and integer(bucket, "a bucket") < 0:
            raise ReshardError("bad-argument", f"bucket {bucket} must be at least 0")
        self._told(lambda: self._advance(bucket))
        if bucket is not None:
            return None
        self._told(self._end)
        return self._result

    def wait_for(self, name: str) -> None:
        """Wait until all of a tensor of the plan is in its place on this rank.

        Ranks may only ask for different tensors where they do so for all of them in the end.

        Raises:
            ReshardError: as `wait`; `bad-argument` for a name that the plan has not.
        """
        if name not in self._last_bucket:
            raise ReshardError("bad-argument", f"the plan has no tensor {shown(name)}")
        if not self.is_done or self._error is not None:
            self.wait(max(self._last_bucket[name], 0))

    def _told(self, act: Callable[[], None]) -> None:
        """Do something; what breaks off is kept, and said again whenever it is waited for."""
        try:
            with torch.no_grad():
                act()
        except ReshardError as error:
            self._error = error
            raise
        except RuntimeError as error:
            self._error = ReshardError("exchange-failed", f"the transfer broke off: {str(error).splitlines()[0]}")
            raise self._error from None
        finally:
            if self.is_done:
                UNDER_WAY.discard(self)
                self._under_way.clear()

    def _begin(self, keeping: Copies) -> None:
        self._post()
        keeping.run()
        while self._posted < min(DEPTH, len(self._buckets)):
            self._post()

    def _post(self) -> None:
        if self._posted < len(self._buckets):
            bucket = self._buckets[self._posted]
            bucket.packing.run()
            self._under_way.append((bucket, *bucket.post()))
            self._posted += 1

    def _advance(self, last: int | None) -> None:
        """Finish the buckets up to a number, and post those after them."""
        while self._under_way and (last is None or self._under_way[0][0].number <= last):
            bucket, sending, receiving = self._under_way.pop(0)
            for work in receiving:
                work.wait()
            bucket.unpacking.run()
            for work in sending:
                work.wait()
            self._done += bucket.nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)
            self._post()

    def _end(self) -> None:
        self._result = self._finish()


UNDER_WAY: WeakSet[TransferUnderWay] = WeakSet()
"""Transfers that have not been waited for."""
