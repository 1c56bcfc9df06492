"""A report to read: sections of aligned columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    lines: list[str]
    table: Table = Table(())

    @classmethod
    def of(
        cls, title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]], lines: Iterable[str] = ()
    ) -> Section:
        """A section of rows; of many the first are shown."""
        return cls(title, [*_further(rows), *lines], Table([head, *rows[:MOST_ROWS]] if rows else (), FIGURES))


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
    return [section for section in listed if section.table.rows or section.lines]


def table(report: Report) -> str:
    """All sections as text."""
    texts = []
    for section in sections(report):
        below = [*section.table.lines(), *section.lines]
        texts.append("\n".join([section.title, *(f"  {line}".rstrip() for line in below)]).rstrip())
    return "\n\n".join(texts) or "nothing was given to be inspected"


def blocks(report: Report) -> list[Passage]:
    """All sections for a terminal: a title and a table or lines for each."""
    result: list[Passage] = []
    for section in sections(report):
        result += [(section.title, "bold"), ""]
        result += [section.table, ""] if section.table.rows else []
        result += [*(f"  {line}" for line in section.lines), ""] if section.lines else []
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
    return Section.of("read", ("text", "module", "form", "lines", "devices"), rows, lines)


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
                str(collective.line),
                f"{collective.kind} {collective.name}" if collective.name != collective.kind else collective.kind,
                collective.computation,
                bytes_text(collective.operand_bytes),
                bytes_text(collective.result_bytes),
                "?" if collective.group_size is None else str(collective.group_size),
                _received(collective),
                f"{collective.executions}{'?' if collective.unknown else ''}",
                collective.source or collective.op_name,
            )
            for collective in collectives
        ]
        reasons = [f"? {why}" for why in dict.fromkeys(collective.unknown for collective in collectives) if why]
        listed.append(Section.of(f"collectives of {text}, bytes per device and execution", head, rows, reasons))
    return listed


def _received(collective: Collective) -> str:
    if collective.received_bytes is None:
        return "?"
    return f"{'at most ' if collective.is_bound else ''}{bytes_text(collective.received_bytes)}"


def _totals(report: Report) -> Section:
    head = ("collective", "instructions", "runs", "operand", "result", "received", "")
    rows = [
        (
            *(total.kind, str(total.instructions), str(total.executions)),
            *map(bytes_text, (total.operand_bytes, total.result_bytes, total.received_bytes)),
            "or more" if total.is_least else "",
        )
        for total in report.totals
    ]
    return Section.of("totals by kind, bytes per device, all executions", head, rows)


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _reshards(title: str, reshards: list[ReportedReshard], more: Sequence[str] = ()) -> Section:
    lines = [line for reshard in reshards[:MOST_ROWS] for line in _reshard_lines(reshard)]
    return Section(title, [*lines, *_further(reshards), *more])


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
    for site in unrecognised[:MOST_ROWS]:
        size = "" if site.received_bytes is None else f", {bytes_text(site.received_bytes)} received"
        names = f" ({', '.join(site.collectives)}{size})" if site.collectives else ""
        place = f", {site.place}" if site.place else ""
        lines.append(f"{site.text}:{site.line} {site.origin} {site.name}{place}{names}: {site.why}")
    title = "unrecognised: the text does not tell the ends"
    return Section(title, [*lines, *_further(unrecognised)])


def _remarks(report: Report) -> Section:
    lines = [
        f"{remark.text}{f':{remark.line}' if remark.line else ''} {remark.problem}"
        + (f": {remark.excerpt}" if remark.excerpt else "")
        for remark in report.remarks[:MOST_ROWS]
    ]
    return Section("not read or not understood", [*lines, *_further(report.remarks)])
