"""Whether the examples in README and the documents run as shown.

Python blocks are doctests.
In console blocks a line that starts with `$` is a command, and the lines after it are what it prints; three dots
stand for any text.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli import main

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import gallery_hook  # noqa: E402

GALLERIES = gallery_hook.GALLERIES
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
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not _is_made(link) and not (path.parent / link).exists()] == []


def _is_made(link: str) -> bool:
    """Whether the site's own hook makes it."""
    return link.rpartition("gallery/")[2].removesuffix(".md") in {gallery["page"] for gallery in GALLERIES}


def _named(name: str) -> Any:
    """What goes by a dotted name in the package, its modules loaded where nothing else has."""
    value: Any = reshard
    for part in name.split("."):
        if not hasattr(value, part):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    return value


def test_every_document_has_its_place_and_every_name_of_the_reference_is_there() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    documents = {str(path.relative_to(ROOT / "docs")) for path in DOCUMENTS[1:]}
    assert documents | {f"gallery/{gallery['page']}.md" for gallery in GALLERIES} == set(listed)
    for name in re.findall(r"^::: reshard\.(\S+)", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE):
        if importlib.util.find_spec(name.partition(".")[0]) is not None or name.partition(".")[0] not in (
            "jax",
            "torch",
        ):
            assert callable(_named(name)), name


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is absent")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "gallery" / "further" / "two-hosts.html").is_file()


EXAMPLES = [(gallery, example) for gallery in GALLERIES for example in gallery["examples"]]


def test_every_example_of_the_gallery_is_drawn_with_its_text_forms() -> None:
    addresses = set()
    for gallery, example in EXAMPLES:
        subject = gallery_hook.worked(example)
        text = gallery_hook.shown(gallery, example, subject)
        assert "<svg" in text, example["name"]
        assert re.search(r"```text\n\S", text), example["name"]
        addresses.add(gallery_hook.address(gallery, example))
    assert len(addresses) == len(EXAMPLES)


def test_the_command_of_each_example_does_what_its_picture_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _, example in EXAMPLES:
        words, subject = gallery_hook.command(example), gallery_hook.worked(example)
        if isinstance(subject, reshard.Sharding):
            assert main(words) == 0
            assert capsys.readouterr().out
            continue
        assert main([*words, "--out", str(tmp_path / "page.html")]) == 0
        assert (tmp_path / "page.html").read_text(encoding="utf-8") == subject.to_html(), example["name"]


def test_the_gallery_has_the_worked_reshards_of_the_tests() -> None:
    data = json.loads((ROOT / "tests" / "data" / "resharding_examples.json").read_text(encoding="utf-8"))
    plans = [gallery_hook.worked(example) for _, example in EXAMPLES if "source" in example]
    drawn = [(plan.shape, plan.source, plan.target) for plan in plans if isinstance(plan, reshard.Plan)]
    for case in data["cases"]:
        if "shape" not in case or not all(isinstance(size, int) for size in case["mesh"]):
            continue  # told in letters; the gallery has it in numbers
        mesh = reshard.Mesh.of(**{"abcd"[number]: size for number, size in enumerate(case["mesh"])})
        ends = [reshard.parse_sharding(str(case[end]), mesh, len(case["shape"])) for end in ("src", "dst")]
        assert (tuple(case["shape"]), *ends) in drawn, case["name"]


def test_there_are_examples_to_run() -> None:
    readme = DOCUMENTS[0]
    assert any(">>>" in body for body in blocks(readme, "python"))
    assert len(transcripts()) >= 3
