"""From what a rule says of cuts to a sharding of tensors of one shape.

By hand, 4 heads of 2 rows on 8 devices: neighbours hold the same head, so the major half of the axis cuts.

>>> sharding, padded = cuts_of(Rule("k", "colwise", heads=4), Mesh.of(tp=8), (), (8, 3), 1)
>>> print(sharding.text(), padded)
[{"tp":(1)4}, {}] None
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from reshard.axis import Axis
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.models.rule import Rule
from reshard.notation import parse_sharding
from reshard.sharding import Sharding

CUT_DIMS: dict[str, int | None] = {
    "colwise": -2,
    "colwise_rep": -2,
    "colwise_gather_output": -2,
    "local_colwise": -2,
    "rowwise": -1,
    "rowwise_rep": -1,
    "rowwise_split_input": -1,
    "local_rowwise": -1,
    "embedding_rowwise": 0,
    "grouped_gemm": 0,
    "replicated": None,
    "rep": None,
    "replicated_with_grad_allreduce": None,
    "sequence_parallel": None,
}
"""By style, the dim of a weight (…, out, in) that it cuts; a vector goes with the rows of colwise."""
PACKED = ("packed_colwise", "packed_rowwise")
"""Styles of tensors of several parts, each of which is cut by itself."""
STYLE_AXES = ("tp", "model", "tensor")
"""The axes that a style cuts by: the first that the mesh has, or its last axis."""


def cuts_of(
    rule: Rule, mesh: Mesh, counts: tuple[int, ...], shape: tuple[int, ...], pad: int
) -> tuple[Sharding, tuple[int, ...] | None]:
    """How a rule cuts tensors of a shape, on the slices that it puts them on; and the sizes that are cut."""
    sizes = dict(mesh.sizes)
    for part, count in zip(rule.on, counts, strict=True):
        sizes[part.axis] = count
    sliced = Mesh(tuple(sizes.items()))
    whole = _spec(rule, Mesh(mesh.axes), len(shape))
    for part, count in zip(rule.on, counts, strict=True):
        if count < mesh.sizes[part.axis] and any(axis.name == part.axis for axis in whole.axes()):
            raise ReshardError("bad-argument", f"rule {rule.match!r} both is on a slice of {part.axis} and cuts by it")
    if whole.unreduced:
        raise ReshardError("bad-argument", f"rule {rule.match!r} leaves values unreduced, which no model holds")
    sharding = replace(whole, mesh=sliced)
    padded = list(shape)
    if shape and pad > 1:
        padded[0] = -(-shape[0] // pad) * pad
    if rule.heads is not None:
        sharding = _by_heads(rule, sharding, shape, padded)
    sharding.layout_for(shape)
    return sharding, None if tuple(padded) == shape else tuple(padded)


def _by_heads(rule: Rule, sharding: Sharding, shape: tuple[int, ...], padded: list[int]) -> Sharding:
    """The sharding whose cuts lie between heads; what is padded for that is put into the sizes."""
    heads = rule.heads or 1
    dim = next((number for number, cut in enumerate(sharding.dims) if cut.axes), None)
    if dim is None:
        return sharding
    if shape[dim] % heads:
        raise ReshardError("bad-argument", f"rule {rule.match!r} has {heads} heads in a dim of {shape[dim]} elements")
    sizes = sharding.mesh.sizes
    axes = sharding.dims[dim].axes
    parts = prod(axis.size_in(sizes[axis.name]) for axis in axes)
    if parts <= heads:
        multiple = shape[dim] // heads * parts
        padded[dim] = -(-max(padded[dim], shape[dim]) // multiple) * multiple
        return sharding
    if parts % heads:
        raise ReshardError(
            "bad-argument", f"rule {rule.match!r} cuts {heads} heads over {parts} devices, which share them unevenly"
        )
    kept, left = [], heads
    for axis in axes:
        size = axis.size_in(sizes[axis.name])
        if left % size == 0:
            kept.append(axis)
            left //= size
        elif left > 1 and size % left == 0:
            kept.append(Axis.between(axis.name, axis.start, axis.start * left, sizes[axis.name]))
            left = 1
    if left > 1:
        raise ReshardError("bad-argument", f"rule {rule.match!r} cuts {heads} heads by axes that do not nest with them")
    dims = list(sharding.dims)
    dims[dim] = DimSharding.of(*kept)
    return replace(sharding, dims=tuple(dims))


def _spec(rule: Rule, mesh: Mesh, ndim: int) -> Sharding:
    """A rule's spec as a sharding on a mesh, of a tensor of so many dims."""
    spec = rule.spec
    if isinstance(spec, Sharding):
        return replace(spec, mesh=mesh)
    if not isinstance(spec, str):
        entries = [*spec, *[None] * (ndim - len(spec))]
        return Sharding.of(mesh, *(tuple(entry) if isinstance(entry, list) else entry for entry in entries))
    style = spec.strip()
    if style in CUT_DIMS:
        dim = CUT_DIMS[style]
        if dim is not None:
            dim = max(dim, -ndim) % ndim if ndim > 1 or (ndim and dim != -1) else None
        axis = next((name for name in STYLE_AXES if name in mesh.sizes), list(mesh.sizes)[-1])
        return Sharding.of(mesh, *(axis if number == dim else None for number in range(ndim)))
    if style in PACKED:
        raise ReshardError(
            "cannot-express",
            f"style {style!r} of rule {rule.match!r} cuts each part of a tensor; give the parts as tensors",
        )
    if style.isidentifier():
        raise ReshardError("bad-argument", f"style {style!r} is none of {', '.join(CUT_DIMS)}")
    return parse_sharding(style, mesh, ndim)
