"""Drawings in plain text, and whole pages in notebooks: what each device holds, and how two shardings cut a tensor.

`draw_contents` draws a mesh with the tile in each device.
`draw_holders` draws the tensor with the devices that hold its parts.
`draw_cuts` lays the cuts of two shardings over each other; `overlaps`, `cut_period` and `piece_ranges` say the
same in numbers.
`show` gives a notebook the whole page of what has one.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> print(draw_contents(Sharding.of(Mesh.of(x=3), "x"), (6,)))
"x"=3
----------->
+-----+-----+-----+
| 1 2 | 3 4 | 5 6 |
+-----+-----+-----+
"""

from __future__ import annotations

from reshard.view.contents import draw_contents
from reshard.view.cuts import Overlap, PieceRanges, cut_period, draw_cuts, draw_holders, overlaps, piece_ranges
from reshard.view.showing import show

__all__ = [
    "Overlap",
    "PieceRanges",
    "cut_period",
    "draw_contents",
    "draw_cuts",
    "draw_holders",
    "overlaps",
    "piece_ranges",
    "show",
]
