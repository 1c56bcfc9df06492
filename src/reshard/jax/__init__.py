"""The engine for JAX.

resharding.py         `reshard`: what is asked for, and on which mesh
primitive.py          the reshard as a linear operation: derivatives, batches, asking XLA for the source
lowering.py           a plan as what one device does: collectives of groups
rounds.py             any other exchange: rounds of permutations
across.py             to other devices, and other orders of devices
einsum.py             `einsum`: what is asked for, and on which mesh
einsum_primitive.py   the einsum as an operation: derivatives, batches
contraction.py        the plan of an einsum as what one device does
overlap.py            a gather or a reduce-scatter in rounds beside parts of the product
conversions.py        meshes and shardings, to and from JAX's
calibration.py        a network fitted to the devices at hand
inspection.py         `inspect`: what a compiled function moves
tracing.py            `trace`: a program from a function, through calls
regions.py            loops and choices
traced.py             such a program, and what it is once placed
emitter.py            an operation of it, with what one device does
equations.py          a rule per primitive
indexed.py            gathers and scatters
slices.py             slices at a place, single elements
moves.py              transposes, reshapes, slices, and what puts tensors together
windows.py            convolutions, and what else goes over a tensor with a window
programs.py           `to_jax`: a placed program as a function
operations.py         what one device does for a program that was written by hand
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax  # noqa: F401  # fails here where JAX is not installed
from jax._src import source_info_util

from reshard.jax.calibration import calibrate
from reshard.jax.conversions import hlo_sharding_of, mesh_of, named_sharding_of, partition_spec_of, sharding_of
from reshard.jax.einsum import einsum
from reshard.jax.resharding import reshard

__all__ = [
    "calibrate",
    "einsum",
    "hlo_sharding_of",
    "mesh_of",
    "named_sharding_of",
    "partition_spec_of",
    "reshard",
    "sharding_of",
]

source_info_util.register_exclusion(str(Path(__file__).parent))  # an operation's line in a dump is its caller's

LATER = {"inspect": "reshard.jax.inspection", "to_jax": "reshard.jax.programs", "trace": "reshard.jax.tracing"}
"""What loads on first use: the module that has it."""


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'reshard.jax' has no attribute {name!r}")
    return getattr(importlib.import_module(LATER[name]), name)
