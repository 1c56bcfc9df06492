"""`reshard.torch` as users' programs call it: FSDP2 with tensor parallelism, parts of meshes, ranks that fail alone."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch_ranks import wrong_features

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

ON_FOUR = [
    "state_dicts_of_fsdp_and_tp",
    "a_part_to_itself_stays_apart",
    "replicas_are_compared",
    "disagreement_names_both_meshes",
    "targets_by_other_names",
    "a_call_that_fails_on_one_rank",
    "memory_of_any_strides_and_dtype",
    "memory_under_the_compiler",
    "parts_of_meshes",  # last: a flattened mesh makes torch wrong from then on
]


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """What four ranks find wrong with each feature."""
    return wrong_features("torch_users", ON_FOUR, 4, timeout_s=30)


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[name], "\n".join(wrong[name][:5])


def test_a_rank_that_passes_over_calls() -> None:
    found = wrong_features("torch_users", ["a_rank_that_passes_over_calls"], 2, timeout_s=6)
    assert not any(found.values()), found
