"""The page of a report: findings by bytes saved, the operations they are about, and another report beside it.

What it shows comes out of logs and dumps of programs that nobody vouches for: every text is escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.drawing.charts import bars
from reshard.drawing.markup import Markup, joined, tag
from reshard.drawing.operation_graph import GraphRow, graph, search_field
from reshard.drawing.shell import PageSection, copyable, figure, listed, page
from reshard.plans.plan_page import bytes_of
from reshard.tables import Table, bytes_text
from reshard.xla.report.operation_rows import OperationRow, operation_rows
from reshard.xla.report.sections import beside_findings, reshard_lines, sections_beside_findings
from reshard.xla.report.two_reports import differences

if TYPE_CHECKING:
    from reshard.xla.report.report import Report

BARS = 40
MOST_MODULES = 24
"""The most modules whose operations are drawn."""
MOST_ROWS = 600
"""Of more operations of a module only those that tell something are drawn."""
TITLES = ("line", "value", "made by", "found", "received", "shape", "sharding", "where")


def findings_page(report: Report, beside: Report | None = None) -> str:
    """The text of the page.

    Args:
        report: what is shown.
        beside: another, shown next to it, as of a program before and after a change.
    """
    count = len(report.findings)
    title = (
        f"{count} finding{'' if count == 1 else 's'} in {', '.join(dict.fromkeys(part.text for part in report.parts))}"
    )
    saved = sum(finding.saved_bytes for finding in report.findings)
    lead = [tag("p", f"{bytes_text(saved)} could be saved on the busiest device")]
    parts = [PageSection("findings", "What could be saved, the most bytes first", _findings(report))]
    if beside is not None:
        parts.append(PageSection("beside", "This and the other side by side", differences(report, beside)))
    parts.append(PageSection("graph", "Operations, shardings, findings", _graphs(report)))
    if beside is None:
        parts += [
            PageSection(f"s{number}", section.title.capitalize(), [_table(section.table), _lines(section.lines)])
            for number, section in enumerate(sections_beside_findings(report))
        ]
    else:
        pair = [tag("pre", str(one), tabindex="0") for one in (report, beside)]
        parts.append(PageSection("reports", "Both reports", [tag("div", *pair, class_="pair")]))
    return page(title, parts, lead=lead)


def _graphs(report: Report) -> list[Markup]:
    """The operations of each module, with what is found there."""
    if not report.modules:
        return [tag("p", "A log tells no operations: inspect a dump, or the lowered and the compiled text, beside it.")]
    drawn = [(module, operation_rows(report, module, MOST_ROWS)) for module in report.modules]
    drawn.sort(key=lambda pair: -sum(row.is_told_of for row in pair[1]))  # those that tell something first
    parts = [search_field("operations")]
    for module, rows in drawn[:MOST_MODULES]:
        count = sum(1 for _ in module.instructions())
        told = f"{len(rows)} of {count} operations" if len(rows) < count else f"{count} operations"
        parts.append(tag("h3", f"{module.text} {module.name}: {told}"))
        parts.append(graph(TITLES, [GraphRow(_cells(row), row.takes, row.is_told_of) for row in rows], "operations"))
    if len(drawn) > MOST_MODULES:
        parts.append(tag("p", f"… and {len(drawn) - MOST_MODULES} more modules"))
    return parts


def _cells(row: OperationRow) -> list[str]:
    times = f"{row.runs} × " if row.runs != 1 else ""
    notes = [
        *(joined(tag("a", f"finding {number}", href=f"#finding-{number}")) for number in row.found),
        *(joined("sends for ", tag("a", f"finding {number}", href=f"#finding-{number}")) for number in row.sends_for),
        *([f"its ends are not told: {row.why}"] if row.why else []),
    ]
    return [
        str(row.line),
        row.name,
        row.made,
        joined(*(part for note in notes for part in (note, " "))),
        "" if row.received is None else times + bytes_text(row.received),
        row.shape,
        row.sharding,
        " ".join(filter(None, (row.computation, row.place))),
    ]


def findings_drawing(report: Report) -> Markup | None:
    """The findings as bars; None where there are none."""
    shown = report.findings[:BARS]
    if not shown:
        return None
    stacks = {
        "needed": [finding.lower_bound_bytes or 0 for finding in shown],
        "saved": [finding.saved_bytes // max(finding.executions, 1) for finding in shown],
    }
    names = [str(number) for number in range(1, len(shown) + 1)]
    return figure("bytes received once by the busiest device", bars(names, stacks, bytes_of, title="findings"))


def _findings(report: Report) -> list[Markup]:
    """Bars, and for each finding its ends, its figures and the call that saves them."""
    others = [tag("p", line) for line in beside_findings(report)]
    if not report.findings:
        return [tag("p", "nothing: every reshard that is seen receives what it must"), *others]
    chart = findings_drawing(report)
    details = []
    for number, finding in enumerate(report.findings[:BARS], 1):
        title, *lines = reshard_lines(finding)
        saves = f"saves {bytes_text(finding.saved_bytes)}" if finding.saved_bytes else "how much it saves is not told"
        details.append(
            joined(
                tag("h3", f"{number}. {title}", id=f"finding-{number}"),
                tag("p", saves, class_="bold"),
                tag("pre", "\n".join(line.removeprefix("  ") for line in lines if line), tabindex="0"),
                copyable("call", finding.call),
            )
        )
    return [*([] if chart is None else [chart]), *details, *others]


def _table(table: Table) -> Markup:
    return listed(table) if table.rows else Markup()


def _lines(lines: list[str]) -> Markup:
    return tag("pre", "\n".join(lines), tabindex="0") if lines else Markup()
