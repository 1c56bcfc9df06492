"""Does `reshard run` write for every device what belongs there? Whatever the shardings, formats and sizes.

The oracle cuts the whole array by index arithmetic of its own; files are read back by NumPy alone.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from math import prod
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import dealt
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy_format
from strategies import meshes, shapes, shardings
from tilefiles import assert_same, read_tiles, refused, run, write_tiles

import reshard as rs
from reshard.box import Box
from reshard.cli.storage import pieces_by_region, streaming
from reshard.models.checkpoints.files import TileFile

MESH = rs.Mesh.of(x=2, y=4)
ROWS, BLOCKS = '[{"y"}, {}]', '[{"x"}, {"y"}]'


@contextmanager
def small_limits(region_bytes: int, call_bytes: int = 16, cache_bytes: int = 64) -> Iterator[None]:
    """Limits that make small tensors go the ways of large ones."""
    with (
        mock.patch.object(pieces_by_region, "REGION_BYTES", region_bytes),
        mock.patch.object(pieces_by_region, "PIECES_AT_ONCE", 7),
        mock.patch.object(streaming, "CALL_BYTES", call_bytes),
        mock.patch.object(streaming, "CACHE_BYTES", cache_bytes),
        mock.patch("reshard.models.checkpoints.files.OPEN_FILES", 2),
    ):
        yield


@contextmanager
def fresh_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


LIMITS = st.builds(
    small_limits, st.sampled_from([1, 12, 40, 200, 2**24]), st.sampled_from([0, 16, 2**20]), st.sampled_from([1, 10**6])
)


@st.composite
def pairs(draw: st.DrawFn, *, unreduced: bool) -> tuple[rs.Sharding, rs.Sharding, tuple[int, ...]]:
    ndim = draw(st.integers(0, 3))
    source = draw(shardings(meshes(most_devices=12), ndim=ndim, unreduced=unreduced, reductions=["sum", "max"]))
    mesh = draw(st.just(source.mesh) | meshes(most_devices=12))
    target = draw(shardings(mesh, ndim=ndim, unreduced=unreduced, reductions=[source.reduction]))
    return source, target, draw(shapes(ndim, most=9))


def planned(source: rs.Sharding, target: rs.Sharding, shape: tuple[int, ...], dtype: str) -> rs.Plan | None:
    """The plan; None where values would become partial that no plan makes so."""
    try:
        return rs.plan(source, target, shape, dtype)
    except rs.ReshardError as error:
        if error.code != "no-plan":
            raise
        return None


@settings(max_examples=60)
@given(pairs(unreduced=False), LIMITS)
def test_every_device_has_its_tile_after_one_run_and_after_the_next(case: Any, limits: Any) -> None:
    source, target, shape = case
    array = oracle.encoded(shape).astype("<i4")
    with fresh_folder() as folder, limits:
        np.save(folder / "whole.npy", array)
        first = run(folder / "whole.npy", "--target", source, "--out", folder / "first")
        assert_same(read_tiles(folder / "first"), oracle.tiles(array, source))
        assert first["total_received_bytes"] == 0
        second = run(folder / "first", "--target", target, "--out", folder / "second")
        assert_same(read_tiles(folder / "second"), oracle.tiles(array, target))
    missing = oracle.missing(source, target, shape)
    received = {tile["device"]: tile["received_bytes"] for tile in second["tiles"]}
    assert received == {device: 4 * missing[device] for device in received}


@settings(max_examples=60)
@given(pairs(unreduced=True), LIMITS, st.data())
def test_partial_values_come_out_as_the_engine_in_memory_has_them(case: Any, limits: Any, data: Any) -> None:
    source, target, shape = case
    plan = planned(source, target, shape, "float32")
    if plan is None:
        return
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    classes = [random.standard_normal(shape).astype("<f4") for _ in range(oracle.class_count(source))]
    tiles = oracle.partial_tiles([np.asarray(one) for one in classes], source)
    received: dict[int, int] = {}
    wanted = rs.numpy.run(plan, tiles, received_bytes=received)
    with fresh_folder() as folder, limits:
        write_tiles(folder / "source", source, shape, tiles)
        record = run(folder / "source", "--target", target, "--out", folder / "target")
        assert_same(read_tiles(folder / "target"), wanted)
    assert record["total_received_bytes"] == sum(received.values()) == plan.total_received_bytes
    assert record["plan"] == plan.as_dict()


@settings(max_examples=60)
@given(pairs(unreduced=True), LIMITS)
def test_a_whole_file_may_be_taken_as_any_source(case: Any, limits: Any) -> None:
    source, target, shape = case
    array = oracle.encoded(shape).astype("<f8")
    if planned(source, target, shape, "float64") is None:
        return
    with fresh_folder() as folder, limits:
        np.save(folder / "whole.npy", array)
        run(folder / "whole.npy", "--source", source, "--target", target, "--out", folder / "target")
        held = {device: np.asarray(tile) for device, tile in read_tiles(folder / "target").items()}
    np.testing.assert_array_equal(oracle.values(target, shape, held), array)


def test_a_chain_of_folders_ends_where_one_run_would(tmp_path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 2**31, (37, 11, 6)).astype("<i4")
    np.save(tmp_path / "0.npy", array)
    texts = [
        ("x=2,y=4", '[{"y"}, {"x"}, {}]'),
        ("x=2,y=4", '[{}, {}, {"y", "x"}]'),
        ("a=3", '[{}, {"a"}, {}]'),
        ('<["a"=2, "b"=3], devices=[9, 4, 7, 0, 1, 30]>', '[{"b"}, {"a"}, {}]'),
        ("a=1", "A[I, J, K]"),
    ]
    here = tmp_path / "0.npy"
    for number, (mesh, text) in enumerate(texts, 1):
        with small_limits(500):
            run(here, "--target-mesh", mesh, "--target", text, "--out", tmp_path / str(number))
        here = tmp_path / str(number)
        assert_same(read_tiles(here), oracle.tiles(array, rs.parse_sharding(text, rs.parse_mesh(mesh), 3)))
    assert np.array_equal(np.load(tmp_path / "5" / "device-0.npy"), array)


def test_an_all_reduce_leaves_nothing_of_its_folder_between(tmp_path: Path) -> None:
    source = rs.Sharding.of(rs.Mesh.of(x=4), None, unreduced="x")
    tiles = {device: np.arange(8, dtype="<i8") * 10**device for device in range(4)}
    write_tiles(tmp_path / "in", source, (8,), tiles)
    record = run(tmp_path / "in", "--target", "[{}]", "--out", tmp_path / "out")
    assert_same(read_tiles(tmp_path / "out"), dict.fromkeys(range(4), np.arange(8) * 1111))
    assert record["plan"]["steps"][0]["kind"] == "AllReduce"
    assert [tile["received_bytes"] for tile in record["tiles"]] == [2 * 3 * 16] * 4


@pytest.mark.parametrize(
    "descr", ["|b1", "|i1", "<u2", ">u2", "<i4", ">i8", "<f2", ">f4", "<f8", "<c8", "<c16", ">c16"]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_keeps_type_byte_order_and_order_of_dims(descr: str, order: Any, tmp_path: Path) -> None:
    array = np.asarray(np.random.default_rng(2).integers(0, 2, (12, 10, 3)), np.dtype(descr), order=order)
    np.save(tmp_path / "a.npy", array)
    with small_limits(300):
        run(
            tmp_path / "a.npy",
            "--target",
            f'#sdy.sharding<mesh{MESH}, [{{"x"}}, {{"y"}}, {{}}]>',
            "--out",
            tmp_path / "b",
        )
        run(tmp_path / "b", "--target", '[{}, {"x"}, {"y"}]', "--out", tmp_path / "c")
    found = read_tiles(tmp_path / "c")
    assert_same(found, oracle.tiles(array, rs.Sharding.of(MESH, None, "x", "y")))
    index = json.loads((tmp_path / "c" / "index.json").read_text())
    assert (index["stored"], index["order"], index["dtype"]) == (descr, order, np.dtype(descr).name)
    assert found[0].flags.f_contiguous == (order == "F")
    assert found[0].dtype.str == descr


def test_fortran_order_may_be_reduced_too(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(24, dtype=">f4").reshape(4, 6))
    np.save(tmp_path / "a.npy", array)
    ends = ("--source", '[{"y"}, {}], unreduced={"x"}', "--target", '[{}, {"y"}]')
    with small_limits(20):
        run(tmp_path / "a.npy", "--mesh", "x=2,y=2", *ends, "--out", tmp_path / "b")
    assert_same(read_tiles(tmp_path / "b"), oracle.tiles(array, rs.Sharding.of(rs.Mesh.of(x=2, y=2), None, "y")))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_npy_header_is_read(version: tuple[int, int], tmp_path: Path) -> None:
    array = np.arange(24, dtype="<i2").reshape(4, 6)
    with (tmp_path / "a.npy").open("wb") as file:
        npy_format.write_array(file, array, version)
    run(tmp_path / "a.npy", "--mesh", "x=2,y=4", "--target", BLOCKS, "--out", tmp_path / "b")
    assert_same(read_tiles(tmp_path / "b"), oracle.tiles(array, rs.parse_sharding(BLOCKS, MESH)))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 4, 2), (1, 1), (2, 1, 5)])
def test_scalars_empty_dims_and_small_ones(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.arange(prod(shape), dtype="<f4").reshape(shape)
    np.save(tmp_path / "a.npy", array)
    dims = [("x",), ("y",), ()]
    targets = [rs.Sharding.of(MESH, *dims[: len(shape)]), rs.Sharding.of(MESH, *[None] * len(shape))]
    for number, target in enumerate(targets):
        run(tmp_path / "a.npy", "--target", target, "--out", tmp_path / f"b{number}")
        assert_same(read_tiles(tmp_path / f"b{number}"), oracle.tiles(array, target))
    partial = rs.Sharding.of(MESH, *[None] * len(shape), unreduced="x")
    run(tmp_path / "b1", "--target", partial, "--out", tmp_path / "c")
    run(tmp_path / "c", "--target", targets[1], "--out", tmp_path / "d")
    assert_same(read_tiles(tmp_path / "d"), oracle.tiles(array, targets[1]))


@pytest.mark.parametrize(
    ("mesh", "text"),
    [("<[], device_ids=[7]>", "[]"), ('<["x"=1]>', '[{"x"}, {}]'), (None, "{maximal device=3}")],
)
def test_one_device_is_enough(mesh: str | None, text: str, tmp_path: Path) -> None:
    array = np.arange(6, dtype="<i8").reshape(2, 3)
    np.save(tmp_path / "a.npy", array)
    record = run(
        tmp_path / "a.npy", *([] if mesh is None else ["--mesh", mesh]), "--target", text, "--out", tmp_path / "b"
    )
    (tile,) = read_tiles(tmp_path / "b").values()
    assert np.array_equal(tile, array)
    run(tmp_path / "b", "--target-mesh", "z=2", "--target", '[{}, {"z"}]', "--out", tmp_path / "c")
    assert [tile["device"] for tile in record["tiles"]] in ([0], [7], [3])


def test_a_mesh_without_devices_has_nothing_to_write_for(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2))
    sentence = refused("run", tmp_path / "a.npy", "--mesh", "<[]>", "--target", "[{}]", "--out", tmp_path / "b")
    assert sentence == "the mesh <[]> has no devices to write for; --mesh must name some"


# Types that NumPy lacks, and the other format.


def safetensors_bytes(tensors: dict[str, tuple[str, tuple[int, ...], bytes]], **metadata: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("dtype", "name", "stored"),
    [
        ("BF16", "bfloat16", "<u2"),
        ("F8_E4M3", "float8_e4m3fn", "|u1"),
        ("F8_E5M2", "float8_e5m2", "|u1"),
        ("F8_E8M0", "float8_e8m0fnu", "|u1"),
        ("BOOL", "bool", "|b1"),
        ("C64", "complex64", "<c8"),
        ("U64", "uint64", "<u8"),
    ],
)
def test_safetensors_types_are_moved_as_they_are(dtype: str, name: str, stored: str, tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(0, 2, (9, 8)).astype(stored)
    text = safetensors_bytes({"other": ("I8", (3,), b"abc"), "w": (dtype, (9, 8), values.tobytes())}, made="here")
    (tmp_path / "m.safetensors").write_bytes(text)
    with mock.patch.dict(sys.modules, {"ml_dtypes": None}), small_limits(30):
        run(
            tmp_path / "m.safetensors",
            "--tensor",
            "w",
            "--mesh",
            "x=2,y=4",
            "--target",
            BLOCKS,
            "--out",
            tmp_path / "a",
        )
        run(tmp_path / "a", "--target", ROWS, "--out", tmp_path / "b")
    assert_same(read_tiles(tmp_path / "b"), oracle.tiles(values, rs.parse_sharding(ROWS, MESH)))
    index = json.loads((tmp_path / "b" / "index.json").read_text())
    assert (index["dtype"], index["stored"]) == (name, stored)


def test_a_file_of_the_safetensors_package_is_read(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    array = np.arange(24, dtype="<f4").reshape(4, 6)
    package.save_file({"w": array}, tmp_path / "m.safetensors")
    run(tmp_path / "m.safetensors", "--mesh", "x=2,y=4", "--target", BLOCKS, "--out", tmp_path / "a")
    assert_same(read_tiles(tmp_path / "a"), oracle.tiles(array, rs.parse_sharding(BLOCKS, MESH)))


def test_bfloat16_is_combined_where_ml_dtypes_is_there(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(16).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "a.npy", array)  # NumPy writes such a type as plain bytes
    args = (
        tmp_path / "a.npy",
        "--dtype",
        "bf16",
        "--mesh",
        "x=4",
        "--source",
        '[{}], unreduced={"x"}',
        "--out",
        tmp_path / "b",
    )
    with mock.patch.dict(sys.modules, {"ml_dtypes": None}):
        assert "the package ml_dtypes is needed" in refused("run", *args, "--target", '[{"x"}]')
    assert not (tmp_path / "b").exists()
    run(*args, "--target", '[{"x"}]')
    tiles = read_tiles(tmp_path / "b")
    assert np.concatenate(list(tiles.values())).view(ml_dtypes.bfloat16).tolist() == array.tolist()


def test_the_bits_of_a_type_that_numpy_lacks_need_a_word(tmp_path: Path) -> None:
    for name, array in {"bytes": np.zeros(4, "V2"), "numbers": np.arange(4, dtype="<u2")}.items():
        np.save(tmp_path / f"{name}.npy", array)
        run(
            tmp_path / f"{name}.npy",
            "--dtype",
            "bf16",
            "--mesh",
            "x=2",
            "--target",
            '[{"x"}]',
            "--out",
            tmp_path / name,
        )
        index = json.loads((tmp_path / name / "index.json").read_text())
        assert (index["dtype"], index["stored"]) == ("bfloat16", "<u2")
    sentence = refused("run", tmp_path / "bytes.npy", "--mesh", "x=2", "--target", '[{"x"}]', "--out", tmp_path / "no")
    assert sentence.endswith("which cannot be moved; --dtype may say what the bytes are")


# What the parts are made of.


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4))
def test_the_runs_of_a_box_are_its_elements(dims: list[tuple[int, int, int]]) -> None:
    box = Box((1 + before, 1 + before + size) for before, size, _ in dims)
    within = Box((1, 1 + before + size + after) for before, size, after in dims)
    numbers = np.arange(within.size).reshape(within.shape)
    check_runs(TileFile(Path(), 0, within), box, numbers.ravel(), numbers)
    for order in permutations(range(len(dims))):
        memory = numbers.transpose(order)
        strides = [np.empty(memory.shape, np.uint8).strides[order.index(dim)] for dim in range(len(dims))]
        check_runs(TileFile(Path(), 0, within, tuple(strides)), box, memory.ravel(), numbers)


def check_runs(file: TileFile, box: rs.Box, memory: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> None:
    runs = file.runs(box)
    starts = list(runs.starts())
    elements = [memory[start + number] for start in starts for number in range(runs.length)]
    assert elements == numbers[box.slices(file.box)].transpose(runs.order).ravel().tolist()
    assert runs.run_count == len(starts)


@given(shapes(3, most=6), st.integers(1, 60))
def test_regions_cover_a_box_in_row_major_order(shape: tuple[int, ...], elements: int) -> None:
    numbers = np.arange(prod(shape)).reshape(shape)
    found = list(pieces_by_region.regions(Box.whole(shape), elements))
    assert [n for region in found for n in numbers[region.slices()].ravel().tolist()] == list(range(prod(shape)))
    assert all(1 <= region.size <= elements for region in found)


# Memory.

MEASURED = """
import sys
from pathlib import Path
from random import Random
from reshard.cli import main
status = main(sys.argv[1:])
# not getrusage, whose figure starts with that of the process that started this one
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print("peak", peak.split()[1], file=sys.stderr)
sys.exit(status)
"""
LARGEST_KIB = 170 * 1024
"""What NumPy takes, and a few regions; less than the file."""


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory in other units")
def test_a_large_file_is_never_whole_in_memory(tmp_path: Path) -> None:
    rows, columns = 4096, 16384
    with (tmp_path / "a.npy").open("wb") as file:
        npy_format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)})
        for number in range(64):
            file.write(np.full(rows * columns // 64, number, "<f4").tobytes())
    assert (tmp_path / "a.npy").stat().st_size > 2**28 > LARGEST_KIB * 1024
    steps = [(tmp_path / "a.npy", "x=64", '[{}, {"x"}]'), (tmp_path / "0", "x=2,y=3", '[{"y"}, {"x"}]')]
    for number, (source, mesh, target) in enumerate(steps):
        args = ["run", str(source), "--target-mesh", mesh, "--target", target, "--out", str(tmp_path / str(number))]
        done = subprocess.run([sys.executable, "-c", MEASURED, *args], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stderr.split()[-1]) < LARGEST_KIB, (args, done.stderr)
    for device, tile in read_tiles(tmp_path / "1").items():
        start = device % 3 * 1366
        wanted = np.arange(start, min(start + 1366, rows), dtype="<f4") // (rows // 64)
        assert np.array_equal(tile, np.broadcast_to(wanted[:, None], (len(wanted), columns // 2)))


def check_several_boxes(seed: int) -> int:
    """Files of deals and windows, from a whole file and from one another; how many had tiles of several boxes."""
    random = Random(seed)
    mesh = random.choice([rs.Mesh.of(x=3), rs.Mesh.of(x=2, y=2), rs.Mesh.of(x=1, y=4), rs.Mesh.of(x=2, y=3)])
    shape = tuple(random.randint(0, 13) for _ in range(random.randint(1, 2)))
    source, target = dealt.drawn(random, mesh, shape, False), dealt.drawn(random, mesh, shape, True)
    array = np.arange(1, prod(shape) + 1, dtype="<i4").reshape(shape)
    array = np.asfortranarray(array) if random.random() < 0.3 else array
    with fresh_folder() as folder, small_limits(random.choice([4, 40, 2**24])):
        np.save(folder / "whole.npy", array)
        run(folder / "whole.npy", "--target", source, "--out", folder / "first")
        run(folder / "first", "--target", target, "--out", folder / "second")
        windows = [dim.window for dim in target.dims if dim.window is not None]
        for name, sharding in (("first", source), ("second", target)):
            wanted = dealt.cut(array, sharding)  # which says -1 where a window is padded
            assert_same(read_tiles(folder / name), {device: np.maximum(tile, 0) for device, tile in wanted.items()})
        if all(not window.spans for window in windows):
            back = run(folder / "second", "--target", source, "--out", folder / "third")
            assert_same(read_tiles(folder / "third"), dealt.cut(array, source))
            received = {tile["device"]: tile["received_bytes"] for tile in back["tiles"]}
            missing = dealt.missing(target, source, shape)
            assert received == {device: 4 * count for device, count in missing.items()}
    return any(dim.deals for dim in source.dims) + bool(windows)


def test_tiles_of_several_boxes_go_from_files_to_files() -> None:
    assert sum(check_several_boxes(seed) for seed in range(12)) > 9


@pytest.mark.slow
def test_many_tiles_of_several_boxes_go_from_files_to_files() -> None:
    for seed in range(1000, 2000):
        check_several_boxes(seed)


def test_an_index_says_the_boxes_of_a_zigzag(tmp_path: Path) -> None:
    np.save(tmp_path / "whole.npy", np.arange(8))
    run(tmp_path / "whole.npy", "--mesh", "x=2", "--target", '[{zigzag, "x"}]', "--out", tmp_path / "tiles")
    tiles = json.loads((tmp_path / "tiles" / "index.json").read_text())["tiles"]
    assert [tile["boxes"] for tile in tiles] == [[[[0, 2]], [[6, 8]]], [[[2, 6]]]]
    index = tmp_path / "tiles" / "index.json"
    index.write_text(index.read_text().replace("[[6, 8]]", "[[5, 7]]"))
    assert "the box of device 0 is not that of its sharding" in refused(
        "run", tmp_path / "tiles", "--target", '[{"x"}]', "--out", tmp_path / "out"
    )
