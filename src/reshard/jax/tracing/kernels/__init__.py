"""Kernels of Pallas: which parts of their grids devices may run each by itself.

`grids` reads index maps as numbers made of digits of the grid's axes, `scratch` sees whether a kernel hands anything on
from one place to the next, `cuttable` says which digits may be cut, `local_kernel` is the
rule and what a device runs.
"""

from __future__ import annotations

from reshard.jax.tracing.kernels.cuttable import Kernel
from reshard.jax.tracing.kernels.local_kernel import as_function, on_parts

__all__ = ["Kernel", "as_function", "on_parts"]
