"""The page of a report: findings by bytes saved, all sections, and another report beside it.

What it shows comes out of logs and dumps of programs that nobody vouches for: every text is escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.drawing.charts import bars
from reshard.drawing.markup import Markup, joined, tag
from reshard.drawing.shell import PageSection, copyable, figure, listed, page
from reshard.plans.plan_page import bytes_of
from reshard.tables import Table, bytes_text
from reshard.xla.report.sections import sections

if TYPE_CHECKING:
    from reshard.xla.report.report import Report

BARS = 40


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
    if beside is None:
        parts += [
            PageSection(f"s{number}", section.title, [_table(section.table), _lines(section.lines)])
            for number, section in enumerate(sections(report))
        ]
    else:
        pair = [tag("pre", str(one), tabindex="0") for one in (report, beside)]
        parts.append(
            PageSection(
                "beside", "Both reports side by side", [_figures(report, beside), tag("div", *pair, class_="pair")]
            )
        )
    return page(title, parts, lead=lead)


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
    found = report.findings
    if not found:
        return [tag("p", "nothing: every reshard that is seen receives what it must")]
    shown = found[:BARS]
    chart = findings_drawing(report)
    details = []
    for number, finding in enumerate(shown, 1):
        ratio = "" if finding.ratio is None else f", {finding.ratio:.2f} times the bound"
        details.append(
            joined(
                tag("h3", f"{number}. {finding.text} {finding.name}"),
                tag("p", f"saves {bytes_text(finding.saved_bytes)}{ratio}; {finding.stands}"),
                tag("p", tag("code", f"{finding.source.text()} → {finding.target.text()}")),
                copyable("call", finding.call),
            )
        )
    return [*([] if chart is None else [chart]), *details]


def _table(table: Table) -> Markup:
    return listed(table) if table.rows else Markup()


def _lines(lines: list[str]) -> Markup:
    return tag("pre", "\n".join(lines), tabindex="0") if lines else Markup()


def _figures(report: Report, beside: Report) -> Markup:
    """What both receive, and how far they are from their bounds."""
    rows = [
        ("received by a device in all", *(bytes_text(one.received_bytes) for one in (report, beside))),
        ("collectives", *(str(len(one.collectives)) for one in (report, beside))),
        ("findings", *(str(len(one.findings)) for one in (report, beside))),
        ("worst ratio", *(f"{one.worst_ratio:.2f}" for one in (report, beside))),
    ]
    return listed(Table([("", "this", "the other"), *rows], {"this", "the other"}))
