"""Our choice of where to compute a matrix product against Shardy's, bytes counted on its own collectives."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from test_einsum_optimal import CUBE, SHAPES, SMALL, matrix_shardings

import reshard as rs
from reshard.mesh import Mesh

pytest.importorskip("jax")
from shardy_einsum import Case, shardy_steps

pytestmark = pytest.mark.engine
SIZES = (12, 24, 36)


def compared(cases: list[Case]) -> dict[str, int]:
    """On how many products we receive less on the busiest device, as much, more; and where Shardy ends elsewhere."""
    found = {"less": 0, "equal": 0, "more": 0, "elsewhere": 0}
    for case, steps in zip(cases, shardy_steps(cases, SIZES), strict=True):
        if steps is None:
            found["elsewhere"] += 1
            continue
        theirs = int(sum((step.all_received_bytes() for step in steps), np.zeros(1, dtype=np.int64)).max())
        plan = rs.einsum("ij,jk->ik", case.first, case.second, shapes=SHAPES[:2], dtype="int8", target=case.target)
        ours = plan.received_bytes
        found["less" if ours < theirs else "equal" if ours == theirs else "more"] += 1
    return found


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mesh", [SMALL, CUBE], ids=str)
def test_never_more_bytes_than_shardy(mesh: Mesh, count: int) -> None:
    rng = random.Random(1)
    every = matrix_shardings(mesh, partial=False)
    found = compared([Case(*rng.choices(every, k=3)) for _ in range(count)])
    assert found["more"] == 0
    assert found["less"] > found["equal"] > 0


@pytest.mark.sweep
def test_never_more_bytes_than_shardy_on_every_product() -> None:
    every = matrix_shardings(SMALL, partial=False)
    found = compared([Case(*ends) for ends in product(every, repeat=3)])
    assert found["more"] == 0
    assert sum(found.values()) == len(every) ** 3
