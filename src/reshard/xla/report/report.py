"""What was found in one text or in several that belong together.

Modules of one program, before partitioning and after it, are told by their names, or by the beginning of their files'
names in a dump folder.
The first says which reshards there are, the second what is sent for them; a reshard is joined with the run of
collectives that leads from a tile of its source's size to one of its target's, where only one does.

>>> log = ("W1 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler cannot go "
...     "from sharding {devices=[2,3]<=[6]} to {devices=[3,2]<=[2,3]T(1,0)} efficiently for HLO operation "
...     "%p = f32[6,4]{1,0} parameter(0). As the last resort, SPMD will replicate the tensor")
>>> warning, = inspect_texts([("log", log)]).warnings
>>> warning.received_bytes, warning.lower_bound_bytes, warning.ratio, warning.call
(480, 96, 5.0, "rs.jax.reshard(x, P('b', 'a'), source=P('a', 'b'))")
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from reshard.mesh import Mesh
from reshard.xla.read.collectives import Collective, Total, find_collectives, totals
from reshard.xla.read.reading import Text, read_text
from reshard.xla.read.shardings import ShardingReader
from reshard.xla.report.figures import PREDICTED, ReportedReshard, Site, checked
from reshard.xla.report.joining import InspectedModule, ProgramEnds, ends_of, find_warned, follow
from reshard.xla.report.reshards import FREE, UNCHANGED, ReshardSearch, is_before_partitioning
from reshard.xla.report.sections import table

SCHEMA = 1
"""The version of the JSON form."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that was not understood."""

    text: str
    line: int
    problem: str
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One module, or one text that holds none."""

    text: str
    module: str
    form: str
    """`partitioned`, `before partitioning`, `lowered` or `log`."""
    lines: int
    devices: int
    stopped: str
    """Where the text ends in the middle; nothing where it is whole."""


@dataclass(slots=True)
class Report:
    """What was found."""

    parts: list[Part] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    warnings: list[ReportedReshard] = field(default_factory=list)
    """What the log warns about, equal warnings once."""
    chains: list[ReportedReshard] = field(default_factory=list)
    """Ways from a parameter to a result."""
    reshards: list[ReportedReshard] = field(default_factory=list)
    """What a text before partitioning asks for."""
    unrecognised: list[Site] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    """What was not understood, line by line."""
    unchanged: int = 0
    """Constraints that a value meets as it lies."""
    free: int = 0
    """Constraints on constants, which lie wherever they are wanted."""

    def as_dict(self) -> dict[str, Any]:
        """It for programs."""
        return {
            "schema": SCHEMA,
            "parts": [asdict(row) for row in self.parts],
            "collectives": [asdict(row) for row in self.collectives],
            "totals": [asdict(row) for row in self.totals],
            "warnings": [row.as_dict() for row in self.warnings],
            "chains": [row.as_dict() for row in self.chains],
            "reshards": [row.as_dict() for row in self.reshards],
            "unrecognised": [row.as_dict() for row in self.unrecognised],
            "not_understood": [asdict(row) for row in self.remarks],
            "constraints_met": self.unchanged,
            "constraints_on_constants": self.free,
        }

    def to_json(self) -> str:
        """It as JSON."""
        return json.dumps(self.as_dict(), indent=1)

    def __str__(self) -> str:
        return table(self)


def inspect_texts(
    texts: Iterable[tuple[str, str]],
    *,
    mesh: Mesh | None = None,
    ends: Mapping[str, ProgramEnds] | None = None,
    keys: Mapping[str, str] | None = None,
) -> Report:
    """Read texts and report what is found in them.

    Args:
        texts: names and texts, in any of the forms, whole or cut.
        mesh: names the axes where a text has none; used where it has as many devices.
        ends: by a text's name, what is known of the parameters and results of the program in it.
        keys: by a text's name, what it has in common with the others of one program; its module's name unless given.
    """
    report = Report()
    read = [read_text(text, name) for name, text in texts]
    modules = [
        InspectedModule(text.name, module, (keys or {}).get(text.name, module.name), is_before_partitioning(module))
        for text in read
        for module in text.modules
    ]
    _describe(report, read, modules)
    named = {} if mesh is None else {"": mesh}
    programs: dict[str, list[InspectedModule]] = {}
    for inspected in modules:
        programs.setdefault(inspected.key, []).append(inspected)
    for program in programs.values():
        _inspect_program(report, program, named, ends or {})
    meshes = dict(named)
    for inspected in modules:
        meshes |= {f"{len(meshes)}": own for own in inspected.module.meshes.values()}
    for text in read:
        _add_warnings(report, text, ShardingReader(meshes))
    report.totals = totals(report.collectives)
    for inspected in modules:
        report.remarks += [Remark(inspected.text, *note) for note in inspected.module.notes]
    for number, reshard in enumerate(report.reshards):
        gathered = reshard.full_gather_bytes
        # What XLA moves where its rules leave no choice and nothing was counted.
        if reshard.received_bytes is None and gathered is not None and reshard.branch() == "full gather":
            report.reshards[number] = replace(reshard, received_bytes=gathered, known_by=PREDICTED)
    return report


def _describe(report: Report, read: Sequence[Text], modules: Sequence[InspectedModule]) -> None:
    for text in read:
        of_text = [inspected for inspected in modules if inspected.text == text.name]
        for inspected in of_text:
            module, form = inspected.module, "before partitioning" if inspected.is_before else "partitioned"
            form = "lowered" if module.form == "stablehlo" else form
            stopped = f"line {module.line + module.lines - 1}: {module.stopped}" if module.stopped else ""
            devices = module.partitions * module.replicas
            report.parts.append(Part(text.name, module.name, form, module.lines, devices, stopped))
        if not of_text:
            report.parts.append(Part(text.name, "", "log", text.lines, 0, ""))
        report.remarks += [Remark(text.name, *note) for note in text.notes]


def _inspect_program(
    report: Report, program: list[InspectedModule], named: dict[str, Mesh], ends: Mapping[str, ProgramEnds]
) -> None:
    after = [inspected for inspected in program if not inspected.is_before]
    before = [inspected for inspected in program if inspected.is_before]
    meshes = named or next((inspected.module.meshes for inspected in program if inspected.module.meshes), {})
    for inspected in program:
        inspected.collectives = find_collectives(inspected.module, inspected.text)
        if not (after and inspected.is_before):  # what it asks for is counted in the partitioned module
            report.collectives += inspected.collectives
    asked: list[ReportedReshard] = []
    # Of several texts before partitioning the one with the most shardings: they tell of the same reshards.
    most_told = max(
        before,
        key=lambda inspected: sum(bool(instruction.shardings) for _, instruction in inspected.module.instructions()),
        default=None,
    )
    if most_told is not None:
        reader = ShardingReader(most_told.module.meshes or meshes)
        findings = list(ReshardSearch(most_told.module, most_told.text, reader).findings())
        for finding in findings:
            if isinstance(finding, ReportedReshard):
                _file(checked(finding), asked, report)
        report.unrecognised += [finding for finding in findings if isinstance(finding, Site) and finding.why]
        report.unchanged += findings.count(UNCHANGED)
        report.free += findings.count(FREE)
    for inspected in after:
        known = ends_of(most_told, meshes, ends.get(inspected.text, ProgramEnds()))
        for chain in follow(inspected, asked if len(after) == 1 else [], meshes, known):
            _file(chain, report.chains, report)
    report.reshards += asked


def _file(finding: Site, among: list[ReportedReshard], report: Report) -> None:
    if isinstance(finding, ReportedReshard):
        among.append(finding)
    else:
        report.unrecognised.append(finding)


def _add_warnings(report: Report, text: Text, reader: ShardingReader) -> None:
    places: dict[tuple[Any, ...], int | None] = {}
    """Of each warning that was seen: where it stands in the report, if it was recognised."""
    for warned in text.warnings:
        key = warned.source, warned.target, warned.tile, warned.operation, warned.op_name, warned.problem
        if key not in places:
            finding = find_warned(text.name, warned, reader, report.reshards)
            places[key] = len(report.warnings) if isinstance(finding, ReportedReshard) else None
            _file(finding, report.warnings, report)
        elif (place := places[key]) is not None:
            report.warnings[place] = replace(report.warnings[place], times=report.warnings[place].times + 1)
