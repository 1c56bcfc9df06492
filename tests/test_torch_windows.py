"""Windows in torch: halos, and the operations that rest on them, with only borders on the wire."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.heavy]
pytest.importorskip("torch")

from torch_ranks import wrong_features  # noqa: E402


def test_on_four_ranks() -> None:
    names = ["halos", "moves", "running_sums", "interleaved", "own_partials", "sequences"]
    names += ["convolutions", "transposed", "refusals"]
    assert wrong_features("torch_windows", names, 4) == {name: [] for name in names}


@pytest.mark.slow
def test_pads_and_pools_on_four_ranks() -> None:
    names = ["pads", "pools", "named_paddings"]
    assert wrong_features("torch_windows", names, 4) == {name: [] for name in names}


@pytest.mark.slow
def test_every_convolution_on_four_ranks() -> None:
    assert wrong_features("torch_windows", ["many_convolutions"], 4) == {"many_convolutions": []}
