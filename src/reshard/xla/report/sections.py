"""A report to read: sections of aligned columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from reshard.plans import bytes_text
from reshard.tables import Passage, Table
from reshard.xla.report.figures import COUNTED, PREDICTED, WARNED, ReportedReshard, Site

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
    met = []
    if report.unchanged:
        met.append(f"{_count(report.unchanged, 'more value lies', 'more values lie')} already as wanted")
    if report.free:
        constants = _count(report.free, "constraint is on a constant", "constraints are on constants")
        met.append(f"{constants}, made wherever wanted")
    listed = [
        _parts(report),
        *_collectives(report),
        _totals(report),
        _reshards("warnings of involuntary full rematerialization", report.warnings),
        _reshards("chains from a parameter to a result", report.chains),
        _reshards("reshards before partitioning", report.reshards, met),
        _unrecognised(report.unrecognised),
        _remarks(report),
    ]
    return [section for section in listed if section.rows or section.lines]


def table(report: Report) -> str:
    """All sections as text."""
    texts = []
    for section in sections(report):
        rows = [section.head, *section.rows[:MOST_ROWS]] if section.rows else []
        below = [*Table(rows, FIGURES).lines(), *_further(section.rows), *section.lines]
        texts.append("\n".join([section.title, *(f"  {line}".rstrip() for line in below)]).rstrip())
    return "\n\n".join(texts) or "nothing was given to be inspected"


def blocks(report: Report) -> list[Passage]:
    """All sections for a terminal: a title and a table or lines for each."""
    result: list[Passage] = []
    for section in sections(report):
        result += [(section.title, "bold"), ""]
        if section.rows:
            result += [Table([section.head, *section.rows[:MOST_ROWS]], FIGURES), ""]
        result += [*_further(section.rows), *(f"  {line}" for line in section.lines)]
        result += [""] if section.lines else []
    return result


def _further(rows: Sequence[Any]) -> list[str]:
    """A line on the rows that are not shown."""
    return [f"… and {len(rows) - MOST_ROWS} more; --json has them all"] if len(rows) > MOST_ROWS else []


def _parts(report: Report) -> Section:
    rows = [
        (part.text, part.module, part.form, str(part.lines), str(part.devices) if part.devices else "")
        for part in report.parts
    ]
    lines = [f"{part.text} stops in {part.stopped}" for part in report.parts if part.stopped]
    return Section("read", ("text", "module", "form", "lines", "devices"), rows, lines)


def _collectives(report: Report) -> list[Section]:
    """One section per module."""
    head = ("line", "collective", "computation", "operand", "result", "group", "received", "runs", "from")
    modules: dict[tuple[str, str], list[Collective]] = {}
    for collective in report.collectives:
        modules.setdefault((collective.text, collective.module), []).append(collective)
    listed = []
    for (text, _), collectives in modules.items():
        rows = [
            (
                str(each.line),
                f"{each.kind} {each.name}" if each.name != each.kind else each.kind,
                each.computation,
                bytes_text(each.operand_bytes),
                bytes_text(each.result_bytes),
                "?" if each.group_size is None else str(each.group_size),
                _received(each),
                f"{each.executions}{'?' if each.unknown else ''}",
                each.source or each.op_name,
            )
            for each in collectives
        ]
        reasons = [f"? {why}" for why in dict.fromkeys(each.unknown for each in collectives) if why]
        listed.append(Section(f"collectives of {text}, bytes per device and execution", head, rows, reasons))
    return listed


def _received(collective: Collective) -> str:
    if collective.received_bytes is None:
        return "?"
    return f"{'at most ' if collective.is_bound else ''}{bytes_text(collective.received_bytes)}"


def _totals(report: Report) -> Section:
    head = ("collective", "instructions", "runs", "operand", "result", "received", "")
    rows = [
        (
            total.kind,
            str(total.instructions),
            str(total.executions),
            bytes_text(total.operand_bytes),
            bytes_text(total.result_bytes),
            bytes_text(total.received_bytes),
            "or more" if total.is_least else "",
        )
        for total in report.totals
    ]
    return Section("totals by kind, bytes per device, all executions", head, rows, [])


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _reshards(title: str, reshards: list[ReportedReshard], more: Sequence[str] = ()) -> Section:
    lines = [line for reshard in reshards[:MOST_ROWS] for line in _reshard_lines(reshard)]
    return Section(title, (), [], [*lines, *_further(reshards), *more])


def _reshard_lines(reshard: ReportedReshard) -> list[str]:
    source, target, shape = reshard.source, reshard.target, reshard.shape
    what = "shape not told" if shape is None else f"{' x '.join(map(str, shape)) or 'scalar'} {reshard.dtype}"
    what += " (a tile is all that is told: sizes may be rounded up)" if reshard.is_rounded and shape else ""
    what += f" on {max(source.mesh.size, target.mesh.size)} devices"
    if reshard.executions > 1 or reshard.unknown:
        what += f", {reshard.executions}{' or more' if reshard.unknown else ''} times"
    what += f", warned {reshard.times} times" if reshard.times > 1 else ""
    what += ", warned about" if reshard.warned and reshard.origin != "warning" else ""
    where = [f"{reshard.text}:{reshard.line}{reshard.name and f' {reshard.name}'}", reshard.place]
    on_one = source.mesh == target.mesh
    return [
        ", ".join(filter(None, where)),
        f"  {what}",
        f"  from      {f'{source.text()}  on mesh {source.mesh}' if on_one else source}",
        f"  to        {target.text() if on_one else target}",
        f"  {_cost(reshard)}",
        f"  instead   {reshard.call}",
        "",
    ]


def _cost(reshard: ReportedReshard) -> str:
    bound, ratio = reshard.lower_bound_bytes, reshard.ratio
    branch = reshard.branch()
    if bound is None and reshard.warned:
        return "received  the whole tensor, but for a tile" + (f": {ratio:.2f} times the bound" if ratio else "")
    if bound is None:
        return f"received  not told; XLA takes the branch: {branch}" if branch else "received  not told"
    least = f"lower bound {bytes_text(bound)}"
    if reshard.received_bytes is None:
        rule = f"; XLA takes the branch: {branch}" if branch else ""
        return f"received  not told{rule}; {least}"
    times = f", {ratio:.2f} times the bound" if ratio is not None else ""
    by = f" by {', '.join(reshard.collectives)}" if reshard.collectives else _KNOWN[reshard.known_by]
    return f"received  {bytes_text(reshard.received_bytes)} on the busiest device{by}; {least}{times}"


def _unrecognised(unrecognised: list[Site]) -> Section:
    lines = []
    for each in unrecognised[:MOST_ROWS]:
        size = "" if each.received_bytes is None else f", {bytes_text(each.received_bytes)} received"
        names = f" ({', '.join(each.collectives)}{size})" if each.collectives else ""
        place = f", {each.place}" if each.place else ""
        lines.append(f"{each.text}:{each.line} {each.origin} {each.name}{place}{names}: {each.why}")
    title = "unrecognised: the text does not tell the ends"
    return Section(title, (), [], [*lines, *_further(unrecognised)])


def _remarks(report: Report) -> Section:
    lines = [
        f"{remark.text}{f':{remark.line}' if remark.line else ''} {remark.problem}"
        + (f": {remark.excerpt}" if remark.excerpt else "")
        for remark in report.remarks[:MOST_ROWS]
    ]
    return Section("not read or not understood", (), [], [*lines, *_further(report.remarks)])
