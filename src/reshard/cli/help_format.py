r"""How a command's help is set: prose to the width of the terminal, examples whole or on continuation lines.

>>> print(HelpFormatter("reshard")._fill_text("a network is a family\nor a file", 24, "").rstrip())
a network is a family or
a file
>>> print(HelpFormatter("reshard")._fill_text("  reshard plan --mesh x=2 '[{}, {x}]'", 32, "").rstrip())
  reshard plan --mesh x=2 \
      '[{}, {x}]'
"""

from __future__ import annotations

import argparse
import re
from itertools import groupby


class HelpFormatter(argparse.HelpFormatter):
    """Folds what does not fit: lines side by side that begin with a letter are a paragraph, others are a line each."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from textwrap import wrap  # noqa: PLC0415  # with the first help, as argparse does

        lines: list[str] = []
        text = re.sub(r" \\\n\s+", " ", text)
        for is_prose, members in groupby(text.splitlines(), key=lambda line: line[:1].isalnum() or line[:1] == "-"):
            if is_prose:
                lines += wrap(" ".join(members), width)
            else:
                lines += [piece for line in members for piece in _folded(line, width)]
        return "\n".join(indent + line for line in lines) + "\n"


def _folded(line: str, width: int) -> list[str]:
    """A line of an example on as many lines as it needs: a shell reads them as one."""
    if len(line) <= width:
        return [line]
    margin = line[: len(line) - len(line.lstrip())]
    words = re.findall(r"""(?:--[\w-]+ +(?!-))?(?:'[^']*'|"[^"]*"|\S)+""", line)
    lines = [margin + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) + 2 > width:
            lines[-1] += " \\"
            lines.append(f"{margin}    {word}")
        else:
            lines[-1] += f" {word}"
    return lines
