"""Tiles of several boxes, and windows: every device gets its own, and no byte more than it lacks.

Engine and plans are held against `dealt`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import dealt
import numpy as np
import pytest
from checkers import check_both_ends, check_largest_piece, check_traffic

import reshard as rs
from reshard.exchange import DigitExchange, OverlapAdd
from reshard.mesh import Mesh
from reshard.notation import to_mlir_list
from reshard.sharding import Sharding
from reshard.view import draw_contents

MESHES = [Mesh.of(x=3), Mesh.of(x=2, y=3), Mesh.of(x=2, y=2), Mesh.of(x=1, y=4), Mesh.of(x=1), Mesh.of(x=2, y=2, z=2)]
X3, X2Y2 = Mesh.of(x=3), Mesh.of(x=2, y=2)


# Conventions, by hand.


@pytest.mark.parametrize(
    ("dim", "size", "expected"),
    [
        ('{parts(2), "x"}', 20, [[0, 1, 2, 3, 10, 11, 12, 13], [4, 5, 6, 7, 14, 15, 16, 17], [8, 9, 18, 19]]),
        ('{cycles(2), "x"}', 20, [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 16, 17, 18, 19], [8, 9, 10, 11]]),
        ('{blocks(3), "x"}', 11, [[0, 1, 2, 9, 10], [3, 4, 5], [6, 7, 8]]),
        ('{zigzag, "x"}', 12, [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]),
        ('{zigzag, "x"}', 10, [[0, 1], [2, 3, 8, 9], [4, 5, 6, 7]]),
        ('{parts(3, 6), "x"}', 9, [[0, 3, 4], [1, 5, 6], [2, 7, 8]]),
        ('{offsets(0, 5, 5, 7), "x"}', 7, [[0, 1, 2, 3, 4], [], [5, 6]]),
        ('{"x", halo(1, 2)}', 7, [[0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [5, 6]]),
        ('{"x", halo(1, 2, wrap)}', 7, [[6, 0, 1, 2, 3, 4], [2, 3, 4, 5, 6, 0], [5, 6, 0, 1]]),
        ('{"x", halo(1, 2, pad)}', 7, [[-1, 0, 1, 2, 3, 4], [2, 3, 4, 5, 6, -1], [5, 6, -1, -1]]),
        ('{"x", halo(1, 1)}', 2, [[0, 1], [0, 1], []]),
        ('{zigzag, "x", halo(1, 0)}', 6, [[0, 4, 5], [0, 1, 3, 4], [1, 2, 2, 3]]),
        ('{"x", window(0:4, 1:2, -1:3, wrap)}', 3, [[0, 1, 2, 0], [1], [2, 0, 1, 2]]),
    ],
)
def test_who_stores_what(dim: str, size: int, expected: list[list[int]]) -> None:
    sharding = rs.parse_sharding(f"[{dim}]", X3)
    tiles = rs.numpy.scatter(np.arange(1, size + 1), sharding)
    assert [(tile - 1).tolist() for tile in tiles.values()] == expected
    assert {d: t.tolist() for d, t in dealt.cut(np.arange(1, size + 1), sharding).items()} == {
        d: t.tolist() for d, t in tiles.items()
    }


def test_what_is_filled_is_not_what_is_gone_round_to() -> None:
    pads, rounds = (rs.parse_sharding(f"[{{halo(3, 4, {edge})}}]", X3) for edge in ("pad", "wrap"))
    assert not pads.is_equivalent_to(rounds, (12,))
    check_reshard(pads, rounds, (12,))
    inner = [rs.parse_sharding(f"[{{window(2:7, {edge})}}]", X3) for edge in ("pad", "wrap")]
    assert inner[0].is_equivalent_to(inner[1], (12,))


def test_a_part_may_stand_between_two_axes() -> None:
    sharding = Sharding.of(X2Y2, ("x", rs.Deal.parts(2), "y"))
    assert [[list(box[0]) for box in sharding.boxes(device, (8,))] for device in range(4)] == [
        [[0, 1], [2, 3]],
        [[1, 2], [3, 4]],
        [[4, 5], [6, 7]],
        [[5, 6], [7, 8]],
    ]


# Drawn reshards against plain index arithmetic.


def check_reshard(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> None:
    """Every device stores what it must and receives what it lacks, by the engine's count and by the plan's figures."""
    array = np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape)
    plan = rs.plan(source, target, shape, "int64")
    given = dealt.cut(array, source)
    counts: dict[int, int] = {}
    found = rs.numpy.run(plan, given, received_bytes=counts)
    lacking = dealt.missing(source, target, shape) if plan.steps else dict.fromkeys(counts, 0)
    for device, expected in dealt.cut(array, target).items():
        assert found[device].shape == expected.shape, f"{plan.reshard} {shape}: device {device}"
        assert np.array_equal(found[device], expected), f"{plan.reshard} {shape}: device {device}"
    for device, lacks in lacking.items():
        figures = counts[device], plan.received_bytes_on(device), plan.lower_bound_bytes_on(device)
        assert figures == (8 * lacks,) * 3, f"{plan.reshard} {shape}: device {device}"
    assert plan.received_bytes == plan.lower_bound_bytes == 8 * max(lacking.values())
    assert plan.total_received_bytes == plan.total_lower_bound_bytes == 8 * sum(lacking.values())


def owns_all(sharding: Sharding, shape: tuple[int, ...]) -> bool:
    """Whether windows hold what is owned, so that the sharding may be a source."""
    return all(
        owned <= set(stored) for dims in dealt.tiles(sharding, shape).values() for stored, owned in dims
    ) and not any(dim.window and dim.window.spans and dim.window.edge != "clip" for dim in sharding.dims)


def drawn_reshard(seed: int) -> tuple[Sharding, Sharding, tuple[int, ...]]:
    """A reshard with deals and windows on the same devices, in the same order or another."""
    random = Random(seed)
    while True:
        mesh = random.choice(MESHES)
        shape = tuple(random.randint(0, 17) if random.random() < 0.9 else 24 for _ in range(random.randint(1, 2)))
        source = dealt.drawn(random, mesh, shape, windows=random.random() < 0.3)
        other = mesh
        if random.random() < 0.3:
            other = Mesh(mesh.axes, tuple(random.sample(range(mesh.size + random.randint(0, 2)), mesh.size)))
        target = dealt.drawn(random, other, shape, windows=random.random() < 0.6)
        try:
            for end in (source, target):
                end.local_shape(shape)
            if owns_all(source, shape):
                return source, target, shape
        except rs.ReshardError:  # sizes of parts that are no parts of a part
            continue


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_drawn_reshards(seed: int) -> None:
    for number in range(seed, seed + 20):
        check_reshard(*drawn_reshard(number))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 21000, 1000))
def test_many_drawn_reshards(seed: int) -> None:
    for number in range(seed, seed + 1000):
        check_reshard(*drawn_reshard(number))


def test_drawn_shardings_are_read_back() -> None:
    names = {name: getattr(rs, name) for name in rs.__all__}
    for seed in range(300):
        for sharding in drawn_reshard(seed)[:2]:
            assert rs.parse_sharding(str(sharding)) == sharding
            assert eval(repr(sharding), names) == sharding


def test_drawn_plans_are_read_back() -> None:
    for seed in range(40):
        plan = rs.plan(*drawn_reshard(seed))
        assert rs.Plan.from_json(plan.to_json()) == plan


def test_both_ends_of_an_exchange_agree() -> None:
    for seed in range(150):
        source, target, shape = drawn_reshard(seed)
        for step in rs.plan(source, target, shape).steps:
            for move in step.moves:
                check_both_ends(move.exchange)
                check_traffic(move.exchange)
                check_largest_piece(move.exchange)


@pytest.mark.parametrize(
    ("text", "written", "sharding"),
    [
        ("[[0], [1]] halo_sizes = [1, 2, 0, 0]", None, '[{"x", halo(1, 2)}, {"y"}]'),
        (
            "shard.sharding @m split_axes = [[0], [], [1]] halo_sizes = [1, 4, 0, 1] : !shard.sharding",
            "[[0], [], [1]] halo_sizes = [1, 4, 0, 1]",
            '[{"x", halo(1, 4)}, {}, {"y", halo(0, 1)}]',
        ),
        (
            "split_axes = [[0], [1]] sharded_dims_offsets = [0, 24, 32, 0, 20, 32]",
            "[[0], [1]] sharded_dims_offsets = [0, 24, 32, 0, 20, 32]",
            '[{offsets(0, 24, 32), "x"}, {offsets(0, 20, 32), "y"}]',
        ),
    ],
)
def test_the_words_of_the_shard_dialect(text: str, written: str | None, sharding: str) -> None:
    found = rs.parse_sharding(text, X2Y2)
    assert found.text() == sharding
    assert to_mlir_list(found) == (written or text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[[0]] halo_sizes = [1]", "syntax"),
        ("[[0]] sharded_dims_offsets = [0, 4]", "syntax"),
        ("[[0]] halo_sizes = [1, 1] sharded_dims_offsets = [0, 1, 2]", "syntax"),
        ("[[0]] sharded_dims_offsets = [1, 3, 4]", "bad-deal"),
    ],
)
def test_other_words_are_refused(text: str, code: str) -> None:
    with pytest.raises(rs.ReshardError) as refusal:
        rs.parse_sharding(text, X2Y2)
    assert refusal.value.code == code


def test_what_the_list_form_cannot_hold() -> None:
    for text in (
        '[{zigzag, "x"}]',
        '[{"x", halo(1, 1, wrap)}]',
        "[{halo(1, 1)}]",
        '[{offsets(0, 1, 2), "x", halo(1, 1)}]',
    ):
        with pytest.raises(rs.ReshardError) as refusal:
            to_mlir_list(rs.parse_sharding(text, X2Y2))
        assert refusal.value.code == "cannot-express"


def test_what_is_drawn() -> None:
    assert draw_contents(rs.parse_sharding('[{zigzag, "x"}]', X3), (6,)) == (
        '"x"=3\n----------->\n+-----+-----+-----+\n| 1 6 | 2 5 | 3 4 |\n+-----+-----+-----+'
    )
    assert draw_contents(rs.parse_sharding('[{"x", halo(1, 1, pad)}]', X3), (6,)) == (
        '"x"=3\n----------->\n+---------+---------+---------+\n| . 1 2 3 | 2 3 4 5 | 4 5 6 . |\n'
        "+---------+---------+---------+"
    )


# Which go by digits.


@pytest.mark.parametrize(
    ("source", "target", "shape", "is_closed"),
    [
        ('[{parts(2), "x"}]', '[{"x"}]', (24,), True),
        ('[{cycles(4), "x", "y"}]', '[{"y"}]', (32,), True),
        ('[{"x", parts(2), "y"}, {}]', '[{"x"}, {"y"}]', (8, 8), True),
        ('[{blocks(2), "x"}]', '[{"x", "y"}]', (16,), True),
        ('[{parts(3), "x"}]', '[{parts(3), "y"}]', (12,), True),
        ('[{zigzag, "x"}]', '[{"x"}]', (16,), False),
        ('[{"x", halo(1, 1)}]', '[{"x"}]', (16,), False),
    ],
)
def test_even_parts_and_cycles_go_by_digits(source: str, target: str, shape: tuple[int, ...], is_closed: bool) -> None:
    ends = [rs.parse_sharding(text, X2Y2) for text in (source, target)]
    step = rs.plan(*ends, shape).steps[0]
    assert isinstance(step.moves[0].exchange, DigitExchange) == is_closed
    check_reshard(*ends, shape)


# The transpose: each owner takes what others hold of its elements, and adds.


def check_transpose(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> None:
    """The plan of the gradient gives every owner the sum of all that windows hold of its elements."""
    random = np.random.default_rng(0)
    plan = rs.plan(source, target, shape, "int64")
    back = plan.transpose()
    given = {
        device: random.integers(0, 99, tile.shape) for device, tile in dealt.cut(np.zeros(shape, int), target).items()
    }
    counts: dict[int, int] = {}
    found = rs.numpy.run(back, given, received_bytes=counts)
    assert counts == {device: back.received_bytes_on(device) for device in back.devices}
    assert all(counts[device] >= back.lower_bound_bytes_on(device) for device in counts), f"{plan.reshard} {shape}"
    assert back.received_bytes >= back.lower_bound_bytes
    assert back.total_received_bytes >= back.total_lower_bound_bytes
    whole = dealt.whole_sum(target, shape, given)
    total = np.zeros(shape, int)
    for device, dims in dealt.tiles(source, shape).items():
        places = np.ix_(*(np.array(stored, int) for stored, _ in dims))
        np.add.at(total, places, found[device])
    assert np.array_equal(total, whole), f"{plan.reshard} {shape}"


def test_the_transpose_of_filled_windows_adds_what_overlaps() -> None:
    checked = 0
    for seed in range(400):
        source, target, shape = drawn_reshard(seed)
        if not source.has_windows:
            check_transpose(source, target, shape)
            checked += 1
    assert checked > 200


def test_an_overlap_is_added_in_one_exchange_at_its_bound() -> None:
    owned = Sharding.of(Mesh.of(x=4), "x")
    summed = owned.with_halo({0: (2, 1)}, summed=True)
    plan = rs.plan(summed, owned, (16,), "int64")
    assert isinstance(plan.steps[0].moves[0].exchange, OverlapAdd)
    assert [plan.received_bytes_on(device) for device in range(4)] == [16, 24, 24, 8]
    assert [plan.lower_bound_bytes_on(device) for device in range(4)] == [16, 24, 24, 8]
    array = np.arange(16)
    assert np.array_equal(rs.numpy.gather(rs.numpy.scatter(array, summed), summed, (16,)), array)


# What is refused.


@pytest.mark.parametrize(
    ("make", "code", "sentence"),
    [
        (
            lambda: rs.Deal("turns"),
            "bad-deal",
            "a deal must be one of parts, cycles, blocks, zigzag, offsets, got: 'turns'",
        ),
        (lambda: rs.Deal.parts(1), "bad-deal", "parts(1) must have a number of at least 2"),
        (
            lambda: rs.Deal.offsets(0, 3, 2),
            "bad-deal",
            "offsets(0, 3, 2) must have two or more places that rise from 0",
        ),
        (
            lambda: Sharding.of(X3, ("x", rs.Deal.zigzag())),
            "bad-deal",
            "zigzag at the place 1 must have an axis behind it, before any other deal",
        ),
        (
            lambda: Sharding.of(X3, (rs.Deal.offsets(0, 5), "x")).local_shape((5,)),
            "bad-deal",
            "offsets(0, 5) has places for 1 shards; there are 3",
        ),
        (
            lambda: Sharding.of(X3, (rs.Deal.parts(4, 2), "x")).local_shape((7,)),
            "bad-shape",
            "parts(4, 2) is for 6 elements; there are 7",
        ),
        (
            lambda: rs.Window(1, 1, "bounce"),
            "bad-window",
            "the edge of a window must be one of clip, wrap, pad, got: bounce",
        ),
        (rs.Window, "bad-window", "a window must have spans, or a width above 0, and not both"),
        (
            lambda: Sharding.of(X3, "x").with_halo({1: (1, 1)}),
            "rank-mismatch",
            'dim 1 has a window; [{"x"}] has 1 dims',
        ),
        (
            lambda: Sharding.of(X3, "x").with_windows({0: rs.Window.of([(0, 1)])}).local_shape((7,)),
            "bad-window",
            "window(0:1) has 1 spans; there are 3 shards",
        ),
        (
            lambda: rs.plan(rs.parse_sharding('[{"x", window(0:2, 3:5, 4:6)}]', X3), Sharding.of(X3, None), (6,)),
            "bad-window",
            "window(0:2, 3:5, 4:6) leaves out a part of [2, 4), which shard 1 owns: no source",
        ),
        (
            lambda: Sharding.of(X3, (rs.Deal.zigzag(), "x")).box(0, (12,)),
            "cannot-express",
            "the tile of position 0 is 2 boxes; it must be one box of it",
        ),
        (
            lambda: rs.plan(
                Sharding.of(X3, "x").with_halo({0: (1, 1)}), Sharding.of(X3, None), (6,), basis="collectives"
            ),
            "no-plan",
            'no collective leads to or from tiles of several boxes or windows: [{"x", halo(1, 1)}] -> [{}]',
        ),
        (
            lambda: rs.einsum("i->i", Sharding.of(X3, (rs.Deal.zigzag(), "x")), shapes=[(12,)]),
            "cannot-express",
            '[{zigzag, "x"}] deals blocks or has windows, which an operand of an einsum cannot hold',
        ),
    ],
)
def test_what_is_refused(make: Any, code: str, sentence: str) -> None:
    with pytest.raises(rs.ReshardError) as refusal:
        make()
    assert (refusal.value.code, str(refusal.value)) == (code, sentence)


def test_the_example_of_context_parallelism_comes_back_at_its_bounds() -> None:
    root = Path(__file__).parent.parent
    run = subprocess.run(
        [sys.executable, str(root / "examples" / "context_parallel.py")],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    *turns, last = run.stdout.splitlines()
    assert last == "there and back: equal"
    assert [turn.split("receives ")[1] for turn in turns] == [
        "[2048, 4096, 2048, 4096], lower bound [2048, 4096, 2048, 4096]",
        "[3072, 3072, 3072, 3072], lower bound [3072, 3072, 3072, 3072]",
        "[3072, 3072, 3072, 3072], lower bound [3072, 3072, 3072, 3072]",
        "[2048, 4096, 2048, 4096], lower bound [2048, 4096, 2048, 4096]",
    ]
