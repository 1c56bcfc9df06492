"""Drawings in plain text: what each device holds, and how two shardings cut a tensor.

`draw_contents` draws a mesh with the tile in each device.
`draw_cuts` lays the cuts of two shardings over each other; `overlaps`, `cut_period` and `piece_ranges` say the
same in numbers.

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
from reshard.view.cuts import Overlap, PieceRanges, cut_period, draw_cuts, overlaps, piece_ranges

__all__ = ["Overlap", "PieceRanges", "cut_period", "draw_contents", "draw_cuts", "overlaps", "piece_ranges"]
