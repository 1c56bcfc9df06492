"""Attributes of an operation as it keeps them: plain values, which its text can hold and compare equal.

A caller hands over what lies at hand: numbers of NumPy, lists.
Kept are numbers of Python, texts and tuples of integers alone, in the order of their names, so that an operation can
be hashed and what is written of it reads back as the same.
What would not read back is refused here: names that the text has for something else, texts with quotes.

>>> plain_items({"low": [1, 0], "axis": 2})
(('axis', 2), ('low', (1, 0)))
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from reshard.checks import integer, shown
from reshard.errors import ReshardError
from reshard.operations.operation import Attribute
from reshard.propagation.builder import NAME
from reshard.propagation.text import OWN


def plain_items(attributes: Mapping[Any, Any]) -> tuple[tuple[str, Attribute], ...]:
    """Attributes as an operation keeps them: such as the text form can hold."""
    for key in attributes:
        taken = key in OWN or str(key).startswith("sizes.")
        if not isinstance(key, str) or not NAME.fullmatch(key) or taken:
            raise ReshardError("bad-argument", f"the name of an attribute must be a word of its own, got: {shown(key)}")
    return tuple(sorted((key, _plain(value)) for key, value in attributes.items()))


def _plain(value: Any) -> Attribute:
    if isinstance(value, list | tuple):
        return tuple(integer(number, "an attribute") for number in value)
    if isinstance(value, str):
        if not value.isprintable() or '"' in value:
            raise ReshardError(
                "bad-argument", f"an attribute must be printable and have no quotes, got: {shown(value)}"
            )
        return value
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        return plain_number(value)
    raise ReshardError("bad-argument", f"an attribute must be a number, a text or integers, got: {shown(value)}")


def plain_number(value: Any, what: str = "what fills a tensor") -> int | float:
    """A number of Python or of NumPy, as Python's.

    Raises:
        ReshardError: `bad-argument`.
    """
    if hasattr(type(value), "__index__"):
        return int(value.__index__())
    if not isinstance(value, numbers.Real):
        raise ReshardError("bad-argument", f"{what} must be a number, got: {shown(value)}")
    return float(value)
