"""Files, folders that `--xla_dump_to` has filled, and standard input.

Of a dump folder two texts per module are read: the last one before partitioning and the one after optimisation.
All else that lies there is left, and named.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from reshard.errors import ReshardError, refusing
from reshard.mesh import Mesh
from reshard.xla.read.ir import Note
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
            texts.append(("standard input", _decoded(sys.stdin.buffer.read(), "standard input")))
        elif Path(path).is_dir():
            unread += _add_folder(Path(path), texts, keys)
        else:
            texts.append((path, _read(Path(path))))
    report = inspect_texts(texts, mesh=mesh, keys=keys)
    report.remarks[:0] = unread
    return report


def _add_folder(folder: Path, texts: list[tuple[str, str]], keys: dict[str, str]) -> list[Note]:
    """Add the texts of a folder that are worth reading, and what they share with others; what is left unread."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    dumps: dict[str, dict[str, Path]] = {}
    no_dumps = []
    for path in files:
        dump = _DUMP.fullmatch(path.name)
        if dump is not None:
            dumps.setdefault(dump.group(1), {})[dump.group(2)] = path
        else:
            no_dumps.append(path)
    stages = [(by_stage[stage], key) for key, by_stage in dumps.items() for stage in _ORDER if stage in by_stage]
    suffixes = (".log", ".err", ".stderr", ".mlir") if dumps else _TEXTS
    logs = [path for path in no_dumps if path.suffix in suffixes]
    if not stages and not logs:
        raise ReshardError("bad-file", f"{folder} holds no text of XLA's: no module and no log")
    texts += [(str(path), _read(path)) for path in [*(path for path, _ in stages), *logs]]
    keys.update((str(path), key) for path, key in stages)
    unread = [path for path in no_dumps if path not in logs]
    kinds = sorted({path.suffix or path.name for path in unread})
    return [Note(str(folder), 0, f"{len(unread)} files are not read: {', '.join(kinds)}")] if unread else []


def _read(path: Path) -> str:
    with refusing("bad-file", f"{path} cannot be read"):
        return _decoded(path.read_bytes(), str(path))


def _decoded(data: bytes, name: str) -> str:
    text = data.decode("utf-8", errors="replace")
    start = text[:4096]
    if 10 * (start.count("\ufffd") + start.count("\0")) > len(start):
        raise ReshardError("bad-file", f"{name} is no text; what is compressed must be unpacked first")
    return text
