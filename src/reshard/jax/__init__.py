"""The engine for JAX.

resharding.py   `reshard`: what is asked for, and on which mesh
primitive.py    the reshard as a linear operation: derivatives, batches, asking XLA for the source
lowering.py     a plan as what one device does: collectives of groups
rounds.py       any other exchange: rounds of permutations
conversions.py  meshes and shardings, to and from JAX's
calibration.py  a network fitted to the devices at hand
"""

from __future__ import annotations

import importlib
from typing import Any

import jax  # noqa: F401  # fails here where JAX is not installed

from reshard.jax.calibration import calibrate
from reshard.jax.conversions import hlo_sharding_of, mesh_of, named_sharding_of, partition_spec_of, sharding_of
from reshard.jax.resharding import reshard

__all__ = [
    "calibrate",
    "hlo_sharding_of",
    "mesh_of",
    "named_sharding_of",
    "partition_spec_of",
    "reshard",
    "sharding_of",
]

LATER = {"inspect": "reshard.jax.inspection"}
"""What loads on first use: the module that has it."""


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'reshard.jax' has no attribute {name!r}")
    return getattr(importlib.import_module(LATER[name]), name)
