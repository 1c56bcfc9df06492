"""Our reader of Shardy's text says what Shardy says, text by text, but for what is named here.

Shardy is the copy inside jaxlib.
The texts are drawn from a seed: good ones, ones with one rule broken on purpose, and ones with typing mistakes.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import odd_texts
import pytest
from shardy import Answer, ask_mesh, ask_module, ask_sharding
from test_notation_modules import MODULE

from reshard.errors import ReshardError
from reshard.notation import parse_mesh, parse_module, parse_sharding

pytest.importorskip("jaxlib")
pytestmark = pytest.mark.engine

CODE_OF = [
    ("axis-size", r"axis size must be at least 1"),
    ("negative-device-id", r"device id must be non-negative"),
    ("maximal-mesh", r"axes is empty and device_ids has more than one element"),
    ("duplicate-axis", r"duplicate axis name"),
    ("device-ids-count", r"total product of axis sizes must match total number of device ids"),
    ("device-ids-not-iota|duplicate-device-id", r"sorted device ids must be iota"),
    ("unknown-mesh", r"unknown mesh"),
    ("maximal-sharding", r"a maximal sharding can only have"),
    ("rank-mismatch", r"sharding doesn't match tensor rank"),
    ("needless-priority", r"is empty and closed but has a priority"),
    ("unknown-axis", r"unknown axis name"),
    ("duplicate-axis-ref", r"duplicate axis ref"),
    ("mergeable-sub-axes", r"two consecutive sub-axes can be merged"),
    ("unsorted-axes", r"axes are not ordered w.r.t. mesh"),
    ("axis-and-sub-axis", r"both sub-axis and full-axis are used"),
    ("sub-axis-pre-size", r"sub-axis pre-size must be at least 1"),
    ("sub-axis-size", r"sub-axis sizes must be greater than 1"),
    ("sub-axis-divisor", r"doesn't divide the size of the full axis"),
    ("sub-axis-is-axis", r"sub-axis size is equal to the full axis size"),
    ("overlapping-sub-axes", r"overlapping sub-axes"),
    ("too-large", r"integer value too large|expecting integer priority"),
]
"""Our codes for the rules that Shardy names; any other of its messages is about the syntax."""
HOLE = "sub-axes-cannot-coexist"
"""What Shardy lets through and we refuse."""


def code_of(problem: str) -> str:
    return next((code for code, pattern in CODE_OF if re.search(pattern, problem)), "syntax")


class Ours(NamedTuple):
    printed: str | None
    code: str
    sentence: str


def our_answer(read: Callable[[], str]) -> Ours:
    try:
        return Ours(read(), "", "")
    except ReshardError as error:
        return Ours(None, error.code, str(error))


def our_sharding(text: str, mesh: str, ndim: int | None = None) -> Ours:
    """What we say to a sharding, printed as Shardy would: with the name of its mesh, where it has one."""

    def read() -> str:
        sharding = parse_sharding(text, {"m": parse_mesh(mesh)}, ndim)
        return str(sharding) if "mesh" in text.partition("[")[0] else f"#sdy.sharding<@m, {sharding.text()}>"

    return our_answer(read)


def our_mesh(text: str) -> Ours:
    return our_answer(lambda: f"#sdy.mesh{parse_mesh(text)}")


class Tally:
    """Compares answers and counts what they were."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()

    def add(self, text: str, theirs: Answer, ours: Ours, *, codes: bool = True) -> None:
        if theirs.printed is not None and ours.code == HOLE:
            self.count["hole"] += 1
        elif theirs.printed is not None:
            assert ours.printed == theirs.printed, (text, ours)
            self.count["good"] += 1
        else:
            assert ours.printed is None, (text, theirs.problem, ours)
            expected = code_of(theirs.problem)
            assert not codes or ours.code in expected.split("|"), (text, theirs.problem, ours)
            self.count["bad"] += 1
            self.codes[expected] += 1


# good texts


class Text(NamedTuple):
    """A sharding in parts, so that one part can be spoilt; an axis is its name, its size, and a part of it or None."""

    mesh: list[tuple[str, int]]
    ids: list[int] | None
    dims: list[tuple[list[str], bool, int | None]]
    replicated: list[str]
    unreduced: list[str]

    def mesh_text(self) -> str:
        axes = ", ".join(f'"{name}"={size}' for name, size in self.mesh)
        return f"<[{axes}]" + (f", device_ids=[{', '.join(map(str, self.ids))}]>" if self.ids else ">")

    def body(self) -> str:
        dims = []
        for axes, is_open, priority in self.dims:
            inner = ", ".join([*axes, *(["?"] if is_open else [])])
            dims.append(f"{{{inner}}}" + ("" if priority is None else f"p{priority}"))
        lists = [("replicated", self.replicated), ("unreduced", self.unreduced)]
        fields = [f", {name}={{{', '.join(axes)}}}" for name, axes in lists if axes]
        return f"[{', '.join(dims)}]{''.join(fields)}"


def divisors(number: int) -> list[int]:
    return [size for size in range(2, number + 1) if number % size == 0]


def draw(rng: random.Random, sizes: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12)) -> Text:
    """A text that is nearly always good: sub-axes are those of one split, lists are sorted and merged."""
    names = rng.sample(["x", "y", "z", "w", "a b", "\\22", "\\C3\\A9"], rng.randint(1, 4))
    mesh = [(name, rng.choice(sizes)) for name in names]
    total = 1
    for _, size in mesh:
        total *= size
    ids = rng.sample(range(total), total) if total < 50 and rng.random() < 0.3 else None
    dims: list[tuple[list[str], bool, int | None]] = [([], False, None) for _ in range(rng.randint(0, 4))]
    places: list[list[str]] = [dim[0] for dim in dims] * 2 + [replicated := [], unreduced := [], []]
    parts = [part for name, size in mesh for part in split(rng, name, size)]
    ends: dict[int, tuple[str, int]] = {}
    shuffled = rng.sample(parts, len(parts))
    for name, start, stop, size in shuffled:
        home = rng.choice(places)
        if home is replicated or home is unreduced or ends.get(id(home)) == (name, start):
            continue
        ends[id(home)] = (name, stop)
        home.append(f'"{name}"' if (start, stop) == (1, size) else f'"{name}":({start}){stop // start}')
    used = {ref for dim in dims for ref in dim[0]}
    last: dict[int, tuple[str, int]] = {}
    for name, start, stop, size in parts:
        ref = f'"{name}"' if (start, stop) == (1, size) else f'"{name}":({start}){stop // start}'
        home = rng.choice([replicated, unreduced, None])
        if ref in used or home is None or last.get(id(home)) == (name, start):
            continue
        last[id(home)] = (name, stop)
        home.append(ref)
    for place, (axes, _, _) in enumerate(dims):
        is_open = rng.random() < 0.3
        priority = rng.choice([0, 1, 7, 2**63 - 1]) if (axes or is_open) and rng.random() < 0.2 else None
        dims[place] = (axes, is_open, priority)
    return Text(mesh, ids, dims, replicated, unreduced)


def split(rng: random.Random, name: str, size: int) -> Iterator[tuple[str, int, int, int]]:
    """The parts of an axis, as (name, start, stop, size of the axis)."""
    start = 1
    while start < size:
        step = rng.choice([size // start, *divisors(size // start)])
        yield name, start, start * step, size
        start *= step
    if size == 1:
        yield name, 1, 1, 1


@pytest.mark.parametrize("count", [600, pytest.param(3000, marks=pytest.mark.slow)])
def test_good_texts(count: int) -> None:
    rng = random.Random(count)
    tally = Tally()
    for _ in range(count):
        text = draw(rng)
        name = rng.choice(["@m", '@"m"', f"mesh{text.mesh_text()}"])
        whole = f"#sdy.sharding<{name}, {text.body()}>"
        tally.add(whole, ask_sharding(whole, text.mesh_text()), our_sharding(whole, text.mesh_text()))
        tally.add(mesh := f"#sdy.mesh{text.mesh_text()}", ask_mesh(mesh), our_mesh(mesh))
    assert tally.count["good"] > 1.96 * count
    assert not tally.count["hole"]


# texts with one rule broken


def spoil_mesh(rng: random.Random, text: Text, rule: str) -> str:
    mesh, ids = list(text.mesh), list(text.ids or [0, 1])
    place = rng.randrange(len(mesh))
    if rule == "M1":
        mesh[place] = (mesh[place][0], rng.choice([0, -1, -7]))
    elif rule == "M2":
        ids[rng.randrange(len(ids))] = -rng.randint(1, 9)
    elif rule == "M3":
        mesh, ids = [], [0, 1]
    elif rule == "M4":
        mesh.insert(place, (mesh[-1][0], rng.randint(1, 4)))
    elif rule == "M5":
        ids = [*ids, len(ids)]
    elif rule == "M6":
        ids = list(range(7))
        mesh = [("x", 7)]
        ids[rng.randrange(7)] = rng.choice([0, 1, 7, 99])
    return Text(mesh, ids, [], [], []).mesh_text()


MESH_RULES = {
    "M1": "axis-size",
    "M2": "negative-device-id",
    "M3": "maximal-mesh",
    "M4": "duplicate-axis",
    "M5": "device-ids-count",
    "M6": "device-ids-not-iota|duplicate-device-id",
}


@pytest.mark.parametrize("rule", MESH_RULES)
def test_every_rule_of_a_mesh_broken(rule: str) -> None:
    rng = random.Random(rule)
    tally = Tally()
    for _ in range(60):
        text = draw(rng)
        mesh = f"#sdy.mesh{spoil_mesh(rng, text, rule)}"
        tally.add(mesh, ask_mesh(mesh), our_mesh(mesh))
        inlined = f"#sdy.sharding<mesh{mesh.removeprefix('#sdy.mesh')}, [{{}}]>"
        tally.add(inlined, ask_sharding(inlined, "<[]>"), our_sharding(inlined, "<[]>"))
    assert tally.codes[MESH_RULES[rule]] > 80


def test_device_ids_in_order_are_dropped() -> None:
    assert ask_mesh('#sdy.mesh<["a"=2], device_ids=[0, 1]>').printed == '#sdy.mesh<["a"=2]>'
    assert our_mesh('#sdy.mesh<["a"=2], device_ids=[0, 1]>').printed == '#sdy.mesh<["a"=2]>'


def test_two_meshes_of_one_name() -> None:
    module = 'sdy.mesh @m = <["x"=2]>\nsdy.mesh @m = <["x"=2]>'
    assert ask_module(module) == "redefinition of symbol named 'm'"
    with pytest.raises(ReshardError, match="defined a second time"):
        parse_module(module)


def spoil(rng: random.Random, text: Text, rule: str) -> tuple[str, str]:
    """A mesh and a sharding on it with one rule broken, on an axis q of size 8 that nothing else uses."""
    mesh = [*text.mesh, ("q", 8)]
    dims = [(list(axes), is_open, priority) for axes, is_open, priority in text.dims] + [([], False, None)]
    replicated, unreduced = list(text.replicated), list(text.unreduced)
    spot = rng.choice([dims[rng.randrange(len(dims))][0], dims[-1][0]])
    other = rng.choice([dims[rng.randrange(len(dims))][0], dims[-1][0]])

    def put(ref: str, more: str = "") -> None:
        spot.append(ref)
        if more:
            (spot if rng.random() < 0.5 else other).append(more)

    if rule == "S8":
        dims[-1] = ([], False, rng.choice([0, 3]))
    elif rule == "L1":
        put(rng.choice(['"nope"', '""', '"nope":(1)2', '"X"']))
    elif rule == "L2":
        ref = rng.choice(['"q"', '"q":(2)2'])
        spot.append(ref)
        rng.choice([other, unreduced]).append(ref)
    elif rule == "L3":
        spot += rng.choice([['"q":(1)2', '"q":(2)2'], ['"q":(2)2', '"q":(4)2'], ['"q":(1)2', '"q":(2)4']])
    elif rule == "S11":
        rng.choice([replicated, unreduced])[:] = ['"q":(4)2', '"q":(1)2']
    elif rule == "S13":
        put('"q"', rng.choice(['"q":(1)2', '"q":(4)2']))
    elif rule == "S14":
        put(rng.choice(['"q":(0)2', '"q":(-1)2', '"q":(true)2', '"q":(false)4']))
    elif rule == "S15":
        put(rng.choice(['"q":(1)1', '"q":(2)0', '"q":(1)-2', '"q":(8)1', '"q":(1)true']))
    elif rule == "S16":
        put(rng.choice(['"q":(1)3', '"q":(2)8', '"q":(8)2', '"q":(3)2', '"q":(5)5', '"q":(1)16']))
    elif rule == "S17":
        put('"q":(1)8')
    elif rule == "S18":
        put(*rng.choice([('"q":(1)4', '"q":(2)2'), ('"q":(1)4', '"q":(2)4'), ('"q":(2)2', '"q":(1)4')]))
    meshes = Text(mesh, None, dims, replicated, unreduced)
    return meshes.mesh_text(), meshes.body()


RULES = {
    "S8": "needless-priority",
    "L1": "unknown-axis",
    "L2": "duplicate-axis-ref",
    "L3": "mergeable-sub-axes",
    "S11": "unsorted-axes",
    "S13": "axis-and-sub-axis",
    "S14": "sub-axis-pre-size",
    "S15": "sub-axis-size",
    "S16": "sub-axis-divisor",
    "S17": "sub-axis-is-axis",
    "S18": "overlapping-sub-axes",
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_a_sharding_broken(rule: str) -> None:
    rng = random.Random(rule)
    tally = Tally()
    for _ in range(150):
        mesh, body = spoil(rng, draw(rng), rule)
        whole = f"#sdy.sharding<@m, {body}>"
        tally.add(whole, ask_sharding(whole, mesh), our_sharding(whole, mesh))
    assert tally.codes[RULES[rule]] > 100


def test_the_rules_about_the_mesh_and_the_tensor_broken() -> None:
    rng = random.Random(2)
    tally = Tally()
    for _ in range(100):
        text = draw(rng)
        unknown = f"#sdy.sharding<@n, {text.body()}>"
        tally.add(unknown, ask_sharding(unknown, text.mesh_text()), our_sharding(unknown, text.mesh_text()))
        maximal = f"#sdy.sharding<@m, {text.body()}>"
        alone = rng.choice(["<[], device_ids=[0]>", "<[], device_ids=[5]>"])
        tally.add(maximal, ask_sharding(maximal, alone), our_sharding(maximal, alone))
        empty = f"#sdy.sharding<@m, {text.body()}>"
        tally.add(empty, ask_sharding(empty, "<[]>"), our_sharding(empty, "<[]>"))
        ndim = rng.randint(0, 4)
        tally.add(
            maximal,
            ask_sharding(maximal, text.mesh_text(), ndim),
            our_sharding(maximal, text.mesh_text(), ndim),
            codes=False,
        )
    assert min(tally.codes[code] for code in ("unknown-mesh", "maximal-sharding", "unknown-axis", "rank-mismatch")) > 20


def test_sub_axes_that_no_split_has_together_are_the_one_hole() -> None:
    rng = random.Random(3)
    tally = Tally()
    for _ in range(1500):
        size = rng.choice([6, 12, 24, 36])
        refs = []
        for _ in range(rng.randint(2, 3)):
            start = rng.choice([1, *divisors(size)])
            refs.append(f'"x":({start}){rng.choice(divisors(max(2, size // start)) or [2])}')
        body = f"[{', '.join(f'{{{ref}}}' for ref in refs)}]"
        whole = f"#sdy.sharding<@m, {body}>"
        mesh = f'<["x"={size}]>'
        tally.add(whole, ask_sharding(whole, mesh), our_sharding(whole, mesh), codes=False)
    assert tally.count["hole"] > 50
    assert tally.count["good"] > 50
    assert tally.count["bad"] > 500


def test_a_whole_module() -> None:
    assert ask_module(MODULE) == ""
    assert len(parse_module(MODULE)[1]) == 9


# texts with typing mistakes


@pytest.mark.parametrize("body", odd_texts.MESHES)
def test_odd_meshes(body: str) -> None:
    text = f"#sdy.mesh<{body}>"
    Tally().add(text, ask_mesh(text), our_mesh(text), codes=False)


@pytest.mark.parametrize("body", odd_texts.BODIES)
def test_odd_shardings(body: str) -> None:
    text, mesh = f"#sdy.sharding<@m, {body}>", '<["x"=2, "y"=4]>'
    Tally().add(text, ask_sharding(text, mesh), our_sharding(text, mesh), codes=False)


@pytest.mark.parametrize("text", odd_texts.WHOLES + odd_texts.COMMENTS)
def test_odd_texts(text: str) -> None:
    mesh = '<["x"=2, "y"=4]>'
    Tally().add(text, ask_sharding(text, mesh), our_sharding(text, mesh), codes=False)


def mistyped(rng: random.Random, text: str) -> str:
    """The text with one to three places lost, doubled, or replaced; its first character stays."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        start = rng.randint(1, len(text) - 1)
        stop = min(start + rng.choice([0, 1, 1, 2]), len(text))
        new = rng.choice(
            ["", "", text[start:stop] * 2, rng.choice('[]{}<>(),:=?"/-_@#px019 \n'), rng.choice(['"x"', "{}", ", "])]
        )
        text = text[:start] + new + text[stop:]
    return text


def test_mistyped_texts() -> None:
    rng = random.Random(4)
    tally = Tally()
    for _ in range(6000):
        text = draw(rng, sizes=(2, 4, 6))
        plain = text._replace(mesh=[(name, size) for name, size in text.mesh])
        if any("\\" in name for name, _ in plain.mesh):
            continue
        reference = rng.choice(["@m", f"mesh{plain.mesh_text()}"])
        whole = mistyped(rng, f"#sdy.sharding<{reference}, {plain.body()}>")
        tally.add(whole, ask_sharding(whole, plain.mesh_text()), our_sharding(whole, plain.mesh_text()), codes=False)
        mesh = mistyped(rng, f"#sdy.mesh{plain.mesh_text()}")
        tally.add(mesh, ask_mesh(mesh), our_mesh(mesh), codes=False)
    assert tally.count["bad"] > 2000
    assert tally.count["good"] > 500
    assert len(tally.codes) > 8
