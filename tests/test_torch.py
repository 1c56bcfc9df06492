"""`reshard.torch.redistribute` under real gloo processes, against torch's own and against index arithmetic."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")

from torch_problems import Problem, check_problems, random_problem
from torch_ranks import run_ranks, wrong_features

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

MESHES: dict[int, list[tuple[int, ...]]] = {2: [(2,)], 4: [(4,), (2, 2)], 8: [(8,), (2, 4), (2, 2, 2)]}
ON_FOUR = [
    "values_become_partial",
    "replicas_are_bit_equal",
    "sums_beside_averages",
    "gradients_are_those_of_torch",
    "the_result_may_come_later",
    "memory_may_be_handed_in",
    "memory_stays_within_the_plan",
    "tiles_need_not_be_contiguous",
    "tiles_may_be_conjugated_or_negated",
    "what_is_packed_last_may_fail",
    "a_single_element_has_any_stride",
    "messages_may_go_in_batches",
    "orders_of_mesh_dims",
    "another_mesh",
    "a_compiled_graph_has_no_break",
    "a_compiled_call_takes_other_shapes",
    "what_cannot_be_is_refused",
    "disagreements",
    "a_rank_that_refuses_its_call",
    "what_is_kept_is_bounded",
    "a_flattened_submesh_does_no_harm",  # last: torch is wrong from then on
]


def problems(ranks: int, count: int, seed: int, partial: str = "") -> list[Problem]:
    rng = random.Random(seed)
    return [random_problem(rng, rng.choice(MESHES[ranks]), partial=partial) for _ in range(count)]


@pytest.mark.parametrize(
    ("ranks", "count"),
    [(2, 50), (4, 75), (8, 50), *(pytest.param(ranks, 125, marks=pytest.mark.slow) for ranks in (4, 8))],
)
def test_value_placements_local_shape_and_bytes(ranks: int, count: int) -> None:
    """As torch's own on every rank, and no byte more than the rank lacks."""
    wanted = problems(ranks, count, seed=ranks) + problems(ranks, count // 4, seed=10 + ranks, partial="source")
    wrong = [text for texts in run_ranks(check_problems, ranks, wanted) for text in texts]
    assert not wrong, "\n".join(wrong[:5])


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """What four ranks find wrong with each feature."""
    return wrong_features("torch_features", ON_FOUR, 4)


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[name], "\n".join(wrong[name][:5])


@pytest.mark.parametrize(
    ("name", "ranks", "timeout_s"),
    [("orders_on_eight", 8, 60), ("a_rank_that_does_not_come", 2, 3), ("a_rank_that_comes_late", 2, 3)],
)
def test_feature_in_a_group_of_its_own(name: str, ranks: int, timeout_s: float) -> None:
    found = wrong_features("torch_features", [name], ranks, timeout_s=timeout_s)[name]
    assert not found, "\n".join(found[:5])


def test_a_rank_that_dies_is_an_error_for_the_others() -> None:
    found = wrong_features("torch_features", ["a_rank_that_dies"], 4, timeout_s=5, dying=(1,))
    assert not found["a_rank_that_dies"]


def wrong_on_purpose(rank: int, wanted: list[Problem]) -> list[str]:
    """Every rank takes what it was sent for the wrong place."""
    from reshard.torch.rank_messages import TilePart

    kept = TilePart.packed_at

    def packed_at(part: TilePart, begin: int, buffer: Any) -> Any:
        place = kept(part, begin, buffer)
        return place.flip(0) if part.shape and part.shape[0] > 1 else place

    TilePart.packed_at = packed_at
    return check_problems(rank, wanted)


def test_the_checks_see_what_is_wrong() -> None:
    """The helpers that the tests above trust find tiles that are unpacked upside down."""
    wanted = problems(2, 20, seed=5)
    assert any(run_ranks(wrong_on_purpose, 2, wanted))
