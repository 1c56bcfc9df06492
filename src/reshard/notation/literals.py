"""Python's literals in reprs: quoted names, and nested lists of numbers.

>>> nested_of([nested_of([0, 1]), nested_of([2, 3])])
Nested(shape=(2, 2), numbers=(0, 1, 2, 3))
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from reshard.notation.grammar import Misread

if TYPE_CHECKING:
    from lark import Token


class Nested(NamedTuple):
    """An array of numbers, as nested lists spell it."""

    shape: tuple[int, ...] | None
    """None where the lists are not all of one length."""
    numbers: tuple[int, ...]


class Skipped:
    """What is read and says nothing of where a tensor lies."""


def nested_of(parts: Sequence[Nested | int]) -> Nested:
    """A list of lists that are read, or of numbers."""
    lists = [part for part in parts if isinstance(part, Nested)]
    if not lists:
        numbers = tuple(part for part in parts if isinstance(part, int))
        return Nested((len(numbers),), numbers)
    inner = lists[0].shape
    is_even = len(lists) == len(parts) and inner is not None and all(part.shape == inner for part in lists)
    return Nested((len(lists), *inner) if is_even and inner is not None else None, sum((n.numbers for n in lists), ()))


def unquoted(token: Token) -> str:
    """The text that a quoted literal stands for.

    Raises:
        Misread: where it has an escape that Python has not.
    """
    if "\\" not in token:
        return str(token[1:-1])
    try:
        return str(ast.literal_eval(str(token)))
    except (SyntaxError, ValueError):
        raise Misread(token, "a name with an escape that is none stands") from None
