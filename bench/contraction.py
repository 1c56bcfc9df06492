"""Sharded einsum: how long layers of Llama 3 8B take to plan, and how often Shardy needs more bytes for a product."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import reshard as rs
from bench.timing import Row, medians, within
from reshard.contraction import cache_clear as forget_einsums
from reshard.planner import cache_clear as forget_plans

LINEAR = {"q": (4096, 4096), "k": (1024, 4096), "o": (4096, 4096), "up": (14336, 4096), "down": (4096, 14336)}
"""Weights as (out, in); v is as k, gate as up."""
DATA, MODEL = rs.Mesh.of(data=8), rs.Mesh.of(data=2, model=4)
STYLES = {
    "data": (DATA, ("data", None, None), (None, None), (None, None), ("data", None, None)),
    "fully sharded": (DATA, ("data", None, None), ("data", None), ("data", None), ("data", None, None)),
    "tensor": (MODEL, ("data", None, None), ("model", None), (None, "model"), ("data", None, "model")),
    "sequence": (MODEL, ("data", "model", None), ("model", None), (None, "model"), ("data", None, "model")),
    "both": (MODEL, ("data", None, None), ("model", "data"), ("data", "model"), ("data", None, "model")),
}
"""Per way to spread a layer: mesh, activations, weights cut by outputs and by inputs, what is between."""
NETWORKS = ("h100-1x8", "h100-2x4", "tpu-v4p-2x2x2", "tpu-v5e-2x4")
LIMIT_MS = 50.0
DRAWN = 400


def planned(style: str, name: str, network: str | None) -> Callable[[], rs.EinsumPlan]:
    """A call that plans a layer afresh."""
    mesh, *dims = STYLES[style]
    x, columns, rows, hidden = (rs.Sharding.of(mesh, *one) for one in dims)
    ends = (hidden, rows, x) if name in ("o", "down") else (x, columns, hidden)
    shapes = [(8, 4096, LINEAR[name][1]), LINEAR[name]]

    def call() -> rs.EinsumPlan:
        forget_einsums()
        forget_plans()
        return rs.einsum("bti,oi->bto", *ends[:2], shapes=shapes, dtype="bf16", target=ends[2], network=network)

    return call


def rows() -> Iterator[Row]:
    """Every figure of contractions."""
    calls = [(style, name) for style in STYLES for name in LINEAR]
    for network in (None, *NETWORKS):
        times = [1e3 * medians([planned(style, name, network)], 5)[0] for style, name in calls]
        slowest = calls[times.index(max(times))]
        note = f" for the slowest, {slowest[1]} under {slowest[0]}; {statistics.median(times):.3g} ms in the median"
        yield within(f"plan a linear layer of Llama 3 8B, {network or 'no network'}", max(times), LIMIT_MS, note)
        if network is not None:
            made = [planned(*call, network)() for call in calls]
            proved = sum(plan.is_proved for plan in made)
            yield Row(f"proved to be the cheapest, {network}", f"{proved} of {len(made)}", "", None)
    yield from against_shardy()


def against_shardy() -> Iterator[Row]:
    """Bytes on the busiest device for products of two matrices, ours beside those of Shardy's passes in jaxlib."""
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    try:
        # both need jaxlib, which is installed apart
        from test_einsum_optimal import CUBE, SMALL, matrix_shardings  # noqa: PLC0415
        from test_einsum_shardy import Case, compared  # noqa: PLC0415
    except ImportError:
        return
    for mesh in (SMALL, CUBE):
        every = matrix_shardings(mesh, partial=False)
        rng = random.Random(0)
        found = compared([Case(*rng.choices(every, k=3)) for _ in range(DRAWN)])
        text = (
            f"fewer in {found['less']}, as many in {found['equal']}, more in {found['more']} of {DRAWN} drawn products"
        )
        wanted = "never more bytes than Shardy"
        yield Row(f"bytes of a matrix product beside Shardy's, {mesh}", text, wanted, found["more"] == 0)
