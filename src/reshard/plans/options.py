"""What a plan has to keep to besides its two ends.

>>> Options(Network.preset("h100-2x8"), memory_limit=2**30).basis
'any'
"""

from __future__ import annotations

from dataclasses import dataclass

from reshard.checks import expect, integer, shown
from reshard.errors import ReshardError
from reshard.network import Network

BASES = ("any", "collectives", "one-axis", "one-axis-document")
"""Which steps a plan may have: all; named collectives; those of one mesh axis at a time, in the cheapest order or
in the order of the MLIR document."""


@dataclass(frozen=True)
class Options:
    """The network, the basis and the memory limit of a plan.

    Rules, in the order checked, all `bad-argument`: the network is one; the basis is one of `BASES`; the limit is an
    integer of at least 0.
    """

    network: Network | None = None
    """What the devices are connected by, and so what a step takes; None where bytes alone count."""
    basis: str = "any"
    memory_limit: int | None = None
    """Bytes that a device may hold at once."""

    def __post_init__(self) -> None:
        if self.network is not None:
            expect(self.network, Network, "the network of a plan")
        if expect(self.basis, str, "the basis of a plan") not in BASES:
            raise ReshardError("bad-argument", f"basis {shown(self.basis)} must be one of {', '.join(BASES)}")
        if self.memory_limit is not None:
            object.__setattr__(self, "memory_limit", integer(self.memory_limit, "memory_limit"))
            if self.memory_limit < 0:
                raise ReshardError("bad-argument", f"memory_limit must be at least 0 bytes, got: {self.memory_limit}")
