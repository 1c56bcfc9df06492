"""DTensor matrix multiplication, every rank's contents shown and every redistribute explained.

    torchrun --nproc_per_node=2 examples/dtensor_matmul.py

X is 4 x 6 and Y is 6 x 4, filled with 1 to 24; the mesh has one dim.
The placements of X and Y decide what each rank multiplies and what the product's placement is:

    X     Y     X @ Y   why
    R     R     R       every rank has all of both
    R     S(1)  S(1)    columns of Y give columns of the product
    S(1)  S(0)  P(sum)  each rank multiplies its columns of X by its rows of Y; the product is the sum over ranks

A multiplication sends nothing in these cases.
What has its price is to bring the operands there, and the product from there to where it is wanted; before each
such step the plan is printed, and what DTensor's own planners would do instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import reshard as rs


def say(text: str = "") -> None:
    """Print once, not once per rank."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def lines_of(tensor: torch.Tensor) -> list[str]:
    """The rows of a matrix, figures to the right."""
    rows = [[str(value) for value in row] for row in tensor.tolist()]
    width = max((len(cell) for row in rows for cell in row), default=0)
    return [" ".join(cell.rjust(width) for cell in row) for row in rows]


def show(name: str, x: DTensor) -> None:
    """Print what every rank holds, side by side."""
    tiles: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(tiles, x.to_local())
    columns = [[f"rank {rank}", *lines_of(tile)] for rank, tile in enumerate(tiles)]
    height = max(map(len, columns))
    widths = [max(map(len, column)) for column in columns]
    say(f"{name} is {' x '.join(map(str, x.shape))}, {''.join(map(str, x.placements))}")
    for row in range(height):
        cells = [column[row] if row < len(column) else "" for column in columns]
        say("  " + "    ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    say()


def redistributed(name: str, x: DTensor, placements: Sequence[Any]) -> DTensor:
    """Say how a tensor gets to other placements, and bring it there."""
    say(f"{name}: {''.join(map(str, x.placements))} -> {''.join(map(str, placements))}")
    say("\n".join(f"  | {line}".rstrip() for line in str(rs.torch.explain(x, placements)).splitlines()))
    moved: DTensor = rs.torch.redistribute(x, placements)
    say()
    return moved


def title(text: str) -> None:
    """Print a heading."""
    say(f"{text}\n{'=' * len(text)}\n")


def multiplied(x: DTensor, y: DTensor, right: torch.Tensor) -> None:
    """Show both operands and the product, then the product gathered on every rank and checked."""
    show("X", x)
    show("Y", y)
    z = x @ y
    show("X @ Y", z)
    if z.placements != (Replicate(),):
        z = redistributed("X @ Y", z, [Replicate()])
        show("X @ Y", z)
    same = torch.tensor(int(torch.equal(z.to_local(), right)))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    say(f"equal to X @ Y of the whole matrices on every rank: {'yes' if same else 'NO'}\n")


def main() -> None:
    """Multiply with three pairs of placements, then transpose."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
    numbers = torch.arange(1, 25)
    x_whole, y_whole = numbers.view(4, 6), numbers.view(6, 4)
    right = x_whole @ y_whole
    x = DTensor.from_local(x_whole, mesh, [Replicate()])
    y = DTensor.from_local(y_whole, mesh, [Replicate()])

    title("Replicate x Replicate")
    multiplied(x, y, right)

    title("Replicate x Shard")
    multiplied(x, redistributed("Y", y, [Shard(1)]), right)

    title("Shard x Shard")
    multiplied(redistributed("X", x, [Shard(1)]), redistributed("Y", y, [Shard(0)]), right)

    title("Transpose")
    rows = redistributed("X", x, [Shard(0)])
    show("X", rows)
    show("X.T", rows.T)
    dist.barrier()
    dist.destroy_process_group()


main()
