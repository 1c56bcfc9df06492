"""Plan a reshard: candidates, and a policy that chooses among them.

    candidates.py   chains of steps that lead from source to target
    policy.py       which is best: fewest bytes, then steps, then rounds

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(D=2, Y=8, X=4, T=4)
>>> source = Sharding.of(mesh, "D", ("X", "Y"))
>>> target = Sharding.of(mesh, None, ("D", "Y", "X", "T"))
>>> plan(source, target, (2048, 2048), "float32").received_bytes
65536
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.planner.candidates import candidates
from reshard.planner.policy import fewest_bytes
from reshard.plans import Plan
from reshard.sharding import Sharding, checked_shape, with_mesh

__all__ = ["cache_clear", "plan"]

CACHED_PLANS = 4096
"""Plans that are kept; the one that was used longest ago makes room."""


def plan(source: Sharding, target: Sharding, shape: Sequence[int], dtype: Any = "float32") -> Plan:
    """The plan that takes a tensor from one sharding to another.

    Each device receives the bytes that it lacks and no others; of all such plans the one with the fewest steps,
    then the fewest rounds.
    Where an end lies on the empty mesh, it is taken as replicated on the mesh of the other.
    Plans are cached by all four arguments; the cache is bounded and may be used by many threads.

    Args:
        source: where the tensor is.
        target: where it is wanted, on the same mesh or any other.
        shape: the sizes of the whole tensor.
        dtype: its element type, by either name or as NumPy's.

    Raises:
        ReshardError: `rank-mismatch`, `bad-shape`, `too-large`, `unknown-dtype`, `reduction-dtype`, and `no-plan`
            where parts would become partial under avg.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=4)
    >>> [step.kind for step in plan(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "x", None), (8, 8)).steps]
    ['AllGather']
    """
    for sharding in (source, target):
        if not isinstance(sharding, Sharding):
            raise ReshardError("bad-argument", f"source and target must be of type Sharding, got: {sharding!r}")
    return _planned(source, target, checked_shape(shape), dtype_named(dtype))


@lru_cache(CACHED_PLANS)
def _planned(source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Plan:
    source, target = with_mesh(source, target.mesh), with_mesh(target, source.mesh)
    for sharding in (source, target):
        sharding.layout_for(shape)
        if sharding.unreduced:
            dtype.check_reduction(sharding.reduction)
    plans = [Plan(source, target, shape, dtype, steps) for steps in candidates(source, target, shape, dtype)]
    return plans[0] if len(plans) == 1 else min(plans, key=fewest_bytes)


def cache_clear() -> None:
    """Forget the cached plans."""
    _planned.cache_clear()
