"""Folders of tiles, written and read by NumPy and JSON alone, and the command line that makes them from each other."""

from __future__ import annotations

import contextlib
import io
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import oracle

from reshard.cli import main
from reshard.sharding import Sharding


class Finished(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def record(self) -> Any:
        return json.loads(self.out)


def command(*args: object) -> Finished:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(arg) for arg in args])
    return Finished(status, out.getvalue(), err.getvalue())


def run(*args: object) -> Any:
    """Run `reshard run`, which must succeed; what it says for programs."""
    done = command("run", *args, "--json")
    assert (done.status, done.err) == (0, ""), done
    return done.record


def refused(*args: object) -> str:
    """Run a command that must be refused with one sentence; the sentence."""
    done = command(*args)
    assert (done.status, done.out) == (1, ""), done
    assert done.err.startswith("reshard: "), done
    assert "Traceback" not in done.err
    assert "fault in reshard" not in done.err
    return done.err.removeprefix("reshard: ").removesuffix("\n")


def write_tiles(folder: Path, sharding: Sharding, shape: tuple[int, ...], tiles: Mapping[int, Any]) -> None:
    """What an earlier run would have written, of plain NumPy tiles."""
    folder.mkdir()
    records = []
    for device, runs in oracle.ranges(sharding, shape).items():
        path = folder / f"tile {device}.npy"
        np.save(path, tiles[device])
        data = path.read_bytes()
        # A range without elements stands at the end of its dim.
        box = [[run.start, run.stop] if len(run) else [size, size] for run, size in zip(runs, shape, strict=True)]
        records.append(
            {"device": device, "file": path.name, "box": box, "bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}
        )
    dtype = next(iter(tiles.values())).dtype
    index = {
        "schema": "reshard.tiles/1",
        "mesh": str(sharding.mesh),
        "sharding": str(sharding),
        "shape": list(shape),
        "dtype": dtype.name,
        "stored": dtype.str,
        "order": "C",
        "tiles": records,
    }
    (folder / "index.json").write_text(json.dumps(index))


def read_tiles(folder: Path) -> dict[int, Any]:
    """The tiles of a folder as NumPy reads them, their checksums and sizes checked, and nothing else in it."""
    index = json.loads((folder / "index.json").read_text())
    tiles = {}
    for record in index["tiles"]:
        path = folder / record["file"]
        data = path.read_bytes()
        assert record["bytes"] == len(data)
        assert record["crc32"] == f"{zlib.crc32(data):08x}"
        tiles[record["device"]] = np.load(path)
    assert {path.name for path in folder.iterdir()} == {"index.json", *(record["file"] for record in index["tiles"])}
    return tiles


def assert_same(found: Mapping[int, Any], wanted: Mapping[int, Any]) -> None:
    """Compare device by device, bit by bit."""
    assert list(found) == list(wanted)
    for device, tile in wanted.items():
        assert (found[device].shape, found[device].dtype) == (tile.shape, tile.dtype), device
        assert found[device].tobytes() == tile.tobytes(), f"device {device} has {found[device]}, not {tile}"
