"""How one dim is cut: its axes, how blocks are dealt to them, and what is held around what is owned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise

from reshard.axis import Axis, merged
from reshard.checks import all_of, expect, listed
from reshard.deal import Deal, Window
from reshard.errors import ReshardError

AxesLike = str | Axis | Deal | Iterable[str | Axis | Deal] | None


@dataclass(frozen=True, slots=True)
class DimSharding:
    """The axes that cut one dim, how its blocks are dealt to them, and what is held around what is owned.

    >>> print(DimSharding.of("x", "?", priority=2), DimSharding.of("x", Deal.parts(2), "y", window=Window(1, 1)))
    {"x", ?}p2 {"x", parts(2), "y", halo(1, 1)}
    """

    axes: tuple[Axis, ...] = ()
    """Major to minor."""
    is_open: bool = False
    """Whether propagation may append axes."""
    priority: int | None = None
    """When propagation looks at it: 0 first; None counts as 0."""
    deals: tuple[Deal, ...] = ()
    """Where it is not one block for each shard: how blocks are dealt, by their places among the axes."""
    window: Window | None = None
    """What a device holds of the dim, where that is not what it owns."""

    def __post_init__(self) -> None:
        all_of(self.axes, Axis, "the axes of a dim")
        expect(self.is_open, bool, "is_open")
        if self.priority is not None:
            expect(self.priority, int, "a priority")
        if self.window is not None:
            expect(self.window, Window, "the window of a dim", "bad-window")
        last = -1
        for deal in all_of(self.deals, Deal, "the deals of a dim", "bad-deal"):
            if not last < deal.place < len(self.axes):
                raise ReshardError(
                    "bad-deal", f"{deal} at the place {deal.place} must have an axis behind it, before any other deal"
                )
            last = deal.place

    def __repr__(self) -> str:
        woven = f", deals={self.deals!r}, window={self.window!r}" if self.is_woven else ""
        return f"DimSharding(axes={self.axes!r}, is_open={self.is_open!r}, priority={self.priority!r}{woven})"

    @property
    def is_woven(self) -> bool:
        """Whether shards are anything but one block each, which they own and hold."""
        return bool(self.deals) or self.window is not None

    def __str__(self) -> str:
        behind = {deal.place: str(deal) for deal in self.deals}
        parts = [
            text
            for place, axis in enumerate(self.axes)
            for text in (*([behind[place]] if place in behind else []), str(axis))
        ]
        parts += [*([str(self.window)] if self.window else []), *(["?"] if self.is_open else [])]
        return "{" + ", ".join(parts) + "}" + ("" if self.priority is None else f"p{self.priority}")

    @classmethod
    def of(cls, *axes: str | Axis | Deal, priority: int | None = None, window: Window | None = None) -> DimSharding:
        """A dim sharding from names and deals; a last `?` opens it."""
        is_open = bool(axes) and isinstance(axes[-1], str) and axes[-1] == "?"
        listing = axes[:-1] if is_open else axes
        deals: list[Deal] = []
        for place, deal in enumerate(listing):
            if isinstance(deal, Deal):
                deals.append(replace(deal, place=place - len(deals)))
        names = tuple(Axis.of(axis) for axis in listing if not isinstance(axis, Deal))
        return cls(names, is_open, priority, tuple(deals), window)

    def merged(self, sizes: Mapping[str, int]) -> DimSharding:
        """The one spelling on axes of these sizes: sub-axes side by side that no deal parts are one."""
        if not self.deals:
            axes = merged(self.axes, sizes)
            return self if axes == self.axes else replace(self, axes=axes)
        ends = [0, *(deal.place for deal in self.deals), len(self.axes)]
        runs = [merged(self.axes[start:stop], sizes) for start, stop in pairwise(ends)]
        places = accumulate(map(len, runs))
        deals = tuple(replace(deal, place=place) for deal, place in zip(self.deals, places, strict=False))
        return replace(self, axes=tuple(chain(*runs)), deals=deals)

    def stages(self, rule: str) -> Iterator[tuple[tuple[Axis, ...], Deal | None]]:
        """The stages in which the dim is cut, major to minor, under a rule for uneven dims."""
        dealt = {deal.place: deal for deal in self.deals}
        ends = sorted({0, *dealt, len(self.axes)}) if rule == "ceil" else range(len(self.axes) + 1)
        for start, stop in pairwise(ends):
            deal = dealt.get(start)
            if deal is not None and deal.kind == "parts":
                yield (), deal
                deal = None
            yield self.axes[start:stop], deal


def axes_listed(axes: AxesLike) -> list[str | Axis]:
    """The axes of a dim or a set, however they were given."""
    if axes is None:
        return []
    return [axes] if isinstance(axes, str | Axis) else listed(axes, "axes")


def braced(axes: Iterable[Axis]) -> str:
    """A set of axes in MLIR's text."""
    return "{" + ", ".join(map(str, axes)) + "}"
