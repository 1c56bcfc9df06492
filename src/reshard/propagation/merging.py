"""Running sums and their kin along a dim that may be cut: blocks by themselves, then what comes before each block.

A dim of n elements is seen as p blocks of n / p, as many as the mesh can cut it into.
A block needs nothing of the others to run over its own elements; then the last of every block, which are small, go to
all, run, and what comes before a block is added to all that is in it.
A dim that the blocks do not divide is filled up at its end with what changes nothing, which is where an uneven cut has
its short tile.
These are operations like others, so what they cost and where the dim is cut best is found as for any other.

What goes between devices are rows of block sums, cut along another dim for the running: each of p devices receives
2 (p - 1) / p of a row, in two exchanges.
Where bytes count, and not seconds, it is one row, handed on from device to device (`handing_on`).
In two exchanges the busiest receives 2 (p - 2) / p of a row at the least, per number of which 2 (p - 2) are received:
all that comes before the last block is either received there or where it is summed for it, p - 1 numbers with the
sums; and of the p - 2 others that lack something each receives one more, but for one that has all from summing (to
have all on a second takes more numbers than it spares).

By hand, the sums of 1, 2, 3, 4 in two blocks: 1, 3 and 3, 7 by themselves; before the second comes 3, so 1, 3, 6, 10.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.program import Program
>>> from reshard.sharding import Sharding
>>> program = Program(Mesh.of(x=2))
>>> start_sharding = Sharding.of(program.mesh, "x")
>>> start = program.input("start", (4,), "float32", start_sharding)
>>> sums = program.output(program.running("cumsum", start, 0), start_sharding, "sums")
>>> [operation.name for operation in program.operations][1:-1]
['reshape', 'cumsum', 'slice', 'reshape', 'cumsum', 'add', 'reshape']
>>> program.propagate().received_bytes
4
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reshard.operations.operation import Value
from reshard.operations.pattern import Pattern

if TYPE_CHECKING:
    from reshard.propagation.program import Program


class Merge(NamedTuple):
    """How what runs over a block goes on from what comes before it."""

    combining: str
    """The operation of two."""
    reduction: str
    """Of which what comes before the first block is the identity."""


MERGES = {
    "cumsum": Merge("add", "sum"),
    "cumprod": Merge("mul", "product"),
    "cummax": Merge("maximum", "max"),
    "cummin": Merge("minimum", "min"),
    "cumlogsumexp": Merge("logaddexp", "max"),
}
"""What runs along a dim and can be done in blocks."""


def run_in_blocks(
    program: Program, name: str, value: Value, dim: int, *, is_reversed: bool, is_before: bool = False
) -> Value:
    """What runs along a dim of a value, in as many blocks as devices can have; or what comes before each element."""
    size, blocks, merge = value.shape[dim], program.mesh.size, MERGES[name]
    identity = value.dtype.identity(merge.reduction)
    first = identity if is_before else None
    if blocks < 2 or size < 2 * blocks:
        return _run(program, name, value, dim, is_reversed=is_reversed, before=first)
    if size % blocks:
        none = [0] * len(value.shape)
        longer = [*none[:dim], -size % blocks, *none[dim + 1 :]]
        padded = program.pad(value, none, longer, identity)
        ran = run_in_blocks(program, name, padded, dim, is_reversed=is_reversed, is_before=is_before)
        return program.slice(ran, none, value.shape)
    apart = (*value.shape[:dim], blocks, size // blocks, *value.shape[dim + 1 :])
    in_blocks = program.reshape(value, apart)
    own = _run(program, name, in_blocks, dim + 1, is_reversed=is_reversed, before=first)
    start, stop = [0] * len(apart), list(apart)
    start[dim + 1], stop[dim + 1] = (0, 1) if is_reversed else (apart[dim + 1] - 1, apart[dim + 1])
    lasts = [
        program.reshape(program.slice(each, start, stop), (*apart[: dim + 1], *apart[dim + 2 :]))
        for each in ([own, in_blocks] if is_before else [own])
    ]
    rows = tuple((f"d{place}",) for place in range(len(apart) - 1))
    ends = program.op(Pattern((rows, rows), rows), *lasts, name=merge.combining) if is_before else lasts[0]
    before = _run(program, name, ends, dim, is_reversed=is_reversed, before=identity)
    labels = tuple((f"d{place}",) for place in range(len(apart)))
    pattern = Pattern((labels, labels[: dim + 1] + labels[dim + 2 :]), labels)
    return program.reshape(program.op(pattern, own, before, name=merge.combining), value.shape)


def _run(
    program: Program, name: str, value: Value, dim: int, *, is_reversed: bool, before: float | None = None
) -> Value:
    """What runs along a dim of which a device has all; of what comes before each place, where a number begins it."""
    labels = tuple((f"d{place}",) for place in range(len(value.shape)))
    attributes = ({"reverse": 1} if is_reversed else {}) | ({} if before is None else {"before": before})
    return program.op(Pattern((labels,), labels), value, name=name, replicated=labels[dim], attributes=attributes)
