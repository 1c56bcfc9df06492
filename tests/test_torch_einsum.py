"""`reshard.torch.einsum` under real gloo processes, against torch on the whole and against DTensor's own products."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import pytest

pytest.importorskip("torch")

from torch.distributed.tensor import Placement
from torch_einsums import S0, S1, P, Product, R, products
from torch_ranks import run_ranks, wrong_features

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

ENDS: dict[str, Placement] = {"R": R, "S0": S0, "S1": S1, "P": P}
EVEN, UNEVEN = ((8, 12), (12, 16)), ((5, 6), (6, 7))
FEWER = {
    "R @ S0 -> R": (528, 768),
    "R @ S0 -> S0": (240, 384),
    "R @ S0 -> S1": (144, 384),
    "R @ S1 -> S0": (96, 384),
    "S0 @ R -> R": (288, 384),
    "S0 @ R -> S1": (96, 384),
    "S0 @ S0 -> R": (752, 960),
    "S0 @ S0 -> S0": (432, 576),
    "S0 @ S0 -> S1": (432, 960),
    "S0 @ S1 -> S0": (384, 672),
    "S1 @ R -> R": (288, 768),
    "S1 @ R -> S0": (72, 384),
    "S1 @ R -> S1": (168, 384),
    "S1 @ S0 -> R": (704, 768),
    "S1 @ S1 -> S0": (384, 672),
    "P @ R -> R": (576, 768),
    "P @ R -> S0": (288, 384),
    "P @ S0 -> R": (992, 1056),
    "P @ S1 -> R": (960, 1344),
    "P @ S1 -> S0": (672, 960),
    "P @ S1 -> S1": (576, 960),
    "P @ S1 -> P": (432, 576),
}
"""For the even shapes on 4 ranks, all products for which the busiest rank receives fewer bytes: ours, DTensor's."""
ROUNDED = [
    ("R @ P -> R", UNEVEN, 220, 216),
    ("S1 @ S0 -> R", UNEVEN, 220, 216),
    ("P @ P -> R", UNEVEN, 412, 408),
]
"""Where it receives more: sums of 5 x 7 elements are cut in 2, 2, 2 and 1 columns, of which the largest has 10
elements; a ring that cuts anywhere has 9."""
ON_FOUR = [
    "any_expression",
    "expressions_as_torch_writes_them",
    "gradients_are_those_of_torch",
    "overlap_cuts_the_product",
    "result_without_a_target",
    "other_meshes",
    "tiles_and_types_of_any_kind",
    "what_is_packed_last_may_fail",
    "types_without_a_product_are_refused",
    "plain_tensors_beside_dtensors",
    "what_cannot_be_is_refused",
]


def checked(ranks: int, problems: list[Product]) -> list[tuple[Product, int, int]]:
    """The products that DTensor has too, with the bytes of the busiest rank, ours and DTensor's."""
    found = run_ranks(products, ranks, problems)
    wrong = [text for one in found for text, _ in one if text]
    assert not wrong, "\n".join(wrong[:5])
    both = []
    for number, problem in enumerate(problems):
        counts = [one[number][1] for one in found]
        ours = max(count.ours for count in counts)
        assert ours == counts[0].planned, f"{problem}: {ours} bytes, planned {counts[0].planned}"
        if counts[0].theirs is not None:
            both.append((problem, ours, max(count.theirs for count in counts)))
    return both


def every_product(ranks: int) -> list[Product]:
    return [
        Product((ranks,), shapes, ((first,), (second,)), target)
        for shapes, targets in ((EVEN, [None, *ENDS]), (UNEVEN, [None, "R", "S0"]))
        for first, second in product(ENDS.values(), repeat=2)
        for target in (None if name is None else (ENDS[name],) for name in targets)
    ]


def named(problem: Product) -> str:
    names = {end: name for name, end in ENDS.items()}
    (first,), (second,), (target,) = (*problem.sources, problem.target or ())
    return f"{names[first]} @ {names[second]} -> {names[target]}"


@pytest.mark.parametrize(
    ("ranks", "step"), [(2, 4), pytest.param(2, 1, marks=pytest.mark.slow), pytest.param(4, 1, marks=pytest.mark.slow)]
)
def test_every_product_on_one_axis(ranks: int, step: int) -> None:
    """All of them, and by default each fourth, in which every target comes with every operand."""
    found = checked(ranks, every_product(ranks)[::step])
    more = [(named(problem), problem.shapes, ours, theirs) for problem, ours, theirs in found if ours > theirs]
    assert more == (ROUNDED if ranks == 4 else [])
    if ranks == 4:
        even = [one for one in found if one[0].shapes == EVEN and one[0].target is not None]
        assert {named(problem): (ours, theirs) for problem, ours, theirs in even if ours < theirs} == FEWER


@pytest.mark.parametrize(
    ("sizes", "draws"),
    [((2, 2), 12), pytest.param((2, 2), 40, marks=pytest.mark.slow), pytest.param((2, 3), 40, marks=pytest.mark.slow)],
)
def test_products_on_two_axes(sizes: tuple[int, int], draws: int) -> None:
    ranks = prod(sizes)
    rng = random.Random(ranks)
    ends = list(ENDS.values())
    problems = []
    for _ in range(draws):
        shapes = rng.choice([((12, 12), (12, 12)), ((7, 5), (5, 9)), ((6, 1), (1, 6))])
        first, second, target = ((rng.choice(ends), rng.choice(ends)) for _ in range(3))
        problems.append(Product(sizes, shapes, (first, second), rng.choice([None, target])))
    more = [(str(problem), ours, theirs) for problem, ours, theirs in checked(ranks, problems) if ours > theirs]
    assert not more


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """What four ranks find wrong with each feature."""
    return wrong_features("torch_einsums", ON_FOUR, 4)


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[name], "\n".join(wrong[name][:5])
