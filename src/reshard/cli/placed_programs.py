"""What `propagate` would receive for the programs of a dump, one line in a report.

What XLA compiled says what became of a program, and not the operations and shardings that it had; JAX writes those
where `JAX_DUMP_IR_TO` names a folder, as modules of StableHLO with the names that XLA's modules have.
Without them a dump's own text before optimizations is read.

>>> name_of("module @jit_step attributes {a = 1} {")
'jit_step'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from reshard.cli.programs_in_files import module_in
from reshard.errors import ReshardError
from reshard.propagation import Program
from reshard.xla.report import Report

SEARCH_S = 30.0
"""For how long, of all programs together, a better placement is looked for."""
HINT = "what is compiled does not tell its operations; JAX_DUMP_IR_TO={} has JAX write them beside it"
_NAME = re.compile(r"^\s*(?:module\s+@\"?|HloModule\s+)([\w.<>-]+)", re.MULTILINE)


def name_of(module: str) -> str:
    """The name of a module of MLIR or HLO; nothing where it has none."""
    match = _NAME.search(module)
    return match.group(1) if match else ""


def modules_in(folders: Iterable[Path]) -> list[str]:
    """The modules in folders as they were before XLA, in the order of their files; what cannot be read is left out.

    Those of StableHLO, or of HLO before optimizations where there are none.
    """
    dumped = [path for folder in folders for path in sorted(folder.glob("*")) if path.is_file()]
    lowered = [_text_of(path) for path in dumped if path.suffix == ".mlir"]
    modules = [module for text in lowered if (module := module_in(text)) is not None]
    return modules or [_text_of(path) for path in dumped if path.name.endswith(".before_optimizations.txt")]


def _text_of(path: Path) -> str:
    """What a file holds; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return ""


def tell_placed(report: Report, modules: Iterable[str], folder: str) -> None:
    """Add what all programs that receive anything would receive if they were placed; or why it is not known.

    Args:
        report: of what XLA dumped.
        modules: of StableHLO, as JAX lowered the same programs.
        folder: where such modules would have been looked for.
    """
    parts = Counter(part.module for part in report.parts if part.form == "partitioned")
    receiving = {one.module for one in report.collectives if one.received_bytes and one.module in parts}
    if not receiving or report.placed_bytes is not None:
        return
    by_name: dict[str, list[str]] = {}
    for module in modules:
        by_name.setdefault(name_of(module), []).append(module)
    unmatched = [name for name in sorted(receiving) if len(by_name.get(name, ())) != parts[name]]
    if unmatched:
        report.placed_why = HINT.format(folder)
        return
    texts = [text for name in sorted(receiving) for text in by_name[name]]
    try:
        placed = [Program.from_stablehlo(text).propagate(seconds=SEARCH_S / len(texts)) for text in texts]
    except ReshardError as error:
        report.placed_why = str(error)
        return
    report.placed_bytes = sum(placement.received_bytes for placement in placed)
