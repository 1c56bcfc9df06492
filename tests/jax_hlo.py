"""What a compiled program of JAX moves: collectives and received bytes per device, counted from its optimised HLO.

It reads XLA's text with expressions of its own and asks nothing of the package.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

SIZES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}
KINDS = "all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter|ragged-all-to-all|collective-broadcast"
LINE = re.compile(rf"^\s*(?:ROOT )?%?[\w.-]+ = (?P<type>.*?) (?P<kind>{KINDS})(?P<half>-start|-done)?\((?P<rest>.*)$")
ARRAY = re.compile(r"\b([a-z]+\d+[a-z0-9]*|pred)\[([\d,]*)\]")


class Collective(NamedTuple):
    kind: str
    received: dict[int, int]
    """Per device the bytes that it takes from others."""
    members: int
    """How many devices begin it together: a group, or all where it is a permutation."""


def collectives(text: str, devices: int) -> list[Collective]:
    """Every collective of a program, in the order of the text; each is carried out once."""
    assert_once(text)
    found = []
    for line in text.splitlines():
        if match := LINE.match(re.sub(r"/\*index=\d+\*/", "", line)):
            assert not match["half"], line
            kind, rest = match["kind"], match["rest"]
            members = devices if kind == "collective-permute" else group_size(rest, devices)
            found.append(Collective(kind, received(kind, match["type"], rest, devices), members))
    mentioned = re.findall(rf" (?:{KINDS})(?:-start)?\(", text)
    assert len(found) == len(mentioned), "a collective stands in a line that is not understood"
    return found


def assert_once(text: str) -> None:
    """A loop's body holds no collective but in the branches of one choice, of which there are as many as turns."""
    bodies = dict(re.findall(r"^%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    for loop in re.findall(r"^.* while\(.*$", text, re.MULTILINE):
        body, turns = re.search(r"body=%?([\w.-]+)", loop), re.search(r'known_trip_count":\{"n":"(\d+)"', loop)
        assert body, loop
        inside = bodies[body[1]]
        if " conditional(" not in inside:
            assert not re.search(rf" (?:{KINDS})(?:-start)?\(", inside)
            continue
        assert turns, loop
        (branches,) = re.findall(r" conditional\(.*branch_computations=\{([^}]*)\}", inside)
        named = [name.strip().lstrip("%") for name in branches.split(",")]
        assert len(set(named)) == len(named) == int(turns[1])
        assert not re.search(rf" (?:{KINDS})(?:-start)?\(", inside)
        assert all(len(re.findall(rf" (?:{KINDS})(?:-start)?\(", bodies[name])) <= 1 for name in named)


def received(kind: str, type_: str, rest: str, devices: int) -> dict[int, int]:
    size = sum(SIZES[name] * prod(map(int, filter(None, dims.split(",")))) for name, dims in ARRAY.findall(type_))
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", rest)
        assert pairs, rest
        ends = [tuple(map(int, pair)) for pair in re.findall(r"\{(\d+),(\d+)\}", pairs[1])]
        assert len({b for _, b in ends}) == len({a for a, _ in ends}) == len(ends), "a device stands twice"
        return {device: size * any(a != device and b == device for a, b in ends) for device in range(devices)}
    members = group_size(rest, devices)
    share = {
        "all-gather": size * (members - 1) // members,
        "all-to-all": size * (members - 1) // members,
        "reduce-scatter": size * (members - 1),
        "all-reduce": 2 * size * (members - 1) // members,
    }[kind]
    return dict.fromkeys(range(devices), share)


def group_size(rest: str, devices: int) -> int:
    """How many devices each group has; the groups must hold every device once."""
    if listed := re.search(r"replica_groups=\{((?:\{[\d,]+\},?)+)\}", rest):
        groups = [list(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed[1])]
        assert sorted(device for group in groups for device in group) == list(range(devices))
        assert len({len(group) for group in groups}) == 1
        return len(groups[0])
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", rest):
        assert int(iota[1]) * int(iota[2]) == devices
        return int(iota[2])
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(.*?\))? \{([^}]*)\}", rest):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", mesh[1])}
        parts = re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", mesh[2])
        return prod(int(size) if size else sizes[name] for name, size in parts)
    assert "replica_groups={}" in rest, rest
    return devices


def received_bytes(found: list[Collective], devices: int) -> list[int]:
    """Per device the bytes that it takes from others in all."""
    return [sum(one.received[device] for one in found) for device in range(devices)]


def busiest_with_loops(text: str, devices: int) -> int:
    """The bytes of the busiest device: loops count as often as they run, or once, of a choice the most.

    Where a choice has as many branches as its loop has turns, each of one permutation or none, each is a round of it.
    """
    bodies = dict(re.findall(r"^(?:ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    (entry,) = re.findall(r"^ENTRY %?([\w.-]+) ", text, re.MULTILINE)

    def total(name: str, turns: int = 0) -> list[int]:
        sums = [0] * devices
        for line in re.sub(r"/\*index=\d+\*/", "", bodies[name]).splitlines():
            parts, often = [], 1
            if match := LINE.match(line):
                one = received(match["kind"], match["type"], match["rest"], devices)
                parts = [[one[device] for device in range(devices)]]
            elif " while(" in line:
                known = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
                often = int(known[1]) if known else 1
                parts = [total(name, often) for name in re.findall(r"(?:body|condition)=%?([\w.-]+)", line)]
            elif " conditional(" in line:
                named = re.search(r"branch_computations=\{([^}]*)\}", line)
                branches = named[1].split(",") if named else re.findall(r"(?:true|false)_computation=%?([\w.-]+)", line)
                branches = [branch.strip().lstrip("%") for branch in branches]
                taken = [total(branch) for branch in branches]
                moves = [re.findall(rf" ({KINDS})(?:-start)?\(", bodies[branch]) for branch in branches]
                once_each = len({*branches}) == turns > 1 and {*map(tuple, moves)} <= {(), ("collective-permute",)}
                parts = [[sum(each) / turns for each in zip(*taken, strict=True)] if once_each else max(taken, key=max)]
            elif called := re.search(r" call\(.*to_apply=%?([\w.-]+)", line):
                parts = [total(called[1])]
            sums = [before + often * sum(part[device] for part in parts) for device, before in enumerate(sums)]
        return sums

    return round(max(total(entry)))
