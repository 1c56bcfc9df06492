"""How a plan for a whole model is made: tensors that agree in groups, their senders balanced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard.checks import checked_shape, expect, integer, listed, shown
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.garbage import uncollected
from reshard.models.block_scales import SCALE, BlockCast, CastEnd, ScaledTensor, cast_places
from reshard.models.catalogue import TensorType
from reshard.models.model_plan import ModelPlan
from reshard.models.names import nearest, pattern_of
from reshard.models.ruleset import Rules
from reshard.network import Network

IN_FLIGHT = 256 << 20


@uncollected()
def plan_model(
    tensors: Mapping[str, Any],
    source: Rules,
    target: Rules | None = None,
    *,
    network: Network | str | None = None,
    in_flight: int = IN_FLIGHT,
    cast: Mapping[str, Any] | None = None,
) -> ModelPlan:
    """A plan that moves a model from where some rules put it to where others do.

    Args:
        tensors: by name its shape and dtype, as a pair or as what has both.
        source: where the tensors are; left out where they are live and say it themselves, as DTensors do.
        target: where they go.
        network: the devices' network, or a preset's name, to tell what it takes.
        in_flight: bytes that a device may have under way, sent and received together.
        cast: by name or pattern, the dtype at the target; the first that matches counts, and the end where the
            elements are larger casts. `f8e4m3fn/128x128` casts tensors of two dims in blocks of that size, each with
            a scale of float32 in the tensor `NAME_scale_inv` of the target, whose rules say where that goes.

    Raises:
        ReshardError: `bad-argument` where a name has no rule, `bad-shape`, `unknown-dtype`, `bad-network`, `too-large`,
            and what a rule that does not fit its tensor raises.

    >>> from reshard.mesh import Mesh
    >>> rules = Rules.of(Mesh.of(x=2), {}, "replicated")
    >>> plan_model({"w": ((4, 4), "f32")}, Rules.of(Mesh.of(x=2), {}, ("x",)), rules, cast={"w": "bf16"}).received_bytes
    16
    """
    if target is None:
        source, target = Rules.held_by(expect(tensors, Mapping, "tensors")), source  # type: ignore[type-abstract]
    ends = (expect(source, Rules, "the source of a model"), expect(target, Rules, "the target of a model"))
    in_flight = integer(in_flight, "in_flight")
    if in_flight < 2:
        raise ReshardError("bad-argument", f"in_flight is {in_flight}; it must be at least 2")
    if not all(isinstance(name, str) for name in expect(tensors, Mapping, "tensors")):  # type: ignore[type-abstract]
        raise ReshardError("bad-argument", f"tensors must be shapes and dtypes by name, got: {shown(tensors)}")
    types = tuple(_tensor_type(name, value) for name, value in tensors.items())
    if isinstance(network, str):
        network = Network.preset(network)
    travelling: dict[str, tuple[TensorType, DType]] = {}
    scaled: list[ScaledTensor] = []
    known: dict[Any, CastEnd] = {}
    for name, tensor, dtype in zip(tensors, types, _cast(tensors, types, cast), strict=True):
        if not isinstance(dtype, BlockCast):
            travelling[name] = tensor, dtype
            continue
        places = cast_places(name, tensor, dtype, *ends, known)
        travelling[name] = TensorType(tensor.shape, places.travels), places.travels
        scaled.append(places.scaled)
        if places.scaled.scales in tensors:
            raise ReshardError(
                "bad-argument", f"a cast in blocks makes {places.scaled.scales!r}, which is there already"
            )
        if places.scaled.at == "source":
            travelling[places.scaled.scales] = places.scales, SCALE
    sent, written = (tuple(pair[0] for pair in travelling.values()), tuple(pair[1] for pair in travelling.values()))
    return ModelPlan(tuple(travelling), sent, written, ends, in_flight, network, tuple(scaled))


def _tensor_type(name: str, value: Any) -> TensorType:
    if type(value) is TensorType and checked_shape(value.shape) is value.shape and type(value.dtype) is DType:
        return value  # what models have thousands of
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape, dtype = value.shape, value.dtype
    else:
        pair = listed(value, f"the shape and dtype of {name!r}")
        if len(pair) != 2:
            raise ReshardError("bad-argument", f"{name!r} must have a shape and a dtype, got: {shown(value)}")
        shape, dtype = pair
    return TensorType(checked_shape(shape), dtype_named(dtype))


def _cast(
    names: Mapping[str, Any], types: tuple[TensorType, ...], cast: Mapping[str, Any] | None
) -> tuple[DType | BlockCast, ...]:
    """The dtypes at the target, or casts in blocks of tensors of as many dims."""
    if not cast:
        return tuple(tensor.dtype for tensor in types)
    patterns = [(key, pattern_of(key), BlockCast.read(value) or dtype_named(value)) for key, value in cast.items()]
    result: list[DType | BlockCast] = []
    used = set()
    for name, tensor in zip(names, types, strict=True):
        key, dtype = next(
            ((key, dtype) for key, pattern, dtype in patterns if key == name or pattern.fullmatch(name)),
            ("", tensor.dtype),
        )
        used.add(key)
        has_blocks = isinstance(dtype, BlockCast) and len(dtype.block) == len(tensor.shape) and 0 not in tensor.shape
        result.append(dtype if has_blocks or not isinstance(dtype, BlockCast) else tensor.dtype)
    unused = [key for key in cast if key not in used]
    if unused:
        raise ReshardError(
            "bad-argument", f"cast names {unused[0]!r}, no tensor; the nearest are {nearest(unused[0], names)}"
        )
    return tuple(result)
