"""From what a rule says of cuts to a sharding of tensors of one shape.

By hand, 4 heads of 2 rows on 8 devices: neighbours hold the same head, so the major half of the axis cuts.

>>> sharding, padded = cuts_of(Rule("k", "colwise", heads=4), Mesh.of(tp=8), (), (8, 3), 1)
>>> print(sharding.text(), padded)
[{"tp":(1)4}, {}] None
"""

from __future__ import annotations

from dataclasses import replace

from reshard.axis import Axis, shards
from reshard.deal import Deal
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
    "packed_colwise": -2,
    "local_packed_colwise": -2,
    "rowwise": -1,
    "rowwise_rep": -1,
    "rowwise_split_input": -1,
    "local_rowwise": -1,
    "packed_rowwise": -1,
    "local_packed_rowwise": -1,
    "embedding_rowwise": 0,
    "embedding_colwise": 1,
    "grouped_gemm": 0,
    "dim0": 0,
    "replicated": None,
    "replicate": None,
    "rep": None,
    "replicated_with_grad_allreduce": None,
    "sequence_parallel": None,
    "mla_kv_a_proj": None,
    "ep_router": None,
    "gather": None,
    "local": None,
}
"""By style, the dim of a weight (…, out, in) that it cuts; a vector goes with the rows of colwise, and whole with
rowwise, and a tensor without dims whole. The names are those of Hugging Face's transformers 4.50 to 5.23; `dim0` is
what FSDP does."""
PACKED_PARTS = 2
"""The parts of a tensor that a packed style cuts, each by itself: gate and up."""
OF_MODULES = ("moe_tp_experts", "ep_dispatch_experts", "moe_identity_expert", "local_params", "all_reduce")
"""Styles that say what a module does with activations, and nothing of weights."""
OF_FSDP = ("keep_full_weight", "free_full_weight")
"""Styles that say when weights are gathered, and nothing of where they lie."""
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
    if tuple(padded) == shape:
        return sharding, None
    sharding.check_plain("a tensor that is padded")
    return sharding, tuple(padded)


def _by_heads(rule: Rule, sharding: Sharding, shape: tuple[int, ...], padded: list[int]) -> Sharding:
    """The sharding whose cuts lie between heads; what is padded for that is put into the sizes."""
    heads = rule.heads or 1
    dim = next((number for number, cut in enumerate(sharding.dims) if cut.axes), None)
    if dim is None:
        return sharding
    if sharding.dims[dim].deals:
        raise ReshardError("cannot-express", f"rule {rule.match!r} deals blocks in a dim of heads")
    if shape[dim] % heads:
        raise ReshardError("bad-argument", f"rule {rule.match!r} has {heads} heads in a dim of {shape[dim]} elements")
    sizes = sharding.mesh.sizes
    axes = sharding.dims[dim].axes
    parts = shards(axes, sizes)
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
        return _styled(style, mesh, ndim)
    if style.isidentifier():
        check_style(style, f"rule {rule.match!r}")
        raise ReshardError("bad-argument", f"style {style!r} of rule {rule.match!r} is of modules and cuts no weights")
    return parse_sharding(style, mesh, ndim)


def check_style(style: str, what: str) -> None:
    """Refuse a style that says nothing known of tensor parallelism.

    Args:
        style: its name.
        what: what has it, for the sentence.

    Raises:
        ReshardError: `cannot-express` for one of a plan for FSDP, `bad-argument` for one that is not known.
    """
    if style in OF_FSDP:
        raise ReshardError(
            "cannot-express", f"style {style!r} of {what} is of a plan for FSDP, which cuts dim 0 of all: take fsdp:8"
        )
    if style not in CUT_DIMS and style not in OF_MODULES:
        known = ", ".join((*CUT_DIMS, *OF_MODULES))
        raise ReshardError("bad-argument", f"style {style!r} of {what} is none of {known}")


def _styled(style: str, mesh: Mesh, ndim: int) -> Sharding:
    """The cuts that a style says, of a tensor of so many dims."""
    dim = CUT_DIMS[style]
    is_vector = ndim == 1
    if dim is not None:
        dim = 0 if dim == -2 and is_vector else None if is_vector and dim else dim % ndim if ndim else None
    axis = next((name for name in STYLE_AXES if name in mesh.sizes), list(mesh.sizes)[-1])
    cut = [Deal.parts(PACKED_PARTS), axis] if "packed_" in style and not is_vector else axis
    return Sharding.of(mesh, *(cut if number == dim else None for number in range(ndim)))
