"""The plan of an einsum as what one device does, inside a `shard_map` over the whole mesh.

    operands    each by its plan, in its own dtype
    product     JAX's einsum of the tiles
    result      by its plan, in the dtype of the product

Tiles are arrays with one dim per dim of their tensor, and are taken apart by label for the product.
Where the shards of a label do not divide it, a tile is filled up to the size of the largest; what is filled up is set
to zero before it is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from reshard.contraction import EinsumPlan
from reshard.dtypes import dtype_named
from reshard.jax.contraction.overlap import Ring, arriving, ring_of, scattered
from reshard.jax.exchange.device import Device
from reshard.jax.exchange.lowering import run_on_device
from reshard.planner import plan as make_plan
from reshard.plans import Plan


class LocalProduct(NamedTuple):
    """How a device computes its part."""

    precision: Any = None
    """As JAX's einsum takes it."""
    preferred: Any = None
    """The dtype in which products are summed, and which the result has; None for that of the operands."""
    overlap: bool | None = None
    """Whether collectives are cut into rounds beside the product; None where the price says so."""


def contract_on_device(
    plan: EinsumPlan, names: tuple[str, ...], tiles: Sequence[jax.Array], how: LocalProduct
) -> jax.Array:
    """The tile of the result of a device, from its tiles of the operands, where all axes of the mesh are manual."""
    operands = [
        contract_on_device(source, names, tiles, how) if isinstance(source, EinsumPlan) else tiles[source]
        for source in plan.inputs
    ]
    dtype = how.preferred or jnp.result_type(*(tile.dtype for tile in operands))
    plans = [
        _of_dtype(reshard, element, plan)
        for reshard, element in zip(plan.plans, [*(tile.dtype for tile in operands), dtype], strict=True)
    ]
    ring = ring_of(plan, plans, how.overlap)
    if ring is not None:
        plans[ring.term] = _without_ring(plans[ring.term], is_operand=ring.term < len(operands))
    moved = [run_on_device(reshard, names, tile) for reshard, tile in zip(plans, operands, strict=False)]
    product = _Product(plan, how, dtype, Device.here(names))
    if ring is None:
        result = product.joined(product.of(product.parts(moved)))
    elif ring.term < len(operands):
        result = product.joined(product.while_gathered(ring, moved))
    else:
        result = product.joined(product.while_scattered(ring, moved), ring)
    return run_on_device(plans[-1], names, result)


def _of_dtype(reshard: Plan, dtype: Any, plan: EinsumPlan) -> Plan:
    """The reshard of elements of another dtype than that of the whole plan."""
    kind = dtype_named(dtype)
    if reshard.dtype == kind:
        return reshard
    return make_plan(reshard.source, reshard.target, reshard.shape, kind, network=plan.network)


def _without_ring(plan: Plan, *, is_operand: bool) -> Plan:
    """What is left of an operand's plan before its last step, of the result's after its first."""
    if is_operand:
        return Plan(replace(plan.reshard, target=plan.steps[-1].before), plan.steps[:-1])
    return Plan(replace(plan.reshard, source=plan.steps[0].after), plan.steps[1:])


class _Product:
    """The contraction of the tiles of one device."""

    def __init__(self, plan: EinsumPlan, how: LocalProduct, dtype: Any, device: Device) -> None:
        self.plan, self.how, self.dtype, self.device = plan, how, dtype, device
        self.pattern = plan.pattern
        self.sizes = plan.layout.largest_parts(plan.sizes)
        *self.terms, self.output = self.pattern.ungrouped.term_labels

    def parts(self, tiles: Sequence[jax.Array], ring: Ring | None = None) -> list[jax.Array]:
        """The tiles of the operands with one dim per label; that of a ring's operand is one block of its label."""
        return [
            self._zeroed(lax.reshape(tile, self._shape(labels, ring if ring and ring.term == number else None)), labels)
            for number, (tile, labels) in enumerate(zip(tiles, self.terms, strict=True))
        ]

    def _shape(self, labels: Sequence[str], ring: Ring | None = None) -> list[int]:
        return [self.sizes[label] // (ring.size if ring is not None and ring.label == label else 1) for label in labels]

    def _zeroed(self, part: jax.Array, labels: Sequence[str]) -> jax.Array:
        """The part with zeros where it goes beyond the end of a label that is summed."""
        layout = self.plan.layout
        for dim, label in enumerate(labels):
            size = self.plan.sizes[label]
            if label not in self.output and size % layout.shards(label):
                ends = [layout.interval(label, size, device) for device in layout.mesh.device_array.tolist()]
                part = self.device.blanked(part, dim, np.array([stop - start for start, stop in ends]), 0)
        return part

    def of(self, parts: Sequence[jax.Array]) -> jax.Array:
        """The product of parts of the operands, with one dim per label."""
        numbers = [[*map(self.pattern.labels.index, labels)] for labels in (*self.terms, self.output)]
        result = jnp.einsum(
            *chain(*zip(parts, numbers, strict=False)),
            numbers[-1],
            optimize=list(self.plan.local_path) if len(parts) > 2 else "auto",
            precision=self.how.precision,
            preferred_element_type=self.how.preferred,
        )
        return result.astype(self.dtype)

    def while_gathered(self, ring: Ring, tiles: Sequence[jax.Array]) -> jax.Array:
        """The product, where shards of one operand arrive one after another."""
        parts = self.parts(tiles, ring)
        total = lax.full(self._shape(self.output), 0, self.dtype)
        for number, shard in arriving(ring, self.device, parts[ring.term]):
            blocks = [shard if n == ring.term else self._block(part, n, ring, number) for n, part in enumerate(parts)]
            product = self.of(blocks)
            if ring.label in self.output:
                dim = self.output.index(ring.label)
                start = number * np.int32(product.shape[dim])
                total = lax.dynamic_update_slice_in_dim(total, product, start, dim)
            else:
                total = total + product
        return total

    def while_scattered(self, ring: Ring, tiles: Sequence[jax.Array]) -> jax.Array:
        """A block of the product, summed over the devices of a ring on its way to where it stays."""
        parts = self.parts(tiles)

        def part_of(number: jax.Array) -> jax.Array:
            return self.of([self._block(part, n, ring, number) for n, part in enumerate(parts)])

        return scattered(ring, self.device, part_of)

    def _block(self, part: jax.Array, term: int, ring: Ring, number: jax.Array) -> jax.Array:
        """The block of a ring's label; the whole part where it lacks the label."""
        if ring.label not in self.terms[term]:
            return part
        dim = self.terms[term].index(ring.label)
        size = part.shape[dim] // ring.size
        return lax.dynamic_slice_in_dim(part, number * np.int32(size), size, dim)

    def joined(self, result: jax.Array, ring: Ring | None = None) -> jax.Array:
        """The tile of the result, with one dim per dim of it; of a ring's label one block."""
        labels = self.pattern.term_labels[-1]
        dims = [place for place, label in enumerate(labels) if label in self.output]
        result = lax.broadcast_in_dim(result, self._shape(labels, ring), dims)
        return lax.reshape(result, [prod(self._shape(group, ring)) for group in self.pattern.output])
