"""The MLIR text: letter by letter, before Shardy's verifier, and through its lowering."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
import shardy

from reshard.axis import Axis
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.plans.mlir import write_sdy, write_shard
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import KINDS, Step, shortest_chain

MESH = Mesh.of(x=2, y=4, z=2)
F32 = dtype_named("f32")


def text_between(*points: Sharding, size: int = 16, shape=None, writer=write_sdy, dtype="f32") -> str:
    """What is written for one step from each point to the next, on a cube unless a shape is given."""
    shape = shape or (size,) * len(points[0].dims)
    steps = [Step(Reshard.of(a, b, shape, dtype)) for a, b in itertools.pairwise(points)]
    return writer(Reshard.of(points[0], points[-1], shape, dtype), steps)


def operations(text: str) -> list[str]:
    return [line.strip().partition(" = ")[2] for line in text.splitlines() if re.match(r"\s*%\d+ = ", line)]


def names(text: str) -> list[str]:
    return [line.split()[0] for line in operations(text)]


def of(*dims, **keywords) -> Sharding:
    return Sharding.of(MESH, *dims, **keywords)


SDY = [
    (of("x", "y"), of("x", None), 'all_gather [{}, {"y"}]'),
    (of(("x", "y"), "z"), of(("x", "y:(1)2"), None), 'all_gather [{"y":(2)2}, {"z"}]'),
    (of("x", None), of(("x", "y"), "z"), 'all_slice [{"y"}, {"z"}]'),
    (of("y:(1)2"), of("y"), 'all_slice [{"y":(2)2}]'),
    (of(("x", "y"), None), of("x", "y"), 'all_to_all [{"y"}: 0->1]'),
    (of("x", "y", None, None), of(None, None, "y", "x"), 'all_to_all [{"x"}: 0->3, {"y"}: 1->2]'),
    (of("x", "z"), of("z", "x"), "collective_permute"),
    (of("z", "x", unreduced="y"), of(("z", "y"), "x"), 'reduce_scatter [{"y"}, {}]'),
    (of("x", unreduced=("y", "z")), of("x", unreduced="z"), 'all_reduce {"y"}'),
    (of("x", "y"), of("x", None, unreduced="y"), 'sharded_to_unreduced [{}, {"y"}]'),
    (of("x"), of("x", unreduced=("y", "z")), 'replicated_to_unreduced {"y", "z"}'),
]
NEWER = [
    (of(None, unreduced="x", reduction="max"), of(None), 'all_reduce max {"x"}'),
    (of(("y", "z"), unreduced="x", reduction="min"), of(("y", "z", "x")), 'reduce_scatter min [{"x"}]'),
]


@pytest.mark.parametrize(("source", "target", "operation"), SDY + NEWER)
def test_sdy_operation(source, target, operation):
    text = text_between(source, target)
    kind = "tensor<" + "16x" * len(source.dims) + "f32>"
    assert operations(text) == [f"sdy.{operation} %arg0 out_sharding=<@mesh, {target.text()}> : {kind}"]
    assert f"(%arg0: {kind} {{sdy.sharding = #sdy.sharding<@mesh, {source.text()}>}})" in text


def test_max_stands_before_the_unreduced_axes():
    text = text_between(*NEWER[0][:2])
    assert 'unreduced=max{"x"}>})' in text


def test_moves_into_one_dim_are_several_operations():
    text = text_between(of("x", "y", None), of(None, None, ("x", "y")))
    assert operations(text) == [
        'sdy.all_to_all [{"x"}: 0->2] %arg0 out_sharding=<@mesh, [{}, {"y"}, {"x"}]> : tensor<16x16x16xf32>',
        'sdy.all_to_all [{"y"}: 1->2] %0 out_sharding=<@mesh, [{}, {}, {"x", "y"}]> : tensor<16x16x16xf32>',
    ]


def test_both_ways_to_become_partial_are_two_operations():
    text = text_between(of("x"), of(None, unreduced=("x", "z")))
    assert names(text) == ["sdy.sharded_to_unreduced", "sdy.replicated_to_unreduced"]


def test_axes_of_size_one_go_along():
    mesh = Mesh.of(u=1, x=2)
    text = text_between(Sharding.of(mesh, ("u", "x")), Sharding.of(mesh, "u"))
    assert operations(text) == ['sdy.all_gather [{"x"}] %arg0 out_sharding=<@mesh, [{"u"}]> : tensor<16xf32>']
    text = text_between(Sharding.of(mesh, None), Sharding.of(mesh, ("x", "u")))
    assert operations(text)[0].startswith('sdy.all_slice [{"x", "u"}]')


def test_axes_of_size_one_that_are_in_the_way_leave_and_come_back():
    mesh = Mesh.of(u=1, x=2)
    ends = Sharding.of(mesh, ("x", "u"), None), Sharding.of(mesh, "u", "x")
    assert names(text_between(*ends)) == ["sdy.collective_permute", "sdy.all_to_all", "sdy.collective_permute"]
    assert names(text_between(*ends, writer=write_shard)) == ["shard.all_to_all"]


def test_two_orders_of_devices_are_two_meshes():
    other = Mesh.of(x=2, y=4, z=2, device_ids=reversed(range(16)))
    text = text_between(of("x"), Sharding.of(other, "x"))
    assert "  sdy.mesh @mesh = " in text
    assert "  sdy.mesh @mesh_1 = " in text
    assert operations(text) == ['sdy.collective_permute %arg0 out_sharding=<@mesh_1, [{"x"}]> : tensor<16xf32>']


def test_no_steps_return_the_argument():
    text = write_sdy(Reshard.of(of("x", replicated="y"), of("x"), (8,), "f32"), ())
    assert operations(text) == []
    assert "return %arg0 : tensor<8xf32>" in text
    assert 'replicated={"y"}>}' in text


SHARD = [
    (of("x", "y"), of("x", None), ["all_gather on [1] gather_axis = 1: 8x4 -> 8x16"]),
    (
        of(("z", "x"), "y"),
        of(None, None),
        ["all_gather on [2, 0] gather_axis = 0: 4x4 -> 16x4", "all_gather on [1] gather_axis = 1: 16x4 -> 16x16"],
    ),
    (of("x", None), of(("x", "y"), None), ["all_slice on [1] slice_axis = 0: 8x16 -> 2x16"]),
    (of("x", None), of(None, "x"), ["all_to_all on [0] split_axis = 1 concat_axis = 0: 8x16 -> 16x8"]),
    (of(None, "x", unreduced="y"), of(None, "x"), ["all_reduce on [1]: 16x8 -> 16x8"]),
    (
        of("x", "z", unreduced="y", reduction="avg"),
        of("x", ("z", "y")),
        ["reduce_scatter on [1] reduction = average scatter_dim = 1: 8x8 -> 8x2"],
    ),
]


@pytest.mark.parametrize(("source", "target", "wanted"), SHARD)
def test_shard_operation(source, target, wanted):
    """Written by hand in short: the axes of the grid, what is told besides, the tile before and after."""
    text = text_between(source, target, writer=write_shard)
    short = [
        re.sub(
            r"shard\.(\w+) %\w+ on @mesh grid_axes = (.*) : tensor<(.*)xf32> -> tensor<(.*)xf32>",
            r"\1 on \2: \3 -> \4",
            line,
        )
        for line in operations(text)
    ]
    assert short == wanted
    assert "shard.grid @mesh(shape = 2x4x2)" in text


def test_the_all_to_all_that_mlir_documents():
    """6 x 6 on 3 devices, from rows to columns: a tile of 2 x 6 becomes one of 6 x 2."""
    mesh = Mesh.of(a=3)
    ends = Sharding.of(mesh, "a", None), Sharding.of(mesh, None, "a")
    text = text_between(*ends, shape=(6, 6), writer=write_shard, dtype="int8")
    arguments = "on @mesh grid_axes = [0] split_axis = 1 concat_axis = 0"
    assert operations(text) == [f"shard.all_to_all %arg0 {arguments} : tensor<2x6xi8> -> tensor<6x2xi8>"]


BASIS = '; a plan in the basis "collectives" can be written'
ODD = Sharding.of(Mesh.of(x=2, device_ids=(8, 9)), "x")
CHUNKS = of(("x", "z"), uneven="chunk")
REFUSED = [
    (write_sdy, of("y", None), of("x", "y"), f": it is no collective but an exchange of pieces{BASIS}"),
    (write_sdy, of(("y", "x")), of("x"), f": it is no collective but an exchange of pieces{BASIS}"),
    (write_sdy, of("x", unreduced="y"), of("z", unreduced="y"), ": a permutation does not look at unreduced axes"),
    (write_sdy, of(None, unreduced="x", reduction="product"), of(None), ", which reduces by sum, max and min alone"),
    (
        write_sdy,
        of(None),
        of(None, unreduced="x", reduction="max"),
        ": values become partial under sum alone, not under max",
    ),
    (write_sdy, ODD, replace(ODD, dims=of(None).dims), "in the sdy dialect, which knows meshes of all devices alone"),
    (write_sdy, CHUNKS, of(None), "in chunks of chunks, which the sdy dialect does not know"),
    (write_shard, of("x", "z"), of("z", "x"), ": it has no operation that permutes whole tiles"),
    (write_shard, of("x"), of(None, unreduced="x"), ": it has no operation that makes values partial"),
    (
        write_shard,
        of("y"),
        of("y:(1)2"),
        'sub-axis "y":(1)2 cannot be written in the shard dialect, whose axes are whole',
    ),
    (write_shard, ODD, replace(ODD, dims=of(None).dims), "whose grid is one mesh in the order 0, 1, 2"),
]


@pytest.mark.parametrize(("writer", "source", "target", "sentence"), REFUSED)
def test_refusals(writer, source, target, sentence):
    with pytest.raises(ReshardError) as caught:
        text_between(source, target, writer=writer, size=17 if source is CHUNKS else 16)
    assert caught.value.code == "no-plan"
    assert str(caught.value).endswith(sentence)


def test_a_refusal_says_which_step():
    with pytest.raises(ReshardError, match=r"^step 2, Exchange from \[\{\}, \{\}\]|^step 2, Exchange from "):
        text_between(of("x", "z"), of("x", None), of("y", "x"))


def test_uneven_tiles_are_refused_in_the_shard_dialect_alone():
    ends = of("x"), of(None)
    assert "tensor<9xf32>" in text_between(*ends, size=9)
    with pytest.raises(ReshardError) as caught:
        text_between(*ends, size=9, writer=write_shard)
    assert caught.value.code == "not-divisible"


def test_chunks_that_are_blocks_are_written():
    text = text_between(CHUNKS, of(None))
    assert operations(text) == ['sdy.all_gather [{"x", "z"}] %arg0 out_sharding=<@mesh, [{}]> : tensor<16xf32>']


DTYPES = {
    "bool": "i1",
    "int64": "i64",
    "uint8": "ui8",
    "float16": "f16",
    "bfloat16": "bf16",
    "complex128": "complex<f64>",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e5m2": "f8E5M2",
    "float8_e4m3b11fnuz": "f8E4M3B11FNUZ",
    "float8_e8m0fnu": "f8E8M0FNU",
}


@pytest.mark.parametrize(("dtype", "name"), DTYPES.items())
def test_dtype(dtype, name):
    assert f"tensor<16x{name}>" in text_between(of("x"), of(None), dtype=dtype)


# What Shardy says to it.

LOWER = "builtin.module(sdy-convert-global-to-local)"


def lowered(text: str) -> str:
    """The text after Shardy's parser and verifier, which must print it as it is; then after its lowering."""
    ir, _, context = shardy._loaded()
    from jaxlib.mlir import passmanager

    with context:
        module = ir.Module.parse(text)
        assert str(module).rstrip("\n") == text.rstrip("\n")
        if "_to_unreduced" in text:  # which this lowering does not know
            return ""
        passmanager.PassManager.parse(LOWER).run(module.operation)
        return str(module)


@pytest.mark.engine
@pytest.mark.parametrize(("source", "target", "operation"), SDY)
def test_shardy_takes_every_operation(source, target, operation):
    pytest.importorskip("jaxlib")
    local = lowered(text_between(source, target))
    wanted = {"all_slice": "dynamic_slice"}.get(operation.split()[0], operation.split()[0])
    assert f"stablehlo.{wanted}" in local or "_to_unreduced" in operation
    assert not local or f"%arg0: tensor<{'x'.join(map(str, source.local_shape((16,) * len(source.dims))))}x" in local


@pytest.mark.engine
@pytest.mark.parametrize("dtype", DTYPES)
def test_shardy_knows_the_dtypes(dtype):
    pytest.importorskip("jaxlib")
    lowered(text_between(of("x"), of(None), dtype=dtype))


def drawn(rng: random.Random, mesh: Mesh, ndim: int) -> Sharding:
    """Any sharding: axes whole or in halves, in dims, unreduced, replicated or left out."""
    axes: list[Axis] = []
    for name, size in mesh.axes:
        halves = size == 4 and rng.random() < 0.4
        axes += [Axis(name, 1, 2), Axis(name, 2, 2)] if halves else [Axis(name)]
    rng.shuffle(axes)
    dims: list[list[Axis]] = [[] for _ in range(ndim)]
    places = {"unreduced": [], "replicated": []}
    for axis in axes:
        where = rng.choices(["dim", "unreduced", "replicated", None], [6, 1, 1, 3])[0]
        if where == "dim":
            rng.choice(dims).append(axis)
        elif where is not None:
            places[where].append(axis)
    return Sharding.of(mesh, *dims, **places)


@pytest.mark.engine
def test_shardy_takes_whatever_is_written():
    """Of 800 random pairs, all whose shortest chain is not refused; each kind of step is among them many times."""
    pytest.importorskip("jaxlib")
    rng = random.Random(0)
    meshes = [Mesh.of(x=2, y=4), Mesh.of(x=2, y=2, z=2), Mesh.of(a=4, b=4), Mesh.of(u=1, x=2, y=4), Mesh.of(x=2, y=3)]
    written: Counter[str] = Counter()
    for _ in range(800):
        mesh, ndim = rng.choice(meshes), rng.randrange(1, 4)
        source, target = drawn(rng, mesh, ndim), drawn(rng, mesh, ndim)
        shape = (48,) * ndim
        steps = shortest_chain(Reshard.of(source, target, shape, F32))
        try:
            text = write_sdy(Reshard.of(source, target, shape, "f32"), steps)
        except ReshardError as error:
            written[error.code] += 1
            continue
        lowered(text)
        written.update(step.kind for step in steps)
    assert set(written) == {*KINDS, "no-plan"} - {"Exchange"}
    assert min(written.values()) >= 4


def goes_right(source: Sharding, target: Sharding) -> bool:
    """Whether the lowered permute brings every device the tile that it is to have."""
    shape = (16,) * len(source.dims)
    pairs = re.search(r"source_target_pairs = dense<\[(.*?)\]> :", lowered(text_between(source, target)))[1]
    sent = [tuple(map(int, pair)) for pair in re.findall(r"\[(\d+), (\d+)\]", pairs)]
    assert len(sent) == source.mesh.size
    return all(source.box(a, shape) == target.box(b, shape) for a, b in sent)


REVERSED = Mesh.of(x=2, y=4, z=2, device_ids=reversed(range(16)))


@pytest.mark.engine
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (of("x", "z"), of("z", "x")),
        (of(("x", "z"), None), of("y", None)),
        (of(("y", "x"), "z"), of(("x", "y"), "z")),
        (of("x", "y"), Sharding.of(REVERSED, "x", "y")),
    ],
)
def test_a_lowered_permute_goes_right(source, target):
    pytest.importorskip("jaxlib")
    assert goes_right(source, target)


@pytest.mark.engine
@pytest.mark.xfail(reason="the lowering in jaxlib 0.10.2 pairs wrong devices where a part of an axis changes places")
def test_a_lowered_permute_of_a_sub_axis_goes_right():
    """Device 1, at y=0 and z=1, has the second half; device 2, at y=1, needs the first, but gets that of device 1."""
    pytest.importorskip("jaxlib")
    mesh = Mesh.of(y=4, z=2)
    assert goes_right(Sharding.of(mesh, "z"), Sharding.of(mesh, "y:(1)2"))


@pytest.mark.engine
def test_ends_that_differ_in_open_dims_alone_are_written_closed_where_values_become_partial() -> None:
    mesh = Mesh.of(x=1, y=4)
    open_source = Sharding.of(mesh, "?")
    text = text_between(open_source, Sharding.of(mesh, None, unreduced="y"), size=8)
    assert "?" not in text
    pytest.importorskip("jaxlib")
    lowered(text)
