"""Are the scripts of pages sound? Their types, as JSDoc tells them, and their style, by Deno's own checkers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reshard.drawing.shell import asset

DENO = shutil.which("deno", path=Path(sys.executable).parent) or shutil.which("deno")
pytestmark = pytest.mark.skipif(DENO is None, reason="deno is absent, which has no wheel for this machine")

PAGES = {"page.js": ("page.js",), "plan.js": ("page.js", "plan_model.js", "player.js"), "notebook.js": ("notebook.js",)}
"""Which scripts stand one after the other in a page, or in a notebook."""
CONFIGURATION = {
    "compilerOptions": {
        "checkJs": True,
        "strict": True,
        "lib": ["dom", "dom.iterable", "esnext"],
    },
    "lint": {"rules": {"tags": ["recommended"], "include": ["eqeqeq", "no-eval", "no-throw-literal"]}},
}
WRONG = "/** @param {number} count */\nconst twice = (count) => 2 * count;\ntwice('2');\nvar counted = 1 == 2;\n"
"""What both checkers must complain of."""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each checker says of all scripts, each a file of its own, and of the one that is wrong."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "deno.json").write_text(json.dumps(CONFIGURATION), encoding="utf-8")
    (folder / "wrong.js").write_text(WRONG, encoding="utf-8")
    for name, parts in PAGES.items():
        (folder / name).write_text("\n".join(map(asset, parts)), encoding="utf-8")
    environment = {"DENO_DIR": str(folder / "cache"), "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}
    said = {}
    both = ("notebook.js", "plan.js", "wrong.js")
    for checker, names in (("check", ("page.js", *both)), ("lint", both)):  # page.js makes what the others use
        command = [str(DENO), checker, *names]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        said[checker] = done.stderr
    return said


@pytest.mark.parametrize("checker", ["check", "lint"])
def test_scripts_are_complained_of_nowhere(checker: str, complaints: dict[str, str]) -> None:
    places = re.findall(r"(\w+\.js):\d+:\d+", complaints[checker])
    assert set(places) == {"wrong.js"}, complaints[checker]


@pytest.mark.parametrize(
    ("checker", "words"), [("check", ["TS2345"]), ("lint", ["no-var", "eqeqeq", "no-unused-vars"])], ids=str
)
def test_what_is_wrong_is_complained_of(checker: str, words: list[str], complaints: dict[str, str]) -> None:
    assert [word for word in words if word not in complaints[checker]] == []
