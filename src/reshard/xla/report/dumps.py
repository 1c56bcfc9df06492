"""Files, folders that `--xla_dump_to` has filled, and standard input.

Of a dump folder two texts per module are read: the last one before partitioning and the one after optimisation.
All else that lies there is left, and named.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from reshard.errors import ReshardError, refusing
from reshard.mesh import Mesh
from reshard.xla.read.ir import Note
from reshard.xla.report.joining import ProgramEnds
from reshard.xla.report.report import Report, inspect_texts

_DUMP = re.compile(
    r"(module_\d+\.[^/]*?)\.(?:\d{4}\.)?[^/]*?(before_spmd-partitioning|before_optimizations|after_optimizations)\.txt"
)
_TEXTS = (".txt", ".hlo", ".mlir", ".log", ".err", ".out", ".stderr", ".stdout")
_ORDER = ("before_optimizations", "before_spmd-partitioning", "after_optimizations")


def inspect_paths(paths: Iterable[str], *, mesh: Mesh | None = None) -> Report:
    """Read files, folders and standard input, and report what is found in them.

    Args:
        paths: of files and folders; `-` is standard input.
        mesh: names the axes where a text has none.

    Raises:
        ReshardError: `bad-file` where there is nothing that can be read.
    """
    texts: list[tuple[str, str]] = []
    keys: dict[str, str] = {}
    unread: list[Note] = []
    for path in paths:
        if path == "-":
            texts.append(("standard input", decoded(sys.stdin.buffer.read(), "standard input")))
        elif Path(path).is_dir():
            dump = read_dump(Path(path))
            texts += dump.texts
            keys |= dump.keys
            unread += dump.unread
        else:
            texts.append((path, _read(Path(path))))
    report = inspect_texts(texts, mesh=mesh, keys=keys)
    report.remarks[:0] = unread
    return report


def inspect_dump(folder: Path, *, mesh: Mesh | None = None, ends: ProgramEnds | None = None) -> Report:
    """Read a folder that is soon gone; its files go by their names alone.

    Args:
        folder: what XLA has filled, and logs.
        mesh: names the axes where a text has none.
        ends: of the one program there, where it is one.

    Raises:
        ReshardError: `bad-file` where there is nothing that can be read.
    """
    dump = read_dump(folder)
    names = {path: Path(path).name for path, _ in dump.texts}
    after = [name for name in names.values() if "after_optimizations" in name]
    return inspect_texts(
        [(names[path], text) for path, text in dump.texts],
        mesh=mesh,
        ends={after[0]: ends} if ends is not None and len(after) == 1 else None,
        keys={names[path]: key for path, key in dump.keys.items()},
    )


class Dump(NamedTuple):
    """What a folder holds."""

    texts: list[tuple[str, str]]
    """Names and texts that are worth reading."""
    keys: dict[str, str]
    """By a text's name what it has in common with the others of one program."""
    unread: list[Note]
    """What is left unread."""


def read_dump(folder: Path) -> Dump:
    """The texts of a folder that are worth reading; a file that cannot be read spoils itself alone.

    Raises:
        ReshardError: `bad-file` where there is none.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    dumps: dict[str, dict[str, Path]] = {}
    no_dumps = []
    for path in files:
        dump = _DUMP.fullmatch(path.name)
        if dump is not None:
            dumps.setdefault(dump.group(1), {})[dump.group(2)] = path
        else:
            no_dumps.append(path)
    stages = {by_stage[stage]: key for key, by_stage in dumps.items() for stage in _ORDER if stage in by_stage}
    suffixes = (".log", ".err", ".stderr", ".mlir") if dumps else _TEXTS
    logs = [path for path in no_dumps if path.suffix in suffixes]
    texts, notes = [], []
    for path in (*stages, *logs):
        try:
            texts.append((str(path), _read(path)))
        except ReshardError as error:
            notes.append(Note(str(path), 0, str(error)))
    if not texts:
        raise ReshardError("bad-file", f"{folder} holds no text of XLA's: no module and no log")
    unread = [path for path in no_dumps if path not in logs]
    kinds = sorted({path.suffix or path.name for path in unread})
    if unread:
        notes.append(Note(str(folder), 0, f"{len(unread)} files are not read: {', '.join(kinds)}"))
    return Dump(texts, {str(path): key for path, key in stages.items()}, notes)


def _read(path: Path) -> str:
    """The text of a file; of a pipe what is written into it, and nothing where nobody writes."""
    with refusing("bad-file", f"{path} cannot be read"):
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait for a writer
        os.set_blocking(number, True)
        with os.fdopen(number, "rb") as file:
            return decoded(file.read(), str(path))


def decoded(data: bytes, name: str) -> str:
    """A text as far as it is one.

    Raises:
        ReshardError: `bad-file` where it is none.
    """
    text = data.decode("utf-8-sig", errors="replace")
    start = text[:4096]
    if 10 * (start.count("\ufffd") + start.count("\0")) > len(start):
        raise ReshardError("bad-file", f"{name} is no text; what is compressed must be unpacked first")
    return text
