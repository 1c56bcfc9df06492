"""What each rank does to check `reshard.torch.einsum`: values on every rank, bytes beside those of DTensor's own."""

from __future__ import annotations

import itertools
import random
import time
import traceback
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from test_einsum_values import whole as whole_by_numpy
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._python_dispatch import TorchDispatchMode
from torch_features import failing_at_the_last_message
from torch_problems import coordinate, cut, same, spans
from torch_ranks import counted_traffic, unless

import reshard as rs
from reshard.operations.pattern import Pattern
from reshard.torch.einsum import einsum

R, P = Replicate(), Partial()
S0, S1 = Shard(0), Shard(1)
Placements = tuple[Placement, ...]


class Product(NamedTuple):
    """A product of two matrices on a mesh."""

    sizes: tuple[int, ...]
    """Of the mesh."""
    shapes: tuple[tuple[int, int], tuple[int, int]]
    sources: tuple[Placements, Placements]
    target: Placements | None

    def __str__(self) -> str:
        return f"{self.sizes} {self.shapes} {self.sources} -> {self.target}"


class Counted(NamedTuple):
    """Bytes that one rank received."""

    ours: int
    planned: int
    """For the busiest rank."""
    theirs: int | None
    """By DTensor's own product, brought to the same placements; None where it cannot."""
    placements: Placements
    """Of our result."""


class Received(TorchDispatchMode):
    """Counts what this rank receives in torch's collectives: by a ring, whose largest part counts."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it comes back with its local tensors
        name = func.overloadpacket.__name__
        if func.namespace in ("_c10d_functional", "c10d", "_dtensor") and "wait" not in name and "wrap" not in name:
            group = dist.distributed_c10d._resolve_process_group(args[-1]) if isinstance(args[-1], str) else args[-1]
            x, count = args[0], group.size()
            part = -(-x.numel() // count) * x.itemsize
            times = {"all_gather_into_tensor": (count - 1) * x.nbytes, "reduce_scatter_tensor": (count - 1) * part}
            self.bytes += times[name] if name in times else {"all_reduce": 2 * (count - 1) * part}[name]
        return func(*args, **(kwargs or {}))


def put(classes: list[torch.Tensor], mesh: DeviceMesh, placements: Placements) -> DTensor:
    """A tensor of which the ranks along partial mesh dims hold different classes, whose sum or the like it is."""
    where, sizes = coordinate(dist.get_rank(), tuple(mesh.shape)), tuple(mesh.shape)
    number = 0
    for along, size, placement in zip(where, sizes, placements, strict=True):
        number = number * size + along if placement.is_partial() else number
    whole = classes[number]
    tile = cut(whole, spans(tuple(whole.shape), sizes, placements, where))
    return DTensor.from_local(tile, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def drawn_classes(shape: tuple[int, ...], sizes: Any, placements: Placements, seed: int) -> list[torch.Tensor]:
    """Small whole numbers, for as many classes as there are."""
    count = 1
    for size, placement in zip(sizes, placements, strict=True):
        count *= size if placement.is_partial() else 1
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-9, 10, shape, generator=generator).float() for _ in range(count)]


def is_right(y: DTensor, whole: torch.Tensor) -> bool:
    """Whether the rank's tile is the one it must be; partial ones, whether their sum is the whole."""
    if y.shape != whole.shape or y.dtype != whole.dtype or not y.to_local().is_contiguous():
        return False
    if any(placement.is_partial() for placement in y.placements):
        return torch.equal(y.full_tensor(), whole)
    sizes = tuple(y.device_mesh.shape)
    where = coordinate(dist.get_rank(), sizes)
    boxes = spans(tuple(whole.shape), sizes, y.placements, where)
    if any(isinstance(placement, _StridedShard) for placement in y.placements):
        boxes = list(rs.torch.sharding_of(y).box(dist.get_rank(), whole.shape))
    return torch.equal(y.to_local(), cut(whole, boxes))


def products(rank: int, problems: list[Product]) -> list[tuple[str, Counted | None]]:
    """What is wrong with each product on this rank, and what was received."""
    meshes = {sizes: init_device_mesh("cpu", sizes) for sizes in dict.fromkeys(one.sizes for one in problems)}
    found: list[tuple[str, Counted | None]] = []
    for problem in problems:
        try:
            found.append(multiplied(problem, meshes[problem.sizes]))
        except Exception:
            found.append((f"{problem}: {traceback.format_exc()}", None))
    return found


def multiplied(problem: Product, mesh: DeviceMesh) -> tuple[str, Counted]:
    """One product: with and without overlap, and by DTensor."""
    wrong = []
    pairs = list(zip(problem.shapes, problem.sources, strict=True))
    classes = [drawn_classes(shape, problem.sizes, end, seed) for seed, (shape, end) in enumerate(pairs)]
    x, y = (put(values, mesh, end) for values, end in zip(classes, problem.sources, strict=True))
    right = torch.stack(classes[0]).sum(0) @ torch.stack(classes[1]).sum(0)
    counts = []
    for overlap in (False, True):
        with counted_traffic() as traffic:
            z = einsum("ij,jk->ik", x, y, target=problem.target, overlap=overlap, check="never")
        counts.append(traffic.received)
        if not is_right(z, right):
            wrong.append(f"{z.to_local()}, {z.placements}")
    plan = planned("ij,jk->ik", x, y, target=z)
    if problem.target is not None:
        if {plan.received_bytes_on(dist.get_rank())} != set(counts):
            wrong.append(f"received {counts}, planned {plan.received_bytes_on(dist.get_rank())}")
        if z.placements != problem.target:
            wrong.append(f"ends in {z.placements}")
    text = f"{problem}: {'; '.join(wrong)}" if wrong else ""
    return text, Counted(counts[0], plan.received_bytes, by_dtensor(x, y, z.placements), z.placements)


def by_dtensor(x: DTensor, y: DTensor, target: Placements) -> int | None:
    """The bytes that DTensor's own product receives, brought to a target; None where it cannot make that partial."""
    with Received() as received:
        z = torch.matmul(x, y)
        if z.placements != target:
            if any(placement.is_partial() for placement in target):
                return None
            z.redistribute(placements=target)
    return received.bytes


def planned(text: str, *operands: DTensor, target: DTensor) -> rs.EinsumPlan:
    """The plan of the core for the same ends."""
    return rs.einsum(
        text,
        *map(rs.torch.sharding_of, operands),
        shapes=[tuple(x.shape) for x in operands],
        dtype="float32",
        target=rs.torch.sharding_of(target),
    )


EXPRESSIONS = [
    "bij,bjk->bik", "ij,ij->ij", "ij->ji", "ij->", "ij->i", "ii->i", "ii->", "ij,j->i", "i,j->ij", ",ij->ij",
    "iij,jk->ik", "ij,ij,ij->j", "ij,jk,kl->il", "bthd,bshd->bhts", "(a b) c -> a (b c)",
    "a b -> (a b)", "(a b) -> a b", "(a b), (b a) -> b a", "a b c -> (b a) c", "i 1 -> i", "i -> i n", "->",
]  # fmt: skip


def drawn_end(ndim: int, mesh_ndim: int, rng: random.Random) -> Placements:
    choices: list[Placement] = [R, P, *map(Shard, range(ndim)), *map(Shard, range(ndim))]
    return tuple(rng.choice(choices) for _ in range(mesh_ndim))


def any_expression(rank: int) -> list[str]:
    """From anywhere to anywhere, held to NumPy's einsum of the whole arrays."""
    wrong = []
    meshes = [init_device_mesh("cpu", sizes) for sizes in ((4,), (2, 2))]
    for text, mesh in zip(EXPRESSIONS, itertools.cycle(meshes), strict=False):
        rng = random.Random(text)
        pattern = Pattern.of(text)
        sizes = {label: rng.choice([1, 2, 3, 4, 6, 8]) for label in pattern.labels}
        shapes = [pattern.shape_of(term, sizes) for term in pattern.operands]
        ends = [drawn_end(len(shape), mesh.ndim, rng) for shape in shapes]
        classes = [drawn_classes(shape, mesh.shape, end, 0) for shape, end in zip(shapes, ends, strict=True)]
        operands = [put(values, mesh, end) for values, end in zip(classes, ends, strict=True)]
        arrays = [torch.stack(values).sum(0).double().numpy() for values in classes]
        right = torch.from_numpy(np.array(whole_by_numpy(pattern, sizes, arrays))).float()
        end = drawn_end(len(pattern.output), mesh.ndim, rng)
        for target, overlap in ((None, False), (end, False), (end, True)):
            z = einsum(text, *operands, target=target, sizes=sizes, overlap=overlap, check="never")
            wrong.append(unless(is_right(z, right), f"{text} {shapes} {ends} -> {target}: {z}"))
    return wrong


def gradients_are_those_of_torch(rank: int) -> list[str]:
    """Of real and complex numbers, once and twice, where the operands are; with the bytes of their own plans."""
    wrong = []
    mesh = init_device_mesh("cpu", (2, 2))
    cases: list[tuple[str, list[tuple[int, ...]], list[Any], Any]] = [
        ("ij,jk->ik", [(6, 8), (8, 5)], [(S0, S1), (S0, R)], (S0, S1)),
        ("ij,jk->ik", [(6, 8), (8, 4)], [(S1, S1), (R, S0)], (P, R)),
        ("ij,jk->ik", [(6, 8), (8, 4)], [(P, S0), (S1, R)], None),
        ("bij,bjk->bki", [(4, 3, 5), (4, 5, 2)], [(S0, S1), (S0, R)], (S0, R)),
        ("ij->i", [(4, 6)], [(S1, S0)], (S0, R)),
        ("i->ij", [(4,)], [(R, S0)], (S0, S1)),
        ("iij,jk->ik", [(4, 4, 2), (2, 3)], [(S0, S1), (S1, R)], (S0, R)),
        ("(a b) c -> a (b c)", [(8, 6)], [(S0, S1)], (S1, S0)),
        ("ij,jk,kl->il", [(4, 6), (6, 2), (2, 5)], [(S0, R), (S0, R), (R, S0)], (S0, S1)),
        (",ij->ji", [(), (4, 6)], [(R, R), (S0, S1)], (S1, S0)),
    ]
    by_hand = {"i->ij": lambda x: x[:, None].expand(4, 6), "(a b) c -> a (b c)": lambda x: x.reshape(4, 12)}
    of_dtype = [*((torch.float64, case) for case in cases), *((torch.complex128, case) for case in cases[::3])]
    for dtype, (text, shapes, ends, target) in of_dtype:
        generator = torch.Generator().manual_seed(1)
        wholes = [torch.randint(-4, 5, (*s, 2), generator=generator).double() for s in shapes]
        wholes = [torch.view_as_complex(w) if dtype.is_complex else w[..., 0].contiguous() for w in wholes]
        mine = []
        for whole, end in zip(wholes, ends, strict=True):
            if P in end:
                count = 2 ** sum(placement == P for placement in end)
                mine.append(put([whole, *[torch.zeros_like(whole)] * (count - 1)], mesh, end))
            else:
                mine.append(put([whole], mesh, end))
        mine = [x.requires_grad_() for x in mine]
        theirs = [w.clone().requires_grad_() for w in wholes]
        right = by_hand[text](*theirs) if text in by_hand else torch.einsum(text, *theirs)
        sizes = {"i->ij": {"j": 6}, "(a b) c -> a (b c)": {"a": 4}}.get(text)
        z = einsum(text, *mine, target=target, sizes=sizes, check="never")
        whole_flow = torch.randint(-4, 5, (*right.shape, 2), generator=generator).double()
        whole_flow = torch.view_as_complex(whole_flow) if dtype.is_complex else whole_flow[..., 0].contiguous()
        flow = put([whole_flow], mesh, tuple(R if p == P else p for p in z.placements))
        with counted_traffic() as traffic:
            got = torch.autograd.grad(z, mine, flow, create_graph=True)
        wanted = torch.autograd.grad(right, theirs, whole_flow, create_graph=True)
        for x, one, other in zip(mine, got, wanted, strict=True):
            ends_right = one.placements == tuple(R if p == P else p for p in x.placements)
            wrong.append(unless(ends_right, f"{text}: gradient ends in {one.placements} of {x.placements}"))
            wrong.append(unless(torch.equal(one.full_tensor(), other), f"{text} {ends} {dtype}: {one} for {other}"))
        if text == "ij,jk->ik" and not dtype.is_complex:
            plans = [
                planned("ik,jk->ij", flow, mine[1], target=got[0]),
                planned("ik,ij->jk", flow, mine[0], target=got[1]),
            ]
            bytes_planned = 2 * sum(plan.received_bytes_on(rank) for plan in plans)  # twice the size of float32
            wrong.append(unless(traffic.received == bytes_planned, f"{text}: {traffic.received}, {bytes_planned}"))
        if len(mine) > 1:
            again = [g for g in got if g.requires_grad]
            flows = [torch.ones_like(g) for g in again]
            twice = torch.autograd.grad(again, mine, flows, allow_unused=True)
            right_twice = torch.autograd.grad(wanted, theirs, [torch.ones_like(g) for g in wanted], allow_unused=True)
            for one, other in zip(twice, right_twice, strict=True):
                alike = (one is None) == (other is None) and (one is None or torch.equal(one.full_tensor(), other))
                wrong.append(unless(alike, f"{text} twice: {one} for {other}"))
    return wrong


def overlap_cuts_the_product(rank: int) -> list[str]:
    """As many parts as pieces travel, the same messages, and the same values in floats within their rounding."""
    wrong = []
    mesh = init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    a, b = torch.randn(16, 64), torch.randn(64, 24)
    cases: list[tuple[Any, Any, Any]] = [
        ((S0,), (S0,), (S0,)),
        ((S1,), (S0,), (S0,)),
        ((S1,), (S0,), (R,)),
        ((S1,), (R,), (R,)),
    ]
    for first, second, target in cases:
        x, y = distribute_tensor(a, mesh, first), distribute_tensor(b, mesh, second)
        made, messages = [], []
        for overlap in (False, True):
            with counted_traffic() as traffic:
                made.append(einsum("ij,jk->ik", x, y, target=target, overlap=overlap, check="never"))
            messages.append((traffic.calls, traffic.received, traffic.sent))
        wrong.append(unless(messages[0] == messages[1], f"{messages}"))
        tiles = [z.to_local() for z in made]
        wrong.append(unless(torch.allclose(tiles[0], tiles[1], rtol=1e-4, atol=1e-4), f"{first} {second} {target}"))
        wrong.append(unless(products_of(x, y, target, overlap=False) == 1, "one product"))
        parts = products_of(x, y, target, overlap=True)
        wrong.append(unless(parts == 4, f"{parts} parts for {first} {second} {target}"))
    x, y = distribute_tensor(a, mesh, [S0]), distribute_tensor(b, mesh, [S0])
    for flops, is_cut in ((1e7, True), (1e15, False)):
        network = rs.Network.of(rs.torch.mesh_of(mesh), dim_0=("switch", 1e6, 1e-6), flops=flops)
        parts = products_of(x, y, (S0,), network=network)
        wrong.append(unless((parts > 1) == is_cut, f"{parts} parts at {flops} flop/s"))
    wrong.append(unless(products_of(x, y, (S0,)) == 1, "no price without a network"))
    return wrong


def products_of(x: DTensor, y: DTensor, target: Any, **options: Any) -> int:
    """How many local products an einsum makes."""
    kept, calls = torch.einsum, []

    def counting(*args: Any) -> torch.Tensor:
        calls.append(args)
        return kept(*args)

    einsum("ij,jk->ik", x, y, target=target, check="never", **options)  # planned, and its dtype tried
    torch.einsum = counting
    try:
        einsum("ij,jk->ik", x, y, target=target, check="never", **options)
    finally:
        torch.einsum = kept
    return len(calls)


def result_without_a_target(rank: int) -> list[str]:
    """Where it is cheapest, of all that placements can say; sums may be left."""
    wrong = []
    mesh = init_device_mesh("cpu", (4,))
    a, b = torch.randn(16, 16).round(), torch.randn(16, 16).round()
    dist.broadcast(a, 0)
    dist.broadcast(b, 0)
    x, y = distribute_tensor(a, mesh, [S1]), distribute_tensor(b, mesh, [S0])
    with counted_traffic() as traffic:
        z = einsum("ij,jk->ik", x, y, leave_partial=True, check="never")
    wrong.append(unless(z.placements == (P,) and traffic.received == 0, f"{z.placements}, {traffic.received} bytes"))
    wrong.append(unless(torch.equal(z.full_tensor(), a @ b), z))
    for first, second in itertools.product((R, S0, S1, P), repeat=2):
        x, y = put([a, 0 * a, a, -a], mesh, (first,)), put([b, 0 * b, b, -b], mesh, (second,))
        z = einsum("ij,jk->ik", x, y, check="never")
        least = min(planned("ij,jk->ik", x, y, target=put([a], mesh, (end,))).price for end in (R, S0, S1))
        wrong.append(unless(planned("ij,jk->ik", x, y, target=z).price == least, f"{first} {second}: {z.placements}"))
    return wrong


def other_meshes(rank: int) -> list[str]:
    """Ranks in any order, operands and result on meshes of their own, ranks outside of all."""
    wrong = []
    turned = DeviceMesh("cpu", [3, 1, 0, 2])
    square = init_device_mesh("cpu", (2, 2))
    pair = DeviceMesh("cpu", [2, 1])
    a, b = torch.arange(48.0).reshape(6, 8), torch.arange(40.0).reshape(8, 5)

    def tile(whole: torch.Tensor, mesh: DeviceMesh, placements: Placements) -> DTensor:
        where = mesh.get_coordinate()
        here = spans(tuple(whole.shape), tuple(mesh.shape), placements, tuple(where)) if where is not None else None
        local = whole.new_empty(0) if here is None else cut(whole, here)
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())

    for mesh, other, to in (
        (turned, turned, turned),
        (turned, square, square),
        (pair, pair, pair),
        (pair, square, turned),
    ):
        for ends in ((S0, S1), (S1, S0), (S0, S0)):
            x = tile(a, mesh, (ends[0],) * mesh.ndim)
            y = tile(b, other, (ends[1],) * other.ndim)
            for overlap in (False, True):
                z = einsum("ij,jk->ik", x, y, target=(S0,) * to.ndim, device_mesh=to, overlap=overlap)
                wanted = tile(a @ b, to, (S0,) * to.ndim)
                fits = same(z.to_local(), wanted.to_local()) and z.device_mesh == to
                wrong.append(unless(fits, f"{mesh} {other} {to} {ends}: {z.to_local()} for {wanted.to_local()}"))
    return wrong


def tiles_and_types_of_any_kind(rank: int) -> list[str]:
    """Strided and lazy tiles, other reductions than sums, whole numbers, half floats; a Sharding as the target."""
    wrong = []
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    whole = torch.arange(32.0).reshape(4, 8)
    for dtype in (torch.int64, torch.int32, torch.bfloat16, torch.float16, torch.float64):
        a = (whole % 5).to(dtype)
        x = distribute_tensor(a.t().contiguous(), mesh, [S0, S1]).t()  # its tiles are strided
        y = distribute_tensor(a.t().contiguous(), mesh, [S0, R])
        target = rs.Sharding.of(rs.torch.mesh_of(mesh), "b", "a")
        z = einsum("ij,jk->ik", x, y, target=target)
        right = torch.einsum("ij,jk->ik", a, a.t())
        wrong.append(unless(z.placements == (S1, S0) and torch.equal(z.full_tensor(), right), f"{dtype}: {z}"))
    line, a = init_device_mesh("cpu", (4,)), torch.complex(whole, whole + 1)
    for overlap, lazy in itertools.product((False, True), (a.conj(), torch._neg_view(a), torch._neg_view(whole))):
        plain = lazy.resolve_conj().resolve_neg()
        x = DTensor.from_local(lazy[rank : rank + 1], line, [S0], run_check=False)
        for z, right in (
            (einsum("ij,kj->ik", x, x, target=[R], overlap=overlap), plain @ plain.t()),
            (einsum("ij,ik->jk", x, x, target=[S0], overlap=overlap), plain.t() @ plain),
            (einsum("ij->ji", x, target=[R], overlap=overlap), plain.t()),
            (einsum("ij->ij", x, target=[S0], overlap=overlap), plain),
        ):
            wrong.append(unless(torch.allclose(z.full_tensor(), right), f"{lazy.dtype} {overlap}: {z} for {right}"))
    for name, right in (("max", whole + 3), ("avg", whole + 1.5)):
        x = DTensor.from_local(whole + rank, mesh, [Partial(name), Partial(name)], run_check=False)
        z = einsum("ij->ji", x, target=[S0, R])
        wrong.append(unless(torch.equal(z.full_tensor(), right.t()), f"{name}: {z}"))
    return wrong


def what_is_packed_last_may_fail(rank: int) -> list[str]:
    """Where a rank has no room for its last message nothing is on its way, that of the other operand neither."""
    mesh = init_device_mesh("cpu", (2, 2))
    a, b = torch.arange(48.0).reshape(8, 6), torch.arange(48.0).reshape(6, 8)
    x, y = distribute_tensor(a, mesh, [S0, S0]), distribute_tensor(b, mesh, [S1, S1])
    wrong = []
    for overlap in (False, True):
        call = partial(einsum, "ij,jk->ik", x, y, target=[S0, S1], overlap=overlap, check="never")
        wrong += failing_at_the_last_message(call)
        wrong.append(unless(torch.equal(call().full_tensor(), a @ b), f"the next call, {overlap}"))
    return wrong


def what_cannot_be_is_refused(rank: int) -> list[str]:
    """One sentence each, before anything moves."""
    mesh = init_device_mesh("cpu", (2, 2))
    x = distribute_tensor(torch.zeros(4, 6), mesh, [S0, R])
    y = distribute_tensor(torch.zeros(6, 4), mesh, [S0, R])
    on_line = distribute_tensor(torch.zeros(4, 4), init_device_mesh("cpu", (4,)), [R])
    part = rs.Sharding.of(rs.Mesh.of(x=4), "x:(2)2", "x:(1)2")
    cases: list[tuple[str, Any, dict[str, Any], str]] = [
        ("bad-argument", (torch.zeros(4, 6), y), {}, "must be a DTensor, got a plain tensor; DTensor.from_local(x, "),
        ("bad-argument", (3, y), {}, "must be a DTensor, got 3"),
        ("bad-argument", (x,), {}, "has 2 operands, got 1"),
        ("bad-argument", (x, y.double()), {}, "operand 1 of ij,jk->ik is of torch.float64"),
        ("bad-argument", (x, y), {"target": [S0]}, "1 placements"),
        ("bad-argument", (x, y), {"target": 3}, "must be placements or a Sharding, got: 3"),
        ("bad-argument", (x, y), {"check": "now"}, "check must be one of"),
        ("bad-argument", (x, y), {"overlap": "yes"}, "overlap must be"),
        ("bad-argument", (x, y), {"sizes": 3}, "sizes must be a mapping"),
        ("bad-argument", (x, y), {"device_mesh": 3}, "device_mesh must be"),
        ("bad-network", (x, y), {"network": "lan"}, "lan"),
        ("bad-shape", (x, x), {}, "label j is 6"),
        ("rank-mismatch", (x, y), {"target": [Shard(2), R]}, "names a dim that a tensor of 2 has not"),
        ("cannot-express", (on_line, on_line), {"target": part}, "a part of a mesh dim"),
        ("different-meshes", (x, y), {"target": rs.Sharding.of(rs.Mesh.of(x=2), "x", None)}, "other devices"),
    ]
    wrong = []
    for code, operands, options, words in cases:
        try:
            with counted_traffic():
                einsum("ij,jk->ik", *operands, **{"check": "never", **options})
            wrong.append(f"{options} is not refused")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == code and words in str(error), f"{options}: {error.code}: {error}"))
    for text, code in (("ij,jk->il", "bad-shape"), ("ij jk", "syntax"), ("ijk,jk->ik", "rank-mismatch")):
        try:
            einsum(text, x, y)
            wrong.append(f"{text} is not refused")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == code, f"{text}: {error.code}: {error}"))
    try:
        einsum("ij,jk->ik", x, y, target=[S0, R] if rank else [S1, R])
        wrong.append("ranks that disagree are not refused")
    except rs.ReshardError as error:
        wrong.append(unless(error.code == "ranks-disagree", f"{error.code}: {error}"))
    return wrong


def plain_tensors_beside_dtensors(rank: int) -> list[str]:
    """Whole on every rank where torch takes them so, with gradients; refused on all ranks where one has one alone."""
    mesh = init_device_mesh("cpu", (2, 2))
    a, b = torch.arange(48.0).reshape(8, 6), torch.arange(24.0).reshape(6, 4) - 7
    x = distribute_tensor(a, mesh, [S0, S1])
    wholes = a.clone().requires_grad_(), b.clone().requires_grad_()
    (wholes[0] @ wholes[1]).sum().backward()
    wrong = []
    call = partial(einsum, "ij,jk->ik", target=[S0, R])
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        first, second = x.clone().requires_grad_(), torch.nn.Parameter(b.clone())
        with implicit_replication():
            y = function(first, second)
        y.sum().backward()
        wrong.append(unless(torch.equal(y.full_tensor(), a @ b), f"by a parameter: {y}"))
        wrong.append(unless(torch.equal(first.grad.full_tensor(), wholes[0].grad), f"{first.grad}"))
        wrong.append(unless(torch.equal(second.grad, wholes[1].grad), f"{second.grad} for {wholes[1].grad}"))
    scaled = einsum("ij,->ij", x, torch.tensor(3.0))
    wrong.append(unless(torch.equal(scaled.full_tensor(), 3 * a), f"by one element: {scaled}"))
    begun = time.monotonic()
    try:
        einsum("ij,jk->ki", x, b if rank == 0 else distribute_tensor(b, mesh, [S0, R], src_data_rank=None))
        wrong.append("a plain tensor on one rank was taken")
    except rs.ReshardError as error:
        code = "bad-argument" if rank == 0 else "ranks-disagree"
        fine = error.code == code and "operand 1 of ij,jk->ki must be a DTensor, got a plain tensor" in str(error)
        wrong.append(unless(fine and time.monotonic() - begun < 15, f"{error.code}: {error}"))
    again = einsum("ij,jk->ki", x, distribute_tensor(b, mesh, [S0, R]), check="always")
    wrong.append(unless(torch.equal(again.full_tensor(), (a @ b).T), f"the next call: {again}"))
    return wrong


def types_without_a_product_are_refused(rank: int) -> list[str]:
    """Before anything moves; a transpose of them is none."""
    mesh = init_device_mesh("cpu", (4,))
    x = DTensor.from_local(torch.zeros(4, 1).to(torch.float8_e5m2), mesh, [S1], run_check=False)
    z = einsum("ij->ji", x, target=[S1])
    wrong = [unless(z.shape == (4, 4) and z.dtype == x.dtype and z.placements == (S1,), z)]
    try:
        with counted_traffic():
            einsum("ij,jk->ik", x, x)
        wrong.append("not refused")
    except rs.ReshardError as error:
        wrong.append(unless(error.code == "reduction-dtype", f"{error.code}: {error}"))
    return wrong


def expressions_as_torch_writes_them(rank: int) -> list[str]:
    """With dots and without a result; what they do not say is refused."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    cases = [
        ("...ij,...jk", (2, 4, 6), (2, 6, 3)),
        ("i...,j->...ji", (4, 3, 2), (5,)),
        ("ba", (4, 6)),
        ("ij,jk", (4, 6), (6, 3)),
        ("bij, b", (2, 3, 5), (2,)),
        ("...", (4, 6)),
        ("i,i", (8,), (8,)),
        ("aij,jk...->ik...a", (2, 3, 4), (4, 5)),
    ]
    for text, *shapes in cases:
        values = [torch.arange(float(torch.Size(shape).numel())).reshape(shape) for shape in shapes]
        xs = [distribute_tensor(value, mesh, [Shard(0), Shard(value.dim() - 1)]) for value in values]
        y, wanted = rs.torch.einsum(text, *xs).full_tensor(), torch.einsum(text, *values)
        wrong.append(unless(torch.equal(y, wanted), f"{text}: {y} for {wanted}"))
    x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0), Shard(1)])
    for code, text in (("rank-mismatch", "...ijk"), ("syntax", "...i...")):
        try:
            rs.torch.einsum(text, x)
            wrong.append(f"{text} was taken")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == code, f"{text}: {error.code} {error}"))
    return wrong
