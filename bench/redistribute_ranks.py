"""What every rank of the redistribute benchmark runs.

All variants of a case are checked bit for bit, then timed in turn, with a barrier before each call; a call takes
as long as its slowest rank.
After three rounds those that took over 1.6 times the fastest drop out, and the others go on for the time that a
case is given.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, _redistribute, placement_types

import reshard as rs

FIRST_ROUNDS = 3
MOST_ROUNDS = 75
NEAR = 1.6
"""Variants that take more than this many times the fastest drop out."""

Box = tuple[tuple[int, int], ...]
Call = Callable[[], Any]
"""Gives a DTensor, or a rank's tile."""


class Variant(NamedTuple):
    """A way to do the case."""

    call: Call
    planner: str = ""
    """Torch's planner, where it is torch's way."""
    real_all_to_all: bool = False
    """Whether torch's way of doing an all-to-all on CPU by an all-gather is replaced."""


# Torch's planners, each with a cache of its own: torch's one cache takes no notice of the planner.


def _cached_planner(min_cost: bool) -> Callable[..., Any]:
    @functools.cache
    def infos(source: Any, target: Any, graph: bool | None = None) -> Any:
        with _redistribute.use_min_cost_redistribution_plan(min_cost):
            return _redistribute._gen_transform_infos_non_cached(source, target, graph)

    return infos


PLANNERS = {"greedy": _cached_planner(False), "min-cost": _cached_planner(True)}
BY_ALL_GATHER = placement_types.shard_dim_alltoall


def by_all_to_all(
    tensor: torch.Tensor, gather_dim: int, shard_dim: int, mesh: DeviceMesh, mesh_dim: int
) -> torch.Tensor:
    """What torch's `shard_dim_alltoall` does, by an all-to-all on CPU as well."""
    count = mesh.size(mesh_dim)
    parts = tensor.chunk(count, shard_dim)
    given = tensor if shard_dim == 0 and tensor.is_contiguous() else torch.stack(parts)
    taken = torch.empty((count, *parts[0].shape), dtype=tensor.dtype)
    dist.all_to_all_single(taken.view(-1), given.view(-1), group=mesh.get_group(mesh_dim))
    return taken.flatten(0, 1) if gather_dim == 0 else torch.cat(taken.unbind(0), gather_dim)


@contextmanager
def torch_set_to(variant: Variant) -> Iterator[None]:
    """Torch with the planner and the all-to-all of a variant."""
    kept = _redistribute._gen_transform_infos
    if variant.planner:
        _redistribute._gen_transform_infos = PLANNERS[variant.planner]
    placement_types.shard_dim_alltoall = by_all_to_all if variant.real_all_to_all else BY_ALL_GATHER
    try:
        yield
    finally:
        _redistribute._gen_transform_infos = kept
        placement_types.shard_dim_alltoall = BY_ALL_GATHER


# The bare exchange: boxes by index arithmetic, and a piece for every box that is missing.


class Piece(NamedTuple):
    """A box that goes from one rank to another."""

    sender: int
    receiver: int
    box: Box


def volume(box: Box) -> int:
    """The number of elements of a box."""
    size = 1
    for start, stop in box:
        size *= stop - start
    return size


def tile_box(placements: tuple[Any, ...], mesh: tuple[int, ...], rank: int, side: int) -> Box:
    """Where a rank's tile of a square matrix lies; everything divides."""
    box = [(0, side), (0, side)]
    stride = 1
    for size in mesh:
        stride *= size
    for placement, size in zip(placements, mesh, strict=True):
        stride //= size
        if placement.is_shard():
            start, stop = box[placement.dim]
            part = (stop - start) // size
            along = rank // stride % size
            box[placement.dim] = (start + along * part, start + (along + 1) * part)
    return tuple(box)


def meet(one: Box, other: Box) -> Box:
    """What two boxes share."""
    return tuple((max(a, c), max(min(b, d), a, c)) for (a, b), (c, d) in zip(one, other, strict=True))


def missing(held: list[Box], wanted: list[Box]) -> list[Piece]:
    """A piece per receiver and source tile; a rank's own tile serves it, else the holder that sends least so far."""
    holders: dict[Box, list[int]] = {}
    for rank, box in enumerate(held):
        holders.setdefault(box, []).append(rank)
    sent = [0] * len(held)
    pieces = []
    for receiver, box in enumerate(wanted):
        for tile, ranks in holders.items():
            part = meet(tile, box)
            if volume(part):
                nearest = sorted(ranks, key=lambda rank: (rank - receiver) % len(held))
                sender = receiver if receiver in ranks else min(nearest, key=lambda rank: sent[rank])
                sent[sender] += volume(part) if sender != receiver else 0
                pieces.append(Piece(sender, receiver, part))
    return pieces


def view(tensor: torch.Tensor, box: Box, origin: Box) -> torch.Tensor:
    """The part of a tile that a box is."""
    return tensor[tuple(slice(start - low, stop - low) for (start, stop), (low, _) in zip(box, origin, strict=True))]


class Bare:
    """The exchange of the missing boxes as one would write it by hand, with everything planned ahead."""

    def __init__(self, local: torch.Tensor, rank: int, held: list[Box], wanted: list[Box]) -> None:
        pieces = missing(held, wanted)
        outgoing = [piece for piece in pieces if piece.sender == rank != piece.receiver]
        incoming = [piece for piece in pieces if piece.receiver == rank != piece.sender]
        self.local, self.rank, self.count = local, rank, len(held)
        self.held, self.wanted = held[rank], wanted[rank]
        self.shape = [stop - start for start, stop in self.wanted]
        self.own = [piece.box for piece in pieces if piece.sender == piece.receiver == rank]
        self.outgoing = sorted(outgoing, key=lambda piece: piece.receiver)
        self.incoming = sorted(incoming, key=lambda piece: piece.sender)
        self.given = [sum(volume(piece.box) for piece in outgoing if piece.receiver == r) for r in range(len(held))]
        self.taken = [sum(volume(piece.box) for piece in incoming if piece.sender == r) for r in range(len(held))]

    def source(self, box: Box) -> torch.Tensor:
        """A box of the tile that is here."""
        return view(self.local, box, self.held)

    def place(self, result: torch.Tensor, box: Box) -> torch.Tensor:
        """Where a box lies in the tile that is made."""
        return view(result, box, self.wanted)

    def keep_own(self, result: torch.Tensor) -> None:
        """Copy what is here already."""
        for box in self.own:
            self.place(result, box).copy_(self.source(box))

    def by_all_to_all(self) -> torch.Tensor:
        """Pack, one all-to-all, unpack."""
        result, given, taken = torch.empty(self.shape), torch.empty(sum(self.given)), torch.empty(sum(self.taken))
        parts = given.split([volume(piece.box) for piece in self.outgoing])
        for part, piece in zip(parts, self.outgoing, strict=True):
            source = self.source(piece.box)
            part.view(source.shape).copy_(source)
        self.keep_own(result)
        dist.all_to_all_single(taken, given, self.taken, self.given)
        parts = taken.split([volume(piece.box) for piece in self.incoming])
        for part, piece in zip(parts, self.incoming, strict=True):
            place = self.place(result, piece.box)
            place.copy_(part.view(place.shape))
        return result

    def by_sends(self) -> torch.Tensor:
        """A send and a receive per piece; what is contiguous is neither packed nor unpacked."""
        result, works, later = torch.empty(self.shape), [], []
        for piece in sorted(self.incoming, key=lambda piece: (self.rank - piece.sender) % self.count):
            place = self.place(result, piece.box)
            part = place if place.is_contiguous() else torch.empty(place.shape)
            works.append(dist.irecv(part, piece.sender))
            if part is not place:
                later.append((place, part))
        for piece in sorted(self.outgoing, key=lambda piece: (piece.receiver - self.rank) % self.count):
            part = self.source(piece.box).contiguous()
            works.append(dist.isend(part, piece.receiver))
        self.keep_own(result)
        for work in works:
            work.wait()
        for place, part in later:
            place.copy_(part)
        return result


# Measuring.


def placements_in(text: str) -> tuple[Any, ...]:
    """`S0 R` as placements."""
    return tuple(Replicate() if word == "R" else Shard(int(word[1:])) for word in text.split())


def variants_of(case: str, mesh: DeviceMesh, side: int) -> tuple[dict[str, Variant], torch.Tensor]:
    """All ways to do a case, and the tile that is right on this rank."""
    source, target = map(placements_in, case.split("->"))
    sizes, rank = tuple(mesh.shape), dist.get_rank()
    held = [tile_box(source, sizes, other, side) for other in range(mesh.size())]
    wanted = [tile_box(target, sizes, other, side) for other in range(mesh.size())]

    def tile(box: Box) -> torch.Tensor:
        rows, columns = (torch.arange(*bounds, dtype=torch.float32) for bounds in box)
        return rows[:, None] * side + columns

    x = DTensor.from_local(tile(held[rank]), mesh, source, run_check=False)
    by_hand = Bare(x.to_local(), rank, held, wanted)

    def theirs() -> DTensor:
        return x.redistribute(placements=target)

    return {
        "reshard": Variant(lambda: rs.torch.redistribute(x, target)),
        "bare all-to-all": Variant(by_hand.by_all_to_all),
        "bare sends": Variant(by_hand.by_sends),
        "greedy": Variant(theirs, "greedy"),
        "min-cost": Variant(theirs, "min-cost"),
        "greedy with a real all-to-all": Variant(theirs, "greedy", real_all_to_all=True),
        "min-cost with a real all-to-all": Variant(theirs, "min-cost", real_all_to_all=True),
    }, tile(wanted[rank])


def timed(variant: Variant) -> float:
    """How long one call takes here; all ranks start together."""
    with torch_set_to(variant):
        dist.barrier()
        start = time.perf_counter()
        variant.call()
        return time.perf_counter() - start


def slowest(times: list[list[float]]) -> list[list[float]]:
    """Per variant and call, the time of the slowest rank."""
    table = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(table, dist.ReduceOp.MAX)
    found: list[list[float]] = table.tolist()
    return found


def turns(variants: list[Variant], rounds: int) -> list[list[float]]:
    """So many calls of each variant in turn, in every round in another order: who goes before leaves its mark."""
    times: list[list[float]] = [[] for _ in variants]
    rng = random.Random(0)  # the same on every rank
    for _ in range(rounds):
        for chosen in rng.sample(range(len(variants)), len(variants)):
            times[chosen].append(timed(variants[chosen]))
    return slowest(times)


def times_of(variants: dict[str, Variant], budget_s: float) -> dict[str, list[float]]:
    """The times of each variant, of the slowest rank; those that drop out have only the first."""
    times = dict(zip(variants, turns(list(variants.values()), FIRST_ROUNDS), strict=True))
    fastest = min(map(statistics.median, times.values()))
    near = [name for name in variants if statistics.median(times[name]) <= NEAR * fastest or name == "reshard"]
    rounds = int(budget_s / sum(statistics.median(times[name]) for name in near))
    more = turns([variants[name] for name in near], min(max(rounds, FIRST_ROUNDS), MOST_ROUNDS))
    for name, column in zip(near, more, strict=True):
        times[name] += column
    return times


def run_rank(measure: Callable[[dict[str, Any]], Any]) -> None:
    """Be one of the ranks that `bench.ranks` started: measure what is told; the first writes what was found."""
    told, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.ERROR)  # it warns of its own ways on CPU, which are measured here
    dist.init_process_group("gloo", init_method=f"file://{told['store']}", rank=rank, world_size=told["ranks"])
    found = measure(told)
    if rank == 0:
        Path(told["out"]).write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def measured(told: dict[str, Any]) -> dict[int, dict[str, dict[str, list[float]]]]:
    """Per side and case the times of each variant."""
    mesh = init_device_mesh("cpu", tuple(told["mesh"]))
    found: dict[int, dict[str, dict[str, list[float]]]] = {side: {} for side in told["sides"]}
    for side, case in itertools.product(told["sides"], told["cases"]):
        variants, right = variants_of(case, mesh, side)
        for name, variant in variants.items():
            with torch_set_to(variant):
                made = variant.call()
                tile = made.to_local() if isinstance(made, DTensor) else made
                assert type(tile) is torch.Tensor, f"{name} is not there yet in {case}"
                assert torch.equal(tile, right), f"{name} is wrong in {case}"
        found[side][case] = times_of(variants, told["budget_s"])
    return found


if __name__ == "__main__":
    run_rank(measured)
