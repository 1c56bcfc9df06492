"""Whether what goes half round rings parts as a linear program says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from reshard.mix import Floats
from reshard.network import half_round
from reshard.network.half_round import _parted, fullest_of_parted

SIZES = (2, 4, 6, 8, 12)


def drawn(rng: np.random.Generator, rings: int, size: int) -> tuple[Floats, Floats, Floats]:
    """What takes links in any case, what goes half round, and what links carry where half goes each way."""
    fixed = rng.integers(0, 4, (rings, 2, size)) * rng.integers(0, 3, (rings, 1, 1)).astype(float)
    halfway = rng.integers(0, 4, (rings, size)) * (rng.random((rings, size)) < rng.random((rings, 1))).astype(float)
    halfway[:, 0] += 1
    carried = fixed.copy()
    for ring, begins in np.ndindex(halfway.shape):
        for hop in range(size // 2):
            carried[ring, 0, (begins + hop) % size] += halfway[ring, begins] / 2
            carried[ring, 1, (begins - 1 - hop) % size] += halfway[ring, begins] / 2
    return fixed, halfway, carried


def solved(fixed: Floats, halfway: Floats) -> float:
    """The same of one ring by HiGHS: columns are what goes onwards from each device, and the fullest link."""
    size = len(halfway)
    rows, limits = np.zeros((2 * size, size + 1)), -fixed.ravel()
    rows[:, -1] = -1.0
    for begins in range(size):
        for hop in range(size // 2):
            rows[(begins + hop) % size, begins] = 1.0
            backwards = size + (begins - 1 - hop) % size
            rows[backwards, begins] = -1.0
            limits[backwards] -= halfway[begins]
    program = linprog([*np.zeros(size), 1.0], rows, limits, bounds=[*((0.0, most) for most in halfway), (0.0, None)])
    assert program.status == 0
    return float(program.fun)


@pytest.mark.parametrize("size", SIZES)
def test_the_fullest_link_is_that_of_the_linear_program(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(40):
        fixed, halfway, carried = drawn(rng, 4, size)
        programs = [solved(*ring) for ring in zip(fixed, halfway, strict=True)]
        assert fullest_of_parted(carried, halfway) == pytest.approx(max(programs))
        assert _parted(carried[0].ravel(), halfway[0], 0.0) == pytest.approx(programs[0])


def test_long_rings_look_at_near_and_opposite_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pairs that are left say of the others is less, and the best mix makes up for it."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(half_round, "MOST_PAIRS", 2)
    half_round._passed.cache_clear()
    for size in (8, 10, 16):
        for _ in range(20):
            fixed, halfway, carried = drawn(rng, 2, size)
            programs = [solved(*ring) for ring in zip(fixed, halfway, strict=True)]
            assert fullest_of_parted(carried, halfway) == pytest.approx(max(programs))
    half_round._passed.cache_clear()


def test_the_tables_of_a_long_ring_are_small() -> None:
    """All pairs of the links of 256 devices would take 800 MB."""
    assert half_round._passed(256).sums.nbytes < 64 * 2**20
