"""A bar on standard error while files are read and written, where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from reshard.cli.storage.streaming import Advance


class Silent:
    """Says nothing."""

    @contextlib.contextmanager
    def phase(self, title: str, total_bytes: int) -> Iterator[Advance]:
        """Enter a phase of the work."""
        del title, total_bytes
        yield lambda count: None


class Bar:
    """Shows each phase as a bar, which is gone when the phase is over."""

    @contextlib.contextmanager
    def phase(self, title: str, total_bytes: int) -> Iterator[Advance]:
        """Enter a phase of the work."""
        from rich.console import Console  # noqa: PLC0415  # loads with the first bar, not with the package
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(title, total=max(total_bytes, 1))
            yield lambda count: progress.advance(task, count)


def for_terminal() -> Silent | Bar:
    """A bar where standard error is a terminal, else nothing."""
    return Bar() if sys.stderr is not None and sys.stderr.isatty() else Silent()
