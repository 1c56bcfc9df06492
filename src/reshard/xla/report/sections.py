"""A report to read: sections of aligned columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from reshard.plans import bytes_text
from reshard.xla.report.figures import COUNTED, PREDICTED, WARNED, Reshard, Unrecognised

if TYPE_CHECKING:
    from reshard.xla.read.collectives import Collective
    from reshard.xla.report.report import Report

FIGURES = ("group", "operand", "result", "received", "runs", "bound", "ratio", "devices", "lines", "instructions")
"""The columns that hold figures."""
MOST_ROWS = 200
"""Rows of a section that are shown."""
_KNOWN = {COUNTED: "", WARNED: "", PREDICTED: " by XLA's rules"}


class Section(NamedTuple):
    """A table with a title, and lines below it."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    lines: list[str]


def sections(report: Report) -> list[Section]:
    """What a report shows, in order; sections without rows and lines are left out."""
    found = [
        _parts(report),
        *_collectives(report),
        _totals(report),
        _reshards("warnings of involuntary full rematerialization", report.warnings),
        _reshards("chains from a parameter to a result", report.chains),
        _reshards("reshards before partitioning", report.reshards, _met(report)),
        _unrecognised(report.unrecognised),
        _remarks(report),
    ]
    return [section for section in found if section.rows or section.lines]


def table(report: Report) -> str:
    """All sections as text."""
    return "\n\n".join(_drawn(section) for section in sections(report)) or "nothing was given to be inspected"


def _drawn(section: Section) -> str:
    lines = [section.title]
    rows = [section.head, *section.rows[:MOST_ROWS]] if section.rows else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    right = [title in FIGURES for title in section.head]
    for row in rows:
        cells = [
            cell.rjust(width) if side else cell.ljust(width)
            for cell, width, side in zip(row, widths, right, strict=True)
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    if len(section.rows) > MOST_ROWS:
        lines.append(f"  … and {len(section.rows) - MOST_ROWS} more; --json has them all")
    return "\n".join(lines + [f"  {line}".rstrip() for line in section.lines]).rstrip()


def _parts(report: Report) -> Section:
    rows = [
        (part.text, part.module, part.form, str(part.lines), str(part.devices) if part.devices else "")
        for part in report.parts
    ]
    lines = [f"{part.text} stops in {part.stopped}" for part in report.parts if part.stopped]
    return Section("read", ("text", "module", "form", "lines", "devices"), rows, lines)


def _collectives(report: Report) -> list[Section]:
    """One section per module."""
    found: dict[tuple[str, str], list[Collective]] = {}
    for one in report.collectives:
        found.setdefault((one.text, one.module), []).append(one)
    return [
        _collectives_of(those, f"collectives of {text}, bytes per device and execution")
        for (text, _), those in found.items()
    ]


def _collectives_of(collectives: list[Collective], title: str) -> Section:
    head = ("line", "collective", "computation", "operand", "result", "group", "received", "runs", "from")
    rows = [
        (
            str(one.line),
            f"{one.kind} {one.name}" if one.name != one.kind else one.kind,
            one.computation,
            bytes_text(one.operand_bytes),
            bytes_text(one.result_bytes),
            "?" if one.group_size is None else str(one.group_size),
            _received(one),
            f"{one.executions}{'?' if one.unknown else ''}",
            one.source or one.op_name,
        )
        for one in collectives
    ]
    return Section(title, head, rows, _whys(collectives))


def _received(one: Collective) -> str:
    if one.received_bytes is None:
        return "?"
    return f"{'at most ' if one.is_bound else ''}{bytes_text(one.received_bytes)}"


def _whys(collectives: Iterable[Collective]) -> list[str]:
    return [f"? {why}" for why in dict.fromkeys(one.unknown for one in collectives) if why]


def _totals(report: Report) -> Section:
    head = ("collective", "instructions", "runs", "operand", "result", "received", "")
    rows = [
        (
            one.kind,
            str(one.instructions),
            str(one.executions),
            bytes_text(one.operand_bytes),
            bytes_text(one.result_bytes),
            bytes_text(one.received_bytes),
            "or more" if one.is_least else "",
        )
        for one in report.totals
    ]
    return Section("totals by kind, bytes per device, all executions", head, rows, [])


def _met(report: Report) -> list[str]:
    lines = []
    if report.unchanged:
        lines.append(f"{_count(report.unchanged, 'more value lies', 'more values lie')} already as wanted")
    if report.free:
        constants = _count(report.free, "constraint is on a constant", "constraints are on constants")
        lines.append(f"{constants}, made wherever wanted")
    return lines


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _reshards(title: str, reshards: list[Reshard], more: list[str] | None = None) -> Section:
    lines: list[str] = []
    for one in reshards[:MOST_ROWS]:
        lines += _reshard_lines(one)
    if len(reshards) > MOST_ROWS:
        lines.append(f"… and {len(reshards) - MOST_ROWS} more; --json has them all")
    return Section(title, (), [], lines + (more or []) if reshards or more else [])


def _reshard_lines(one: Reshard) -> list[str]:
    what = "shape not told" if one.shape is None else f"{' x '.join(map(str, one.shape)) or 'scalar'} {one.dtype}"
    what += " (a tile is all that is told: sizes may be rounded up)" if one.is_rounded and one.shape else ""
    often = f", {one.executions}{' or more' if one.unknown else ''} times" if one.executions > 1 or one.unknown else ""
    again = f", warned {one.times} times" if one.times > 1 else ""
    warned = ", warned about" if one.warned and one.origin != "warning" else ""
    where = f"{one.text}:{one.line}" + (f" {one.name}" if one.name else "") + (f", {one.place}" if one.place else "")
    return [
        f"{where}",
        f"  {what} on {max(one.source.mesh.size, one.target.mesh.size)} devices{often}{again}{warned}",
        f"  from      {_end(one)[0]}",
        f"  to        {_end(one)[1]}",
        f"  {_cost(one)}",
        f"  instead   {one.call}",
        "",
    ]


def _end(one: Reshard) -> tuple[str, str]:
    source, target = one.source, one.target
    if source.mesh == target.mesh:
        return f"{source.text()}  on mesh {source.mesh}", target.text()
    return str(source), str(target)


def _cost(one: Reshard) -> str:
    bound, ratio = one.lower_bound_bytes, one.ratio
    branch = one.branch()
    if bound is None and one.warned:
        return "received  the whole tensor, but for a tile" + (f": {ratio:.2f} times the bound" if ratio else "")
    if bound is None:
        return f"received  not told; XLA takes the branch: {branch}" if branch else "received  not told"
    least = f"lower bound {bytes_text(bound)}"
    if one.received_bytes is None:
        rule = f"; XLA takes the branch: {branch}" if branch else ""
        return f"received  not told{rule}; {least}"
    times = f", {ratio:.2f} times the bound" if ratio is not None else ""
    by = f" by {', '.join(one.collectives)}" if one.collectives else _KNOWN[one.known_by]
    return f"received  {bytes_text(one.received_bytes)} on the busiest device{by}; {least}{times}"


def _unrecognised(unrecognised: list[Unrecognised]) -> Section:
    lines = []
    for one in unrecognised[:MOST_ROWS]:
        size = "" if one.received_bytes is None else f", {bytes_text(one.received_bytes)} received"
        names = f" ({', '.join(one.collectives)}{size})" if one.collectives else ""
        place = f", {one.place}" if one.place else ""
        lines.append(f"{one.text}:{one.line} {one.origin} {one.name}{place}{names}: {one.why}")
    if len(unrecognised) > MOST_ROWS:
        lines.append(f"… and {len(unrecognised) - MOST_ROWS} more; --json has them all")
    return Section("unrecognised: the text does not tell the ends", (), [], lines)


def _remarks(report: Report) -> Section:
    lines = [
        f"{one.text}{f':{one.line}' if one.line else ''} {one.problem}" + (f": {one.excerpt}" if one.excerpt else "")
        for one in report.remarks[:MOST_ROWS]
    ]
    if len(report.remarks) > MOST_ROWS:
        lines.append(f"… and {len(report.remarks) - MOST_ROWS} more; --json has them all")
    return Section("not read or not understood", (), [], lines)
