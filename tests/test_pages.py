"""Do pages open from disk, ask for nothing, and show what is so? Read back from the browser that drew them."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from chromium import Opened, chromium, opened
from conftest import absent_engines
from problems import draw_problem
from ring_plans import ring_plans

import reshard as rs
from reshard.cli import main
from reshard.cli.plan_command import device_traffic, traffic_text
from reshard.drawing.packing import unpack
from reshard.planner.each_to_each import compare
from reshard.plans.player_data import player_data
from reshard.xla.report import inspect_texts
from reshard.xla.report.operation_rows import operation_rows

ROOT = Path(__file__).parent.parent
DUMPS = ROOT / "tests" / "data" / "inspect"


def read_dump(*names: str) -> list[tuple[str, str]]:
    return [(name, (DUMPS / name).read_text(encoding="utf-8")) for name in names]


HOSTILE = "</script><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">'\"&lt;"
"""A name that would run, were it ever markup."""

needs_chromium = pytest.mark.skipif("chromium" in absent_engines(), reason="Chromium or playwright is absent")
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def mesh(**axes: int) -> rs.Mesh:
    return rs.Mesh.of(**axes)


def plans() -> dict[str, rs.Plan]:
    square, hosts, line = mesh(x=2, y=4), mesh(host=2, gpu=4), mesh(x=4)
    sharding = rs.Sharding.of
    return {
        "exchange": rs.plan(sharding(square, "y", None), sharding(square, "x", "y"), (8, 8), "float32"),
        "network": rs.plan(
            sharding(hosts, None, "host"), sharding(hosts, "host", None), (512, 512), "bfloat16", network="h100-2x4"
        ),
        "reduction": rs.plan(sharding(line, None, None, unreduced="x"), sharding(line, None, None), (6, 10), "float32"),
        "scattered": rs.plan(sharding(line, None, None, unreduced="x"), sharding(line, None, "x"), (6, 10), "float32"),
        "uneven": rs.plan(sharding(mesh(x=2, y=3), "x", None), sharding(mesh(x=2, y=3), "y", "x"), (7, 5), "int32"),
        "disjoint": rs.plan(
            sharding(line, "x", None), sharding(rs.Mesh.of(y=3, device_ids=(9, 3, 7)), None, "y"), (5, 7), "float64"
        ),
        "slice": rs.plan(sharding(line, None, None), sharding(line, "x", None), (8, 2), "float32"),
        "rank 4": rs.plan(
            sharding(square, "x", None, "y", None), sharding(square, None, "y", None, "x"), (4, 8, 8, 6), "float16"
        ),
        "zigzag": rs.plan(
            sharding(line, (rs.Deal.zigzag(), "x")), sharding(line, "x"), (10,), "float32"
        ),
        "ring": next(
            plan for plan in ring_plans(mesh(x=2, y=3), (6, 12), "float32")
            if plan.steps[0].moves[0].exchange.passing(0) and plan.steps[0].moves[0].exchange.hops > 2
        ),
        "nothing": rs.plan(sharding(line, "x"), sharding(line, "x"), (8,), "float32"),
        "scalar": rs.plan(sharding(line, unreduced="x"), sharding(line), (), "float32"),
        "partial": rs.plan(sharding(line, "x"), sharding(line, None, unreduced="x"), (8,), "float32"),
    }  # fmt: skip


PLANS = plans()
COMMON = ("network", "reduction", "uneven", "disjoint", "zigzag", "ring", "nothing")
"""Those that every run goes through."""


def shown(page: Any) -> dict[int, list[tuple[list[tuple[int, int]], bool, float]]]:
    """Per device what its cell draws: boxes, whether they are what was held before, and how much of them is there."""
    drawn = page.evaluate(
        """() => [...document.querySelectorAll("#mesh [data-device]")].map((cell) => [+cell.dataset.device,
             [...cell.querySelectorAll("[data-box]")].map((box) =>
               [box.dataset.box, box.dataset.old, box.dataset.part])])"""
    )
    return {
        device: [
            ([tuple(map(int, ends.split(":"))) for ends in box.split(",") if ends], old == "1", float(part))
            for box, old, part in boxes
        ]
        for device, boxes in drawn
    }


def covered(boxes: list[list[tuple[int, int]]], shape: tuple[int, ...]) -> np.ndarray:
    """How often boxes cover each element, by index arithmetic."""
    counts = np.zeros(shape, dtype=int)
    for box in boxes:
        counts[tuple(slice(*ends) for ends in box)] += 1
    return counts


def check_end(page: Any, sharding: rs.Sharding, shape: tuple[int, ...], *, whole: bool = True) -> None:
    """What all cells draw is the tile of their device, every element once."""
    cells = shown(page)
    for device in sharding.mesh.device_array.tolist():
        now = [box for box, old, _ in cells[device] if not old]
        assert all(part == pytest.approx(1, abs=1e-5) for _, _, part in cells[device]) or not whole
        expected = covered([list(box) for box in sharding.boxes(device, shape)], shape)
        np.testing.assert_array_equal(covered(now, shape), expected, err_msg=f"device {device}")


@contextlib.contextmanager
def loaded(browser: Any, text: str, folder: Path, **options: Any) -> Iterator[Opened]:
    with opened(browser, text, folder / "page.html", **options) as opening:
        opening.page.wait_for_selector("body[data-ready]", timeout=60_000)
        yield opening


@needs_chromium
@pytest.mark.parametrize(
    "name", [name if name in COMMON else pytest.param(name, marks=pytest.mark.slow) for name in PLANS]
)
def test_a_plan_plays_to_the_target_and_shows_what_each_device_does(name: str, browser: Any, tmp_path: Path) -> None:
    plan = PLANS[name]
    with loaded(browser, plan.to_html(), tmp_path) as opening:
        page = opening.page
        check_end(page, plan.source, plan.shape)
        page.click("#play")
        last = page.get_attribute("#scrub", "max")
        assert int(last) >= len(plan.steps)
        page.wait_for_selector(f'body[data-frame="{last}"]', timeout=30_000)
        check_end(page, plan.target, plan.shape)
        for device in plan.devices[:3]:
            check_device(page, plan, device)
        opening.check_quiet()


def check_device(page: Any, plan: rs.Plan, device: int) -> None:
    """A click on a device shows the pieces that `plan --device` lists."""
    page.click(f'#mesh [data-device="{device}"]')
    listed = page.eval_on_selector_all("#panel [data-piece]", "items => items.map((item) => item.textContent)")
    text = traffic_text(device_traffic(plan, device))
    if not plan.shape:  # which is combined as a vector of one element
        text = text.replace("[0, 1)", "()")
    assert sorted(listed) == sorted(line.strip() for line in text.splitlines() if line.startswith("  "))
    received = text.partition("receives ")[2].partition(",")[0]
    assert page.inner_text("#panel p >> nth=0").endswith(f"receives {received}")


@needs_chromium
def test_what_passes_is_shown_while_it_comes(browser: Any, tmp_path: Path) -> None:
    """Hop by hop, and not as a part of the tile."""
    plan = PLANS["ring"]
    exchange = plan.steps[0].moves[0].exchange
    with loaded(browser, plan.to_html(), tmp_path) as opening:
        page, hops = opening.page, exchange.hops
        assert int(page.get_attribute("#scrub", "max")) == hops
        for hop in range(1, hops + 1):
            page.keyboard.press("ArrowRight")
            for device, drawn in shown(page).items():
                wanted = [piece for piece in exchange.incoming(device) if piece.round <= hop]
                passing = [piece for piece in exchange.passing(device) if piece.round == hop]
                boxes = sorted([[*piece.box] for piece in (*wanted, *passing)])
                assert sorted(box for box, old, _ in drawn if not old) == boxes
        assert any(exchange.passing(device) for device in plan.devices)
        opening.check_quiet()
    lines = traffic_text(device_traffic(plan, 0)).splitlines()
    assert sum(line.startswith("  hands on") for line in lines) == len(exchange.passing(0))


@needs_chromium
def test_the_keyboard_alone_does_it(browser: Any, tmp_path: Path) -> None:
    plan = PLANS["exchange"]
    with loaded(browser, plan.to_html(), tmp_path) as opening:
        page, keys = opening.page, opening.page.keyboard
        keys.press("End")
        check_end(page, plan.target, plan.shape)
        keys.press("Home")
        check_end(page, plan.source, plan.shape)
        keys.press("ArrowRight")
        assert page.input_value("#scrub") == "1"
        for _ in range(40):
            keys.press("Tab")
            if page.evaluate("document.activeElement.hasAttribute('data-device')"):
                break
        keys.press("ArrowDown")
        keys.press("ArrowRight")
        keys.press("Enter")
        assert page.inner_text("#panel h3") == "device 5"
        assert page.url.endswith("#frame=1&device=5")
        keys.press("Escape")
        assert page.query_selector("#panel h3") is None
        opening.check_quiet()


@needs_chromium
def test_a_link_keeps_the_state(browser: Any, tmp_path: Path) -> None:
    with loaded(browser, PLANS["exchange"].to_html(), tmp_path, link="#frame=2&device=6") as opening:
        opening.page.wait_for_selector("body[data-ready]")
        assert opening.page.input_value("#scrub") == "2"
        assert opening.page.inner_text("#panel h3") == "device 6"


@needs_chromium
@pytest.mark.parametrize("calm", [True, False])
def test_pieces_fly_where_motion_is_welcome(calm: bool, browser: Any, tmp_path: Path) -> None:
    with loaded(browser, PLANS["exchange"].to_html(), tmp_path, calm=calm) as opening:
        opening.page.evaluate("Element.prototype.remove = () => {}")  # else those that have landed are gone
        opening.page.click("#forward")
        assert opening.page.locator("#mesh .flight").count() == (0 if calm else 4)  # the other four have theirs already
        opening.check_quiet()


@needs_chromium
def test_what_is_printed_has_the_drawings_and_no_buttons_on_white(browser: Any, tmp_path: Path) -> None:
    with loaded(browser, PLANS["network"].to_html(), tmp_path, dark=True) as opening:
        page = opening.page
        page.emulate_media(media="print", color_scheme="dark")
        assert page.locator("button:visible, nav:visible, #scrub:visible").count() == 0
        assert page.locator("svg.frame:visible").count() == 2
        assert page.locator("svg.chart:visible").count() >= 4
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(400, True), (1280, False)])
def test_nothing_is_wider_than_the_window(width: int, dark: bool, browser: Any, tmp_path: Path) -> None:
    with loaded(browser, PLANS["network"].to_html(), tmp_path, width=width, dark=dark) as opening:
        assert opening.page.evaluate("document.documentElement.scrollWidth") <= width
        ground = opening.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(22, 24, 27)" if dark else "rgb(255, 255, 255)")


@needs_chromium
def test_names_run_nowhere(browser: Any, tmp_path: Path) -> None:
    named = rs.Mesh.of({HOSTILE: 2, "y": 2})
    plan = rs.plan(rs.Sharding.of(named, HOSTILE, None), rs.Sharding.of(named, None, "y"), (4, 4), "float32")
    text = plan.to_html()
    assert "<img" not in text
    assert "<script>document" not in text
    with loaded(browser, text, tmp_path) as opening:
        opening.page.click("#mesh [data-device]")
        assert opening.page.title() == "4 x 4 float32 on 4 devices"
        assert HOSTILE in opening.page.inner_text("body")
        opening.check_quiet()


def test_the_same_plan_gives_the_same_bytes_and_names_nothing_outside() -> None:
    plan = PLANS["network"]
    text = plan.to_html()
    assert text == rs.Plan.from_json(plan.to_json()).to_html()
    assert set(re.findall(r"\b(?:https?:)?//[\w.]+", text.replace("// ", ""))) <= {"http://www.w3.org"}
    assert not re.findall(r"\s(?:src|href)=\"(?!#)", text)


def test_a_thousand_devices_and_a_hundred_rounds_stay_small() -> None:
    many = mesh(a=8, b=128)
    plan = rs.plan(rs.Sharding.of(many, ("a", "b"), None), rs.Sharding.of(many, "a", "b"), (8192, 8192), "bfloat16")
    assert plan.rounds == 127
    text = plan.to_html()
    assert len(text.encode()) <= 1_500_000
    assert 1 < len(drawn_memory(text, 1)) <= 64  # runs of neighbours
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert block
    assert json.loads(block[1])["moves"][0]["pieces"]["count"] == 1024 * 128


def drawn_memory(text: str, step: int) -> dict[int, dict[str, str]]:
    """Per device and part, the bytes that the chart of a step writes."""
    chart = re.search(rf"<svg[^>]*><title>memory of each device in step {step}</title>.*?</svg>", text)
    assert chart
    parts: dict[int, dict[str, str]] = {}
    for device, part, amount in re.findall(r"<title>(\d+): ([a-z, ]+) (\d[^<]*)</title>", chart[0]):
        parts.setdefault(int(device), {})[part] = amount
    return parts


@pytest.mark.parametrize("name", ["uneven", "disjoint", "zigzag", "scattered", "slice"])
def test_memory_is_drawn_for_each_device_and_step(name: str) -> None:
    plan = PLANS[name]
    text = plan.to_html()
    for number, step in enumerate(plan.steps, 1):
        drawn = drawn_memory(text, number)
        for device in plan.devices:
            for part, sharding in (("tile before", step.before), ("tile after", step.after)):
                boxes = [list(box) for box in sharding.boxes(device, plan.shape)] if device in sharding.mesh else []
                count = int(covered(boxes, plan.shape).sum()) * plan.dtype.itemsize
                assert drawn[device].get(part) == (f"{count} B" if count else None), (device, part)
        needs = [sum(int(amount.removesuffix(" B")) for amount in parts.values()) for parts in drawn.values()]
        assert max(needs) <= plan.peak_bytes
        assert f"most {max(needs)} B" in text


def test_a_limit_is_a_line_over_the_memory_of_each_device() -> None:
    ends = PLANS["exchange"].source, PLANS["exchange"].target
    text = rs.plan(*ends, (8, 8), "float32", memory_limit=110).to_html()
    charts = re.findall(r"<title>memory of [^<]*</title>.*?</svg>", text)
    assert len(charts) >= 2
    assert all("limit 110 B" in chart for chart in charts)
    kept = drawn_memory(text, 1)
    assert all(sum(int(amount.split()[0]) for amount in parts.values()) <= 110 for parts in kept.values())


def test_a_product_has_the_bound_of_what_its_devices_lack() -> None:
    line = mesh(x=4)
    cut = rs.Sharding.of(line, "x", None)
    product = rs.einsum("ij,jk->ik", cut, cut, shapes=[(8, 8), (8, 8)], target=cut)
    assert product.received_bytes == 6 * 8 * 4  # each device lacks six of the eight rows of the second operand
    assert "bound 192 B" in product.to_html()


@needs_chromium
@pytest.mark.slow
def test_sixteen_thousand_devices_open(browser: Any, tmp_path: Path) -> None:
    many = mesh(a=128, b=128)
    plan = rs.plan(rs.Sharding.of(many, "a", "b"), rs.Sharding.of(many, None, ("a", "b")), (16384, 16384), "bfloat16")
    text = plan.to_html()
    assert len(text.encode()) <= 3_000_000
    with loaded(browser, text, tmp_path) as opening:
        assert opening.page.evaluate("document.querySelectorAll('#mesh [data-device]').length") == 16384
        opening.page.keyboard.press("End")
        opacities = opening.page.eval_on_selector_all(
            "#mesh [data-device]", "cells => [...new Set(cells.map((cell) => cell.getAttribute('fill-opacity')))]"
        )
        assert opacities == ["1.00"]
        opening.page.click('#mesh [data-device="0"]')
        assert "receives" in opening.page.inner_text("#panel ul")
        opening.check_quiet()


@functools.cache
def other_pages() -> dict[str, str]:
    """A page of every other kind; names come from the user wherever they can."""
    line = mesh(x=4)
    program = rs.Program(line)
    value = program.input("v", (16, 8), "f32", rs.Sharding.of(line, "x", None))
    weight = program.input("w", (8, 8), "f32", rs.Sharding.of(line, None, "x"))
    program.output(program.op("bd,df->bf", value, weight, name="einsum"))
    rules = [rs.Rules.of(line, {}, rs.Sharding.of(line, *cut).text()) for cut in (("x", None), (None, "x"))]
    warned = (ROOT / "examples" / "train.log").read_text(encoding="utf-8")
    report = inspect_texts([(f"{HOSTILE}.log", warned.replace("%param", "%param" + "<img>"))])
    shardings = [rs.Sharding.of(line, *cut) for cut in (("x", None), (None, "x"), (None, None))]
    product = rs.einsum("ij,jk->ik", *shardings[:2], shapes=[(8, 8), (8, 8)], network="h100-8", target=shardings[0])
    return {
        "einsum": product.to_html(),
        "placement": program.propagate().to_html(),
        "model": rs.plan_model({f"{HOSTILE}.{n}": ((8, 8), "f32") for n in range(3)}, *rules).to_html(),
        "report": report.to_html(),
        "two reports": report.to_html(inspect_texts([("other", warned)])),
        "dumps": inspect_texts(hostile_dump(".txt")).to_html(inspect_texts(hostile_dump(".mlir"))),
        "comparison": compare(shardings, (8, 8)).to_html(),
    }


def hostile_dump(ending: str) -> list[tuple[str, str]]:
    """Modules in which names, places and shardings would run, were they ever markup."""
    texts = [(f"{HOSTILE}{name}", text) for name, text in read_dump("remat.txt", "remat.mlir") if name.endswith(ending)]
    return [(name, text.replace("program.py", HOSTILE.replace('"', "'"))) for name, text in texts]


@needs_chromium
def test_every_other_page_opens_asks_for_nothing_and_runs_no_name(browser: Any, tmp_path: Path) -> None:
    for name, text in other_pages().items():
        assert "<img" not in text, name
        with opened(browser, text, tmp_path / "page.html", width=400) as opening:
            page = opening.page
            assert page.title() != "ran"
            assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
            assert page.locator("svg[role=img]").count() >= 1, name
            opening.check_quiet()


UNREACHED = """() => {
  const wanted = [...document.querySelectorAll("a, button, input, summary, [tabindex='0']")]
    .filter((element) => element.checkVisibility());
  return wanted.filter((element) => !window.reached.has(element)).map((element) => element.outerHTML.slice(0, 80));
}"""


@needs_chromium
@pytest.mark.parametrize(
    "name",
    ["dumps", *(pytest.param(name, marks=pytest.mark.slow) for name in
                ("plan", "einsum", "placement", "model", "report", "two reports", "comparison"))],
)  # fmt: skip
def test_the_keyboard_reaches_all_that_can_be_used(name: str, browser: Any, tmp_path: Path) -> None:
    text = PLANS["nothing"].to_html() if name == "plan" else other_pages()[name]
    with opened(browser, text, tmp_path / "page.html") as opening:
        page, keys = opening.page, opening.page.keyboard
        page.evaluate("window.reached = new Set()")
        page.evaluate("document.addEventListener('focusin', (event) => window.reached.add(event.target))")
        for _ in range(len(page.evaluate(UNREACHED)) + 2):
            keys.press("Tab")
        assert page.evaluate(UNREACHED) == []
        if closed := page.query_selector("details:not([open]) summary"):
            closed.focus()
            keys.press("Enter")
            assert closed.evaluate("summary => summary.parentElement.open")
        if copy := page.query_selector("details[open] button.copy"):
            copy.focus()
            keys.press("Enter")
            page.wait_for_function("button => ['copied', 'selected'].includes(button.textContent)", arg=copy)
        opening.check_quiet()


def test_the_page_of_a_report_draws_its_operations_with_what_is_found_on_them() -> None:
    text = inspect_texts(read_dump("remat.txt", "remat.mlir")).to_html()
    rows = [re.sub(r"<[^>]+>", "|", row) for row in re.findall(r"<tr.*?</tr>", text)]
    told = [row for row in rows if "finding 1" in row]
    assert [re.sub(r"\|+", "|", row).split("|")[1:6] for row in told] == [
        ["51", "all-gather", "all-gather(wrapped_copy)", "sends for ", "finding 1"],
        ["53", "all-gather.1", "all-gather(wrapped_copy.1)", "sends for ", "finding 1"],
        ["8", "2", "sharding-constraint(1)", "finding 1", " "],
    ]
    assert 'id="finding-1"' in text
    assert "&lt;@mesh, [{}, {&quot;x&quot;, &quot;y&quot;}, {}]&gt;" in text or "[{}, {&#x27;" in text


def test_curves_go_from_who_makes_a_value_to_who_takes_it() -> None:
    report = inspect_texts(read_dump("remat.mlir"))
    rows = operation_rows(report, report.modules[0], 100)
    taken = {row.name: [rows[place].name for place in row.takes] for row in rows}
    assert taken["4"] == ["2", "3"]
    few = operation_rows(report, report.modules[0], 4)
    assert [row.name for row in few] == ["arg0", "2", "return of line 12"]
    assert [few[place].name for place in few[2].takes] == ["2"]  # through what is left out


def test_two_reports_stand_side_by_side_where_they_differ() -> None:
    name, text = read_dump("remat.mlir")[0]
    changed = text.replace('[{}, {"x", "y"}, {}]> :', '[{}, {"y"}, {"x"}]> :')
    assert changed != text
    page = inspect_texts([(name, text)]).to_html(inspect_texts([("after", changed)]))
    lines = re.findall(r'<tr class="differs">(.*?)</tr>', page)
    assert len(lines) == 1
    assert re.findall(r"<td[^>]*>([^<]*)</td>", lines[0])[:2] == ["8", "2 = sharding-constraint"]
    assert "1 of 9 lines differ" in page
    same = inspect_texts([(name, text)])
    assert "all 9 operations are alike" in same.to_html(same)


@needs_chromium
def test_a_report_is_searched_and_leads_to_its_findings(browser: Any, tmp_path: Path) -> None:
    text = inspect_texts(read_dump("remat.txt", "remat.mlir")).to_html()
    with opened(browser, text, tmp_path / "page.html", width=400) as opening:
        page = opening.page
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        rows = page.locator("[data-filtered=operations] tbody tr:visible")
        page.fill("input[type=search]", "sends for")
        assert rows.count() == 2
        page.click("[data-filtered=operations] tbody tr:visible a")
        assert page.url.endswith("#finding-1")
        assert page.evaluate("scrollY") < page.evaluate("document.querySelector('#graph').offsetTop")
        opening.check_quiet()


@needs_chromium
def test_the_rows_of_a_program_are_searched(browser: Any, tmp_path: Path) -> None:
    with opened(browser, other_pages()["placement"], tmp_path / "page.html") as opening:
        rows = opening.page.locator("[data-filtered=operations] tbody tr:visible")
        many = rows.count()
        opening.page.fill("input[type=search]", "einsum")
        assert 0 < rows.count() < many
        assert opening.page.url.endswith("#search=einsum")


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--mesh", "x=2", "--shape", "4", '[{"x"}]', "[{}]"],
        ["einsum", "ij,jk->ik", "--mesh", "x=2", "--shape", "4,4", "--shape", "4,4", "--operand", '[{"x"}, {}]',
         "--operand", "[{}, {}]"],
        ["propagate", str(ROOT / "examples" / "layer.txt")],
        ["inspect", str(ROOT / "examples" / "train.log"), "--mesh", "x=4,y=2", "--beside",
         str(ROOT / "examples" / "train.log")],
        ["compare", "--mesh", "x=2", "--shape", "4", '[{"x"}]', "[{}]"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_view_writes_the_page_of_each_command(words: list[str], tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "page.html"
    assert main(["view", *words, "--out", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("seed", range(5))
def test_the_pieces_of_drawn_plans_make_up_the_target(seed: int) -> None:
    rng = Random(seed)
    for _ in range(30):
        problem = draw_problem(rng)
        plan = rs.plan(problem.source, problem.target, problem.shape, "int8")
        data = player_data(plan)
        if plan.steps:
            check_data(plan, data)


def check_data(plan: rs.Plan, data: dict[str, Any]) -> None:
    """The pieces of the last step are each device's target tile, and in a round a device takes from one."""
    held: dict[int, list[list[tuple[int, int]]]] = {}
    for move in data["moves"]:
        rounds, senders, receivers, *columns = unpack(move["pieces"])
        boxes = [
            [data["intervals"][dim][number] for dim, number in enumerate(ids)] for ids in zip(*columns, strict=True)
        ]
        if move["step"] == len(plan.steps) - 1:
            for place, box in zip(receivers, boxes or [[]] * len(receivers), strict=True):
                held.setdefault(plan.devices[place], []).append(box)
        sent = [
            (turn, place) for turn, sender, place in zip(rounds, senders, receivers, strict=True) if sender != place
        ]
        assert len(sent) == len(set(sent))
    for device in plan.target.mesh.device_array.tolist() if plan.steps[-1].moves else ():
        expected = covered([list(box) for box in plan.target.boxes(device, plan.shape)], plan.shape)
        np.testing.assert_array_equal(covered(held.get(device, []), plan.shape), expected, err_msg=f"device {device}")
