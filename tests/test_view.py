"""Do the drawings of a mesh show what its devices hold? Whole drawings, written by hand, and a count of the rest."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.sharding import Sharding
from reshard.view import draw_contents

XY = Mesh.of(x=2, y=3)
XYZ = Mesh.of(x=2, y=2, z=2)
ROW = [11, 12, 13, 21, 22, 23]


def lines(drawing: str) -> str:
    """A drawing as it stands in a test: without the first line break and the last."""
    return drawing.strip("\n")


def test_a_row_on_two_axes() -> None:
    assert draw_contents(Sharding.of(XY, ("x", "y")), (6,), ROW) == lines("""
"y"=3
----------->
+----+----+----+  "x"=2 |
| 11 | 12 | 13 |        |
+----+----+----+        |
| 21 | 22 | 23 |        |
+----+----+----+        ↓
""")


def test_a_row_on_two_axes_the_other_way() -> None:
    assert draw_contents(Sharding.of(XY, ("y", "x")), (6,), ROW) == lines("""
"y"=3
----------->
+----+----+----+  "x"=2 |
| 11 | 13 | 22 |        |
+----+----+----+        |
| 12 | 21 | 23 |        |
+----+----+----+        ↓
""")


def test_a_row_gathered_along_the_major_axis() -> None:
    assert draw_contents(Sharding.of(XY, "y"), (6,), ROW) == lines("""
"y"=3
----------->
+-------+-------+-------+  "x"=2 |
| 11 12 | 13 21 | 22 23 |        |
+-------+-------+-------+        |
| 11 12 | 13 21 | 22 23 |        |
+-------+-------+-------+        ↓
""")


def test_columns_gathered_along_the_minor_axis() -> None:
    assert draw_contents(Sharding.of(XY, None, "x"), (2, 6)) == lines("""
"y"=3
----------->
+----------+----------+----------+  "x"=2 |
| 11 12 13 | 11 12 13 | 11 12 13 |        |
| 21 22 23 | 21 22 23 | 21 22 23 |        |
+----------+----------+----------+        |
| 14 15 16 | 14 15 16 | 14 15 16 |        |
| 24 25 26 | 24 25 26 | 24 25 26 |        |
+----------+----------+----------+        ↓
""")


def test_three_axes() -> None:
    assert draw_contents(Sharding.of(XYZ, "x", ("y", "z")), (4, 8)) == lines("""
"z"=2
----------->
+-------+-------+  "y"=2 |  "x"=2 |
| 11 12 | 13 14 |        |        |
| 21 22 | 23 24 |        |        |
+-------+-------+        |        |
| 15 16 | 17 18 |        |        |
| 25 26 | 27 28 |        |        |
+-------+-------+        ↓        |
+-------+-------+                 |
| 31 32 | 33 34 |                 |
| 41 42 | 43 44 |                 |
+-------+-------+                 |
| 35 36 | 37 38 |                 |
| 45 46 | 47 48 |                 |
+-------+-------+                 ↓
""")


def test_three_axes_two_of_them_in_one_dim() -> None:
    assert draw_contents(Sharding.of(XYZ, ("x", "y"), "z"), (4, 4)) == lines("""
"z"=2
----------->
+-------+-------+  "y"=2 |  "x"=2 |
| 11 12 | 13 14 |        |        |
+-------+-------+        |        |
| 21 22 | 23 24 |        |        |
+-------+-------+        ↓        |
+-------+-------+                 |
| 31 32 | 33 34 |                 |
+-------+-------+                 |
| 41 42 | 43 44 |                 |
+-------+-------+                 ↓
""")


def test_four_axes_stand_apart() -> None:
    sharding = Sharding.of(Mesh.of(w=2, x=2, y=1, z=2), ("w", "x"), "z")
    assert draw_contents(sharding, (4, 2)) == lines("""
"z"=2
----------->
+----+----+  "y"=1 |  "x"=2 |  "w"=2 |
| 11 | 12 |        |        |        |
+----+----+        ↓        |        |
+----+----+                 |        |
| 21 | 22 |                 |        |
+----+----+                 ↓        |
                                     |
+----+----+                          |
| 31 | 32 |                          |
+----+----+                          |
+----+----+                          |
| 41 | 42 |                          |
+----+----+                          ↓
""")


def test_a_transposition_seen_from_either_axis() -> None:
    target = Sharding.of(XY, "y", "x")
    assert draw_contents(target, (6, 6)) == lines("""
"y"=3
----------->
+----------+----------+----------+  "x"=2 |
| 11 12 13 | 31 32 33 | 51 52 53 |        |
| 21 22 23 | 41 42 43 | 61 62 63 |        |
+----------+----------+----------+        |
| 14 15 16 | 34 35 36 | 54 55 56 |        |
| 24 25 26 | 44 45 46 | 64 65 66 |        |
+----------+----------+----------+        ↓
""")
    assert draw_contents(target, (6, 6), order=("y", "x")) == lines("""
"x"=2
----------->
+----------+----------+  "y"=3 |
| 11 12 13 | 14 15 16 |        |
| 21 22 23 | 24 25 26 |        |
+----------+----------+        |
| 31 32 33 | 34 35 36 |        |
| 41 42 43 | 44 45 46 |        |
+----------+----------+        |
| 51 52 53 | 54 55 56 |        |
| 61 62 63 | 64 65 66 |        |
+----------+----------+        ↓
""")


def test_one_axis_runs_as_the_dim_that_it_cuts() -> None:
    mesh = Mesh.of(x=3)
    assert draw_contents(Sharding.of(mesh, "x", None), (6, 6)) == lines("""
+-------------------+  "x"=3 |
| 11 12 13 14 15 16 |        |
| 21 22 23 24 25 26 |        |
+-------------------+        |
| 31 32 33 34 35 36 |        |
| 41 42 43 44 45 46 |        |
+-------------------+        |
| 51 52 53 54 55 56 |        |
| 61 62 63 64 65 66 |        |
+-------------------+        ↓
""")
    assert draw_contents(Sharding.of(mesh, None, "x"), (6, 6)) == lines("""
"x"=3
----------->
+-------+-------+-------+
| 11 12 | 13 14 | 15 16 |
| 21 22 | 23 24 | 25 26 |
| 31 32 | 33 34 | 35 36 |
| 41 42 | 43 44 | 45 46 |
| 51 52 | 53 54 | 55 56 |
| 61 62 | 63 64 | 65 66 |
+-------+-------+-------+
""")


def test_an_axis_with_an_empty_name() -> None:
    mesh = Mesh.of({"": 4})
    assert draw_contents(Sharding.of(mesh, ""), (4,), max_width=16) == lines("""
+---+  ""=4 |
| 1 |       |
+---+       |
| 2 |       |
+---+       |
| 3 |       |
+---+       |
| 4 |       |
+---+       ↓
""")


def test_scalars() -> None:
    assert draw_contents(Sharding.of(Mesh.of(x=3)), (), 2.5) == lines("""
"x"=3
----------->
+-----+-----+-----+
| 2.5 | 2.5 | 2.5 |
+-----+-----+-----+
""")
    assert draw_contents(Sharding.of(Mesh.of()), ()) == lines("""
+----+
| () |
+----+
""")


def test_a_maximal_mesh() -> None:
    assert draw_contents(Sharding.of(Mesh.of(device_ids=(3,))), (2, 2)) == lines("""
+----------+
| device 3 |
| 11 12    |
| 21 22    |
+----------+
""")


def test_device_ids_name_the_devices_and_empty_tiles_say_so() -> None:
    mesh = Mesh.of(x=2, y=3, device_ids=(5, 4, 3, 2, 1, 0))
    assert draw_contents(Sharding.of(mesh, ("x", "y")), (7,)) == lines("""
"y"=3
----------->
+----------+----------+----------+  "x"=2 |
| device 5 | device 4 | device 3 |        |
| 1 2      | 3 4      | 5 6      |        |
+----------+----------+----------+        |
| device 2 | device 1 | device 0 |        |
| 7        | (empty)  | (empty)  |        |
+----------+----------+----------+        ↓
""")


def test_a_size_over_nine_separates_the_labels() -> None:
    assert draw_contents(Sharding.of(Mesh.of(x=2), None, "x"), (2, 10)) == lines("""
"x"=2
----------->
+--------------------------+--------------------------+
|  1,1  1,2  1,3  1,4  1,5 |  1,6  1,7  1,8  1,9 1,10 |
|  2,1  2,2  2,3  2,4  2,5 |  2,6  2,7  2,8  2,9 2,10 |
+--------------------------+--------------------------+
""")


def test_three_dims_are_matrices_under_their_index() -> None:
    assert draw_contents(Sharding.of(Mesh.of(x=2, y=2), None, "x", "y"), (2, 3, 4)) == lines("""
"y"=2
----------->
+---------+---------+  "x"=2 |
| -- 1 -- | -- 1 -- |        |
| 111 112 | 113 114 |        |
| 121 122 | 123 124 |        |
| -- 2 -- | -- 2 -- |        |
| 211 212 | 213 214 |        |
| 221 222 | 223 224 |        |
+---------+---------+        |
| -- 1 -- | -- 1 -- |        |
| 131 132 | 133 134 |        |
| -- 2 -- | -- 2 -- |        |
| 231 232 | 233 234 |        |
+---------+---------+        ↓
""")


def test_partial_values_are_called_partial() -> None:
    assert draw_contents(Sharding.of(Mesh.of(x=2, y=2), "y", unreduced="x", reduction="max"), (2,)) == lines("""
"y"=2
----------->
+---+---+  "x"=2 |
| 1 | 2 |        |
+---+---+        |
| 1 | 2 |        |
+---+---+        ↓

unreduced={"x"}: each device holds partial values, which the max along these axes completes
""")


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1.0, -0.5, 1e30, np.nan], "1  -0.5 | 1e+30   nan"),
        ([True, False, True, True], "True False |  True  True"),
        (["a", "é", "\n", ""], "a \\xe9 |   \\n     "),
        (np.array([1, 2, 3, 4], dtype="float16"), "1 2 | 3 4"),
    ],
)
def test_values_are_written_in_plain_text(values: Any, texts: str) -> None:
    drawn = draw_contents(Sharding.of(Mesh.of(x=2), "x"), (4,), values)
    assert texts in drawn
    assert drawn.isascii()


@pytest.mark.parametrize("order", list(permutations("xyz")))
def test_each_cell_holds_what_its_device_holds(order: tuple[str, ...]) -> None:
    """Read row by row, the cells are those of the devices as the axes are ordered, the last fastest."""
    mesh = Mesh.of(x=2, y=3, z=4)
    sharding = Sharding.of(mesh, ("y", "x", "z"), uneven="chunk")
    drawn = draw_contents(sharding, (61,), np.arange(61), order=order)
    rows = [line[: line.rindex(" |  ") if " |  " in line else None] for line in drawn.split("\n")]
    texts = [cell.split() for row in rows if row.startswith("| ") for cell in row.strip("| ").split("|")]
    tiles: list[list[str]] = []
    for along in product(*(range(mesh.sizes[name]) for name in order)):
        place = dict(zip(order, along, strict=True))
        device = place["x"] * 12 + place["y"] * 4 + place["z"]
        ((start, stop),) = sharding.box(device, (61,))
        tiles.append([str(i) for i in range(start, stop)] or ["(empty)"])
    assert texts == tiles


# What does not fit.


def test_boxes_stand_for_what_is_too_wide() -> None:
    sharding = Sharding.of(Mesh.of(x=2, y=2), "x", "y")
    assert draw_contents(sharding, (1024, 1024)) == lines("""
"y"=2
----------->
+-------------------+----------------------+  "x"=2 |
| [0:512, 0:512]    | [0:512, 512:1024]    |        |
+-------------------+----------------------+        |
| [512:1024, 0:512] | [512:1024, 512:1024] |        |
+-------------------+----------------------+        ↓

boxes stand for the elements: start:stop per dim, counted from 0
""")


def test_one_axis_turns_where_it_fits_no_other_way() -> None:
    sharding = Sharding.of(Mesh.of(x=4), "x")
    assert draw_contents(sharding, (8,), max_width=25) == lines("""
"x"=4
----------->
+-----+-----+-----+-----+
| 1 2 | 3 4 | 5 6 | 7 8 |
+-----+-----+-----+-----+
""")
    assert draw_contents(sharding, (8,), max_width=24) == lines("""
+-----+  "x"=4 |
| 1 2 |        |
+-----+        |
| 3 4 |        |
+-----+        |
| 5 6 |        |
+-----+        |
| 7 8 |        |
+-----+        ↓
""")


def test_devices_are_left_out_where_boxes_do_not_fit() -> None:
    sharding = Sharding.of(Mesh.of(x=8, y=8), "x", "y")
    assert draw_contents(sharding, (8, 8), max_width=40, max_lines=11) == lines("""
"y"=8
----------->
+-----+-----+-----+-----+-----+  "x"=8 |
| 11  | 12  | 13  | ... | 18  |        |
+-----+-----+-----+-----+-----+        |
| 21  | 22  | 23  | ... | 28  |        |
+-----+-----+-----+-----+-----+        |
| ... | ... | ... | ... | ... |        |
+-----+-----+-----+-----+-----+        |
| 81  | 82  | 83  | ... | 88  |        |
+-----+-----+-----+-----+-----+        ↓

left out: "x" 2 to 6, "y" 3 to 6; 12 of 64 devices are drawn
""")


def test_grids_are_left_out() -> None:
    sharding = Sharding.of(Mesh.of(x=8, y=1, z=2), "x", "z")
    assert draw_contents(sharding, (8, 2), max_lines=13) == lines("""
"z"=2
----------->
+----+----+  "y"=1 |  "x"=8 |
| 11 | 12 |        |        |
+----+----+        ↓        |
+----+----+                 |
| 21 | 22 |                 |
+----+----+                 |
...                         |
+----+----+                 |
| 81 | 82 |                 |
+----+----+                 ↓

left out: "x" 2 to 6; 6 of 16 devices are drawn
""")


@pytest.mark.parametrize(
    ("mesh", "note"),
    [
        (Mesh.of(x=256, y=256), '"x" 15 to 254, "y" 2 to 254; 48 of 65536 devices are drawn'),
        (Mesh.of(x=65536), '"x" 15 to 65534; 16 of 65536 devices are drawn'),
    ],
)
def test_a_large_mesh_is_cut_to_size(mesh: Mesh, note: str) -> None:
    dims = [name for name, _ in mesh.axes]
    drawn = draw_contents(Sharding.of(mesh, *dims), (2**20,) * len(dims)).split("\n")
    assert len(drawn) <= 103
    assert max(map(len, drawn)) <= 120
    assert drawn[-1] == f"left out: {note}"


@pytest.mark.parametrize(
    "mesh", [Mesh.of((f"a{i}", 2) for i in range(16)), Mesh.of(x=2**30, y=2**30), Mesh.of(x=1, y=1, z=65536)]
)
@pytest.mark.parametrize(("max_width", "max_lines"), [(1, 1), (120, 100), (10**9, 10**9)])
def test_any_mesh_and_any_limits_are_drawn(mesh: Mesh, max_width: int, max_lines: int) -> None:
    drawn = draw_contents(Sharding.of(mesh, mesh.axes[-1][0]), (2**40,), max_width=max_width, max_lines=max_lines)
    assert len(drawn) < 10**6
    assert f"of {mesh.size} devices are drawn" in drawn


@pytest.mark.parametrize("size", range(1, 9))
def test_every_device_is_drawn_or_left_out(size: int) -> None:
    """Over all limits, the cells that are drawn and the note agree."""
    sharding = Sharding.of(Mesh.of(x=size, y=3), "x")
    for max_lines in range(1, 24):
        drawn = draw_contents(sharding, (2 * size,), max_lines=max_lines)
        cells = sum(line.count("|") - 2 for line in drawn.split("\n") if line.startswith("| ") and "..." not in line)
        left_out = f"{cells} of {3 * size} devices are drawn" in drawn
        assert left_out or cells == 3 * size


# Refusals.

LINE = Sharding.of(Mesh.of(x=2), "x")


@pytest.mark.parametrize(
    ("call", "code", "sentence"),
    [
        (
            lambda: draw_contents(LINE, (4, 4)),
            "rank-mismatch",
            'sharding [{"x"}] has 1 dims, shape (4, 4) has 2',
        ),
        (
            lambda: draw_contents(LINE, (4,), [1, 2, 3]),
            "bad-argument",
            "values have shape (3,); they must have the tensor's, (4,)",
        ),
        (
            lambda: draw_contents(LINE, (4,), order=("x", "z")),
            "unknown-axis",
            'axis "z" is not in mesh <["x"=2]>',
        ),
        (
            lambda: draw_contents(LINE, (4,), order=("x", "x")),
            "bad-argument",
            "order must name every axis of mesh <[\"x\"=2]> once, got: ('x', 'x')",
        ),
        (
            lambda: draw_contents(LINE, (4,), order=3),  # type: ignore[arg-type]
            "bad-argument",
            'order must name every axis of mesh <["x"=2]> once, got: 3',
        ),
        (
            lambda: draw_contents(LINE, (4,), max_width=0),
            "bad-argument",
            "max_width must be an integer of at least 1, got: 0",
        ),
        (
            lambda: draw_contents("x", (4,)),  # type: ignore[arg-type]
            "bad-argument",
            "a Sharding is needed, got: 'x'",
        ),
    ],
)
def test_refusals(call: Any, code: str, sentence: str) -> None:
    with pytest.raises(ReshardError) as refusal:
        call()
    assert (refusal.value.code, str(refusal.value)) == (code, sentence)


def test_drawing_loads_no_rich() -> None:
    statement = "import sys, reshard.view; sys.exit('rich' in sys.modules)"
    subprocess.run([sys.executable, "-c", statement], check=True)
