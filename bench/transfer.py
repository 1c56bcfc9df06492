"""`rs.torch.transfer` of whole models beside torch's own ways, on gloo ranks of one machine."""

from __future__ import annotations

from collections.abc import Iterator

from bench.ranks import found_by
from bench.timing import Row

OURS = "rs.torch.transfer"
MODULE = "bench.transfer_ranks"
FULL = "full_tensor and distribute"


def rows() -> Iterator[Row]:
    """100 small tensors on 4 ranks, per tensor; a Llama of 106 MiB on 8, from tensor parallelism to FSDP."""
    small = found_by(MODULE, 4, {"case": "small_tensors"})
    ours = small.pop(OURS)
    yield Row(f"100 small tensors, {OURS}", f"{ours:.0f} us a tensor", "at most 400 us", ours <= 400)
    for name, value in small.items():
        yield Row(f"100 small tensors, {name}", f"{value:.0f} us a tensor", "", None)
    for case, words in (("llama", "TP to FSDP"), ("llama_across", "TP of 4 to FSDP of 4 others")):
        yield from _llama(case, f"Llama of 57 tensors, {words}")


def _llama(case: str, what: str) -> Iterator[Row]:
    figures = found_by(MODULE, 8, {"case": case})
    wire = figures.pop("wire")
    for name, value in figures.items():
        ratio = figures[FULL] / value
        text = f"{1e3 * value:.0f} ms, {ratio:.1f} times as fast as {FULL}"
        is_ours = name == OURS
        yield Row(f"{what}, {name}", text, "5 times" if is_ours else "", ratio >= 5 if is_ours else None)
    yield Row(f"{what}, bytes on the wire", f"{wire:.4f} of the plan's", "at most 1.02", wire <= 1.02)
