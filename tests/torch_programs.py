"""What each rank does to check `reshard.torch.to_torch`: placed programs on DTensors, held to torch on the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from blocks import CASES
from programs import conflicting, generate, subscripts
from test_shifts import Drawn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch_ranks import counted_traffic, made_once, unless

import reshard as rs
from reshard.propagation import Program, Value

SEEDS = 40


def square() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))


def whole(program: Program, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The outputs by torch, of tensors that are not cut."""
    values: dict[Value, torch.Tensor] = {}
    outputs = []
    for operation in program.operations:
        given = [values[operand] for operand in operation.operands]
        value, pattern = operation.result, operation.pattern
        if operation.name == "input":
            made = inputs[value.name]
        elif operation.name == "output":
            made = given[0]
            outputs.append(made)
        elif operation.name == "reshape":
            made = given[0].reshape(value.shape)
        elif operation.name == "broadcast":
            kept = [pattern.output.index(group) for group in pattern.operands[0]]
            made = given[0][tuple(slice(None) if dim in kept else None for dim in range(len(value.shape)))]
            made = made.expand(value.shape)
        elif operation.name in ("einsum", "sum", "transpose"):
            made = torch.einsum(subscripts(pattern), *given)
        else:
            made = {"add": torch.add, "tanh": torch.tanh}[operation.name](*given)
        values[value] = made
    return outputs


def random_programs(rank: int) -> list[str]:
    """Values, placements and gradients of programs with and without conflicts; bytes received are those of plans."""
    wrong, done = [], 0
    mesh = square()
    for make in (generate, conflicting):
        for seed in range(SEEDS):
            program = make(seed)
            if program.mesh.size != 4 or sum(torch.Size(value.shape).numel() for value in program.values) > 100_000:
                continue
            placed = made_once(rank, program.propagate)
            try:
                ends = [
                    rs.torch.placements_of(placed.sharding(value.name), mesh, value.shape)
                    for value in (*program.inputs, *program.outputs)
                ]
            except rs.ReshardError as error:
                if error.code != "cannot-express":
                    raise
                continue
            done += 1
            wrong += [f"{make.__name__} {seed}: {text}" for text in compared(program, placed, ends, mesh, rank) if text]
    return [*wrong, unless(done >= 12, f"only {done} programs")]


def compared(program: Program, placed: Any, ends: list[Any], mesh: DeviceMesh, rank: int) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    values = program.inputs
    tensors = [torch.randint(-2, 3, value.shape, generator=generator).float() for value in values]
    function = rs.torch.to_torch(placed)
    mine = [distribute_tensor(x, mesh, end).requires_grad_() for x, end in zip(tensors, ends, strict=False)]
    with counted_traffic() as traffic:
        made = function(*mine)
    found = [made] if isinstance(made, DTensor) else list(made)
    theirs = [x.clone().requires_grad_() for x in tensors]
    right = whole(program, dict(zip((value.name for value in values), theirs, strict=True)))
    wrong = []
    for one, other, end in zip(found, right, ends[len(values) :], strict=True):
        wrong.append(one.placements == end and close(one, other))
    planned = sum(plan.received_bytes_on(rank) for plan in placed.plans.values())
    flows = [torch.randint(-2, 3, tuple(x.shape), generator=generator).float() for x in right]
    given = [distribute_tensor(flow, mesh, [Replicate(), Replicate()]) for flow in flows]
    got = torch.autograd.grad(found, mine, given, allow_unused=True)
    wanted = torch.autograd.grad(right, theirs, flows, allow_unused=True)
    grads = [(g is None) == (w is None) and (g is None or close(g, w)) for g, w in zip(got, wanted, strict=True)]
    return [
        unless(all(wrong), f"values {wrong}"),
        unless(traffic.received == planned, f"received {traffic.received}, planned {planned}"),
        unless(all(grads), f"gradients {grads}"),
    ]


def close(one: DTensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.full_tensor(), other, rtol=1e-3, atol=1e-2)


def operations_of_all_kinds(rank: int) -> list[str]:
    """Rows of a table, slices, pads, joins, reductions, softmax, selects; with gradients where there are any."""
    device_mesh = square()
    mesh = rs.torch.mesh_of(device_mesh)
    program = Program(mesh)
    table = program.input("table", (10, 8), "float32", rs.Sharding.of(mesh, "x", "y"))
    rows = program.input("rows", (4, 6), "int32", rs.Sharding.of(mesh, "y", None))
    e = program.take(table, rows)
    s = program.pad(program.slice(e, (0, 1, 0), (4, 5, 8)), (0, 0, 0), (0, 2, 0), fill=3)
    c = program.concatenate([s, e], 1)
    p = program.op("abc->abc", c, name="softmax", replicated="b")
    m = program.op("abc->ab", program.op("abc,abc->abc", p, c, name="mul"), name="sum")
    n = program.op("ab,ab->ab", m, program.constant(2.0, (4, 12)), name="div")
    program.output(program.op("ab->ab", n, name="silu"), rs.Sharding.of(mesh, None, "x"))
    program.output(program.op("abc->a", c, name="max"))
    function = rs.torch.to_torch(program.propagate())
    generator = torch.Generator().manual_seed(0)
    whole_table = torch.randn(10, 8, generator=generator)
    whole_rows = torch.randint(0, 10, (4, 6), generator=generator, dtype=torch.int32)
    mine = distribute_tensor(whole_table, device_mesh, [Shard(0), Shard(1)]).requires_grad_()
    other = distribute_tensor(whole_rows, device_mesh, [Replicate(), Replicate()])  # it is brought to where it must be
    theirs = whole_table.clone().requires_grad_()
    taken = theirs[whole_rows.long()]
    joined = torch.cat([torch.nn.functional.pad(taken[:, 1:5], (0, 0, 0, 2), value=3.0), taken], 1)
    right = torch.nn.functional.silu((joined.softmax(1) * joined).sum(2) / 2)
    found, largest = function(mine, other)
    (got,) = torch.autograd.grad([found], [mine], [distribute_tensor(torch.ones(4, 12), device_mesh, [Shard(0)] * 2)])
    (wanted,) = torch.autograd.grad([right], [theirs], [torch.ones(4, 12)])
    return [
        unless(close(found, right), f"{found.full_tensor()} for {right}"),
        unless(close(largest, joined.amax((1, 2))), f"{largest}"),
        unless(got.placements == mine.placements and close(got, wanted), f"{got.full_tensor()} for {wanted}"),
    ]


def shifts(rank: int) -> list[str]:
    """What is read beyond the edges of tiles, with gradients, and no byte but that of plans."""
    device_mesh, wrong = square(), []
    mesh = rs.torch.mesh_of(device_mesh)
    for rows, cut, placements in ((12, ("x", "y"), [Shard(0), Shard(0)]), (7, "x", [Shard(0), Replicate()])):
        program = Program(mesh)
        a = program.input("a", (rows, 3), "float32", rs.Sharding.of(mesh, cut, None))
        rolled = program.op("ij,ij->ij", a, program.roll(a, (4,), (0,)), name="mul")
        inner = program.pad(program.slice(rolled, (1, 0), (rows - 1, 3)), (2, 0), (0, 0), 3.0)
        turned = program.op("ij,ij->ij", program.reverse(inner, (0,)), program.running("cumsum", a, 0), name="add")
        program.output(turned, rs.Sharding.of(mesh, cut, None))
        placed = program.propagate(goal="bytes")
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
        mine, theirs = distribute_tensor(x, device_mesh, placements).requires_grad_(), x.clone().requires_grad_()
        with counted_traffic() as traffic:
            found = rs.torch.to_torch(placed)(mine)
        padded = torch.nn.functional.pad((theirs * theirs.roll(4, 0))[1:-1], (0, 0, 2, 0), value=3.0)
        right = padded.flip(0) + theirs.cumsum(0)
        planned = sum(plan.received_bytes_on(rank) for plan in placed.plans.values())
        found.backward(distribute_tensor(torch.ones(rows, 3), device_mesh, placements))
        right.backward(torch.ones(rows, 3))
        assert mine.grad is not None
        wrong += [
            unless(close(found.detach(), right.detach()), f"{rows}: {found.full_tensor()} for {right}"),
            unless(traffic.received == planned, f"{rows}: received {traffic.received}, planned {planned}"),
            unless(close(mine.grad, theirs.grad), f"{rows}: {mine.grad.full_tensor()} for {theirs.grad}"),
        ]
    return wrong


def drawn_shifts(rank: int) -> list[str]:
    """Drawn programs of shifts: windows that end early, go round more than once, or have nothing."""
    device_mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("x",))
    wrong = []
    for seed in range(40):
        drawn = Drawn(seed, [rs.torch.mesh_of(device_mesh)])
        placed = drawn.program.propagate(goal="bytes")
        given = [
            distribute_tensor(
                torch.tensor(drawn.inputs[value.name]),
                device_mesh,
                rs.torch.placements_of(placed.sharding(value), device_mesh, value.shape),
            )
            for value in placed.inputs
        ]
        with counted_traffic() as traffic:
            found = rs.torch.to_torch(placed)(*given)
        planned = sum(plan.received_bytes_on(rank) for plan in placed.plans.values())
        wrong += [
            unless(close(found, torch.tensor(np.array(drawn.expected))), f"seed {seed}: {found.full_tensor()}"),
            unless(traffic.received == planned, f"seed {seed}: received {traffic.received}, planned {planned}"),
        ]
    return wrong


def programs_on_two_meshes(rank: int) -> list[str]:
    """A value goes from two of the ranks to the two others."""
    first, second = DeviceMesh("cpu", [0, 1], mesh_dim_names=("a",)), DeviceMesh("cpu", [3, 2], mesh_dim_names=("b",))
    here, there = rs.torch.mesh_of(first), rs.torch.mesh_of(second)
    program = Program({"here": here, "there": there})
    a = program.input("a", (8, 4), "float32", rs.Sharding.of(here, "a", None))
    w = program.input("w", (4, 6), "float32", rs.Sharding.of(there, None, "b"))
    h = program.op("ij->ij", a, name="tanh")
    moved = program.reshard(h, rs.Sharding.of(there, None, None))
    program.output(program.op("ij,jk->ik", moved, w), rs.Sharding.of(there, "b", None))
    x, y = torch.arange(32.0).reshape(8, 4) / 16, torch.arange(24.0).reshape(4, 6)

    def put(whole_: torch.Tensor, mesh: DeviceMesh, placement: Any) -> DTensor:
        where = mesh.get_coordinate()
        local = torch.empty(0) if where is None else whole_.chunk(2, placement.dim)[where[0]].contiguous()
        tensor = DTensor.from_local(
            local, mesh, [placement], run_check=False, shape=whole_.shape, stride=whole_.stride()
        )
        return tensor.requires_grad_()

    mine = [put(x, first, Shard(0)), put(y, second, Shard(1))]
    made = rs.torch.to_torch(program.propagate())(*mine)
    flow = torch.ones(8, 6)
    got = torch.autograd.grad([made], mine, [put(flow, second, Shard(0)).detach()])
    theirs = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    right = torch.tanh(theirs[0]) @ theirs[1]
    wanted = torch.autograd.grad([right], theirs, [flow])
    pairs = [(made, put(right.detach(), second, Shard(0)))]
    pairs += [(got[0], put(wanted[0], first, Shard(0))), (got[1], put(wanted[1], second, Shard(1)))]
    return [
        unless(torch.allclose(one.to_local(), other.to_local()), f"{one.to_local()} for {other.to_local()}")
        for one, other in pairs
    ]


def loops_and_choices(rank: int) -> list[str]:
    """What plain NumPy computes; the gradient through a loop; every turn's bytes."""
    device_mesh, wrong = square(), []
    for name, case in CASES.items():
        program, arrays, wanted = case()
        placed = made_once(rank, program.propagate)
        function = rs.torch.to_torch(placed, device_mesh)
        ends = [
            rs.torch.placements_of(placed.sharding(value), device_mesh, value.shape)
            for value in (*program.inputs, *program.outputs)
        ]
        inputs = [
            distribute_tensor(torch.from_numpy(arrays[value.name]), device_mesh, end)
            for value, end in zip(program.inputs, ends, strict=False)
        ]
        inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
        with counted_traffic() as traffic:
            results = function(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        for result, (output, right) in zip(results, wanted.items(), strict=True):
            wrong.append(unless(close(result, torch.from_numpy(right)), f"{name} {output}: {result} for {right}"))
        if name == "scanned":
            planned = sum(plan.received_bytes_on(rank) * placed.trip_count(v) for v, plan in placed.plans.items())
            wrong.append(unless(traffic.received == planned, f"received {traffic.received}, planned {planned}"))
            flow = distribute_tensor(torch.ones(6, 5), device_mesh, [Replicate(), Replicate()])
            (gradient,) = torch.autograd.grad(results[0], inputs[:1], flow)
            w = torch.from_numpy(arrays["w"])
            right = -torch.ones(6, 5) @ w[2].T @ w[1].T @ w[0].T
            wrong.append(unless(close(gradient, right), f"gradient {gradient} for {right}"))
    return wrong


def what_cannot_be_is_refused(rank: int) -> list[str]:
    device_mesh = square()
    mesh = rs.torch.mesh_of(device_mesh)
    program = Program(mesh)
    a = program.input("a", (4, 6), "float32", rs.Sharding.of(mesh, "x", None))
    program.output(program.op("ij->ij", a, name="riddle", opaque=True))
    strange = rs.torch.to_torch(program.propagate())
    x = distribute_tensor(torch.zeros(4, 6), device_mesh, [Shard(0), Replicate()])
    cases: list[tuple[str, Any, str]] = [
        ("bad-program", lambda: strange(x), "operation riddle is not known here"),
        ("bad-argument", strange, "has 1 inputs, got 0"),
        ("bad-argument", lambda: strange(torch.zeros(4, 6)), "must be a DTensor"),
        ("bad-shape", lambda: strange(x.double()), "of torch.float64"),
        ("bad-argument", lambda: rs.torch.to_torch(program), "must be a Placement"),
    ]
    wrong = []
    for code, call, words in cases:
        try:
            call()
            wrong.append(f"{words} is not refused")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == code and words in str(error), f"{error.code}: {error}"))
    return wrong
