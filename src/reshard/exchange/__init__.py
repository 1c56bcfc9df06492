"""Section by section: who sends what to whom.

    pieces.py   a piece, a tiling, the one interface of an exchange
    digits.py   senders in closed form, where source and target have common digits
    boxes.py    senders dealt per source tile, for all else
"""

from __future__ import annotations

from reshard.exchange.boxes import by_boxes
from reshard.exchange.digits import by_digits
from reshard.exchange.pieces import Exchange, Piece, Tiling

__all__ = ["Exchange", "Piece", "Tiling", "find_exchange"]


def find_exchange(source: Tiling, target: Tiling) -> Exchange:
    return by_digits(source, target) or by_boxes(source, target)
