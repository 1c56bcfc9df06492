"""Joins what a program asks for, what is sent for it, and what the log warns about.

A reshard is joined with a run of collectives where the sizes of the tiles at both ends, how often both run and, where
there are several, the source lines leave no doubt.
A warning is joined with the reshard of the same ends and tile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.sharding import Sharding
from reshard.xla.read.collectives import Collective
from reshard.xla.read.ir import Module
from reshard.xla.read.logs import Warned
from reshard.xla.read.loops import executions
from reshard.xla.read.shardings import Reader, joined
from reshard.xla.report.figures import (
    COUNTED,
    PREDICTED,
    WARNED,
    Reshard,
    Unrecognised,
    checked,
    dtype_of,
    full_gather_bytes,
)
from reshard.xla.report.flows import Chain, Run, find_chains, find_runs


class End(NamedTuple):
    """A parameter or a result of a program, where it is known from elsewhere."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    sharding: Sharding


@dataclass(frozen=True, slots=True)
class Ends:
    """What is known of the parameters and results of a program; None for one that is not known."""

    parameters: tuple[End | None, ...] = ()
    results: tuple[End | None, ...] = ()


@dataclass(eq=False, slots=True)
class Found:
    """One module and what it was found to be."""

    text: str
    module: Module
    key: str
    is_before: bool
    collectives: list[Collective] = field(default_factory=list)


def ends_of(before: Found | None, meshes: dict[str, Mesh], ends: Ends) -> Ends:
    """What is known of parameters and results, from elsewhere and from the text before partitioning."""
    entry = None if before is None else before.module.entry
    if before is None or entry is None:
        return ends
    reader = Reader(before.module.meshes or meshes)

    def end(dims: tuple[int, ...] | None, text: str) -> End | None:
        if dims is None or not text:
            return None
        try:
            return End(dims, reader.read(text, len(dims)))
        except ReshardError:
            return None

    parameters = [
        end(one.shape.dims if one.shape else None, one.shardings[0] if len(one.shardings) == 1 else "")
        for one in entry.parameters()
    ]
    results: list[End | None] = []
    root = entry.root
    if root is not None:
        many = root.opcode in ("tuple", "return")
        values = [entry.find(name) for name in root.operands] if many else [(entry, root)]
        told = entry.results if root.opcode == "return" else root.shardings
        for place, value in enumerate(values):
            shape = value[1].shape if value else None
            results.append(end(shape.dims if shape else None, told[place] if place < len(told) else ""))
    return Ends(ends.parameters or tuple(parameters), ends.results or tuple(results))


def follow(one: Found, asked: list[Reshard], meshes: dict[str, Mesh], ends: Ends) -> list[Reshard | Unrecognised]:
    """Join a partitioned module's collectives with the reshards they are for, in place; its chains and other runs."""
    module, runs_of = one.module, executions(one.module)
    received = {(found.computation, found.name): found.received_bytes for found in one.collectives}
    runs = find_runs(module)
    sizes = {id(run): _sum(received.get((run.computation, each.name)) for each in run.collectives) for run in runs}
    taken = _join(asked, runs, sizes, {run.computation: runs_of[run.computation].times for run in runs}, module)
    entry = module.entry
    result: list[Reshard | Unrecognised] = []
    told: set[str] = set()
    for chain in find_chains(module):
        size = _sum(received.get((entry.name if entry else "", each.name)) for each in chain.collectives)
        names = tuple(each.name for each in chain.collectives)
        result.append(_chain(one, chain, size, names, Reader(meshes), ends))
        told.update(names)
    for run in runs:
        names = tuple(each.name for each in run.collectives)
        in_chain = entry is not None and run.computation == entry.name and set(names) <= told
        if id(run) not in taken and not in_chain:
            result.append(_unknown_run(one, run, names, sizes[id(run)], runs_of[run.computation].times))
    return result


def _unknown_run(one: Found, run: Run, names: tuple[str, ...], size: int | None, times: int) -> Unrecognised:
    first, nowhere = run.collectives[0], "what is not in the text"
    why = f"it leads from {run.first or nowhere} to {run.last or nowhere}, whose shardings the text does not tell"
    place = one.module.source_of(first)
    return Unrecognised("run", one.text, one.module.name, first.line, first.name, why, names, size, times, place)


def _sum(sizes: Iterable[int | None]) -> int | None:
    listed = list(sizes)
    return None if any(size is None for size in listed) else sum(size or 0 for size in listed)


def _join(
    asked: list[Reshard],
    runs: list[Run],
    sizes: dict[int, int | None],
    counts: dict[str, int],
    module: Module,
) -> set[int]:
    """Give each reshard the bytes of its run, where there is no doubt which it is; the runs that were given."""
    taken: set[int] = set()
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, reshard in enumerate(asked):
        if reshard.shape is not None:
            tiles = reshard.source.local_shape(reshard.shape), reshard.target.local_shape(reshard.shape)
            groups.setdefault((*tiles, reshard.executions), []).append(place)
    for (before, after, count), places in groups.items():
        fitting = [
            run
            for run in runs
            if id(run) not in taken and before in run.before and after in run.after and counts[run.computation] == count
        ]
        moved = [place for place in places if asked[place].lower_bound_bytes]
        at = [run for run in fitting if len(moved) == 1 and _places(run, module) == {asked[moved[0]].place}]
        if len(at) == 1:
            fitting = at
        if len({sizes[id(run)] for run in fitting}) != 1 or len(fitting) != len(moved):
            continue
        for place, run in zip(moved, fitting, strict=True):
            size = sizes[id(run)]
            if size is not None and size >= (asked[place].lower_bound_bytes or 0):
                names = tuple(each.name for each in run.collectives)
                asked[place] = replace(asked[place], received_bytes=size, known_by=COUNTED, collectives=names)
                taken.add(id(run))
    for place, reshard in enumerate(asked):
        if reshard.received_bytes is None and reshard.lower_bound_bytes == 0 and reshard.branch().startswith("slice"):
            asked[place] = replace(reshard, received_bytes=0, known_by=PREDICTED)
    return taken


def _places(run: Run, module: Module) -> set[str]:
    return {module.source_of(one) for one in run.collectives}


def _chain(
    one: Found, chain: Chain, size: int | None, names: tuple[str, ...], reader: Reader, ends: Ends
) -> Reshard | Unrecognised:
    """A chain with its ends, or why they are not known."""
    module, parameter = one.module, chain.parameter
    line, label = parameter.line, f"{parameter.name} to {chain.result}"

    def unknown(why: str) -> Unrecognised:
        place = module.source_of(chain.collectives[0])
        return Unrecognised("chain", one.text, module.name, line, label, why, names, size, 1, place)

    start = ends.parameters[chain.index] if chain.index < len(ends.parameters) else None
    stop = ends.results[chain.output] if chain.output < len(ends.results) else None
    shape = parameter.shape
    if shape is None:
        return unknown("the parameter is a tuple")
    rounded = start is None
    if start is None:
        if len(parameter.shardings) != 1:
            return unknown(f"the sharding of parameter {parameter.name} is not told")
        try:
            source = reader.read(parameter.shardings[0], len(shape.dims))
            start = End(whole_shape(source, shape.dims), source)
        except ReshardError as error:
            return unknown(f"the sharding of parameter {parameter.name} cannot be read: {_sentence(error)}")
    if stop is None:
        return unknown(f"from {start.sharding}: the sharding of result {chain.output}, {chain.result}, is not told")
    dtype = dtype_of(shape.dtype)
    try:
        fits = stop.sharding.local_shape(start.shape) == chain.dims and (rounded or start.shape == stop.shape)
    except ReshardError:
        fits = False
    if dtype is None or not fits:
        return unknown(f"parameter {parameter.name} and result {chain.result} are not of one shape")
    source, target = joined(start.sharding, stop.sharding)
    return checked(
        Reshard(
            "chain",
            one.text,
            module.name,
            line,
            label,
            source,
            target,
            stop.shape,
            dtype,
            place=module.source_of(chain.collectives[0]),
            received_bytes=size,
            known_by="" if size is None else COUNTED,
            collectives=names,
        )
    )


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


def _sentence(error: ReshardError) -> str:
    return str(error).partition("\n")[0]


def find_warned(text: str, warned: Warned, reader: Reader, asked: list[Reshard]) -> Reshard | Unrecognised:
    """What a warning is about, found again among the reshards of the modules where they have it."""

    def unknown(why: str) -> Unrecognised:
        return Unrecognised("warning", text, "", warned.line, warned.operation, why, place=warned.origin)

    if warned.problem:
        return unknown(f"{warned.problem}: {warned.excerpt}")
    tile = warned.tile
    try:
        source, target = _pair_of(reader, warned)
        if tile is not None and len(source.dims) != len(tile.dims):
            tile = None  # the operation is about a part of what is resharded
        shape = None if tile is None else whole_shape(source, tile.dims)
    except ReshardError as error:
        return unknown(f"from {warned.source} to {warned.target}: {_sentence(error)}")
    dtype = None if tile is None else dtype_of(tile.dtype)
    if tile is not None and dtype is None:
        return unknown(f"from {warned.source} to {warned.target}: element type {tile.dtype} is not known")
    found = Reshard(
        "warning",
        text,
        "",
        warned.line,
        warned.operation,
        source,
        target,
        shape,
        dtype,
        is_rounded=tile is not None,
        place=warned.origin,
        op_name=warned.op_name,
        warned=True,
    )
    for place, reshard in enumerate(asked):
        if _is_about(found, tile.dims if tile else None, reshard):
            size = reshard.received_bytes
            if size is None and reshard.shape is not None and reshard.dtype is not None:
                size = full_gather_bytes(reshard.source, reshard.shape, reshard.dtype)
            known = reshard.known_by if reshard.received_bytes is not None else WARNED
            asked[place] = replace(reshard, warned=True, received_bytes=size, known_by=known)
            return replace(
                asked[place],
                origin="warning",
                text=text,
                module=reshard.module,
                line=warned.line,
                name=warned.operation or reshard.name,
                op_name=warned.op_name or reshard.op_name,
                place=warned.origin or reshard.place,
            )
    if shape is not None and dtype is not None:
        found = replace(found, received_bytes=full_gather_bytes(source, shape, dtype), known_by=WARNED)
    return checked(found)


def _pair_of(reader: Reader, warned: Warned) -> tuple[Sharding, Sharding]:
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


def _is_about(found: Reshard, tile: tuple[int, ...] | None, reshard: Reshard) -> bool:
    if reshard.shape is None or reshard.source.ndim != found.source.ndim:
        return False
    try:
        return (
            (tile is None or reshard.source.local_shape(reshard.shape) == tile)
            and (found.dtype is None or found.dtype == reshard.dtype)
            and found.source.is_equivalent_to(reshard.source, reshard.shape)
            and found.target.is_equivalent_to(reshard.target, reshard.shape)
        )
    except ReshardError:
        return False
