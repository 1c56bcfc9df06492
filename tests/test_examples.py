"""Do the examples run? Their notebooks do, cell by cell, and hold what the scripts hold."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest
from scripted_notebooks import EXAMPLES, SCRIPTED, notebook_of


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_notebook_runs_cell_by_cell(name: str) -> None:
    if name == "jax_remat":
        pytest.importorskip("jax")
    notebook = (EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8")
    assert notebook == notebook_of((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    printed, names = io.StringIO(), {"__name__": "__main__"}
    cells: list[dict[str, Any]] = json.loads(notebook)["cells"]
    with contextlib.redirect_stdout(printed):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{name} {cell['id']}", "exec"), names)
    assert printed.getvalue()
    assert cells[0]["source"][0].startswith("# ")
