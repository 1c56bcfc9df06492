"""Eager reshards between meshes: other devices, more or fewer, other orders; held to index arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from math import lcm, prod
from random import Random
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax._src.array import ArrayImpl  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec  # noqa: E402
from jax_problems import DTYPES, NAMES, draw_spec, shards, values  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import reshard  # noqa: E402
from reshard.jax.exchange import across  # noqa: E402
from reshard.jax.exchange.across import reshard_across  # noqa: E402

pytestmark = pytest.mark.engine

SIZES = ((1,), (2,), (3,), (5,), (6,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (2, 2, 2), (2, 3, 2), (4, 4))


def draw_mesh(rng: Random, like: Mesh | None = None) -> Mesh:
    """Some of the 32 devices, in any order: for half of the second meshes the devices of the first."""
    sizes = rng.choice(SIZES)
    if like is not None and rng.random() < 0.5:
        sizes = rng.choice([one for one in SIZES if prod(one) == like.size])
        devices = list(like.devices.flat)
        if rng.random() < 0.5:  # a transposition
            devices = np.array(devices).reshape(sizes).transpose(rng.sample(range(len(sizes)), len(sizes))).ravel()
        else:
            devices = rng.sample(devices, len(devices))
    else:
        first = rng.randrange(32 - prod(sizes) + 1)
        devices = jax.devices()[first : first + prod(sizes)]
        if rng.random() < 0.5:
            devices = rng.sample(devices, len(devices))
    kind = rng.choice((AxisType.Auto, AxisType.Explicit))
    return Mesh(np.array(devices).reshape(sizes), NAMES[: len(sizes)], axis_types=(kind,) * len(sizes))


def draw_problem(rng: Random) -> tuple[np.ndarray[Any, Any], NamedSharding, NamedSharding]:
    ndim = rng.choice((0, 1, 2, 2, 2, 3))
    meshes = [draw_mesh(rng)]
    meshes.append(draw_mesh(rng, meshes[0]))
    ends = [draw_spec(rng, mesh.axis_names, ndim) for mesh in meshes]
    counts = [lcm(*(shards(end, dim, mesh) for end, mesh in zip(ends, meshes, strict=True))) for dim in range(ndim)]
    shape = tuple(count * rng.choice((0, 1, 1, 1, 2, 2, 3)) for count in counts)
    array = values(rng, shape, rng.choice(DTYPES))
    source, target = (NamedSharding(mesh, end) for mesh, end in zip(meshes, ends, strict=True))
    return array, source, target


def assert_holds(result: jax.Array, target: NamedSharding, array: np.ndarray[Any, Any]) -> None:
    """Every device of the target holds its box of the array, and says so."""
    assert result.sharding.mesh == target.mesh
    assert result.sharding.is_equivalent_to(target, array.ndim)
    assert result.committed
    boxes = target.devices_indices_map(array.shape)
    held = {shard.device: shard for shard in result.addressable_shards}
    assert set(held) == set(boxes)
    for device, box in boxes.items():
        assert held[device].data.devices() == {device}
        assert held[device].index == box
        tile = np.asarray(held[device].data)
        assert tile.dtype == array.dtype
        np.testing.assert_array_equal(tile, array[box])


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of devices of every array whose values were brought to the host."""
    found: list[int] = []
    whole = ArrayImpl._value

    def counted(self: Any) -> Any:
        found.append(len(self.sharding.device_set))
        return whole.fget(self)

    monkeypatch.setattr(ArrayImpl, "_value", property(counted))
    return found


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 60))])
def test_every_device_holds_its_box(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(f"across {seed}")
    for _ in range(8):
        array, source, target = draw_problem(rng)
        x = jax.device_put(array, source)
        if list(source.mesh.devices.flat) != list(target.mesh.devices.flat):
            assert_holds(reshard(x, target), target, array)
        monkeypatch.setattr(across, "_share_memory", lambda devices: False)
        assert_holds(reshard_across(x, target), target, array)
        monkeypatch.undo()
        np.testing.assert_array_equal(np.asarray(x), array)


def other(mesh: Mesh, *spec: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*spec))


def mesh_over(devices: Any, *sizes: int) -> Mesh:
    return Mesh(np.array([jax.devices()[n] for n in devices]).reshape(sizes), NAMES[: len(sizes)])


ENDS = {
    "other devices": (range(8), (2, 4), ("x", "y"), range(8, 16), (2, 4), ("y", "x")),
    "other devices, the same tiles": (range(8), (2, 4), (("x", "y"),), range(8, 16), (8,), ("x",)),
    "some other devices": (range(8), (2, 4), ("x", "y"), range(4, 12), (2, 4), ("y", "x")),
    "fewer devices": (range(8), (2, 4), ("x", "y"), range(4), (2, 2), ("y", "x")),
    "more devices": (range(8), (2, 4), ("x", "y"), range(16), (4, 4), ("y", "x")),
    "cuts that do not nest": (range(6), (2, 3), ("x", "y"), range(3, 7), (2, 2), ("x", "y")),
    "one device": (range(8), (2, 4), ("x", "y"), (3,), (1,), ("x",)),
    "from one device": ((3,), (1,), ("x",), range(8), (2, 4), ("y", "x")),
    "a replicated source": (range(8), (2, 4), (), range(8, 16), (2, 4), ("x", "y")),
    "a source with replicas": (range(8), (2, 4), ("x",), range(4, 12), (2, 4), (None, "y")),
    "a target with replicas": (range(8), (2, 4), ("x", "y"), range(4, 12), (2, 4), (None, "y")),
    "another order": (range(8), (2, 4), ("x", "y"), (0, 4, 1, 5, 2, 6, 3, 7), (2, 4), ("x", "y")),
    "an order without digits": (range(8), (2, 4), ("x", "y"), (3, 1, 2, 0, 7, 5, 6, 4), (2, 4), ("y", "x")),
}


def ends_of(name: str) -> tuple[NamedSharding, NamedSharding]:
    devices, sizes, spec, others, other_sizes, other_spec = ENDS[name]
    return other(mesh_over(devices, *sizes), *spec), other(mesh_over(others, *other_sizes), *other_spec)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices as those with memory of their own."""
    monkeypatch.setattr(across, "_share_memory", lambda devices: False)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("name", ENDS)
def test_nothing_goes_through_the_host(name: str, gathers: list[int]) -> None:
    source, target = ends_of(name)
    array = np.arange(48 * 48, dtype=np.int32).reshape(48, 48)
    x = jax.device_put(array, source)
    gathers.clear()
    y = jax.block_until_ready(reshard(x, target))
    assert gathers == []
    assert_holds(y, target, array)


@pytest.mark.parametrize("name", ENDS)
def test_on_a_cpu_nothing_but_replicas_goes_through_the_host(name: str, gathers: list[int]) -> None:
    source, target = ends_of(name)
    x = jax.device_put(np.zeros((48, 48), np.int8), source)
    gathers.clear()
    replicated = len(set(map(str, boxes_of(target, x.shape).values()))) < target.num_devices
    jax.block_until_ready(reshard(x, target))
    assert gathers == ([] if not replicated else [source.num_devices])


def boxes_of(sharding: NamedSharding, shape: tuple[int, ...]) -> dict[Any, list[tuple[int, int]]]:
    """Per device where its tile lies, as JAX says."""
    found = sharding.devices_indices_map(shape).items()
    return {device: [one.indices(size)[:2] for one, size in zip(box, shape, strict=True)] for device, box in found}


def lacking_bytes(source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], size: int) -> dict[Any, int]:
    """Per device of the target, the bytes of its tile that it does not hold in the source."""
    held, wanted = boxes_of(source, shape), boxes_of(target, shape)
    result = {}
    for device, box in wanted.items():
        both = prod(
            max(0, min(high, stop) - max(low, start))
            for (low, high), (start, stop) in zip(box, held.get(device, box), strict=True)
        )
        result[device] = (prod(high - low for low, high in box) - both * (device in held)) * size
    return result


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> dict[Any, int]:
    """The bytes that `device_put` brings to each device from another, where it sends buffers as they are."""
    found: dict[Any, int] = {}
    put = jax.device_put

    def counted(x: Any, devices: Any) -> Any:
        y = put(x, devices)
        for before, after in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
            for sent, got in zip(before.addressable_shards, after.addressable_shards, strict=True):
                assert got.data.shape == sent.data.shape
                if got.device != sent.device:
                    found[got.device] = found.get(got.device, 0) + got.data.nbytes
        return y

    monkeypatch.setattr(jax, "device_put", counted)
    return found


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("name", [name for name in ENDS if name != "another order"])
def test_devices_receive_what_they_lack(name: str, request: pytest.FixtureRequest) -> None:
    source, target = ends_of(name)
    x = jax.device_put(np.zeros((48, 48), np.float32), source)
    lacking = lacking_bytes(source, target, x.shape, 4)
    received = request.getfixturevalue("received")
    jax.block_until_ready(reshard_across(x, target))
    assert {device: received.get(device, 0) for device in lacking} == lacking
    assert set(received) <= set(lacking)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("seed", range(3))
def test_random_devices_receive_what_they_lack(seed: int, request: pytest.FixtureRequest) -> None:
    rng, problems = Random(f"bytes {seed}"), []
    while len(problems) < 8:
        array, source, target = draw_problem(rng)
        if array.size and source.device_set != target.device_set:
            problems.append((jax.device_put(array, source), source, target))
    received = request.getfixturevalue("received")
    for x, source, target in problems:
        received.clear()
        jax.block_until_ready(reshard_across(x, target))
        lacking = lacking_bytes(source, target, x.shape, x.dtype.itemsize)
        assert {device: received.get(device, 0) for device in lacking} == lacking


@pytest.mark.parametrize("name", ["other devices, the same tiles", "one device"])
def test_whole_tiles_are_not_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(across, "_cutter", compiled.append)
    source, target = ends_of(name)
    if name != "one device":
        monkeypatch.setattr(across, "_joiner", compiled.append)
    array = np.arange(48 * 48, dtype=np.int16).reshape(48, 48)
    assert_holds(reshard_across(jax.device_put(array, source), target), target, array)
    assert compiled == []


@pytest.mark.parametrize("shared", [True, False])
def test_a_replicated_target(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across, "_share_memory", lambda devices: shared)
    source = other(mesh_over(range(8), 2, 4), "x", "y")
    target = other(mesh_over(range(8, 16), 2, 4))
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    assert_holds(reshard(jax.device_put(array, source), target), target, array)


@pytest.mark.parametrize("refined", [False, True])
def test_a_sharding_of_ours_with_sub_axes(refined: bool) -> None:
    """Here y=4 is major and minor halves, of which each cuts another dim."""
    source = other(mesh_over(range(8), 2, 4), "x", "y")
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    mesh = rs.Mesh.of(x=2, y=4, device_ids=range(8, 16))
    target = rs.Sharding.of(mesh, "y:(2)2", ("x", "y:(1)2"))
    x = jax.device_put(array, source)
    if not refined:
        with pytest.raises(rs.ReshardError) as refusal:
            reshard(x, target)
        assert refusal.value.code == "cannot-express"
        return
    tiles = rs.numpy.scatter(array, target)
    y = reshard(x, target, refine=True)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), tiles[jax.devices().index(shard.device)])


@pytest.mark.parametrize("others", [(3,), (5,), range(8), range(8, 16)])
@pytest.mark.parametrize("shape", [(), (8, 16), (0, 8)])
def test_from_an_array_on_one_device(others: Any, shape: tuple[int, ...], gathers: list[int]) -> None:
    """Its sharding has no mesh."""
    array = np.arange(prod(shape), dtype=np.float32).reshape(shape)
    x = jax.device_put(array, jax.devices()[3])
    target = other(mesh_over(others, len(others)), *("x",) * min(len(shape) // 2, 1))
    gathers.clear()
    y = jax.block_until_ready(reshard(x, target))
    assert gathers == [] or not shape
    assert_holds(y, target, array)


@pytest.mark.parametrize("spec", [("x",), (None, "x"), (None, ("y", "x"))])
def test_an_empty_array_on_its_own_mesh_has_tiles_of_the_target(spec: tuple[Any, ...]) -> None:
    mesh, array = mesh_over(range(10), 2, 5), np.zeros((0, 10, 1), np.float32)
    target = other(mesh, *spec)
    assert_holds(reshard(jax.device_put(array, other(mesh, None, "y")), target), target, array)


def test_while_a_mesh_is_set() -> None:
    here, there = (
        Mesh(np.array(jax.devices()[start : start + 4]).reshape(2, 2), names, axis_types=(AxisType.Explicit,) * 2)
        for start, names in ((0, ("x", "y")), (2, ("p", "q")))
    )
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    with jax.set_mesh(here):
        x = jax.device_put(array, other(here, "x", "y"))
        for target in (other(there, "q", "p"), other(mesh_over([3, 1, 0, 2], 2, 2), "y", "x")):
            assert_holds(reshard(x, target), target, array)


def test_an_empty_array_of_keys() -> None:
    mesh = mesh_over(range(8), 2, 4)
    keys = jax.device_put(jax.random.split(jax.random.key(0), (0, 8)), other(mesh, None, "x"))
    moved = reshard(keys, other(mesh, None, "y"))
    assert moved.shape == (0, 8)
    assert moved.dtype == keys.dtype


def test_an_empty_array_of_partial_values() -> None:
    mesh = Mesh(np.array(jax.devices()[:10]).reshape(2, 5), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(np.zeros((0, 10), np.float32), other(mesh, None, "y"))
    target = NamedSharding(mesh, PartitionSpec(None, "y", unreduced={"x"}))
    y = reshard(x, target)
    assert y.sharding == target
    assert {shard.data.shape for shard in y.addressable_shards} == {(0, 2)}
    back = other(mesh, None, ("y", "x"))
    assert_holds(reshard(y, back), back, np.zeros((0, 10), np.float32))


def test_a_dim_that_does_not_divide_is_refused() -> None:
    x = jax.device_put(np.zeros((6, 6), np.float32), other(mesh_over(range(3), 3), "x"))
    with pytest.raises(rs.ReshardError) as refusal:
        reshard_across(x, other(mesh_over(range(8, 12), 4), "x"))
    assert refusal.value.code == "not-divisible"


def partial_sum(mesh: Mesh, spec: PartitionSpec, rng: Random) -> tuple[jax.Array, np.ndarray[Any, Any]]:
    """An array of 8 x 8 whose value is the sum of what devices along some axes hold; and that value."""
    sharding = NamedSharding(mesh, spec)
    whole = NamedSharding(mesh, PartitionSpec(*spec.partitions))
    boxes, held, total = whole.devices_indices_map((8, 8)), [], np.zeros((8, 8), np.float32)
    kept = [
        n for n, name in enumerate(mesh.axis_names) if name in {*spec.unreduced, *(n for n in spec.partitions if n)}
    ]
    for place, device in np.ndenumerate(mesh.devices):
        fresh = np.random.default_rng([place[n] for n in kept])  # replicas hold the same
        tile = fresh.integers(0, 50, total[boxes[device]].shape).astype(np.float32)
        if all(place[n] == 0 for n in range(len(place)) if n not in kept):
            total[boxes[device]] += tile
        held.append(jax.device_put(tile, device))
    return jax.make_array_from_single_device_arrays((8, 8), sharding, held), total


PARTIAL: dict[str, Callable[[], PartitionSpec]] = {
    "beside a cut dim": lambda: PartitionSpec("x", None, unreduced={"y"}),
    "beside replicas": lambda: PartitionSpec(None, None, unreduced={"y"}),
    "all axes": lambda: PartitionSpec(None, None, unreduced={"x", "y"}),
}


@pytest.mark.parametrize("others", [range(8, 16), range(4, 12), (7, 6, 5, 4, 3, 2, 1, 0), range(8, 12)])
@pytest.mark.parametrize("name", PARTIAL)
def test_partial_values_are_added_up_on_the_way(name: str, others: Any) -> None:
    mesh = mesh_over(range(8), 2, 4)
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    x, total = partial_sum(explicit, PARTIAL[name](), Random(name))
    for spec in (("x", "y"), (None, "y"), ()):
        target = other(mesh_over(others, 2, len(others) // 2), *spec)
        assert_holds(reshard_across(x, target), target, total)
