"""Do the pictures of cuts show what is there? Whole ones, written by hand, and owners against the boxes."""

from __future__ import annotations

from math import lcm
from typing import Any

import pytest

from reshard.box import Box
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.sharding import Sharding
from reshard.view import Overlap, cut_period, draw_cuts, overlaps, piece_ranges

XY = Mesh.of(x=2, y=3)


def lines(drawing: str) -> str:
    """A drawing as it stands in a test: without the first line break and the last."""
    return drawing.strip("\n")


def test_the_overlay_of_a_transposition() -> None:
    source, target = Sharding.of(XY, "x", "y"), Sharding.of(XY, "y", "x")
    assert draw_cuts(source, target, (12, 12), labels="coordinates") == lines("""
each region: who holds it in the source, who in the target
   0               4       6       8               12
 0 +---------------+-------+-------+---------------+
   |               |       |       |               |
   +     11 11     + 12 11 + 12 21 +     13 21     +
   |               |       |       |               |
 4 +---------------+-------+-------+---------------+
   |     11 12     | 12 12 | 12 22 |     13 22     |
 6 +---------------+-------+-------+---------------+
   |     21 12     | 22 12 | 22 22 |     23 22     |
 8 +---------------+-------+-------+---------------+
   |               |       |       |               |
   +     21 13     + 22 13 + 22 23 +     23 23     +
   |               |       |       |               |
12 +---------------+-------+-------+---------------+

dim 0, size 12
  source: 2 blocks of 6
  target: 3 blocks of 4
  period: 6*4 / gcd(6, 4) = 12, the size of the dim
  cuts: 4 target, 6 source, 8 target
  [0, 4): source block 0, target block 0
  [4, 6): source block 0, target block 1
  [6, 8): source block 1, target block 1
  [8, 12): source block 1, target block 2

dim 1, size 12
  source: 3 blocks of 4
  target: 2 blocks of 6
  period: 4*6 / gcd(4, 6) = 12, the size of the dim
  cuts: 4 source, 6 target, 8 source
  [0, 4): source block 0, target block 0
  [4, 6): source block 1, target block 0
  [6, 8): source block 1, target block 1
  [8, 12): source block 2, target block 1
""")


def test_cuts_that_repeat() -> None:
    source, target = Sharding.of(Mesh.of(x=4), "x"), Sharding.of(Mesh.of(y=6), "y")
    assert draw_cuts(source, target, (24,), max_width=80) == lines("""
each region: who holds it in the source, who in the target
0           4     6     8           12          16    18    20          24
+-----------+-----+-----+-----------+-----------+-----+-----+-----------+
|    0 0    | 0 1 | 1 1 |    1 2    |    2 3    | 2 4 | 3 4 |    3 5    |
+-----------+-----+-----+-----------+-----------+-----+-----+-----------+

dim 0, size 24
  source: 4 blocks of 6
  target: 6 blocks of 4
  period: 6*4 / gcd(6, 4) = 12, after which the cuts repeat
  cuts: 4 target, 6 source, 8 target, 12 both
  [0, 4): source block 0, target block 0
  [4, 6): source block 0, target block 1
  [6, 8): source block 1, target block 1
  [8, 12): source block 1, target block 2
  and so on up to 24: every 12 further on, source block + 2, target block + 3
""")


def test_cuts_that_do_not_fit_are_not_to_scale_or_left_out() -> None:
    source, target = Sharding.of(Mesh.of(x=4), "x"), Sharding.of(Mesh.of(y=6), "y")
    assert draw_cuts(source, target, (24,), max_width=60).split("\n\n")[0] == lines("""
each region: who holds it in the source, who in the target
0     4     6     8     12    16    18    20    24
+-----+-----+-----+-----+-----+-----+-----+-----+
| 0 0 | 0 1 | 1 1 | 1 2 | 2 3 | 2 4 | 3 4 | 3 5 |
+-----+-----+-----+-----+-----+-----+-----+-----+
not to scale
""")
    assert draw_cuts(source, target, (24,), max_width=32).split("\n\n")[0] == lines("""
each region: who holds it in the source, who in the target
0     4     6     8     20    24
+-----+-----+-----+-----+-----+
| 0 0 | 0 1 | 1 1 | ... | 3 5 |
+-----+-----+-----+-----+-----+
left out: regions dim 0: 3 to 6, counted from 0
""")
    both = (Sharding.of(Mesh.of(x=5, y=5), "x", "y"), Sharding.of(Mesh.of(x=5, y=5), "y", "x"))
    assert draw_cuts(*both, (5, 5), max_width=24, max_lines=8).split("\n\n")[0] == lines("""
each region: who holds it in the source, who in the target
  0      1     4       5
0 +------+-----+-------+
  | 0 0  | ... |  4 20 |
1 +------+-----+-------+
  | ...  | ... |  ...  |
4 +------+-----+-------+
  | 20 4 | ... | 24 24 |
5 +------+-----+-------+
left out: regions dim 0: 1 to 3, dim 1: 1 to 3, counted from 0
""")


def test_uneven_cuts_replicas_and_partial_values() -> None:
    source, target = Sharding.of(XY, ("x", "y"), uneven="chunk"), Sharding.of(XY, "y", unreduced="x")
    assert draw_cuts(source, target, (7,)) == lines("""
each region: who holds it in the source, who in the target
0               2       3       4       5       6       7
+---------------+-------+-------+-------+-------+-------+
|     0 0/3     | 1 0/3 | 1 1/4 | 3 1/4 | 4 1/4 | 5 2/5 |
+---------------+-------+-------+-------+-------+-------+
unreduced={"x"}: in the target each device holds partial values, which the sum along these axes completes

dim 0, size 7
  source: 5 blocks of 2, 2, 1, 1, 1; 1 of 6 empty
  target: 3 blocks of 3, the last of 1
  period: none, as blocks of the source differ in length
  cuts: 2 source, 3 target, 4 source, 5 source, 6 both
  [0, 2): source block 0, target block 0
  [2, 3): source block 1, target block 0
  [3, 4): source block 1, target block 1
  [4, 5): source block 3, target block 1
  [5, 6): source block 4, target block 1
  [6, 7): source block 5, target block 2
""")


def test_three_dims_are_told_not_drawn() -> None:
    mesh = Mesh.of(x=2)
    assert draw_cuts(Sharding.of(mesh, "x", None, None), Sharding.of(mesh, None, "x", None), (4, 3, 5)) == lines("""
dim 0, size 4
  source: 2 blocks of 2
  target: 1 block of 4
  period: 2*4 / gcd(2, 4) = 4, the size of the dim
  cuts: 2 source
  [0, 2): source block 0, target block 0
  [2, 4): source block 1, target block 0

dim 1, size 3
  source: 1 block of 3
  target: 2 blocks of 2, the last of 1
  period: 3*2 / gcd(3, 2) = 6, longer than the dim
  cuts: 2 target
  [0, 2): source block 0, target block 0
  [2, 3): source block 0, target block 1

dim 2, size 5: not cut
""")


def test_scalars_and_empty_tensors_have_no_cuts() -> None:
    mesh = Mesh.of(x=6)
    assert draw_cuts(Sharding.of(mesh), Sharding.of(Mesh.of(device_ids=(3,))), ()) == lines("""
each region: who holds it in the source, who in the target
+------------+
| 0/1/2/+3 3 |
+------------+
""")
    assert draw_cuts(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (0,)) == "dim 0, size 0: nothing to cut"
    assert draw_cuts(Sharding.of(mesh, None), Sharding.of(mesh, None), (2,)) == lines("""
each region: who holds it in the source, who in the target
0                   2
+-------------------+
| 0/1/2/+3 0/1/2/+3 |
+-------------------+

dim 0, size 2: not cut
""")


def test_many_blocks_are_counted_not_listed() -> None:
    mesh = Mesh.of(x=256, y=256)
    drawn = draw_cuts(Sharding.of(mesh, ("x", "y"), None), Sharding.of(mesh, None, ("x", "y")), (2**18, 2**18))
    picture, *dims = drawn.split("\n\n")
    assert max(map(len, picture.split("\n"))) <= 120
    assert len(picture.split("\n")) <= 102
    assert "left out: regions dim 0: 15 to 65534, dim 1: " in picture
    assert all("  left out: 65520 further overlaps, up to 262144" in dim for dim in dims)


SHARDINGS = [
    Sharding.of(XY, ("x", "y")),
    Sharding.of(XY, ("y", "x"), uneven="chunk"),
    Sharding.of(XY, "x"),
    Sharding.of(XY, None),
    Sharding.of(Mesh.of(x=4, y=2, device_ids=(7, 3, 5, 1, 0, 2, 4, 6)), ("x:(2)2", "y", "x:(1)2")),
    Sharding.of(Mesh.of(x=4, y=2), ("y", "x:(2)2"), uneven="chunk"),
    Sharding.of(Mesh.of(x=5), "x"),
    Sharding.of(Mesh.of(device_ids=(11,))),
    Sharding.of(Mesh.of(), None),
]


def owners(sharding: Sharding, element: int, size: int) -> str:
    """The devices that hold an element, by their boxes, in the mesh's order."""
    devices = [
        str(d) for d in sharding.mesh.devices if sharding.box(d, (size,)).contains(Box([(element, element + 1)]))
    ]
    return "/".join(devices if len(devices) <= 4 else [*devices[:3], f"+{len(devices) - 3}"])


@pytest.mark.parametrize("source", SHARDINGS, ids=str)
@pytest.mark.parametrize("target", SHARDINGS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 5, 7, 12, 30])
def test_each_region_names_those_whose_boxes_hold_it(source: Sharding, target: Sharding, size: int) -> None:
    on_mesh = [
        Sharding.of(other.mesh, *([None] if other.ndim else [])) if side.mesh.is_empty else side
        for side, other in ((source, target), (target, source))
    ]
    _, places, _, regions, *_ = draw_cuts(source, target, (size,), max_width=10**6).split("\n")
    cuts = [int(place) for place in places.split()]
    starts = {side.box(device, (size,))[0][0] for side in on_mesh for device in side.mesh.devices}
    assert cuts == sorted(starts | {0, size})
    expected = [" ".join(owners(side, start, size) for side in on_mesh) for start in cuts[:-1]]
    assert [region.strip() for region in regions.strip("|").split("|")] == expected
    found = overlaps(source, target, (size,), 0)
    assert [overlap.start for overlap in found] + [size] == cuts
    assert [overlap.stop for overlap in found] == cuts[1:]


def test_overlaps_and_period_in_numbers() -> None:
    source, target = Sharding.of(XY, "x", "y"), Sharding.of(XY, "y", "x")
    assert overlaps(source, target, (6, 6), 1) == [
        Overlap(0, 0, 0, 2),
        Overlap(1, 0, 2, 3),
        Overlap(1, 1, 3, 4),
        Overlap(2, 1, 4, 6),
    ]
    assert cut_period(source, target, (6, 6), 0) == lcm(3, 2)
    assert cut_period(source, target, (5, 6), 0) == lcm(3, 2)  # 3, 2 and 2, 2, 1
    assert cut_period(source, target, (0, 6), 0) is None
    chunked = Sharding.of(XY, ("x", "y"), None, uneven="chunk")
    assert cut_period(source, chunked, (12, 6), 0) == lcm(6, 2)
    assert cut_period(source, chunked, (7, 6), 0) is None


def test_pieces_of_empty_tiles_and_of_scalars() -> None:
    mesh = Mesh.of(x=3)
    whole, cut = Sharding.of(mesh, None), Sharding.of(mesh, "x")
    assert piece_ranges(whole, cut, (2,), 0, 2) is None
    assert piece_ranges(cut, whole, (2,), 2, 0) is None
    assert piece_ranges(cut, cut, (4,), 0, 1) is None
    scalar = piece_ranges(Sharding.of(mesh), Sharding.of(Mesh.of(device_ids=(9,))), (), 2, 9)
    assert scalar is not None
    assert scalar.box == scalar.in_sender == scalar.in_receiver == Box()


# Refusals.

LINE = Sharding.of(Mesh.of(x=2), "x")
HUGE = Sharding.of(Mesh.of(x=2**21), "x")


@pytest.mark.parametrize(
    ("call", "code", "sentence"),
    [
        (
            lambda: draw_cuts(LINE, LINE, (4,), labels="names"),
            "bad-argument",
            "labels must be devices or coordinates, got: 'names'",
        ),
        (
            lambda: draw_cuts(HUGE, LINE, (4,)),
            "too-large",
            "dim 0 is cut into 2097152 blocks; 1048576 can be listed",
        ),
        (
            lambda: draw_cuts(LINE, Sharding.of(Mesh.of(x=2)), ()),
            "rank-mismatch",
            'sharding [{"x"}] has 1 dims, shape () has 0',
        ),
        (
            lambda: overlaps(LINE, LINE, (4,), 1),
            "bad-argument",
            "shape (4,) has no dim 1",
        ),
        (
            lambda: piece_ranges(LINE, LINE, (4,), 0, 2),
            "unknown-device",
            'device 2 is not in mesh <["x"=2]>',
        ),
    ],
)
def test_refusals(call: Any, code: str, sentence: str) -> None:
    with pytest.raises(ReshardError) as refusal:
        call()
    assert (refusal.value.code, str(refusal.value)) == (code, sentence)
