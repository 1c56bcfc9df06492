"""A page: one file that holds its style, its script and its data, and asks nothing of any network.

A policy in its head forbids all but the style and the scripts that stand in it, named by their hashes: no request,
no handler in an attribute, no code made of text.
Data stand in a block that no browser runs, with `<` written as an escape, so that nothing in them ends it.

>>> text = page("a <title>", [PageSection("one", "One", [Markup("<p>…</p>")])], data={"name": "</script>"})
>>> "<title>a &lt;title&gt;</title>" in text, text.count("</script>"), "default-src &#x27;none&#x27;" in text
(True, 2, True)
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from reshard.drawing.markup import Markup, joined, tag
from reshard.tables import Passage, Table


class PageSection(NamedTuple):
    """A part of a page, under a heading that a link leads to."""

    name: str
    """In links."""
    heading: str
    parts: Sequence[str]


def page(
    title: str,
    sections: Iterable[PageSection],
    *,
    lead: Sequence[str] = (),
    data: Any = None,
    scripts: Sequence[str] = (),
) -> str:
    """The text of a page.

    Args:
        title: of the page.
        sections: in order; the first lines of the page link to them where there are several.
        lead: what stands below the title.
        data: what the scripts read, as JSON.
        scripts: files of `assets/` that run after `page.js`, in this order.
    """
    sections = list(sections)
    style = asset("page.css")
    script = "\n".join(asset(name) for name in ("page.js", *scripts))
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'sha256-{_digest(script)}'",
            f"style-src 'sha256-{_digest(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    head = joined(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    links = [tag("a", part.heading, href=f"#{part.name}") for part in sections]
    body = joined(
        tag("header", tag("h1", title), *lead, *([tag("nav", *links)] if len(links) > 1 else [])),
        tag("main", *(tag("section", tag("h2", part.heading), *part.parts, id=part.name) for part in sections)),
        tag("script", Markup(json_block(data)), type="application/json", id="data"),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


@cache
def asset(name: str) -> str:
    """The text of a file of `assets/`."""
    return (files("reshard.drawing") / "assets" / name).read_text(encoding="utf-8").strip() + "\n"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def json_block(data: Any) -> str:
    """Data as JSON in which nothing ends a script or opens a comment."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def figure(caption: str, *parts: str) -> Markup:
    """A drawing with what it shows; it scrolls by itself where it is wider than the page."""
    return tag("figure", tag("figcaption", caption), tag("div", *parts, class_="scroll", tabindex="0"))


def passages(blocks: Iterable[Passage]) -> Markup:
    """Lines and tables as those of a terminal: the same words, in the elements of a page."""
    parts = []
    for block in blocks:
        if isinstance(block, Table):
            parts.append(listed(block))
        else:
            text, style = block if isinstance(block, tuple) else (block, "")
            first, *more = text.splitlines() or [""]
            parts += [tag("p", first, class_=style or None), *(tag("p", line) for line in more)]
    return joined(*parts)


def listed(table: Table) -> Markup:
    """A table, figures to the right."""
    titles, *rows = table.rows
    sides = ["figure" if title in table.figures else None for title in titles]
    head = tag("tr", *(tag("th", title, class_=side, scope="col") for title, side in zip(titles, sides, strict=True)))
    body = [tag("tr", *(tag("td", cell, class_=side) for cell, side in zip(row, sides, strict=True))) for row in rows]
    whole = tag("table", tag("thead", head), tag("tbody", *body))
    return tag("div", whole, class_="scroll", tabindex="0")


def copyable(name: str, text: str) -> Markup:
    """A text with a button that copies it."""
    button = tag("button", "copy", type="button", class_="copy", aria_label=f"copy {name}")
    return tag("details", tag("summary", name), button, tag("pre", text, tabindex="0"), open=text.count("\n") < 6)
