"""Who sends what to whom.

pieces.py     a piece, and the one interface of an exchange
by_digits.py  senders in closed form, where source and target have common digits
ring.py       along a ring, from neighbour to neighbour
ring_roles.py  what digits along it do
ring_flows.py  how, so that the fullest link carries least
transposed_flows.py  where devices of two rings change places
by_boxes.py   senders dealt per source tile, for all else
kept.py       less what receivers still have of tiles from before
overlap_add.py  windows that are summed: the transpose of filling them
reduction.py  unreduced values: combine every element on one device, then gather
schedule.py   pieces in rounds, by colouring

There are two ways to find senders.
Digits say it in closed form, whatever the number of devices: planning looks at no device, every round is one
permutation, and every byte count is a product.
But they need cuts that nest and an order of devices that is a transposition of digits.
Boxes need neither: they compare where tiles begin and end, so all sizes, orders and sets of devices will do, and the
price is a list of tiles, and rounds that must be coloured afterwards.
Both receive the same bytes, the least there are; neither is an approximation of the other, so digits go first and
boxes take what is left.

By hand, 6 rows on x=2, y=3: cut by x at 3 and by x and y at 1, 2, 3, 4, 5 the blocks 3 and 1 nest; cut by y at 2 and 4
the blocks 3 and 2 do not.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> from reshard.tiling import Tiling
>>> mesh = Mesh.of(x=2, y=3)
>>> by_x, by_both, by_y = (Tiling.of(Sharding.of(mesh, axes), (6,)) for axes in ("x", ("x", "y"), "y"))
>>> type(find_exchange(by_x, by_both)).__name__, type(find_exchange(by_x, by_y)).__name__
('DigitExchange', 'BoxExchange')
"""

from __future__ import annotations

from reshard.exchange.by_digits import DigitExchange
from reshard.exchange.kept import KeptExchange
from reshard.exchange.overlap_add import OverlapAdd
from reshard.exchange.pieces import Exchange, Piece, PieceTable, overlap_elements
from reshard.exchange.reduction import class_digits, combine_then_gather, find_exchange, total_bound
from reshard.exchange.ring import RingExchange
from reshard.exchange.schedule import schedule

__all__ = [
    "DigitExchange",
    "Exchange",
    "KeptExchange",
    "OverlapAdd",
    "Piece",
    "PieceTable",
    "RingExchange",
    "class_digits",
    "combine_then_gather",
    "find_exchange",
    "overlap_elements",
    "schedule",
    "total_bound",
]
