"""Do the conventions hold on examples worked by hand? Here they are held to them, device by device.

Which axis of a dim is the major one, what a sub-axis selects, where device ids count, how an uneven dim is cut: laws
do not pin these, for they hold the other way round too.
The tables here do.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from math import gcd
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from reshard.box import Box
from reshard.mesh import Mesh
from reshard.sharding import Sharding
from reshard.view import cut_period, overlaps, piece_ranges

DATA = Path(__file__).parent / "data" / "resharding_examples.json"


class Worked(NamedTuple):
    """A reshard with what every device holds before and after it."""

    name: str
    source: Sharding
    target: Sharding
    values: NDArray[np.int64]
    held: dict[int, NDArray[np.int64]]
    """The source tile of each device."""
    wanted: dict[int, NDArray[np.int64]]
    """The target tile of each device."""


def sharding_of(mesh: Mesh, dims: list[list[int]]) -> Sharding:
    return Sharding.of(mesh, *([f"a{axis}" for axis in axes] for axes in dims))


def worked_cases() -> Iterator[Worked]:
    """The cases of the data file that have contents."""
    for case in json.loads(DATA.read_text())["cases"]:
        if "values" in case:
            mesh = Mesh.of((f"a{axis}", size) for axis, size in enumerate(case["mesh"]))
            values = np.array(case["values"])
            assert values.shape == tuple(case["shape"])
            contents = [
                {device: np.array(tile) for device, tile in enumerate(case[side])}
                for side in ("src_contents", "dst_contents")
            ]
            yield Worked(
                case["name"], sharding_of(mesh, case["src"]), sharding_of(mesh, case["dst"]), values, *contents
            )


CASES = list(worked_cases())


def test_the_data_file_has_all_cases() -> None:
    assert [case.name for case in CASES] == [
        "swap_axis_order_2x3",
        "gather_major_axis_2x3",
        "gather_minor_axis_2x3",
        "gather_middle_axis_2x2x2",
        "transpose_2x3",
        "transpose_2x6",
        "row_to_column_3",
        "move_minor_axis_2x2x2",
    ]


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_device_holds_what_the_example_shows(case: Worked, side: str) -> None:
    sharding, tiles = (case.source, case.held) if side == "source" else (case.target, case.wanted)
    assert sorted(tiles) == sorted(sharding.mesh.devices)
    for device, tile in tiles.items():
        found = case.values[sharding.box(device, case.values.shape).slices()]
        np.testing.assert_array_equal(found, tile, err_msg=f"device {device}", strict=True)


# Tables by hand: what, the sharding, the shape, and the box of each device.

Table = tuple[str, Sharding, tuple[int, ...], dict[int, list[tuple[int, int]]]]

XY = Mesh.of(x=2, y=3)
Y8 = Mesh.of(y=8)

TABLES: list[Table] = [
    (
        "the first axis of a dim is the major one",
        Sharding.of(XY, ("x", "y")),
        (6,),
        {0: [(0, 1)], 1: [(1, 2)], 2: [(2, 3)], 3: [(3, 4)], 4: [(4, 5)], 5: [(5, 6)]},
    ),
    (
        "an order of axes other than the mesh's",  # device 3 * x + y holds element 2 * y + x
        Sharding.of(XY, ("y", "x")),
        (6,),
        {0: [(0, 1)], 1: [(2, 3)], 2: [(4, 5)], 3: [(1, 2)], 4: [(3, 4)], 5: [(5, 6)]},
    ),
    (
        "one axis per dim",
        Sharding.of(XY, "y", "x"),
        (3, 4),
        {
            0: [(0, 1), (0, 2)],
            1: [(1, 2), (0, 2)],
            2: [(2, 3), (0, 2)],
            3: [(0, 1), (2, 4)],
            4: [(1, 2), (2, 4)],
            5: [(2, 3), (2, 4)],
        },
    ),
    (
        "an axis that cuts nothing replicates",
        Sharding.of(XY, "y"),
        (6,),
        {0: [(0, 2)], 1: [(2, 4)], 2: [(4, 6)], 3: [(0, 2)], 4: [(2, 4)], 5: [(4, 6)]},
    ),
    (
        "the major sub-axis",
        Sharding.of(Y8, "y:(1)2"),
        (4,),
        {**{device: [(0, 2)] for device in (0, 1, 2, 3)}, **{device: [(2, 4)] for device in (4, 5, 6, 7)}},
    ),
    (
        "the middle sub-axis",
        Sharding.of(Y8, "y:(2)2"),
        (4,),
        {**{device: [(0, 2)] for device in (0, 1, 4, 5)}, **{device: [(2, 4)] for device in (2, 3, 6, 7)}},
    ),
    (
        "the minor sub-axis",
        Sharding.of(Y8, "y:(4)2"),
        (4,),
        {**{device: [(0, 2)] for device in (0, 2, 4, 6)}, **{device: [(2, 4)] for device in (1, 3, 5, 7)}},
    ),
    (
        "the minor sub-axis, then the major one",  # block 2 * (device % 2) + device // 4
        Sharding.of(Y8, ("y:(4)2", "y:(1)2")),
        (4,),
        {
            0: [(0, 1)],
            1: [(2, 3)],
            2: [(0, 1)],
            3: [(2, 3)],
            4: [(1, 2)],
            5: [(3, 4)],
            6: [(1, 2)],
            7: [(3, 4)],
        },
    ),
    (
        "device ids in another order",  # the mesh is [[0, 2], [1, 3]]
        Sharding.of(Mesh.of(x=2, y=2, device_ids=(0, 2, 1, 3)), ("x", "y")),
        (4,),
        {0: [(0, 1)], 2: [(1, 2)], 1: [(2, 3)], 3: [(3, 4)]},
    ),
    (
        "device ids of a part of the world",
        Sharding.of(Mesh.of(x=3, device_ids=(9, 4, 12)), "x"),
        (6,),
        {9: [(0, 2)], 4: [(2, 4)], 12: [(4, 6)]},
    ),
    (
        "ceil: 5 by 4 is 2, 2, 1, 0",
        Sharding.of(Mesh.of(x=4), "x"),
        (5,),
        {0: [(0, 2)], 1: [(2, 4)], 2: [(4, 5)], 3: [(5, 5)]},
    ),
    (
        "ceil: 7 by 2 * 3 is 2, 2, 2, 1, 0, 0",
        Sharding.of(XY, ("x", "y")),
        (7,),
        {0: [(0, 2)], 1: [(2, 4)], 2: [(4, 6)], 3: [(6, 7)], 4: [(7, 7)], 5: [(7, 7)]},
    ),
    (
        "ceil: empty in one dim, not in the other",
        Sharding.of(XY, "x", "y"),
        (3, 1),
        {
            0: [(0, 2), (0, 1)],
            1: [(0, 2), (1, 1)],
            2: [(0, 2), (1, 1)],
            3: [(2, 3), (0, 1)],
            4: [(2, 3), (1, 1)],
            5: [(2, 3), (1, 1)],
        },
    ),
    (
        "chunk: 5 by one axis of 4 is 2, 2, 1, 0 as well",
        Sharding.of(Mesh.of(x=4), "x", uneven="chunk"),
        (5,),
        {0: [(0, 2)], 1: [(2, 4)], 2: [(4, 5)], 3: [(5, 5)]},
    ),
    (
        "chunk: 7 by 2 is 4, 3; by 3 each is 2, 2, 0 and 1, 1, 1",
        Sharding.of(XY, ("x", "y"), uneven="chunk"),
        (7,),
        {0: [(0, 2)], 1: [(2, 4)], 2: [(7, 7)], 3: [(4, 5)], 4: [(5, 6)], 5: [(6, 7)]},
    ),
    (
        "chunk: 7 by 3 is 3, 3, 1; by 2 each is 2, 1 and 2, 1 and 1, 0",  # x is now the minor axis
        Sharding.of(XY, ("y", "x"), uneven="chunk"),
        (7,),
        {0: [(0, 2)], 3: [(2, 3)], 1: [(3, 5)], 4: [(5, 6)], 2: [(6, 7)], 5: [(7, 7)]},
    ),
    (
        "chunk: 5 by 2 is 3, 2; by 4 each is 1, 1, 1, 0 and 1, 1, 0, 0",
        Sharding.of(Mesh.of(x=2, y=4), ("x", "y"), uneven="chunk"),
        (5,),
        {
            0: [(0, 1)],
            1: [(1, 2)],
            2: [(2, 3)],
            3: [(5, 5)],
            4: [(3, 4)],
            5: [(4, 5)],
            6: [(5, 5)],
            7: [(5, 5)],
        },
    ),
    (
        "a dim of size 0",
        Sharding.of(Mesh.of(x=2), "x", None),
        (0, 4),
        {0: [(0, 0), (0, 4)], 1: [(0, 0), (0, 4)]},
    ),
    (
        "a dim of size 1",
        Sharding.of(Mesh.of(x=2), "x"),
        (1,),
        {0: [(0, 1)], 1: [(1, 1)]},
    ),
    ("a scalar", Sharding.of(Mesh.of(x=2)), (), {0: [], 1: []}),
    ("a maximal mesh", Sharding.of(Mesh.of(device_ids=(3,))), (2, 5), {3: [(0, 2), (0, 5)]}),
    ("an axis of size 1", Sharding.of(Mesh.of(x=1, y=2), "x", "y"), (3, 2), {0: [(0, 3), (0, 1)], 1: [(0, 3), (1, 2)]}),
]


@pytest.mark.parametrize(("sharding", "shape", "boxes"), [row[1:] for row in TABLES], ids=[row[0] for row in TABLES])
def test_each_device_holds_the_box_of_the_table(
    sharding: Sharding, shape: tuple[int, ...], boxes: dict[int, list[tuple[int, int]]]
) -> None:
    assert {device: sharding.box(device, shape) for device in sharding.mesh.devices} == {
        device: Box(intervals) for device, intervals in boxes.items()
    }


AB = Mesh.of(a=4, b=2)
XYZ = Mesh.of(x=2, y=2, z=2)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (Sharding.of(AB, "a", "b"), Sharding.of(XYZ, ("x", "y"), "z"), True),
        (Sharding.of(AB, "a", "b"), Sharding.of(XYZ, ("y", "x"), "z"), False),
        (Sharding.of(AB, "a:(2)2", "b"), Sharding.of(XYZ, "y", "z"), True),
        (Sharding.of(AB, "a:(1)2", "b"), Sharding.of(XYZ, "y", "z"), False),
        (Sharding.of(AB, None, ("b", "a")), Sharding.of(XYZ, None, ("z", "x", "y")), True),
        (Sharding.of(AB, None, ("b", "a")), Sharding.of(XYZ, None, ("x", "y", "z")), False),
        (Sharding.of(AB, None, None, unreduced="a"), Sharding.of(XYZ, None, None, unreduced=("x", "y")), True),
        (Sharding.of(AB, None, None, unreduced="a"), Sharding.of(XYZ, None, None), False),
    ],
)
def test_shardings_on_two_meshes_agree_where_the_table_says(first: Sharding, second: Sharding, same: bool) -> None:
    assert first.is_equivalent_to(second, (8, 8)) is same
    assert second.is_equivalent_to(first, (8, 8)) is same
    boxes = [[sharding.box(device, (8, 8)) for device in range(8)] for sharding in (first, second)]
    assert (boxes[0] == boxes[1]) is (same or bool(first.unreduced))


def test_the_rows_and_columns_of_a_4_by_2_mesh() -> None:
    """Device d holds row d // 2, column d % 2 of a 4 x 2 tensor, under either mesh."""
    by_hand = {
        0: [(0, 1), (0, 1)],
        1: [(0, 1), (1, 2)],
        2: [(1, 2), (0, 1)],
        3: [(1, 2), (1, 2)],
        4: [(2, 3), (0, 1)],
        5: [(2, 3), (1, 2)],
        6: [(3, 4), (0, 1)],
        7: [(3, 4), (1, 2)],
    }
    for sharding in (Sharding.of(AB, "a", "b"), Sharding.of(XYZ, ("x", "y"), "z")):
        assert {device: sharding.box(device, (4, 2)) for device in range(8)} == {
            device: Box(intervals) for device, intervals in by_hand.items()
        }


# A K x L tensor on an M x N mesh, from [{"m"}, {"n"}] to [{"n"}, {"m"}]: d1(m, n)[k, l] is d2(p, q)[u, v].


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def along(size: int, major: int, minor: int) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """Index arithmetic in one dim: (source block, target block) to [(index, index in source, index in target)].

    The source cuts the dim into `major` blocks, the target into `minor`.
    """
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    before, after = ceildiv(size, major), ceildiv(size, minor)
    for i in range(size):
        found[i // before, i // after].append((i, i % before, i % after))
    return found


def check_transposition(m_size: int, n_size: int, rows: int, columns: int) -> None:
    """Every sender and receiver share what index arithmetic says, and what is shared makes up each target tile."""
    mesh = Mesh.of(m=m_size, n=n_size)
    source, target = Sharding.of(mesh, "m", "n"), Sharding.of(mesh, "n", "m")
    in_rows, in_columns = along(rows, m_size, n_size), along(columns, n_size, m_size)
    for p, q in product(range(m_size), range(n_size)):
        pieces = 0
        for m, n in product(range(m_size), range(n_size)):
            found = piece_ranges(source, target, (rows, columns), m * n_size + n, p * n_size + q)
            expected = [in_rows.get((m, q), []), in_columns.get((n, p), [])]
            if not all(expected):
                assert found is None
                continue
            assert found is not None
            for dim, elements in enumerate(expected):
                ranges = (found.box[dim], found.in_sender[dim], found.in_receiver[dim])
                assert elements == list(zip(*(range(*interval) for interval in ranges), strict=True))
            pieces += found.box.size
        assert pieces == target.box(p * n_size + q, (rows, columns)).size


@pytest.mark.parametrize(("m_size", "n_size"), list(product(range(1, 6), repeat=2)))
def test_the_ranges_of_a_transposition(m_size: int, n_size: int) -> None:
    for rows in range(1, 31):  # every number of rows and of columns; the dims do not know of each other
        check_transposition(m_size, n_size, rows, 31 - rows)


@pytest.mark.sweep
@pytest.mark.parametrize(("m_size", "n_size"), list(product(range(1, 6), repeat=2)))
def test_the_ranges_of_every_transposition(m_size: int, n_size: int) -> None:
    for rows, columns in product(range(1, 31), repeat=2):
        check_transposition(m_size, n_size, rows, columns)


def test_an_element_of_a_transposition_by_hand() -> None:
    """M = 3, N = 4, K = 16, L = 23: source blocks of 6 x 6, target blocks of 4 x 8.

    t[13, 17] is d1(2, 2)[1, 5] and d2(2, 3)[1, 1]; the two tiles share the rows 12 to 15 and the columns 16 and 17.
    """
    mesh = Mesh.of(m=3, n=4)
    found = piece_ranges(Sharding.of(mesh, "m", "n"), Sharding.of(mesh, "n", "m"), (16, 23), 2 * 4 + 2, 2 * 4 + 3)
    assert found is not None
    assert found.box == Box([(12, 16), (16, 18)])
    assert found.in_sender == Box([(0, 4), (4, 6)])
    assert found.in_receiver == Box([(0, 4), (0, 2)])


def cut_sides(sharding: Sharding, size: int) -> set[int]:
    return {sharding.box(device, (size,))[0][0] for device in sharding.mesh.devices}


@pytest.mark.parametrize(("s", "t"), list(product(range(1, 9), repeat=2)))
def test_the_cuts_repeat_after_the_period_and_not_before(s: int, t: int) -> None:
    period = s * t // gcd(s, t)
    size = 3 * period
    source, target = Sharding.of(Mesh.of(x=size // s), "x"), Sharding.of(Mesh.of(x=size // t), "x")
    cuts = [cut_sides(sharding, size) for sharding in (source, target)]

    def repeats_after(length: int) -> bool:
        return all((i in side) == (i + length in side) for side in cuts for i in range(size - length))

    assert [length for length in range(1, period + 1) if repeats_after(length)] == [period]
    assert cut_period(source, target, (size,), 0) == period
    pattern = [overlap[2:] for overlap in overlaps(source, target, (size,), 0)]
    once = [interval for interval in pattern if interval[0] < period]
    assert pattern == [(start + lap * period, stop + lap * period) for lap in range(3) for start, stop in once]
