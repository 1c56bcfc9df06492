"""What each rank does to show that a plan is run as it was made: its value, its chunks, its memory, as code too."""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from math import prod
from typing import Any

import numpy as np
import oracle
import torch
import torch.distributed as dist
from ring_plans import plan_that_keeps_blocks, two_rings_in_blocks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch_problems import Problem, coordinate, cut, same, source_tensor, spans, whole_value
from torch_ranks import counted_traffic, unless

import reshard as rs
from reshard.digits import Digit
from reshard.plans import Options
from reshard.torch.carriers import line_of
from reshard.torch.local_plan import local_plan
from reshard.torch.redistribution import redistribution_of_plan
from reshard.torch.world import current_world

HALF_HOSTS = [
    rs.Network(tuple(rs.network.Level(stride, 2, link, 1e9, 1e-6) for stride in (1, 2))) for link in ("switch", "ring")
]
"""Networks of 2 x 2 ranks."""
R = Replicate()
S0, S1 = Shard(0), Shard(1)


def drawn(count: int, seed: int, sizes: tuple[int, ...] = (2, 2), *, largest: int = 20) -> list[Problem]:
    """Problems in which something moves; every fourth has partial values."""
    rng = random.Random(seed)
    problems: list[Problem] = []
    while len(problems) < count:
        ndim = rng.randint(1, 3)
        shape = tuple(rng.randint(3, largest) for _ in range(ndim))
        choices: list[Any] = [R, *(Shard(dim) for dim in range(ndim))]
        source, target = (tuple(rng.choice(choices) for _ in sizes) for _ in range(2))
        if len(problems) % 4 == 3:
            source = (Partial(), *source[1:])
        if source != target:
            dtype = rng.choice([torch.float32, torch.int64] if any(p.is_partial() for p in source) else
                               [torch.float32, torch.bfloat16, torch.int16, torch.complex64])  # fmt: skip
            problems.append(Problem(sizes, shape, dtype, source, target))
    return problems


def plan_of(problem: Problem, mesh: DeviceMesh, *, basis: str = "any", memory_limit: int | None = None) -> rs.Plan:
    """The plan in a basis; with all steps where the basis has no chain, as for some uneven dims."""
    source, target = (rs.torch.sharding_of(side, mesh, len(problem.shape)) for side in (problem.source, problem.target))
    dtype = str(problem.dtype).removeprefix("torch.")
    try:
        return rs.plan(source, target, problem.shape, dtype, basis=basis, memory_limit=memory_limit)
    except rs.ReshardError as error:
        if "no chain of collectives" not in str(error):
            raise
    return rs.plan(source, target, problem.shape, dtype, memory_limit=memory_limit)


def least_limit(problem: Problem, mesh: DeviceMesh, basis: str) -> int:
    """What the refusal of a limit of 0 says would do."""
    try:
        plan_of(problem, mesh, basis=basis, memory_limit=0)
    except rs.ReshardError as error:
        return int(str(error).split(" needs ")[1].split()[0])
    return 0


class Storages(TorchDispatchMode):
    """What torch has given out since it began: bytes of storages that are alive, and the most that ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {value.untyped_storage()._cdata for value in _tensors((args, kwargs))}
        result = function(*args, **(kwargs or {}))
        for value in _tensors(result):
            storage = value.untyped_storage()
            if storage._cdata not in before | self.known:
                self.known.add(storage._cdata)
                self.live += storage.nbytes()
                weakref.finalize(storage, self.freed, storage._cdata, storage.nbytes())
        self.most = max(self.most, self.live)
        return result

    def freed(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in _pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def largest_need(call: Callable[[], Any]) -> int:
    """The most bytes that torch has given out at once during a call, beyond those before it."""
    with Storages() as storages:
        call()
    return storages.most


def storages_are_counted(rank: int) -> list[str]:
    """The measure itself, on what is known: of three tensors of 400 bytes two live at once, and a view is none."""

    def call() -> torch.Tensor:
        first = torch.ones(100)
        second = first + 1
        del first
        return (second.view(10, 10) * 2).t()

    return [unless(largest_need(call) == 800, largest_need(call))]


def some_limits_are_kept(rank: int) -> list[str]:
    return limits_are_kept(rank, 25)


def limits_are_kept(rank: int, count: int = 100) -> list[str]:
    """Plans, each under a limit between the least and what it would need without: no rank needs more."""
    mesh = init_device_mesh("cpu", (2, 2))
    rng = random.Random(3)
    wrong, chunks = [], 0
    for problem in drawn(count, seed=1):
        basis = rng.choice(["any", "collectives"])
        least, most = least_limit(problem, mesh, basis), plan_of(problem, mesh, basis=basis).peak_bytes
        limit = least + rng.randint(0, max(most - least, 0))
        plan = plan_of(problem, mesh, basis=basis, memory_limit=limit)
        chunks = max([chunks, *(step.chunks for step in plan.steps)])
        x = source_tensor(problem, mesh)
        y = rs.torch.run(plan, x, check="never")
        wanted = cut(whole_value(problem), spans(problem.shape, (2, 2), problem.target, coordinate(rank, (2, 2))))
        wrong.append(unless(same(y.to_local(), wanted), f"{problem}: {y.to_local()} for {wanted}"))
        held = x.to_local().nbytes
        del y
        need = held + largest_need(lambda plan=plan, x=x: rs.torch.run(plan, x, check="never"))
        wrong.append(unless(need <= plan.peak_bytes <= limit, f"{problem}: {need} of {plan.peak_bytes} of {limit}"))
    wrong.append(unless(chunks > 2, f"at most {chunks} chunks"))
    return wrong


def ring_plans(mesh: DeviceMesh, problems: list[Problem], ring: Digit) -> Iterator[tuple[Problem, rs.Plan]]:
    """Plans of one step along a ring, as many as may be."""
    for problem in problems:
        made = plan_of(problem, mesh)
        with suppress(rs.ReshardError):  # of partial values, or of what digits do not say
            yield problem, replace(made, steps=(rs.Step(made.reshard, ring=ring),))


def plans_with_kept(
    mesh: DeviceMesh, problems: list[Problem], ring: Digit | None = None
) -> Iterator[tuple[Problem, rs.Plan]]:
    """Plans of two steps, the second of which may use what ranks kept from the source, along a ring or without."""
    for before, problem in pairwise(problems):
        made = plan_of(problem, mesh)
        with suppress(rs.ReshardError):
            middle = rs.torch.sharding_of(before.target, mesh, len(problem.shape))
            last = rs.Step(replace(made.reshard, source=middle), ring=ring, kept=made.source)
            yield problem, rs.Plan(made.reshard, (rs.Step(replace(made.reshard, target=middle)), last))


def neighbours_hand_on(rank: int) -> list[str]:
    """Along a ring ranks receive what is planned; into memory at hand, in parts, and as code too."""
    kept = Problem((2, 2), (257, 43), torch.int32, (S0, R), (R, S0))
    return [*along_ring(rank, (2, 2), Digit(1, 4)), *in_blocks(rank, kept, plan_that_keeps_blocks(257))]


def in_blocks(rank: int, problem: Problem, plan: rs.Plan) -> list[str]:
    """What goes along rings while it lies in blocks of a larger tensor; as code too."""
    mesh = init_device_mesh("cpu", problem.sizes, mesh_dim_names=tuple(plan.source.mesh.sizes))
    x, module = source_tensor(problem, mesh), dict[str, Any]()
    held = spans(problem.shape, problem.sizes, problem.target, coordinate(rank, problem.sizes))
    exec(rs.torch.code_of(plan), module)
    results = rs.torch.run(plan, x).to_local(), module["reshard"](x.to_local())
    wanted = cut(whole_value(problem), held)
    return [unless(same(result, wanted), f"{plan!r}: {result} for {wanted}") for result in results]


def neighbours_hand_on_among_eight(rank: int) -> list[str]:
    return [*along_ring(rank, (2, 2, 2), Digit(1, 8)), *along_ring(rank, (4, 2), Digit(2, 4), 400)]


def ranks_of_two_rings_change_places(rank: int) -> list[str]:
    """On 3 x 3 ranks: what came from one neighbour goes to several, and to one what came from several."""
    mesh, wrong = init_device_mesh("cpu", (3, 3)), []
    for shape in ((36, 36), (20, 17)):
        problem = Problem((3, 3), shape, torch.float32, (Shard(0), Shard(1)), (Shard(1), Shard(0)))
        made = plan_of(problem, mesh)
        whole = replace(made, steps=(rs.Step(made.reshard, ring=Digit(3, 3), across=Digit(1, 3)),))
        x, module = source_tensor(problem, mesh), dict[str, Any]()
        wanted = cut(whole_value(problem), spans(shape, (3, 3), problem.target, coordinate(rank, (3, 3))))
        exec(rs.torch.code_of(whole), module)
        wrong.append(unless(same(module["reshard"](x.to_local()), wanted), f"{whole!r} as code"))
        for plan in (whole, replace(whole, parts=2) if shape == (36, 36) else whole):
            rs.torch.run(plan, x)
            with counted_traffic() as traffic:
                y = rs.torch.run(plan, x, check="never")
            wrong.append(unless(same(y.to_local(), wanted), f"{plan!r}: {y.to_local()} for {wanted}"))
            received = plan.received_bytes_on(rank)
            wrong.append(unless(traffic.received == received, f"{plan!r}: {traffic.received} bytes for {received}"))
        wrong += in_blocks(rank, problem, two_rings_in_blocks(shape))
        crosses = line_of(whole.steps[0].moves[0].exchange, whole.source.mesh)
        wrong.append(unless(crosses is None, f"all is said to stay within mesh dim {crosses}"))
        limited = replace(whole, options=Options(memory_limit=1 << 30))
        for refusing in (partial(rs.torch.run, limited, x), partial(rs.torch.code_of, limited)):
            try:
                refusing()
            except rs.ReshardError as error:
                wrong.append(unless(error.code == "no-plan", f"{error.code} where memory has a limit"))
            else:
                wrong.append("a plan with a memory limit goes along rings")
        if shape == (36, 36):
            module = {}
            exec(rs.torch.code_of(replace(whole, parts=2)), module)
            wrong.append(unless(same(module["reshard"](x.to_local()), wanted), f"{whole!r} in parts as code"))
    return wrong


def along_ring(rank: int, sizes: tuple[int, ...], ring: Digit, count: int = 100) -> list[str]:
    mesh = init_device_mesh("cpu", sizes)
    wrong, taken, passing, parted, kept = [], 0, 0, 0, 0
    problems = drawn(count, 6, sizes)
    kept_plans = (plans_with_kept(mesh, problems, each) for each in (ring, None))
    for problem, whole in chain(ring_plans(mesh, problems, ring), *kept_plans):
        taken += 1
        exchange = whole.steps[-1].moves[0].exchange
        passing += bool(exchange.passing(rank))
        kept += any(exchange.is_kept(rank, piece.box) for piece in exchange.outgoing(rank) if piece.round < 2)
        plans = [whole]
        with suppress(rs.ReshardError):  # what has no such parts
            plans.append(replace(whole, parts=3))
        parted += len(plans) == 2
        x = source_tensor(problem, mesh)
        if whole.steps[-1].kept is not None:
            others = replace(whole, steps=(*whole.steps[:-1], replace(whole.steps[-1], kind="", kept=None)))
            prepared = [redistribution_of_plan(current_world(), x._spec, plan, None) for plan in (whole, others)]
            digests = {each.statement.digest for each in prepared}
            wrong.append(unless(len(digests) == 2, f"{whole!r} is said to keep nothing"))
        wanted = cut(whole_value(problem), spans(problem.shape, sizes, problem.target, coordinate(rank, sizes)))
        strided = torch.empty(wanted.shape[::-1], dtype=wanted.dtype).permute(*reversed(range(wanted.dim())))
        for plan in plans:
            rs.torch.run(plan, x)  # which compares what ranks do
            with counted_traffic() as traffic:
                y = rs.torch.run(plan, x, check="never")
            wrong.append(unless(same(y.to_local(), wanted), f"{plan!r}: {y.to_local()} for {wanted}"))
            received = plan.received_bytes_on(rank)
            wrong.append(unless(traffic.received == received, f"{plan!r}: {traffic.received} bytes for {received}"))
            for out in (torch.empty_like(wanted), strided):
                rs.torch.run(plan, x, out=out)
                wrong.append(unless(same(out, wanted), f"{plan!r} into memory: {out}"))
            if taken % 8 == 0:
                module: dict[str, Any] = {}
                exec(rs.torch.code_of(plan), module)
                found = module["reshard"](x.to_local())
                wrong.append(unless(same(found, wanted), f"{plan!r} as code: {found} for {wanted}"))
    fine = taken > 10 and parted > 2 and passing > 1 and kept > 0
    return [*wrong, unless(fine, f"{taken} plans, {parted} in parts; {passing} pass, of {kept} what was kept is sent")]


def plans_are_run_as_they_are(rank: int) -> list[str]:
    """Eagerly and compiled, in every basis, with gradients; on other ranks than those of the source too."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    wrong = []
    for number, problem in enumerate(drawn(12, seed=2)):
        plan = plan_of(problem, mesh, basis=("any", "collectives")[number % 2])
        x = source_tensor(problem, mesh)
        wanted = cut(whole_value(problem), spans(problem.shape, (2, 2), problem.target, coordinate(rank, (2, 2))))
        y = rs.torch.run(plan, x)
        fine = same(y.to_local(), wanted) and y.placements == problem.target
        wrong.append(unless(fine, f"{problem}: {y} for {wanted}"))
        out = torch.empty(wanted.shape, dtype=wanted.dtype)
        rs.torch.run(plan, x, out=out)
        wrong.append(unless(same(out, wanted), f"{problem} into memory: {out}"))
    whole = torch.arange(48.0).reshape(8, 6)
    source = distribute_tensor(whole, mesh, [S0, S1])
    target = rs.torch.sharding_of([S1, S0], mesh, 2)
    for limit in (None, least_limit(Problem((2, 2), (8, 6), torch.float32, (S0, S1), (S1, S0)), mesh, "any")):
        plan = rs.plan(rs.torch.sharding_of(source), target, (8, 6), memory_limit=limit)
        compiled = torch.compile(lambda x, plan=plan: rs.torch.run(plan, x) * 2, fullgraph=True, backend="aot_eager")
        for call in (compiled, lambda x, plan=plan: rs.torch.run(plan, x) * 2):
            x = source.detach().requires_grad_()
            y = call(x)
            fine = same(y.full_tensor().detach(), whole * 2) and list(y.placements) == [S1, S0]
            wrong.append(unless(fine, f"{limit}: {y}"))
            y.sum().backward()
            fine = x.grad is not None and same(x.grad.to_local(), torch.full_like(x.to_local(), 2).detach())
            wrong.append(unless(fine, f"{limit}: gradient {x.grad}"))
    line = DeviceMesh("cpu", [3, 1, 0, 2])
    plan = rs.plan(rs.torch.sharding_of(source), rs.torch.sharding_of([S0], line, 2), (8, 6))
    y = rs.torch.run(plan, source, line)
    place = [3, 1, 0, 2].index(rank)
    wrong.append(unless(same(y.to_local(), whole[2 * place : 2 * place + 2]), f"another mesh: {y.to_local()}"))
    return wrong


def plans_of_something_else_are_refused(rank: int) -> list[str]:
    """Each on all ranks, before anything moves."""
    mesh = init_device_mesh("cpu", (2, 2))
    x = source_tensor(Problem((2, 2), (4, 6), torch.float32, (S0, S1), (R, R)), mesh)
    rows, squares, whole = (rs.torch.sharding_of(side, mesh, 2) for side in ([S0, S0], [S0, S1], [R, R]))
    wider = rs.Sharding.of(rs.Mesh.of(a=2, b=2), None, None)
    line = rs.Sharding.of(rs.Mesh.of(x=2), "x", None)
    cases: list[tuple[str, Any, Any]] = [
        ("bad-argument", rs.plan(rows, whole, (4, 6)), x),
        ("bad-argument", rs.plan(squares, whole, (4, 8)), x),
        ("bad-argument", rs.plan(squares, whole, (4, 6), "int32"), x),
        ("bad-argument", "a plan", x),
        ("bad-argument", rs.plan(squares, whole, (4, 6)), x.to_local()),
        ("different-meshes", rs.plan(squares, line, (4, 6)), x),
    ]
    wrong = []
    for code, plan, value in cases:
        try:
            rs.torch.run(plan, value)
            wrong.append(f"{plan} was run")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == code, f"{plan}: {error.code} {error}"))
    y = rs.torch.run(rs.plan(squares, wider, (4, 6)), x)
    wrong.append(unless(y.to_local().shape == (4, 6), "the next call"))
    return wrong


def plans_as_code(rank: int) -> list[str]:
    """What is printed runs in a namespace of its own, with torch and nothing else, and gives the same tiles."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    for number, problem in enumerate(drawn(20, seed=4, largest=9)):
        basis = ("any", "collectives")[number % 2]
        limit = least_limit(problem, mesh, basis) if number % 5 == 4 else None
        text = rs.torch.code_of(plan_of(problem, mesh, basis=basis, memory_limit=limit))
        namespace: dict[str, Any] = {}
        exec(compile(text, f"plan {number}", "exec"), namespace)
        tile = namespace["reshard"](source_tensor(problem, mesh).to_local())
        wanted = cut(whole_value(problem), spans(problem.shape, (2, 2), problem.target, coordinate(rank, (2, 2))))
        fine = same(tile, wanted) and "import reshard" not in text
        wrong.append(unless(fine, f"{problem}: {tile} for {wanted}\n{text}"))
    return wrong


def replicas_combine_alike(rank: int) -> list[str]:
    """Ranks that combine partial values each by itself have what NumPy has to the bit; so has what is printed."""
    mesh, ours = init_device_mesh("cpu", (2, 2)), rs.Mesh.of(x=2, y=2)
    wrong = []
    for unreduced, network, reduction in itertools.product(["y", ("x", "y")], HALF_HOSTS, ["sum", "avg", "product"]):
        dims = (None, None) if len(unreduced) == 2 else ("x", None)
        source = rs.Sharding.of(ours, *dims, unreduced=unreduced, reduction=reduction)
        plan = rs.plan(source, rs.Sharding.of(ours, *dims), (6, 5), "f32", network=network)
        wrong.append(unless([step.near for step in plan.steps] == [1], f"{plan}"))
        fresh = np.random.default_rng(0)
        parts = [fresh.random(plan.shape, np.float32) for _ in range(oracle.class_count(source))]
        tiles = oracle.partial_tiles(parts, source)
        wanted = torch.from_numpy(rs.numpy.run(plan, tiles)[rank])
        tile = torch.from_numpy(tiles[rank])
        namespace: dict[str, Any] = {}
        exec(compile(rs.torch.code_of(plan), "plan", "exec"), namespace)
        local = local_plan(plan, rank, {ours: mesh}, tile.dtype, "the test")
        results = local.run(tile), namespace["reshard"](tile)
        wrong += [unless(same(made, wanted), f"{plan}: {made} for {wanted}") for made in results]
    return wrong


def networks_are_fitted(rank: int) -> list[str]:
    """All ranks get one network, with a level for each mesh dim or one of all, and plans take it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    network, fit = rs.torch.calibrate(mesh, sizes=[2**power for power in range(8, 22, 2)], repeats=1)
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, str(network.as_dict()))
    ends = [rs.torch.sharding_of(side, mesh, 2) for side in ([S0, S1], [S1, S0])]
    plan = rs.plan(*ends, (64, 64), network=network)
    return [
        unless(len({*texts}) == 1, f"{texts}"),
        unless([level.size for level in network.levels] in ([2, 2], [4]), f"{network}"),
        unless(all(level.bandwidth > 0 for level in fit.levels), f"{fit}"),
        unless(plan.seconds is not None and plan.seconds > 0 and prod(plan.shape) == 4096, f"{plan}"),
    ]


def axes_do_not_nest_in_hosts(rank: int) -> list[str]:
    """Plans by way of a mesh of hosts, where axes do not nest in these: the tiles, as code too."""
    mesh = init_device_mesh("cpu", (3, 4), mesh_dim_names=("a", "b"))
    hosts = rs.Network((rs.network.Level(1, 6, "switch", 9, 0), rs.network.Level(6, 2, "switch", 1, 0)))
    whole = torch.arange(18 * 24, dtype=torch.float64).reshape(18, 24)
    wrong, by_hosts = [], 0
    for before, after in (([S0, S0], [R, S0]), ([S0, S1], [R, S1]), ([S1, S0], [R, R]), ([S0, R], [R, S1])):
        ends = (rs.torch.sharding_of(side, mesh, 2) for side in (before, after))
        plan = rs.plan(*ends, (18, 24), "float64", network=hosts)
        by_hosts += any("host" in step.after.mesh.sizes for step in plan.steps)
        source = distribute_tensor(whole, mesh, before)
        wanted = cut(whole, spans((18, 24), (3, 4), after, coordinate(rank, (3, 4))))
        wrong.append(unless(same(rs.torch.run(plan, source).to_local(), wanted), f"{plan}: another tile"))
        names: dict[str, Any] = {}
        exec(plan.to_code("torch"), names)
        wrong.append(unless(same(names["reshard"](source.to_local()), wanted), f"{plan!r} as code: another tile"))
    wrong.append(unless(by_hosts > 1, "no plan goes by way of hosts"))
    return wrong


def parts_overlap(rank: int) -> list[str]:
    """Plans for hosts of two, in parts, by way of middles in blocks too: the tiles, gradients, and memory given."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    levels = rs.network.Level(1, 2, "switch", 9, 0), rs.network.Level(2, 2, "switch", 1, 0)
    here = rs.Mesh.of(a=2, b=2)
    wrong = []
    whole = torch.arange(16 * 24, dtype=torch.float64).reshape(16, 24)
    place = coordinate(rank, (2, 2))
    for before, after in (([S0, R], [R, R]), ([S0, S0], [R, R]), ([S0, R], [R, S0]), ([S1, R], [S0, R])):
        source = distribute_tensor(whole, mesh, before)
        ends = (rs.torch.sharding_of(side, mesh, 2) for side in (before, after))
        plan = rs.plan(*ends, (16, 24), "float64", network=rs.Network(levels))
        wanted = cut(whole, spans((16, 24), (2, 2), after, place))
        x = source.detach().requires_grad_()
        y = rs.torch.run(plan, x)
        wrong.append(unless(plan.source.mesh.size == here.size and same(y.to_local().detach(), wanted), f"{plan}: {y}"))
        y.sum().backward()
        fine = x.grad is not None and same(x.grad.to_local(), torch.ones_like(x.to_local()).detach())
        wrong.append(unless(fine, f"{plan}: gradient {x.grad}"))
        names: dict[str, Any] = {}
        exec(plan.to_code("torch"), names)
        code = names["reshard"](source.to_local())
        wrong.append(unless(same(code, wanted), f"{plan!r} as code: {code}"))
        out = torch.empty(wanted.shape, dtype=wanted.dtype)
        rs.torch.run(plan, source, out=out)
        wrong.append(unless(same(out, wanted), f"{plan!r} into memory: {out}"))
        wrong.append(unless(plan.parts > 1 or after == [S0, R], f"{plan} is not in parts"))
    rings = rs.network.Level(1, 2, "ring", 1, 0), rs.network.Level(2, 2, "ring", 1, 0)
    partial = DTensor.from_local(whole + rank, mesh, [Partial(), Partial()], run_check=False)
    ends = (rs.torch.sharding_of(side, mesh, 2) for side in ([Partial(), Partial()], [S0, S0]))
    plan = rs.plan(*ends, (16, 24), "float64", network=rs.Network(levels))
    wrong.append(unless(plan.parts > 1 and plan.steps[0].after.is_woven, f"{plan} combines all at once"))
    wanted = cut(4 * whole + 6, spans((16, 24), (2, 2), [S0, S0], place))
    wrong.append(unless(same(rs.torch.run(plan, partial).to_local(), wanted), f"{plan}: another tile"))
    uneven = torch.arange(63 * 45, dtype=torch.float64).reshape(63, 45)
    for network, before, after in ((levels, [S0, R], [S1, R]), (levels, [S1, R], [R, R]), (rings, [S1, R], [S0, R])):
        ends = (rs.torch.sharding_of(side, mesh, 2) for side in (before, after))
        plan = rs.plan(*ends, (63, 45), "float64", network=rs.Network(network))
        wrong.append(unless(plan.parts > 1, f"{plan} goes whole"))
        source, wanted = distribute_tensor(uneven, mesh, before), cut(uneven, spans((63, 45), (2, 2), after, place))
        wrong.append(unless(same(rs.torch.run(plan, source).to_local(), wanted), f"{plan}: another tile"))
        names = {}
        exec(plan.to_code("torch"), names)
        wrong.append(unless(same(names["reshard"](source.to_local()), wanted), f"{plan!r} as code: another tile"))
    unlike = rs.network.Level(1, 2, "ring", 2, 0), rings[1]
    for before, after in (([R, S0], [R, S1]), ([R, S0], [S0, R])):
        source = distribute_tensor(whole, mesh, before)
        ends = (rs.torch.sharding_of(side, mesh, 2) for side in (before, after))
        plan = rs.plan(*ends, (16, 24), "float64", network=rs.Network(unlike))
        wanted = cut(whole, spans((16, 24), (2, 2), after, place))
        wrong.append(unless(len(plan.shares) > 1, f"{plan} is of one share"))
        wrong.append(unless(same(rs.torch.run(plan, source).to_local(), wanted), f"{plan}: another tile"))
        names = {}
        exec(plan.to_code("torch"), names)
        code = names["reshard"](source.to_local())
        wrong.append(unless(same(code, wanted) and len(names["WAYS"]) > 1, f"{plan!r} as code: {code}"))
    return wrong
