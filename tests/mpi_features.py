"""What each rank of MPI does to show one feature of the engine; what is wrong goes to a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import dealt
import numpy as np
import oracle
import problems
from mpi4py import MPI
from ring_plans import plan_that_keeps_blocks, plans_with_kept, ring_plans, two_rings_in_blocks

import reshard as rs
from reshard.digits import Digit
from reshard.dtypes import dtype_named, value_dtype
from reshard.errors import ReshardError
from reshard.mpi.local_moves import RankPlan
from reshard.mpi.participants import participants_of
from reshard.steps import Share, chain_through

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size


def unless(holds: bool, what: object) -> Iterator[str]:
    if not holds:
        yield f"rank {RANK}: {what}"


def same_bits(found: Any, expected: Any) -> bool:
    if expected is None or found is None:
        return found is expected
    return found.shape == expected.shape and found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Small integers, that stay exact however they are combined."""
    values = np.random.default_rng(seed).integers(0, 3, shape)
    return values.astype(value_dtype(dtype_named(dtype)))


def drawn_plans(count: int, draw: Callable[[Random], problems.Problem]) -> Iterator[rs.Plan]:
    """So many plans on the devices at hand that are not refused."""
    rng = Random(5)
    while count:
        source, target, shape, dtype = draw(rng)
        if max(*source.mesh.devices, *target.mesh.devices) < SIZE:
            try:
                yield rs.plan(source, target, shape, dtype)
                count -= 1
            except ReshardError:
                continue


def agrees(plan: rs.Plan, seed: int, *, shared: bool = False, counted: bool = True) -> Iterator[str]:
    """The rank's tile is that of the NumPy engine, and what it is sent is what the plan says."""
    tiles = rs.numpy.scatter(numbers(plan.shape, plan.dtype.name, seed), plan.source)
    expected = rs.numpy.run(plan, tiles)
    tile = tiles.get(RANK)
    if shared:
        memory = rs.mpi.empty(plan.source, plan.shape, tiles[min(tiles)].dtype)
        if memory is not None:
            memory[...] = tile
            tile = memory
    found = rs.mpi.run(plan, tile)
    yield from unless(same_bits(found, expected.get(RANK)), f"{plan.reshard} {plan.shape}: {found}")
    if tile is not None and found is not None:
        yield from unless(not np.may_share_memory(tile, found), f"{plan.reshard} gives its own tile")
    participants = participants_of(None, plan.devices)
    if participants is not None and counted:
        local = RankPlan(plan, participants)
        sizes = [
            datatype.Get_size() for move in local.moves for hop in move.hops for datatype in hop.receives.types.values()
        ]
        received = plan.received_bytes_on(RANK)
        yield from unless(sum(sizes) == received, f"{plan.reshard} receives {sum(sizes)}, not {received}")
        local.free()


def moves() -> Iterator[str]:
    for number, plan in enumerate(drawn_plans(30, problems.draw_problem)):
        yield from agrees(plan, number)


def reductions() -> Iterator[str]:
    for number, plan in enumerate(drawn_plans(25, problems.draw_reduction)):
        yield from agrees(plan, number)


def sums_of_replicas() -> Iterator[str]:
    """Ranks that combine partial values each by itself have what NumPy has, to the bit."""
    mesh = rs.Mesh.of(x=2, y=2)
    network = rs.Network((rs.network.Level(1, 4, "switch", 1e9, 1e-6),))
    for reduction in ("sum", "avg", "product"):
        source = rs.Sharding.of(mesh, None, None, unreduced=("x", "y"), reduction=reduction)
        plan = rs.plan(source, rs.Sharding.of(mesh, None, None), (6, 5), "f32", network=network)
        fresh = np.random.default_rng(0)
        tiles = oracle.partial_tiles([fresh.random((6, 5), np.float32) for _ in range(4)], source)
        found, wanted = rs.mpi.run(plan, tiles[RANK]), rs.numpy.run(plan, tiles)[RANK]
        yield from unless([step.near for step in plan.steps] == [1], f"{plan}")
        yield from unless(same_bits(found, wanted), f"{plan}: {found} for {wanted}")


def parts() -> Iterator[str]:
    """A plan whose tensor goes in parts."""
    mesh = rs.Mesh.of(x=2, y=2)
    ends = [
        (rs.Sharding.of(mesh, "x", "y"), rs.Sharding.of(mesh, None, None)),
        (rs.Sharding.of(mesh, "y", None), rs.Sharding.of(mesh, "x", "y")),
        (rs.Sharding.of(mesh, "x", None, unreduced="y"), rs.Sharding.of(mesh, None, "y")),
    ]
    for number, (source, target) in enumerate(ends):
        plan = replace(rs.plan(source, target, (16, 8), "float32"), parts=2)
        if number == 1:
            middle = rs.Sharding.of(mesh, ("y", "x"), None)
            plan = replace(plan, beside=(Share(chain_through(plan.reshard, middle), 1),))
        yield from agrees(plan, number, counted=False)
        out = np.zeros(rs.numpy.scatter(np.zeros((16, 8), np.float32), target)[RANK].shape, np.float32)
        tiles = rs.numpy.scatter(numbers((16, 8), "float32", number), source)
        yield from unless(rs.mpi.run(plan, tiles[RANK], out=out) is out, "another array")
        yield from unless(same_bits(out, rs.numpy.run(plan, tiles)[RANK]), f"{plan.reshard} in parts: {out}")
    rings = rs.Network((rs.network.Level(1, 2, "ring", 3, 0), rs.network.Level(2, 2, "ring", 1, 0)))
    hosts = rs.Network((rs.network.Level(1, 2, "switch", 9, 0), rs.network.Level(2, 2, "switch", 1, 0)))
    source = rs.Sharding.of(mesh, None, None, unreduced=("x", "y"))
    plan = rs.plan(source, rs.Sharding.of(mesh, ("x", "y"), None), (64, 8), "int64", network=hosts)
    yield from unless(plan.parts > 1 and plan.steps[0].after.is_woven, f"{plan} combines all at once")
    yield from agrees(plan, 1, counted=False)
    rows, columns, whole = ("x", None), (None, "x"), (None, None)
    for network, before, after in ((rings, ("y", None), (None, "y")), (hosts, rows, columns), (hosts, columns, whole)):
        ends = (rs.Sharding.of(mesh, *dims) for dims in (before, after))
        plan = rs.plan(*ends, (65, 21), "int64", network=network)
        is_whole = plan.parts == 1 or (network is rings and len(plan.shares) == 1)
        yield from unless(not is_whole and (after == whole or len(plan.stretches) > 1), f"{plan} goes whole")
        yield from agrees(plan, 0, counted=False)
    led = plan_that_keeps_blocks(257)
    yield from unless(len(led.stretches) == 3, f"{led} goes in parts from end to end")
    yield from agrees(led, 0, counted=False)


def rings() -> Iterator[str]:
    """What neighbours hand on, of shared tiles too and in parts, and into memory at hand."""
    taken = passing = 0
    mesh = rs.Mesh.of(x=2, y=2)
    for plan in chain(
        ring_plans(mesh, (9, 8), "int16"),
        ring_plans(mesh, (12, 16), "int16"),
        *(
            plans_with_kept(mesh, shape, "int16", 15, ring)
            for shape in ((9, 8), (12, 16))
            for ring in (Digit(1, 4), None)
        ),
    ):
        taken += 1
        passing += bool(plan.steps[0].moves[0].exchange.passing(RANK))
        yield from agrees(plan, taken)
        if taken % 7 == 0:
            yield from agrees(plan, taken, shared=True)
        if taken % 3 == 0 and plan.shape == (12, 16):
            yield from agrees(replace(plan, parts=2), taken, counted=False)
            tiles = rs.numpy.scatter(numbers(plan.shape, "int16", taken), plan.source)
            expected = rs.numpy.run(plan, tiles)[RANK]
            out = np.zeros_like(expected)
            rs.mpi.run(plan, tiles[RANK], out=out)
            yield from unless(same_bits(out, expected), f"{plan!r} into memory: {out}")
    yield from unless(taken > 20 and passing > 1, f"{taken} moves, of which {passing} pass")


def two_rings() -> Iterator[str]:
    """Ranks of two rings change places: what came from one neighbour goes to several, and from several to one."""
    mesh = rs.Mesh.of(x=3, y=3)
    for shape in ((36, 36), (20, 17)):
        reshard = rs.plan(rs.Sharding.of(mesh, "x", "y"), rs.Sharding.of(mesh, "y", "x"), shape, "int16").reshard
        plan = rs.Plan(reshard, (rs.Step(reshard, ring=Digit(3, 3), across=Digit(1, 3)),))
        yield from agrees(plan, shape[0])
        if shape == (36, 36):
            yield from agrees(replace(plan, parts=2), 1, counted=False)
        yield from agrees(two_rings_in_blocks(shape), 2)


def windows_and_deals() -> Iterator[str]:
    """Tiles of several boxes, windows that overlap, wrap and are padded, and sums of windows."""
    rng = Random(3)
    mesh, count = rs.Mesh.of(x=2, y=2), 0
    while count < 12:
        shape = (rng.randint(4, 12), rng.randint(4, 9))
        try:
            source, target = dealt.drawn(rng, mesh, shape, False), dealt.drawn(rng, mesh, shape, True)
            plan = rs.plan(source, target, shape, "int64")
        except ReshardError:
            continue
        count += 1
        yield from agrees(plan, count)
        try:
            back = plan.transpose()
        except ReshardError:
            continue
        yield from agrees(back, count)


def shared_tiles() -> Iterator[str]:
    """Read by the ranks of a host; where hosts are several, by messages between them."""
    mesh = rs.Mesh.of(x=2, y=2)
    ends = [("x", "y"), ("y", "x"), (None, ("x", "y")), (("y", "x"), None), (None, None)]
    for number, (before, after) in enumerate((before, after) for before in ends for after in ends):
        plan = rs.plan(rs.Sharding.of(mesh, *before), rs.Sharding.of(mesh, *after), (9, 8), "int64")
        yield from agrees(plan, number, shared=True)
    partial = rs.Sharding.of(mesh, "x", None, unreduced="y")
    plan = rs.plan(partial, rs.Sharding.of(mesh, None, "x"), (8, 6), "float32")
    yield from agrees(plan, 7, shared=True)


def elements_of_few_bits() -> Iterator[str]:
    """Values of ml_dtypes, which MPI has no types for."""
    import ml_dtypes

    mesh = rs.Mesh.of(x=4)
    ends = rs.Sharding.of(mesh, "x", None), rs.Sharding.of(mesh, None, "x")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        plan = rs.plan(*ends, (12, 7), name)
        kind = np.dtype(getattr(ml_dtypes, name))
        whole = np.arange(84).reshape(12, 7).astype(f"u{kind.itemsize}")
        tiles = rs.numpy.scatter(whole.view(kind), plan.source)
        found = rs.mpi.run(plan, tiles[RANK])
        yield from unless(same_bits(found, rs.numpy.run(plan, tiles)[RANK]), f"{name}: {found}")


def memory() -> Iterator[str]:
    """The result goes where it is asked for, also over the tile that it is made of; no order of memory is refused."""
    mesh = rs.Mesh.of(x=4)
    ends = rs.Sharding.of(mesh, "x", None), rs.Sharding.of(mesh, None, "x")
    whole = np.arange(64.0).reshape(8, 8)
    tile, expected = rs.numpy.scatter(whole, ends[0])[RANK], rs.numpy.scatter(whole, ends[1])[RANK]
    out = np.empty((8, 2))
    yield from unless(rs.mpi.reshard(np.asfortranarray(tile), *ends, (8, 8), out=out) is out, "another array")
    yield from unless(same_bits(out, expected), out)
    flat = tile.reshape(-1).copy()
    rs.mpi.reshard(flat.reshape(2, 8), *ends, (8, 8), out=flat.reshape(8, 2))
    yield from unless(same_bits(flat.reshape(8, 2), expected), flat)
    shared: Any = rs.mpi.empty(ends[0], (8, 8), "f64")
    shared[...] = tile
    rs.mpi.reshard(shared, *ends, (8, 8), out=shared.reshape(8, 2))
    yield from unless(same_bits(shared.reshape(8, 2), expected), shared)


def rooms() -> Iterator[str]:
    """What was handed out stays as it is when memory between steps is used again, by the same plan or another."""
    mesh = rs.Mesh.of(x=2, y=2)
    rows, columns, whole = (rs.Sharding.of(mesh, *dims) for dims in ((("x", "y"), None), (None, "y"), (None, None)))
    summed = rs.Sharding.of(mesh, None, None, unreduced="x")
    handed: list[tuple[Any, Any]] = []
    for seed, (source, target, middles) in enumerate(
        [
            (rows, columns, [whole]),
            (columns, rows, [rows, whole]),
            (rows, rows, [columns, whole]),
            (summed, rows, [whole]),
        ]
        * 2
    ):
        reshard = rs.plan(source, target, (8, 12), "i64").reshard
        plan = rs.Plan(reshard, chain_through(reshard, *middles))
        value = numbers((8, 12), "i64", seed)
        parts = [value, np.zeros_like(value)] if source.unreduced else [value]
        tile = rs.numpy.scatter(value, source)[RANK] if len(parts) == 1 else parts[RANK // 2]
        handed.append((rs.mpi.run(plan, tile), rs.numpy.scatter(value, target)[RANK]))
    for found, expected in handed:
        yield from unless(same_bits(found, expected), (found, expected))


def strips() -> Iterator[str]:
    """Pieces that are strips are packed where that is worth it and memory may be kept, and come as they would else."""
    mesh = rs.Mesh.of(x=2, y=2)
    rows, columns, tiles = (
        rs.Sharding.of(mesh, *dims) for dims in ((("x", "y"), None), (None, ("y", "x")), ("x", "y"))
    )
    for size in (256, 32):
        for number, (source, target) in enumerate([(rows, columns), (columns, rows), (columns, tiles)]):
            plan = rs.plan(source, target, (size, size), "f32")
            for shared in (False, True):
                yield from agrees(plan, number, shared=shared)
            limited = replace(plan, options=replace(plan.options, memory_limit=plan.peak_bytes))
            yield from agrees(limited, number)
            for way, is_packed in ((plan, size == 256 and source is rows), (limited, False)):
                yield from unless(packs(way) == is_packed, f"{plan.reshard} of {size} packs: {not is_packed}")
    for shape, is_packed in (((64, 2048), False), ((64, 2044), True), ((4096, 2048), False), ((4100, 2048), True)):
        plan = rs.plan(rows, columns, shape, "f32")
        yield from unless(packs(plan) == is_packed, f"{plan.reshard} of {shape} packs: {not is_packed}")
    yield from agrees(rs.plan(rows, columns, (64, 2048), "f32"), 0)


def packs(plan: rs.Plan) -> bool:
    """Whether this rank, one of the plan's, packs what it sends."""
    participants: Any = participants_of(None, plan.devices)
    local = RankPlan(plan, participants)
    rooms = {move.hops[0].sends.room_bytes for move in local.moves}
    local.free()
    return rooms != {None}


def calibration() -> Iterator[str]:
    """The network is the same on all ranks, and plans take it; a mesh of other ranks is refused."""
    mesh = rs.Mesh.of(a=2, b=2)
    network, fit = rs.mpi.calibrate(mesh, sizes=[2**power for power in range(10, 24, 2)], repeats=5)
    yield from unless(len(set(COMM.allgather(str(network.as_dict())))) == 1, network)
    yield from unless(network.size == 4 and network.flops is not None and len(fit.levels) > 0, network)
    made = rs.plan(rs.Sharding.of(mesh, "a", None), rs.Sharding.of(mesh, None, "b"), (512, 512), "f32", network=network)
    yield from unless((made.seconds or 0.0) > 0.0, made)
    yield from refused(lambda: rs.mpi.calibrate(rs.Mesh.of(a=2)), "bad-argument", "must have all 4 ranks")


def other_communicators() -> Iterator[str]:
    """Ranks of a part of the world, in another order; those that have no part may call or not."""
    mesh = rs.Mesh.of(x=2)
    ends = rs.Sharding.of(mesh, "x"), rs.Sharding.of(mesh, None)
    half: Any = COMM.Split(RANK % 2, -RANK)
    tile = np.full(3, 10 * (RANK % 2) + half.rank)
    found = rs.mpi.reshard(tile, *ends, (6,), half)
    yield from unless(found.tolist() == [10 * (RANK % 2)] * 3 + [10 * (RANK % 2) + 1] * 3, found)
    half.Free()
    if RANK < 3:
        found = rs.mpi.reshard(tile if RANK < 2 else None, *ends, (6,), dtype=tile.dtype)
        yield from unless((found is None) == (RANK == 2), found)
    moved = rs.Sharding.of(rs.Mesh.of({"x": 2}, device_ids=(3, 2)), "x")
    found = rs.mpi.reshard(np.arange(3) + 3 * RANK if RANK < 2 else None, ends[0], moved, (6,), dtype="i64")
    expected = {3: [0, 1, 2], 2: [3, 4, 5]}.get(RANK)
    yield from unless((found is None and expected is None) or found.tolist() == expected, found)


def refused(call: Callable[[], object], code: str, text: str) -> Iterator[str]:
    try:
        call()
    except ReshardError as error:
        yield from unless(error.code == code and text in str(error), f"{error.code}: {error}")
    else:
        yield f"rank {RANK}: not refused, {text}"


def refusals() -> Iterator[str]:
    """An error on all ranks before anything moves, and the next call works."""
    comm: Any = COMM.Dup()  # on which there are no shared tiles
    mesh = rs.Mesh.of(x=4)
    rows, columns = rs.Sharding.of(mesh, "x", None), rs.Sharding.of(mesh, None, "x")
    tile = np.arange(16.0).reshape(2, 8) + 16 * RANK
    other = rows if RANK == 1 else columns
    yield from refused(lambda: rs.mpi.reshard(tile, rows, other, (8, 8), comm), "ranks-disagree", "rank 1 asks for")
    rs.mpi.reshard(tile, rows, columns, (8, 8), comm)
    code = "bad-tiles" if RANK == 2 else "ranks-disagree"
    short = tile[:, :5] if RANK == 2 else tile
    yield from refused(lambda: rs.mpi.reshard(short, rows, columns, (8, 8), comm, check="always"), code, "shape (2, 5)")
    options: Any = {"out": np.zeros((3, 3)) if RANK == 3 else np.zeros((8, 2)), "check": "always"}
    code = "bad-tiles" if RANK == 3 else "ranks-disagree"
    yield from refused(lambda: rs.mpi.reshard(tile, rows, columns, (8, 8), comm, **options), code, "shape (3, 3)")
    yield from unless(not options["out"].any(), "written")
    if RANK == 0:  # once they have agreed, nobody waits for a rank that refuses
        yield from refused(lambda: rs.mpi.reshard(tile[:1], rows, columns, (8, 8), comm), "bad-tiles", "shape (1, 8)")
    many = rs.Sharding.of(rs.Mesh.of(x=SIZE + 1), "x", None)
    yield from refused(
        lambda: rs.mpi.reshard(tile, many, many, (8, 8), comm), "bad-argument", f"none of the {SIZE} ranks"
    )
    yield from refused(
        lambda: rs.mpi.reshard(tile, rows, columns, (8, 8), comm, check="often"), "bad-argument", "check"
    )
    yield from refused(lambda: rs.mpi.reshard(tile, rows, columns, (8, 8), 3), "bad-argument", "communicator")  # type: ignore[arg-type]
    partial = rs.Sharding.of(mesh, None, None, unreduced="x")
    least = rs.plan(partial, rows, (8, 8), "f64", memory_limit=700)
    yield from refused(lambda: rs.mpi.run(least, np.ones((8, 8)), comm), "no-plan", "combines values as they come")
    for mode in ("first", "first", "never"):
        found = rs.mpi.reshard(tile, rows, columns, (8, 8), comm, check=mode)
        yield from unless(found is not None and found[:, 0].tolist() == [8.0 * n + 2 * RANK for n in range(8)], found)


def models() -> Iterator[str]:
    """Every rank holds what the NumPy engine gives, in place: fused, stacked, transposed, padded and cast views."""
    from model_layouts import SMALL

    pairs = [
        ("dense", "megatron:tp=2,pp=2+1", "vllm:tp=2,replicas=2", 4),
        ("qwen-moe", "megatron:tp=2,pp=2+1,ep=4", "vllm:tp=2,dp=2,ep=on", 3),
        ("mixtral", "hf", "hf:tp=4", 2),
        ("deepseek", "vllm:tp=2,dp=2,ep=on", "megatron:tp=2,pp=1,ep=2,etp=2,dp=4", 0),
    ]
    plans = []
    for family, source, target, first in pairs:
        model = SMALL[family]
        ends = rs.Rules.preset(source, model), rs.Rules.preset(target, model, first_device=first)
        plans.append(rs.plan_model(model.tensors(), *ends, in_flight=1 << 16))
    mesh = rs.Mesh.of(x=SIZE)
    stored = {"spec": '[{}, {"x"}]', "store": {"name": r"\1", "transpose": True}}
    turned = rs.Rules.of(mesh, {r"(.*)\.(a|b)": stored, "e": "packed_colwise"})
    tensors = {"m.a": ((9, 16), "f32"), "n.b": ((8, 5), "bf16"), "e": ((2, 20, 3), "i16")}
    plans.append(rs.plan_model(tensors, rs.Rules.of(mesh, {}, ("x",)), turned, cast={"m.a": "bf16", "n.b": "f32"}))
    for plan in plans:
        held = {device: plan.source_slots(device)[1] for device in plan.rules[0].mesh.devices}
        tiles = {
            device: {name: numbers(buffer.shape, buffer.dtype.name, 7) for name, buffer in buffers.items()}
            for device, buffers in held.items()
        }
        expected = rs.numpy.transfer(tiles, plan).get(RANK, {})
        out = {name: np.zeros_like(array) for name, array in expected.items()}
        for version in (1, 2):
            for array in out.values():
                array[...] = 0
            found = rs.mpi.transfer(
                tiles.get(RANK, {}), plan, out=out if RANK in plan.devices else None, version=version
            )
            for name, array in expected.items():
                yield from unless(found[name] is out[name] and same_bits(out[name], array), f"{name} of {plan!r}")
        fresh = rs.mpi.transfer(tiles.get(RANK, {}), plan, version=3)
        yield from unless(all(same_bits(fresh[name], array) for name, array in expected.items()), f"fresh, {plan!r}")


def casts_in_blocks() -> Iterator[str]:
    """To the bit as those of every block alone, twice, in place."""
    from model_layouts import scaled_case, scaled_plans

    for name, plan in scaled_plans(SIZE).items():
        held, wanted = scaled_case(plan)
        expected = wanted.get(RANK, {})
        out = {key: np.zeros_like(array) for key, array in expected.items()}
        for version in (1, 2):
            for array in out.values():
                array[...] = 0
            rs.mpi.transfer(held.get(RANK, {}), plan, out=out if RANK in plan.devices else None, version=version)
            for key, array in expected.items():
                yield from unless(same_bits(out[key], array), f"{key} of {name}")


def transfers_refused() -> Iterator[str]:
    """Another version, another plan, a buffer that does not fit: an error on all, nothing written; the next works."""
    mesh = rs.Mesh.of(x=4)
    ends = rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, (None, "x"))
    plan, other = (rs.plan_model({"w": ((8, 8), "f32")}, *ends, in_flight=cap) for cap in (1 << 20, 1 << 10))
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    state, out = {"w": whole[2 * RANK : 2 * RANK + 2]}, {"w": np.zeros((8, 2), np.float32)}
    many = "ranks-disagree"
    yield from refused(lambda: rs.mpi.transfer(state, plan, out=out, version=int(RANK == 1)), many, "version 1")
    yield from refused(lambda: rs.mpi.transfer(state, other if RANK == 2 else plan, out=out), many, "rank 2 asks")
    short = {"w": state["w"][:, :3]} if RANK == 3 else state
    code = "bad-tiles" if RANK == 3 else many
    yield from refused(lambda: rs.mpi.transfer(short, plan, out=out), code, "shape (2, 3)")
    yield from unless(not out["w"].any(), "written")
    both = rs.plan_model(dict.fromkeys("wv", ((8, 8), "f32")), *ends)
    held, memory = {"w": state["w"], "v": state["w"]}, np.zeros(32, np.float32)
    on_each_other = {"w": memory[:16].reshape(8, 2), "v": memory[8:24].reshape(8, 2)}
    apart = {"w": memory[:16].reshape(8, 2), "v": memory[16:].reshape(8, 2)}
    code = "bad-tiles" if RANK == 2 else many
    yield from refused(
        lambda: rs.mpi.transfer(held, both, out=on_each_other if RANK == 2 else apart), code, "lie on each other"
    )
    rs.mpi.transfer(state, plan, out=out, version=9)
    yield from unless(np.array_equal(out["w"], whole[:, 2 * RANK : 2 * RANK + 2]), out)
    memory = state["w"].copy()
    rs.mpi.transfer({"w": memory}, plan, out={"w": memory.reshape(8, 2)})
    yield from unless(np.array_equal(memory.reshape(8, 2), whole[:, 2 * RANK : 2 * RANK + 2]), memory)


def one_rank_fails() -> Iterator[str]:
    """Run by `python -m mpi4py` this ends all."""
    if RANK == 1:
        raise RuntimeError("a rank fails")
    mesh = rs.Mesh.of(x=SIZE)
    rs.mpi.reshard(np.zeros(1), rs.Sharding.of(mesh, "x"), rs.Sharding.of(mesh, None), (SIZE,))
    yield "did not end"


def many_elements() -> Iterator[str]:
    """More than 2^31 in a message."""
    count = 2**31 + 24
    mesh = rs.Mesh.of({"x": 2}, device_ids=(0, 1))
    ends = (
        rs.Sharding.of(rs.Mesh.of({"x": 1}, device_ids=(0,)), None),
        rs.Sharding.of(rs.Mesh.of({"x": 1}, device_ids=(1,)), None),
    )
    del mesh
    tile = np.zeros(count, np.uint8) if RANK == 0 else None
    if tile is not None:
        tile[[0, 2**31 - 1, 2**31, -1]] = 1, 2, 3, 4
    found = rs.mpi.reshard(tile, *ends, (count,), dtype="u8")
    if found is not None:
        yield from unless(found[[0, 2**31 - 1, 2**31, -1]].tolist() == [1, 2, 3, 4], "wrong")
        yield from unless(np.count_nonzero(found) == 4, "more than was sent")


def main(out: str, names: list[str]) -> None:
    wrong = {name: list(globals()[name]()) for name in names}
    everything = COMM.gather(wrong)
    if RANK == 0:
        joined = {name: [text for each in everything or () for text in each[name]] for name in names}
        Path(out).write_text(json.dumps(joined))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
