"""Tensors on disk: read in pieces, resharded from files to files, checked, and never whole in memory.

    several_boxes.py  tiles that are no box, in parts
    encoding.py      how elements lie in files
    npy.py           headers of `.npy` files
    pieces_by_region.py  a tensor in regions that fit memory, and what lies in each
    streaming.py     one exchange, from files to files, and its check
    index.py         the index of a folder of tiles
    inputs.py        a file or a folder, opened
    folder.py        an output that is there whole or not at all

A plan of several exchanges runs through folders inside the output's, each removed once the next is checked.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from math import prod
from pathlib import Path

from reshard.cli.storage.folder import check_absent, check_room, shared_folder
from reshard.cli.storage.index import NAME, FolderIndex, TileEntry, read_index
from reshard.cli.storage.inputs import Input, open_input
from reshard.cli.storage.streaming import Advance, TensorFiles, TileTransfer, check, pieces_of, transfers_of, write
from reshard.errors import ReshardError, refusing
from reshard.models.checkpoints.peers import Alone, Peers, agreed, share
from reshard.plans import Plan
from reshard.tiling import Tiling

__all__ = ["Input", "Peers", "TileEntry", "agreed", "check_absent", "open_input", "reshard_files"]

MAX_FILES = 2**16
"""Files that are written at the most."""
HEADER_BYTES = 256
"""What a header takes, or more."""
Phase = Callable[[str, int], AbstractContextManager[Advance]]
"""Begins a phase of the work, by its title and how many bytes there are to do, and is told how far it is."""


def reshard_files(
    plan: Plan, source: Input, out: Path, phase: Phase, peers: Peers | None = None
) -> tuple[tuple[TileEntry, ...], dict[int, int]]:
    """Run a plan on a tensor on disk; the tiles, and per device what it took from others in all exchanges.

    Args:
        plan: what to do, for the shape and the dtype of the input.
        source: where the tensor is.
        out: the folder to write to, which must not be there.
        phase: is told how far the work is.
        peers: the processes that do it together, all of which call this alike and see the same files.

    Raises:
        ReshardError: `file-exists`, `write-failed`, `verify-failed`, `bad-file`, `too-large`, `missing-extra`.
    """
    peers = peers or Alone()
    with agreed(peers):
        transfers, sizes = _transfers_with_sizes(plan, source, out)
        files = source.tensor_files(plan.source)
        calculates = bool(files.blank) or any(transfer.calculates for transfer in transfers)
        dtype = source.encoding.values() if calculates else source.encoding.stored
    with phase("checking the source", sum(entry.size for entry in source.entries)) as advance, agreed(peers):
        source.check_sums(advance, peers)
    received_bytes = dict.fromkeys(plan.devices, 0)
    with shared_folder(out, peers) as partial:
        for number, (transfer, size) in enumerate(zip(transfers, sizes, strict=True), 1):
            stage = partial if number == len(transfers) else partial / f"exchange-{number}"
            with agreed(peers), refusing("write-failed", f"{stage} could not be written"):
                stage.mkdir(exist_ok=True)
            transfer = replace(transfer, only=tuple(share(peers, transfer.devices)))
            title = f" {number} of {len(transfers)}" if len(transfers) > 1 else ""
            with phase(f"writing{title}", size // peers.size) as advance, agreed(peers):
                written = write(transfer, files, dtype, stage, advance)
            compared = transfer if source.index or calculates else _straight(transfer, plan)
            with phase(f"verifying{title}", size // peers.size) as advance, agreed(peers):
                check(compared, files, dtype, stage, written, advance)
            every = {device: entry for entries in peers.all(written) for device, entry in entries.items()}
            entries = {device: every[device] for device in transfer.target.mesh.device_array.tolist()}
            for device, entry in entries.items():
                received_bytes[device] += entry.received_bytes
            if number > 1 and peers.rank == 0:
                shutil.rmtree(partial / f"exchange-{number - 1}")
            if number < len(transfers):
                files = TensorFiles.of_tiles(entries.values(), source.encoding, stage)
        index = FolderIndex(plan.target, plan.shape, source.encoding, tuple(entries.values()))
        if peers.rank == 0:
            _write_index(index, partial)
    return index.entries, received_bytes


def _transfers_with_sizes(plan: Plan, source: Input, out: Path) -> tuple[list[TileTransfer], list[int]]:
    """What is done one after the other, and the bytes that each writes; refused where there is no room."""
    check_absent(out)
    transfers = transfers_of(plan)
    tilings = [transfer.target for transfer in transfers]
    devices = max(tiling.mesh.size for tiling in tilings)
    if devices > MAX_FILES:
        raise ReshardError("too-large", f"{devices} devices are too many for a file each; there may be {MAX_FILES}")
    itemsize = source.encoding.dtype.itemsize
    sizes = [_stored(tiling) * itemsize + tiling.mesh.size * HEADER_BYTES for tiling in tilings]
    check_room(out, max(after + before for before, after in zip([0, *sizes], sizes, strict=False)))
    return transfers, sizes


def _stored(tiling: Tiling) -> int:
    """The elements that all files store; in windows the same may stand several times."""
    if tiling.layout.has_windows:
        return sum(prod(tiling.tile(device).shape) for device in tiling.mesh.devices)
    return int(tiling.all_elements.sum())


def _write_index(index: FolderIndex, folder: Path) -> None:
    path = folder / NAME
    with refusing("write-failed", f"{path} could not be written"):
        path.write_text(index.to_json(), encoding="utf-8", newline="\n")
    if read_index(folder) != index:
        raise ReshardError("verify-failed", f"{path} does not say what was written")


def _straight(transfer: TileTransfer, plan: Plan) -> TileTransfer:
    """The same tiles, each in boxes of the whole: what a file that holds the whole tensor is compared by.

    It says where every element must be without the exchange that brought it there.
    """
    anyone, target = plan.source.mesh.device_at(0), transfer.target
    return TileTransfer(target, lambda device: pieces_of(target, device, anyone), only=transfer.only)
