"""A whole model arrives on real ranks as slicing says, and whatever goes wrong ends as an error on all."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch_ranks import wrong_features

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

ON_FOUR = [
    "values_are_cast",
    "nothing_is_allocated",
    "a_caller_need_not_wait",
    "casts_in_blocks_agree",
    "live_state_dicts_go_as_they_are",
    "arrival_is_verified",
    "memory_may_be_shared",
    "another_version_is_refused",
    "what_does_not_fit_is_refused",
]


def test_small_models_on_eight_ranks() -> None:
    wrong = wrong_features("torch_models", ["models_arrive"], 8)["models_arrive"]
    assert not wrong, "\n".join(wrong[:5])


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """What four ranks find wrong with each feature."""
    return wrong_features("torch_models", ON_FOUR, 4)


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[name], "\n".join(wrong[name][:5])


def test_a_rank_that_comes_late_is_an_error_for_all() -> None:
    found = wrong_features("torch_models", ["a_late_rank"], 4, timeout_s=3)["a_late_rank"]
    assert not found, "\n".join(found[:5])


def test_a_rank_that_dies_is_an_error_for_the_others() -> None:
    found = wrong_features("torch_models", ["a_killed_rank"], 4, timeout_s=5, dying=(1,))["a_killed_rank"]
    assert not found, "\n".join(found[:5])
