"""The plan of an einsum, run in one process: operands are moved, every device contracts, the result is moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from reshard.array_tiles import Array, empty
from reshard.checks import expect
from reshard.contraction import EinsumPlan
from reshard.errors import ReshardError
from reshard.numpy.tiles import Tiles, run


def einsum(plan: EinsumPlan, *operands: Mapping[int, Array], received_bytes: dict[int, int] | None = None) -> Tiles:
    """Run the plan of an einsum: from the tiles of its operands to those of its result, fresh arrays.

    Every device contracts what it has with NumPy's einsum, in the dtype of the tiles, which is also the type that
    sums are accumulated in.

    Args:
        plan: what to do.
        operands: per operand, in the order of the expression, per device its tile; they are left as they are.
        received_bytes: filled with the bytes that each device received from others, where given.

    Raises:
        ReshardError: `bad-argument` where there are more or fewer operands than the plan has; as `run`.

    >>> from reshard.contraction import einsum as plan_einsum
    >>> from reshard.mesh import Mesh
    >>> from reshard.numpy import scatter
    >>> from reshard.sharding import Sharding
    >>> mesh = Mesh.of(x=2)
    >>> rows, columns = Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x")
    >>> plan = plan_einsum("ij,jk->ik", columns, rows, shapes=[(2, 4), (4, 2)], dtype="int64", target=rows)
    >>> a, b = np.arange(8).reshape(2, 4), np.arange(8).reshape(4, 2)
    >>> tiles = einsum(plan, scatter(a, columns), scatter(b, rows))
    >>> tiles[1].tolist(), (a @ b).tolist()
    ([[76, 98]], [[28, 34], [76, 98]])
    """
    expect(plan, EinsumPlan, "the plan of an einsum")
    if len(operands) != plan.given:
        raise ReshardError("bad-argument", f"the plan has {plan.given} operands, got {len(operands)}")
    dtypes = set()
    for tiles in operands:
        if not isinstance(tiles, Mapping):
            raise ReshardError(
                "bad-tiles", f"tiles must be a mapping from device to array, got: {type(tiles).__name__}"
            )
        dtypes |= {np.asarray(tile).dtype for tile in tiles.values()}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ReshardError("bad-tiles", f"the tiles of all operands must be of one dtype, got: {names}")
    counts = Counter[int]()
    result = _contracted(plan, operands, counts)
    if received_bytes is not None:
        received_bytes.clear()
        received_bytes.update(counts)
    return result


def _contracted(plan: EinsumPlan, operands: Sequence[Mapping[int, Array]], counts: Counter[int]) -> Tiles:
    """The tiles of the result; what devices receive is added to the counts, for so a `Counter` is updated."""
    sources = [operands[term] if isinstance(term, int) else _contracted(term, operands, counts) for term in plan.inputs]
    used = [run(by, tiles, received_bytes=counts) for by, tiles in zip(plan.operands, sources, strict=True)]
    devices = plan.layout.mesh.device_array.tolist()
    product = {device: _local(plan, device, [tiles[device] for tiles in used]) for device in devices}
    return run(plan.output, product, received_bytes=counts)


def _local(plan: EinsumPlan, device: int, tiles: Sequence[Array]) -> Array:
    """What one device makes of its tiles: groups taken apart, contracted, put together again."""
    pattern, sizes = plan.pattern, plan.local_sizes(device)
    *terms, product_labels = pattern.ungrouped.term_labels
    arguments: list[Any] = []
    for tile, labels in zip(tiles, terms, strict=True):
        arguments += [tile.reshape([sizes[label] for label in labels]), [*map(pattern.labels.index, labels)]]
    path = ["einsum_path", *plan.local_path] if len(tiles) > 1 else False
    product = np.asarray(np.einsum(*arguments, [*map(pattern.labels.index, product_labels)], optimize=path))
    output = pattern.term_labels[-1]
    result = empty(tuple(sizes[label] for label in output), tiles[0].dtype)
    result[...] = product[tuple(slice(None) if label in product_labels else None for label in output)]
    return result.reshape([prod(sizes[label] for label in group) for group in pattern.output])
