"""The tensors of a model in groups, and which holder of a tile each group begins with.

Groups are made in the order of the tensors, moves once for all groups that are cut alike, and the holders are chosen
so that all of them send about as much in the sum of all groups; every process finds the same.

By hand: three tensors of 4 bytes that devices 0 and 1 hold whole go to device 2; device 0 sends two of them.

>>> from reshard.dtypes import dtype_named
>>> from reshard.mesh import Mesh
>>> from reshard.models.ruleset import Rules
>>> ends = [Rules.of(Mesh.of({"x": len(ids)}, device_ids=ids), {}, "replicated") for ids in [(0, 1), (2,)]]
>>> types = [TensorType((1,), dtype_named("f32"))] * 3
>>> ruled = [tuple(rules.ruled(name, (1,)) for name in "abc") for rules in ends]
>>> (group,) = groups_of(types, [tensor.dtype for tensor in types], *ruled)
>>> group.members, group.turns().tolist()
([0, 1, 2], [0, 1, 0])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reshard.digits import Positions
from reshard.dtypes import DType
from reshard.models.catalogue import TensorType
from reshard.models.ruleset import Ruled
from reshard.models.templates import Moves, TensorGroup, moves_between


def groups_of(
    types: Sequence[TensorType],
    dtypes: Sequence[DType],
    sources: Sequence[Ruled],
    targets: Sequence[Ruled],
) -> tuple[TensorGroup, ...]:
    """The groups, with the holders that their repetitions take balanced over all of them.

    Args:
        types: per tensor, of the source.
        dtypes: per tensor, of the target.
        sources: per tensor what the rules of the source say.
        targets: per tensor what those of the target say.
    """
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
                positions = np.array([ends[0].position_of.get(device, -1) for device in ends[1].devices.tolist()])
                places[between] = positions if (positions >= 0).any() else None
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
