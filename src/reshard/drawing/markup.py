"""Elements of HTML and SVG, escaped where they are made.

A child or an attribute that is a plain `str` is text, whatever it holds; only what `tag` made is markup.
So a name out of a log cannot open an element, end one, or leave its attribute.

>>> print(tag("p", "a < b", class_="note", data_name='"x"'))
<p class="note" data-name="&quot;x&quot;">a &lt; b</p>
>>> print(tag("p", tag("b", "</script>")))
<p><b>&lt;/script&gt;</b></p>
"""

from __future__ import annotations

import html
from typing import Any

VOID = frozenset({"br", "hr", "input", "link", "meta"})
"""Elements of HTML that have no end."""


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: Any) -> Markup:
    """An element.

    Args:
        name: of the element.
        children: text, which is escaped, and markup, which is not.
        attributes: `_` stands for `-`, and one at the end for nothing; None and False leave an attribute out, True
            gives it no value; numbers are rounded to hundredths.
    """
    fields = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(_text(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{fields}>")
    return Markup(f"<{name}{fields}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Markup:
    """Parts one after another, those that are no markup escaped."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part) for part in parts))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
    return str(value)
