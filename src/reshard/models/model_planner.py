"""How a plan for a whole model is made: tensors that agree in groups, their senders balanced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reshard.checks import checked_shape, expect, integer, listed, shown
from reshard.digits import Positions
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.mesh import ENUMERABLE
from reshard.models.catalogue import TensorType
from reshard.models.model_plan import ModelPlan
from reshard.models.names import nearest, pattern_of
from reshard.models.ruleset import Ruled, Rules
from reshard.models.templates import Moves, TensorGroup, moves_between
from reshard.network import Network

IN_FLIGHT = 256 << 20


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
            elements are larger casts.

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
    ruled = tuple(
        tuple(rules.ruled(name, tensor.shape) for name, tensor in zip(tensors, types, strict=True)) for rules in ends
    )
    dtypes = _cast(tensors, types, cast)
    if max(max(rules.mesh.devices) for rules in ends) >= ENUMERABLE:
        raise ReshardError("too-large", f"a model's devices must be below {ENUMERABLE}")
    groups = _grouped(types, dtypes, ruled[0], ruled[1])
    return ModelPlan(tuple(tensors), types, dtypes, ends, (ruled[0], ruled[1]), groups, in_flight, network)


def _tensor_type(name: str, value: Any) -> TensorType:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape, dtype = value.shape, value.dtype
    else:
        pair = listed(value, f"the shape and dtype of {name!r}")
        if len(pair) != 2:
            raise ReshardError("bad-argument", f"{name!r} must have a shape and a dtype, got: {shown(value)}")
        shape, dtype = pair
    return TensorType(checked_shape(shape), dtype_named(dtype))


def _cast(names: Mapping[str, Any], types: tuple[TensorType, ...], cast: Mapping[str, Any] | None) -> tuple[DType, ...]:
    """The dtypes at the target."""
    if not cast:
        return tuple(tensor.dtype for tensor in types)
    patterns = [(key, pattern_of(key), dtype_named(value)) for key, value in cast.items()]
    result, used = [], set()
    for name, tensor in zip(names, types, strict=True):
        key, dtype = next(
            ((key, dtype) for key, pattern, dtype in patterns if key == name or pattern.fullmatch(name)),
            ("", tensor.dtype),
        )
        used.add(key)
        result.append(dtype)
    unused = [key for key in cast if key not in used]
    if unused:
        raise ReshardError(
            "bad-argument", f"cast names {unused[0]!r}, no tensor; the nearest are {nearest(unused[0], names)}"
        )
    return tuple(result)


def _grouped(
    types: tuple[TensorType, ...],
    dtypes: tuple[DType, ...],
    sources: tuple[Ruled, ...],
    targets: tuple[Ruled, ...],
) -> tuple[TensorGroup, ...]:
    """The groups, with the holders that their repetitions take balanced over all of them."""
    groups: dict[Any, TensorGroup] = {}
    known: dict[Any, Moves] = {}
    places: dict[tuple[bytes, bytes], Positions | None] = {}
    for number, (tensor, dtype, source, target) in enumerate(zip(types, dtypes, sources, targets, strict=True)):
        key = id(source.site), id(target.site), tensor.dtype.name, dtype.name
        group = groups.get(key)
        if group is None:
            ends = source.site, target.site
            between = ends[0].devices.tobytes(), ends[1].devices.tobytes()
            if between not in places:
                found = np.array([ends[0].position_of.get(device, -1) for device in ends[1].devices.tolist()])
                places[between] = found if (found >= 0).any() else None
            shared = places[between]
            cut = tensor.shape, ends[0].layout, ends[1].layout, None if shared is None else shared.tobytes()
            if cut not in known:
                known[cut] = moves_between(*ends, shared)
            group = groups[key] = TensorGroup(*ends, (tensor.dtype, dtype), known[cut])
        group.members.append(number)
    _balance(list(groups.values()), 1 + max((int(group.source.devices.max()) for group in groups.values()), default=0))
    return tuple(groups.values())


def _balance(groups: list[TensorGroup], world: int) -> None:
    """Let each group begin with the holders that have the least to send so far; large tensors go first."""
    sent = np.zeros(world, dtype=np.int64)
    for group in sorted(groups, key=lambda group: -group.moves.most[1] * group.wire.itemsize):
        moves = group.moves
        rest = len(group.members) % moves.replicas
        if rest:
            by_holder = np.bincount(moves.number, sent[group.source.devices], moves.replicas)
            sums = np.concatenate([[0], by_holder, by_holder]).cumsum()
            group.first = int(np.argmin(sums[rest : rest + moves.replicas] - sums[: moves.replicas]))
        sent[group.source.devices] += moves.sent_in(group.first, len(group.members)) * group.wire.itemsize
