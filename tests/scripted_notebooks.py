"""The notebooks of the examples, made of their scripts: `python tests/scripted_notebooks.py` writes them anew."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTED = ("jax_remat", "dtensor_gather", "choose_layout", "take_the_plan")


def notebook_of(script: str) -> str:
    """A notebook with a cell for each `# %%` of a script."""
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(re.split(r"^# %%", script, flags=re.MULTILINE)[1:]):
        head, _, body = part.partition("\n")
        is_text = "[markdown]" in head
        lines = [re.sub(r"^# ?", "", line) if is_text else line for line in body.strip("\n").split("\n")]
        cell: dict[str, Any] = {"cell_type": "markdown" if is_text else "code", "id": f"cell-{number}", "metadata": {}}
        cell["source"] = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
        cells.append(cell if is_text else cell | {"execution_count": None, "outputs": []})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    record = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in SCRIPTED:
        script = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        (EXAMPLES / f"{name}.ipynb").write_text(notebook_of(script), encoding="utf-8")
