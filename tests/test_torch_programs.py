"""Placed programs on DTensors, under real gloo processes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch_ranks import wrong_features

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

ON_FOUR = [
    "random_programs",
    "operations_of_all_kinds",
    "shifts",
    "drawn_shifts",
    "programs_on_two_meshes",
    "loops_and_choices",
    "what_cannot_be_is_refused",
]


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """What four ranks find wrong with each feature."""
    return wrong_features("torch_programs", ON_FOUR, 4)


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[name], "\n".join(wrong[name][:5])
