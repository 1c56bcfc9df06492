"""What is shown of a drawing that is too large, and the lines that say what is not.

A row of entries that does not fit keeps its first ones and its last one around an ellipsis.
Of ten entries, limited to four:

>>> shown(10, 4)
[0, 1, 2, None, 9]
>>> missing(10, 4)
'3 to 8'
"""

from __future__ import annotations

from typing import Any

from reshard.errors import ReshardError
from reshard.sharding import Sharding

MAX_WIDTH = 120
"""Columns of text, unless said."""
MAX_LINES = 100
"""Lines of a picture, unless said."""
MAX_ALONG = 16
"""Entries of one row that are drawn at the most where some are left out."""
MAX_CELLS = 1024
"""Cells that are drawn at the most, whatever the width and the lines."""
MAX_ELEMENTS = 65536
"""Elements that are drawn at the most, whatever the width and the lines."""
ELLIPSIS = "..."


def shown(count: int, limit: int) -> list[int | None]:
    """The entries of a row to be drawn; None stands for the ellipsis."""
    if count <= limit:
        return list(range(count))
    return [*range(max(limit - 1, 1)), None, *([count - 1] if limit > 1 else [])]


def missing(count: int, limit: int) -> str:
    """Which entries an ellipsis stands for."""
    first, last = max(limit - 1, 1), count - 2 if limit > 1 else count - 1
    return f"{first} to {last}" if first < last else str(first)


def checked_limits(max_width: Any, max_lines: Any) -> None:
    """Refuse limits that are no positive integers.

    Raises:
        ReshardError: `bad-argument`.
    """
    for name, limit in (("max_width", max_width), ("max_lines", max_lines)):
        if not isinstance(limit, int) or limit < 1:
            raise ReshardError("bad-argument", f"{name} must be an integer of at least 1, got: {limit!r}")


def checked_sharding(sharding: Any) -> Sharding:
    """The sharding itself.

    Raises:
        ReshardError: `bad-argument` where it is none.
    """
    if not isinstance(sharding, Sharding):
        raise ReshardError("bad-argument", f"a Sharding is needed, got: {sharding!r}")
    return sharding


def partial_note(sharding: Sharding, who: str) -> list[str]:
    """The line that says that tiles are partial values; none where they are not.

    >>> from reshard.mesh import Mesh
    >>> partial_note(Sharding.of(Mesh.of(x=2, y=2), "x", unreduced="y"), "each device")
    ['unreduced={"y"}: each device holds partial values, which the sum along these axes completes']
    """
    if not sharding.unreduced:
        return []
    axes = ", ".join(map(str, sharding.unreduced))
    return [
        f"unreduced={{{axes}}}: {who} holds partial values, which the {sharding.reduction} along these axes completes"
    ]
