"""An output folder that is there whole or not at all.

What is written goes to a folder beside it, `.NAME.partial-…`, which takes its name at the end.
On any error, and on a signal that asks to stop, it is removed, with the folders above it that were made for it.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reshard.cli.interrupts import held
from reshard.errors import ReshardError, refusing
from reshard.models.checkpoints.peers import Peers, agreed


def check_absent(out: Path) -> None:
    """Refuse an output that is already there, be it a dangling link, and one that cannot be named.

    Raises:
        ReshardError: `file-exists`, `bad-argument`, `write-failed`.
    """
    try:
        out.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ReshardError("write-failed", f"{out} could not be written: {error.strerror or error}") from None
    except ValueError as error:
        raise ReshardError("bad-argument", f"the output cannot be called {str(out)!r}: {error}") from None
    raise ReshardError("file-exists", f"{out} is already there; the output must be a new folder")


def check_room(out: Path, needed_bytes: int) -> None:
    """Refuse an output that the disk has no room for, where the disk can tell.

    Raises:
        ReshardError: `write-failed`.
    """
    try:
        nearest = next(folder for folder in out.absolute().parents if folder.is_dir())
        free = shutil.disk_usage(nearest).free
    except OSError:
        return
    if needed_bytes > free:
        raise ReshardError("write-failed", f"{out} would need {needed_bytes} bytes; {free} are free on its disk")


@contextlib.contextmanager
def shared_folder(out: Path, peers: Peers) -> Iterator[Path]:
    """The same folder for all processes; the first makes it and calls it `out`.

    Raises:
        ReshardError: `file-exists`, `bad-argument`, `write-failed`; what one refuses all refuse.
    """
    opened, folder = contextlib.ExitStack(), None
    with agreed(peers):
        if peers.rank == 0:
            folder = opened.enter_context(output_folder(out))
    with agreed(peers), opened, agreed(peers):
        partial: Any = peers.all(folder)[0]
        yield partial


@contextlib.contextmanager
def output_folder(out: Path) -> Iterator[Path]:
    """A folder to write to, which is called `out` when all went well and is gone when not.

    Raises:
        ReshardError: `file-exists`, `bad-argument`, `write-failed`.
    """
    check_absent(out)
    partial = out.parent / f".{out.name[:40]}.partial-{secrets.token_hex(8)}"
    new_folders: list[Path] = []
    try:
        _make(partial, new_folders)
        yield partial
        with held(), refusing("write-failed", f"{out} could not be written"):
            check_absent(out)
            partial.rename(out)
            new_folders.clear()
    except BaseException as error:
        with held():
            if partial in new_folders:
                shutil.rmtree(partial, ignore_errors=True)
            for folder in reversed(new_folders):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        if isinstance(error, KeyboardInterrupt):
            is_left = partial.exists()
            error.add_note(f"{partial} could not be removed" if is_left else "what was written so far is removed")
        raise


def _make(partial: Path, new_folders: list[Path]) -> None:
    """Make a folder and those above it that are not there; each is listed before it is made, as a signal may come."""
    with refusing("write-failed", f"{partial.parent} could not be written"):
        for folder in [*reversed(partial.parents), partial]:
            if not folder.exists():
                new_folders.append(folder)
                folder.mkdir()
