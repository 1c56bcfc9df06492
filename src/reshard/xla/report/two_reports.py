"""Two reports of one program side by side, as before and after a change: what differs, and where.

Operations are laid side by side by what they do, not by their names, which a compiler numbers anew each time.

>>> pairs = aligned(["p", "dot", "all-gather", "add"], ["p", "dot", "reduce-scatter", "add"], key=str)
>>> [(pair.this, pair.other) for pair in pairs]
[('p', 'p'), ('dot', 'dot'), ('all-gather', 'reduce-scatter'), ('add', 'add')]
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from reshard.drawing.markup import Markup, joined, tag
from reshard.drawing.shell import listed
from reshard.tables import Table, bytes_text
from reshard.xla.report.operation_rows import OperationRow, operation_rows

if TYPE_CHECKING:
    from reshard.xla.read.ir import Module
    from reshard.xla.report.figures import ReportedReshard
    from reshard.xla.report.report import Report

T = TypeVar("T")

MOST = 2000
"""The most operations of a module that are compared."""
CONTEXT = 3
"""How many operations that are alike stand before and after those that differ."""


class SideBySide(NamedTuple, Generic[T]):
    """What stands on one line of two texts; None where one of them has nothing there."""

    this: T | None
    other: T | None
    is_alike: bool


def aligned(these: Sequence[T], others: Sequence[T], key: Callable[[T], Hashable]) -> list[SideBySide[T]]:
    """Two sequences side by side, so that what has equal keys stands on one line."""
    matcher = SequenceMatcher(None, [key(one) for one in these], [key(one) for one in others], autojunk=False)
    pairs = []
    for kind, first, last, other_first, other_last in matcher.get_opcodes():
        for this, other in zip_longest(these[first:last], others[other_first:other_last]):
            pairs.append(SideBySide(this, other, kind == "equal"))
    return pairs


def differences(report: Report, beside: Report) -> list[Markup]:
    """What is found in one alone, and the operations of their modules side by side."""
    parts = [_figures(report, beside), _findings(report, beside)]
    for module, other in _pairs(report, beside):
        parts += _operations(report, module, beside, other)
    return parts


def _pairs(report: Report, beside: Report) -> Iterator[tuple[Module, Module]]:
    """The modules that are one program at one stage: of one name, or of any where both have no other of that stage."""
    stages = [
        {(part.text, part.module): part.form for part in one.parts if part.module or part.form != "log"}
        for one in (report, beside)
    ]
    groups: list[dict[tuple[str, str], list[Module]]] = [{}, {}]
    for one, stage, group in zip((report, beside), stages, groups, strict=True):
        for module in one.modules:
            group.setdefault((stage[module.text, module.name], module.name), []).append(module)
    alone = [{key for key in group if key not in other} for group, other in (groups, groups[::-1])]
    for key, modules in groups[0].items():
        others = groups[1].get(key, [])
        if not others:
            unnamed = [[other for other in keys if other[0] == key[0]] for keys in alone]
            others = groups[1][unnamed[1][0]] if len(unnamed[0]) == len(unnamed[1]) == 1 else []
        yield from zip(modules, others, strict=False)


def _figures(report: Report, beside: Report) -> Markup:
    """What both receive, and how far they are from their bounds."""
    rows = [
        ("received by a device in all", *(bytes_text(one.received_bytes) for one in (report, beside))),
        ("collectives", *(str(len(one.collectives)) for one in (report, beside))),
        ("findings", *(str(len(one.findings)) for one in (report, beside))),
        ("could be saved", *(bytes_text(sum(f.saved_bytes for f in one.findings)) for one in (report, beside))),
        ("worst ratio", *(f"{one.worst_ratio:.2f}" for one in (report, beside))),
    ]
    return listed(Table([("", "this", "the other"), *rows], {"this", "the other"}))


def _findings(report: Report, beside: Report) -> Markup:
    """What each has that the other has not."""
    parts = []
    for says, one, other in (("in this alone", report, beside), ("in the other alone", beside, report)):
        known = {_move(finding) for finding in other.findings}
        lines = [
            tag("li", f"{finding.name or finding.text}: ", tag("code", _move(finding)),
                f", {bytes_text(finding.saved_bytes)} could be saved")
            for finding in one.findings
            if _move(finding) not in known
        ]  # fmt: skip
        if lines:
            parts.append(joined(tag("h3", f"Findings {says}"), tag("ul", *lines)))
    return joined(*parts) if parts else tag("p", "Both have the same findings.")


def _move(finding: ReportedReshard) -> str:
    """From where to where what is moved, by which findings of two reports are told to be one."""
    shape = "" if finding.shape is None else f"{' x '.join(map(str, finding.shape))} {finding.dtype} "
    return f"{shape}{finding.source.text()} → {finding.target.text()}"


def _operations(report: Report, module: Module, beside: Report, other: Module) -> Iterator[Markup]:
    """The operations of two modules side by side, those that differ with a few around them."""
    pairs = aligned(
        operation_rows(report, module, MOST),
        operation_rows(beside, other, MOST),
        lambda row: (row.opcode, row.shape, row.sharding, row.received),
    )
    far = _far_from_differences([pair.is_alike for pair in pairs])
    rows, skipped = [], 0
    for pair, is_far in zip(pairs, far, strict=True):
        if is_far:
            skipped += 1
            continue
        rows += _skipped(skipped)
        skipped = 0
        rows.append(tag("tr", *_cells(pair.this), *_cells(pair.other), class_=None if pair.is_alike else "differs"))
    rows += _skipped(skipped)
    differing = sum(not pair.is_alike for pair in pairs)
    says = f"{differing} of {len(pairs)} lines differ" if differing else f"all {len(pairs)} operations are alike"
    yield tag("h3", f"{module.text} {module.name} beside {other.text} {other.name}: {says}")
    if differing:
        titles = ("line", "operation", "shape and sharding", "received") * 2
        head = tag("tr", *(tag("th", title, scope="col") for title in titles))
        table = tag("table", tag("thead", head), tag("tbody", *rows), class_="beside")
        yield tag("div", table, class_="scroll", tabindex="0")


def _far_from_differences(alike: Sequence[bool]) -> list[bool]:
    """Which lines are more than a few from one that differs."""
    far = [True] * len(alike)
    for place, is_alike in enumerate(alike):
        if not is_alike:
            for near in range(max(place - CONTEXT, 0), min(place + CONTEXT + 1, len(alike))):
                far[near] = False
    return far


def _skipped(count: int) -> list[Markup]:
    return [tag("tr", tag("td", f"{count} alike", colspan=8, class_="faint"))] if count else []


def _cells(row: OperationRow | None) -> list[Markup]:
    if row is None:
        return [tag("td", colspan=4)]
    name = f"{row.name} = {row.opcode}"
    received = "" if row.received is None else bytes_text(row.received)
    return [
        tag("td", str(row.line), class_="figure"),
        tag("td", name),
        tag("td", f"{row.shape} {row.sharding}"),
        tag("td", received, class_="figure"),
    ]
