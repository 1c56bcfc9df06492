"""`einsum` for arrays of JAX: what is asked for, and on which mesh.

What says where an operand is:

    the array itself    where it is there (eager)
    its type            where it is traced and the axes of its mesh are Explicit
    `sources=`          where it is traced and they are Auto

>>> import numpy as np
>>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
>>> a = jax.device_put(np.arange(4.0).reshape(2, 2), jax.NamedSharding(mesh, jax.P("x", None)))
>>> einsum("ij,jk->ik", a, a, target=jax.P(None, "x")).tolist()
[[2.0, 3.0], [6.0, 11.0]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core
from jax._src.lax.lax import PrecisionLike
from jax.sharding import AxisType, NamedSharding
from jax.sharding import Mesh as JaxMesh
from jax.typing import ArrayLike, DTypeLike

from reshard.checks import listed
from reshard.errors import ReshardError
from reshard.jax.contraction.einsum_primitive import MeshEinsum, bind, on_every_device, placed
from reshard.jax.contraction.local import LocalProduct
from reshard.jax.exchange.traced import target_in
from reshard.jax.jax_shardings import AnyMesh, Target, as_array, check_form, mesh_of
from reshard.network import Network
from reshard.operations.pattern import Pattern


def einsum(
    expression: str | Pattern,
    *operands: ArrayLike,
    target: Target | None = None,
    sources: Sequence[Target | None] | None = None,
    network: Network | str | None = None,
    sizes: Mapping[str, int] | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    overlap: bool | None = None,
) -> jax.Array:
    """The einsum of sharded arrays, computed and laid out as the cheapest plan of `reshard.einsum` says.

    In place of `jax.numpy.einsum` or `@`, in and out of `jit`, under `set_mesh`, `scan`, `vmap`, `jvp` and `grad`.
    A device contracts its tiles with JAX's own einsum; what it does not sum itself is summed in the dtype of the
    result.
    A dim that `vmap` adds is whole on every device, unless `spmd_axis_name` or the type of the array says otherwise.

    Args:
        expression: a pattern as of `reshard.operations.pattern`, such as `ij,jk->ik` or `(a b) c -> a (b c)`.
        operands: arrays; of several dtypes each moves in its own.
        target: where the result is wanted, as `reshard.jax.reshard` takes it; without it where it is cheapest,
            among all that JAX can say.
        sources: per operand where it is, or None; needed inside `jit` for arrays on Auto axes.
        network: what the devices are connected by, or the name of a preset; without it bytes decide.
        sizes: of labels that the shapes do not determine.
        precision: of the products on a device, as `jax.numpy.einsum` takes it.
        preferred_element_type: the dtype of the result, and of the sums on a device and between devices.
        overlap: whether a gather or a reduce-scatter is cut into rounds beside parts of the product; False for
            never, True for wherever it can be, None for where the network's price says that it pays.

    Raises:
        ReshardError: `syntax`, `rank-mismatch`, `bad-shape` and all else that `reshard.einsum` raises;
            `unknown-mesh` where no mesh is known, `different-meshes`, `not-divisible`, `cannot-express`,
            `bad-argument`; all before anything moves.
    """
    pattern = Pattern.of(expression)
    pattern.check_count(len(operands))
    said = [None] * len(operands) if sources is None else list(listed(sources, "the sources of an einsum"))
    pattern.check_count(len(said), " sources")
    for end in (target, *said):
        check_form(end, "where an array of an einsum is")
    network = Network.named(network, "the network of an einsum")
    arrays = [as_array(x) for x in operands]
    for x in arrays:
        if not all(isinstance(size, int) for size in x.shape):
            raise ReshardError("bad-shape", f"an einsum needs static shapes, got: {x.shape}")
    solved, rank = pattern.solve_sizes([x.shape for x in arrays], sizes), len(pattern.output)
    mesh = _mesh_of(arrays, [target, *said])
    sharded, specs = zip(
        *(
            placed(x, mesh, source) if isinstance(operand, jax.Array) else on_every_device(x, mesh)
            for operand, x, source in zip(operands, arrays, said, strict=True)
        ),
        strict=True,
    )
    goal = None if target is None else target_in(mesh, target, False, rank).spec
    local = LocalProduct(
        precision, None if preferred_element_type is None else np.dtype(preferred_element_type), overlap
    )
    label_sizes = tuple(solved[label] for label in pattern.labels)
    return bind(sharded, MeshEinsum(pattern, label_sizes, mesh, specs, goal, network, local))


def _mesh_of(arrays: Sequence[jax.Array], said: Sequence[Any]) -> AnyMesh:
    """The one mesh of all arrays and of all that is said about them.

    Raises:
        ReshardError: `unknown-mesh`, `different-meshes`, `bad-argument` inside `shard_map`.
    """
    known: list[AnyMesh] = [end.mesh for end in said if isinstance(end, NamedSharding)]
    for x in arrays:
        sharding = jax.typeof(x).sharding if isinstance(x, core.Tracer) else x.sharding
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            known.append(sharding.mesh)
    current = jax.sharding.get_abstract_mesh()
    known += [] if current.empty else [current]
    if not known:
        raise ReshardError("unknown-mesh", "no operand of the einsum is on a mesh, and no mesh is given or set")
    is_traced = any(isinstance(x, core.Tracer) for x in arrays)
    for mesh in known[1:]:
        if mesh.shape_tuple != known[0].shape_tuple and (is_traced or mesh.size != known[0].size):
            raise ReshardError(
                "different-meshes",
                f"the arrays of an einsum are on meshes {mesh_of(known[0])} and {mesh_of(mesh)}; reshard them first",
            )
    types = next((mesh for mesh in (current, *known) if not mesh.empty), known[0]).axis_types
    first = next((mesh for mesh in known if isinstance(mesh, JaxMesh)), known[0])
    if AxisType.Manual in types:
        raise ReshardError("bad-argument", "inside shard_map a device sees its own tile alone; contract outside of it")
    return first if first.axis_types == types else first.abstract_mesh.update(axis_types=types)
