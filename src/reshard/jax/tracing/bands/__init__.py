"""Scores in the window that their masks show: attention, its softmax and its gradients, computed in a band.

In the order of what builds on what: `planes` follows rows and columns, `masks` tells in which diagonals a mask can be
true, `sinking` makes masks within the loops that are handed them, `band_blocks` cuts a band into blocks of rows,
`band_values` and `band_ends` compute in them, `banding` puts that in the place of what computed all scores.
"""

from __future__ import annotations

from reshard.jax.tracing.bands.banding import in_bands
from reshard.jax.tracing.bands.planes import flattened, inlined

__all__ = ["flattened", "in_bands", "inlined"]
