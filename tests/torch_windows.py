"""What ranks do for `test_torch_windows`: each function gives what is wrong on its rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dealt
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch_ranks import counted_traffic, unless

import reshard as rs

RS: Any = rs.torch


def _numbers(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-9, 9, shape, generator=generator).double()


def _mesh(*shape: int) -> Any:
    return init_device_mesh("cpu", shape, mesh_dim_names=tuple("xyz"[: len(shape)]))


def halos(rank: int) -> Iterator[str]:
    """Windows of fixed widths hold what index arithmetic says, bring only what lacks, and their gradients add up."""
    line, square = _mesh(4), _mesh(2, 2)
    cases: list[tuple[Any, list[Any], tuple[int, ...], dict[int, tuple[int, int]]]] = [
        (line, [Shard(0)], (13, 2), {0: (1, 2)}),
        (line, [Shard(0)], (6,), {0: (3, 4)}),
        (line, [Shard(1)], (2, 9), {1: (0, 1), 0: (1, 1)}),
        (square, [Shard(0), Shard(1)], (7, 5), {0: (1, 1), 1: (2, 1)}),
        (square, [Shard(0), Shard(0)], (11,), {0: (2, 2)}),
        (square, [Replicate(), Shard(0)], (8,), {0: (1, 1)}),
    ]
    for mesh, placements, shape, widths in cases:
        for edge in ("clip", "wrap", "pad"):
            whole = _numbers(shape)
            x = distribute_tensor(whole, mesh, placements).requires_grad_()
            sharding = RS.sharding_of(x).with_halo(widths, edge)
            expected = dealt.cut(whole.numpy(), sharding)
            with counted_traffic() as traffic:
                found = RS.halo(x, widths, edge, check="never")
            text = f"{placements} {shape} {widths} {edge}"
            yield unless(np.array_equal(found.detach().numpy(), expected[rank]), f"{text}: {found} {expected[rank]}")
            lacks = dealt.missing(RS.sharding_of(x), sharding, shape)[rank] * 8
            yield unless(traffic.received == lacks, f"{text}: {traffic.received} bytes received, {lacks} lack")
            weights = {device: _numbers(tile.shape).numpy() for device, tile in expected.items()}
            found.backward(torch.from_numpy(weights[rank]))
            replicas = 2 if isinstance(placements[0], Replicate) else 1
            total = torch.from_numpy(dealt.whole_sum(sharding, shape, weights)) / replicas
            gradient = distribute_tensor(total, mesh, placements).to_local()
            yield unless(torch.equal(x.grad.to_local(), gradient), f"{text}: gradient {x.grad.to_local()} {gradient}")


def _compared(
    text: str,
    ours: Callable[..., DTensor],
    theirs: Callable[..., torch.Tensor],
    x: DTensor,
    *weights: DTensor,
    same: Callable[[torch.Tensor, torch.Tensor], bool] = torch.equal,
) -> Iterator[str]:
    """Values, and gradients of operand and weights, are those of the whole."""
    operands = [x.requires_grad_(), *(weight.requires_grad_() for weight in weights)]
    wholes = [operand.full_tensor().detach().requires_grad_() for operand in operands]
    with counted_traffic():  # no collective, and so nothing gathered by torch
        found = ours(*operands)
    expected = theirs(*wholes)
    yield unless(tuple(found.shape) == tuple(expected.shape), f"{text}: shape {found.shape}, not {expected.shape}")
    yield unless(tuple(found.placements) == tuple(x.placements), f"{text}: {found.placements}")
    yield unless(same(found.full_tensor(), expected), f"{text}: values")
    cotangent = _numbers(tuple(expected.shape))
    expected.backward(cotangent)
    found.backward(distribute_tensor(cotangent, found.device_mesh, found.placements))
    for number, (operand, whole) in enumerate(zip(operands, wholes, strict=True)):
        assert operand.grad is not None
        yield unless(same(operand.grad.full_tensor(), whole.grad), f"{text}: gradient of operand {number}")


def moves(rank: int) -> Iterator[str]:
    """Rolls, flips, pads and running sums are those of the whole."""
    line, square = _mesh(4), _mesh(2, 2)
    for mesh, placements, shape in (
        (line, [Shard(0)], (13, 2)),
        (line, [Shard(0)], (3,)),
        (square, [Shard(1), Shard(0)], (5, 6)),
        (square, [Shard(0), Shard(0)], (11,)),
        (square, [Replicate(), Shard(0)], (6, 2)),
    ):

        def check(text: str, ours: Any, theirs: Any) -> Iterator[str]:
            x = distribute_tensor(_numbers(shape), mesh, placements)  # noqa: B023
            yield from _compared(f"{text} {placements} {shape}", ours, theirs, x)  # noqa: B023

        for shift in (1, -2, 7, 0):
            yield from check(
                f"roll {shift}", partial(RS.roll, shifts=shift, dims=0), partial(torch.roll, shifts=shift, dims=0)
            )
        yield from check("flip", partial(RS.flip, dims=0), partial(torch.flip, dims=[0]))
        yield from check("cumsum", partial(RS.cumsum, dim=0), partial(torch.cumsum, dim=0))
        for widths in ((2, 1), (-1, 4)):
            each = [*(0, 0) * (len(shape) - 1), *widths]
            yield from check(f"pad {each}", partial(RS.pad, widths=each), partial(F.pad, pad=each))
    x = distribute_tensor(_numbers((2, 3, 10)), line, [Shard(2)])
    yield from _compared(
        "circular", partial(RS.pad, widths=[3, 2], mode="circular"), partial(F.pad, pad=[3, 2], mode="circular"), x
    )


def running_sums(rank: int) -> Iterator[str]:
    """What comes before a tile arrives alone: one row, and nothing on the first rank and on those without elements."""
    line, square = _mesh(4), _mesh(2, 2)
    for mesh, placements, shape, last in (
        (line, [Shard(0)], (13, 2), 3),
        (line, [Shard(1)], (3, 2), 1),
        (square, [Shard(1), Shard(0)], (5, 6), 3),
        (square, [Shard(0), Shard(0)], (11,), 3),
        (square, [Shard(0), Shard(0)], (2,), 2),  # the first rank of each pair has one
        (square, [_StridedShard(0, split_factor=2), Shard(0)], (16,), 3),
        (square, [Replicate(), Shard(0)], (6, 2), 1),
    ):
        for dtype in (torch.float64, torch.int32, torch.bool):
            whole = _numbers(shape).to(dtype)
            dim = next(place.dim for place in placements if not place.is_replicate())
            x = RS.redistribute(distribute_tensor(whole, mesh, [Replicate()] * mesh.ndim), placements)
            with counted_traffic() as traffic:
                found = RS.cumsum(x, dim)
            text = f"{placements} {shape} {dtype}"
            summed = RS.redistribute(found, [Replicate()] * mesh.ndim).to_local()
            yield unless(torch.equal(summed, whole.cumsum(dim)), f"{text}: {summed}")
            row = found.to_local().numel() // max(found.to_local().shape[dim], 1) * found.to_local().element_size()
            yield unless(traffic.received in (0, row), f"{text}: {traffic.received} bytes received, a row has {row}")
            yield unless(rank != 0 or traffic.received == 0, f"{text}: the first rank received {traffic.received}")
            yield unless(rank != last or traffic.received == row, f"{text}: the last received {traffic.received}")


def interleaved(rank: int) -> Iterator[str]:
    """Interleaved shards hold what torch's own hold, and go to all other placements and back, also uneven ones."""
    line, square = _mesh(4), _mesh(2, 2)
    cases: list[tuple[Any, list[Any], list[Any], tuple[int, ...]]] = [
        (line, [_StridedShard(0, split_factor=2)], [Shard(0)], (16, 3)),
        (line, [_StridedShard(0, split_factor=3)], [Replicate()], (26,)),
        (line, [_StridedShard(1, split_factor=2)], [_StridedShard(0, split_factor=2)], (7, 11)),
        (square, [Shard(0), _StridedShard(0, split_factor=2)], [Shard(0), Shard(0)], (17,)),
        (square, [Replicate(), _StridedShard(0, split_factor=2)], [Shard(1), Shard(0)], (9, 4)),
    ]
    for mesh, placements, others, shape in cases:
        whole = _numbers(shape)
        sharding = RS.sharding_of(placements, mesh, len(shape))
        text = f"{placements} {others} {shape}"
        yield unless(
            RS.placements_of(sharding, mesh) == tuple(placements), f"{text}: {RS.placements_of(sharding, mesh)}"
        )
        local = whole
        for mesh_dim, placement in enumerate(placements):  # as torch cuts, one mesh dim after the other
            if not placement.is_replicate():
                parts, _ = placement._split_tensor(local, mesh.size(mesh_dim), with_padding=False)
                local = parts[mesh.get_local_rank(mesh_dim)]
        yield unless(
            np.array_equal(local.numpy(), dealt.cut(whole.numpy(), sharding)[rank]), f"{text}: torch cuts else"
        )
        x = DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())
        with counted_traffic() as traffic:
            y = RS.redistribute(x, others, check="never")
        expected = dealt.cut(whole.numpy(), RS.sharding_of(others, mesh, len(shape)))[rank]
        yield unless(np.array_equal(y.to_local().numpy(), expected), f"{text}: {y.to_local()} {expected}")
        lacks = dealt.missing(sharding, RS.sharding_of(y), shape)[rank] * 8
        yield unless(traffic.received == lacks, f"{text}: {traffic.received} bytes received, {lacks} lack")
        back = RS.redistribute(y, placements)
        yield unless(torch.equal(back.to_local(), local), f"{text}: back {back.to_local()}")
    flat = distribute_tensor(_numbers((4, 8)), line, [Shard(1)]).flatten(0, 1)
    found = RS.redistribute(flat, [Shard(0)])
    yield unless(torch.equal(found.full_tensor(), _numbers((4, 8)).flatten()), f"{flat.placements} -> {found}")


def own_partials(rank: int) -> Iterator[str]:
    """Partial placements of torch's own operations come out as torch's redistribute has them, and go back."""
    line, square = _mesh(4), _mesh(2, 2)
    rows = distribute_tensor(_numbers((8, 6)), line, [Shard(0)])
    cells = distribute_tensor(_numbers((8, 6)), square, [Shard(0), Shard(1)])
    norms = [
        torch.linalg.vector_norm(rows, 2, 0),
        torch.linalg.vector_norm(rows, 3),
        torch.linalg.vector_norm(cells, 2, 1),
    ]
    truths = [(rows > 5).any(0), (rows > -9).all(0), (cells > 7).any(1), (cells < 8).all(0)]
    for x in (*norms, *truths):
        yield unless(
            any(placement.is_partial() for placement in x.placements), f"{x.placements} has nothing to combine"
        )
        whole = x.redistribute(x.device_mesh, [Replicate()] * x.device_mesh.ndim).to_local()
        ends: list[list[Any]] = [[Replicate()] * x.device_mesh.ndim]
        if x.ndim:
            ends.append([Shard(-1), *ends[0][1:]])
        for end in ends:
            found = RS.redistribute(x, end)
            text = f"{x.placements} -> {end}"
            yield unless(
                str(found.placements) == str(tuple(end)).replace("-1", "0") and found.dtype == x.dtype,
                f"{text}: {found.placements}",
            )
            yield unless(torch.allclose(found.full_tensor(), whole), f"{text}: {found.full_tensor()} for {whole}")
            back = RS.redistribute(found, x.placements)
            yield unless(back.placements == x.placements, f"{text} and back: {back.placements}")
            again = RS.redistribute(back, [Replicate()] * x.device_mesh.ndim)
            yield unless(torch.allclose(again.to_local(), whole), f"{text}, back and here: {again} for {whole}")
    table, places = _numbers((8, 4)), torch.tensor([[5, 0, 7], [2, 2, 6]])
    for mesh, cut in ((line, [Shard(0)]), (square, [Replicate(), Shard(0)])):
        for end in ([Replicate()] * mesh.ndim, [Replicate()] * (mesh.ndim - 1) + [Shard(2)]):
            weight = distribute_tensor(table, mesh, cut).requires_grad_()
            numbers = distribute_tensor(places, mesh, [Replicate()] * mesh.ndim)
            looked_up = F.embedding(numbers, weight)
            yield unless("MaskP" in str(looked_up.placements), f"{looked_up.placements}")
            with counted_traffic() as traffic:
                found = RS.redistribute(looked_up, end, check="never")
            text = f"embedding cut by {cut} -> {end}"
            yield unless(torch.equal(found.full_tensor(), F.embedding(places, table)), f"{text}: {found.full_tensor()}")
            sharded = rs.Sharding.of(RS.mesh_of(mesh), *[None] * 3, unreduced=["xyz"[mesh.ndim - 1]])
            plan = rs.plan(sharded, RS.sharding_of(found), (2, 3, 4), "float64")
            yield unless(traffic.received == plan.received_bytes_on(rank), f"{text}: {traffic.received} bytes")
            (found * found).sum().backward()
            theirs = table.clone().requires_grad_()
            (F.embedding(places, theirs) ** 2).sum().backward()
            yield unless(torch.equal(weight.grad.full_tensor(), theirs.grad), f"{text}: {weight.grad.full_tensor()}")
    whole = RS.sharding_of([Replicate()], line, 1)
    yield unless(torch.equal(RS.redistribute(norms[0], whole).to_local(), norms[0].full_tensor()), "to a sharding")
    norm = norms[0].detach().requires_grad_()
    RS.redistribute(norm, [Replicate()]).sum().backward()
    yield unless(torch.equal(norm.grad.full_tensor(), torch.ones(6).double()), f"gradient {norm.grad}")


def convolutions(rank: int) -> Iterator[str]:
    """Convolutions and poolings, and their gradients, are those of the whole."""
    line, square = _mesh(4), _mesh(2, 2)
    for kernel, stride, dilation, padding, size in CONVOLUTIONS:
        x = distribute_tensor(_numbers((2, 2, size)), line, [Shard(2)])
        weight = distribute_tensor(_numbers((4, 1, kernel)), line, [Replicate()])
        options = {"stride": stride, "dilation": dilation, "padding": padding, "groups": 2}
        yield from _compared(
            f"conv1d {kernel} {options}", partial(RS.conv1d, **options), partial(F.conv1d, **options), x, weight
        )
    replicated = [Replicate(), Replicate()]
    for placements in ([Shard(2), Shard(3)], [Shard(0), Shard(2)], [Shard(2), Shard(2)]):
        x = distribute_tensor(_numbers((2, 3, 9, 7)), square, placements)
        weight = distribute_tensor(_numbers((2, 3, 3, 2)), square, replicated)
        bias = distribute_tensor(_numbers((2,)), square, replicated)
        options = {"stride": (2, 1), "padding": (1, 1)}
        ours = lambda x, w, b: RS.conv2d(x, w, b, **options)  # noqa: B023, E731
        theirs = lambda x, w, b: F.conv2d(x, w, b, **options)  # noqa: B023, E731
        yield from _compared(f"conv2d {placements}", ours, theirs, x, weight, bias)
        yield from _compared(
            f"max_pool {placements}",
            partial(RS.max_pool, kernel=3, stride=2, padding=1),
            partial(F.max_pool2d, kernel_size=3, stride=2, padding=1),
            distribute_tensor(
                torch.randperm(2 * 3 * 9 * 7, generator=torch.Generator().manual_seed(0)).double().view(2, 3, 9, 7),
                square,
                placements,
            ),
        )
        yield from _compared(
            f"avg_pool {placements}", partial(RS.avg_pool, kernel=2), partial(F.avg_pool2d, kernel_size=2), x.detach()
        )
    x = distribute_tensor(_numbers((1, 2, 5, 4, 4)), line, [Shard(2)])
    weight = distribute_tensor(_numbers((2, 2, 3, 3, 3)), line, [Replicate()])
    yield from _compared("conv3d", partial(RS.conv3d, padding=1), partial(F.conv3d, padding=1), x, weight)


def transposed(rank: int) -> Iterator[str]:
    """Transposed convolutions, and their gradients, are those of the whole."""
    line, square = _mesh(4), _mesh(2, 2)
    for kernel, stride, dilation, padding, size in (*CONVOLUTIONS, (2, 4, 1, 0, 5), (3, 2, 1, 1, 3)):
        for extra in {0, stride - 1}:
            x = distribute_tensor(_numbers((2, 4, size)), line, [Shard(2)])
            weight = distribute_tensor(_numbers((4, 3, kernel)), line, [Replicate()])
            bias = distribute_tensor(_numbers((6,)), line, [Replicate()])
            options = {"stride": stride, "dilation": dilation, "padding": padding, "groups": 2, "output_padding": extra}
            ours = lambda x, w, b: RS.conv_transpose1d(x, w, b, **options)  # noqa: B023, E731
            theirs = lambda x, w, b: F.conv_transpose1d(x, w, b, **options)  # noqa: B023, E731
            yield from _compared(f"conv_transpose1d {kernel} {size} {options}", ours, theirs, x, weight, bias)
    for placements in ([Shard(2), Shard(3)], [Shard(0), Shard(2)]):
        x = distribute_tensor(_numbers((2, 3, 5, 4)), square, placements)
        weight = distribute_tensor(_numbers((3, 2, 3, 2)), square, [Replicate()] * 2)
        both = (partial(each, stride=(2, 1), padding=(1, 0)) for each in (RS.conv_transpose2d, F.conv_transpose2d))
        yield from _compared(f"conv_transpose2d {placements}", *both, x, weight)


CONVOLUTIONS = [
    (3, 1, 1, 1, 12),
    (4, 2, 1, 0, 13),
    (3, 3, 2, 2, 17),
    (9, 1, 1, 4, 9),
    (2, 1, 3, 0, 11),
    (1, 2, 1, 0, 7),
]
"""Kernel, stride, dilation, padding, size."""


def many_convolutions(rank: int) -> Iterator[str]:
    """All kernels up to 9, strides and dilations up to 3, over uneven tiles."""
    line = _mesh(4)
    for kernel in range(1, 10):
        for stride in range(1, 4):
            for dilation in range(1, 4):
                for padding in {0, kernel // 2}:
                    size = 26 + kernel % 4 + stride
                    x = distribute_tensor(_numbers((1, 2, size)), line, [Shard(2)])
                    weight = distribute_tensor(_numbers((2, 2, kernel)), line, [Replicate()])
                    options = {"stride": stride, "dilation": dilation, "padding": padding}
                    text = f"{kernel} {options} {size}"
                    yield from _compared(text, partial(RS.conv1d, **options), partial(F.conv1d, **options), x, weight)


def pads(rank: int) -> Iterator[str]:
    """Pads of what lies in the tensor, over tiles that they reach past, and asymmetric ones."""
    line, square = _mesh(4), _mesh(2, 2)
    for mesh, placements, shape, widths in (
        (line, [Shard(2)], (2, 1, 11), (7, 3)),
        (line, [Shard(2)], (1, 2, 3), (2, 1)),
        (line, [Shard(2)], (1, 1, 9), (-2, 5)),
        (line, [Shard(2)], (1, 2, 5), (-3, 4)),
        (line, [Shard(2)], (2, 1, 3), (2, -2)),
        (square, [Shard(2), Shard(3)], (1, 2, 7, 6), (3, 5, 0, 4)),
        (square, [Shard(2), Shard(2)], (1, 1, 6, 5), (1, 2, 5, 1)),
        (square, [Replicate(), Shard(3)], (1, 2, 5, 8), (7, 6, 4, 3)),
    ):
        for mode in ("reflect", "replicate", "circular", "constant"):
            if mode == "circular" and min(widths) < 0:
                continue
            x = distribute_tensor(_numbers(shape), mesh, placements)
            ours, theirs = (partial(each, mode=mode) for each in (RS.pad, F.pad))
            yield from _compared(
                f"{mode} {widths} {placements} {shape}",
                partial(ours, widths=widths),
                partial(theirs, pad=widths),
                x,
            )


POOLED: list[tuple[tuple[int, ...], list[Any], tuple[int, ...]]] = [
    ((4,), [Shard(2)], (1, 2, 13)),
    ((4,), [Shard(2)], (1, 1, 5)),
    ((2, 2), [Shard(2), Shard(3)], (1, 2, 9, 8)),
    ((2, 2), [Shard(3), Shard(3)], (1, 1, 4, 11)),
    ((2, 2), [Shard(0), Shard(2)], (3, 1, 7, 4, 5)),
]
"""Meshes, placements and shapes."""


def pools(rank: int) -> Iterator[str]:
    """Poolings with places rounded up, with what is padded not counted, and over tiles of nothing."""
    for sizes_of_mesh, placements, shape in POOLED:
        mesh = _mesh(*sizes_of_mesh)
        count, elements = len(shape) - 2, int(np.prod(shape))
        order = torch.randperm(elements, generator=torch.Generator().manual_seed(elements)).double().view(shape)
        for kernel, stride, padding in ((3, 2, 1), (2, 3, 1), (4, 2, 0), (3, 1, 1), (2, 2, 1)):
            for ceil_mode in (False, True):
                sizes = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode}
                text = f"{kernel} {sizes} {placements} {shape}"
                own, whole = RS.max_pool, (F.max_pool1d, F.max_pool2d, F.max_pool3d)[count - 1]
                x = distribute_tensor(order, mesh, placements)
                yield from _compared(
                    f"max {text}", partial(own, kernel=kernel, **sizes), partial(whole, kernel_size=kernel, **sizes), x
                )
                for with_padding in (True, False):
                    sizes["count_include_pad"] = with_padding
                    own, whole = RS.avg_pool, (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[count - 1]
                    x = distribute_tensor(order, mesh, placements)
                    yield from _compared(
                        f"average {text} {with_padding}",
                        partial(own, kernel=kernel, **sizes),
                        partial(whole, kernel_size=kernel, **sizes),
                        x,
                        same=torch.allclose,  # sums of thirds, in another order
                    )


def named_paddings(rank: int) -> Iterator[str]:
    """Convolutions padded by `same` and `valid`, in groups, of even kernels, by images of few rows."""
    line = _mesh(4)
    for kernel, dilation, groups, size in ((4, 1, 1, 13), (3, 2, 4, 9), (2, 3, 2, 5), (6, 1, 4, 3), (1, 1, 2, 2)):
        for padding in ("same", "valid"):
            if padding == "valid" and dilation * (kernel - 1) >= size:
                continue
            x = distribute_tensor(_numbers((2, 4, size)), line, [Shard(2)])
            weight = distribute_tensor(_numbers((8, 4 // groups, kernel)), line, [Replicate()])
            options = {"padding": padding, "dilation": dilation, "groups": groups}
            yield from _compared(
                f"conv1d {kernel} {size} {options}",
                partial(RS.conv1d, **options),
                partial(F.conv1d, **options),
                x,
                weight,
            )


def sequences(rank: int) -> Iterator[str]:
    """Local tensors go between zigzag, contiguous, cyclic and by heads; their gradients come back."""
    x4, shape = rs.Mesh.of(x=4), (19, 6)
    deals = [rs.Deal.zigzag(), rs.Deal.cycles(2), rs.Deal.blocks(2), rs.Deal.parts(5, 14)]
    layouts = [rs.Sharding.of(x4, (deal, "x"), None) for deal in deals]
    layouts += [rs.Sharding.of(x4, "x", None), rs.Sharding.of(x4, None, "x"), rs.Sharding.of(x4, None, None)]
    whole = _numbers(shape)
    tiles = [torch.from_numpy(dealt.cut(whole.numpy(), layout)[rank]) for layout in layouts]
    for source, tile in zip(layouts, tiles, strict=True):
        for target, expected in zip(layouts, tiles, strict=True):
            start = tile.clone().requires_grad_()
            with counted_traffic() as traffic:
                found = RS.reshard(start, source, target, shape, check="never")
            text = f"{source.text()} -> {target.text()}"
            yield unless(torch.equal(found, expected), f"{text}: {found} {expected}")
            lacks = dealt.missing(source, target, shape)[rank] * 8
            yield unless(traffic.received == lacks, f"{text}: {traffic.received} bytes received, {lacks} lack")
            found.backward(3 * expected)
            yield unless(torch.equal(start.grad, 3 * tile), f"{text}: gradient {start.grad}")


def refusals(rank: int) -> Iterator[str]:
    """What has no windows is refused in words."""
    line = _mesh(4)
    x = distribute_tensor(_numbers((8,)), line, [Shard(0)])
    for make, code in (
        (lambda: RS.halo(torch.ones(3), {0: (1, 1)}), "bad-argument"),
        (lambda: RS.halo(x, {0: (1, 1)}, "bounce"), "bad-window"),
        (lambda: RS.halo(x, {1: (1, 1)}), "rank-mismatch"),
        (lambda: RS.roll(x, [1, 2], 0), "bad-argument"),
        (lambda: RS.conv1d(x, x), "rank-mismatch"),
    ):
        try:
            make()
            yield f"{code} was not refused"
        except rs.ReshardError as error:
            yield unless(error.code == code, f"{error.code} {error}, not {code}")
