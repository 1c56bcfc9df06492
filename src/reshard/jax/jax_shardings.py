"""JAX's meshes and shardings as ours, and ours as JAX's.

| JAX | here | device numbers |
|---|---|---|
| `Mesh` | `mesh_of` | the places of its devices in `jax.devices()` |
| `AbstractMesh` | `mesh_of` | 0, 1, 2, …: it has an order and no devices |
| `PartitionSpec`, `NamedSharding`, `HloSharding` | `sharding_of` | those of the mesh |
| `PartitionSpec` | `partition_spec_of` | |
| `NamedSharding` | `named_sharding_of` | those of the mesh that is given |
| `HloSharding` | `hlo_sharding_of` | positions in the mesh, as XLA counts them |

Device ids of JAX are not used: they leave gaps where there are several processes.
A spec has whole axes alone; `named_sharding_of(refine=True)` splits the axes of the mesh where a sharding has
sub-axes, over the same devices in the same order.
The texts of XLA's shardings are read by `reshard.parse_sharding` and written by `reshard.notation.to_xla`.

>>> import jax, numpy as np
>>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y"))
>>> sharding = sharding_of(jax.P(("y", "x")), mesh, ndim=2)
>>> print(sharding)
#sdy.sharding<mesh<["x"=1, "y"=1]>, [{"y", "x"}, {}]>
>>> partition_spec_of(sharding)
P(('y', 'x'), None)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax._src.layout import Format
from jax._src.lib import xla_client  # type: ignore[attr-defined]  # the one place where HloSharding is found
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from reshard.axis import Axis, refined_mesh
from reshard.checks import expect, shown
from reshard.errors import ReshardError
from reshard.foreign import names_in as names_in  # noqa: PLC0414  # whoever converts specs takes them apart too
from reshard.foreign import sharding_record
from reshard.mesh import Mesh
from reshard.notation import parse_sharding, to_xla
from reshard.notation.records import sharding_of_record
from reshard.sharding import Sharding

AnyMesh = JaxMesh | AbstractMesh
Target = PartitionSpec | NamedSharding | Sharding
"""What a caller may say where an array is by."""
AnySharding = Target | jax.sharding.Sharding
HloSharding: Any = xla_client.HloSharding


def mesh_of(mesh: AnyMesh) -> Mesh:
    """A mesh of JAX as ours; a device is its place in `jax.devices()`.

    Raises:
        ReshardError: `axis-name` where a name is no string, `bad-argument` where it is no mesh.
    """
    if not isinstance(mesh, JaxMesh | AbstractMesh):
        raise ReshardError("bad-argument", f"a mesh of JAX is wanted, got: {shown(mesh)}")
    return _mesh_of(mesh)


@lru_cache(256)
def _mesh_of(mesh: AnyMesh) -> Mesh:
    return Mesh.of(mesh)


def sharding_of(sharding: object, mesh: AnyMesh | Mesh | None = None, ndim: int | None = None) -> Sharding:
    """A sharding of JAX or XLA as ours.

    Dims that a spec does not name are whole; `UNCONSTRAINED` is an open dim that nothing cuts; `reduced` axes
    are explicitly replicated.

    Args:
        sharding: a `PartitionSpec`, a `NamedSharding` or another sharding of JAX, an `HloSharding`; ours is
            given back.
        mesh: what a `PartitionSpec` is on, and may be what an `HloSharding` is on: its axes then name what it
            can name.
        ndim: the number of dims of the tensor; where not given, a spec is for as many dims as it names.

    Raises:
        ReshardError: `unknown-mesh` where a mesh is needed, `rank-mismatch` where a spec names more dims than
            there are, `bad-argument` where it is no sharding, or the code of the rule of `Sharding` that it breaks.
    """
    ours = mesh_of(mesh) if isinstance(mesh, JaxMesh | AbstractMesh) else mesh
    if isinstance(sharding, Sharding):
        sharding.check_plain("an array of JAX")
        return sharding
    if isinstance(sharding, NamedSharding):
        return _of_named(sharding, ours, ndim)
    return _of_foreign(sharding, ours, ndim)


def _of_foreign(sharding: object, ours: Mesh | None, ndim: int | None) -> Sharding:
    """As `sharding_of`, where it is not ours."""
    record = sharding_record(sharding, ndim) if isinstance(sharding, AnySharding | HloSharding) else None
    if record is None:
        raise ReshardError(
            "bad-argument", f"a sharding must be a PartitionSpec, a NamedSharding or ours, got: {shown(sharding)}"
        )
    if ours is None and isinstance(sharding, PartitionSpec):
        raise ReshardError("unknown-mesh", f"{sharding} does not say on which mesh; a mesh must be given or set")
    return sharding_of_record(record, ours, ndim)


_of_named = lru_cache(1024)(_of_foreign)
"""The same: of the many arguments of a function few have shardings of their own."""


def partition_spec_of(sharding: Sharding) -> PartitionSpec:
    """The spec of a sharding whose axes are whole.

    Open dims and priorities are dropped; explicitly replicated axes are `reduced` to JAX only where the values
    are gradients, so they are dropped too.

    Raises:
        ReshardError: `cannot-express` where the sharding has sub-axes, or unreduced values under another
            reduction than a sum.
    """
    expect(sharding, Sharding, "what a spec is made of").check_plain("a sharding of JAX")
    if sharding.reduction != "sum":
        raise ReshardError(
            "cannot-express", f"JAX has sums alone, but {sharding.text()} is unreduced under {sharding.reduction}"
        )
    for axis in [*(axis for dim in sharding.dims for axis in dim.axes), *sharding.unreduced]:
        if not axis.is_whole:
            raise ReshardError(
                "cannot-express",
                f"JAX has no sub-axes, but {sharding.text()} has {axis}; ask for a refined mesh with refine=True",
            )
    entries = [tuple(axis.name for axis in dim.axes) for dim in sharding.dims]
    dims = [None if not names else names[0] if len(names) == 1 else names for names in entries]
    return PartitionSpec(*dims, unreduced=frozenset(axis.name for axis in sharding.unreduced))


def named_sharding_of(sharding: Sharding, mesh: AnyMesh | None = None, *, refine: bool = False) -> NamedSharding:
    """The sharding as JAX's, over the devices of a mesh in its order.

    Args:
        sharding: ours, on the same devices; under another mesh's names it is put in terms of the mesh given.
        mesh: what the result is on; where not given, a mesh like that of the sharding over `jax.devices()`.
        refine: whether the result may be on a refined mesh, in which the axes are split that the sharding has
            in part (axis y of size 8 into y0, y1, …), or, where the axes cannot be split so, on the axes that
            the sharding itself has.

    Raises:
        ReshardError: `cannot-express` where the sharding has no whole axes of the mesh and `refine` is not
            set, or unreduced values under another reduction than a sum; `different-meshes` where the mesh has
            other devices or another order; `unknown-device`.
    """
    expect(sharding, Sharding, "what a sharding of JAX is made of")
    if mesh is None:
        mesh = jax_mesh_like(sharding.mesh)
    if sharding.mesh.is_maximal:
        raise ReshardError("cannot-express", "a sharding of JAX with names must have axes; this is on one device")
    renamed = on_mesh(sharding, mesh, refine=refine)
    if refine:
        mesh, (renamed,) = refined([renamed], mesh)
    return NamedSharding(mesh, partition_spec_of(renamed))


def on_mesh(sharding: Sharding, mesh: AnyMesh, *, refine: bool = False) -> Sharding:
    """The sharding in terms of the axes of a mesh of JAX, or, if it may be, of its own where those do not do.

    An `AbstractMesh` has no devices: whatever has its axes is on it.

    Raises:
        ReshardError: `different-meshes`, `cannot-express`.
    """
    ours = mesh_of(mesh)
    if sharding.mesh == ours:
        return sharding
    if isinstance(mesh, AbstractMesh):
        if sharding.mesh.axes == ours.axes:
            return replace(sharding, mesh=ours)
        ours = Mesh(ours.axes, sharding.mesh.device_ids if sharding.mesh.size == ours.size else None)
    if sharding.mesh.size != ours.size or set(sharding.mesh.devices) != set(ours.devices):
        raise ReshardError("different-meshes", f"{sharding} is on other devices than the mesh {ours} of JAX")
    renamed = parse_sharding(to_xla(sharding), ours, len(sharding.dims)) if sharding.mesh.axes else sharding
    if renamed.mesh == ours:
        return replace(renamed, mesh=Mesh(ours.axes) if isinstance(mesh, AbstractMesh) else ours)
    if refine and sharding.mesh.same_order_as(ours):
        return sharding
    raise ReshardError("cannot-express", f"the axes of mesh {ours} cannot express {sharding}")


def refined(shardings: Sequence[Sharding], mesh: AnyMesh) -> tuple[AnyMesh, list[Sharding]]:
    """A mesh over the same devices whose whole axes the shardings have, and the shardings on it.

    Args:
        shardings: on one mesh, the one that is given or another of the same order.
        mesh: of JAX; what is refined, where the shardings have its axes.
    """
    ours, used = shardings[0].mesh, [axis for sharding in shardings for axis in sharding.axes()]
    if ours.axes != tuple(mesh.shape.items()):
        mesh = _with_axes(mesh, ours.axes, None)
    if all(axis.is_whole for axis in used):
        return mesh, list(shardings)
    pieces = refined_mesh(used, ours.sizes)
    single = {piece: piece.name for piece in pieces if ours.sizes[piece.name] == 1}
    cut = [piece for piece in pieces if piece not in single]
    fine = Mesh.of_digits(ours.digits_of(cut), ours.device_ids, like=ours)
    names = single | dict(zip(cut, fine.sizes, strict=True))
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    axes = tuple((name, piece.size_in(ours.sizes[piece.name])) for piece, name in names.items())
    fine_mesh = _with_axes(mesh, axes, tuple(kinds[piece.name] for piece in names))

    def renamed(axes: Iterable[Axis]) -> tuple[Axis, ...]:
        return tuple(Axis(name) for axis in axes for piece, name in names.items() if axis.contains(piece))

    return fine_mesh, [
        replace(
            sharding,
            mesh=mesh_of(fine_mesh),
            dims=tuple(replace(dim, axes=renamed(dim.axes)) for dim in sharding.dims),
            replicated=renamed(sharding.replicated),
            unreduced=renamed(sharding.unreduced),
        )
        for sharding in shardings
    ]


def _with_axes(mesh: AnyMesh, axes: tuple[tuple[str, int], ...], types: tuple[Any, ...] | None) -> AnyMesh:
    """The devices of a mesh in their order under other axes, which are as the first axis was unless said."""
    names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
    kinds = types or (mesh.axis_types[0],) * len(names)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(sizes, names, axis_types=kinds, abstract_device=mesh.abstract_device)
    return JaxMesh(mesh.devices.reshape(sizes), names, axis_types=kinds)


def jax_mesh_like(mesh: Mesh) -> JaxMesh:
    """A mesh of JAX over `jax.devices()` with the axes and devices of ours.

    Raises:
        ReshardError: `unknown-device`.
    """
    devices, last = jax.devices(), max(mesh.devices)
    if last >= len(devices):
        raise ReshardError("unknown-device", f"device {last} is wanted; JAX has {len(devices)} devices here")
    ordered = np.array([devices[number] for number in mesh.devices], dtype=object)
    return JaxMesh(ordered.reshape(list(mesh.sizes.values())), list(mesh.sizes))


def hlo_sharding_of(sharding: Sharding, ndim: int | None = None) -> Any:
    """The sharding as XLA's object, with positions in its mesh for devices; its `str` is XLA's text.

    Raises:
        ReshardError: `cannot-express` where XLA's form cannot hold it, `rank-mismatch`.
    """
    expect(sharding, Sharding, "what a sharding of XLA is made of")
    mesh = sharding.mesh
    positions = Mesh((), (0,)) if mesh.is_maximal else Mesh(mesh.axes)
    return HloSharding.from_string(to_xla(replace(sharding, mesh=positions), ndim))


def as_array(x: object) -> jax.Array:
    """What is resharded as an array of JAX.

    Raises:
        ReshardError: `bad-argument` where it is none and nothing that one is made of.
    """
    if isinstance(x, jax.Array):
        return x
    try:
        return jax.numpy.asarray(x)
    except (TypeError, ValueError):
        raise ReshardError("bad-argument", f"an array or a number is resharded, got: {shown(x)}") from None


def for_leaves(shardings: Any, tree: Any, what: str, of: str = "", kinds: Any = AnySharding | None) -> list[Any]:
    """Shardings for each leaf of a pytree, where one may stand for a whole subtree; None in the pytree is no leaf.

    Args:
        shardings: of any form, and None, in a pytree that begins as the other.
        tree: what they are for.
        what: what the shardings are, for a sentence.
        of: of what, for a sentence.
        kinds: what one may be.

    Raises:
        ReshardError: `bad-argument` where the one does not begin as the other, or one is of another kind.
    """
    structure: Any = jax.tree.structure(tree)
    if shardings is None:
        spread = [None] * structure.num_leaves
    else:
        try:
            broadcast = jax.tree.broadcast(
                shardings, tree, is_leaf=lambda value: isinstance(value, AnySharding | Format | None)
            )
        except ValueError as error:
            text = str(error).splitlines()[0].rstrip(".")
            raise ReshardError("bad-argument", f"{what} does not fit the pytree that it is for: {text}") from None
        spread = list(structure.flatten_up_to(broadcast))
    for sharding in spread:
        check_form(sharding, what + of, kinds)
    return spread


def check_form(sharding: Any, what: str, kinds: Any = Target | None) -> None:
    """Refuse what is no sharding of these kinds.

    Raises:
        ReshardError: `bad-argument`.
    """
    if not isinstance(sharding, kinds):
        none = "None, " if isinstance(None, kinds) else ""
        forms = f"{none}a PartitionSpec, a NamedSharding or a Sharding"
        raise ReshardError("bad-argument", f"{what} must be {forms}, got: {shown(sharding)}")
