"""The reprs and objects of JAX and torch are taken as what they mean there.

What a text means is told by hand, or by the engine that prints it: where JAX says that each device's indices are, and
what torch says that each rank holds.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard as rs
from reshard.notation import (
    as_sharding,
    is_printed_mesh,
    to_device_mesh,
    to_jax_mesh,
    to_partition_spec,
    to_placements,
)

XY = rs.Mesh.of(x=2, y=4)
CHUNK = ", uneven=chunk"

READ = [
    ("P('x', None)", '[{"x"}, {}]'),
    ("P('x')", '[{"x"}, {}]'),
    ("P()", "[{}, {}]"),
    ('PartitionSpec(("y", "x"),)', '[{"y", "x"}, {}]'),
    ("jax.sharding.PartitionSpec(None, ['x', 'y'])", '[{}, {"x", "y"}]'),
    ("P(None, UNCONSTRAINED)", "[{}, {?}]"),
    ("P('x', P.UNCONSTRAINED)", '[{"x"}, {?}]'),
    ("P('x', unreduced={'y'})", '[{"x"}, {}], unreduced={"y"}'),
    ("P(None, None, reduced=frozenset({'y', 'x'}))", None),
    ("P('x', reduced=frozenset({'y'}))", '[{"x"}, {}], replicated={"y"}'),
    (
        "NamedSharding(mesh=Mesh('x': 2, 'y': 4, axis_types=(Auto, Auto)), spec=P('y',), memory_kind=device)",
        '[{"y"}, {}]',
    ),
    ("NamedSharding(mesh, P(None, 'x'))", '[{}, {"x"}]'),
    ("float32[8@x,8@y]", '[{"x"}, {"y"}]'),
    ("bf16[8,8@(y,x)]{V:x}", '[{}, {"y", "x"}]'),
    ("f32[8@x,8]{U:y}", '[{"x"}, {}], unreduced={"y"}'),
    ("ShapedArray(float32[8,8@(x,y)])", '[{}, {"x", "y"}]'),
    ("ShapedArray(bfloat16[8@y,8]{U:x}, weak_type=True)", '[{"y"}, {}], unreduced={"x"}'),
    ("ShapeDtypeStruct(shape=(8, 8), dtype=float32)", "[{}, {}]"),
    (
        "ShapeDtypeStruct(shape=(8, 8), dtype=int8, sharding=NamedSharding(mesh=Mesh('x': 2, 'y': 4), spec=P('y',)))",
        '[{"y"}, {}]',
    ),
    ("S(0)[1]S(0)[0]", '[{"y", "x"}, {}]' + CHUNK),
    ("Spec(f32[8, 8](S(0)R))", '[{"x"}, {}]' + CHUNK),
    ("(Shard(dim=0), Replicate())", '[{"x"}, {}]' + CHUNK),
    ("[S(0), R]", '[{"x"}, {}]' + CHUNK),
    ("S(0)R", '[{"x"}, {}]' + CHUNK),
    ("RS(-1)", '[{}, {"y"}]' + CHUNK),
    ("[R, R]", "[{}, {}]" + CHUNK),
    ("RR", "[{}, {}]" + CHUNK),
    ("S(0)S(0)", '[{"x", "y"}, {}]' + CHUNK),
    ("[_StridedShard(dim=0, sf=4), Shard(dim=0)]", '[{"y", "x"}, {}]' + CHUNK),
    ("_S(0, 4)S(0)", '[{"y", "x"}, {}]' + CHUNK),
    ("S(1)P(avg)", '[{}, {"x"}], unreduced=avg{"y"}' + CHUNK),
    ("[Partial('sum'), Partial()]", '[{}, {}], unreduced={"x", "y"}' + CHUNK),
]


@pytest.mark.parametrize(("text", "meaning"), READ)
def test_a_repr_is_read_as_what_it_means(text: str, meaning: str | None) -> None:
    if meaning is None:
        with pytest.raises(rs.ReshardError) as refusal:
            rs.parse_sharding(text, XY, 1)
        assert refusal.value.code == "rank-mismatch"
    else:
        assert rs.parse_sharding(text, XY, 2).text() == meaning


MESHES = [
    ("Mesh('x': 2, 'y': 4)", XY),
    ("Mesh('x': 2, 'y': 4, axis_types=(Explicit, Explicit))", XY),
    ("Mesh(axis_sizes=(2, 4), axis_names=('x', 'y'), axis_types=(Auto, Auto))", XY),
    ("AbstractMesh('x': 2, 'y': 4, axis_types=(Auto, Auto), device_kind=TPU v4, num_cores=None, platform=tpu)", XY),
    ("jax.make_mesh((2, 4), ('x', 'y'))", XY),
    (
        "Mesh(device_ids=array([[0, 1],\n       [3, 2]]), axis_names=('x', 'y'))",
        rs.Mesh.of(x=2, y=2, device_ids=(0, 1, 3, 2)),
    ),
    ("DeviceMesh((x=2, y=4), 'cuda', stride=(4, 1))", XY),
    ("DeviceMesh((2, 4), 'cpu', stride=(4, 1))", rs.Mesh.of(dim_0=2, dim_1=4)),
    ("DeviceMesh((tp=4), 'cpu', stride=(1,))", rs.Mesh.of(tp=4)),
    ("DeviceMesh('cuda', [[0, 1], [2, 3]], mesh_dim_names=('dp', 'tp'))", rs.Mesh.of(dp=2, tp=2)),
    (
        "DeviceMesh((a=2, b=2), 'cpu', stride=(2, 1), Mesh: tensor([[3, 1], [2, 0]]))",
        rs.Mesh.of(a=2, b=2, device_ids=(3, 1, 2, 0)),
    ),
]


@pytest.mark.parametrize(("text", "mesh"), MESHES)
def test_a_printed_mesh_is_read(text: str, mesh: rs.Mesh) -> None:
    assert rs.parse_mesh(text) == mesh
    assert is_printed_mesh(text) == ("[" not in text)


REFUSED = [
    ("syntax", "P(x)", "expected `(`, `)`, `None`"),
    ("syntax", "P('x' 'y')", "expected `)` or `,` at column 7, found `'y'`"),
    ("syntax", "[S(0), R", "expected `,` or `]` at column 9, found the end of the text"),
    ("syntax", "ShapeDtypeStruct(dtype=int8)", "a ShapeDtypeStruct stands at column 1; it must have one shape and"),
    ("unknown-axis", "P('z')", 'axis "z" is not in mesh'),
    ("rank-mismatch", "P('x', None, 'y')", "a PartitionSpec names 3 dims, the tensor has 2"),
    ("rank-mismatch", "S(2)R", "placement S(2) names a dim that a tensor of 2 has not"),
    ("bad-argument", "[S(0)]", "1 placements [S(0)] are given for a mesh of 2 dims"),
    ("unknown-reduction", "[Partial(norm), R]", "'norm' is no reduction"),
    ("cannot-express", "P(sum)P(max)", "partial values under max and sum at once are not supported"),
    ("different-meshes", "NamedSharding(mesh=Mesh('x': 4), spec=P('x',))", 'the text is on mesh <["x"=4]>'),
]


@pytest.mark.parametrize(("code", "text", "beginning"), REFUSED)
def test_a_repr_that_cannot_be_is_refused(code: str, text: str, beginning: str) -> None:
    with pytest.raises(rs.ReshardError) as refusal:
        rs.parse_sharding(text, XY, 2)
    assert refusal.value.code == code
    assert str(refusal.value).startswith(beginning)


def test_strides_of_another_order_are_refused() -> None:
    with pytest.raises(rs.ReshardError, match="ranks are read as 0, 1, 2") as refusal:
        rs.parse_mesh("DeviceMesh((dp=4), 'cuda', stride=(2,))")
    assert refusal.value.code == "cannot-express"


def test_specs_and_placements_go_there_and_back() -> None:
    rng = random.Random(0)
    for _ in range(200):
        names = rng.sample(["x", "y", "z"], 3)
        mesh = rs.Mesh.of({name: rng.choice((1, 2, 3)) for name in sorted(names)})
        dims: list[list[str]] = [[], [], []]
        unreduced = []
        for name in names:
            place = rng.randrange(5)
            if place < 3:
                dims[place].append(name)
            elif place == 3:
                unreduced.append(name)
        for uneven, write in (("ceil", to_partition_spec), ("chunk", to_placements)):
            sharding = rs.Sharding.of(mesh, *dims, unreduced=unreduced, uneven=uneven)
            try:
                text = write(sharding)
            except rs.ReshardError as refusal:
                assert refusal.code == "cannot-express"  # noqa: PT017  # chunks of chunks in a spec
                continue
            assert rs.parse_sharding(text, mesh, 3).is_equivalent_to(sharding, (12, 7, 36)), text
        assert rs.parse_mesh(to_jax_mesh(mesh)) == rs.parse_mesh(to_device_mesh(mesh)) == mesh


def test_names_that_were_probably_meant_are_said() -> None:
    mesh = rs.Mesh.of(data=2, model=4)
    for ask, meant in (
        (lambda: rs.Sharding.of(mesh, "modle"), "; did you mean model"),
        (lambda: rs.parse_sharding("P('Data')", mesh), "did you mean data"),
        (
            lambda: rs.plan(rs.Sharding.of(mesh, "data"), rs.Sharding.of(mesh, None), (8,), "bfloat61"),
            "did you mean bfloat16",
        ),
        (lambda: rs.Network.preset("h10-2x8"), "did you mean h100"),
    ):
        with pytest.raises(rs.ReshardError, match=meant):
            ask()


def test_a_plan_takes_texts_and_arrays() -> None:
    wanted = rs.plan(rs.Sharding.of(XY, "x", None), rs.Sharding.of(XY, None, "y"), (8, 8), "float64")
    assert rs.plan(rs.Sharding.of(XY, "x", None), "P(None, 'y')", (8, 8), np.float64) == wanted
    assert rs.plan("P('x')", rs.Sharding.of(XY, None, "y"), np.zeros((8, 8)).shape, "<f8") == wanted
    whole = rs.plan(np.zeros((8, 8)), rs.Sharding.of(XY, "x", None))
    assert (whole.shape, whole.dtype.name, whole.received_bytes) == ((8, 8), "float64", 0)
    for ends, code in (
        (("P('x')", "P('y')"), "unknown-mesh"),
        ((rs.Sharding.of(XY, "x"), "P(UNCONSTRAINED)"), "bad-argument"),
        ((rs.Sharding.of(XY, "x"), object()), "bad-argument"),
    ):
        with pytest.raises(rs.ReshardError) as refusal:
            rs.plan(*ends, (8,))
        assert refusal.value.code == code
    with pytest.raises(rs.ReshardError, match="the shape of the tensor must be given"):
        rs.plan(rs.Sharding.of(XY, "x"), "P('y')")
    typed = rs.plan("f64[8@x,8]", rs.Sharding.of(XY, None, "y"))
    assert typed == rs.plan(rs.Sharding.of(XY, "x", None), rs.Sharding.of(XY, None, "y"), "float64[8,8]") == wanted
    assert rs.plan(rs.Sharding.of(XY, "x", None), "P(None, 'y')", np.zeros((8, 8))) == wanted
    with pytest.raises(rs.ReshardError, match="an array has"):
        rs.plan("f64[8@x,8]", rs.Sharding.of(XY, None, "y"), (8, 4))
    with pytest.raises(rs.ReshardError, match="an array has") as refusal:
        rs.plan(np.zeros((8, 8)), rs.Sharding.of(XY, "x", None), (4, 8))
    assert refusal.value.code == "rank-mismatch"


@pytest.mark.engine
def test_objects_of_jax_mean_what_jax_says() -> None:
    jax = pytest.importorskip("jax")
    names = [("x",), ("y",), ("x", "y"), ("y", "x"), "x", "y", None, None]
    rng = random.Random(1)
    places = {device: place for place, device in enumerate(jax.devices())}
    for number in range(40):
        order = rng.sample(jax.devices(), 8)
        mesh = jax.sharding.Mesh(np.array(order).reshape(2, 4), ("x", "y"))
        entries: list[Any] = rng.sample(names, 2)
        used = [name for entry in entries for name in ((entry,) if isinstance(entry, str) else entry or ())]
        if len(set(used)) < len(used):
            continue
        sharding = jax.NamedSharding(mesh, jax.P(*entries))
        indices = sharding.devices_indices_map((8, 16))
        expected = {
            places[d]: [part.indices(s)[:2] for part, s in zip(i, (8, 16), strict=True)] for d, i in indices.items()
        }
        array = jax.device_put(np.zeros((8, 16), "float16"), sharding)
        ours = rs.Mesh.of(mesh)
        for value, on in (
            *((sharding, None), (array, None), (sharding.spec, mesh), (repr(sharding.spec), mesh)),
            *((repr(sharding), mesh), (str(jax.typeof(array)), mesh) if number % 2 else (sharding, mesh)),
        ):
            read = as_sharding(value, on, 2)
            if isinstance(value, str) and "@" not in value and "float16" in value:
                continue  # a type whose axes are not explicit does not say them
            assert {device: [tuple(side) for side in read.box(device, (8, 16))] for device in ours.devices} == {
                device: [tuple(side) for side in box] for device, box in expected.items()
            }, value
        assert rs.parse_mesh(repr(mesh)).axes == ours.axes
        plan = rs.plan(array, jax.P(None, "x"))
        assert (plan.shape, plan.dtype.name, plan.target) == ((8, 16), "float16", rs.Sharding.of(ours, None, "x"))
        assert rs.plan(sharding, jax.P(None, "x"), (8, 16), array.dtype) == plan
    assert rs.Sharding.of(XY, jax.P("x", "y")) == rs.Sharding.of(XY, "x", "y")
    with pytest.raises(rs.ReshardError, match="says all dims"):
        rs.Sharding.of(XY, jax.P("x"), None)
    product = rs.einsum("ij,jk->ik", array, jax.P(None, "y"), shapes=[None, (16, 8)])
    assert (product.dtype.name, product.expression_sizes) == ("float16", {"i": 8, "j": 16, "k": 8})


@pytest.mark.engine
def test_objects_of_jax_are_taken_where_ours_are() -> None:
    jax = pytest.importorskip("jax")
    mesh = jax.make_mesh((2, 4), ("x", "y"), devices=jax.devices()[:8])
    sharding, ours = jax.NamedSharding(mesh, jax.P("x", "y")), rs.Sharding.of(XY, "x", "y")
    whole = np.arange(64.0).reshape(8, 8)
    tiles = rs.numpy.scatter(whole, sharding)
    assert {device: tile.tolist() for device, tile in tiles.items()} == {
        device: tile.tolist() for device, tile in rs.numpy.scatter(whole, ours).items()
    }
    assert np.array_equal(rs.numpy.gather(tiles, sharding, (8, 8)), whole)
    assert np.array_equal(rs.numpy.halo(tiles, sharding, {0: (1, 1)})[5], rs.numpy.halo(tiles, ours, {0: (1, 1)})[5])
    program = rs.Program(mesh)
    assert str(program.annotations[program.input("a", (8, 8), "f32", sharding)]) == str(ours)
    assert rs.Rules.of(mesh, {".*": jax.P("x")}).sharding("a", (8, 8)) == rs.Sharding.of(XY, "x", None)
    assert repr(rs.show(sharding, (8, 8))) == repr(rs.show(ours, (8, 8)))
    assert repr(rs.show(mesh)) == repr(rs.show(XY))
    for call in (lambda: rs.numpy.scatter(whole, 3), lambda: rs.Program(3), lambda: rs.Rules.of(3, {})):
        with pytest.raises(rs.ReshardError) as refusal:
            call()
        assert refusal.value.code == "bad-argument"


@pytest.mark.engine
def test_what_is_traced_says_where_it_lies_only_where_it_knows() -> None:
    jax = pytest.importorskip("jax")
    plans: list[Any] = []

    def step(x: Any) -> Any:
        try:
            plans.append(rs.plan(x, jax.P(None, "y")).received_bytes)
        except rs.ReshardError as refusal:
            plans.append(refusal.code)
        return x

    explicit = jax.make_mesh((2, 4), ("x", "y"), devices=jax.devices()[:8])
    automatic = jax.make_mesh((2, 4), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:8])
    for mesh in (explicit, automatic):
        x = jax.device_put(np.zeros((8, 8), "float32"), jax.NamedSharding(mesh, jax.P("x")))
        jax.jit(step)(x)
    assert plans == [32, "bad-argument"]


TORCH = """
import itertools, random
import torch, torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
import reshard as rs
from reshard.notation import as_sharding
dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
assert rs.Mesh.of(mesh) == rs.parse_mesh(repr(mesh)) == rs.Mesh.of(dp=2, tp=4)
assert rs.Mesh.of(mesh["tp"]).devices == (4, 5, 6, 7)
every = [Replicate(), Shard(0), Shard(1)]
last = [Shard(-1), Replicate()]
assert as_sharding(last, mesh, 2) == as_sharding([Shard(1), Replicate()], mesh, 2)
count = 0
for placements in itertools.product(every, repeat=2):
    for shape in ((8, 16), (5, 7)):
        local, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
        x = DTensor.from_local(torch.zeros(local), mesh, placements, run_check=False, shape=shape, stride=(shape[1], 1))
        texts = [repr(placements), str(list(placements)), "".join(map(str, placements)), str(x._spec)]
        alone = [x, x._spec, repr(x._spec), (placements, mesh)]
        given = [(value, None) for value in alone] + [(value, mesh) for value in [list(placements), *texts]]
        for value, on in given:
            read = as_sharding(value, on, 2)
            box = read.box(5, shape)
            assert tuple(stop - start for start, stop in box) == tuple(local), (value, box, local)
            assert not box.size or tuple(start for start, _ in box) == tuple(offset), (value, box, offset)
            count += 1
        assert rs.plan(x._spec, [Shard(1), Replicate()]) == rs.plan(x, [Shard(1), Replicate()])
        plan = rs.plan(x, [Shard(1), Replicate()])
        assert plan.shape == shape and plan.dtype.name == "float32"
partial = DTensor.from_local(torch.zeros(4, 8, dtype=torch.bfloat16), mesh, [Shard(0), Partial("max")], run_check=False)
assert rs.plan(partial, [Shard(0), Replicate()]).dtype.name == "bfloat16"
assert as_sharding(partial).text() == '[{"dp"}, {}], unreduced=max{"tp"}, uneven=chunk'
try:
    rs.plan(partial, [Shard(0)])
except rs.ReshardError as refusal:
    assert refusal.code == "bad-argument"
print(count)
"""


@pytest.mark.engine
def test_objects_of_torch_mean_what_torch_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TORCH],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split()[-1] == "162"
