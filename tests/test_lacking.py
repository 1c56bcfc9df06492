"""Whether what is said to be lacked at the least of uneven tiles is what index arithmetic and plans say."""

from __future__ import annotations

from itertools import product
from random import Random

import oracle
import pytest

from reshard import Mesh, plan
from reshard.propagation.lacking import lacked_unevenly
from reshard.propagation.program import Program
from reshard.propagation.space import Option, Options, Pieces

AXES = ({"x": 4}, {"x": 2, "y": 3}, {"x": 2, "y": 2, "z": 2}, {"x": 6, "y": 1})
SHAPES = ((2,), (5, 3), (7, 8), (1, 6), (0, 3))


def drawn(rng: Random, *, may_wait: bool) -> Options:
    """Options of which some cut unevenly, and all that cut evenly."""
    pieces, shape = Pieces(Mesh.of(rng.choice(AXES)), []), rng.choice(SHAPES)
    besides = []
    for _ in range(4):
        dims: list[list[int]] = [[] for _ in shape]
        waiting = []
        for piece in rng.sample(range(len(pieces.all)), len(pieces.all)):
            place = rng.randrange(-1 - may_wait, len(shape))
            if place >= 0:
                dims[place].append(piece)
            elif place < -1:
                waiting.append(piece)
        besides.append(Option(tuple(map(tuple, dims)), tuple(sorted(waiting))))
    return Options(pieces, shape, range(len(pieces.all)) if may_wait else (), besides)


@pytest.mark.parametrize("uneven", ["ceil", "chunk"])
@pytest.mark.parametrize("seed", range(12))
def test_what_uneven_tiles_lack(seed: int, uneven: str) -> None:
    """Of every pair one of which cuts a dim unevenly, what the busiest device lacks, element by element."""
    options = drawn(Random(seed), may_wait=False)
    lacking = lacked_unevenly(options, uneven)
    shardings = [options.pieces.sharding(option, "sum", uneven) for option in options.all]
    for before, after in product(range(len(shardings)), repeat=2):
        is_even = options.is_even[before] and options.is_even[after]
        missing = oracle.missing(shardings[before], shardings[after], options.shape)
        assert lacking[before, after] == (0 if is_even else max(missing.values()))


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_brings_less_than_is_said(seed: int) -> None:
    """Neither of values that are combined, nor of such that become unreduced, even or not."""
    rng = Random(seed)
    options = drawn(rng, may_wait=True)
    said, shardings = options.received(), [options.pieces.sharding(each, "sum", "ceil") for each in options.all]
    pairs = [(a, b) for a, b in product(range(len(shardings)), repeat=2) if said[a, b] < float("inf")]
    for before, after in rng.sample(pairs, min(60, len(pairs))):
        received = plan(shardings[before], shardings[after], options.shape, "uint8").received_bytes
        assert said[before, after] <= received + 1e-9, (shardings[before], shardings[after])


def test_two_heads_on_four_devices() -> None:
    """Keys of two heads that come cut over four go on in halves, as by hand.

    Two devices hold a head of 8 x 4 elements each, and two hold none: to be cut in halves by the major part of the
    axis, each of the last two lacks a head, and nothing is cheaper.
    """
    program = Program(Mesh.of(x=4))
    keys = program.input("keys", (8, 2, 4), "float32", '[{}, {"x"}, {}]')
    program.output(program.op("ijk->ijk", keys, name="exp"), '[{}, {"x":(1)2}, {}]')
    placed = program.propagate(goal="bytes")
    assert placed.received_bytes == placed.cost == 8 * 4 * 4


def test_two_rules_for_uneven_dims_prove_nothing_wrong() -> None:
    """What is cut by one rule and wanted by another is moved, however the options are called."""
    mesh = Mesh.of(x=2, y=2)
    program = Program(mesh)
    x = program.input("x", (6, 7), "uint8", '[{"y"}, {"x"}]')
    program.output(program.op("ab->ab", x, name="exp"), '[{"x", "y"}, {}], uneven=chunk')
    placed = program.propagate(goal="bytes")
    assert (placed.lower_bound_bytes or 0) <= 14
