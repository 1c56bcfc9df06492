"""Plans: checked chains of steps, and their text.

plan.py    `Plan`, its figures, JSON
table.py   the table that `print` shows
"""

from __future__ import annotations

from reshard.plans.plan import SCHEMA, Plan
from reshard.plans.table import (
    FIGURES,
    bytes_text,
    counted,
    rounds_text,
    seconds_text,
    short,
    table_head,
    table_rows,
    verdict,
)

__all__ = [
    "FIGURES",
    "SCHEMA",
    "Plan",
    "bytes_text",
    "counted",
    "rounds_text",
    "seconds_text",
    "short",
    "table_head",
    "table_rows",
    "verdict",
]
