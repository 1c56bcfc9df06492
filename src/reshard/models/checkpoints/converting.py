"""A checkpoint written anew, streamed under a memory cap, and there whole or not at all.

Files are written one by one into a folder beside the output, each under another name until it is whole; the index comes
last, and then the folder takes its name.
What is left where the work was stopped can be gone on with: files that are whole are kept, if they were begun for the
same source and the same request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reshard.errors import ReshardError, refusing
from reshard.models.checkpoints import safetensors
from reshard.models.checkpoints.files import FileReader, bytes_of
from reshard.models.checkpoints.layouts import Files, WrittenBuffer
from reshard.models.checkpoints.opening import INDEX
from reshard.models.checkpoints.stored import Checkpoint

REQUEST = "request"
"""The file that says what a folder was begun for."""
DEVICES = "devices.json"
"""The index of files by device."""
CAP = 4 << 20
"""Bytes of a slab, where no memory cap is given."""

ReportBytes = Callable[[int], None]


class Converting(NamedTuple):
    """What is done, and how."""

    source: Checkpoint
    files: Files
    out: Path
    memory: int
    """Bytes that all workers together may hold of tensors."""
    workers: int
    resume: bool
    check: bool

    @property
    def partial(self) -> Path:
        """The folder that is written before it takes its name."""
        return self.out.parent / f".{self.out.name}.partial"

    def request(self) -> str:
        """A short name for the source as it is now and for what is written."""
        state = hashlib.blake2b(digest_size=16)
        for path in sorted({chunk.path for tensor in self.source.tensors.values() for chunk in tensor.chunks}):
            with refusing("bad-file", f"{path} could not be read"):
                said = path.stat()
            state.update(repr((str(path), said.st_size, said.st_mtime_ns)).encode())
        for file, buffers in self.files.items():
            for name, buffer in buffers.items():
                slots = [(part.name, part.slot) for part in buffer.parts]
                state.update(repr((file, name, buffer.dtype.name, buffer.shape, slots)).encode())
        return state.hexdigest()


def convert(work: Converting, advance: ReportBytes) -> None:
    """Write all files.

    Args:
        work: what is done.
        advance: told of bytes that are written, or checked.

    Raises:
        ReshardError: `file-exists`, `write-failed`, `bad-file`, `verify-failed`, `bad-argument`.
    """
    partial, request = work.partial, work.request()
    if work.out.exists() or work.out.is_symlink():
        raise ReshardError("file-exists", f"{work.out} is already there; the output must be new")
    _begin(work, partial, request)
    cap = max(work.memory // (2 * work.workers), 1)
    with ThreadPoolExecutor(work.workers) as pool:
        tasks = [
            pool.submit(_write_file, partial / name, buffers, cap, work.check, advance)
            for name, buffers in work.files.items()
        ]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
    with refusing("write-failed", f"{work.out} could not be written"):
        _write_index(work, partial)
        (partial / REQUEST).unlink()
        partial.rename(work.out)


def _begin(work: Converting, partial: Path, request: str) -> None:
    """The folder to write to: a new one, or the one that was begun for the same request."""
    with refusing("write-failed", f"{partial} could not be written"):
        if partial.exists():
            said = partial / REQUEST
            known = said.read_text(encoding="utf-8", errors="replace") if said.is_file() else ""
            if work.resume and known == request:
                return
            if work.resume and known:
                raise ReshardError(
                    "bad-argument", f"{partial} was begun for another source or request; remove it first"
                )
            shutil.rmtree(partial)
        needed = sum(buffer.nbytes for buffers in work.files.values() for buffer in buffers.values())
        partial.mkdir(parents=True)
        free = shutil.disk_usage(partial).free
        if needed > free:
            partial.rmdir()
            raise ReshardError("write-failed", f"{work.out} would need {needed} bytes; {free} are free on its disk")
        (partial / REQUEST).write_text(request, encoding="utf-8")


def _write_file(path: Path, buffers: dict[str, WrittenBuffer], cap: int, check: bool, advance: ReportBytes) -> None:
    """Write a file, and read it back where that is asked for; one that is whole already is left."""
    size = sum(buffer.nbytes for buffer in buffers.values())
    if path.exists():
        advance(size)
        return
    unfinished = path.with_name(path.name + ".part")
    header = safetensors.header_of(
        {name: (buffer.dtype, buffer.shape) for name, buffer in buffers.items()}, {"format": "pt"}
    )
    with FileReader() as reader, refusing("write-failed", f"{path} could not be written"):
        with unfinished.open("wb", buffering=0) as file:
            _write(file, memoryview(header))
            for buffer in buffers.values():
                for slab in buffer.slabs(cap, reader):
                    _write(file, bytes_of(np.ascontiguousarray(slab)))
                    advance(slab.nbytes)
            os.fsync(file.fileno())
        if check:
            _check(unfinished, len(header), buffers, cap, reader)
        unfinished.rename(path)


def _write(file: object, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += file.write(data[done:])  # type: ignore[attr-defined]  # a file without a buffer


def _check(path: Path, start: int, buffers: dict[str, WrittenBuffer], cap: int, reader: FileReader) -> None:
    """Read back what was written, and compare it with the source once more.

    Raises:
        ReshardError: `verify-failed`.
    """
    for name, buffer in buffers.items():
        for slab in buffer.slabs(cap, reader):
            written = np.empty_like(slab)
            reader.read_into(path, start, bytes_of(written))
            if not np.array_equal(written, slab):
                raise ReshardError("verify-failed", f"{name!r} in {path} differs from what was written")
            start += slab.nbytes


def _write_index(work: Converting, partial: Path) -> None:
    """Say which file holds what."""
    sizes = sum(buffer.nbytes for buffers in work.files.values() for buffer in buffers.values())
    if all(name.startswith("device-") for name in work.files):
        devices = {str(int(name[7:-12])): name for name in work.files}
        text = json.dumps({"metadata": {"total_size": sizes}, "devices": devices}, indent=1)
        (partial / DEVICES).write_text(text, encoding="utf-8")
    elif len(work.files) > 1:
        names = {name: file for file, buffers in work.files.items() for name in buffers}
        text = json.dumps({"metadata": {"total_size": sizes}, "weight_map": names}, indent=1)
        (partial / INDEX).write_text(text, encoding="utf-8")
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        descriptor = os.open(partial, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
