"""Brackets and commas in a line of text.

>>> split("f32[8,2]{1,0} %a, (s32[], u8[2]) /*index=1*/%b")
['f32[8,2]{1,0} %a', '(s32[], u8[2]) %b']
>>> fields('channel_id=1, dimensions={0,1}, metadata={op_name="a, b=1"}')
{'channel_id': '1', 'dimensions': '{0,1}', 'metadata': '{op_name="a, b=1"}'}
"""

from __future__ import annotations

import re

_COMMENT = re.compile(r"/\*[^*]*\*/")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]')
_ANGLE = re.compile(r'"(?:[^"\\]|\\.)*"|[<>]')
_OPENING = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_FIELD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*)", re.DOTALL)


MOST_DIGITS = 18
"""Numbers of more digits are no sizes, places or devices."""


def natural(text: str) -> int | None:
    """The number that a text is, from 0 on; None where it is none, or too large for any use.

    >>> natural("12"), natural("8²"), natural("9" * 5000)
    (12, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def closing(text: str, start: int) -> int:
    """The place after the bracket that closes the one at `start`; -1 where there is none.

    >>> closing('a(b "(" [c]) d', 1)
    12
    """
    depth = 0
    for token in _TOKEN.finditer(text, start):
        step = _OPENING.get(token.group(), 0)
        depth += step
        if step < 0 and depth <= 0:
            return token.end()
    return -1


def split(text: str) -> list[str]:
    """The parts between commas that stand in no brackets and no strings."""
    if "/*" in text:
        text = _COMMENT.sub("", text)
    parts, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        if token.group() != ",":
            depth += _OPENING.get(token.group(), 0)
        elif depth == 0:
            parts.append(text[start : token.start()].strip())
            start = token.end()
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def angle(text: str, start: int) -> int:
    """The place after the `>` that closes the `<` at `start`, or the end of the text; strings are passed over."""
    depth = 0
    for token in _ANGLE.finditer(text, start):
        depth += {"<": 1, ">": -1}.get(token.group(), 0)
        if depth == 0:
            return token.end()
    return len(text)


def angles(text: str) -> list[str]:
    """The parts of a text that stand in `<` and `>`.

    >>> angles('<@m, [{"x"}]>, <@m, []>')
    ['<@m, [{"x"}]>', '<@m, []>']
    """
    parts, place = [], text.find("<")
    while place >= 0:
        stop = angle(text, place)
        parts.append(text[place:stop])
        place = text.find("<", stop)
    return parts


def fields(text: str) -> dict[str, str]:
    """`name=value` parts by name; a part without a name counts under itself."""
    result: dict[str, str] = {}
    for part in split(text):
        named = _FIELD.fullmatch(part)
        if named:
            result.setdefault(named.group(1), named.group(2))
        elif part:
            result.setdefault(part, "")
    return result


def excerpt(text: str, limit: int = 100) -> str:
    """The beginning of a line, to be shown."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text.strip())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
