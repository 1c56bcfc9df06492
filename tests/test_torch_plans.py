"""Plans on real gloo processes: what was planned is what runs, within the memory that was told."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch_ranks import wrong_features

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

ON_FOUR = [
    "storages_are_counted",
    "some_limits_are_kept",
    "neighbours_hand_on",
    "plans_are_run_as_they_are",
    "parts_overlap",
    "plans_of_something_else_are_refused",
    "plans_as_code",
    "replicas_combine_alike",
    "networks_are_fitted",
]


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """What four ranks find wrong with each feature."""
    return wrong_features("torch_plans", ON_FOUR, 4, timeout_s=60)


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[name], "\n".join(wrong[name][:5])


def test_neighbours_hand_on_among_eight() -> None:
    found = wrong_features("torch_plans", ["neighbours_hand_on_among_eight"], 8, timeout_s=60)
    assert not found["neighbours_hand_on_among_eight"], "\n".join(found["neighbours_hand_on_among_eight"][:5])


def test_ranks_of_two_rings_change_places() -> None:
    found = wrong_features("torch_plans", ["ranks_of_two_rings_change_places"], 9, timeout_s=60)
    assert not found["ranks_of_two_rings_change_places"], "\n".join(found["ranks_of_two_rings_change_places"][:5])


def test_axes_do_not_nest_in_hosts() -> None:
    found = wrong_features("torch_plans", ["axes_do_not_nest_in_hosts"], 12, timeout_s=60)["axes_do_not_nest_in_hosts"]
    assert not found, "\n".join(found[:5])


@pytest.mark.slow
def test_limits_are_kept_by_a_hundred_plans() -> None:
    found = wrong_features("torch_plans", ["limits_are_kept"], 4, timeout_s=60)["limits_are_kept"]
    assert not found, "\n".join(found[:5])
