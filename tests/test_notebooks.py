"""What does a notebook show of each value? A drawing that keeps its looks where scripts and styles are taken away."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium, opened
from conftest import absent_engines

import reshard as rs
from reshard.planner.each_to_each import compare
from reshard.xla.report import inspect_texts

LINE = rs.Mesh.of(x=4)
ROWS, COLUMNS = rs.Sharding.of(LINE, "x", None), rs.Sharding.of(LINE, None, "x")
PLAN = rs.plan(ROWS, COLUMNS, (8, 8), "float32")


def placement() -> Any:
    program = rs.Program(LINE)
    value = program.input("v", (16, 8), "f32", ROWS)
    program.output(program.op("bd->db", value, name="transpose"))
    return program.propagate()


def values() -> dict[str, Any]:
    rules = [rs.Rules.of(LINE, {}, end.text()) for end in (ROWS, COLUMNS)]
    return {
        "mesh": LINE,
        "sharding": ROWS,
        "plan": PLAN,
        "einsum": rs.einsum("ij,jk->ik", ROWS, COLUMNS, shapes=[(8, 8), (8, 8)], target=ROWS),
        "placement": placement(),
        "model": rs.plan_model({"<b>.w": ((8, 8), "f32")}, *rules),
        "report": inspect_texts([("log", "HloModule m")]),
    }


@pytest.mark.parametrize("name", values())
def test_a_value_is_shown_as_text_and_as_a_drawing_that_needs_no_script(name: str) -> None:
    value = values()[name]
    forms = value._repr_mimebundle_()
    assert forms["text/plain"] in (str(value), repr(value))
    if name == "report":  # in which nothing was found
        assert set(forms) == {"text/plain"}
        return
    assert len(forms["text/html"]) < 40_000
    drawing = re.sub(r"<script>.*?</script>", "", forms["text/html"], flags=re.DOTALL)  # as GitHub does
    assert "<svg" in drawing
    assert not re.search(r"<script|<style|\sclass=|\son\w+=", drawing)
    assert "<b>" not in drawing


@pytest.mark.heavy
@pytest.mark.skipif("chromium" in absent_engines(), reason="Chromium or playwright is absent")
def test_a_click_on_a_tile_marks_those_of_the_same_devices(tmp_path: Path) -> None:
    forms = rs.plan(ROWS, rs.Sharding.of(LINE, None, None), (8, 8), "float32")._repr_mimebundle_()
    other = COLUMNS.drawn((8, 8))["text/html"]
    marked = "figures => figures.map(f => f.querySelectorAll('[data-tile] rect[stroke-width=\"4\"]').length)"
    with chromium() as browser, opened(browser, forms["text/html"] + other, tmp_path / "cell.html") as opening:
        page = opening.page
        page.click("figure >> nth=0 >> [data-tile='2'] >> text")
        assert page.eval_on_selector_all("figure", marked)[:2] == [1, 1]
        assert page.locator("[data-tile] rect[stroke-width='4']").count() == 2  # of another value none
        page.click("figure >> nth=0 >> figcaption")
        assert page.locator("[data-tile] rect[stroke-width='4']").count() == 0
        opening.check_quiet()


def test_a_drawing_says_who_holds_what() -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", ROWS.drawn((8, 8))["text/html"])
    assert texts == ["0", "1", "2", "3"]
    titles = re.findall(r"<title>(\[[^<]*)</title>", rs.Sharding.of(LINE, None, None).drawn((8, 8))["text/html"])
    assert titles[1:] == ["[0, 8) x [0, 8): devices 0 1 2 3"]


def test_show_gives_the_whole_page_in_a_frame_of_its_own() -> None:
    forms = rs.show(PLAN)._repr_mimebundle_()
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', forms["text/html"])[1])
    assert page == PLAN.to_html()
    assert 'sandbox="allow-scripts"' in forms["text/html"]
    assert repr(rs.show(PLAN)) == str(PLAN)


def test_show_draws_the_tensor_of_a_sharding() -> None:
    shown = rs.show(COLUMNS, (2, 8))
    assert repr(shown).splitlines()[2] == "  | 0 | 1 | 2 | 3 |"
    assert "<svg" in shown._repr_mimebundle_()["text/html"]
    assert (
        repr(rs.show(rs.Sharding.of(LINE, None, "x", None), (2, 4, 2))).splitlines()[1] == "[0, 2) x [1, 2) x [0, 2): 1"
    )
    assert "<svg" in rs.show(LINE)._repr_mimebundle_()["text/html"]


def test_show_refuses_what_it_does_not_know() -> None:
    for value, shape in (("text", None), (PLAN, (8, 8))):
        with pytest.raises(rs.ReshardError) as refusal:
            rs.show(value, shape)
        assert refusal.value.code == "bad-argument"


def test_many_devices_are_told_in_words_alone() -> None:
    many = rs.Sharding.of(rs.Mesh.of(x=512), "x")
    assert set(many._repr_mimebundle_()) == {"text/plain"}
    assert set(compare([COLUMNS], (4, 4)).as_dict()) >= {"received_bytes", "seconds"}
