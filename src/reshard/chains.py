"""The shortest chains of steps between two shardings: none, one, or one that moves and one that makes partial.

No step both moves values and makes them partial, so where the target is unreduced along axes on which the
source is not, the chain has a middle: the target with those axes whole again.
They are then replicated, or, where the source cuts a dim by them, they go on cutting that dim, since what lies
in parts may become partial as it lies.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=2)
>>> source, target = Sharding.of(mesh, "x"), Sharding.of(mesh, None, unreduced="x")
>>> [(step.kind, step.received_bytes) for step in shortest_chain(source, target, (8,), dtype_named("f32"))]
[('ToUnreduced', 0)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reshard.axis import Axis, aligned, merged
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.sharding import Sharding, becomes_unreduced, stays_unreduced
from reshard.steps import Step, step_between

Chain = tuple[Step, ...]


def shortest_chain(before: Sharding, after: Sharding, shape: tuple[int, ...], dtype: DType, near: int = 0) -> Chain:
    """The chain with the fewest steps, and of these the one that receives least.

    `near` is that of `Step`.

    Raises:
        ReshardError: `no-plan` where parts would become partial under avg; and as `Step`.
    """
    kept, made = stays_unreduced(before, after), becomes_unreduced(before, after)
    if not made:
        return _single(before, after, shape, dtype, near)
    dtype_named(dtype).check_reduction(after.reduction)
    whole = replace(after, unreduced=kept)
    chains = [_by_way_of(whole, before, after, shape, dtype, near)]
    middle = _cut_as_before(before, whole, made)
    if middle is not None:
        if after.reduction == "avg":
            raise ReshardError(
                "no-plan",
                f"{before.text()} -> {after.text()} would make parts partial under avg; only whole values can be",
            )
        try:
            chains.append(_by_way_of(middle, before, after, shape, dtype, near))
        except ReshardError as error:
            if error.code != "bad-step":
                raise
    return min(chains, key=lambda steps: (sum(step.received_bytes for step in steps), len(steps)))


def chain_through(points: Sequence[Sharding], shape: tuple[int, ...], dtype: DType, near: int = 0) -> Chain:
    """The shortest chains from point to point, joined; points that are one placement with the one before fall out.

    Raises:
        ReshardError: as `shortest_chain`.
    """
    steps: list[Step] = []
    here = points[0]
    for point in points[1:]:
        steps += shortest_chain(here, point, shape, dtype, near)
        here = steps[-1].after if steps else points[0]
    if steps and here != points[-1]:  # one placement under another name: the last step ends in the name asked for
        steps[-1:] = shortest_chain(steps[-1].before, points[-1], shape, dtype, near)
    return tuple(steps)


def _by_way_of(
    middle: Sharding, before: Sharding, after: Sharding, shape: tuple[int, ...], dtype: DType, near: int
) -> Chain:
    first = _single(before, middle, shape, dtype, near)
    same_layout = before.layout_for(shape) == middle.layout_for(shape)
    if not first and not (same_layout and before.mesh.device_ids == middle.mesh.device_ids):
        first = (step_between(before, middle, shape, dtype),)  # one placement, but the last step must know its digits
    return (*first, step_between(middle if first else before, after, shape, dtype))


def _cut_as_before(before: Sharding, whole: Sharding, made: tuple[Axis, ...]) -> Sharding | None:
    """`whole`, its dims further cut by the parts of the axes `made` that cut them in `before`; None without such."""
    if before.mesh != whole.mesh:
        return None
    sizes = whole.mesh.sizes
    cutting = [axis for dim in before.dims for axis in dim.axes]
    parts, sources = aligned(made, cutting, sizes)
    dims = list(whole.dims)
    for number, dim in enumerate(before.dims):
        ours = [piece for axis in dim.axes for piece in sources if axis.contains(piece) and piece in parts]
        dims[number] = replace(dims[number], axes=merged([*dims[number].axes, *ours], sizes))
    return None if tuple(dims) == whole.dims else replace(whole, dims=tuple(dims), replicated=())


def _single(before: Sharding, after: Sharding, shape: tuple[int, ...], dtype: DType, near: int) -> Chain:
    """The one step, or none where both are one placement."""
    if before == after or (
        before.layout_for(shape) == after.layout_for(shape) and before.mesh.device_ids == after.mesh.device_ids
    ):
        return ()
    step = step_between(before, after, shape, dtype, near=near)
    # partial values that stay so may count their classes in another order, and still lie where they are wanted
    unmoved = step.kind == "Slice" or (after.unreduced and before.mesh.device_ids != after.mesh.device_ids)
    return () if unmoved and before.is_equivalent_to(after, shape) else (step,)
