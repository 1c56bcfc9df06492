"""Names of tensors: patterns for them, and the known ones near to one that is not known.

A pattern is a regular expression that must match a whole name; its `.` stands for any letter, a line's end too.
One that begins with `*` or with `glob:` is a glob, whose `*` stands for any text, dots too, and whose `?` stands for
one letter.

>>> bool(pattern_of("*.down_proj.weight").fullmatch("model.layers.3.mlp.down_proj.weight"))
True
>>> skeleton("model.layers.3.mlp.experts.17.up_proj.weight")
'model.layers.*.mlp.experts.*.up_proj.weight'
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable

from reshard.checks import expect, shown
from reshard.errors import ReshardError

GLOB = "glob:"
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def pattern_of(text: str) -> re.Pattern[str]:
    """The compiled pattern of a text.

    Raises:
        ReshardError: `syntax` where it is no regular expression.
    """
    expect(text, str, "a pattern for names")
    if text.startswith((GLOB, "*")):
        glob = text.removeprefix(GLOB)
        text = "".join({"*": "(.*)", "?": "(.)"}.get(letter, re.escape(letter)) for letter in glob)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of sets that a later Python may read otherwise
            return re.compile(text, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise ReshardError("syntax", f"the pattern {shown(text)} is no regular expression: {error}") from None


def skeleton(name: str) -> str:
    """The name with its numbers taken out."""
    return _NUMBER.sub("*", name)


def nearest(name: str, known: Iterable[str]) -> str:
    """The five known names that are nearest to one, for a sentence."""
    listing = list(dict.fromkeys(known))
    if len(listing) > 2000:  # by their skeletons, of which there are few
        by_skeleton: dict[str, str] = {}
        for entry in listing:
            by_skeleton.setdefault(skeleton(entry), entry)
        listing = list(by_skeleton.values())
    close = difflib.get_close_matches(name, listing, n=5, cutoff=0.0)
    return ", ".join(map(repr, close)) or "none"
