"""Which tensors travel together: buckets in one global order, each small enough for both ends of every message.

Tensors are taken in an order that the caller gives.
A bucket is closed when what any device receives of it and what any device sends of it could together exceed the cap; a
tensor that exceeds it alone is cut into parts, each a bucket of its own.
Sites of one family share no device, so of these the busiest counts and not their sum: experts that lie on different
devices travel together.

By hand, under a cap of 10: three tensors on one site of 4 bytes received and 2 sent fill a bucket each, as two would
have 12; a fourth of 30 and 0 is cut into 3 parts.

>>> loads = [Load("a", "s", 4, "b", "t", 2)] * 3 + [Load("a", "s", 30, "b", "t", 0)]
>>> buckets_of(loads, range(4), 10, lambda number, parts: -(-30 // parts))
Buckets(first=[0, 1, 2, 3], parts=[1, 1, 1, 3], total=6)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from reshard.errors import ReshardError


class Load(NamedTuple):
    """What one tensor asks of the busiest devices of the sites that it comes from and goes to."""

    target_family: Hashable
    target: Hashable
    received_bytes: int
    source_family: Hashable
    source: Hashable
    sent_bytes: int


class Buckets(NamedTuple):
    """Per tensor, in which bucket it travels, or its first part does, and in how many parts."""

    first: list[int]
    """-1 where nothing of the tensor travels."""
    parts: list[int]
    total: int
    """Of buckets."""


class _End(NamedTuple):
    """What a tensor asks of one end, its family and its site by numbers."""

    family: int
    site: int
    nbytes: int


class _OpenBucket:
    """What a bucket has so far: per family the busiest site, and the sum of these."""

    def __init__(self) -> None:
        self.by_site: dict[int, int] = {}
        self.by_family: dict[int, int] = {}
        self.total = 0

    def takes(self, ends: Sequence[_End], cap: int) -> bool:
        """Whether there is room for more at these ends, which then is taken; a bucket without any takes all."""
        grown, total = [], self.total
        for family, site, nbytes in ends:
            load = self.by_site.get(site, 0) + nbytes
            busiest = self.by_family.get(family, 0)
            if load > busiest:
                total += load - busiest
                busiest = load
            grown.append((family, site, load, busiest))
        if self.total and total > cap:
            return False
        for family, site, load, busiest in grown:
            self.by_site[site], self.by_family[family] = load, busiest
        self.total = total
        return True


def buckets_of(
    loads: Sequence[Load], order: Iterable[int], cap: int, largest_part: Callable[[int, int], int]
) -> Buckets:
    """Buckets that no device fills beyond a cap.

    Args:
        loads: per tensor.
        order: the numbers of the tensors, as they travel.
        cap: the bytes that a device may receive and send of one bucket, together.
        largest_part: what a device receives and sends at the most of one part of a tensor, by its number and the
            number of its parts.

    Raises:
        ReshardError: `no-plan` where no part of a tensor is small enough.
    """
    first, parts = [-1] * len(loads), [1] * len(loads)
    bucket, filling = 0, _OpenBucket()
    numbers: dict[Hashable, int] = {}
    known: dict[int, tuple[_End, _End]] = {}  # many tensors have the same load
    for number in order:
        load = loads[number]
        amount = load.received_bytes + load.sent_bytes
        if not amount:
            continue
        if amount <= cap:
            if id(load) not in known:
                known[id(load)] = _ends(load, numbers)
            ends = known[id(load)]
            if not filling.takes(ends, cap):
                bucket, filling = bucket + 1, _OpenBucket()
                filling.takes(ends, cap)
            first[number] = bucket
            continue
        count = _parts(number, amount, cap, largest_part)
        bucket += bool(filling.total)
        first[number], parts[number] = bucket, count
        bucket, filling = bucket + count, _OpenBucket()
    return Buckets(first, parts, bucket + bool(filling.total))


def _ends(load: Load, numbers: dict[Hashable, int]) -> tuple[_End, _End]:
    """Both ends of a load; what stands for a family or a site is numbered as it comes."""
    receiver = ("in", "family", load.target_family), ("in", load.target)
    sender = ("out", "family", load.source_family), ("out", load.source)
    places = [numbers.setdefault(key, len(numbers)) for key in (*receiver, *sender)]
    return _End(places[0], places[1], load.received_bytes), _End(places[2], places[3], load.sent_bytes)


def _parts(number: int, amount: int, cap: int, largest_part: Callable[[int, int], int]) -> int:
    """The least number of parts, or nearly, of which none exceeds the cap."""
    count = -(-amount // max(cap, 1))
    least = amount
    while (part := largest_part(number, count)) > cap:
        if part == least:
            raise ReshardError("no-plan", f"in_flight is too small for any part of a tensor; {2 * part} bytes would do")
        least = part
        count += max(1, count // 4)
    return count
