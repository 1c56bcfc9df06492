"""Every sharding to every other: what each way costs, as a matrix of bytes and seconds.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=4)
>>> print(compare([Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"), Sharding.of(mesh, None, None)], (8, 8)))
8 x 8 float32: bytes that the busiest device receives, from a row to a column
<BLANKLINE>
                   1     2      3
1  [{"x"}, {}]   0 B  48 B  192 B
2  [{}, {"x"}]  48 B   0 B  192 B
3  [{}, {}]      0 B   0 B    0 B
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reshard.checks import checked_shape
from reshard.drawing.charts import matrix
from reshard.drawing.shell import PageSection, figure, page, passages
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.planner.planning import plan
from reshard.plans import Plan
from reshard.plans.plan_page import bytes_of
from reshard.plans.table import seconds_text
from reshard.sharding import Sharding
from reshard.tables import Passage, Table, bytes_text, plain


@dataclass(frozen=True)
class CostMatrix:
    """Plans from each of some shardings to each."""

    shardings: tuple[Sharding, ...]
    shape: tuple[int, ...]
    dtype: DType
    plans: tuple[tuple[Plan | None, ...], ...]
    """A row per source; None where there is no plan."""

    @property
    def is_timed(self) -> bool:
        """Whether there are seconds."""
        return any(way is not None and way.seconds is not None for row in self.plans for way in row)

    def blocks(self) -> list[Passage]:
        """What is shown: bytes, and seconds where there is a network."""
        what = f"{' x '.join(map(str, self.shape)) or 'scalar'} {self.dtype}"
        shown: list[Passage] = [
            f"{what}: bytes that the busiest device receives, from a row to a column",
            "",
            self._table(seconds=False),
        ]
        return [*shown, "", "time", "", self._table(seconds=True)] if self.is_timed else shown

    def _table(self, *, seconds: bool) -> Table:
        names = [str(number) for number in range(1, len(self.shardings) + 1)]
        rows = [
            [name, sharding.text(), *(_text(way, seconds=seconds) for way in row)]
            for name, sharding, row in zip(names, self.shardings, self.plans, strict=True)
        ]
        return Table([["", "", *names], *rows], names)

    def as_dict(self) -> dict[str, Any]:
        """It for programs."""
        return {
            "shardings": [str(sharding) for sharding in self.shardings],
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "received_bytes": [[None if way is None else way.received_bytes for way in row] for row in self.plans],
            "seconds": [[None if way is None else way.seconds for way in row] for row in self.plans],
        }

    def to_html(self) -> str:
        """It as a page: one file that opens from disk and needs no network."""
        names = [str(number) for number in range(1, len(self.shardings) + 1)]
        received = [[0 if way is None else way.received_bytes for way in row] for row in self.plans]
        drawn = matrix(names, received, bytes_of, title="bytes received", written=True)
        sections = [PageSection("bytes", "Bytes", [figure("rows are sources, columns targets", drawn)])]
        if self.is_timed:
            seconds = [[0.0 if way is None else way.seconds or 0.0 for way in row] for row in self.plans]
            timed = matrix(names, seconds, seconds_text, title="seconds", written=True)
            sections.append(PageSection("time", "Time", [figure("rows are sources, columns targets", timed)]))
        sections.append(PageSection("table", "Table", [passages(self.blocks()[2:])]))
        return page(f"{len(names)} shardings, each to each", sections, lead=[passages(self.blocks()[:1])])

    def __str__(self) -> str:
        return plain(self.blocks())


def compare(
    shardings: Sequence[Sharding], shape: Sequence[int], dtype: Any = "float32", *, network: Network | str | None = None
) -> CostMatrix:
    """What it costs to go from each of some shardings to each.

    Raises:
        ReshardError: what `plan` raises, but that a way for which there is no plan is left out.
    """
    rows = []
    for source in shardings:
        row: list[Plan | None] = []
        for target in shardings:
            try:
                row.append(plan(source, target, shape, dtype, network=network))
            except ReshardError as error:
                if error.code != "no-plan":
                    raise
                row.append(None)
        rows.append(tuple(row))
    return CostMatrix(tuple(shardings), checked_shape(shape), dtype_named(dtype), tuple(rows))


def _text(way: Plan | None, *, seconds: bool) -> str:
    if way is None:
        return "none"
    return seconds_text(way.seconds or 0.0) if seconds else bytes_text(way.received_bytes)
