"""What is made least: bytes, bytes and work weighed, or seconds.

    bytes      bytes that the busiest device receives; of as many the least work
    balanced   these bytes and the work of a device, `BALANCE` operations counting as a byte; of devices that a network
               describes as many as one computes while a byte comes in
    seconds    on a network, reshards and operations one after the other; an operation takes its arithmetic, or what it
               reads from memory and writes there, whichever takes longer

Bytes alone would have every device compute everything, since that moves nothing; any balance from 500 to 20,000
operations a byte gives a train step the same layout, as what an accelerator computes in the time of a byte lies
between. A processor computes far less: its network says so.

>>> from reshard.dtypes import dtype_named
>>> Goal.of("balanced").name, Goal.of("bytes").per_flop(dtype_named("f32")), Goal.of(None, "h100-8").name
('balanced', 0.0, 'seconds')

An H100 computes 67e12 operations a second on float32, and 450e9 bytes come in meanwhile:

>>> round(1 / Goal.of("balanced", "h100-8").per_flop(dtype_named("f32")))
149
"""

from __future__ import annotations

from dataclasses import dataclass

from reshard.checks import shown
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.network.inflow import fastest_into

BALANCE = 2000
"""How many operations count as a byte; a multiplication with its addition is two."""


@dataclass(frozen=True)
class Goal:
    """What is made least."""

    network: Network | None = None
    """On which seconds count."""
    balance: int | None = None
    """How many operations count as a byte; None where seconds count, or work only decides between equals."""
    devices: Network | None = None
    """Whose speeds say it instead, where they are known."""

    @classmethod
    def of(cls, name: str | None, network: Network | str | None = None, default: str = "bytes") -> Goal:
        """The goal of a name, or of a network.

        Raises:
            ReshardError: `bad-argument` for a name that there is not, or bytes wanted on a network; `bad-network`.
        """
        described = Network.named(network, "the network")
        if name is None:
            name = default if described is None else "seconds"
        if name == "balanced":
            return cls(balance=BALANCE, devices=described)
        if name != ("bytes" if described is None else "seconds"):
            asked = "bytes or balanced; seconds need a network" if described is None else "seconds or balanced"
            raise ReshardError("bad-argument", f"the goal must be {asked}, got: {shown(name)}")
        return cls(described)

    @property
    def name(self) -> str:
        """As it is asked for."""
        return "seconds" if self.network is not None else "bytes" if self.balance is None else "balanced"

    @property
    def title(self) -> str:
        """The name, and by whose speeds work is weighed."""
        return f"{self.name} on {self.devices.name}" if self.devices is not None and self.devices.name else self.name

    @property
    def is_sum(self) -> bool:
        """Whether reshards and work add up to one cost; else bytes are compared, and of equal ones the rest."""
        return self.network is not None or self.balance is not None

    def per_flop(self, dtype: DType) -> float:
        """What an operation of a device on values of a dtype costs."""
        if self.network is not None:
            speed = self.network.flops_of(dtype)
            return 1.0 / speed if speed else 0.0
        return 0.0 if self.balance is None else 1.0 / self.flops_per_byte(dtype)

    def flops_per_byte(self, dtype: DType) -> float:
        """How many operations on values of a dtype count as a byte, under `balanced`."""
        if self.devices is not None and self.devices.levels and (speed := self.devices.flops_of(dtype)):
            return speed / fastest_into(self.devices)
        return float(self.balance or 0)

    @property
    def per_touched_byte(self) -> float:
        """What a byte costs that a device reads from its memory or writes there."""
        bandwidth = None if self.network is None else self.network.memory_bandwidth
        return 1.0 / bandwidth if bandwidth else 0.0

    def of_work(self, flops: float, touched_bytes: float, dtype: DType) -> float:
        """What the work of a device costs: its arithmetic, or what it reads and writes where that takes longer."""
        return max(flops * self.per_flop(dtype), touched_bytes * self.per_touched_byte)

    @property
    def per_byte(self) -> float:
        """What a received byte costs at the least; nothing on a network of one device, where none comes in."""
        if self.network is None:
            return 1.0
        return 1.0 / fastest_into(self.network) if self.network.levels else 0.0

    def cost(self, seconds: float | None, received_bytes: int) -> float:
        """What a reshard adds to the sum, where there is one."""
        return (seconds or 0.0) if self.balance is None else float(received_bytes)
