"""Plans: checked chains of steps, and their text.

plan.py          `Plan`, its figures, JSON
chain_checks.py  what is refused as a plan
moved_bytes.py   what its steps move
least_bytes.py   the bound: what every plan must move
options.py       what a plan has to keep to: network, basis, memory limit
parts.py         equal parts of a tensor, whose steps overlap
mlir.py          as MLIR text
plan_record.py   what its JSON text holds
table.py         the table that `print` shows
chrome_trace.py  as a trace for Perfetto
"""

from __future__ import annotations

from reshard.plans.options import BASES, Options
from reshard.plans.plan import Plan
from reshard.plans.plan_record import SCHEMA
from reshard.plans.table import blocks, counted, rounds_text, seconds_text, short
from reshard.tables import bytes_text

__all__ = [
    "BASES",
    "SCHEMA",
    "Options",
    "Plan",
    "blocks",
    "bytes_text",
    "counted",
    "rounds_text",
    "seconds_text",
    "short",
]
