"""A bar on standard error while files are read and written, where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def phase(title: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a phase of the work as a bar, which is gone when the phase is over."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console  # noqa: PLC0415  # loads with the first bar, not with the package
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=max(total_bytes, 1))
        yield lambda count: progress.advance(task, count)


@contextlib.contextmanager
def silent(title: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """The same, and nothing is shown."""
    del title, total_bytes
    yield lambda count: None
