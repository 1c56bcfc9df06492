"""Pieces in rounds: in each a device sends at most one piece and receives at most one.

Devices that send and devices that receive, joined by pieces, are a bipartite graph, and rounds are colours of
its edges.
As many colours as the largest degree are enough (König), found by turning alternating paths.
An engine whose rounds move boxes of one shape colours each shape by itself: a transposition on a mesh of
2 x 3 has degree 3 and takes 6 such rounds.

>>> from reshard.box import Box
>>> pieces = [Piece(s, r, Box([(0, 1)]), 0) for s, r in [(0, 1), (0, 2), (1, 2), (2, 2)]]
>>> [[(piece.sender, piece.receiver) for piece in pieces] for pieces in schedule(pieces)]
[[(0, 1), (1, 2)], [(0, 2)]]
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from reshard.exchange.pieces import Piece


def schedule(pieces: Iterable[Piece], *, one_shape: bool = False, staying: bool = False) -> list[list[Piece]]:
    """Rounds of the pieces that travel, or else of those that stay on their device; the others are left out.

    Args:
        pieces: in any order.
        one_shape: whether all pieces of a round must have one shape; largest shapes come first.
        staying: which pieces are asked for.

    Returns:
        As many rounds as the largest number of pieces that one device sends or receives, of one shape where
        asked for, added up over the shapes.
    """
    asked = [piece for piece in pieces if (piece.sender == piece.receiver) == staying]
    if not one_shape:
        return _coloured(asked)
    shapes: dict[tuple[int, ...], list[Piece]] = {}
    for piece in asked:
        shapes.setdefault(piece.box.shape, []).append(piece)
    ordered = sorted(shapes.values(), key=lambda group: -group[0].box.size)
    return [pieces for group in ordered for pieces in _coloured(group)]


class _Node(NamedTuple):
    """A device as a sender or as a receiver: a node of the graph."""

    device: int
    receives: bool


def _coloured(pieces: list[Piece]) -> list[list[Piece]]:
    at: dict[_Node, dict[int, Piece]] = {}
    for piece in pieces:
        sender, receiver = (at.setdefault(node, {}) for node in _nodes(piece))
        first = next(c for c in count() if c not in sender)
        second = next(c for c in count() if c not in receiver)
        if first != second:
            _swap(_Node(piece.receiver, True), first, second, at)
        sender[first] = receiver[first] = piece
    rounds: dict[int, list[Piece]] = {}
    for node, colours in at.items():
        for colour, piece in colours.items():
            if node.receives:
                rounds.setdefault(colour, []).append(piece)
    return [sorted(rounds[colour]) for colour in sorted(rounds)]


def _nodes(piece: Piece) -> tuple[_Node, _Node]:
    """The two nodes that a piece joins."""
    return _Node(piece.sender, False), _Node(piece.receiver, True)


def _swap(start: _Node, first: int, second: int, at: dict[_Node, dict[int, Piece]]) -> None:
    """Swap two colours along the path from `start`, so that the first is free there."""
    path: list[Piece] = []
    node, colour = start, first
    while colour in at[node]:
        piece = at[node][colour]
        path.append(piece)
        node = _Node(piece.sender, False) if node.receives else _Node(piece.receiver, True)
        colour = second if colour == first else first
    for number, piece in enumerate(path):
        colour_before = first if number % 2 == 0 else second
        for node in _nodes(piece):
            if at[node].get(colour_before) is piece:
                del at[node][colour_before]
    for number, piece in enumerate(path):
        colour_after = second if number % 2 == 0 else first
        for node in _nodes(piece):
            at[node][colour_after] = piece
