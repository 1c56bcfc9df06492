"""What others have published of the time that it takes to move a model's weights from trainers to generators.

Facts as they were stated, each with where; none was measured here.
A figure fits a plan of the same model where each of its generators must receive as much as each of the plan's, or
where the publication does not say how its generators are laid out.
It is set against the bytes that a device lacks over the bandwidth that the publication had per device.

By hand: 58.96 GB at 50 GB/s are 1.18 s, of which 6.1 s are 5.2 times.

>>> PUBLISHED[0].times_least(58_960_000_000)
'5.2'
"""

from __future__ import annotations

from typing import Any, NamedTuple

from reshard.models.model_plan import ModelPlan
from reshard.tables import Passage, Table

NEAR = 0.01
"""By which part the bytes into a generator may differ for a figure to fit."""


class PublishedTransfer(NamedTuple):
    """One published figure."""

    model: str
    """Its name in the catalogue."""
    system: str
    """Whose figure it is, and of what."""
    seconds: tuple[float, float]
    """The shortest and the longest that were stated."""
    received_bytes: int | None
    """Into each generator, by arithmetic from the layout that was stated; None where none was."""
    bandwidth: float | None
    """Bytes/s of a device's port to others; None where it is not known."""
    source: str

    def times_least(self, lower_bound_bytes: int) -> str:
        """How many times as long it took as so many bytes take at a device's port; nothing where that is not known."""
        if self.bandwidth is None:
            return ""
        ends = [f"{seconds * self.bandwidth / lower_bound_bytes:.1f}" for seconds in self.seconds]
        return " to ".join(dict.fromkeys(ends))

    def fits(self, model: str, plan: ModelPlan) -> bool:
        """Whether it is of the same model, and of as many bytes into a generator, as far as it says."""
        if model != self.model or not plan.lower_bound_bytes:
            return False
        difference = 0 if self.received_bytes is None else abs(plan.lower_bound_bytes - self.received_bytes)
        return difference <= NEAR * plan.lower_bound_bytes

    def as_dict(self, plan: ModelPlan) -> dict[str, Any]:
        """The fields, and the seconds that it is set against, for JSON."""
        least = None if self.bandwidth is None else plan.lower_bound_bytes / self.bandwidth
        return {**self._asdict(), "least_seconds": least}


PORT = 50e9
"""Bytes/s of a port of 400 Gb/s, of which these had one per device where nothing else is said."""
RDT = "vllm-project/vllm#43375, seen in excerpts"
NEMO = "NVIDIA-NeMo/RL, planning anchors of nccl_reshard"
PUBLISHED = (
    PublishedTransfer("qwen3-235b-a22b", "vLLM sharded_rdt, 8 -> 8 H100, TP8", (6.1, 6.1), 58_959_617_024, PORT, RDT),
    PublishedTransfer(
        "qwen3-235b-a22b", "vLLM sharded_rdt, 8 -> 8 H100, DP8+EP8", (3.3, 3.3), 72_768_576_512, PORT, RDT
    ),
    PublishedTransfer("qwen3-235b-a22b", "NeMo-RL, generators not stated", (2.31, 2.73), None, PORT, NEMO),
    PublishedTransfer(
        "qwen3-235b-a22b",
        "DynaTrain, inside a job, not stated how",
        (4.36, 4.36),
        None,
        None,
        "arXiv 2605.18815, seen in excerpts",
    ),
    PublishedTransfer(
        "qwen3-30b-a3b", "NeMo-RL, BF16, generators not stated", (0.74, 1.53), None, None, "NVIDIA-NeMo/RL#2971"
    ),
    PublishedTransfer(
        "qwen3-30b-a3b", "NeMo-RL, FP8, generators not stated", (2.9, 4.3), None, None, "NVIDIA-NeMo/RL#2971"
    ),
)
"""In no order."""


def published_for(model: str, plan: ModelPlan) -> list[PublishedTransfer]:
    """The figures that fit a plan of a model of the catalogue."""
    return [figure for figure in PUBLISHED if figure.fits(model, plan)]


def published_blocks(figures: list[PublishedTransfer], plan: ModelPlan) -> list[Passage]:
    """The figures as a table, beside the plan's."""
    if not figures:
        return []
    rows = []
    for figure in figures:
        low, high = figure.seconds
        seconds = f"{low:g} s" if low == high else f"{low:g} to {high:g} s"
        rows.append((figure.system, seconds, figure.times_least(plan.lower_bound_bytes), figure.source))
    least = plan.lower_bound_bytes / PORT
    titles = ("published, not measured here", "took", f"times {least:.3g} s", "where")
    return [
        "",
        Table([titles, *rows], {"took", titles[2]}),
        f"{least:.3g} s is the lower bound of the busiest device at {PORT / 1e9:g} GB/s",
    ]
