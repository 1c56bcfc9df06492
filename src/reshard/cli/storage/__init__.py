"""Tensors on disk: read in pieces, resharded from files to files, checked, and never whole in memory.

    encoding.py      how elements lie in files
    files.py         parts of files, by plain calls
    npy.py           headers of `.npy` files
    safetensors.py   headers of `.safetensors` files
    pieces_by_region.py  a tensor in regions that fit memory, and what lies in each
    streaming.py     one exchange, from files to files, and its check
    index.py         the index of a folder of tiles
    inputs.py        a file or a folder, opened
    folder.py        an output that is there whole or not at all

A plan of several exchanges runs through folders inside the output's, each removed once the next is checked.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from reshard.cli.storage.files import TileFile, write_failed
from reshard.cli.storage.folder import check_absent, check_room, output_folder
from reshard.cli.storage.index import NAME, FolderIndex, TileEntry, read_index
from reshard.cli.storage.inputs import Input, open_input
from reshard.cli.storage.streaming import (
    Advance,
    TensorFiles,
    TileTransfer,
    Written,
    check,
    transfers_of,
    write,
)
from reshard.errors import ReshardError
from reshard.exchange import Piece
from reshard.plans import Plan

__all__ = ["Input", "Outcome", "Progress", "check_absent", "open_input", "reshard_files"]

MAX_FILES = 2**16
"""Files that are written at the most."""
HEADER_BYTES = 256
"""What a header takes, or more."""


class Progress(Protocol):
    """Is told how far the work is."""

    def phase(self, title: str, total_bytes: int) -> AbstractContextManager[Advance]:
        """Enter a phase of the work."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was written."""

    index: FolderIndex
    received_bytes: Mapping[int, int]
    """Per device, what it took from others, in all exchanges."""


def reshard_files(plan: Plan, source: Input, out: Path, progress: Progress) -> Outcome:
    """Run a plan on a tensor on disk.

    Args:
        plan: what to do, for the shape and the dtype of the input.
        source: where the tensor is.
        out: the folder to write to, which must not be there.
        progress: is told how far the work is.

    Raises:
        ReshardError: `file-exists`, `write-failed`, `verify-failed`, `bad-file`, `too-large`, `missing-extra`.
    """
    check_absent(out)
    transfers = transfers_of(plan)
    devices = max(transfer.target.mesh.size for transfer in transfers)
    if devices > MAX_FILES:
        raise ReshardError("too-large", f"{devices} devices are too many for a file each; there may be {MAX_FILES}")
    sizes = [_bytes_on_disk(transfer, source) for transfer in transfers]
    check_room(out, max(after + before for before, after in zip([0, *sizes], sizes, strict=False)))
    files = source.tensor_files(plan.source)
    calculates = bool(files.blank) or any(transfer.calculates for transfer in transfers)
    dtype = source.encoding.values() if calculates else source.encoding.stored
    with progress.phase("checking the source", source.check_bytes()) as advance:
        source.check_sums(advance)
    received = dict.fromkeys(plan.devices, 0)
    with output_folder(out) as partial:
        for number, (transfer, size) in enumerate(zip(transfers, sizes, strict=True), 1):
            stage = partial if number == len(transfers) else _new_stage(partial / f"exchange-{number}")
            title = f" {number} of {len(transfers)}" if len(transfers) > 1 else ""
            with progress.phase(f"writing{title}", size) as advance:
                written = write(transfer, files, dtype, stage, advance)
            compared = transfer if source.index or calculates else _straight(transfer, plan)
            with progress.phase(f"verifying{title}", size) as advance:
                check(compared, files, dtype, written, advance)
            for device, record in written.items():
                received[device] += record.received_bytes
            if number > 1:
                shutil.rmtree(partial / f"exchange-{number - 1}")
            files = _files_of(written, source)
        entries = tuple(
            TileEntry(device, record.path.name, record.box, record.size, record.crc32)
            for device, record in written.items()
        )
        index = FolderIndex(plan.target, plan.shape, source.encoding, entries)
        _write_index(index, partial)
    return Outcome(index, received)


def _straight(transfer: TileTransfer, plan: Plan) -> TileTransfer:
    """The same tiles, each as one box of the whole: what a file that holds the whole tensor is compared by.

    It says where every element must be without the exchange that brought it there.
    """
    anyone = plan.source.mesh.device_at(0)
    target = transfer.target

    def whole_tile(device: int) -> list[Piece]:
        return [Piece(anyone, device, target.box(device), 0)]

    return TileTransfer(target, whole_tile)


def _bytes_on_disk(transfer: TileTransfer, source: Input) -> int:
    tiling = transfer.target
    return int(tiling.all_elements.sum()) * source.encoding.dtype.itemsize + tiling.mesh.size * HEADER_BYTES


def _new_stage(folder: Path) -> Path:
    try:
        folder.mkdir()
    except OSError as error:
        raise write_failed(folder, error) from None
    return folder


def _files_of(written: Mapping[int, Written], source: Input) -> TensorFiles:
    encoding = source.encoding
    files = {
        device: TileFile(record.path, len(record.header), encoding.stored_box(record.box))
        for device, record in written.items()
    }
    return TensorFiles(encoding, files)


def _write_index(index: FolderIndex, folder: Path) -> None:
    path = folder / NAME
    try:
        path.write_text(index.to_json(), encoding="utf-8", newline="\n")
    except OSError as error:
        raise write_failed(path, error) from None
    if read_index(folder) != index:
        raise ReshardError("verify-failed", f"{path} does not say what was written")
