"""What a notebook shows of a value: its text, a drawing that needs no script, and a small one for a notebook that runs.

The drawing is SVG with its colours written in it, for a notebook on GitHub keeps no style and runs no script.
Where tiles are drawn, the script marks those of the devices whose tile is clicked.

>>> bundle = mimebundle("text", tag("svg", tag("rect", class_="tile")))
>>> sorted(bundle), 'stroke="#555"' in bundle["text/html"]
(['text/html', 'text/plain'], True)
"""

from __future__ import annotations

import re

from reshard.drawing.markup import Markup, tag
from reshard.drawing.shell import asset

LOOKS = {
    "tile": {"fill": "none", "stroke": "#555", "stroke-width": "1.5"},
    "plate": {"fill": "#fff", "fill-opacity": "0.85"},
    "badge": {"fill": "#222"},
    "badge-text": {"fill": "#fff"},
    "axis": {"stroke": "#777"},
    "limit": {"stroke": "#d55e00", "stroke-dasharray": "5 3"},
    "host": {"stroke": "#000", "stroke-width": "2"},
    "heat": {"fill": "#0072b2", "stroke": "#ccc", "stroke-width": "0.5"},
    "chosen": {"fill": "#d55e00"},
    "other": {"fill": "none", "stroke": "#777", "stroke-width": "2"},
    "area": {"stroke": "#fff"},
    "arc": {"fill": "none", "stroke": "#777"},
    "cell": {"fill": "#fff", "stroke": "#777"},
    "mono": {"font-family": "monospace", "font-size": "12"},
    "small": {"font-family": "sans-serif", "font-size": "11"},
    "middle": {"text-anchor": "middle"},
    "end": {"text-anchor": "end"},
}
"""What `page.css` gives the classes of a drawing, as attributes."""


def mimebundle(text: str, drawing: Markup | None) -> dict[str, str]:
    """What `_repr_mimebundle_` gives: the text, and the drawing, if there is one, with its looks written in."""
    if drawing is None:
        return {"text/plain": text}
    script = [tag("script", Markup(asset("notebook.js")))] if "data-tile" in drawing else []
    return {"text/plain": text, "text/html": str(tag("div", standalone(drawing), *script))}


def framed(page: str, height: int = 900) -> Markup:
    """A whole page inside a notebook, in a frame that can reach nothing of the notebook's."""
    return tag("iframe", srcdoc=page, sandbox="allow-scripts", width="100%", height=height)


def standalone(drawing: Markup) -> Markup:
    """A drawing whose classes are replaced by what they look like; a white ground, for colours suit one ground only."""

    def looks(match: re.Match[str]) -> str:
        looks: dict[str, str] = {}
        for name in match[1].split():
            looks |= LOOKS.get(name, {})
        return "".join(f' {key}="{value}"' for key, value in looks.items())

    return Markup(re.sub(r' class="([^"]*)"', looks, drawing))
