r"""Programs as files have them: our own text, HLO, or a module of StableHLO among whatever else a log holds.

>>> log = "I0000 compiling\nmodule @jit_f {\n  func.func public @main() {\n    return\n  }\n}\ndone\n"
>>> print(module_in(log))
module @jit_f {
  func.func public @main() {
    return
  }
}
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from reshard.errors import ReshardError, refusing
from reshard.propagation import Program
from reshard.xla.read.scan import closing
from reshard.xla.read.shardings import HLO
from reshard.xla.report.dumps import decoded

_MODULE = re.compile(
    r"^[ \t]*(?:module\b[^\n]*\{|func\.func\b[^\n]*\{|\"(?:builtin\.module|func\.func)\"[^\n]*[({])[ \t]*$",
    re.MULTILINE,
)
"""The line that a module of MLIR begins with."""
_ALIASES = re.compile(r"(?:^#[^\n]*\n)+\Z", re.MULTILINE)
SUFFIXES = (".mlir", ".txt", ".log")
"""Of the files of a folder that are looked into."""


def read_program(path: str) -> Program:
    """The program in a file, in a folder of dumps, or on standard input.

    Raises:
        ReshardError: `bad-file` where nothing can be read, or a folder holds several modules; `bad-program` where a
            folder holds none, but other texts; and as `Program.parse` and `Program.from_stablehlo`.
    """
    texts = _texts_at(path)
    modules = {name: module for name, text in texts if (module := module_in(text)) is not None}
    if len(modules) > 1:
        raise ReshardError("bad-file", f"{path} holds {len(modules)} modules; one must be named: {', '.join(modules)}")
    if modules:
        return Program.from_stablehlo(next(iter(modules.values())))
    if not texts:
        raise ReshardError("bad-file", f"{path} holds no text")
    name, text = texts[0]
    if len(texts) > 1:
        hint = "it must be StableHLO, as jax.jit(f).lower(...).as_text() gives it, or JAX itself with JAX_DUMP_IR_TO"
        raise ReshardError("bad-program", f"{name} holds no program whose shardings can be carried: {hint}")
    return Program.from_stablehlo(text) if HLO.search(text) else Program.parse(text)


def _texts_at(path: str) -> list[tuple[str, str]]:
    """The texts of a file, a folder or standard input, each with its name; what is no text is left out of a folder."""
    if path == "-":
        return [("standard input", decoded(sys.stdin.buffer.read(), "standard input"))]
    with refusing("bad-file", f"{path} cannot be read"):
        if not Path(path).is_dir():
            return [(path, decoded(Path(path).read_bytes(), path))]
        files = sorted(file for file in Path(path).iterdir() if file.suffix in SUFFIXES and file.is_file())
        return [(str(file), file.read_text(encoding="utf-8-sig", errors="replace")) for file in files]


def module_in(text: str) -> str | None:
    """The first module of MLIR in a text, with the aliases around it; None where there is none."""
    begun = _MODULE.search(text)
    if begun is None:
        return None
    start, stop = begun.start(), closing(text, begun.end() - 1)
    before = _ALIASES.search(text[:start])
    body = text[start:] if stop < 0 else text[start:stop]
    behind = "" if stop < 0 else "".join(re.findall(r"^#[^\n]*\n?", text[stop:], re.MULTILINE))
    return (before.group() if before else "") + body + ("\n" + behind if behind else "")
