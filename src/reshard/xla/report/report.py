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
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from reshard.drawing.notebooks import mimebundle
from reshard.mesh import Mesh
from reshard.xla.read.collectives import Collective, Total, find_collectives, totals
from reshard.xla.read.ir import Module, Note
from reshard.xla.read.reading import Text, read_text
from reshard.xla.report.figures import PREDICTED, WORTH, OpSite, ReportedReshard, checked
from reshard.xla.report.findings_page import findings_drawing, findings_page
from reshard.xla.report.joining import ProgramEnds, ends_of, find_warned, follow
from reshard.xla.report.reshards import FREE, UNCHANGED, ReshardSearch, is_before_partitioning
from reshard.xla.report.sections import table
from reshard.xla.report.sums import JudgedSum, judged

SCHEMA = 1
"""The version of the JSON form."""


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
    sums: list[JudgedSum] = field(default_factory=list)
    """The all-reduces of partitioned modules, and the least that what is made of them needs."""
    unrecognised: list[OpSite] = field(default_factory=list)
    remarks: list[Note] = field(default_factory=list)
    """What was not understood, line by line."""
    unchanged: int = 0
    """Constraints that a value meets as it lies."""
    free: int = 0
    """Constraints on constants, which lie wherever they are wanted."""
    known_axes: set[tuple[tuple[str, int], ...]] = field(default_factory=set)
    """The axes of meshes that a text or the caller names; all others have names that were invented."""
    placed_bytes: int | None = None
    """What the busiest device would receive if the program were placed by `propagate`; None where that is not known."""
    placed_why: str = ""
    """Why it is not known."""
    modules: list[Module] = field(default_factory=list, repr=False, compare=False)
    """What was read, for the page to draw."""

    @property
    def findings(self) -> list[ReportedReshard]:
        """Where something is to be saved, each once, the most bytes first; unknown bytes last."""
        findings: list[ReportedReshard] = []
        counted: set[tuple[str, str]] = set()
        moves: set[tuple[Any, ...]] = set()
        for reshard in (*self.reshards, *self.chains, *self.warnings):
            names = {(reshard.module, name) for name in reshard.collectives}
            move = str(reshard.source), str(reshard.target), reshard.shape
            is_told = bool(names & counted) if names else reshard.origin == "warning" and move in moves
            if reshard.is_finding and not is_told:
                findings.append(reshard)
            counted |= names
            moves.add(move)
        return sorted(findings, key=lambda reshard: (-reshard.saved_bytes, -(reshard.ratio or 0)))

    @property
    def uncounted(self) -> list[ReportedReshard]:
        """What a text before partitioning asks for, where no partitioned one is there to count what is sent for it."""
        if any(part.form == "partitioned" for part in self.parts):
            return []
        return [one for one in self.reshards if one.received_bytes is None and one.lower_bound_bytes]

    @property
    def sum_findings(self) -> list[JudgedSum]:
        """The all-reduces of which a device uses a part alone, the most bytes first."""
        partly_used = [judged_sum for judged_sum in self.sums if judged_sum.ratio > WORTH]
        return sorted(partly_used, key=lambda judged_sum: -judged_sum.saved_bytes)

    @property
    def worst_ratio(self) -> float:
        """The largest ratio of a reshard; 1 where none is above its bound."""
        return max([1.0, *(reshard.ratio or 1.0 for reshard in self.findings)])

    @property
    def received_bytes(self) -> int:
        """What a device receives at the most, in all executions of all collectives."""
        return sum(total.received_bytes for total in self.totals)

    @property
    def is_recognised(self) -> bool:
        """Whether the texts held anything of XLA's."""
        return bool(self.warnings or self.unrecognised or any(part.form != "log" for part in self.parts))

    @property
    def is_compiled_alone(self) -> bool:
        """Whether collectives are seen and nothing that says what they are for."""
        forms = {part.form for part in self.parts}
        return bool(self.collectives) and forms <= {"partitioned", "log"} and not self.reshards and not self.chains

    @property
    def invented(self) -> tuple[tuple[str, int], ...] | None:
        """Axes in calls whose names no text has, if there are any."""
        known = {name for axes in self.known_axes for name, _ in axes}
        for reshard in self.findings:
            if not known.issuperset(reshard.source.mesh.sizes):
                return reshard.source.mesh.axes
        return None

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
            "findings": [row.as_dict() for row in self.findings],
            "sums": [row.as_dict() for row in self.sums],
            "placed_bytes": self.placed_bytes,
            "placed_why": self.placed_why,
            "compiled_alone": self.is_compiled_alone,
            "axes_invented": self.invented is not None,
            "unrecognised": [row.as_dict() for row in self.unrecognised],
            "not_understood": [note._asdict() for note in self.remarks],
            "constraints_met": self.unchanged,
            "constraints_on_constants": self.free,
        }

    def to_html(self, beside: Report | None = None) -> str:
        """It as a page: findings by bytes saved, all sections, another report beside it where one is given."""
        return findings_page(self, beside)

    def to_json(self) -> str:
        """It as JSON."""
        return json.dumps(self.as_dict(), indent=1)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows."""
        return mimebundle(str(self), findings_drawing(self))

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
    modules = [module for text in read for module in text.modules]
    before = {module for module in modules if is_before_partitioning(module)}
    report.modules = modules
    _describe(report, read, before)
    named = {} if mesh is None else {"": mesh}
    programs: dict[str, list[Module]] = {}
    for module in modules:
        programs.setdefault((keys or {}).get(module.text, module.name), []).append(module)
    for program in programs.values():
        _inspect_program(report, program, before, named, ends or {})
    meshes = dict(named)
    for module in modules:
        meshes |= {f"{len(meshes)}": module_mesh for module_mesh in module.meshes.values()}
    for text in read:
        _add_warnings(report, text, meshes)
    report.known_axes = {known.axes for known in meshes.values()}
    report.totals = totals(report.collectives)
    for module in modules:
        report.remarks += module.notes
    for number, reshard in enumerate(report.reshards):
        gathered = reshard.full_gather_bytes
        # What XLA moves where its rules leave no choice and nothing was counted.
        if reshard.received_bytes is None and gathered is not None and reshard.branch() == "full gather":
            report.reshards[number] = replace(reshard, received_bytes=gathered, known_by=PREDICTED)
    return report


def _describe(report: Report, read: Iterable[Text], before: Set[Module]) -> None:
    for text in read:
        for module in text.modules:
            form = "before partitioning" if module in before else "partitioned"
            form = "lowered" if module.form == "stablehlo" else form
            stopped = f"line {module.line + module.lines - 1}: {module.stopped}" if module.stopped else ""
            devices = module.partitions * module.replicas
            report.parts.append(Part(text.name, module.name, form, module.lines, devices, stopped))
        if not text.modules:
            report.parts.append(Part(text.name, "", "log", text.lines, 0, ""))
        report.remarks += text.notes


def _inspect_program(
    report: Report,
    program: list[Module],
    before: Set[Module],
    named: dict[str, Mesh],
    ends: Mapping[str, ProgramEnds],
) -> None:
    meshes = named or next((module.meshes for module in program if module.meshes), {})
    collectives = {module: find_collectives(module) for module in program}
    after = [module for module in program if module not in before]
    for module in after:
        report.sums += judged(module, collectives[module])
    for module in after or program:  # what one before asks for is counted in the partitioned module
        report.collectives += collectives[module]
    reshards: list[ReportedReshard] = []
    # Of several texts before partitioning the one with the most shardings: they tell of the same reshards.
    most_told = max(
        (module for module in program if module in before),
        key=lambda module: sum(bool(instruction.shardings) for _, instruction in module.instructions()),
        default=None,
    )
    if most_told is not None:
        findings = list(ReshardSearch(most_told, most_told.meshes or meshes).findings())
        for finding in findings:
            if isinstance(finding, ReportedReshard):
                _file(checked(finding), reshards, report)
        report.unrecognised += [finding for finding in findings if isinstance(finding, OpSite) and finding.why]
        report.unchanged += findings.count(UNCHANGED)
        report.free += findings.count(FREE)
    for module in after:
        program_ends = ends_of(most_told, meshes, ends.get(module.text, ProgramEnds()))
        for chain in follow(module, collectives[module], reshards if len(after) == 1 else [], meshes, program_ends):
            _file(chain, report.chains, report)
    report.reshards += reshards


def _file(finding: OpSite, among: list[ReportedReshard], report: Report) -> None:
    if isinstance(finding, ReportedReshard):
        among.append(finding)
    else:
        report.unrecognised.append(finding)


def _add_warnings(report: Report, text: Text, meshes: Mapping[str, Mesh]) -> None:
    places: dict[tuple[Any, ...], int | None] = {}
    """Of each warning that was seen: where it stands in the report, if it was recognised."""
    for warned in text.warnings:
        key = warned.source, warned.target, warned.tile, warned.operation, warned.op_name, warned.problem
        if key not in places:
            finding = find_warned(text.name, warned, meshes, report.reshards)
            places[key] = len(report.warnings) if isinstance(finding, ReportedReshard) else None
            _file(finding, report.warnings, report)
        elif (place := places[key]) is not None:
            report.warnings[place] = replace(report.warnings[place], times=report.warnings[place].times + 1)
