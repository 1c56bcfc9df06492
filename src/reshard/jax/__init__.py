"""The engine for JAX.

exchange/        `reshard`, `run`, and plans as what one device does
contraction/     `einsum`
tracing/         `trace`: a program from a function
stablehlo/       `rs.Program.from_stablehlo`: a program from a module in text
halo.py          `halo`: tiles with borders
reshard_tiles.py `reshard_tiles`: tiles of several boxes, side by side in an array
transfer.py      `transfer`: a whole model, by its plan
slots.py         boxes of tensors in buffers; casts in blocks
programs.py      `to_jax`: a placed program as a function
verbs.py         what JAX does with arrays, for the interpreter of operations
jax_shardings.py meshes and shardings, to and from JAX's
calibration.py   a network fitted to the devices at hand
inspection.py    `inspect`: what a compiled function moves
patching.py      `patched`: plans under JAX's own calls
traced_code.py   `code_of`: a plan as a function of JAX alone

Whatever moves does so by a plan that was made before the program runs, from shardings alone: for an array that is
there by itself, for a traced one by its type, by what is said, or by XLA once it has propagated.
`contraction` rests on `exchange`, `tracing` on `contraction`, `stablehlo` on `tracing`.
Shardings become JAX's in `jax_shardings` alone.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import jax  # noqa: F401
except ModuleNotFoundError:  # an ImportError for `from reshard import jax`, with the way out
    raise ModuleNotFoundError("jax is not installed: pip install 'reshard[jax]'", name="jax") from None
from jax._src import source_info_util

from reshard.jax.calibration import calibrate
from reshard.jax.contraction.einsum import einsum
from reshard.jax.exchange.resharding import reshard
from reshard.jax.exchange.whole_plans import run
from reshard.jax.halo import halo
from reshard.jax.jax_shardings import hlo_sharding_of, mesh_of, named_sharding_of, partition_spec_of, sharding_of
from reshard.jax.reshard_tiles import reshard_tiles
from reshard.jax.transfer import transfer

if TYPE_CHECKING:  # what `__getattr__` gives, said to type checkers
    from reshard.jax.inspection import inspect as inspect
    from reshard.jax.programs import to_jax as to_jax
    from reshard.jax.stablehlo.modules import program_of as program_of
    from reshard.jax.tracing.functions import trace as trace

__all__ = [
    "calibrate",
    "einsum",
    "halo",
    "hlo_sharding_of",
    "mesh_of",
    "named_sharding_of",
    "partition_spec_of",
    "reshard",
    "reshard_tiles",
    "run",
    "sharding_of",
    "transfer",
]

source_info_util.register_exclusion(str(Path(__file__).parent))  # an operation's line in a dump is its caller's

LATER = {
    "code_of": "reshard.jax.traced_code",
    "inspect": "reshard.jax.inspection",
    "patched": "reshard.jax.patching",
    "program_of": "reshard.jax.stablehlo.modules",
    "to_jax": "reshard.jax.programs",
    "trace": "reshard.jax.tracing.functions",
}
"""What loads on first use: the module that has it."""


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'reshard.jax' has no attribute {name!r}")
    return getattr(importlib.import_module(LATER[name]), name)
