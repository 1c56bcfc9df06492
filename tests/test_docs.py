"""Whether the examples in README and the documents run as shown.

Python blocks are doctests.
In console blocks a line that starts with `$` is a command, and the lines after it are what it prints; three dots
stand for any text.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import importlib.util
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import reshard
from reshard.cli import main

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(path.read_text(encoding="utf-8")) if found == language]


def transcripts() -> list[tuple[str, str]]:
    """Every command of a console block, with the output that is shown below it."""
    found = []
    for path in DOCUMENTS:
        for body in blocks(path, "console"):
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, output = re.sub(r"\\\n\s*", "", part).partition("\n")
                found.append((command, output))
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_blocks_run_as_shown(path: Path) -> None:
    examples = "\n".join(blocks(path, "python"))
    test = doctest.DocTestParser().get_doctest(examples, {}, path.name, str(path), 0)
    report = io.StringIO()
    result = doctest.DocTestRunner().run(test, out=report.write)
    assert result.failed == 0, report.getvalue()


@pytest.mark.parametrize(("command", "shown"), transcripts(), ids=lambda text: text[:60])
def test_console_blocks_print_what_is_shown(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = shlex.split(command)
    assert words[0] == "reshard"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = main(words[1:])
    matches = doctest.OutputChecker().check_output(shown, printed.getvalue(), doctest.ELLIPSIS)
    assert matches, f"exit {status}; printed:\n{printed.getvalue()}"


def test_the_first_command_of_each_user_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "examples")  # where a log lies that warns
    commands = re.findall(r"\| `(reshard [^`]+)` \|", DOCUMENTS[0].read_text(encoding="utf-8"))
    assert len(commands) == 4
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
        assert capsys.readouterr().out


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    made = {"gallery.md"}  # by the site's own hook
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if link not in made and not (path.parent / link).exists()] == []


def test_every_document_has_its_place_and_every_name_of_the_reference_is_there() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    documents = {str(path.relative_to(ROOT / "docs")) for path in DOCUMENTS[1:]}
    assert documents | {"gallery.md"} == set(listed)
    for name in re.findall(r"^::: reshard\.(\S+)", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE):
        if importlib.util.find_spec(name.partition(".")[0]) is not None or name.partition(".")[0] not in (
            "jax",
            "torch",
        ):
            assert callable(functools.reduce(getattr, name.split("."), reshard)), name


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is absent")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "gallery" / "two-hosts.html").is_file()


def test_there_are_examples_to_run() -> None:
    readme = DOCUMENTS[0]
    assert any(">>>" in body for body in blocks(readme, "python"))
    assert len(transcripts()) >= 3
