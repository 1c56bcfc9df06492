"""Random redistributes, what every rank must hold by index arithmetic, and what each rank checks."""

from __future__ import annotations

import itertools
import random
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch_ranks import counted_traffic

import reshard as rs

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]

Spans = list[tuple[int, int]]


class Problem(NamedTuple):
    sizes: tuple[int, ...]
    """Of the mesh."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    source: tuple[Placement, ...]
    target: tuple[Placement, ...]

    def __str__(self) -> str:
        return f"{self.sizes} {self.shape} {self.dtype} {list(self.source)} -> {list(self.target)}"


def coordinate(rank: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(rank // prod(sizes[d + 1 :]) % sizes[d] for d in range(len(sizes)))


def spans(shape: tuple[int, ...], sizes: tuple[int, ...], placements: Any, where: tuple[int, ...]) -> Spans:
    """Where the tile at a coordinate lies: chunks of chunks, mesh dims from left to right."""
    found = [(0, size) for size in shape]
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Shard):
            low, high = found[placement.dim]
            length = -(-(high - low) // sizes[mesh_dim])
            start = min(low + where[mesh_dim] * length, high)
            found[placement.dim] = (start, min(start + length, high))
    return found


def cut(whole: torch.Tensor, found: Spans) -> torch.Tensor:
    return whole[tuple(slice(low, high) for low, high in found)].clone(memory_format=torch.contiguous_format)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers, so that sums are exact in every dtype; the place of each can be told."""
    count = prod(shape)
    numbers = (torch.arange(count, dtype=torch.int64) * 7 + seed * 13 + 3) % (2 if dtype == torch.bool else 15)
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers + seed).double()).to(dtype).reshape(shape)
    if dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
        numbers = torch.arange(count, dtype=torch.int64) + 1000 * seed
    return numbers.to(dtype).reshape(shape)


def classes(sizes: tuple[int, ...], placements: Any) -> list[tuple[int, ...]]:
    """The coordinates along the partial mesh dims, 0 along the others."""
    return list(itertools.product(*(range(n if p.is_partial() else 1) for n, p in zip(sizes, placements, strict=True))))


def class_values(problem: Problem, where: tuple[int, ...]) -> torch.Tensor:
    along = tuple(c if p.is_partial() else 0 for c, p in zip(where, problem.source, strict=True))
    seed = sum(c * prod(problem.sizes[d + 1 :]) for d, c in enumerate(along))
    return values(problem.shape, problem.dtype, seed)


def whole_value(problem: Problem) -> torch.Tensor:
    """The value of the source: its partial values combined."""
    reductions = {p.reduce_op for p in problem.source if p.is_partial()}
    parts = [class_values(problem, where) for where in classes(problem.sizes, problem.source)]
    if not reductions:
        return parts[0]
    (reduction,) = reductions
    wide = torch.stack(parts) if not problem.dtype.is_floating_point else torch.stack(parts).double()
    if reduction in ("sum", "avg"):
        total = wide.sum(0) if reduction == "sum" else wide.mean(0)
    elif reduction == "product":
        total = wide.prod(0)
    else:
        total = wide.amax(0) if reduction == "max" else wide.amin(0)
    return total.to(problem.dtype)


def held_elements(one: Spans, other: Spans) -> int:
    return prod(max(min(b, d) - max(a, c), 0) for (a, b), (c, d) in zip(one, other, strict=True))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal bit for bit."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.numel() == 0:
        return True
    one, other = one.contiguous(), other.contiguous()
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def random_problem(rng: random.Random, sizes: tuple[int, ...], *, partial: str = "") -> Problem:
    """Even and uneven dims, some of size 0 or 1; partial: "" none, "source" some."""
    ndim = rng.randint(1, 4)
    even = rng.random() < 0.4
    world = prod(sizes)
    shape = tuple(world * rng.randint(1, 2) if even else rng.choice([0, 1, 2, 3, 5, 6, 7, 9, 10]) for _ in range(ndim))
    if prod(shape) > 20000:
        shape = shape[:2]
        ndim = 2
    dtype = rng.choice([torch.float32, torch.float64, torch.int32, torch.int64] if partial else DTYPES)

    def placement() -> Placement:
        if rng.random() < 0.3:
            return Replicate()
        return Shard(rng.randrange(ndim))

    source = [placement() for _ in sizes]
    target = [placement() for _ in sizes]
    if partial == "source":
        reduction = rng.choice(["sum", "max", "min"] + (["avg"] if dtype.is_floating_point else []))
        for mesh_dim in rng.sample(range(len(sizes)), rng.randint(1, len(sizes))):
            source[mesh_dim] = Partial(reduction)
    return Problem(sizes, shape, dtype, tuple(source), tuple(target))


def source_tensor(problem: Problem, mesh: DeviceMesh) -> DTensor:
    where = coordinate(dist.get_rank(), problem.sizes)
    tile = cut(class_values(problem, where), spans(problem.shape, problem.sizes, problem.source, where))
    stride = torch.empty(problem.shape, device="meta").stride()
    return DTensor.from_local(
        tile, mesh, problem.source, run_check=False, shape=torch.Size(problem.shape), stride=stride
    )


def check_problems(rank: int, problems: list[Problem], with_torch: bool = True) -> list[str]:
    """What is wrong, on this rank."""
    wrong = []
    meshes: dict[tuple[int, ...], DeviceMesh] = {}
    for problem in problems:
        if problem.sizes not in meshes:
            meshes[problem.sizes] = init_device_mesh("cpu", problem.sizes)
    for problem in problems:
        complaint = check_problem(rank, problem, meshes[problem.sizes], with_torch)
        if complaint:
            wrong.append(f"rank {rank}: {problem}: {complaint}")
    return wrong


def check_problem(rank: int, problem: Problem, mesh: DeviceMesh, with_torch: bool) -> str:
    sizes, shape = problem.sizes, problem.shape
    where = coordinate(rank, sizes)
    x = source_tensor(problem, mesh)
    with counted_traffic() as traffic:
        y = rs.torch.redistribute(x, problem.target, check="never")
    wanted_spans = spans(shape, sizes, problem.target, where)
    wanted = cut(whole_value(problem), wanted_spans)
    tile = y.to_local()
    if not same(tile, wanted):
        return f"tile {tile} is not {wanted}"
    if not tile.is_contiguous():
        return f"tile has strides {tile.stride()}"
    if tuple(y.placements) != problem.target or y.shape != x.shape or y.stride() != x.stride() or y.dtype != x.dtype:
        return f"spec {y._spec} of {x._spec}"
    if not any(p.is_partial() for p in problem.source):
        held = held_elements(spans(shape, sizes, problem.source, where), wanted_spans)
        missing = (prod(b - a for a, b in wanted_spans) - held) * problem.dtype.itemsize
        if traffic.received != missing:
            return f"{traffic.received} bytes received, {missing} missing"
    if with_torch:
        try:
            theirs = x.redistribute(placements=problem.target)
        except (RuntimeError, NotImplementedError, ValueError):  # types that gloo refuses
            return ""
        if not same(theirs.to_local(), tile) or theirs.placements != y.placements or theirs.stride() != y.stride():
            return f"torch has {theirs.to_local()}, {theirs._spec}; here {tile}, {y._spec}"
    return ""
