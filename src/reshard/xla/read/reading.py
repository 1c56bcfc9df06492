r"""Takes a text apart: modules in HLO, modules in StableHLO, and the warnings of a log between them.

A text may begin and end anywhere, in the middle of a module too, and may be a mixture, as standard error is.

>>> read = read_text("HloModule m\nENTRY main {\n  p = f32[8] parameter(0)\n}\n")
>>> [(module.form, module.name, module.stopped) for module in read.modules]
[('hlo', 'm', '')]
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from reshard.xla.read.hlo import INSTRUCTION, HloReader
from reshard.xla.read.ir import Module, Note
from reshard.xla.read.logs import WARNING, Warned, read_warning
from reshard.xla.read.scan import excerpt
from reshard.xla.read.stablehlo import OPERATION, StableReader

_LOG = re.compile(r"(?:[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d \d\d:|\[[\w.=, ]*\]\s*(?:[IWEF]\d{4}|\d{4}-))")
"""How a line of a log begins."""
_HIDDEN = re.compile(r"HloModule \S|\s=\s+[(a-z].*[\])}] (?:all|reduce|collective|ragged)-[a-z-]+\(")
"""HLO that stands behind something else in its line."""
_COLORS = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_MLIR = re.compile(
    r"\s*(?:builtin\.)?module(?:\s+@|\s+attributes|\s*\{)|\s*sdy\.mesh\s+@|\s*func\.func\s|#loc\d*\s*=\s*loc\("
)
_MODULE = re.compile(r"\s*(?:builtin\.)?module\b")
_Reader = HloReader | StableReader | None
FOREIGN = "the line belongs to nothing that is known"
"""What is noted of a line of a program's own."""
_MOST_NOTES = 1000
"""How many lines of one module that are not understood are told apart."""


@dataclass(eq=False, slots=True)
class Text:
    """What a text holds."""

    name: str
    """The file, or what else to call it."""
    lines: int = 0
    modules: list[Module] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    """What stands in no module and is no line of a log."""

    def note(self, line: int, problem: str, text: str) -> None:
        """Note what was not understood, with the beginning of its text."""
        self.notes.append(Note(self.name, line, problem, excerpt(text)))


def read_text(text: str, name: str = "text") -> Text:
    """Everything that is found in a text.

    Args:
        text: of any length; no part of it is refused.
        name: what to call it.
    """
    result = Text(name)
    text = _COLORS.sub("", text) if "\x1b" in text else text
    lines = text.removesuffix("\n").split("\n") if text else []
    result.lines = len(lines)
    reader: _Reader = None
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r")
        if "ematerialization" in line and WARNING.search(line):
            result.warnings.append(read_warning(line, number))
            continue
        if _LOG.match(line):
            if _HIDDEN.search(line):
                result.note(number, "HLO behind the beginning of a log's line is not read", line)
            continue
        begun = _begun(line, number, reader)
        if begun is not None:
            _close(result, reader, number)
            reader = begun
            reader.module.text = name
        if reader is not None:
            reader.read(line, number)
        elif line.strip():
            result.note(number, FOREIGN, line)
    _close(result, reader, len(lines) + 1)
    return result


def _begun(line: str, number: int, reader: _Reader) -> _Reader:
    """The reader for a module that a line begins; None where it begins none."""
    if line.startswith("HloModule"):
        return HloReader(Module("hlo", "", number))
    if isinstance(reader, StableReader):
        again = not reader.open and reader.module.computations and _MODULE.match(line)
        return StableReader(Module("stablehlo", "", number)) if again else None
    if _MLIR.match(line) and (reader is None or reader.open is None):
        return StableReader(Module("stablehlo", "", number, has_header="module" in line))
    if reader is None and INSTRUCTION.match(line):
        return HloReader(Module("hlo", "", number, has_header=False))
    if reader is None and (operation := OPERATION.match(line)) and operation.group(1):
        return StableReader(Module("stablehlo", "", number, has_header=False))
    return None


def _close(result: Text, reader: _Reader, number: int) -> None:
    """Take in a module that has ended."""
    if reader is None:
        return
    reader.finish(number)
    module = reader.module
    if len(module.notes) > _MOST_NOTES:
        further = len(module.notes) - _MOST_NOTES
        module.notes[_MOST_NOTES:] = [Note(result.name, number, f"{further} further lines are not understood")]
    if module.computations or module.form == "hlo":
        result.modules.append(module)
    else:
        result.notes += module.notes
