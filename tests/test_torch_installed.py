"""Plans under DTensor's own redistribution: torch's calls and operations give what they give without."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch_ranks import wrong_features

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

ON_FOUR = [
    "some_redistributes",
    "partial_values",
    "products",
    "pointwise",
    "embeddings_and_losses",
    "what_torch_shows",
    "graphs",
    "what_is_installed_comes_out",
    "what_is_handed_back",
]


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """What four ranks find wrong with each feature."""
    return wrong_features("torch_installed", ON_FOUR, 4, timeout_s=60)


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[name], "\n".join(wrong[name][:5])


@pytest.mark.slow
def test_every_redistribute() -> None:
    found = wrong_features("torch_installed", ["every_redistribute"], 4, timeout_s=60)["every_redistribute"]
    assert not found, "\n".join(found[:5])
