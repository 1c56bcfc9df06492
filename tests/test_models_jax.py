"""A whole model arrives on devices of JAX as the NumPy engine says, to the bit, and no array goes by the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from model_layouts import SMALL, scaled_case, scaled_plans  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.dtypes import value_dtype  # noqa: E402
from reshard.jax.bucket_programs import PlanPrograms, _packer, _unpacker  # noqa: E402
from reshard.jax.exchange.stacked import STACKED, flat_mesh  # noqa: E402
from reshard.models import ModelPlan  # noqa: E402

pytestmark = pytest.mark.engine


def tiles_of(plan: ModelPlan) -> dict[int, dict[str, np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(0)
    return {
        device: {
            name: rng.integers(-9, 9, buffer.shape).astype(value_dtype(buffer.dtype))
            for name, buffer in plan.source_slots(device)[1].items()
        }
        for device in plan.rules[0].mesh.devices
    }


def check(plan: ModelPlan, *, donate: bool) -> None:
    """Arrays of JAX go as those of NumPy do; nothing is brought to the host meanwhile."""
    tiles = tiles_of(plan)
    devices = jax.devices()
    arrays = {d: {name: jax.device_put(a, devices[d]) for name, a in buffers.items()} for d, buffers in tiles.items()}
    with jax.transfer_guard_device_to_host("disallow"):
        moved = rs.jax.transfer(arrays, plan, donate=donate)
    expected = rs.numpy.transfer(tiles, plan)
    assert moved.keys() == expected.keys()
    for device, buffers in expected.items():
        assert moved[device].keys() == buffers.keys()
        for name, array in buffers.items():
            found = moved[device][name]
            assert found.devices() == {devices[device]}
            assert np.asarray(found).tobytes() == array.tobytes(), (device, name)
    assert all(array.is_deleted() == donate for buffers in arrays.values() for array in buffers.values())


@pytest.mark.parametrize(
    ("family", "source", "target", "first"),
    [
        ("qwen-moe", "megatron:tp=2,pp=2+1,ep=2", "vllm:tp=2,ep=on", 3),
        pytest.param("dense", "fsdp:4", "vllm:tp=2,dp=2,ep=off", 2, marks=pytest.mark.slow),
        pytest.param("mixtral", "hf", "hf:tp=4", 2, marks=pytest.mark.slow),
        pytest.param(
            "deepseek", "vllm:tp=2,dp=2,ep=on", "megatron:tp=2,pp=1,ep=2,etp=2,dp=4", 0, marks=pytest.mark.slow
        ),
    ],
)
def test_a_small_model_arrives_as_with_numpy(family: str, source: str, target: str, first: int) -> None:
    """Fused, stacked and padded, on the same devices and others."""
    model = SMALL[family]
    ends = rs.Rules.preset(source, model), rs.Rules.preset(target, model, first_device=first)
    check(rs.plan_model(model.tensors(), *ends), donate=True)


def test_transposed_and_cast_views_in_many_buckets() -> None:
    mesh = rs.Mesh.of(x=4)
    turned = {"spec": '[{}, {"x"}]', "store": {"name": r"\1", "transpose": True}}
    source = rs.Rules.of(mesh, {"s": "replicated"}, ("x",))
    target = rs.Rules.of(mesh, {r"(.*)\.(a|b)": turned, "e": "packed_colwise", "s": "replicated"}, ("x",))
    tensors = {"m.a": ((9, 16), "f32"), "n.b": ((8, 5), "bf16"), "p": ((7,), "bool"), "q": ((6, 2), "c64")}
    tensors |= {"e": ((2, 10, 3), "i16"), "s": ((), "f32")}
    plan = rs.plan_model(tensors, source, target, in_flight=256, cast={"m.a": "bf16", "n.b": "f32"})
    assert plan.buckets.total == 3
    check(plan, donate=False)


def test_a_pytree_goes_to_other_devices() -> None:
    devices = np.array(jax.devices()[:8])
    meshes = [jax.sharding.Mesh(part.reshape(2, -1), ("a", "b")) for part in (devices[:4], devices[2:])]
    x = {"w": np.arange(48.0, dtype=np.float32).reshape(8, 6), "layers": [np.arange(12, dtype=np.int32)]}
    spec = jax.P("a", "b")
    on = {"w": jax.NamedSharding(meshes[0], spec), "layers": jax.NamedSharding(meshes[0], jax.P("b"))}
    to = {"w": jax.NamedSharding(meshes[1], jax.P(None, "b")), "layers": jax.NamedSharding(meshes[1], jax.P())}
    arrays = {"w": jax.device_put(x["w"], on["w"]), "layers": [jax.device_put(x["layers"][0], on["layers"])]}
    moved = rs.jax.transfer(arrays, to, in_flight=400, donate=True)
    assert moved["w"].sharding == to["w"]
    assert np.array_equal(moved["w"], x["w"])
    assert np.array_equal(moved["layers"][0], x["layers"][0])
    assert arrays["w"].is_deleted()
    back = rs.jax.transfer(moved, jax.NamedSharding(meshes[1], jax.P("a")))
    assert np.array_equal(back["w"], x["w"])
    assert back["w"].sharding.is_equivalent_to(jax.NamedSharding(meshes[1], jax.P("a")), 2)


def memory_of(program: Any, devices: tuple[Any, ...], *arrays: tuple[tuple[int, ...], str]) -> Any:
    """What the compiler says of a program whose devices have arrays of these shapes."""
    sharding = jax.NamedSharding(flat_mesh(devices), STACKED)
    shapes = [
        jax.ShapeDtypeStruct((shape[0] * len(devices), *shape[1:]), dtype, sharding=sharding) for shape, dtype in arrays
    ]
    return program.lower(*shapes).compile().memory_analysis()


def test_a_bucket_between_two_meshes_is_packed_in_one_program_and_unpacked_in_one() -> None:
    """On all four devices of each; and what they hold meanwhile is their tile and the bucket, into the buffers."""
    shapes = {f"layers.{number}.w": ((64, 256), "float32") for number in range(6)}
    ends = (
        rs.Rules.of(rs.Mesh.of(x=4), {}, ("x",)),
        rs.Rules.of(rs.Mesh.of({"x": 4}, device_ids=range(4, 8)), {}, (None, "x")),
    )
    plan = rs.plan_model(shapes, *ends, in_flight=1 << 17)
    programs, tile = PlanPrograms.of(plan), 64 * 256
    assert plan.buckets.total == 3
    assert [len(groups) for groups in (*programs.packing, *programs.unpacking, programs.fresh)] == [1] * 7
    for packing, unpacking in zip(programs.packing, programs.unpacking, strict=True):
        (packs,), (unpacks,) = packing, unpacking
        forms = packs.members[0].form, unpacks.members[4].form
        tiles = [buffer[:2] for buffer in forms[0].buffers]
        table = (packs.corners.addressable_shards[0].data.shape, "int32")
        memory = memory_of(_packer(packs.devices, forms[0]), packs.devices, table, *tiles)
        bucket = memory.output_size_in_bytes
        assert bucket <= 2 * tile + 256  # and a table of pointers
        assert memory.temp_size_in_bytes <= 256, memory
        tables = [(table.addressable_shards[0].data.shape, "int32") for table in unpacks.corners]
        rows = [((sum(piece.size for piece in row),), row[0].wire) for row in forms[1].rows]
        memory = memory_of(_unpacker(unpacks.devices, forms[1]), unpacks.devices, *tables, *forms[1].written, *rows)
        assert memory.alias_size_in_bytes == 2 * tile
        assert memory.temp_size_in_bytes <= 256, memory


def test_a_buffer_that_stays_whole_goes_as_it_is() -> None:
    """Without a program that packs it or puts it; a part of one, a cast and a transposed one go by programs."""
    tensors = {"whole": ((8, 6), "f32"), "part": ((8, 6), "f32"), "cast": ((8,), "f32"), "turned": ((8, 8), "i16")}
    turned = {"spec": "P('x')", "store": {"name": "t", "transpose": True}}
    source = rs.Rules.of(rs.Mesh.of(x=4), {}, ("x",))
    target = rs.Rules.of(
        rs.Mesh.of({"x": 2, "y": 4}, device_ids=range(8)), {"whole": ("y",), "turned": turned, "part": ("x",)}, ("y",)
    )
    plan = rs.plan_model(tensors, source, target, cast={"cast": "bf16"})
    programs = PlanPrograms.of(plan)
    assert {(each.name, each.receiver - 4 == each.sender) for each in programs.whole[0]} == {("whole", True)}
    read = {name for packs in programs.packing[0] for each in packs.members.values() for name in each.names}
    assert read == {"part", "cast", "turned"}
    check(plan, donate=True)
    check(plan, donate=False)


def test_what_does_not_fit_is_refused() -> None:
    mesh = rs.Mesh.of(x=2)
    plan = rs.plan_model({"w": ((4,), "f32")}, rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, "replicated"))
    wrong = jax.device_put(np.zeros(2, np.float32), jax.devices()[1])
    for tiles, text in (({}, "'w' of device 0"), ({0: {"w": wrong}}, "must be an array there"), (3, "by device")):
        with pytest.raises(rs.ReshardError, match=text) as error:
            rs.jax.transfer(tiles, plan)
        assert error.value.code == "bad-tiles"


@pytest.mark.parametrize("name", ["source", "fused", "late"])
def test_casts_in_blocks_are_those_of_every_block_alone(name: str) -> None:
    plan = scaled_plans(4)[name]
    held, wanted = scaled_case(plan)
    devices = jax.devices()
    arrays = {d: {key: jax.device_put(a, devices[d]) for key, a in buffers.items()} for d, buffers in held.items()}
    with jax.transfer_guard_device_to_host("disallow"):
        moved = rs.jax.transfer(arrays, plan, donate=True)
    for device, buffers in wanted.items():
        assert moved[device].keys() == buffers.keys()
        for key, array in buffers.items():
            assert moved[device][key].devices() == {devices[device]}
            assert np.asarray(moved[device][key]).tobytes() == array.tobytes(), (device, key)
    assert all(array.is_deleted() for buffers in arrays.values() for array in buffers.values())
