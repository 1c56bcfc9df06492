"""XLA and JAX write and read XLA's text as we do, and JAX's modules of MLIR text hold what we find in them."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import axis_sizes, shapes, shardings

from reshard.mesh import Mesh
from reshard.notation import parse_module, parse_sharding, to_xla
from reshard.sharding import Sharding

pytest.importorskip("jax")
pytestmark = pytest.mark.engine


def xla_reads(text: str) -> Any:
    from jaxlib._hlo import HloSharding

    return HloSharding.from_string(text)


def tiles_of(text: str) -> tuple[np.ndarray, list[str]]:
    """The devices as XLA puts them, in an array of the shape of the tiles, and what its last dims are."""
    read = xla_reads(text)
    devices = np.array(read.tile_assignment_devices()).reshape(read.tile_assignment_dimensions())
    subgroups = [kind.name.lower() for kind in read.subgroup_types()]
    return devices, subgroups or ["replicated"] * read.replicate_on_last_tile_dim()


def assert_held_as(sharding: Sharding, devices: np.ndarray, last: int, shape: tuple[int, ...]) -> None:
    """Every device of the tiles holds its tile, blocks of the ceiling of the size over the tiles."""
    rank = devices.ndim - last
    assert sorted(devices.ravel().tolist()) == sorted(sharding.mesh.devices)
    for place, device in np.ndenumerate(devices):
        box = sharding.box(int(device), shape)
        for dim, size in enumerate(shape[:rank]):
            block = -(-size // devices.shape[dim])
            start, stop = min(place[dim] * block, size), min((place[dim] + 1) * block, size)
            assert box[dim] == ((start, stop) if start < stop else (size, size))


@given(shardings(reductions=["sum"], uneven=["ceil"]), st.data())
def test_xla_reads_what_we_write(sharding: Sharding, data: st.DataObject) -> None:
    text = to_xla(sharding)
    assert str(xla_reads(text)) == text
    if text not in ("{replicated}", "{unreduced}"):
        devices, last = tiles_of(text)
        assert_held_as(sharding, devices, len(last), data.draw(shapes(len(sharding.dims))))
        order = list(sharding.mesh.devices)
        positions = np.array([order.index(device) for device in devices.ravel()]).reshape(devices.shape)
        # The unreduced digits tell apart, among the devices of one tile, the partial values.
        for digit in sharding.layout.unreduced:
            values = np.moveaxis(digit.value(positions), len(sharding.dims), 0)
            assert all(len(np.unique(part)) == 1 for part in values)


@st.composite
def xla_texts(draw: st.DrawFn) -> str:
    """Tile assignments of any kind that XLA takes, more than it prints itself, of more than one device."""
    reshaped = draw(axis_sizes().filter(lambda sizes: prod(sizes) > 1))
    total = prod(reshaped)
    sizes = list(reshaped)
    while len(sizes) > 1 and draw(st.booleans()):
        place = draw(st.integers(0, len(sizes) - 2))
        sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
    tiles = draw(st.permutations([*sizes, *draw(st.sampled_from([[], [1], [1, 1]]))]))
    last = draw(st.lists(st.sampled_from(["replicated", "unreduced"]), max_size=len(tiles)))
    ending = f" last_tile_dims={{{', '.join(last)}}}" if last else ""
    order = draw(st.permutations(range(len(reshaped))))
    transposed = f"T({','.join(map(str, order))})" if len(order) > 1 else ""
    listed = ",".join(map(str, draw(st.permutations(range(total)))))
    devices = draw(st.sampled_from([listed, f"<=[{','.join(map(str, reshaped))}]{transposed}"]))
    return f"{{devices=[{','.join(map(str, tiles))}]{devices}{ending}}}"


@given(xla_texts(), st.data())
def test_we_read_what_xla_reads(text: str, data: st.DataObject) -> None:
    read = parse_sharding(text)
    shape = data.draw(shapes(len(read.dims)))
    theirs = xla_reads(text)
    again = to_xla(read)
    if theirs.is_replicated() or theirs.is_unreduced():
        assert again == str(theirs)
        return
    devices, last = tiles_of(text)
    assert_held_as(read, devices, len(last), shape)
    assert parse_sharding(str(theirs)).is_equivalent_to(read, shape)
    if again in ("{replicated}", "{unreduced}"):  # XLA keeps the lists of a few that say no more than these words
        assert prod(devices.shape[: len(read.dims)]) == 1
        return
    devices_again, last_again = tiles_of(again)
    assert_held_as(read, devices_again, len(last_again), shape)


def drawn_spec(rng: random.Random) -> tuple[tuple[tuple[str, int], ...], list[tuple[str, ...]], tuple[str, ...]]:
    """Axes of a mesh, the axes of every dim, and the unreduced axes."""
    axes = tuple((name, rng.choice([1, 2, 2, 3, 4, 6])) for name in "abcde"[: rng.randint(1, 5)])
    dims: list[list[str]] = [[] for _ in range(rng.randint(1, 4))]
    unreduced: list[str] = []
    for name, _ in rng.sample(axes, len(axes)):
        home = rng.choice([*dims, *dims, unreduced, None])
        if home is not None:
            home.append(name)
    return axes, [tuple(dim) for dim in dims], tuple(unreduced)


def test_jax_writes_what_we_write() -> None:
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

    rng = random.Random(5)
    written = set()
    for _ in range(600):
        axes, dims, unreduced = drawn_spec(rng)
        names, sizes = zip(*axes, strict=True)
        mesh = Mesh.of(axes)
        ours = Sharding.of(mesh, *dims, unreduced=unreduced)
        abstract = AbstractMesh(sizes, names, (AxisType.Explicit,) * len(names))
        spec = PartitionSpec(*(dim or None for dim in dims), unreduced=set(unreduced))
        text = str(NamedSharding(abstract, spec)._to_xla_hlo_sharding(len(dims)))
        assert to_xla(ours) == text
        assert parse_sharding(text, mesh, len(dims)).layout == ours.layout
        written.add(text)
    assert len(written) > 400
    assert any("unreduced, replicated" in text for text in written)


def test_jaxs_own_module_is_read() -> None:
    import jax
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

    mesh = AbstractMesh((2, 4), ("X", "Y"), (AxisType.Auto, AxisType.Auto))

    def on(*spec: Any) -> Any:
        return NamedSharding(mesh, PartitionSpec(*spec))

    def step(x: Any, y: Any) -> Any:
        z = jax.lax.with_sharding_constraint(x @ y, on("Y", "X"))
        return z + jax.shard_map(lambda tile: 2 * tile, mesh=mesh, in_specs=on("Y").spec, out_specs=on("Y").spec)(z)

    x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=on("X", None))
    y = jax.ShapeDtypeStruct((8, 8), "float32", sharding=on(None, ("X", "Y")))
    lowered = jax.jit(step).trace(x, y).lower(lowering_platforms=("cpu",))
    meshes, found = parse_module(lowered.as_text())
    assert meshes == {"mesh": Mesh.of(X=2, Y=4)}
    assert [sharding.text() for sharding in found] == [
        '[{"X"}, {}]',
        '[{}, {"X", "Y"}]',
        '[{"Y"}, {"X"}]',
        '[{"Y"}, {}]',
        '[{"Y"}, {}]',
    ]
    assert parse_module(lowered.as_text(debug_info=True)) == (meshes, found)
