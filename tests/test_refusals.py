"""Each code has a cause and a sentence, and nothing that is handed in wrong ends in anything but a refusal.

A row holds a code, what causes it, and the whole sentence.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import reshard as rs
from reshard.axis import Axis, refined_mesh
from reshard.checks import checked_shape
from reshard.dim_sharding import DimSharding
from reshard.dtypes import DTYPES, dtype_named
from reshard.errors import CODES, ReshardError
from reshard.exchange import combine_then_gather, find_exchange
from reshard.exchange.by_boxes import by_boxes
from reshard.mesh import LIMIT, Mesh
from reshard.notation import parse_module, to_mlir_list, to_xla
from reshard.plans import Options, Plan
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Step
from reshard.tiling import Tiling

FILE_CODES = {"bad-file", "file-exists", "write-failed", "verify-failed", "missing-extra"}
"""Codes of files, which the tests of the storage cause."""
NETWORK_CODES = {"bad-network"}
"""Codes of networks, which the tests of networks cause."""
PROGRAM_CODES = {"bad-program"}
"""Codes of programs, which the tests of programs cause."""
TILE_CODES = {"bad-deal", "bad-window"}
"""Shown in `test_tiles`."""
PROCESS_CODES = {"ranks-disagree", "exchange-failed"}
"""Codes of exchanges between processes, which the tests of the engines cause."""

XY = Mesh.of(x=2, y=4)
Y12 = Mesh.of(y=12)
F32 = dtype_named("float32")
ROWS, COLUMNS = Sharding.of(XY, "x", None), Sharding.of(XY, None, "x")
MOVE = rs.plan(ROWS, COLUMNS, (4, 4), "float32")
TILES = rs.numpy.scatter(np.zeros((4, 4), "float32"), ROWS)
BIG = Mesh.of(x=10**6, y=10**6)


def of_axes(*axes: Axis, mesh: Mesh = XY) -> Sharding:
    """A sharding whose one dim has these axes, as they stand."""
    return Sharding(mesh, (DimSharding(axes),))


def changed(text: str, **fields: Any) -> str:
    """The JSON text of a plan with some of its fields changed."""
    return json.dumps({**json.loads(text), **fields})


Row = tuple[str, Callable[[], object], str]

MESHES: list[Row] = [
    ("axis-name", lambda: Mesh.of([(3, 2)]), "an axis name must be a string, got: 3"),
    ("axis-name", lambda: Axis(None), "an axis name must be a string, got: None"),  # type: ignore[arg-type]
    ("axis-name", lambda: Axis.of(3), "an axis must be a name or an Axis, got: 3"),  # type: ignore[arg-type]
    ("axis-size", lambda: Mesh.of(x=2, y=0), 'axis "y" has size 0; it must be at least 1'),
    ("axis-size", lambda: Mesh.of(x=-3), 'axis "x" has size -3; it must be at least 1'),
    ("negative-device-id", lambda: Mesh.of(x=2, device_ids=(0, -1)), "device id -1 is negative; it must be at least 0"),
    ("maximal-mesh", lambda: Mesh.of(device_ids=(0, 1)), "a mesh without axes has 2 device ids; it may have one"),
    ("duplicate-axis", lambda: Mesh.of([("x", 2), ("x", 3)]), 'axis "x" is named twice'),
    ("device-ids-count", lambda: Mesh.of(x=3, device_ids=(0, 1)), "2 device ids are given for 3 positions"),
    ("device-ids-count", lambda: Mesh.of(device_ids=()), "0 device ids are given for 1 positions"),
    ("duplicate-device-id", lambda: Mesh.of(x=3, device_ids=(1, 0, 1)), "device id 1 is listed twice"),
    (
        "device-ids-not-iota",
        lambda: rs.parse_mesh('<["x"=2], device_ids=[1, 2]>'),
        (
            "device ids that are not 0 to 1 in some order stand at column 11; a part of the world is written `devices=`"
            '\n  <["x"=2], device_ids=[1, 2]>\n            ^'
        ),
    ),
    ("too-large", lambda: Mesh.of(x=2**31, y=2**31), "a mesh of 2**62 devices or more is too large"),
    (
        "too-large",
        lambda: Mesh.of(x=2, device_ids=(0, 2**62)),
        f"device id {2**62} is too large; it must be below 2**62",
    ),
    ("too-large", lambda: BIG.device_array, f"{10**12} devices are too many to list one by one"),
    (
        "bad-argument",
        lambda: Mesh.of(x=2.0),
        'the size of axis "x" must be an integer, got: 2.0',
    ),  # type: ignore[arg-type]
    ("unknown-device", lambda: XY.position_of(8), 'device 8 is not in mesh <["x"=2, "y"=4]>'),
    (
        "unknown-device",
        lambda: Mesh.of(x=2, device_ids=(5, 4)).coordinates(0),
        'device 0 is not in mesh <["x"=2], devices=[5, 4]>',
    ),
]

SHARDINGS: list[Row] = [
    (
        "maximal-sharding",
        lambda: Sharding.of(Mesh.of(device_ids=(1,)), None),
        "a sharding on a maximal mesh must have no dims and no axes",
    ),
    ("rank-mismatch", lambda: ROWS.local_shape((8,)), 'sharding [{"x"}, {}] has 2 dims, shape (8,) has 1'),
    ("negative-priority", lambda: Sharding(XY, (DimSharding((), True, -1),)), "dim 0 has the negative priority -1"),
    (
        "needless-priority",
        lambda: Sharding(XY, (DimSharding(), DimSharding((), False, 1))),
        "dim 1 is empty and closed but has priority 1",
    ),
    ("unknown-axis", lambda: Sharding.of(XY, "z"), 'axis "z" is not in mesh <["x"=2, "y"=4]>'),
    ("unknown-axis", lambda: Sharding.of(XY, None, unreduced="z"), 'axis "z" is not in mesh <["x"=2, "y"=4]>'),
    ("duplicate-axis-ref", lambda: Sharding.of(XY, "x", "x"), 'axis "x" is used twice'),
    ("duplicate-axis-ref", lambda: Sharding.of(XY, "y:(1)2", replicated="y:(1)2"), 'axis "y":(1)2 is used twice'),
    (
        "mergeable-sub-axes",
        lambda: of_axes(Axis("y", 1, 2), Axis("y", 2, 2)),
        'sub-axes "y":(1)2 and "y":(2)2 side by side must be written as one',
    ),
    ("not-divisible", lambda: ROWS.check_divisible((5, 4)), "dim 0 with size 5 is not divisible by its 2 shards"),
    (
        "unsorted-axes",
        lambda: Sharding(XY, (), replicated=(Axis("y"), Axis("x"))),
        'replicated axes {"y", "x"} are not in the order of the mesh',
    ),
    (
        "unsorted-axes",
        lambda: Sharding(XY, (), unreduced=(Axis("y", 2, 2), Axis("y", 1, 2))),
        'unreduced axes {"y":(2)2, "y":(1)2} are not in the order of the mesh',
    ),
    ("axis-and-sub-axis", lambda: Sharding.of(XY, "y", "y:(1)2"), 'axis "y" is used both whole and in part'),
    ("sub-axis-pre-size", lambda: Sharding.of(XY, "y:(0)2"), 'sub-axis "y":(0)2 has a pre-size below 1'),
    ("sub-axis-pre-size", lambda: of_axes(Axis("y", -2, 2)), 'sub-axis "y":(-2)2 has a pre-size below 1'),
    ("sub-axis-size", lambda: Sharding.of(XY, "y:(2)1"), 'sub-axis "y":(2)1 has a size below 2'),
    ("sub-axis-size", lambda: of_axes(Axis("y", 1, -2)), 'sub-axis "y":(1)-2 has a size below 2'),
    ("sub-axis-divisor", lambda: Sharding.of(XY, "y:(1)3"), 'sub-axis "y":(1)3 does not divide its axis of size 4'),
    (
        "sub-axis-is-axis",
        lambda: of_axes(Axis("y", 1, 4)),
        'sub-axis "y":(1)4 is the whole axis; it must be written "y"',
    ),
    ("overlapping-sub-axes", lambda: Sharding.of(Y12, "y:(1)4", "y:(2)2"), 'sub-axes "y":(1)4 and "y":(2)2 overlap'),
    (
        "sub-axes-cannot-coexist",
        lambda: Sharding.of(Y12, "y:(1)2", "y:(3)4"),
        'no split of axis "y" has parts that end at [1, 2, 3, 12]',
    ),
    (
        "sub-axes-cannot-coexist",
        lambda: refined_mesh([Axis("y", 1, 4), Axis("y", 6, 2)], {"y": 12}),
        'no split of axis "y" has parts that end at [1, 4, 6, 12]',
    ),
    (
        "unknown-reduction",
        lambda: Sharding.of(XY, unreduced="x", reduction="mean"),
        "reduction 'mean' must be one of sum, avg, product, max, min, band, bor, bxor",
    ),
    (
        "unknown-rule",
        lambda: Sharding.of(XY, "x", uneven="floor"),
        "the rule for uneven dims 'floor' must be one of ceil, chunk",
    ),
    ("bad-argument", lambda: Sharding.of("x"), "what a sharding is on must be a Mesh, got: 'x'"),  # type: ignore[arg-type]
    ("bad-argument", lambda: Sharding.of(XY, 3), "axes must be a list, got: 3"),  # type: ignore[arg-type]
    ("bad-argument", lambda: Axis("y", 2), 'axis "y" has a pre-size without a size or the reverse'),
    ("bad-argument", lambda: Axis("y", 2.0, 2), 'a size of a sub-axis of "y" must be an integer, got: 2.0'),  # type: ignore[arg-type]
    (
        "bad-argument",
        lambda: Sharding.of(XY, unreduced="x", reduction="max").dual(),
        "a sharding with partial values under max has no dual",
    ),
    ("bad-shape", lambda: ROWS.box(0, (4, -1)), "dim 1 has size -1; it must be at least 0"),
    ("bad-shape", lambda: ROWS.box(0, (4, 1.5)), "the size of dim 1 must be an integer, got: 1.5"),  # type: ignore[arg-type]
    ("bad-shape", lambda: ROWS.box(0, 4), "a shape must be a list, got: 4"),  # type: ignore[arg-type]
    ("too-large", lambda: ROWS.box(0, (4, 2**62)), f"dim 1 has size {2**62}; it must be below 2**62"),
    ("unknown-device", lambda: ROWS.box(8, (4, 4)), 'device 8 is not in mesh <["x"=2, "y"=4]>'),
]

TEXTS: list[Row] = [
    (
        "unknown-mesh",
        lambda: rs.parse_sharding('#sdy.sharding<@m, [{"x"}]>', {"n": XY}),
        'the text refers to the mesh `@m`; given: `@n`, in #sdy.sharding<@m, [{"x"}]>',
    ),
    (
        "unknown-mesh",
        lambda: parse_module("%0 = #sdy.sharding<@m, []>"),
        "the text refers to the mesh `@m`; given: no mesh, in <@m, []>",
    ),
    (
        "different-meshes",
        lambda: rs.parse_sharding("{devices=[3]<=[3]}", XY),
        'the text is about 3 devices, mesh <["x"=2, "y"=4]> has 8, in {devices=[3]<=[3]}',
    ),
    ("syntax", lambda: rs.parse_mesh("x"), "expected `=` at column 2, found the end of the text\n  x\n   ^"),
    (
        "cannot-express",
        lambda: to_mlir_list(Sharding.of(XY, "y:(1)2")),
        'the list form has no sub-axes, but [{"y":(1)2}] uses "y":(1)2',
    ),
    (
        "cannot-express",
        lambda: to_xla(Sharding.of(XY, ("x", "y"), uneven="chunk")),
        'XLA\'s form has no chunks of chunks, as [{"x", "y"}], uneven=chunk cuts a dim',
    ),
    ("bad-argument", lambda: rs.parse_sharding(None), "a text must be a string, got: `None`"),  # type: ignore[arg-type]
]

ARGUMENTS: list[Row] = [
    (
        "unknown-dtype",
        lambda: rs.plan(ROWS, COLUMNS, (4, 4), "float31"),
        f"dtype 'float31' is not known; it must be one of {', '.join(sorted(DTYPES))}; did you mean float32",
    ),
    (
        "reduction-dtype",
        lambda: rs.plan(Sharding.of(XY, unreduced="x", reduction="avg"), Sharding.of(XY), (), "int32"),
        "avg is not defined for values of dtype int32",
    ),
    (
        "reduction-dtype",
        lambda: rs.numpy.identity("bor", np.dtype("float64")),
        "bor is not defined for values of dtype float64",
    ),
    (
        "bad-argument",
        lambda: rs.plan(3, COLUMNS, (4, 4)),
        "a sharding must be a Sharding, a text, or a sharding, a spec or placements of JAX or torch, got: 3",
    ),
    (
        "rank-mismatch",
        lambda: rs.plan(ROWS, Sharding.of(XY, "x"), (4, 4)),
        'sharding [{"x"}] has 1 dims, shape (4, 4) has 2',
    ),
    ("unknown-device", lambda: MOVE.received_bytes_on(9), "device 9 is neither in the source nor in the target"),
    ("unknown-device", lambda: MOVE.lower_bound_bytes_on(-1), "device -1 is neither in the source nor in the target"),
    ("unknown-device", lambda: MOVE.steps[0].received_bytes_on(9), "device 9 is in neither mesh of the step"),
    (
        "unknown-device",
        lambda: MOVE.steps[0].moves[0].exchange.incoming(9),
        "device 9 is in neither mesh of the exchange",
    ),
    ("unknown-device", lambda: boxes(ROWS, COLUMNS, (4, 4)).outgoing(9), "device 9 is in neither mesh of the exchange"),
    (
        "too-large",
        lambda: rs.plan(ROWS, COLUMNS, (2**31, 2**31), "float32"),
        f"shape ({2**31}, {2**31}) of float32 on 8 devices is beyond 2**62 bytes",
    ),
    (
        "too-large",
        lambda: rs.numpy.scatter(np.zeros(4), Sharding.of(BIG, "x")),
        f"{10**12} devices are too many to list one by one",
    ),
    (
        "too-large",
        lambda: boxes(Sharding.of(BIG, "x"), Sharding.of(BIG, "y"), (4,)),
        f"boxes of {10**12} devices are too many to compare",
    ),
]

PLANS: list[Row] = [
    (
        "bad-step",
        lambda: Step(Reshard.of(ROWS, COLUMNS, (4, 4), F32), "AllGather"),
        '[{"x"}, {}] -> [{}, {"x"}] is a step of kind AllToAll, not AllGather',
    ),
    (
        "bad-step",
        lambda: Step(Reshard.of(Sharding.of(XY, "x", None), Sharding.of(XY, None, None, unreduced="y"), (4, 4), "f32")),
        '[{"x"}, {}] -> [{}, {}], unreduced={"y"} moves values while they become partial',
    ),
    (
        "bad-step",
        lambda: Step(Reshard.of(Sharding.of(XY, "x", None), Sharding.of(XY, None, "x", unreduced="y"), (4, 4), "f32")),
        '[{"x"}, {}] -> [{}, {"x"}], unreduced={"y"} moves values while they become partial',
    ),
    (
        "broken-chain",
        lambda: Plan(Reshard.of(ROWS, COLUMNS, (4, 4), F32), ()),
        f"the steps end at {ROWS}, not at {COLUMNS}",
    ),
    (
        "broken-chain",
        lambda: Plan(Reshard.of(COLUMNS, COLUMNS, (4, 4), F32), MOVE.steps),
        'step 1 starts at [{"x"}, {}], the one before ends at [{}, {"x"}]',
    ),
    (
        "broken-chain",
        lambda: Plan(Reshard.of(ROWS, ROWS, (4, 4), F32), MOVE.steps),
        f"the steps end at {COLUMNS}, not at {ROWS}",
    ),
    (
        "broken-chain",
        lambda: Plan(Reshard.of(ROWS, COLUMNS, (8, 4), F32), MOVE.steps),
        "step 1 is for another shape or dtype than the plan",
    ),
    (
        "no-plan",
        lambda: rs.plan(Sharding.of(XY, "x"), Sharding.of(XY, None, unreduced="x", reduction="avg"), (4,)),
        '[{"x"}] -> [{}], unreduced=avg{"x"} would make parts partial under avg; only whole values can be',
    ),
    (
        "no-plan",
        lambda: exchange(Sharding.of(XY), Sharding.of(XY, unreduced="x"), ()),
        "an exchange cannot make values partial along digits where they were not",
    ),
    (
        "bad-plan-text",
        lambda: Plan.from_json("x"),
        "a plan must be JSON text: Expecting value: line 1 column 1 (char 0)",
    ),
    ("bad-plan-text", lambda: Plan.from_json("[]"), "a plan must have the schema 'reshard.plan/2', got: None"),
    (
        "bad-plan-text",
        lambda: Plan.from_json(changed(MOVE.to_json(), schema="reshard.plan/0")),
        "a plan must have the schema 'reshard.plan/2', got: 'reshard.plan/0'",
    ),
    (
        "bad-plan-text",
        lambda: Plan.from_json('{"schema": "reshard.plan/2"}'),
        "a plan lacks a field or has one of another type: 'shape'",
    ),
    (
        "bad-plan-text",
        lambda: Plan.from_json(changed(MOVE.to_json(), received_bytes=1)),
        "received_bytes in the text is not what the plan gives",
    ),
    ("bad-tiles", lambda: rs.numpy.run(MOVE, []), "tiles must be a mapping from device to array, got: list"),  # type: ignore[arg-type]
    (
        "bad-tiles",
        lambda: rs.numpy.run(MOVE, {d: t for d, t in TILES.items() if d != 3}),
        "the tile of device 3 is missing",
    ),
    (
        "bad-tiles",
        lambda: rs.numpy.run(MOVE, {**TILES, 3: TILES[3].T}),
        "the tile of device 3 has shape (4, 2); it must be (2, 4)",
    ),
    (
        "bad-tiles",
        lambda: rs.numpy.run(MOVE, {**TILES, 3: TILES[3].astype("float64")}),
        "tiles must all be of dtype float32, got: float32, float64",
    ),
    (
        "bad-tiles",
        lambda: rs.numpy.run(MOVE, {d: t.astype("float64") for d, t in TILES.items()}),
        "tiles must all be of dtype float32, got: float64",
    ),
    (
        "bad-tiles",
        lambda: rs.numpy.gather({**TILES, 3: TILES[3].astype("float64")}, ROWS, (4, 4)),
        "tiles must all be of dtype one kind, got: float32, float64",
    ),
]


def boxes(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> Any:
    return by_boxes(Tiling.of(source, shape), Tiling.of(target, shape))


def exchange(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> Any:
    return find_exchange(Tiling.of(source, shape), Tiling.of(target, shape))


TABLE = [*MESHES, *SHARDINGS, *TEXTS, *ARGUMENTS, *PLANS]


def test_every_code_has_a_row() -> None:
    apart = FILE_CODES | NETWORK_CODES | PROGRAM_CODES | PROCESS_CODES | TILE_CODES
    assert {code for code, *_ in TABLE} == set(CODES) - apart


@pytest.mark.parametrize("row", TABLE, ids=[f"{number}-{row[0]}" for number, row in enumerate(TABLE)])
def test_the_code_and_the_whole_sentence(row: Row) -> None:
    code, cause, sentence = row
    with pytest.raises(ReshardError) as refusal:
        cause()
    assert (refusal.value.code, str(refusal.value)) == (code, sentence)


# What is of the wrong kind.

JUNK: list[Any] = [
    *(None, True, -1, 0, 2**63, 2**200, 1.5, float("nan"), float("inf"), 1j, b"x"),
    *("", "x", "?", "y:(1)2", "y:(0)2", "y:(-1)2", "y:(1)0", "\ud800", "x" * 100),
    *((), [], {}, [None], ["x"], [[1]], (1, "a"), {"x": None}, {None: 1}, {"x"}, [2**200], [-1], [1.5], [True]),
    *(object(), lambda: None, int, np.int64(3), np.float64(1.5), np.array(3), np.array([4, 4]), np.array([1.5])),
    *(np.array(["a"]), np.array([[1]]), np.zeros((0, 3)), np.array([None]), np.array([True]), np.datetime64("nat")),
    *(XY, ROWS, Sharding.of(Mesh.of()), Mesh.of(), Sharding.of(Mesh.of(device_ids=(3,))), MOVE, F32, TILES),
    *(Axis("x"), Axis("z"), Axis("y", 3, 2), DimSharding.of("x")),
    *(Sharding.of(XY, None, None, unreduced="x", reduction="max"), Sharding.of(Mesh.of(z=5), "z", None)),
]
AXIS, HALF = Axis("x"), Axis("y", 1, 2)

CALLS: dict[str, tuple[Callable[..., object], tuple[Any, ...]]] = {
    "Mesh.of": (lambda axes, ids: Mesh.of(axes, device_ids=ids), ({"x": 2}, (1, 0))),
    "Mesh.of by keyword": (lambda size: Mesh.of(x=size), (2,)),
    "Mesh.of pairs": (lambda name, size: Mesh.of([(name, size)]), ("x", 2)),
    "Mesh.of ids": (lambda one, two: Mesh.of(x=2, device_ids=[one, two]), (0, 1)),
    "position_of": (XY.position_of, (3,)),
    "position_of among ids": (Mesh.of(x=2, device_ids=(1, 0)).position_of, (1,)),
    "device_at": (XY.device_at, (3,)),
    "coordinates": (XY.coordinates, (3,)),
    "in a mesh": (lambda device: device in XY, (3,)),
    "Axis.of": (Axis.of, ("x",)),
    "DimSharding.of": (DimSharding.of, ("x", "?")),
    "DimSharding.of priority": (lambda priority: Sharding.of(XY, DimSharding.of("x", priority=priority)), (1,)),
    "Sharding.of": (Sharding.of, (XY, "x", None)),
    "Sharding.of in a dim": (lambda axis, other: Sharding.of(XY, [axis, other]), ("x", "y")),
    "Sharding.of replicated": (lambda axes: Sharding.of(XY, replicated=axes), ("x",)),
    "Sharding.of unreduced": (lambda axes: Sharding.of(XY, unreduced=axes), ("x",)),
    "Sharding.of reduction": (lambda name: Sharding.of(XY, unreduced="x", reduction=name), ("max",)),
    "Sharding.of uneven": (lambda name: Sharding.of(XY, "x", uneven=name), ("chunk",)),
    "box": (ROWS.box, (3, (4, 4))),
    "local_shape": (ROWS.local_shape, ((4, 4),)),
    "check_divisible": (ROWS.check_divisible, ((4, 4),)),
    "is_equivalent_to": (ROWS.is_equivalent_to, (COLUMNS, (4, 4))),
    "checked_shape": (checked_shape, ((4, 4),)),
    "plan": (rs.plan, (ROWS, COLUMNS, (4, 4), "float32")),
    "Reshard.of": (Reshard.of, (ROWS, COLUMNS, (4, 4), "float32")),
    "received_bytes_on": (MOVE.received_bytes_on, (3,)),
    "lower_bound_bytes_on": (MOVE.lower_bound_bytes_on, (3,)),
    "Plan.from_json": (Plan.from_json, (MOVE.to_json(),)),
    "dtype_named": (dtype_named, ("f32",)),
    "scatter": (rs.numpy.scatter, (np.zeros((4, 4)), ROWS)),
    "gather": (rs.numpy.gather, (TILES, ROWS, (4, 4))),
    "plan with options": (
        lambda network, basis, limit: rs.plan(ROWS, COLUMNS, (4, 4), network=network, basis=basis, memory_limit=limit),
        (None, "any", 10_000),
    ),
    "run": (rs.numpy.run, (MOVE, TILES)),
    "run with a tile": (lambda tile: rs.numpy.run(MOVE, {**TILES, 3: tile}), (TILES[3],)),
    "run with counts": (lambda counts: rs.numpy.run(MOVE, TILES, received_bytes=counts), ({},)),
    "parse_mesh": (rs.parse_mesh, ("x=2",)),
    "parse_sharding": (rs.parse_sharding, ('[{"x"}]', XY, 1)),
}
"""What people call, with arguments that are right."""

BUILT: dict[str, tuple[Callable[..., object], tuple[Any, ...]]] = {
    "Axis": (Axis, ("y", 1, 2)),
    "Mesh": (Mesh, ((("x", 2),), (1, 0))),
    "Mesh axis": (lambda name, size: Mesh(((name, size),)), ("x", 2)),
    "Mesh ids": (lambda one, two: Mesh((("x", 2),), (one, two)), (1, 0)),
    "DimSharding": (lambda *fields: Sharding(XY, (DimSharding(*fields),)), ((AXIS,), True, 1)),
    "Sharding": (Sharding, (XY, (DimSharding.of("x"),), (HALF,), (), "sum", "ceil")),
    "Sharding dim": (lambda dim: Sharding(XY, (dim,)), (DimSharding.of("x"),)),
    "Sharding axis": (lambda axis: Sharding(XY, (), (axis,)), (AXIS,)),
    "Reshard": (Reshard, (ROWS, COLUMNS, (4, 4), F32)),
    "Step": (Step, (MOVE.reshard, "AllToAll", 0, 1)),
    "Options": (Options, (None, "any", 10_000)),
    "Plan": (Plan, (MOVE.reshard, MOVE.steps, Options())),
}
"""What is built from fields that stand as they are given."""


def outcome(call: Callable[..., object], arguments: tuple[Any, ...]) -> str | None:
    """What is wrong with the way a call ends; None where it answers or refuses."""
    try:
        call(*arguments)
    except ReshardError as refusal:
        sentence = str(refusal)
        whole = bool(sentence) and not sentence.endswith(".")
        return None if whole else f"the sentence is {sentence[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def as_value(build: Callable[..., object]) -> Callable[..., object]:
    """A call that uses what is built as people use values: as a key, printed, on a device."""

    def built(*arguments: Any) -> object:
        value = build(*arguments)
        hash(value), str(value), repr(value)
        if isinstance(value, Mesh | Sharding):
            mesh = value if isinstance(value, Mesh) else value.mesh
            return [mesh.coordinates(device) for device in mesh.devices] if mesh.size < 100 else None
        return value

    return built


def wrong_calls(call: Callable[..., object], right: tuple[Any, ...]) -> list[str]:
    """Each argument in turn replaced by each of the junk."""
    found = []
    for place, junk in product(range(len(right)), JUNK):
        problem = outcome(call, (*right[:place], junk, *right[place + 1 :]))
        if problem is not None:
            found.append(f"argument {place} {junk!r:.60}: {problem}")
    return found


@pytest.mark.parametrize("name", [*CALLS, *BUILT])
def test_the_right_arguments_are_taken(name: str) -> None:
    call, right = {**CALLS, **BUILT}[name]
    call(*right)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_of_the_wrong_kind_is_refused(name: str) -> None:
    found = wrong_calls(*CALLS[name])
    assert not found, f"{len(found)} of them: " + "\n".join(found[:12])


@pytest.mark.parametrize("name", BUILT)
def test_what_is_built_of_the_wrong_kind_is_refused(name: str) -> None:
    build, right = BUILT[name]
    found = wrong_calls(as_value(build), right)
    assert not found, f"{len(found)} of them: " + "\n".join(found[:12])


ODD_PARTS = [Axis("y", *ends) for ends in product((1, 2, 3, 5), (1, 2, 4, 5))]


def test_impossible_parts_of_an_axis_are_refused_where_they_are_used() -> None:
    """An axis by itself may be any of sizes from 1; a sharding has only those that its mesh allows."""
    sizes = {"y": 12}
    for one, two in product(ODD_PARTS, repeat=2):
        for build in (
            lambda: Sharding.of(Y12, [one, two]),  # noqa: B023
            lambda: Sharding.of(Y12, one, unreduced=[two]),  # noqa: B023
            lambda: Sharding.of(Y12, replicated=[one, two]),  # noqa: B023
            lambda: Sharding(Y12, (DimSharding((one,)), DimSharding((two,)))),  # noqa: B023
            lambda: refined_mesh([one, two], sizes),  # noqa: B023
        ):
            problem = outcome(build, ())
            assert problem is None, f"{one} and {two}: {problem}"


def test_numbers_of_numpy_are_numbers() -> None:
    two, four = np.int64(2), np.int32(4)
    mesh = Mesh.of({"x": two}, device_ids=np.array([1, 0]))
    assert mesh == Mesh.of(x=2, device_ids=(1, 0))
    assert repr(mesh) == "Mesh.of(x=2, device_ids=[1, 0])"
    assert mesh.position_of(np.int64(1)) == 0
    assert np.uint8(1) in mesh
    rows = Sharding.of(mesh, "x", None)
    for shape in ((four, two), np.array([4, 2]), [4, 2]):
        assert repr(rows.box(np.int16(1), shape)) == "Box([(0, 2), (0, 2)])"
        assert repr(rows.local_shape(shape)) == "(2, 2)"
        made = rs.plan(rows, Sharding.of(mesh, None, "x"), shape, np.float32)
        assert repr(made.shape) == "(4, 2)"
        assert made.received_bytes_on(np.int64(1)) == 8
    tiles = {np.int64(device): tile for device, tile in rs.numpy.scatter(np.ones((4, 2), "f4"), rows).items()}
    assert sorted(rs.numpy.run(made, tiles)) == [0, 1]


def test_a_shape_may_come_only_once() -> None:
    """A shape is read once, so an iterator is as good as a tuple."""
    assert ROWS.box(0, iter((4, 4))) == ROWS.box(0, (4, 4))  # type: ignore[arg-type]
    assert ROWS.local_shape(iter((4, 4))) == (2, 4)  # type: ignore[arg-type]
    assert rs.plan(ROWS, COLUMNS, iter((4, 4))) == rs.plan(ROWS, COLUMNS, (4, 4))  # type: ignore[arg-type]
    assert not ROWS.is_equivalent_to(COLUMNS, iter((4, 4)))  # type: ignore[arg-type]


# Limits.


def sizes_at_the_limit() -> list[int]:
    return [2**30, 2**31, 2**31 + 1, 2**59, 2**60, 2**61, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64, 2**100]


@pytest.mark.parametrize("size", sizes_at_the_limit(), ids=lambda size: f"2**{size.bit_length() - 1}")
@pytest.mark.parametrize("dtype", ["int8", "complex128"])
def test_sizes_near_the_limit_are_exact_or_refused(size: int, dtype: str) -> None:
    """No figure wraps around: what is answered is what unbounded integers give."""
    wide = dtype_named(dtype).itemsize
    line = Mesh.of(x=2)
    permuted = Mesh.of(x=3, device_ids=(2, 0, 1))
    pairs = [
        (Sharding.of(line, "x"), Sharding.of(line, None)),
        (Sharding.of(line, None), Sharding.of(line, "x")),
        (Sharding.of(line, None), Sharding.of(Mesh.of(x=3), "x")),
        (Sharding.of(permuted, "x"), Sharding.of(Mesh.of(x=3), "x", uneven="chunk")),
        (Sharding.of(line, "x"), Sharding.of(line, "x")),
    ]
    for source, target in pairs:
        try:
            made = rs.plan(source, target, (size,), dtype)
            figures = [made.received_bytes, made.total_received_bytes, made.lower_bound_bytes, made.peak_bytes]
            per_device = [made.received_bytes_on(device) for device in made.devices]
            repr(made), str(made), made.to_json()
        except ReshardError as refusal:
            assert refusal.code == "too-large"  # noqa: PT017
            assert size * wide * 3 >= LIMIT
            continue
        lacking = []
        for device in made.devices:
            boxes_ = [side.box(device, (size,))[0] if device in side.mesh else (0, 0) for side in (target, source)]
            (start, stop), (low, high) = boxes_
            lacking.append((stop - start - max(0, min(stop, high) - max(start, low))) * wide)
        assert per_device == lacking
        assert figures[:3] == [max(lacking), sum(lacking), max(lacking)]
        assert figures[3] >= 0


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**61, 2**61), (2**31,) * 3, (0, 2**61), (2**61, 0, 2**61)])
def test_products_of_sizes_do_not_wrap(shape: tuple[int, ...]) -> None:
    line = Mesh.of(x=2)
    whole = Sharding.of(line, *([None] * len(shape)))
    cut = Sharding.of(line, "x", *([None] * (len(shape) - 1)))
    for source, target in product((whole, cut), repeat=2):
        try:
            made = rs.plan(source, target, shape, "int8")
            figures = [made.received_bytes, made.lower_bound_bytes, made.total_received_bytes, made.peak_bytes]
            bounds = [made.lower_bound_bytes_on(device) for device in (0, 1)]
        except ReshardError as refusal:
            assert refusal.code == "too-large"  # noqa: PT017
            continue
        assert source == target or 0 in shape
        assert figures[:3] == [0, 0, 0]
        assert bounds == [0, 0]
        assert figures[3] >= 0


def test_a_mesh_of_a_million_million_devices() -> None:
    """What follows from the digits is answered; what would list the devices is refused."""
    shape = (10**6, 10**6)
    made = rs.plan(Sharding.of(BIG, "x", None), Sharding.of(BIG, None, "x"), shape, "float32")
    assert [step.kind for step in made.steps] == ["AllToAll"]
    assert made.received_bytes == made.lower_bound_bytes == 4 * (10**6 - 1)
    assert made.rounds == 10**6 - 1
    assert made.total_received_bytes == 10**12 * 4 * (10**6 - 1)
    assert str(made).startswith("1000000 x 1000000 float32 on 1000000000000 devices\n")
    assert BIG.coordinates(10**11 + 7) == (10**5, 7)
    assert Sharding.of(BIG, "x").box(10**12 - 1, (10**6,)) == rs.Box([(10**6 - 1, 10**6)])
    for cause in (
        lambda: made.devices,
        lambda: rs.plan(Sharding.of(BIG, "x", None), Sharding.of(BIG, None, "x"), (7, 7)).received_bytes,
        lambda: rs.numpy.scatter(np.zeros(shape[:1], "int8"), Sharding.of(BIG, "x")),
        lambda: rs.numpy.gather({}, Sharding.of(BIG, "x"), (4,)),
        lambda: rs.numpy.run(made, {}),
        lambda: Sharding.of(BIG, "x").is_equivalent_to(Sharding.of(Mesh.of(z=10**12), "z"), (7,)),
    ):
        with pytest.raises(ReshardError) as refusal:
            cause()
        assert refusal.value.code == "too-large"
    assert not Sharding.of(BIG, "x").is_equivalent_to(Sharding.of(BIG, "y"), (10**12,))


def test_tiles_beyond_the_memory_are_refused() -> None:
    array = np.broadcast_to(np.int8(1), (2**50,))  # one byte, seen a million times a thousand million times
    with pytest.raises(ReshardError) as refusal:
        rs.numpy.scatter(array, Sharding.of(Mesh.of(x=2), None))
    assert refusal.value.code == "too-large"


@contextmanager
def within_seconds(limit: int) -> Iterator[None]:
    """Stop what takes longer, in place of waiting for it."""

    def stop(*_: object) -> None:
        raise AssertionError(f"it takes longer than {limit} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no alarm on this system")
def test_reductions_over_many_axes_do_not_hang() -> None:
    """Twelve axes and four dims that nothing divides: 4 ** 12 ways to scatter in place, none of which fits."""
    names = [f"a{number}" for number in range(12)]
    mesh = Mesh.of(dict.fromkeys(names, 2))
    dims: list[None] = [None] * 4
    with within_seconds(20):
        made = rs.plan(Sharding.of(mesh, *dims, unreduced=names), Sharding.of(mesh, *dims), (7,) * 4, "float32")
    assert made.total_received_bytes >= made.total_lower_bound_bytes


@pytest.mark.parametrize("fields", [{"near": -1}, {"near": "x"}, {"chunks": 0}, {"chunks": -1}, {"chunks": 1.5}])
def test_a_step_has_a_stride_and_a_count(fields: dict[str, Any]) -> None:
    with pytest.raises(ReshardError) as refusal:
        Step(Reshard.of(Sharding.of(Mesh.of(x=4), "x"), Sharding.of(Mesh.of(x=4), None), (8,), "f32"), **fields)
    assert refusal.value.code == "bad-argument"


@pytest.mark.parametrize("near", [3, 5, 16, 10**9])
def test_a_stride_that_is_none_of_the_mesh_changes_no_byte(near: int) -> None:
    ends = Sharding.of(Mesh.of(x=4), "x"), Sharding.of(Mesh.of(x=4), None)
    plain, odd = Step(Reshard.of(*ends, (8,), "f32")), Step(Reshard.of(*ends, (8,), "f32"), near=near)
    assert (odd.kind == "Slice") is (odd.received_bytes == 0)
    assert odd.received_bytes == plain.received_bytes
    plan = Plan(odd.reshard, (odd,))
    assert plan.received_bytes_on(1) == 24
    given = rs.numpy.scatter(np.arange(8, dtype="f4"), ends[0])
    assert all(np.array_equal(t, np.arange(8)) for t in rs.numpy.run(plan, given).values())


def test_a_step_that_is_too_large_is_no_step() -> None:
    with pytest.raises(ReshardError, match="is beyond 2\\*\\*62 bytes") as refusal:
        Step(Reshard.of(Sharding.of(XY, "x"), Sharding.of(XY, None), (2**60,), "float64"))
    assert refusal.value.code == "too-large"
    with pytest.raises(ReshardError) as refusal:
        combine_then_gather(Tiling.of(Sharding.of(XY), ()), Tiling.of(Sharding.of(XY, unreduced="x"), ()))
    assert refusal.value.code == "no-plan"


# Plans as text.

REDUCTION = rs.plan(Sharding.of(XY, None, unreduced="x"), Sharding.of(XY, "y"), (8,), "bf16")


@pytest.mark.parametrize("made", [MOVE, REDUCTION], ids=["move", "reduction"])
def test_a_plan_in_which_anything_is_changed_is_refused(made: Plan) -> None:
    given = json.loads(made.to_json())
    junk: list[Any] = [None, -1, 1.5, "x", [], {}, [None], {"x": 1}, True, 2**70, "[]", [[]], "#sdy.sharding<@m, []>"]
    for field, value in product(given, junk):
        is_kept = (field, value) == ("memory_limit", 2**70)
        if given[field] != value and field != "reason" and not is_kept:  # a reason is for people
            assert_refused({**given, field: value}, f"{field}: {value!r}")
    for field, value in product(given["steps"][0], junk):
        if given["steps"][0][field] != value:
            assert_refused({**given, "steps": [{**given["steps"][0], field: value}]}, f"step {field}: {value!r}")
    for steps in ([], given["steps"] * 2, [None], ["x"], [[]], [{}]):
        assert_refused({**given, "steps": steps}, f"{steps!r}")
    for field in ("schema", "source", "target", "shape", "dtype", "steps"):
        assert_refused({name: value for name, value in given.items() if name != field}, f"without {field}")


def assert_refused(given: Any, what: str) -> None:
    try:
        Plan.from_json(json.dumps(given))
    except ReshardError:
        return
    except Exception as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")
    pytest.fail(f"{what} is taken")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "1",
        '"x"',
        "[" * 100_000,
        "{" * 1000,
        '{"schema": "reshard.plan/2"',
        "NaN",
        "\x00",
        b"\xff",
        "\ud800",
        '{"schema": ' + "[" * 100_000,
    ],
)
def test_texts_that_are_no_plan(text: Any) -> None:
    with pytest.raises(ReshardError) as refusal:
        Plan.from_json(text)
    assert refusal.value.code == "bad-plan-text"


def test_plans_of_wrong_parts_cannot_be_built() -> None:
    """A plan is a proof: what does not lead from its source to its target cannot be held."""
    halves = Sharding.of(XY, "x"), Sharding.of(XY, None), Sharding.of(XY, "y")
    steps = [Step(Reshard.of(*ends, (8,), "f32")) for ends in (halves[:2], halves[1:])]
    assert Plan(Reshard.of(halves[0], halves[2], (8,), F32), tuple(steps)).steps == tuple(steps)
    for source, target, chain in [
        (halves[0], halves[2], steps[:1]),
        (halves[0], halves[2], steps[1:]),
        (halves[0], halves[2], steps[::-1]),
        (halves[0], halves[1], steps),
        (halves[1], halves[2], steps),
        (halves[0], halves[2], []),
    ]:
        with pytest.raises(ReshardError) as refusal:
            Plan(Reshard.of(source, target, (8,), F32), tuple(chain))
        assert refusal.value.code == "broken-chain"
    with pytest.raises(ReshardError) as refusal:
        replace(steps[0], kind="Slice")
    assert refusal.value.code == "bad-step"
    with pytest.raises(ReshardError) as refusal:
        replace(steps[0], reshard=replace(steps[0].reshard, target=halves[2]))
    assert refusal.value.code == "bad-step"
