"""Joins what a program asks for, what is sent for it, and what the log warns about.

A reshard is joined with a run of collectives where the sizes of the tiles at both ends, how often both run and, where
there are several, the source lines leave no doubt.
A warning is joined with the reshard of the same ends and tile.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.sharding import Sharding
from reshard.xla.read.collectives import Collective
from reshard.xla.read.ir import Definition, Module
from reshard.xla.read.logs import Warned
from reshard.xla.read.loops import executions
from reshard.xla.read.shardings import ShardingReader, joined
from reshard.xla.report.figures import (
    COUNTED,
    PREDICTED,
    WARNED,
    ReportedReshard,
    Site,
    checked,
    dtype_of,
    first_line,
)
from reshard.xla.report.flows import CollectiveRun, ParameterChain, find_chains, find_runs


class ProgramEnd(NamedTuple):
    """A parameter or a result of a program, where it is known from elsewhere."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    sharding: Sharding


@dataclass(frozen=True, slots=True)
class ProgramEnds:
    """What is known of the parameters and results of a program; None for one that is not known."""

    parameters: tuple[ProgramEnd | None, ...] = ()
    results: tuple[ProgramEnd | None, ...] = ()


@dataclass(eq=False, slots=True)
class InspectedModule:
    """One module of a text and what it holds."""

    text: str
    module: Module
    key: str
    """What it has in common with the others of its program."""
    is_before: bool
    """Whether it is one before partitioning."""
    collectives: list[Collective] = field(default_factory=list)


def ends_of(before: InspectedModule | None, meshes: dict[str, Mesh], ends: ProgramEnds) -> ProgramEnds:
    """What is known of parameters and results, from elsewhere and from the text before partitioning."""
    entry = None if before is None else before.module.entry
    if before is None or entry is None:
        return ends
    reader = ShardingReader(before.module.meshes or meshes)

    def end(value: Definition | None, sharding: str) -> ProgramEnd | None:
        shape = None if value is None else value.instruction.shape
        if shape is None or not sharding:
            return None
        try:
            return ProgramEnd(shape.dims, reader.read(sharding, len(shape.dims)))
        except ReshardError:
            return None

    parameters = [
        end(Definition(entry, parameter), parameter.shardings[0] if len(parameter.shardings) == 1 else "")
        for parameter in entry.parameters()
    ]
    results: list[ProgramEnd | None] = []
    if (root := entry.root) is not None:
        count = len(root.operands) if root.opcode in ("tuple", "return") else 1
        declared = entry.results if root.opcode == "return" else root.shardings
        results += [end(entry.result(n), declared[n] if n < len(declared) else "") for n in range(count)]
    return ProgramEnds(ends.parameters or tuple(parameters), ends.results or tuple(results))


def follow(
    inspected: InspectedModule, asked: list[ReportedReshard], meshes: dict[str, Mesh], ends: ProgramEnds
) -> list[Site]:
    """Join a partitioned module's collectives with the reshards they are for, in place; its chains and other runs."""
    module, entry = inspected.module, inspected.module.entry
    executed = executions(module)
    received = {(each.computation, each.name): each.received_bytes for each in inspected.collectives}

    def sent(moved: CollectiveRun | ParameterChain, computation: str, **seen: Any) -> Site:
        """The site of the first of them; with the names of all, and what they bring the busiest device at a time."""
        names = tuple(each.name for each in moved.collectives)
        sizes = [received.get((computation, name)) for name in names]
        first = moved.collectives[0]
        return Site(
            text=inspected.text,
            module=module.name,
            place=module.source_of(first),
            collectives=names,
            received_bytes=None if None in sizes else sum(size or 0 for size in sizes),
            **{"line": first.line, "name": first.name, **seen},
        )

    runs = {
        run: sent(run, run.computation, origin="run", executions=executed[run.computation].times)
        for run in find_runs(module)
    }
    taken = _join(asked, runs, module)
    result: list[Site] = []
    in_chains: set[str] = set()
    for chain in find_chains(module):
        label = f"{chain.parameter.name} to {chain.result}"
        computation = entry.name if entry is not None else ""
        site = sent(chain, computation, origin="chain", line=chain.parameter.line, name=label)
        result.append(_reshard_of(chain, site, ShardingReader(meshes), ends))
        in_chains.update(site.collectives)
    for run, site in runs.items():
        is_in_chain = entry is not None and run.computation == entry.name and in_chains.issuperset(site.collectives)
        if run not in taken and not is_in_chain:
            nowhere = "what is not in the text"
            why = (
                f"it leads from {run.first or nowhere} to {run.last or nowhere}, whose shardings the text does not tell"
            )
            result.append(site.unrecognised(why))
    return result


def _join(asked: list[ReportedReshard], runs: dict[CollectiveRun, Site], module: Module) -> set[CollectiveRun]:
    """Give each reshard the bytes of its run, where there is no doubt which it is; the runs that were given."""
    taken: set[CollectiveRun] = set()
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, reshard in enumerate(asked):
        if reshard.shape is not None:
            tiles = reshard.source.local_shape(reshard.shape), reshard.target.local_shape(reshard.shape)
            alike.setdefault((*tiles, reshard.executions), []).append(number)
    for (before, after, count), numbers in alike.items():
        fitting = [
            run
            for run, site in runs.items()
            if run not in taken and before in run.before and after in run.after and site.executions == count
        ]
        moving = [number for number in numbers if asked[number].lower_bound_bytes]
        if len(moving) == 1:
            place = asked[moving[0]].place
            in_place = [run for run in fitting if {module.source_of(each) for each in run.collectives} == {place}]
            fitting = in_place if len(in_place) == 1 else fitting
        if len({runs[run].received_bytes for run in fitting}) != 1 or len(fitting) != len(moving):
            continue
        for number, run in zip(moving, fitting, strict=True):
            size = runs[run].received_bytes
            if size is not None and size >= (asked[number].lower_bound_bytes or 0):
                asked[number] = replace(
                    asked[number], received_bytes=size, known_by=COUNTED, collectives=runs[run].collectives
                )
                taken.add(run)
    for number, reshard in enumerate(asked):
        if reshard.received_bytes is None and reshard.lower_bound_bytes == 0 and reshard.branch().startswith("slice"):
            asked[number] = replace(reshard, received_bytes=0, known_by=PREDICTED)
    return taken


def _reshard_of(chain: ParameterChain, site: Site, reader: ShardingReader, ends: ProgramEnds) -> Site:
    """A chain with its ends, or why they are not known."""
    parameter = chain.parameter
    start = ends.parameters[chain.index] if chain.index < len(ends.parameters) else None
    stop = ends.results[chain.output] if chain.output < len(ends.results) else None
    shape = parameter.shape
    if shape is None:
        return site.unrecognised("the parameter is a tuple")
    is_rounded = start is None
    if start is None:
        if len(parameter.shardings) != 1:
            return site.unrecognised(f"the sharding of parameter {parameter.name} is not told")
        try:
            source = reader.read(parameter.shardings[0], len(shape.dims))
            start = ProgramEnd(whole_shape(source, shape.dims), source)
        except ReshardError as error:
            return site.unrecognised(f"the sharding of parameter {parameter.name} cannot be read: {first_line(error)}")
    if stop is None:
        why = f"from {start.sharding}: the sharding of result {chain.output}, {chain.result}, is not told"
        return site.unrecognised(why)
    dtype = dtype_of(shape.dtype)
    try:
        fits = stop.sharding.local_shape(start.shape) == chain.dims and (is_rounded or start.shape == stop.shape)
    except ReshardError:
        fits = False
    if dtype is None or not fits:
        return site.unrecognised(f"parameter {parameter.name} and result {chain.result} are not of one shape")
    known_by = "" if site.received_bytes is None else COUNTED
    return checked(site.reshard(*joined(start.sharding, stop.sharding), stop.shape, dtype, known_by=known_by))


def whole_shape(sharding: Sharding, tile: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the whole tensor from that of a tile, rounded up to whole tiles.

    Raises:
        ReshardError: `rank-mismatch`.
    """
    if sharding.mesh.is_maximal:
        return tile
    if len(sharding.dims) != len(tile):
        raise ReshardError("rank-mismatch", f"the sharding has {len(sharding.dims)} dims, its tile {len(tile)}")
    return tuple(size * sharding.layout.shards(dim) for dim, size in enumerate(tile))


def find_warned(text: str, warned: Warned, reader: ShardingReader, asked: list[ReportedReshard]) -> Site:
    """What a warning is about, found again among the reshards of the modules where they have it."""
    site = Site(origin="warning", text=text, line=warned.line, name=warned.operation, place=warned.origin)
    if warned.problem:
        return site.unrecognised(f"{warned.problem}: {warned.excerpt}")
    tile = warned.tile
    try:
        source, target = _pair_of(reader, warned)
        if tile is not None and len(source.dims) != len(tile.dims):
            tile = None  # the operation is about a part of what is resharded
        shape = None if tile is None else whole_shape(source, tile.dims)
    except ReshardError as error:
        return site.unrecognised(f"from {warned.source} to {warned.target}: {first_line(error)}")
    dtype = None if tile is None else dtype_of(tile.dtype)
    if tile is not None and dtype is None:
        why = f"from {warned.source} to {warned.target}: element type {tile.dtype} is not known"
        return site.unrecognised(why)
    site = replace(site, op_name=warned.op_name)
    reshard = site.reshard(source, target, shape, dtype, is_rounded=tile is not None, warned=True)
    for number, candidate in enumerate(asked):
        if _is_same(reshard, tile.dims if tile else None, candidate):
            if candidate.received_bytes is None:
                candidate = replace(candidate, received_bytes=candidate.full_gather_bytes, known_by=WARNED)
            asked[number] = replace(candidate, warned=True)
            return replace(
                asked[number],
                origin="warning",
                text=text,
                line=warned.line,
                name=warned.operation or candidate.name,
                op_name=warned.op_name or candidate.op_name,
                place=warned.origin or candidate.place,
            )
    if reshard.full_gather_bytes is not None:
        reshard = replace(reshard, received_bytes=reshard.full_gather_bytes, known_by=WARNED)
    return checked(reshard)


def _pair_of(reader: ShardingReader, warned: Warned) -> tuple[Sharding, Sharding]:
    """Both shardings, of the rank that either of them has, or of that of the tile where neither says one."""
    for text in (warned.source, warned.target):
        if "devices=[" in text:
            tiles = text.partition("devices=[")[2].partition("]")[0].count(",") + 1
            extra = text.partition("last_tile_dims={")[2].partition("}")[0]
            rank = tiles - ("last_tile_dim_replicate" in text) - (extra.count(",") + 1 if extra else 0)
            return reader.pair(warned.source, warned.target, rank)
    if warned.tile is not None:
        return reader.pair(warned.source, warned.target, len(warned.tile.dims))
    raise ReshardError("bad-argument", "neither sharding says how many dims there are")


def _is_same(warned: ReportedReshard, tile: tuple[int, ...] | None, asked: ReportedReshard) -> bool:
    """Whether a warning, about a tile of that shape, is about a reshard that is asked for."""
    if asked.shape is None or asked.source.ndim != warned.source.ndim:
        return False
    try:
        return (
            (tile is None or asked.source.local_shape(asked.shape) == tile)
            and (warned.dtype is None or warned.dtype == asked.dtype)
            and warned.source.is_equivalent_to(asked.source, asked.shape)
            and warned.target.is_equivalent_to(asked.target, asked.shape)
        )
    except ReshardError:
        return False
