"""A checkpoint written anew, streamed under a memory cap, and there whole or not at all.

All is written into a folder beside the output.
Its files are made with their sizes and with what is known of them; then tensors go to their places, one after another
in the order in which they lie, each read once; the index comes last, and then the folder takes the output's name.
A journal beside the files says which tensors are done, so what was stopped can be gone on with, if it was begun for the
same source and the same request.

    .out.partial/request   what it was begun for; there once the files have their sizes
    .out.partial/journal-0 the numbers of tensors that are whole, a line each; one of every process
    .out.partial/files/    what becomes the output
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from threading import Lock

from reshard.errors import ReshardError, refusing
from reshard.models.checkpoints.copying import ReportBytes, TargetWriter, TensorCopy
from reshard.models.checkpoints.files import FileReader, Reads, TileWriter
from reshard.models.checkpoints.layouts import WrittenFiles
from reshard.models.checkpoints.orbax import ArrayWriter
from reshard.models.checkpoints.peers import Alone, Peers, agreed, dealt
from reshard.models.checkpoints.stored import Checkpoint

MEMORY, ARRAY_MEMORY = 3 << 20, 96 << 20
"""Bytes that may be held of tensors, where nothing is said: as runs of files are moved, and whole chunks of arrays."""
HELD_SLABS = 3
"""What a worker holds at a time: what it read, part of it in another order, part of it cast."""
LARGEST_SLAB = 64 << 20
SYNC_BYTES = 256 << 20
"""After so many, files are brought to the disk before the journal says that they are written."""


@dataclass(frozen=True)
class Converting:
    """What is done, and how."""

    source: Checkpoint
    written: WrittenFiles
    out: Path
    memory: int = MEMORY
    """Bytes that all workers together may hold of tensors."""
    workers: int = 1
    resume: bool = False
    check: bool = False
    sync: bool = True
    """Whether files are brought to the disk itself, so that they outlive the machine."""
    peers: Peers = field(default_factory=Alone)
    """The processes that share the work."""

    @property
    def partial(self) -> Path:
        """The folder that is written before the output takes its name."""
        return self.out.parent / f".{self.out.name}.partial"

    @property
    def files(self) -> Path:
        """What becomes the output."""
        return self.partial / "files"

    @property
    def slab(self) -> int:
        """Bytes of a slab."""
        return slab_of(self.memory, self.workers)

    def writer(self) -> TileWriter | ArrayWriter:
        """What writes to the files, or to the arrays."""
        return ArrayWriter(self.files, self.sync) if self.written.arrays else TileWriter(self.files)

    def request(self) -> str:
        """A short text for the source as it is now and for what is written."""
        first, second = 0, 1
        for line in self._said():
            data = line.encode()
            first, second = zlib.crc32(data, first), zlib.adler32(data, second)
        return f"{first:08x}{second:08x}\n"

    def _said(self) -> Iterator[str]:
        for path in self.source.files:
            with refusing("bad-file", f"{path} could not be read"):
                status = path.stat()
            yield repr((str(path), status.st_size, status.st_mtime_ns))
        yield repr((self.written.form, sorted(self.written.sizes.items()), sorted(self.written.arrays.items())))
        for copy in self.written.copies(self.source):
            for file, dtype, _ in copy.targets:
                yield repr((copy.name, str(file.path), file.offset, file.box, file.strides, dtype.name))


def slab_of(memory: int, workers: int) -> int:
    """Bytes of a slab where workers may hold so many together."""
    return max(min(memory // (HELD_SLABS * workers), LARGEST_SLAB), 1)


def least_memory(source: Checkpoint, workers: int) -> int:
    """What workers must be allowed to hold, as chunks that are packed are read whole."""
    chunks = (
        prod(tensor.grid) * tensor.dtype.itemsize for tensor in source.tensors.values() if tensor.grid is not None
    )
    return HELD_SLABS * workers * max(chunks, default=0)


@dataclass
class Journal:
    """Which tensors are whole, as a file says; what is written counts once it is on the disk, where that is wanted."""

    work: Converting
    waiting: list[int] = field(default_factory=list)
    waiting_bytes: int = 0
    touched: set[Path] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    @property
    def path(self) -> Path:
        """Of the file."""
        return self.work.partial / f"journal-{self.work.peers.rank}"

    def done(self) -> set[int]:
        """The tensors that are whole, as any peer says; a line that is cut short says nothing."""
        with refusing("write-failed", f"{self.work.partial} could not be read"):
            paths = sorted(self.work.partial.glob("journal-*"))
            text = "".join(path.read_text(encoding="ascii", errors="replace") + "\n" for path in paths)
        words = [line.split(" ") for line in text.split("\n")]
        return {int(line[0]) for line in words if line[1:] == ["done"] and line[0].isdigit()}

    def add(self, number: int, copy: TensorCopy, writer: TargetWriter) -> None:
        """A tensor was written."""
        with self.lock:
            self.waiting.append(number)
            self.waiting_bytes += copy.nbytes
            self.touched |= {target.file.path for target in copy.targets}
            if not self.work.sync or self.work.written.arrays or self.waiting_bytes >= SYNC_BYTES:
                self._write(writer)

    def close(self, writer: TargetWriter) -> None:
        """All was written."""
        with self.lock:
            self._write(writer)

    def _write(self, writer: TargetWriter) -> None:
        if self.work.sync:
            for path in sorted(self.touched):
                writer.sync(path)
        with refusing("write-failed", f"{self.path} could not be written"):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(descriptor, "".join(f"{number} done\n" for number in self.waiting).encode())
                if self.work.sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self.waiting.clear()
        self.touched.clear()
        self.waiting_bytes = 0


def convert(work: Converting, advance: ReportBytes) -> Reads:
    """Write all files; what was read for them, by all peers.

    Args:
        work: what is done.
        advance: told of bytes that are written, or were already.

    Raises:
        ReshardError: `file-exists`, `write-failed`, `bad-file`, `verify-failed`, `bad-argument`.
    """
    request, peers, least = work.request(), work.peers, least_memory(work.source, work.workers)
    if work.memory < least:
        raise ReshardError(
            "bad-argument",
            f"{work.source.path} has chunks that take {least} bytes of memory; {work.memory} are allowed",
        )
    with agreed(peers):
        begun = _begin(work, request) if peers.rank == 0 else None
    is_whole, done = peers.all(begun)[0]
    if is_whole:
        advance(work.written.nbytes)
        return Reads()
    with agreed(peers):
        reads = _copy_tensors(work, done, advance)
    with agreed(peers):
        if peers.rank == 0:
            _finish(work)
    return sum(peers.all(reads), Reads())


def _finish(work: Converting) -> None:
    """Say where all is, and give the folder its name."""
    with refusing("write-failed", f"{work.out} could not be written"):
        for name, data in work.written.indexes.items():
            _write_file(work.files / name, data, work.sync)
        if work.sync:
            sync_folder(work.files)
        work.files.rename(work.out)
        if work.sync:
            sync_folder(work.out.parent)
        shutil.rmtree(work.partial, ignore_errors=True)


def _begun_for(work: Converting) -> str:
    said = work.partial / "request"
    with refusing("write-failed", f"{work.partial} could not be read"):
        return said.read_text(encoding="utf-8", errors="replace") if said.is_file() else ""


def _begin(work: Converting, request: str) -> tuple[bool, set[int]]:
    """Whether all is there already; if not, which tensors are whole in a folder begun for the same request."""
    known = _begun_for(work)
    if work.out.exists() or work.out.is_symlink():
        if work.resume and not work.files.exists() and known == request:
            shutil.rmtree(work.partial, ignore_errors=True)  # all was done but to take this away
            return True, set()
        raise ReshardError("file-exists", f"{work.out} is already there; the output must be new")
    if work.resume and known == request:
        return False, Journal(work).done()
    if work.resume and known:
        raise ReshardError("bad-argument", f"{work.partial} was begun for another source or request; remove it first")
    _make_files(work, request)
    return False, set()


def _make_files(work: Converting, request: str) -> None:
    """A new folder to write to, with all files in their sizes."""
    with refusing("write-failed", f"{work.partial} could not be written"):
        if work.partial.exists():
            shutil.rmtree(work.partial)
        work.files.mkdir(parents=True)
        free = shutil.disk_usage(work.partial).free
        if work.written.nbytes > free:
            shutil.rmtree(work.partial)
            raise ReshardError(
                "write-failed", f"{work.out} would need {work.written.nbytes} bytes; {free} are free on its disk"
            )
        for name, size in work.written.sizes.items():
            with (work.files / name).open("wb") as file:
                file.truncate(size)
    with work.writer() as arrays:
        if isinstance(arrays, ArrayWriter):
            for name, array in work.written.arrays.items():
                arrays.create(name, array.shape, array.chunk, array.dtype)
    with TileWriter(work.files) as writer:
        for path, offset, data in work.written.fixed:
            writer.write_at(path, offset, data)
        for name in work.written.sizes if work.sync else ():
            writer.sync(Path(name))
    with refusing("write-failed", f"{work.partial} could not be written"):
        _write_file(work.partial / "request", request.encode(), work.sync)


def _write_file(path: Path, data: bytes, sync: bool) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    unfinished.rename(path)


def _copy_tensors(work: Converting, done: set[int], advance: ReportBytes) -> Reads:
    """Bring this process's share of the tensors that are not done to their places, several at a time."""
    journal, copies = Journal(work), work.written.copies(work.source)
    for number in done & set(range(len(copies))):
        advance(copies[number].nbytes)
    numbers = [number for number in range(len(copies)) if number not in done]
    hands = dealt([copies[number].nbytes for number in numbers], work.peers.size)
    left = iter([numbers[place] for place in hands[work.peers.rank]])
    lock = Lock()

    def copied() -> Reads:
        with FileReader() as reader, work.writer() as writer:
            while True:
                with lock:
                    number = next(left, None)
                if number is None:
                    journal.close(writer)
                    return reader.reads
                copies[number].copy(work.slab, reader, writer, advance)
                if work.check:
                    with FileReader() as back:
                        copies[number].check(work.slab, back, writer)
                journal.add(number, copies[number], writer)

    if work.workers == 1:
        return copied()
    with ThreadPoolExecutor(work.workers) as pool:
        tasks = [pool.submit(copied) for _ in range(work.workers)]
        try:
            return sum((task.result() for task in tasks), Reads())
        except BaseException:
            left = iter(())
            raise


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk itself, where the system can."""
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
