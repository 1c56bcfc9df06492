"""Who sends what to whom.

pieces.py     a piece, a tiling, and the one interface of an exchange
digits.py     senders in closed form, where source and target have common digits
boxes.py      senders dealt per source tile, for all else
reduction.py  partial values: combine every element on one device, then gather
schedule.py   pieces in rounds, by colouring
"""

from __future__ import annotations

from reshard.exchange.by_digits import DigitExchange
from reshard.exchange.pieces import Exchange, Piece, Tiling, overlap_elements
from reshard.exchange.reduction import combine_then_gather, find_exchange, kept_apart, kept_size, total_bound
from reshard.exchange.schedule import schedule

__all__ = [
    "DigitExchange",
    "Exchange",
    "Piece",
    "Tiling",
    "combine_then_gather",
    "find_exchange",
    "kept_apart",
    "kept_size",
    "overlap_elements",
    "schedule",
    "total_bound",
]
