"""What is written reads back, every element stays where it is, and no text does worse than be refused."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import PLAIN_NAMES, axis_sizes, meshes, meshes_of, names, shapes, shardings

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import parse_mesh, parse_module, parse_sharding, to_mlir_list, to_named, to_xla
from reshard.sharding import Sharding


def holds(sharding: Sharding, shape: tuple[int, ...]) -> dict[int, object]:
    """Where the tile of every device lies."""
    return {device: sharding.box(device, shape) for device in sharding.mesh.devices}


def assert_same_placement(first: Sharding, second: Sharding, shape: tuple[int, ...]) -> None:
    assert holds(first, shape) == holds(second, shape)
    assert first.is_equivalent_to(second, shape)


# Shardy's text holds everything


@given(meshes(odd_names=True))
def test_a_mesh_reads_back(mesh: Mesh) -> None:
    assert parse_mesh(str(mesh)) == mesh
    assert parse_mesh(f"#sdy.mesh{mesh}") == parse_mesh(f"sdy.mesh @m = {mesh}") == mesh


@given(meshes(permuted=False, parts=False))
def test_a_mesh_reads_back_from_a_command_line(mesh: Mesh) -> None:
    assert parse_mesh(",".join(f"{name}={size}" for name, size in mesh.axes)) == mesh


@given(shardings(meshes(odd_names=True)))
def test_a_sharding_reads_back(sharding: Sharding) -> None:
    assert parse_sharding(str(sharding)) == sharding
    assert parse_sharding(str(sharding), sharding.mesh, len(sharding.dims)) == sharding
    assert parse_sharding(sharding.text(), sharding.mesh) == sharding
    assert parse_sharding(f"#sdy.sharding<@m, {sharding.text()}>", {"m": sharding.mesh}) == sharding


@given(st.integers(0, 2**62 - 1), st.integers(0, 4))
def test_a_sharding_without_axes_reads_back(device: int, ndim: int) -> None:
    for sharding in (Sharding(Mesh.of(device_ids=(device,)), ()), Sharding.of(Mesh.of(), *["?"] * ndim)):
        assert parse_sharding(str(sharding)) == sharding


@given(shardings(), st.data())
def test_space_and_comments_between_tokens_do_not_count(sharding: Sharding, data: st.DataObject) -> None:
    gap = st.sampled_from(["", " ", "\n", "\t\r\n", "// [\n", ' // "\r'])
    text = "".join(data.draw(gap) + char if char in "[]{},:()=" else char for char in sharding.text())
    assert parse_sharding(text, sharding.mesh) == sharding


@given(
    st.lists(shardings(), max_size=4), st.lists(names().filter(lambda name: "\n" not in name), min_size=4, unique=True)
)
def test_a_modules_shardings_come_in_order(found: list[Sharding], symbols: list[str]) -> None:
    quoted = [str(Mesh.of({name: 1}))[2:-4] for name in symbols]
    pairs = list(zip(found, quoted, strict=False))
    uses = [f'%1 = sdy.reshard %0 <@{name}, {sharding.text()}> : t loc("<@q, [{{}}]>")' for sharding, name in pairs]
    definitions = [f"sdy.mesh @{name} = {sharding.mesh} // <@q, [{{}}]>" for sharding, name in pairs]
    meshes_by_name, shardings_found = parse_module("\n".join(uses + definitions))
    assert shardings_found == found
    assert meshes_by_name == {name: sharding.mesh for sharding, name in zip(found, symbols, strict=False)}


# the other forms keep every element in its place

PLAIN = {"reductions": ["sum"], "uneven": ["ceil"]}


@given(shardings(sub_axes=False, unreduced=False, **PLAIN), st.data())
def test_the_list_form_keeps_the_placement(sharding: Sharding, data: st.DataObject) -> None:
    ndim = len(sharding.dims)
    read = parse_sharding(to_mlir_list(sharding), sharding.mesh, ndim)
    assert_same_placement(read, sharding, data.draw(shapes(ndim)))
    assert to_mlir_list(read) == to_mlir_list(sharding)


@given(shardings(sub_axes=False, **PLAIN), st.data())
def test_named_axes_keep_the_placement(sharding: Sharding, data: st.DataObject) -> None:
    read = parse_sharding(to_named(sharding), sharding.mesh)
    assert_same_placement(read, sharding, data.draw(shapes(len(sharding.dims))))
    assert to_named(read) == to_named(sharding)


@given(meshes(odd_names=True), st.data())
def test_named_axes_of_any_names_read_back_or_are_refused(mesh: Mesh, data: st.DataObject) -> None:
    sharding = data.draw(shardings(mesh, sub_axes=False, decorated=False, **PLAIN))
    try:
        text = to_named(sharding)
    except ReshardError as error:
        assert error.code == "cannot-express"  # noqa: PT017  # a refusal is one of the two right outcomes
    else:
        assert parse_sharding(text, mesh) == sharding


@given(shardings(**PLAIN), st.data())
def test_xlas_text_keeps_the_placement(sharding: Sharding, data: st.DataObject) -> None:
    ndim = len(sharding.dims)
    shape = data.draw(shapes(ndim))
    text = to_xla(sharding)
    read = parse_sharding(text, sharding.mesh, ndim)
    assert read.mesh == sharding.mesh
    assert read.layout == sharding.layout
    assert_same_placement(read, sharding, shape)
    assert to_xla(read) == text
    if text not in ("{replicated}", "{unreduced}"):
        assert_same_placement(parse_sharding(text), sharding, shape)


@given(shardings(meshes(parts=False), **PLAIN), st.data())
def test_xlas_text_may_be_read_on_another_mesh(sharding: Sharding, data: st.DataObject) -> None:
    mesh = data.draw(meshes_of(sharding.mesh.size))
    ndim = len(sharding.dims)
    assert_same_placement(parse_sharding(to_xla(sharding), mesh, ndim), sharding, data.draw(shapes(ndim)))


@st.composite
def tile_assignments(draw: st.DrawFn) -> tuple[str, np.ndarray, int]:
    """XLA's text, its devices in an array of the shape of its tiles, and the number of dims."""
    reshaped = draw(axis_sizes())
    order = draw(st.permutations(range(len(reshaped))))
    total = prod(reshaped)
    tiles = [1]
    for _ in range(draw(st.integers(0, 3))):
        rest = total // prod(tiles)
        tiles.append(draw(st.sampled_from([size for size in range(1, rest + 1) if rest % size == 0])))
    tiles.append(total // prod(tiles))
    iota = np.arange(total).reshape(reshaped).transpose(order).reshape(tiles)
    listed = ",".join(map(str, iota.ravel()))
    transposed = f"T({','.join(map(str, order))})" if len(reshaped) > 1 else ""
    devices = draw(st.sampled_from([listed, f"<=[{','.join(map(str, reshaped))}]{transposed}"]))
    last = draw(st.sampled_from(["", " last_tile_dim_replicate"]))
    return f"{{devices=[{','.join(map(str, tiles))}]{devices}{last}}}", iota, len(tiles) - bool(last)


@given(tile_assignments(), st.data())
def test_xlas_tiles_are_where_it_puts_them(drawn: tuple[str, np.ndarray, int], data: st.DataObject) -> None:
    text, devices, ndim = drawn
    shape = data.draw(shapes(ndim))
    read = parse_sharding(text, data.draw(st.none() | meshes_of(devices.size)))
    assert sorted(read.mesh.devices) == list(range(devices.size))
    for place, device in np.ndenumerate(devices):
        box = read.box(int(device), shape)
        for dim, size in enumerate(shape):
            block = -(-size // devices.shape[dim])
            start, stop = min(place[dim] * block, size), min((place[dim] + 1) * block, size)
            assert box[dim] == ((start, stop) if start < stop else (size, size))


# every other text is refused

TEXTS = [
    '#sdy.sharding<mesh<["x"=2, "y\\22\\n"=4], device_ids=[7,6,5,4,3,2,1,0]>, [{"x", "y\\22\\n":(1)2, ?}p1, {}]>',
    '<@m, [{"x"}, {?}p0], replicated={"y":(1)2}, unreduced=max{"y":(2)2}, uneven=chunk> // end',
    '#sdy<sharding<mesh<["x"=2], devices=[9, 0x8]>, [{"x"}]>>',
    "[[0], [], [1]]",
    "A'[I_x, J_{y}] {U_{x,y}}",
    "{devices=[2,1,2,2]<=[2,4]T(1,0) last_tile_dims={unreduced, replicated}}",
    'sharding={devices=[2,4]0,1,2,3,4,5,6,7 metadata={{a="}"}}}, metadata={op_name="f"}',
    "{maximal device=3}",
    "{replicated}",
    'sdy.mesh @"m n" = <["x"=2], device_ids=[1, 0]>',
    "x=2,y=4",
]


def read_or_refused(text: str) -> None:
    """Read a text by everything that reads texts."""
    mesh = Mesh.of(x=2, y=4)
    readers = (
        lambda: parse_sharding(text),
        lambda: parse_sharding(text, mesh),
        lambda: parse_sharding(text, {"m": mesh}, 2),
        lambda: parse_mesh(text),
        lambda: parse_module(text),
    )
    for read in readers:
        try:
            value = read()
        except ReshardError as error:
            assert str(error)  # noqa: PT017  # any refusal is right, any other exception is not
        else:
            if isinstance(value, Sharding):
                assert parse_sharding(str(value)) == value
            elif isinstance(value, Mesh):
                assert parse_mesh(str(value)) == value


def test_texts_cut_short() -> None:
    for text in TEXTS:
        for stop in range(len(text) + 1):
            read_or_refused(text[:stop])
            read_or_refused(text[stop:])


@given(st.sampled_from(TEXTS), st.data())
def test_texts_with_mistakes(text: str, data: st.DataObject) -> None:
    pieces = st.sampled_from(
        [*"[]{}<>(),:=?\"'\\/#@-_pxyTU01 \n\t\x00\ud800é", "//", "->", "0x", "true", "{{", "[]", "999"]
    )
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(start + 3, len(text))))
        text = text[:start] + data.draw(st.just("") | pieces | st.just(text[start:stop] * 2)) + text[stop:]
    read_or_refused(text)


@given(st.text())
def test_any_text(text: str) -> None:
    read_or_refused(text)


@given(st.sampled_from(PLAIN_NAMES), st.integers(-5, 2**70))
def test_any_number(name: str, size: int) -> None:
    for text in (f"{name}={size}", f'<["{name}"={size}]>', f'<["{name}"={size:#x}]>'):
        if 1 <= size < 2**62:
            assert parse_mesh(text) == Mesh.of({name: size})
        else:
            read_or_refused(text)
