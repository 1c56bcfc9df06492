"""Standard output and standard error: text, JSON, the one sentence of a refusal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reshard.errors import ReshardError
from reshard.tables import Passage, show

PIPED_WIDTH = 120
"""Columns of a drawing that does not go to a terminal."""


def make_tolerant() -> None:
    """Print what the encoding of a stream lacks as an escape, where it would be an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def width() -> int:
    """The columns that a drawing may have."""
    return shutil.get_terminal_size().columns if is_terminal() else PIPED_WIDTH


def write_shown(value: object, blocks: Iterable[Passage]) -> None:
    """A value: as its blocks where standard output is a terminal, else as its plain text."""
    if is_terminal():
        show(blocks)
    else:
        print(value)


def write_file(path: str, text: str) -> None:
    """A text into a new file.

    Raises:
        ReshardError: `file-exists`, `write-failed`.
    """
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ReshardError("file-exists", f"{path} is already there") from None
    except OSError as error:
        raise ReshardError("write-failed", f"{path} could not be written: {error.strerror}") from None


def write_json(value: Any) -> None:
    """One JSON document."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """A value as JSON, to read."""
    return json.dumps(value, indent=1)


def flush() -> None:
    """Hand over what has been printed, so that it fails here and not when the process ends."""
    if sys.stdout is not None:
        sys.stdout.flush()


def note(sentence: str) -> None:
    """Something that the user should know and that stops nothing, to standard error."""
    complain(f"note: {sentence}")


def complain(sentence: str) -> None:
    """The sentence of a refusal, to standard error; where nobody reads that, to nobody."""
    with contextlib.suppress(OSError, ValueError):
        print(f"reshard: {sentence}", file=sys.stderr, flush=True)


def abandon() -> None:
    """Drop what standard output still holds and can no longer be written, so that nothing is said at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        descriptor = sys.stdout.fileno()
        try:
            sys.stdout.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
