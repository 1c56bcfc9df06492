"""What each rank does under `install`: torch's own calls and operations, each against the same without plans."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import functional
from torch.utils._debug_mode import DebugMode
from torch_problems import same
from torch_ranks import unless

import reshard as rs

R, P = Replicate(), Partial()
S0, S1, S2 = Shard(0), Shard(1), Shard(2)
Case = tuple[str, Callable[[], Any]]


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, so that sums are exact in any order."""
    return ((torch.arange(torch.Size(shape).numel()) * 7 + 3) % 13 - 5).reshape(shape).to(dtype)


def flat(values: Any) -> list[Any]:
    """Local tensors and placements of all DTensors in a result, in order."""
    if isinstance(values, DTensor):
        return [values.to_local().detach(), str(values.placements), tuple(values.shape), tuple(values.stride())]
    if isinstance(values, list | tuple):
        return [part for value in values for part in flat(value)]
    return [values.detach() if isinstance(values, torch.Tensor) else values]


class Sampling:
    """Which of the cases are run: each whose number the stride divides."""

    stride = 1
    cases = 0


def differing(case: Case, *, close: bool = False) -> str:
    """How the result of a case under plans differs from that of torch alone; or what was handed back."""
    name, call = case
    Sampling.cases += 1
    if Sampling.cases % Sampling.stride:
        return ""
    theirs = flat(call())
    with rs.torch.install() as installation:
        ours = flat(call())
    if installation.handed_back:
        return f"{name}: handed back {dict(installation.handed_back)}"
    for mine, other in zip(ours, theirs, strict=True):
        equal = (
            (torch.allclose(mine, other, atol=1e-5) if close else same(mine, other))
            if isinstance(mine, torch.Tensor)
            else mine == other
        )
        if not equal:
            return f"{name}: {mine} for {other}"
    return ""


def a_sample_of_all(rank: int) -> list[str]:
    """Every ninth of the cases of all families."""
    Sampling.stride = 9
    families = (redistributes, partial_values, products, pointwise, embeddings_and_losses)
    try:
        return [text for family in families for text in family(rank)]
    finally:
        Sampling.stride = 1


def redistributes(rank: int) -> list[str]:
    """All pairs of placements on one and two mesh dims, even and uneven, forwards and backwards."""
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    wrong = []
    for mesh, shape in itertools.product((line, square), ((8, 12), (5, 6), (3, 7))):
        for before, after in itertools.product(itertools.product((R, S0, S1), repeat=mesh.ndim), repeat=2):

            def call(mesh: Any = mesh, shape: Any = shape, before: Any = before, after: Any = after) -> Any:
                x = distribute_tensor(rows(*shape), mesh, before).requires_grad_()
                y = x.redistribute(mesh, after)
                (y * y).sum().backward()
                return y, x.grad, y.full_tensor()

            wrong.append(differing((f"{shape} {before} -> {after}", call)))
    return wrong


def partial_values(rank: int) -> list[str]:
    """Every reduction, of several dtypes, to replicas and shards; what becomes partial inside of torch."""
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    wrong = []
    for reduction, dtype in itertools.product(
        ("sum", "avg", "max", "min"), (torch.float32, torch.int64, torch.float64)
    ):
        if reduction == "avg" and dtype == torch.int64:
            continue
        part = Partial(reduction)
        pairs: list[tuple[DeviceMesh, list[Placement], list[Placement]]] = [
            (line, [part], [R]), (line, [part], [S0]), (line, [part], [S1]), (square, [part, part], [R, R]),
            (square, [part, S0], [S0, S1]), (square, [S1, part], [S1, S0]), (square, [part, R], [part, S0]),
            (square, [R, part], [S1, part]),
        ]  # fmt: skip
        for mesh, before, after in pairs:

            def call(mesh: Any = mesh, before: Any = before, after: Any = after, dtype: Any = dtype) -> Any:
                tile = rows(8, 4, dtype=dtype) + rank
                return DTensor.from_local(tile, mesh, before, run_check=False).redistribute(mesh, after)

            wrong.append(differing((f"{dtype} {before} -> {after}", call)))

    def into_partial() -> Any:  # torch's own gradient of a replica that is used in parts
        x = distribute_tensor(rows(4, 4), line, [R]).requires_grad_()
        local = x.to_local(grad_placements=[P])
        (local * (rank + 1)).sum().backward()
        return x.grad

    def masks() -> Any:
        positive = distribute_tensor(rows(8, 8) > 0, square, [S0, S0])
        mixed = distribute_tensor(rows(8, 8) > 0, square, [S0, S1])
        return [t.full_tensor() for t in (positive.any(0), positive.all(0), mixed.any(), mixed.all(), mixed.any(1))]

    def norms() -> Any:
        x = distribute_tensor(rows(8, 6), square, [S0, S1])
        orders = (1, 2, 3, float("inf"))
        return [torch.linalg.vector_norm(x, order).full_tensor() for order in orders] + [
            torch.linalg.vector_norm(x, 2, dim=0).full_tensor()
        ]

    def divided() -> Any:  # `Redistribute` lets values become partial, which its caller may not
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
        from torch.distributed.tensor._redistribute import redistribute_local_tensor  # looked up when it is called

        meta = TensorMeta(torch.Size((4, 4)), (4, 1), torch.float32)
        ends = [DTensorSpec(square, places, tensor_meta=meta) for places in ((R, S0), (P, S0))]
        return redistribute_local_tensor(rows(2, 4), *ends)

    return wrong + [differing((call.__name__, call), close=True) for call in (into_partial, masks, norms, divided)]


def products(rank: int) -> list[str]:
    """mm, addmm, bmm, baddbmm, einsum and attention of every mix of placements, with gradients."""
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    wrong = []
    for left, right in itertools.product((R, S0, S1, P), repeat=2):

        def mm(left: Any = left, right: Any = right) -> Any:
            a, b = (DTensor.from_local(rows(8, 8) if place.is_partial() else
                    distribute_tensor(rows(8, 8), line, [place]).to_local(), line, [place], run_check=False)
                    .requires_grad_() for place in (left, right))  # fmt: skip
            product = torch.mm(a, b)
            value = product.redistribute(line, [R])
            value.sum().backward()
            return value, a.grad, b.grad

        wrong.append(differing((f"mm {left} {right}", mm), close=True))
    for left, right in itertools.product(itertools.product((R, S0, S1), repeat=2), repeat=2):

        def matmul(left: Any = left, right: Any = right) -> Any:
            a, b = distribute_tensor(rows(8, 12), square, left), distribute_tensor(rows(12, 8), square, right)
            return (a @ b).full_tensor()

        wrong.append(differing((f"matmul {left} {right}", matmul), close=True))
    for places in itertools.product((R, S0, S1, S2), repeat=2):

        def batched(places: Any = places) -> Any:
            a, b = (distribute_tensor(rows(4, 4, 4), line, [place]) for place in places)
            c = distribute_tensor(rows(4, 4, 4), line, [R])
            results = torch.bmm(a, b), torch.baddbmm(c, a, b, beta=2), torch.einsum("bij,bjk->bik", a, b)
            return [result.full_tensor() for result in results]

        wrong.append(differing((f"bmm {places}", batched), close=True))
    for place, bias in itertools.product((R, S0, S1), repeat=2):

        def biased(place: Any = place, bias: Any = bias) -> Any:
            a, b = distribute_tensor(rows(8, 4), line, [S0]), distribute_tensor(rows(4, 8), line, [place])
            return torch.addmm(distribute_tensor(rows(8, 8), line, [bias]), a, b).full_tensor()

        wrong.append(differing((f"addmm {place} {bias}", biased), close=True))

    def attention() -> Any:
        q, k, v = (distribute_tensor(rows(4, 4, 4, 4) / (n + 3), line, [S1]) for n in range(3))
        return functional.scaled_dot_product_attention(q, k, v).full_tensor()

    return [*wrong, differing(("attention", attention), close=True)]


def pointwise(rank: int) -> list[str]:
    """Operands of different placements meet: by an implicit redistribution of the one or the other."""
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    wrong = []
    functions: list[Callable[[Any, Any], Any]] = [
        torch.add, torch.mul, torch.maximum, lambda a, b: torch.where(a > b, a, b), lambda a, b: a.sigmoid() - b,
        lambda a, b: torch.lerp(a, b, 0.5),
    ]  # fmt: skip
    for function, (left, right) in itertools.product(functions, itertools.permutations((R, S0, S1), 2)):

        def meet(function: Any = function, left: Any = left, right: Any = right) -> Any:
            a, b = distribute_tensor(rows(8, 6), line, [left]), distribute_tensor(rows(8, 6) + 1, line, [right])
            return function(a, b).full_tensor()

        wrong.append(differing((f"{function} {left} {right}", meet)))
    whole = rows(8, 12)
    calls: list[Callable[[Any], Any]] = [
        lambda x: x.sum(0), lambda x: x.mean(), lambda x: x.amax(1), lambda x: x.softmax(0), lambda x: x.cumsum(1),
        lambda x: x.argmax(0), lambda x: torch.topk(x, 2, 0)[0], lambda x: x.sort(1)[0], lambda x: x.var(0),
        lambda x: functional.layer_norm(x, (12,)), lambda x: torch.cat([x, x + 1]), lambda x: torch.stack([x, x]),
        lambda x: x.reshape(4, 2, 12), lambda x: x.t() @ x, lambda x: x[1:5], lambda x: x.log_softmax(1),
        lambda x: x.index_select(0, torch.tensor([1, 3])), lambda x: functional.pad(x, (1, 1)), lambda x: x.roll(1, 0),
    ]  # fmt: skip
    for number, places in itertools.product(range(len(calls)), ([S0, S1], [S1, S1])):

        def one(number: int = number, places: Any = places) -> Any:
            result = calls[number](distribute_tensor(whole, square, places))
            return result.full_tensor()

        try:
            one()
        except (RuntimeError, NotImplementedError, ValueError, KeyError):
            continue  # torch has no strategy for it
        wrong.append(differing((f"call {number} of {places}", one), close=True))
    return wrong


def embeddings_and_losses(rank: int) -> list[str]:
    """Weights cut by rows, by columns, not at all; gradients; a loss over a cut vocabulary; layers cut by torch."""
    line = init_device_mesh("cpu", (4,))
    tokens = (torch.arange(12) * 5 % 16).reshape(3, 4)
    wrong = []
    for weight, index, wanted in itertools.product((R, S0, S1), (R, S0), ([R], [S0], [S1])):

        def embedded(weight: Any = weight, index: Any = index, wanted: Any = wanted) -> Any:
            table = distribute_tensor(rows(16, 8), line, [weight]).requires_grad_()
            value = functional.embedding(distribute_tensor(tokens, line, [index]), table).redistribute(line, wanted)
            (value * value).sum().backward()
            return value, table.grad.full_tensor()

        wrong.append(differing((f"embedding {weight} {index} {wanted}", embedded), close=True))

    def loss() -> Any:
        logits = distribute_tensor(rows(6, 16) / 3, line, [S1]).requires_grad_()
        with loss_parallel():
            value = functional.cross_entropy(logits, torch.arange(6) * 2)
            value.backward()
        return value.full_tensor(), logits.grad

    def layers() -> Any:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        plan = {"0": RowwiseParallel(input_layouts=R), "1": ColwiseParallel(), "3": RowwiseParallel()}
        parallelize_module(model, line, plan)
        model(tokens).square().sum().backward()
        total = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        gradients = [parameter.grad.full_tensor() for parameter in model.parameters()]
        return [total.full_tensor(), *gradients]

    return wrong + [differing(case, close=True) for case in (("loss", loss), ("layers", layers))]


def what_torch_shows(rank: int) -> list[str]:
    """An all-to-all in each of torch's own tools, for types too that gloo refuses; none where nothing travels."""
    square = init_device_mesh("cpu", (2, 2))
    wrong = []
    for dtype in (torch.float32, torch.int16, torch.float8_e4m3fn, torch.bool):
        x = DTensor.from_local(rows(8, 6).to(dtype), square, [R, R], run_check=False)
        with rs.torch.install():
            y = x.redistribute(square, [S0, S1])
            with CommDebugMode() as counted, DebugMode() as shown:
                z = y.redistribute(square, [S1, S0])
            counts = {str(name): count for name, count in counted.get_comm_counts().items()}
            text = shown.debug_string()
            with torch.profiler.profile() as profile:
                y.redistribute(square, [S0, R])
            names = {event.key for event in profile.key_averages()}
            with CommDebugMode() as silent:
                x.redistribute(square, [S1, S0])
        expected = x.redistribute(square, [S1, S0])
        wrong.append(unless(same(z.to_local(), expected.to_local()), f"{dtype}: {z}"))
        wrong.append(unless(counts == {"c10d.alltoall_base_": 1}, f"{dtype}: {counts}"))
        wrong.append(unless("S(0)S(1)->S(1)S(0)" in text and "alltoall_base_" in text, f"{dtype}: {text}"))
        wrong.append(unless(any("alltoall" in name for name in names), f"{dtype}: {names}"))
        wrong.append(unless(silent.get_total_counts() == 0, f"{dtype}: {silent.get_comm_counts()}"))
    return wrong


def graphs(rank: int) -> list[str]:
    """Compiled functions of torch's calls and operations have the operator of plans, with gradients."""
    square = init_device_mesh("cpu", (2, 2))
    whole = rows(8, 8)
    wrong = []

    def step(x: DTensor, w: DTensor) -> DTensor:
        return (x.redistribute(placements=[S1, S0]) @ w).redistribute(placements=[S0, S1])

    with rs.torch.install() as installation:
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        for scale in (1, 2):
            x = distribute_tensor(whole * scale, square, [S0, S1]).requires_grad_()
            w = distribute_tensor(whole.t().contiguous(), square, [R, S1]).requires_grad_()
            y = compiled(x, w)
            y.sum().backward()
            fine = torch.allclose(y.full_tensor(), whole * scale @ whole.t())
            wrong.append(unless(fine and list(y.placements) == [S0, S1], f"{y}"))
            total = whole.t().sum(1).expand(8, 8)
            wrong.append(unless(x.grad is not None and torch.allclose(x.grad.full_tensor(), total), f"{x.grad}"))
    wrong.append(unless(installation.planned > 4 and not installation.handed_back, f"{installation.handed_back}"))
    return wrong


def what_is_installed_comes_out(rank: int) -> list[str]:
    """Torch's function is back after a `with`, an error in it, `remove` and `uninstall`; two at once are refused."""
    from torch.distributed.tensor import _api, _dispatch, _redistribute

    def present() -> list[Any]:
        return [module.redistribute_local_tensor for module in (_api, _dispatch, _redistribute)]

    before, wrong = present(), []
    with rs.torch.install() as installation:
        wrong.append(unless(all(now != then for now, then in zip(present(), before, strict=True)), "not there"))
        try:
            rs.torch.install()
            wrong.append("two were installed")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "bad-argument", error))
    wrong.append(unless(present() == before, "after a with"))
    try:
        with rs.torch.install():
            raise KeyError
    except KeyError:
        wrong.append(unless(present() == before, "after an error"))
    rs.torch.install()
    installation.remove()  # what is over removes nothing
    wrong.append(unless(present() != before, "removed by another"))
    rs.torch.uninstall()
    rs.torch.uninstall()
    wrong.append(unless(present() == before, "after uninstall"))
    return wrong


def what_is_handed_back(rank: int) -> list[str]:
    """What has no plan runs as torch runs it, and is counted by its reason."""
    square = init_device_mesh("cpu", (2, 2))
    other = init_device_mesh("cpu", (4,))
    wrong = []
    x = distribute_tensor(rows(8, 8), square, [S0, S1])
    with rs.torch.install() as installation:
        try:
            x.redistribute(other, [S1])
            wrong.append("another mesh was taken")
        except (NotImplementedError, RuntimeError):
            pass
        counts = dict(installation.handed_back)
        wrong.append(unless(counts == {"another mesh": 1}, f"{counts}"))
        whole = distribute_tensor(rows(24, 2), square, [R, R])
        strided = whole.redistribute(square, [_StridedShard(0, split_factor=3), R])
        value = strided.redistribute(square, [R, R])
        wrong.append(unless(same(value.to_local(), rows(24, 2)), f"{value}"))
    reasons = [reason.partition(":")[0] for reason in installation.handed_back]
    wrong.append(unless(set(reasons) <= {"another mesh", "cannot-express"}, f"{reasons}"))
    table, tokens = distribute_tensor(rows(16, 8), other, [S0]), distribute_tensor(torch.arange(6), other, [R])
    rowwise = "a table cut by rows", lambda: functional.embedding(tokens, table).redistribute(other, [R])
    return [*wrong, differing(rowwise)]
