"""What was found in one text or in several that belong together.

Modules of one program, before partitioning and after it, are told by their names, or by the beginning of their files'
names in a dump folder.
The first says which reshards there are, the second what is sent for them; a reshard is joined with the run of
collectives that leads from a tile of its source's size to one of its target's, where only one does.

>>> log = ("W1 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler cannot go "
...     "from sharding {devices=[2,3]<=[6]} to {devices=[3,2]<=[2,3]T(1,0)} efficiently for HLO operation "
...     "%p = f32[6,4]{1,0} parameter(0). As the last resort, SPMD will replicate the tensor")
>>> found, = inspect_texts([("log", log)]).warnings
>>> found.received_bytes, found.lower_bound_bytes, found.ratio, found.call
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
from reshard.xla.read.shardings import Reader
from reshard.xla.report.figures import PREDICTED, Reshard, Unrecognised, checked, full_gather_bytes
from reshard.xla.report.joining import Ends, Found, ends_of, find_warned, follow
from reshard.xla.report.reshards import find_reshards, is_before_partitioning
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
    warnings: list[Reshard] = field(default_factory=list)
    """What the log warns about, equal warnings once."""
    chains: list[Reshard] = field(default_factory=list)
    """Ways from a parameter to a result."""
    reshards: list[Reshard] = field(default_factory=list)
    """What a text before partitioning asks for."""
    unrecognised: list[Unrecognised] = field(default_factory=list)
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
            "parts": [asdict(one) for one in self.parts],
            "collectives": [asdict(one) for one in self.collectives],
            "totals": [asdict(one) for one in self.totals],
            "warnings": [one.as_dict() for one in self.warnings],
            "chains": [one.as_dict() for one in self.chains],
            "reshards": [one.as_dict() for one in self.reshards],
            "unrecognised": [one.as_dict() for one in self.unrecognised],
            "not_understood": [asdict(one) for one in self.remarks],
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
    ends: Mapping[str, Ends] | None = None,
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
    found = [
        Found(text.name, module, (keys or {}).get(text.name, module.name), is_before_partitioning(module))
        for text in read
        for module in text.modules
    ]
    _describe(report, read, found)
    given = {} if mesh is None else {"": mesh}
    programs: dict[str, list[Found]] = {}
    for one in found:
        programs.setdefault(one.key, []).append(one)
    for program in programs.values():
        _inspect_program(report, program, given, ends or {})
    meshes = dict(given)
    for one in found:
        meshes |= {f"{len(meshes)}": named for named in one.module.meshes.values()}
    for text in read:
        _add_warnings(report, text, Reader(meshes))
    report.totals = totals(report.collectives)
    for one in found:
        report.remarks += [Remark(one.text, *note) for note in one.module.notes]
    _finish(report)
    return report


def _describe(report: Report, read: Sequence[Text], found: Sequence[Found]) -> None:
    for text in read:
        those = [one for one in found if one.text == text.name]
        for one in those:
            module = one.module
            form = (
                "lowered" if module.form == "stablehlo" else "before partitioning" if one.is_before else "partitioned"
            )
            stopped = f"line {module.line + module.lines - 1}: {module.stopped}" if module.stopped else ""
            devices = module.partitions * module.replicas
            report.parts.append(Part(text.name, module.name, form, module.lines, devices, stopped))
        if not those:
            report.parts.append(Part(text.name, "", "log", text.lines, 0, ""))
        report.remarks += [Remark(text.name, *note) for note in text.notes]


def _inspect_program(report: Report, program: list[Found], given: dict[str, Mesh], ends: Mapping[str, Ends]) -> None:
    after = [one for one in program if not one.is_before]
    before = [one for one in program if one.is_before]
    meshes = dict(given) or next((one.module.meshes for one in program if one.module.meshes), {})
    for one in program:
        one.collectives = find_collectives(one.module, one.text)
        if after and one.is_before and one.collectives:
            continue  # what it asks for is counted in the partitioned module
        report.collectives += one.collectives
    asked: list[Reshard] = []
    chosen = _most_told(before)
    for one in before:
        if one is not chosen:
            continue
        findings = find_reshards(one.module, one.text, Reader(one.module.meshes or meshes))
        for reshard in findings.reshards:
            _file(checked(reshard), asked, report)
        report.unrecognised += findings.unrecognised
        report.unchanged += findings.unchanged
        report.free += findings.free
    for one in after:
        known = ends_of(chosen, meshes, ends.get(one.text, Ends()))
        for found in follow(one, asked if len(after) == 1 else [], meshes, known):
            _file(found, report.chains, report)
    report.reshards += asked


def _most_told(before: list[Found]) -> Found | None:
    """Of several texts before partitioning, the one with the most shardings; they tell of the same reshards."""
    return max(
        before, key=lambda one: sum(bool(found.shardings) for _, found in one.module.instructions()), default=None
    )


def _file(found: Reshard | Unrecognised, into: list[Reshard], report: Report) -> None:
    if isinstance(found, Reshard):
        into.append(found)
    else:
        report.unrecognised.append(found)


def _add_warnings(report: Report, text: Text, reader: Reader) -> None:
    seen: dict[tuple[Any, ...], int] = {}
    for warned in text.warnings:
        key = warned.source, warned.target, warned.tile, warned.operation, warned.op_name, warned.problem
        if key in seen:
            place = seen[key]
            if place >= 0:
                report.warnings[place] = replace(report.warnings[place], times=report.warnings[place].times + 1)
            continue
        found = find_warned(text.name, warned, reader, report.reshards)
        seen[key] = len(report.warnings) if isinstance(found, Reshard) else -1
        _file(found, report.warnings, report)


def _finish(report: Report) -> None:
    """Say what XLA would move where its rules leave no choice and nothing was counted."""
    for place, reshard in enumerate(report.reshards):
        known = reshard.received_bytes is not None or reshard.shape is None or reshard.dtype is None
        if not known and reshard.branch() == "full gather" and reshard.shape is not None and reshard.dtype is not None:
            size = full_gather_bytes(reshard.source, reshard.shape, reshard.dtype)
            report.reshards[place] = replace(reshard, received_bytes=size, known_by=PREDICTED)
