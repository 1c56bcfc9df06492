"""A report to read: sections of aligned columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from reshard.tables import Passage, Table, bytes_text
from reshard.xla.read.reading import FOREIGN
from reshard.xla.report.figures import COUNTED, PREDICTED, WARNED, ReportedReshard

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
    return _filled([*_read_and_sent(report), _findings(report), *_not_found(report)])


def sections_beside_findings(report: Report) -> list[Section]:
    """The same without the findings, for whoever shows these in another way."""
    return _filled([*_read_and_sent(report), *_not_found(report)])


def _filled(listed: Iterable[Section]) -> list[Section]:
    return [section for section in listed if section.table.rows or section.lines]


def _read_and_sent(report: Report) -> list[Section]:
    return [_parts(report), *_collectives(report), _totals(report)]


def _not_found(report: Report) -> list[Section]:
    return [_uncounted(report.uncounted), _sums(report), _unrecognised(report), _remarks(report)]


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


def _findings(report: Report) -> Section:
    """What could be saved, and in a line each what else there is."""
    lines = [line for reshard in report.findings[:MOST_ROWS] for line in reshard_lines(reshard)]
    return Section("what could be saved, the most bytes first", [*lines, *beside_findings(report)])


def beside_findings(report: Report) -> list[str]:
    """What there is besides findings, in a line each."""
    lines = _further(report.findings)
    if report.invented is not None:
        sizes = ",".join(f"NAME={size}" for _, size in report.invented)
        axes = ", ".join(name for name, _ in report.invented)
        lines.append(f"the names {axes} are invented, since no text has those of the mesh: give --mesh {sizes}")
    others = [one for one in (*report.reshards, *report.chains, *report.warnings) if not one.is_finding]
    told = sum(one.received_bytes is not None for one in others)
    if told:
        lines.append(f"{_count(told, 'more reshard receives', 'more reshards receive')} what must be received")
    if unknown := len(others) - told - len(report.uncounted):
        lines.append(f"{_count(unknown, 'more reshard is', 'more reshards are')} of unknown bytes; --json has them all")
    if report.is_compiled_alone:
        lines.append(
            "this is compiled text alone, which does not tell what its collectives are for; that nothing is found in "
            "it does not mean that nothing is to be saved: give the lowered text beside it, a dump made with "
            "--xla_dump_hlo_pass_re=spmd.*, or the command itself, as reshard inspect -- python train.py"
        )
    if report.placed_bytes is not None:
        lines.append(
            f"placed by propagate the busiest device would receive {bytes_text(report.placed_bytes)}, "
            f"against {bytes_text(report.received_bytes)} now"
        )
    elif report.placed_why:
        lines.append(f"what propagate would receive is not known: {report.placed_why}")
    if report.unchanged:
        lines.append(f"{_count(report.unchanged, 'more value lies', 'more values lie')} already as wanted")
    if report.free:
        constants = _count(report.free, "constraint is on a constant", "constraints are on constants")
        lines.append(f"{constants}, made wherever wanted")
    return lines


def _uncounted(reshards: list[ReportedReshard]) -> Section:
    lines = [line for reshard in reshards[:MOST_ROWS] for line in reshard_lines(reshard)]
    return Section("reshards that are asked for; only compiled text tells what is sent", [*lines, *_further(reshards)])


def _sums(report: Report) -> Section:
    """All-reduces of which a device uses a part alone."""
    lines = []
    for one in report.sum_findings[:MOST_ROWS]:
        what = f"{one.text}:{one.line} {one.name}{f', {one.place}' if one.place else ''}"
        times = f", {one.executions} times" if one.executions > 1 else ""
        lines.append(
            f"{what}: {one.group} devices sum{times}, and each uses a part: {bytes_text(one.received_bytes)} received, "
            f"{bytes_text(one.lower_bound_bytes)} by a reduce-scatter"
        )
    lines += _further(report.sum_findings)
    if lines:
        lines.append("compilers for GPUs and TPUs make reduce-scatters of these by themselves, XLA on a CPU does not")
    if whole := len(report.sums) - len(report.sum_findings):
        lines.append(f"{_count(whole, 'more all-reduce receives', 'more all-reduces receive')} what must be received")
    return Section("all-reduces", lines)


def reshard_lines(reshard: ReportedReshard) -> list[str]:
    """A reshard to read: where it stands, its ends, its figures, the call that does it."""
    source, target, shape = reshard.source, reshard.target, reshard.shape
    what = "shape not told" if shape is None else f"{' x '.join(map(str, shape)) or 'scalar'} {reshard.dtype}"
    what += " (a tile is all that is told: sizes may be rounded up)" if reshard.is_rounded and shape else ""
    what += f" on {max(source.mesh.size, target.mesh.size)} devices"
    if reshard.executions > 1 or reshard.unknown:
        what += f", {reshard.executions}{' or more' if reshard.unknown else ''} times"
    what += f", warned {reshard.times} times" if reshard.times > 1 else ""
    what += ", warned about" if reshard.warned and reshard.times == 1 else ""
    where = [f"{reshard.text}:{reshard.line}{reshard.name and f' {reshard.name}'}", reshard.place]
    on_one = source.mesh == target.mesh
    return [
        ", ".join(filter(None, where)),
        f"  {what}",
        f"  from      {f'{source.text()}  on mesh {source.mesh}' if on_one else source}",
        f"  to        {target.text() if on_one else target}",
        f"  {_cost(reshard)}",
        f"  instead   {reshard.call}",
        f"  where     {reshard.stands}",
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


def _unrecognised(report: Report) -> Section:
    """Where it cannot be said what is moved; where compiled text counts that, what moves nothing is no line."""
    is_counted = any(part.form == "partitioned" for part in report.parts)
    sites = [site for site in report.unrecognised if site.received_bytes or site.origin == "warning" or not is_counted]
    lines = []
    for site in sites[:MOST_ROWS]:
        size = "" if site.received_bytes is None else f", {bytes_text(site.received_bytes)} received"
        names = f" ({', '.join(site.collectives)}{size})" if site.collectives else ""
        place = f", {site.place}" if site.place else ""
        lines.append(f"{site.text}:{site.line} {site.origin} {site.name}{place}{names}: {site.why}")
    lines += _further(sites)
    if further := len(report.unrecognised) - len(sites):
        lines.append(f"{_count(further, 'more operand or result is', 'more operands and results are')} of unknown ends")
    return Section("unrecognised: the text does not tell the ends", lines)


def _remarks(report: Report) -> Section:
    """What of XLA's was not understood; a program's own lines are passed over."""
    remarks = [remark for remark in report.remarks if remark.problem != FOREIGN]
    lines = [
        f"{remark.text}{f':{remark.line}' if remark.line else ''} {remark.problem}"
        + (f": {remark.excerpt}" if remark.excerpt else "")
        for remark in remarks[:MOST_ROWS]
    ]
    return Section("not read or not understood", [*lines, *_further(remarks)])
