r"""Reading a text by its grammar, and saying where and why a text does not follow it.

Each text form has a grammar in a `.lark` file and a `Form` that names it.
A form's `builder` has one method per rule, which makes that rule's value from its parts as soon as they are read,
so no tree is kept, however long the text.
A refusal holds one sentence and then the line of the text with a caret under the place.

>>> from reshard.notation.shardy import FORM
>>> try:
...     parse(FORM, "sharding", '[{"x"},\n {"y" "z"}]')
... except ReshardError as error:
...     print(error)
expected `,`, `:` or `}` at 2:7, found `"z"`
   {"y" "z"}]
        ^
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

from reshard.errors import ReshardError

if TYPE_CHECKING:
    from lark import Lark, Token

Method = TypeVar("Method", bound=Callable[..., Any])

INT64_MAX = 2**63 - 1
"""The largest number that Shardy and XLA can read."""

_END = "the end of the text"
_SHOWN = 24
"""How many characters of what was found a sentence quotes."""
_BEFORE, _AFTER = 60, 40
"""How many characters of the line are shown around the place."""
_REPEATED = 200
"""How long a text may be to be repeated in a sentence."""
_DIGITS = 20
"""Numbers below 2**63 have fewer digits."""
_WORD = re.compile(r"[A-Za-z0-9_$.]+")
STRING_START = r'"[^"\\\n\v\f]*(?:\\(?:["\\nt]|[0-9a-fA-F]{2})[^"\\\n\v\f]*)*'
"""A pattern for one of MLIR's strings up to its closing quote."""


@dataclass(frozen=True, eq=False)
class Form:
    """A text form: its grammar and what is made of it."""

    name: str
    """The grammar is `<name>.lark`, beside this file."""
    starts: tuple[str, ...]
    """The rules that a text may be read by."""
    words: Mapping[str, str]
    """What to call those terminals of the grammar that are no fixed text."""
    builder: object
    """Its methods marked by `rule` have the names of the grammar's rules and take the list of a rule's parts."""


def rule(method: Method) -> Method:
    """Mark a builder's method that makes the value of the rule of its name: the grammar calls it, and nothing else."""
    return method


class Misread(Exception):  # noqa: N818  # a signal between a builder and `parse`, seen by nobody else
    """A builder's refusal of a part that the grammar alone lets through."""

    def __init__(self, token: Token, problem: str, ending: str = "", *, code: str = "syntax") -> None:
        super().__init__(token, problem, ending, code)
        self.position = token.start_pos or 0
        self.problem = problem
        self.ending = ending
        self.code = code


def parse(form: Form, start: str, text: str, *, whole: str | None = None, offset: int = 0) -> Any:
    """The value that a form's builder makes of a text.

    Args:
        form: the text form.
        start: the rule to read by.
        text: all of it must follow the rule.
        whole: the text that `text` is a part of, which places are counted in; `text` itself unless given.
        offset: where `text` begins in `whole`.

    Raises:
        ReshardError: `syntax`, or the code of a rule that a part of the text breaks.

    >>> from reshard.notation.shardy import FORM
    >>> print(parse(FORM, "mesh", '<["x"=2]>')[1])
    <["x"=2]>
    """
    reader, wrong_character, wrong_token = _reader(form)
    whole = text if whole is None else whole
    try:
        with mentioning(text):
            return reader.parse(text, start=start)
    except wrong_character as error:
        position = error.pos_in_stream
        found = found_at(text, position)
        if text[position] == '"' and "STRING" in form.words:
            position, problem = _string_problem(text, position)
            raise placed(whole, offset + position, problem) from None
    except wrong_token as error:
        at_end = error.token.type == "$END"
        position = len(text.rstrip()) if at_end else error.token.start_pos
        found = _END if at_end else shown(error.token)
    except Misread as error:
        raise placed(whole, offset + error.position, error.problem, error.ending, code=error.code) from None
    expected = _expected(form, reader, start, text[:position])
    raise placed(whole, offset + position, f"expected {expected}", f", found {found}")


@cache
def _reader(form: Form) -> tuple[Lark, type[Any], type[Any]]:
    import lark  # noqa: PLC0415  # loads with the first text that is read, not with the package

    grammar = resources.files("reshard.notation").joinpath(f"{form.name}.lark").read_text(encoding="utf-8")
    options: dict[str, Any] = {"parser": "lalr", "start": list(form.starts), "transformer": form.builder}
    return lark.Lark(grammar, **options), lark.UnexpectedCharacters, lark.UnexpectedToken


def _expected(form: Form, reader: Lark, start: str, prefix: str) -> str:
    """What may follow the beginning of a text, in words."""
    so_far = reader.parse_interactive(prefix, start=start)
    with suppress(_reader(form)[2]):  # a last word that only what comes behind it tells apart is read without that
        so_far.exhaust_lexer()
    names = set()
    for name in so_far.accepts():  # type: ignore[no-untyped-call]
        if name in form.words:
            names.add(form.words[name])
        else:
            names.add(_END if name == "$END" else f"`{reader.get_terminal(name).pattern.value}`")
    *first, last = sorted(names, key=lambda name: (name == _END, not name.startswith("`"), name))
    return f"{', '.join(first)} or {last}" if first else last


def found_at(text: str, position: int) -> str:
    """What stands at a place, as a sentence can quote it."""
    if position == len(text):
        return _END
    word = _WORD.match(text, position)
    return shown(word.group() if word else text[position])


def _string_problem(text: str, start: int) -> tuple[int, str]:
    """Why the string that begins at `start` is none, and where."""
    well = re.compile(STRING_START).match(text, start)
    stop = well.end() if well else start
    if text[stop : stop + 1] == "\\" and stop + 1 < len(text):
        escape = shown(text[stop : stop + 2])
        return stop, f"{escape} is no escape; " + r"expected `\\`, `\"`, `\n`, `\t` or two hexadecimal digits"
    return start, "the string that begins here is not closed on its line"


def placed(whole: str, position: int, problem: str, ending: str = "", *, code: str = "syntax") -> ReshardError:
    r"""A refusal that shows its place in a text.

    Args:
        whole: the text.
        position: where in it.
        problem: the sentence up to the place.
        ending: what the sentence says after the place.
        code: of `ReshardError`.

    >>> print(placed("ab\ncd", 4, "expected `e`", ", found `d`"))
    expected `e` at 2:2, found `d`
      cd
       ^
    """
    line_start = whole.rfind("\n", 0, position) + 1
    line_stop = whole.find("\n", position)
    line_stop = len(whole) if line_stop < 0 else line_stop
    column = position - line_start
    where = f"{whole.count(chr(10), 0, position) + 1}:{column + 1}" if "\n" in whole else f"column {column + 1}"
    start = max(line_start, position - _BEFORE)
    stop = min(line_stop, position + _AFTER)
    head = "…" if start > line_start else ""
    line = head + _printable(whole[start:stop]) + ("…" if stop < line_stop else "")
    caret = " " * (len(head) + position - start) + "^"
    return ReshardError(code, f"{problem} at {where}{ending}\n  {line}\n  {caret}")


@contextmanager
def mentioning(text: str) -> Iterator[None]:
    """Have refusals of what a text says name the text, where it is short enough to repeat."""
    try:
        yield
    except ReshardError as error:
        if len(text) > _REPEATED or not text.isprintable():
            raise
        raise ReshardError(error.code, f"{error}, in {text.strip()}") from None


def shown(text: str) -> str:
    """A found text as a sentence can quote it: short, on one line, in backticks."""
    if len(text) == 1 and not text.isprintable():
        return f"the character U+{ord(text):04X}"
    return f"`{_printable(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…')}`"


def _printable(text: str) -> str:
    return "".join(" " if c in "\t\r" else c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def checked_text(text: object) -> str:
    """The argument itself.

    Raises:
        ReshardError: `bad-argument` where it is no string.
    """
    if not isinstance(text, str):
        raise ReshardError("bad-argument", f"a text must be a string, got: {shown(repr(text))}")
    return text


def number(token: Token, skipped: int = 0) -> int:
    """The number that a token stands for, in decimal, or in hexadecimal after `0x`.

    Args:
        token: of digits.
        skipped: how many characters stand before the digits.

    Raises:
        Misread: where it is 2**63 or more.
    """
    digits = token[skipped:]
    base = 16 if digits.startswith("0x") else 10
    significant = digits.removeprefix("0x").lstrip("0")
    value = int(significant or "0", base) if len(significant) < _DIGITS else INT64_MAX + 1
    if value > INT64_MAX:
        raise Misread(token, f"number {shown(digits)}", " is too large; it must be below 2**63", code="too-large")
    return value
