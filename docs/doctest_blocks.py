"""Docstrings as the site shows them: examples as blocks of code, rules as lists."""

from __future__ import annotations

import re
from typing import Any

import griffe

RULES = re.compile(r"^(Rules[^\n]*:)\n((?:    .*(?:\n|$))+)", re.MULTILINE)
EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*)+", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Fences every run of lines that begins with a prompt."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one object."""
        if obj.docstring is not None:
            text = RULES.sub(lambda rules: f"{rules[1]}\n\n{_listed(rules[2])}\n", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda run: f"```pycon\n{run[0].rstrip()}\n```\n", text)


def _listed(rules: str) -> str:
    """Rules, one a line and what goes on in the next further in, as a list."""
    return re.sub(r"^    (?=\S)", "- ", rules, flags=re.MULTILINE)
