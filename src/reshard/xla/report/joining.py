"""Joins what a program asks for, what is sent for it, and what the log warns about.

A reshard is joined with a run of collectives where the sizes of the tiles at both ends, how often both run and, where
there are several, the source lines leave no doubt.
Where what computes a tile has swallowed its pieces, the sizes do not tell; there it is the name and the source line,
which the collectives have from the reshard, if no other one has them.
A warning is joined with the reshard of the same ends and tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.sharding import Sharding
from reshard.xla.read.collectives import Collective
from reshard.xla.read.ir import Definition, Module
from reshard.xla.read.logs import Warned
from reshard.xla.read.loops import executions
from reshard.xla.read.shardings import joined, read_pair, read_sharding
from reshard.xla.report.figures import (
    COUNTED,
    PREDICTED,
    WARNED,
    OpSite,
    ReportedReshard,
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


def ends_of(before: Module | None, meshes: dict[str, Mesh], ends: ProgramEnds) -> ProgramEnds:
    """What is known of parameters and results, from elsewhere and from the text before partitioning."""
    entry = None if before is None else before.entry
    if before is None or entry is None:
        return ends

    def end(value: Definition | None, sharding: str) -> ProgramEnd | None:
        shape = None if value is None else value.instruction.shape
        if shape is None or not sharding:
            return None
        try:
            return ProgramEnd(shape.dims, read_sharding(sharding, before.meshes or meshes, len(shape.dims)))
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
    module: Module,
    collectives: Iterable[Collective],
    reshards: list[ReportedReshard],
    meshes: dict[str, Mesh],
    ends: ProgramEnds,
) -> list[OpSite]:
    """Join a partitioned module's collectives with the reshards they are for, in place; its chains and other runs."""
    entry, executed = module.entry, executions(module)
    received = {(collective.computation, collective.name): collective.received_bytes for collective in collectives}

    def sent(moved: CollectiveRun | ParameterChain, computation: str, **seen: Any) -> OpSite:
        """The site of the first of them; with the names of all, and what they bring the busiest device at a time."""
        names = tuple(collective.name for collective in moved.collectives)
        sizes = [received.get((computation, name)) for name in names]
        first = moved.collectives[0]
        return OpSite(
            text=module.text,
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
    used_runs = _join(reshards, runs, module)
    result: list[OpSite] = []
    in_chains: set[str] = set()
    for chain in find_chains(module):
        label = f"{chain.parameter.name} to {chain.result}"
        computation = entry.name if entry is not None else ""
        site = sent(chain, computation, origin="chain", line=chain.parameter.line, name=label)
        result.append(_reshard_of(chain, site, meshes, ends))
        in_chains.update(site.collectives)
    for run, site in runs.items():
        is_in_chain = entry is not None and run.computation == entry.name and in_chains.issuperset(site.collectives)
        if run not in used_runs and not is_in_chain:
            first, last = (name or "what is not in the text" for name in (run.first, run.last))
            why = f"it leads from {first} to {last}, whose shardings the text does not tell"
            result.append(site.unrecognised(why))
    return result


def _join(reshards: list[ReportedReshard], runs: dict[CollectiveRun, OpSite], module: Module) -> set[CollectiveRun]:
    """Give each reshard the bytes of its run, where there is no doubt which it is; the runs that were given."""
    used_runs: set[CollectiveRun] = set()
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, reshard in enumerate(reshards):
        if reshard.shape is not None:
            tiles = reshard.source.local_shape(reshard.shape), reshard.target.local_shape(reshard.shape)
            alike.setdefault((*tiles, reshard.executions), []).append(number)
    for (before, after, count), numbers in alike.items():
        fitting = [
            run
            for run, site in runs.items()
            if run not in used_runs and before in run.before and after in run.after and site.executions == count
        ]
        moving = [number for number in numbers if reshards[number].lower_bound_bytes]
        if len(moving) == 1:
            place = reshards[moving[0]].place
            in_place = [run for run in fitting if set(map(module.source_of, run.collectives)) == {place}]
            fitting = in_place if len(in_place) == 1 else fitting
        if len({runs[run].received_bytes for run in fitting}) != 1 or len(fitting) != len(moving):
            continue
        for number, run in zip(moving, fitting, strict=True):
            size = runs[run].received_bytes
            if size is not None and size >= (reshards[number].lower_bound_bytes or 0):
                reshards[number] = replace(
                    reshards[number], received_bytes=size, known_by=COUNTED, collectives=runs[run].collectives
                )
                used_runs.add(run)
    _join_by_name(reshards, runs, module, used_runs)
    for number, reshard in enumerate(reshards):
        if reshard.received_bytes is None and reshard.lower_bound_bytes == 0 and reshard.branch().startswith("slice"):
            reshards[number] = replace(reshard, received_bytes=0, known_by=PREDICTED)
    return used_runs


def _join_by_name(
    reshards: list[ReportedReshard],
    runs: dict[CollectiveRun, OpSite],
    module: Module,
    used_runs: set[CollectiveRun],
) -> None:
    """Give reshards that are left the runs that are left and have their name and place, one each or all to one."""
    by_name: dict[tuple[Any, ...], tuple[list[int], list[CollectiveRun]]] = {}
    for number, reshard in enumerate(reshards):
        if reshard.lower_bound_bytes:
            key = reshard.op_name, reshard.place, reshard.executions
            by_name.setdefault(key, ([], []))[0].append(number)
    for run, site in runs.items():
        names = {(one.attributes.get("op_name", ""), module.source_of(one)) for one in run.collectives}
        op_name, place = names.pop() if len(names) == 1 else ("", "")
        if run not in used_runs and op_name and place and (key := (op_name, place, site.executions)) in by_name:
            by_name[key][1].append(run)
    for numbers, named in by_name.values():
        sizes = [runs[run].received_bytes for run in named]
        if not named or None in sizes or any(reshards[number].received_bytes is not None for number in numbers):
            continue
        shares = [named] if len(numbers) == 1 else [[run] for run in named]
        bounds = [reshards[number].lower_bound_bytes or 0 for number in numbers]
        if len(shares) != len(numbers) or (len(numbers) > 1 and len({*sizes}) + len({*bounds}) > 2):
            continue
        received = [sum(runs[run].received_bytes or 0 for run in share) for share in shares]
        if any(size < bound for size, bound in zip(received, bounds, strict=True)):
            continue
        for number, share, size in zip(numbers, shares, received, strict=True):
            names_of_share = tuple(name for run in share for name in runs[run].collectives)
            reshards[number] = replace(
                reshards[number], received_bytes=size, known_by=COUNTED, collectives=names_of_share
            )
        used_runs.update(named)


def _reshard_of(chain: ParameterChain, site: OpSite, meshes: Mapping[str, Mesh], ends: ProgramEnds) -> OpSite:
    """A chain with its ends, or why they are not known."""
    parameter, index = chain.parameter, chain.parameter.index or 0
    start = ends.parameters[index] if index < len(ends.parameters) else None
    stop = ends.results[chain.output] if chain.output < len(ends.results) else None
    shape = parameter.shape
    if shape is None:
        return site.unrecognised("the parameter is a tuple")
    is_rounded = start is None
    if start is None:
        if len(parameter.shardings) != 1:
            return site.unrecognised(f"the sharding of parameter {parameter.name} is not told")
        try:
            source = read_sharding(parameter.shardings[0], meshes, len(shape.dims))
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


def find_warned(text: str, warned: Warned, meshes: Mapping[str, Mesh], reshards: list[ReportedReshard]) -> OpSite:
    """What a warning is about, found again among the reshards of the modules where they have it."""
    site = OpSite(origin="warning", text=text, line=warned.line, name=warned.operation, place=warned.origin)
    if warned.problem:
        return site.unrecognised(f"{warned.problem}: {warned.excerpt}")
    tile, ends = warned.tile, f"from {warned.source} to {warned.target}"
    try:
        source, target = _pair_of(warned, meshes)
        if tile is not None and len(source.dims) != len(tile.dims):
            tile = None  # the operation is about a part of what is resharded
        shape = None if tile is None else whole_shape(source, tile.dims)
    except ReshardError as error:
        return site.unrecognised(f"{ends}: {first_line(error)}")
    dtype = None if tile is None else dtype_of(tile.dtype)
    if tile is not None and dtype is None:
        return site.unrecognised(f"{ends}: element type {tile.dtype} is not known")
    site = replace(site, op_name=warned.op_name)
    reshard = site.reshard(source, target, shape, dtype, is_rounded=tile is not None, warned=True)
    for number, candidate in enumerate(reshards):
        if _is_same(reshard, tile.dims if tile else None, candidate):
            if candidate.received_bytes is None:
                candidate = replace(candidate, received_bytes=candidate.full_gather_bytes, known_by=WARNED)
            reshards[number] = replace(candidate, warned=True)
            return replace(
                reshards[number],
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


def _pair_of(warned: Warned, meshes: Mapping[str, Mesh]) -> tuple[Sharding, Sharding]:
    """Both shardings, of the rank that either of them has, or of that of the tile where neither says one."""
    for text in (warned.source, warned.target):
        if "devices=[" in text:
            tiles = text.partition("devices=[")[2].partition("]")[0].count(",") + 1
            extra = text.partition("last_tile_dims={")[2].partition("}")[0]
            rank = tiles - ("last_tile_dim_replicate" in text) - (extra.count(",") + 1 if extra else 0)
            return read_pair(warned.source, warned.target, meshes, rank)
    if warned.tile is not None:
        return read_pair(warned.source, warned.target, meshes, len(warned.tile.dims))
    raise ReshardError("bad-argument", "neither sharding says how many dims there are")


def _is_same(warned: ReportedReshard, tile: tuple[int, ...] | None, candidate: ReportedReshard) -> bool:
    """Whether a warning, about a tile of that shape, is about a reshard that is asked for."""
    if candidate.shape is None or candidate.source.ndim != warned.source.ndim:
        return False
    try:
        return (
            (tile is None or candidate.source.local_shape(candidate.shape) == tile)
            and (warned.dtype is None or warned.dtype == candidate.dtype)
            and warned.source.is_equivalent_to(candidate.source, candidate.shape)
            and warned.target.is_equivalent_to(candidate.target, candidate.shape)
        )
    except ReshardError:
        return False
