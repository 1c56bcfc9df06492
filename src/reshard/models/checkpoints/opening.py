"""A checkpoint opened, whatever its form: a folder of safetensors files, one such file, or torch's own folder.

A folder with `.metadata` is torch's; one with an index takes the files that the index names, and one without takes all
`.safetensors` files in it.
"""

from __future__ import annotations

from pathlib import Path

from reshard.box import Box
from reshard.errors import ReshardError, refusing
from reshard.models.checkpoints import dcp, device_tiles, orbax, safetensors
from reshard.models.checkpoints.files import TileFile
from reshard.models.checkpoints.stored import INDEX, TILES, Checkpoint, StoredTensor, is_inside


def open_checkpoint(path: str | Path) -> Checkpoint:
    """What lies at a path.

    Raises:
        ReshardError: `bad-file` where it is no checkpoint, or a malformed one.
    """
    path = Path(path)
    with refusing("bad-file", f"{path} could not be read"):
        is_folder, is_file = path.is_dir(), path.is_file()
        if is_folder and (path / dcp.METADATA).is_file():
            return dcp.read(path)
        if is_folder and (path / orbax.METADATA).is_file():
            return orbax.read(path)
        if is_folder and (path / "default" / orbax.METADATA).is_file():
            return orbax.read(path / "default")
        if is_folder and (path / TILES).is_file():
            return device_tiles.read(path)
        if is_folder:
            files = _listed(path)
        elif is_file and path.suffix == ".safetensors":
            files = {path: None}
        else:
            raise ReshardError("bad-file", f"{path} is no .safetensors file and no folder of a checkpoint")
    tensors: dict[str, StoredTensor] = {}
    for file, names in files.items():
        entries = safetensors.read_entries(file)
        for name in entries if names is None else names:
            if name not in entries:
                raise ReshardError("bad-file", f"{file} has no tensor {name!r}, which the index says it has")
            if name in tensors:
                raise ReshardError("bad-file", f"tensor {name!r} is in {file} and in another file of {path}")
            entry = entries[name]
            chunk = TileFile(file, entry.offset, Box.whole(entry.shape))
            tensors[name] = StoredTensor(entry.dtype, entry.shape, (chunk,))
    return Checkpoint(path, "safetensors", tensors, tuple(files))


def _listed(folder: Path) -> dict[Path, list[str] | None]:
    """The files of a folder, each with the names to take from it, or None for all."""
    path = folder / INDEX
    if not path.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ReshardError("bad-file", f"{folder} holds no .safetensors file, no {INDEX} and no {dcp.METADATA}")
        return dict.fromkeys(files)
    index = device_tiles.json_of(path)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict):
        raise ReshardError("bad-file", f"{path} is no index of safetensors files")
    listings: dict[Path, list[str] | None] = {}
    for name, relative in names.items():
        if not is_inside(relative):
            raise ReshardError("bad-file", f"{path} puts {name!r} into {relative!r}, which is no file of the folder")
        listing = listings.setdefault(folder / relative, [])
        if listing is not None:
            listing.append(name)
    return listings
