"""Collective matmul: a gather or a reduce-scatter in rounds, each beside a part of the product.

The devices of a group stand in a ring, in the order of the blocks that they have.

    gather           every device multiplies the shard that it has while the next ones arrive, from both neighbours
    reduce-scatter   a sum for one block goes round, and every device adds its own part of the product on the way

k devices take k // 2 rounds with messages both ways round, and a device receives k - 1 blocks: as many bytes as
the collective in one go brings.
Products and messages of one round do not depend on each other, so that a compiler which sends in the background
hides the shorter of the two.

By hand, 4 devices: device 0 has shard 0; in round 1 shards 1 and 3 arrive, while shard 0 is multiplied; in round 2
shard 2 arrives, by way of device 1, while 1 and 3 are.

>>> ring = Ring(0, "j", ((0, 1, 2, 3),))
>>> [ring.ways_at(number) for number in (1, 2)]
[(1, -1), (1,)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import lax

from reshard.contraction import EinsumPlan
from reshard.digits import Digits, Positions
from reshard.exchange import DigitExchange
from reshard.jax.exchange.device import Device
from reshard.jax.exchange.rounds import bits_of
from reshard.network import Network
from reshard.network.traffic import loads
from reshard.plans import Plan
from reshard.refinement import Cuts
from reshard.steps import Step


class Ring(NamedTuple):
    """A step of a contraction that can be cut into rounds."""

    term: int
    """The operand that is gathered last, or, under the number of operands, the result that is scattered first."""
    label: str
    """What is gathered or scattered; a block of it is a device's part."""
    groups: tuple[tuple[int, ...], ...]
    """Positions of the devices that have the blocks of one whole, in the order of the blocks."""

    @property
    def size(self) -> int:
        """The number of devices in a group, and of blocks."""
        return len(self.groups[0])

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.size // 2

    def ways_at(self, number: int) -> tuple[int, ...]:
        """In which directions blocks go in a round; the first is 1."""
        return (1, -1) if 2 * number < self.size else (1,)

    def pairs(self, places: int) -> list[tuple[int, int]]:
        """(sender, receiver), where every device sends to the one so many places on."""
        return [
            (group[number], group[(number + places) % self.size])
            for group in self.groups
            for number in range(self.size)
        ]

    def block_of(self, device: Device) -> jax.Array:
        """Which block a device has."""
        numbers = np.argsort(np.concatenate(self.groups)) % self.size
        return device.row_of(numbers.astype(np.int32))


def ring_of(plan: EinsumPlan, plans: Sequence[Plan], overlap: bool | None) -> Ring | None:
    """The ring that takes the place of a collective of a contraction; None where none does.

    Args:
        plan: of a contraction.
        plans: its reshards, as they are run; the result's last.
        overlap: whether to do so wherever it can be done; None where the price says so: there is a network, and
            the rounds on it take less time than the collective and the product after one another.
    """
    if overlap is False or len(plan.operands) != 2 or (overlap is None and plan.network is None):
        return None
    rings = []
    for term, reshard in enumerate(plans):
        step = reshard.steps and reshard.steps[-1 if term < len(plan.operands) else 0]
        ring = _as_ring(plan, term, step) if step else None
        if ring and step and (overlap or _pays(ring, plan, reshard, step)):
            rings.append((step.received_bytes, ring))
    return max(rings, default=(0, None), key=lambda pair: pair[0])[1]


def _as_ring(plan: EinsumPlan, term: int, step: Step) -> Ring | None:
    is_operand = term < len(plan.operands)
    exchange = step.moves[0].exchange if step.moves else None
    if step.kind != ("AllGather" if is_operand else "ReduceScatter") or not isinstance(exchange, DigitExchange):
        return None
    if exchange.spread or not exchange.is_even:
        return None
    common, pattern = exchange.common, plan.pattern
    cut = common.source_roles if is_operand else common.target_roles
    roles = {i: role for i, role in enumerate(cut) if i in exchange.gathered and isinstance(role, Cuts)}
    dims = {role.dim for role in roles.values()}
    if len(dims) > 1 or len(roles) < len(exchange.gathered):
        return None
    labels = [label for label in pattern.terms[term][dims.pop()] if plan.sizes[label] > 1]
    if len(labels) != 1 or labels[0] in pattern.repeated or pattern.role(labels[0]) == "broadcast":
        return None
    digits = Digits(common.digits[i] for i in sorted(roles, key=lambda i: -roles[i].stride))
    mesh = exchange.source.mesh
    return Ring(term, labels[0], tuple(map(tuple, digits.groups(mesh.size).tolist())))


def _pays(ring: Ring, plan: EinsumPlan, whole: Plan, step: Step) -> bool:
    """Whether the rounds take less time than the collective and the product after one another."""
    network = plan.network
    if network is None or (speed := network.flops_of(plan.dtype)) is None or whole.step_seconds is None:
        return False
    inner = sum(operand.flops for operand in plan.inputs if isinstance(operand, EinsumPlan))
    product_s = (plan.flops - inner) / speed
    block_bytes = step.received_bytes / (ring.size - 1)
    alone = whole.step_seconds[whole.steps.index(step)] + product_s
    return overlapped_seconds(ring, step.before.mesh.device_array, block_bytes, product_s, network) < alone


def overlapped_seconds(ring: Ring, devices: Positions, block_bytes: float, product_s: float, network: Network) -> float:
    """What the rounds and the products beside them take.

    Args:
        ring: who sends to whom.
        devices: per position, its device.
        block_bytes: what a device sends to a neighbour at once.
        product_s: what the products of a device take together.
        network: what the messages take.

    By hand: 4 devices, messages of 1 s, products of 1 s each: 1 s for the first two shards beside one product, 2 s
    for two products beside the last shard, 1 s for its product.

    >>> from reshard.network import Level
    >>> network = Network((Level(1, 4, "ring", 8.0, 0.0),))
    >>> overlapped_seconds(Ring(0, "j", ((0, 1, 2, 3),)), np.arange(4), 8, 4.0, network)
    4.0
    """
    part_s, ready, total = product_s / ring.size, 1, 0.0
    for number in range(1, ring.rounds + 1):
        ways = ring.ways_at(number)
        senders, receivers = devices[np.array([pair for way in ways for pair in ring.pairs(way)])].T
        traffic = loads(network.levels, senders, receivers, np.ones(len(senders)))
        message_s = traffic.seconds(network.levels, block_bytes) + network.launch_s
        total += max(message_s, ready * part_s)
        ready = len(ways)
    return total + ready * part_s


def arriving(ring: Ring, device: Device, shard: jax.Array) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Every shard of a device's group with the number of its block, its own first."""
    block = ring.block_of(device)
    yield block, shard
    passing = {1: shard, -1: shard}
    for number in range(1, ring.rounds + 1):
        for way in ring.ways_at(number):
            passing[way] = _sent(ring, device, passing[way], -way)
            yield _on(ring, block, way * number), passing[way]


def scattered(ring: Ring, device: Device, part_of: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The sum over a group of the parts of the block that is a device's own; `part_of` is what it adds to a block."""
    block = ring.block_of(device)
    under_way: dict[int, jax.Array] = {}
    for number in range(ring.rounds, 0, -1):
        for way in ring.ways_at(number):
            part = part_of(_on(ring, block, way * number))
            under_way[way] = _sent(ring, device, part + under_way[way] if way in under_way else part, way)
    return sum(under_way.values(), start=part_of(block))


def _on(ring: Ring, block: jax.Array, places: int) -> jax.Array:
    """The number of the block so many places on."""
    return lax.rem(block + np.int32(places % ring.size), np.int32(ring.size))


def _sent(ring: Ring, device: Device, x: jax.Array, places: int) -> jax.Array:
    """What arrives where every device sends to the one so many places on."""
    dtype, bits = x.dtype, bits_of(x.dtype)
    x = lax.bitcast_convert_type(x, bits) if bits else x
    x = lax.ppermute(x, device.names, ring.pairs(places))
    return lax.bitcast_convert_type(x, dtype) if bits else x
