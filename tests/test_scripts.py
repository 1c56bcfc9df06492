"""Are the scripts of pages sound? Their types, as JSDoc tells them, and their style, by Deno's own checkers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reshard.drawing.shell import asset

DENO = shutil.which("deno", path=Path(sys.executable).parent) or shutil.which("deno")
pytestmark = pytest.mark.skipif(DENO is None, reason="deno is absent, which has no wheel for this machine")

SCRIPTS = ("page.js", "plan_model.js", "player.js")
"""Those of a plan's page, one after the other; the first is that of all pages."""
CONFIGURATION = {
    "compilerOptions": {
        "checkJs": True,
        "strict": True,
        "lib": ["dom", "dom.iterable", "esnext"],
    },
    "lint": {"rules": {"tags": ["recommended"], "include": ["eqeqeq", "no-eval", "no-throw-literal"]}},
}
WRONG = "\n/** @param {number} count */\nconst twice = (count) => 2 * count;\ntwice('2');\n"
UNTIDY = "\nvar counted = 1 == 2;\n"


def complaints(command: str, script: str, folder: Path) -> str:
    """What one of the checkers says of a script; nothing where it is content."""
    (folder / "deno.json").write_text(json.dumps(CONFIGURATION), encoding="utf-8")
    (folder / "script.js").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [str(DENO), command, "script.js"],
        cwd=folder,
        env={"DENO_DIR": str(folder / "cache"), "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


def test_scripts_have_the_types_that_they_say(tmp_path: Path) -> None:
    script = "\n".join(map(asset, SCRIPTS))
    assert complaints("check", script, tmp_path) == ""
    assert complaints("lint", script, tmp_path) == ""


@pytest.mark.parametrize("name", [SCRIPTS[0], "notebook.js"])
def test_a_script_that_stands_alone_needs_no_other(name: str, tmp_path: Path) -> None:
    assert complaints("check", asset(name), tmp_path) == ""


def test_what_is_wrong_is_complained_of(tmp_path: Path) -> None:
    script = asset("page.js")
    assert "TS2345" in complaints("check", script + WRONG, tmp_path)
    assert "no-var" in complaints("lint", script + UNTIDY, tmp_path)
    assert "eqeqeq" in complaints("lint", script + UNTIDY, tmp_path)
