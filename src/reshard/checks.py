"""What every public function asks of its arguments before it uses them.

>>> integer(3, "the number of shards")
3
>>> expect((1, 2), tuple, "a shape")
(1, 2)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from reshard.errors import ReshardError

T = TypeVar("T")
LIMIT = 2**62
"""Sizes, element counts and byte counts must stay below this: sums of two fit a signed 64-bit integer."""
LISTABLE = 2**24
"""Longer lists are refused before they are made."""
CHECKS = ("first", "always", "never")
"""When ranks compare what they are about to do: at the first call of each kind, at every call, or not at all."""
_NOUNS: dict[type, str] = {str: "string", int: "integer", bool: "truth value", dict: "dictionary"}


def shown(value: object) -> str:
    """A value as it stands in a sentence: its repr on one line, cut where it is long.

    >>> import numpy as np
    >>> shown(np.eye(300))
    'array([[1., 0., 0., ..., 0., 0., 0.], [0., 1., 0., ..., 0., 0., 0.], [0., 0.,…'
    """
    if isinstance(value, int) and abs(value) >= 10**80:
        return f"an integer of about {int(value.bit_length() * 0.30103)} digits"
    try:
        text = repr(value)
    except Exception:  # whatever a stranger's repr does, the sentence must come out
        text = f"a {type(value).__name__}"
    text = " ".join(text[:1000].split())
    return (text if len(text) <= 80 else text[:77] + "…").rstrip(".")


def suggested(word: object, known: Iterable[str]) -> str:
    """What a sentence about an unknown name ends in: the one that was probably meant, or nothing.

    >>> suggested("bfloat61", ["bfloat16", "float32"]), suggested("z", ["x", "y"])
    ('; did you mean bfloat16', '')
    """
    names = list(known)
    close = get_close_matches(word, names, 1, 0.7) if isinstance(word, str) and len(word) <= 80 else []
    same = [name for name in names if isinstance(word, str) and name.lower() == word.lower()]
    return f"; did you mean {(same or close)[0]}" if same or close else ""


def integer(value: Any, what: str, code: str = "bad-argument") -> int:
    """An integer, of Python or of NumPy, as Python's.

    Raises:
        ReshardError: `code`.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ReshardError(code, f"{what} must be an integer, got: {shown(value)}")
    try:
        return int(value.__index__())
    except (TypeError, ValueError):  # an array of several
        raise ReshardError(code, f"{what} must be an integer, got: {shown(value)}") from None


def expect(value: Any, kind: type[T], what: str, code: str = "bad-argument") -> T:
    """The value, if it is of the kind.

    Raises:
        ReshardError: `code`.
    """
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        noun = _NOUNS.get(kind, kind.__name__)
        article = "an" if noun[0] in "aeiouAE" else "a"
        raise ReshardError(code, f"{what} must be {article} {noun}, got: {shown(value)}")
    return value


def all_of(values: Any, kind: type[T], what: str, code: str = "bad-argument") -> tuple[T, ...]:
    """The tuple, if it is one and all in it are of the kind.

    Raises:
        ReshardError: `code`.
    """
    checked: tuple[T, ...] = expect(values, tuple, what, code)
    for value in checked:
        if type(value) is not kind:  # nearly all are, and many are asked
            expect(value, kind, f"each of {what}", code)
    return checked


def listed(values: Any, what: str, code: str = "bad-argument") -> list[Any]:
    """The values of any iterable that is no text.

    Raises:
        ReshardError: `code`.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ReshardError(code, f"{what} must be a list, got: {shown(values)}")
    if isinstance(values, range | list | tuple) and len(values) > LISTABLE:
        raise ReshardError("too-large", f"{what} must be a list of fewer than {LISTABLE} entries")
    try:
        return list(values)
    except TypeError:  # an array without dims, or a list that cannot count itself
        raise ReshardError(code, f"{what} must be a list, got: {shown(values)}") from None


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of integers.

    Raises:
        ReshardError: `bad-shape`, `too-large`.
    """
    if type(shape) is tuple:  # what nearly every call has: this function is asked more often than any other
        for size in shape:
            if type(size) is not int or not 0 <= size < LIMIT:
                break
        else:
            return shape
    listing = listed(shape, "a shape", "bad-shape")
    sizes = tuple(integer(size, f"the size of dim {dim}", "bad-shape") for dim, size in enumerate(listing))
    for dim, size in enumerate(sizes):
        if size < 0:
            raise ReshardError("bad-shape", f"dim {dim} has size {shown(size)}; it must be at least 0")
        if size >= LIMIT:
            raise ReshardError("too-large", f"dim {dim} has size {shown(size)}; it must be below 2**62")
    return sizes


def check_mode(mode: str) -> None:
    """Refuse what is none of `CHECKS`.

    Raises:
        ReshardError: `bad-argument`.
    """
    if mode not in CHECKS:
        raise ReshardError("bad-argument", f"check must be one of {', '.join(CHECKS)}, got: {shown(mode)}")
