"""What each rank does to check what torch traces: graphs of `redistribute`, and refusals of what has none."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry
from torch.distributed.tensor.placement_types import _StridedShard
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree
from torch_problems import coordinate, cut, same, spans
from torch_ranks import unless

import reshard as rs

R, P = Replicate(), Partial()
S0, S1 = Shard(0), Shard(1)
MODES = ("real", "fake", "symbolic")
Local = Callable[[torch.Tensor], torch.Tensor]


def moved(mesh: DeviceMesh, before: list[Placement], after: list[Placement], **options: Any) -> Local:
    """A redistribute as a function of local tensors."""

    def call(tile: torch.Tensor) -> torch.Tensor:
        return rs.torch.redistribute(
            DTensor.from_local(tile, mesh, before, run_check=False), after, **options
        ).to_local()

    return call


def tiles(mesh: DeviceMesh, before: list[Placement]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's tile of two tensors: one to trace with, another to run the graph on."""
    whole = torch.arange(64.0).reshape(8, 8)
    one, other = (distribute_tensor(value, mesh, before).to_local() for value in (whole, whole * 3 + 1))
    return one, other


def faults_of(graph: torch.fx.Graph, exchanges: int) -> str:
    """What is wrong with a graph: messages of one rank, another number of exchanges, or another text elsewhere."""
    targets = [str(node.target) for node in graph.nodes]
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, str(graph))
    plain = targets.count("reshard.exchange.default") == exchanges and not any("c10d" in name for name in targets)
    return unless(plain and len({*texts}) == 1, f"{len({*texts})} texts, of them {graph}")


def a_graph_has_one_exchange(rank: int) -> list[str]:
    """The same on all ranks, and right for other values than those that it was traced with; eager calls go on."""
    wrong = []
    pairs: list[tuple[list[Placement], list[Placement]]] = [([S0, S0], [S1, S1]), ([P, S0], [S1, R]), ([R, R], [P, S0])]
    for number, (mode, early) in enumerate(itertools.product(MODES, (False, True))):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", f"b{number}"))  # of which nothing is known yet
        for before, after in pairs:
            text = f"{mode} {early} {before} -> {after}"
            one, other = tiles(mesh, before if P not in before else [R, S0])
            call = moved(mesh, before, after)
            graph = make_fx(call, tracing_mode=mode, pre_dispatch=early)(one)
            wrong.append(unless(not (fault := faults_of(graph.graph, 1)), f"{text}: {fault}"))
            wrong.append(unless(same(graph(other), call(other)), f"{text}: {graph(other)} for {call(other)}"))
    return wrong


def a_graph_of_lazy_tiles(rank: int) -> list[str]:
    """Tiles that torch conjugates or negates only when they are read."""
    mesh = init_device_mesh("cpu", (2, 2))
    one, other = (torch.complex(tile, tile + 1) for tile in tiles(mesh, [S0, S0]))
    call = moved(mesh, [S0, S0], [S1, S1])

    def conjugated(tile: torch.Tensor) -> torch.Tensor:
        return call(tile.conj())

    def negated(tile: torch.Tensor) -> torch.Tensor:
        return call(tile.conj().imag)

    wrong = []
    for mode, (lazy, plain) in itertools.product(MODES, ((conjugated, other.conj()), (negated, other.conj().imag))):
        graph = make_fx(lazy, tracing_mode=mode)(one)
        wanted = call(plain.resolve_conj().resolve_neg())
        wrong.append(unless(not (fault := faults_of(graph.graph, 1)), f"{mode}: {fault}"))
        wrong.append(unless(same(graph(other), wanted), f"{mode}: {graph(other)} for {wanted}"))
    return wrong


def a_graph_of_uneven_tiles(rank: int) -> list[str]:
    """Every rank has its own part of five rows; the graph says so of none."""
    mesh = init_device_mesh("cpu", (4,))
    wrong = []
    whole = torch.arange(15.0).reshape(5, 3)
    for mode in MODES:
        graph = make_fx(moved(mesh, [P], [S0]), tracing_mode=mode, pre_dispatch=True)(whole)
        wanted = cut(whole, spans((5, 3), (4,), [S0], coordinate(rank, (4,)))) * 8
        wrong.append(unless(not (fault := faults_of(graph.graph, 1)), f"{mode}: {fault}"))
        wrong.append(unless(same(graph(whole * 2), wanted), f"{mode}: {graph(whole * 2)} for {wanted}"))
    return wrong


def a_graph_of_ordered_shards(rank: int) -> list[str]:
    """The order in which mesh dims cut a dim may stand in the spec alone; one compiled function takes both orders."""
    mesh = init_device_mesh("cpu", (2, 2))
    whole = torch.arange(64.0).reshape(16, 4)
    plain = distribute_tensor(whole, mesh, [S0, S0])
    strided = rs.torch.redistribute(plain, [_StridedShard(0, split_factor=2), S0])
    tile = strided.to_local()
    spec = DTensorSpec(mesh, (S0, S0), plain._spec.tensor_meta, shard_order=(ShardOrderEntry(0, (1, 0)),))

    def ordered(tile: torch.Tensor) -> DTensor:
        return DTensor(tile, spec, requires_grad=False)  # type: ignore[no-untyped-call]

    def call(x: DTensor) -> DTensor:
        return rs.torch.redistribute(x, [R, S1])

    wanted = call(plain).to_local()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    wrong = [unless(same(call(ordered(tile)).to_local(), wanted), "eager")]
    tensors = (plain, strided, plain)
    wrong += [unless(same(compiled(x).to_local(), wanted), f"compiled, {x._spec}") for x in tensors]
    for mode in MODES:
        graph = make_fx(lambda tile: call(ordered(tile)).to_local(), tracing_mode=mode)(tile)
        wrong.append(unless(same(graph(tile), wanted), mode))
    return wrong


def the_compiler_sees_the_order_of_shards(rank: int) -> list[str]:
    """Where it stands in the spec alone: of inputs, of what is computed from them, forwards and backwards."""
    mesh = init_device_mesh("cpu", (2, 2))
    whole = torch.arange(64.0).reshape(16, 4)
    plain = distribute_tensor(whole, mesh, [S0, S0])
    spec = DTensorSpec(mesh, (S0, S0), plain._spec.tensor_meta, shard_order=(ShardOrderEntry(0, (1, 0)),))
    tile = rs.torch.redistribute(plain, [_StridedShard(0, split_factor=2), S0]).to_local()
    ordered = DTensor(tile, spec, requires_grad=True)  # type: ignore[no-untyped-call]
    wrong = []
    wanted = rs.torch.redistribute(plain, [R, S1]).to_local() * 2 + 1
    calls: list[Callable[[DTensor], DTensor]] = [
        lambda x: rs.torch.redistribute(x, [R, S1]) * 2 + 1,
        lambda x: rs.torch.redistribute(x * 2 + 1, [R, S1]),
        lambda x: rs.torch.redistribute(rs.torch.redistribute(x * 2, [S1, S0]) + 1, [R, S1]),
    ]
    for number, call in enumerate(calls):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        results = [compiled(x).to_local().detach() for x in (ordered, plain, ordered)]
        wrong.append(unless(all(same(result, wanted) for result in results), f"call {number}: {results}"))
        ordered.grad = None
        compiled(ordered).sum().backward()
        gradient = ordered.grad
        fine = gradient is not None and same(gradient.full_tensor(), torch.full_like(whole, 2))
        wrong.append(unless(fine, f"call {number}: gradient {gradient}"))
    return wrong


def einsums_in_graphs(rank: int) -> list[str]:
    """Under fullgraph, with gradients and their order of letters; once per shape."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    cases = [("ij,jk->ik", (8, 6), (6, 4)), ("...ij,jk", (3, 8, 6), (6, 4)), ("ba", (5, 3)), ("ii->i", (6, 6))]
    for text, *shapes in cases:
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda *xs, text=text: rs.torch.einsum(text, *xs) * 2, fullgraph=True, backend="aot_eager"
        )
        for scale in (1, 2):
            values = [torch.arange(float(torch.Size(shape).numel())).reshape(shape) * scale for shape in shapes]
            wholes = [value.clone().requires_grad_() for value in values]
            xs = [distribute_tensor(value, mesh, [S0, Shard(value.dim() - 1)]).requires_grad_() for value in values]
            y, wanted = compiled(*xs), torch.einsum(text, *wholes) * 2
            wrong.append(unless(same(y.full_tensor().detach(), wanted.detach()), f"{text}: {y}"))
            y.sum().backward()
            wanted.sum().backward()
            for x, whole in zip(xs, wholes, strict=True):
                fine = x.grad is not None and whole.grad is not None and same(x.grad.full_tensor(), whole.grad)
                wrong.append(unless(fine, f"{text}: gradient {x.grad} for {whole.grad}"))
    return wrong


def a_graph_has_the_gradient(rank: int) -> list[str]:
    """Which is one exchange more, back."""
    mesh = init_device_mesh("cpu", (2, 2))
    one, other = tiles(mesh, [S0, S1])
    call = moved(mesh, [S0, S1], [S1, S0])

    def gradient(tile: torch.Tensor) -> torch.Tensor:
        tile = tile.detach().requires_grad_()
        return torch.autograd.grad(call(tile).square().sum(), tile)[0]

    wrong = []
    for mode in MODES:
        graph = make_fx(gradient, tracing_mode=mode)(one)
        wrong.append(unless(not (fault := faults_of(graph.graph, 2)), f"{mode}: {fault}"))
        wrong.append(unless(same(graph(other), 2 * other), f"{mode}: {graph(other)}"))
    return wrong


def shapes_alone(rank: int) -> list[str]:
    """Tensors without values have a result without values, of the right shape."""
    wrong = []
    for number, inside in enumerate((True, False)):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", f"c{number}"))
        call, mode = moved(mesh, [S0, S0], [S1, R]), FakeTensorMode()
        with mode:
            tile = torch.empty(2, 8)
            result = call(tile) if inside else None
        result = call(tile) if result is None else result
        wrong.append(unless(result.shape == (8, 4), f"{inside}: {result}"))
    return wrong


def an_exported_module(rank: int) -> list[str]:
    """Of local tensors and of DTensors, where torch exports those: once their specs are constants to it."""
    _pytree.register_constant(DTensorSpec)
    mesh = init_device_mesh("cpu", (2, 2))
    one, other = tiles(mesh, [S0, S0])
    call = moved(mesh, [S0, S0], [S1, S1])
    x, y = (DTensor.from_local(tile, mesh, [S0, S0], run_check=False) for tile in (one, other))

    class OfTiles(torch.nn.Module):
        def forward(self, tile: torch.Tensor) -> torch.Tensor:
            return call(tile)

    class OfDTensors(torch.nn.Module):
        def forward(self, x: DTensor) -> DTensor:
            return rs.torch.redistribute(x, [S1, S1])

    wrong = []
    for strict in (False, True):
        program = torch.export.export(OfTiles(), (one,), strict=strict)
        wrong.append(unless(not (fault := faults_of(program.graph, 1)), f"{strict}: {fault}"))
        wrong.append(unless(same(program.module()(other), call(other)), f"tiles, {strict}"))
        program = torch.export.export(OfDTensors(), (x,), strict=strict)
        wrong.append(unless(not (fault := faults_of(program.graph, 1)), f"{strict}: {fault}"))
        wrong.append(unless(same(program.module()(y).to_local(), call(other)), f"DTensors, {strict}"))
    return wrong


def what_cannot_be_traced_is_refused(rank: int) -> list[str]:
    """Memory and promises, which a graph has none of; einsums and programs; none of them when called eagerly."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
    one, other = tiles(mesh, [S0, S0])
    names = rs.torch.mesh_of(mesh)
    program = rs.Program(names)
    a = program.input("a", (8, 8), "float32", rs.Sharding.of(names, ("x", "y"), None))
    program.output(program.op("ij,kj->ik", a, a))
    function = rs.torch.to_torch(program.propagate())

    def product(tile: torch.Tensor) -> torch.Tensor:
        x = DTensor.from_local(tile, mesh, [S0, S0], run_check=False)
        return rs.torch.einsum("ij,kj->ik", x, x, target=[S1, S1]).to_local()

    def placed(tile: torch.Tensor) -> torch.Tensor:
        result = function(DTensor.from_local(tile, mesh, [S0, S0], run_check=False))
        assert isinstance(result, DTensor)
        return result.to_local()

    memory = {"out": torch.empty(8, 2), "workspace": torch.empty(1000)}
    cases: list[tuple[str, Local]] = [
        ("async_op, out and workspace", moved(mesh, [S0, S0], [S1, S1], async_op=True)),
        *(
            ("async_op, out and workspace", moved(mesh, [S0, S0], [S1, S1], **{name: room}))
            for name, room in memory.items()
        ),
        ("an einsum of DTensors cannot be traced", product),
        ("a program on DTensors cannot be traced", placed),
    ]
    wrong = []
    for words, call in cases:
        wanted = call(other).clone()
        for mode in MODES:
            try:
                make_fx(call, tracing_mode=mode)(one)
                wrong.append(f"{words}: not refused when traced {mode}")
            except rs.ReshardError as error:
                wrong.append(unless(error.code == "bad-argument" and words in str(error), f"{error.code} {error}"))
        wrong.append(unless(same(call(other), wanted), f"{words}: the next call"))
    for call in (product, placed):  # under the compiler they break the graph
        torch._dynamo.reset()
        compiled = torch.compile(call, backend="aot_eager")
        compiled(one)
        wrong.append(unless(same(compiled(other), call(other)), f"{call} compiled"))
    return wrong
