"""The table of XLA's branches: by hand, and against XLA itself."""

from __future__ import annotations

import doctest
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.planner import plan
from reshard.sharding import Sharding
from reshard.xla.partitioner import BRANCHES, COMMUNICATIONS, explain

PROBLEMS = 150
AGREEMENT = 0.98
"""Of what a reshard comes to. All of 427 random problems agreed, with XLA of jaxlib 0.10.2."""

TWO, THREE, FIVE = Mesh.of(x=2, y=4), Mesh.of(x=2, y=2, z=2), Mesh.of(D=2, Y=8, X=4, T=4)

BY_HAND = [
    (TWO, ("x", None), ("x", None), "same", "none"),
    (TWO, (None, None), ("x", "y"), "slice the whole", "none"),
    (TWO, ("x", None), ("x", "y"), "slice", "none"),
    (TWO, ("x", None), ("y", "x"), "slice", "collective-permute"),
    (Mesh.of(x=4, y=4), ("x", "y"), ("y", "x"), "permute", "collective-permute"),
    (TWO, ("x", None), (None, "x"), "all-to-all", "all-to-all"),
    (TWO, ("x", "y"), ("y", "x"), "all-to-all", "all-to-all"),
    (TWO, ("x", "y"), ("x", None), "gather", "all-gather"),
    (TWO, ("x", "y"), (None, None), "replicate", "all-gather"),
    (TWO, ("y", None), ("x", "y"), "spread copies first", "all-to-all"),
    (THREE, ("x", "z"), (("x", "z"), None), "split a dim", "all-to-all"),
    (TWO, ("y", "x"), (None, "y"), "gather then shift", "all-gather"),
    (TWO, ("x", "y"), ("y", None), "gather a dim first", "all-gather"),
    (THREE, (None, ("y", "z")), (("y", "z"), "x"), "shift then slice", "all-to-all"),
    (Mesh.of(x=2, y=3), ("x", "y"), ("y", "x"), "full gather", "full gather"),
    (FIVE, (None, ("X", "T")), (("D", "Y", "X", "T"), None), "spread copies first", "all-to-all"),
    (FIVE, ("D", ("X", "Y")), (None, ("D", "Y", "X", "T")), "full gather", "full gather"),
    (Mesh.of(x=4, y=2), ("y", None, "x"), (None, ("x", "y"), None), "full gather", "full gather"),
]


@pytest.mark.parametrize(("mesh", "source", "target", "branch", "communication"), BY_HAND)
def test_branch(mesh, source, target, branch, communication):
    ends = Sharding.of(mesh, *source), Sharding.of(mesh, *target)
    found = explain(*ends, (2304,) * len(source))
    assert (found.branch.name, found.communication) == (branch, communication)
    assert found.why


def test_the_table_is_in_order():
    assert [branch.order for branch in BRANCHES] == list(range(len(BRANCHES)))
    assert len({branch.name for branch in BRANCHES}) == len(BRANCHES)


def test_names_of_meshes_do_not_matter():
    flat = Mesh.of(a=8)
    ends = Sharding.of(flat, "a:(1)2", None), Sharding.of(flat, "a:(2)4", "a:(1)2")
    named = explain(Sharding.of(TWO, "x", None), Sharding.of(TWO, "y", "x"), (8, 8))
    assert explain(*ends, (8, 8)) == named


def test_a_gather_that_the_log_warns_about_is_never_needed():
    """The plan of this library receives a tile where XLA receives the tensor."""
    ends = Sharding.of(FIVE, "D", ("X", "Y")), Sharding.of(FIVE, None, ("D", "Y", "X", "T"))
    assert explain(*ends, (2048, 2048)).communication == "full gather"
    assert plan(*ends, (2048, 2048)).received_bytes == 64 * 1024


REFUSED = [
    (Sharding.of(TWO, None, unreduced="x"), Sharding.of(TWO, None), "bad-argument"),
    (Sharding(Mesh.of(device_ids=[0]), ()), Sharding.of(TWO, None), "bad-argument"),
    (Sharding.of(TWO, ("x", "y"), uneven="chunk"), Sharding.of(TWO, None), "cannot-express"),
    (Sharding.of(TWO, "x"), Sharding.of(Mesh.of(x=2), "x"), "different-meshes"),
    (Sharding.of(TWO, "x", None), Sharding.of(TWO, "x"), "rank-mismatch"),
]


@pytest.mark.parametrize(("source", "target", "code"), REFUSED)
def test_refusals(source, target, code):
    with pytest.raises(ReshardError) as caught:
        explain(source, target, (16,))
    assert caught.value.code == code


def drawn(rng: random.Random) -> tuple[list, list, list, list]:
    sizes = rng.choice([(2, 4), (2, 2, 2), (4, 4), (2, 2, 4), (2, 3), (2, 2, 3), (2, 2, 2, 2), (2, 6), (3, 4), (8, 2)])
    axes = list(zip("abcd", sizes, strict=False))
    rank = rng.choice((1, 2, 2, 3, 3, 4))
    ends = []
    for _ in range(2):
        dims: list[list[str]] = [[] for _ in range(rank + 1)]
        for name, _ in rng.sample(axes, len(axes)):
            rng.choice(dims).append(name)
        ends.append(dims[:rank])
    return axes, *ends, [rng.choice((144, 288)) for _ in range(rank)]


def communication(collectives: list[str], warned: bool) -> str:
    if warned:
        return "full gather"
    return next((name for name in reversed(COMMUNICATIONS[1:4]) if name in collectives), "none")


@pytest.mark.engine
@pytest.mark.heavy
def test_xla_does_as_the_table_says():
    pytest.importorskip("jax")
    rng = random.Random(0)
    problems = [drawn(rng) for _ in range(PROBLEMS)]
    program = Path(__file__).with_name("xla_reshards.py")
    done = subprocess.run(
        [sys.executable, program], input=json.dumps(problems), capture_output=True, text=True, check=True, timeout=300
    )
    agreed, exact, branches, wrong = 0, 0, Counter(), []
    for problem, (collectives, warned) in zip(problems, json.loads(done.stdout), strict=True):
        axes, *ends, shape = problem
        found = explain(*(Sharding.of(Mesh.of(axes), *dims) for dims in ends), tuple(shape))
        branches[found.branch.name] += 1
        same = communication(collectives, warned) == found.communication
        agreed += same
        exact += same and set(collectives) == set(found.collectives)
        wrong += [] if same else [(problem, found, collectives, warned)]
    assert agreed >= AGREEMENT * PROBLEMS, wrong
    assert exact >= AGREEMENT * PROBLEMS
    assert len(branches) >= 10, branches


def test_the_page_has_the_table():
    page = Path(__file__).parents[1] / "docs" / "xla-branches.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")][1:]
    wanted = [
        f"| {b.order} | {b.name} | `{b.function}` | {b.condition} | {b.collectives} | {b.step} |" for b in BRANCHES
    ]
    assert rows == wanted
    assert doctest.testfile(str(page), module_relative=False).failed == 0
