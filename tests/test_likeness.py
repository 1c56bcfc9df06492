"""Which reshards are alike, and what they take."""

from __future__ import annotations

import pytest

import reshard as rs
from reshard import Mesh, Sharding
from reshard.planner.likeness import likeness

MESH = Mesh.of(data=2, model=4)
SHAPE = (8, 4096, 4096)


def key(*dims: tuple[object, ...], partial: str = "") -> object:
    """That of a reshard of `SHAPE`; the source is partial along these axes."""
    source, target = dims
    points = Sharding.of(MESH, *source, unreduced=partial or ()), Sharding.of(MESH, *target)
    return likeness(points, SHAPE, 2)


ROWS, COLUMNS = ("data", None, "model"), ("data", "model", None)
GATHERED = ("data", None, None)


def test_it_does_not_matter_in_which_dim_an_axis_is_gathered() -> None:
    assert key(ROWS, GATHERED) == key(COLUMNS, GATHERED) == key((("data", "model"), None, None), GATHERED)


def test_it_matters_what_takes_the_place_of_what() -> None:
    stays, taken = (
        key((None, "model", None), GATHERED, partial="data"),
        key(("model", None, None), GATHERED, partial="data"),
    )
    assert None not in (stays, taken)
    assert stays != taken


def test_it_matters_which_axis_is_gathered() -> None:
    assert key(GATHERED, (None, None, None)) != key((None, "model", None), (None, None, None))


def test_small_and_uneven_tensors_are_like_no_other() -> None:
    points = Sharding.of(MESH, *ROWS), Sharding.of(MESH, *GATHERED)
    assert likeness(points, (8, 64, 64), 2) is None
    assert likeness(points, (9, 4096, 4096), 2) is None


@pytest.mark.parametrize("network", ["h100-2x4", "tpu-v4p-2x2x2", "tpu-v5e-2x4"])
def test_what_is_alike_takes_as_long(network: str) -> None:
    parts = ("model:(1)2", "model:(2)2")
    targets = [("data", None, None)] * 2 + [("model", None, "data"), (*parts, "data")]
    sources = [ROWS, COLUMNS, ROWS, ROWS]
    taken: dict[object, set[float | None]] = {}
    for source, target in zip(sources, targets, strict=True):
        plan = rs.plan(Sharding.of(MESH, *source), Sharding.of(MESH, *target), SHAPE, "bf16", network=network)
        taken.setdefault(key(source, target), set()).add(plan.seconds)
    assert [len(seconds) for seconds in taken.values()] == [1, 1]
