"""Which axes may stand in the lists of a sharding, and together: the rules of Shardy's verifier.

By hand, on x=4: its two halves may cut a dim apart, as `"x":(2)2` then `"x":(1)2`; side by side in their own order
they are x, and must be written so.

>>> from reshard.mesh import Mesh
>>> check_listed(Mesh.of(x=4), [Axis("x", 2, 2), Axis("x", 1, 2)], set())
>>> check_listed(Mesh.of(x=4), [Axis("x", 1, 2), Axis("x", 2, 2)], set())
Traceback (most recent call last):
reshard.errors.ReshardError: sub-axes "x":(1)2 and "x":(2)2 side by side must be written as one
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from reshard.axis import Axis, mesh_order, quote, refined_mesh
from reshard.checks import suggested
from reshard.dim_sharding import DimSharding, braced
from reshard.errors import ReshardError
from reshard.mesh import Mesh


def check_listed(mesh: Mesh, axes: Sequence[Axis], seen: set[Axis], apart: Container[int] = ()) -> None:
    """Check one list of axes against its mesh and the lists before it.

    Args:
        mesh: whose axes they are.
        axes: of one dim, or those that are replicated or unreduced.
        seen: the axes of the lists before it, to which its own are added.
        apart: the places whose axis cuts what the one before it left in another way, so that they are not one.

    Raises:
        ReshardError: `unknown-axis`, `duplicate-axis-ref`, `mergeable-sub-axes`.
    """
    previous: Axis | None = None
    for place, axis in enumerate(axes):
        if axis.name not in mesh.sizes:
            close = suggested(axis.name, mesh.sizes)
            raise ReshardError("unknown-axis", f"axis {quote(axis.name)} is not in mesh {mesh}{close}")
        if axis in seen:
            raise ReshardError("duplicate-axis-ref", f"axis {axis} is used twice")
        if previous is not None and previous.can_merge(axis) and place not in apart:
            raise ReshardError(
                "mergeable-sub-axes", f"sub-axes {previous} and {axis} side by side must be written as one"
            )
        seen.add(axis)
        previous = axis


def check_lists(mesh: Mesh, dims: Sequence[DimSharding], sets: Mapping[str, Sequence[Axis]]) -> None:
    """Check the lists of a sharding one after the other: those of its dims, then those that must be in mesh order.

    Raises:
        ReshardError: `negative-priority`, `needless-priority`, `unsorted-axes`, and as `check_listed`.
    """
    seen: set[Axis] = set()
    for number, dim in enumerate(dims):
        if dim.priority is not None and dim.priority < 0:
            raise ReshardError("negative-priority", f"dim {number} has the negative priority {dim.priority}")
        if dim.priority is not None and not dim.axes and not dim.is_open:
            raise ReshardError("needless-priority", f"dim {number} is empty and closed but has priority {dim.priority}")
        check_listed(mesh, dim.axes, seen, {deal.place for deal in dim.deals})
    for title, axes in sets.items():
        if not axes:
            continue
        check_listed(mesh, axes, seen)
        if mesh_order(axes, mesh.sizes) != list(axes):
            raise ReshardError("unsorted-axes", f"{title} axes {braced(axes)} are not in the order of the mesh")


def check_sub_axes(mesh: Mesh, axes: Sequence[Axis]) -> None:
    """Check that each sub-axis is a proper part of its axis, and that those of one axis can stand together.

    Raises:
        ReshardError: `axis-and-sub-axis`, `sub-axis-size`, `sub-axis-divisor`, `sub-axis-is-axis`,
            `overlapping-sub-axes`, `sub-axes-cannot-coexist`.
    """
    if all(axis.size is None for axis in axes):
        return
    by_name: dict[str, list[Axis]] = {}
    for axis in axes:
        by_name.setdefault(axis.name, []).append(axis)
    for name, of_name in by_name.items():
        if len(of_name) == 1 and of_name[0].is_whole:
            continue
        if any(axis.is_whole for axis in of_name):
            raise ReshardError("axis-and-sub-axis", f"axis {quote(name)} is used both whole and in part")
        full_size = mesh.sizes[name]
        ordered = mesh_order(of_name, mesh.sizes)
        for before, axis in zip([None, *ordered], ordered, strict=False):
            _check_sub_axis(axis, full_size)
            if before is not None and before.overlaps(axis):
                raise ReshardError("overlapping-sub-axes", f"sub-axes {before} and {axis} overlap")
        refined_mesh(of_name, mesh.sizes)


def _check_sub_axis(axis: Axis, full_size: int) -> None:
    if axis.size_in(full_size) < 2:
        raise ReshardError("sub-axis-size", f"sub-axis {axis} has a size below 2")
    if full_size % axis.stop_in(full_size):
        raise ReshardError("sub-axis-divisor", f"sub-axis {axis} does not divide its axis of size {full_size}")
    if axis.size_in(full_size) == full_size:
        raise ReshardError(
            "sub-axis-is-axis", f"sub-axis {axis} is the whole axis; it must be written {quote(axis.name)}"
        )
