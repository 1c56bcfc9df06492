"""What a notebook shows where more is asked for than a value's own short form.

>>> from reshard.mesh import Mesh
>>> show(Sharding.of(Mesh.of(x=2), "x"), (4,))
0   2   4
+---+---+
| 0 | 1 |
+---+---+
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from reshard.checks import checked_shape, shown
from reshard.drawing.notebooks import framed
from reshard.errors import ReshardError
from reshard.foreign import mesh_record, sharding_record
from reshard.mesh import Mesh
from reshard.notation import as_mesh, as_sharding
from reshard.sharding import Sharding
from reshard.view.cuts import draw_holders


@runtime_checkable
class HasPage(Protocol):
    """What has a page: plans, placements, reports, comparisons."""

    def to_html(self) -> str:
        """The page."""
        ...


@dataclass(frozen=True, slots=True)
class Shown:
    """Something to see: a notebook draws it, a terminal prints it."""

    forms: dict[str, str]
    """By type of content, as a notebook asks for it."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.forms

    def __repr__(self) -> str:
        return self.forms["text/plain"]


def _ours(value: Any, shape: Sequence[int] | None) -> Any:
    """A mesh or a sharding of JAX or torch as ours; all else as it is."""
    if isinstance(value, HasPage | Sharding | Mesh):
        return value
    if mesh_record(value) is not None:
        return as_mesh(value)
    ndim = None if shape is None else len(checked_shape(shape))
    return value if sharding_record(value, ndim) is None else as_sharding(value, None, ndim)


def show(value: Any, shape: Sequence[int] | None = None) -> Shown:
    """Something for a notebook to show: the whole page of a plan, or the tensor of a sharding.

    Args:
        value: a plan, a placement, a report, a comparison; a sharding, a mesh, ours or of JAX or torch.
        shape: of the tensor, for a sharding; without it one of the smallest size that all shards divide.

    Raises:
        ReshardError: `bad-argument` where the value is none of these, or a shape is given to what has its own;
            `rank-mismatch`, `bad-shape`, `too-large`.
    """
    value = _ours(value, shape)
    if isinstance(value, Sharding) and shape is not None:
        return Shown(value.drawn(shape) | {"text/plain": draw_holders(value, shape)})
    if shape is not None:
        raise ReshardError("bad-argument", f"a shape goes with a sharding, got: {shown(value)}")
    if isinstance(value, Sharding | Mesh):
        return Shown(value._repr_mimebundle_())
    if isinstance(value, HasPage):
        return Shown({"text/plain": str(value), "text/html": str(framed(value.to_html()))})
    raise ReshardError("bad-argument", f"a plan, a report, a sharding or a mesh is shown, got: {shown(value)}")
