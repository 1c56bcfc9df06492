"""The warnings of XLA's partitioner that it gathers a whole tensor to reshard it.

Their wording has changed over the years; from, to and, in newer ones, the operation are in all of them.
The operation is one of the partitioned program, so its shape is that of a tile.

>>> warned = read_warning("W1 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler "
...     "cannot go from sharding {devices=[2,1]<=[2]} to {devices=[1,2]<=[2]} efficiently for HLO operation "
...     "%p = f32[4,8]{1,0} parameter(0). As the last resort, SPMD will replicate the tensor", 7)
>>> warned.source, warned.target, str(warned.tile)
('{devices=[2,1]<=[2]}', '{devices=[1,2]<=[2]}', 'f32[4,8]')
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from reshard.xla.read.hlo import INSTRUCTION, metadata_of, read_result
from reshard.xla.read.ir import ArrayShape
from reshard.xla.read.scan import closing, excerpt

WARNING = re.compile(r"[Ii]nvoluntary full rematerialization")
_FROM = re.compile(r"from sharding\s*(?=\{)")
_TO = re.compile(r"\s*to\s*(?=\{)")
_OPERATION = re.compile(r"for (?:HLO|hlo) operation:?\s*")


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning."""

    line: int
    source: str = ""
    """The text of the sharding that it is in."""
    target: str = ""
    """The text of the sharding that it must be in."""
    tile: ArrayShape | None = None
    """What a device holds before; None where the warning does not say."""
    operation: str = ""
    """The name of the instruction."""
    op_name: str = ""
    """What the program calls it."""
    origin: str = ""
    """The source line."""
    problem: str = ""
    """Why it cannot be read; nothing where it can."""
    excerpt: str = ""


def read_warning(line: str, number: int) -> Warned:
    """What a warning says."""
    shown = excerpt(line, 200)
    source = _sharding(line, _FROM.search(line))
    if source is None:
        return Warned(number, problem="the warning does not say from which sharding", excerpt=shown)
    stop = line.index(source) + len(source)
    target = _sharding(line, _TO.match(line, stop))
    if target is None:
        return Warned(number, source, problem="the warning does not say to which sharding", excerpt=shown)
    operation = _OPERATION.search(line)
    if operation is None:
        return Warned(number, source, target, excerpt=shown)
    instruction = line[operation.end() :]
    head = INSTRUCTION.match(instruction)
    tile = None
    if head is not None:
        text = instruction[head.end() :]
        stop = closing(text, 0) if text.startswith("(") else text.find(" ")
        result = read_result(text[:stop]) if stop > 0 else None
        tile = result.shapes[0] if result is not None and not result.is_tuple else None
    metadata = metadata_of(instruction)
    return Warned(
        number,
        source,
        target,
        tile,
        head.group(2) if head else "",
        metadata.get("op_name", ""),
        metadata.get("source", ""),
        excerpt=shown,
    )


def _sharding(line: str, before: re.Match[str] | None) -> str | None:
    stop = closing(line, before.end()) if before is not None else -1
    return line[before.end() : stop] if before is not None and stop > 0 else None
