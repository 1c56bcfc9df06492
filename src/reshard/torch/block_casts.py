"""Casts of whole tiles in blocks that share a scale, by tensors of torch: to the bit as NumPy does them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from reshard.models import ModelPlan
from reshard.models.block_scales import CastTile, ScaledTensor, Slots, blocks_in, cast_buffers, written_buffers
from reshard.models.stores import Buffer

TensorsByName = dict[str, torch.Tensor]


class BlockCasts(NamedTuple):
    """What a rank casts at one end of a plan: from tensors into others, of which it made some for that."""

    tiles: list[CastTile]
    slots: tuple[Slots, Slots]
    before: TensorsByName
    after: TensorsByName

    @classmethod
    def from_handed(cls, plan: ModelPlan, rank: int, handed: TensorsByName, device: torch.device) -> BlockCasts:
        """From what is handed in to what travels."""
        tiles = plan.casts_at(rank, "source")
        slots, buffers = plan.source_slots(rank)
        after = _joined(handed, written_buffers(tiles, slots), buffers, device)
        return cls(tiles, (plan.handed_slots(rank)[0], slots), handed, after)

    @classmethod
    def into_wanted(cls, plan: ModelPlan, rank: int, wanted: TensorsByName, device: torch.device) -> BlockCasts:
        """From what has travelled to what is wanted."""
        tiles = plan.casts_at(rank, "target")
        slots, buffers = plan.target_slots(rank)
        before = _joined(wanted, written_buffers(tiles, slots), buffers, device)
        return cls(tiles, (slots, plan.wanted_slots(rank)[0]), before, wanted)

    def run(self) -> None:
        """Cast them."""
        cast_buffers(
            self.tiles,
            (self.slots[0], self.before),
            (self.slots[1], self.after),
            lambda shape, view: torch.empty(shape, dtype=view.dtype, device=view.device),
            quantised,
        )


def _joined(
    tensors: TensorsByName, made: set[str], buffers: Mapping[str, Buffer], device: torch.device
) -> TensorsByName:
    """The tensors, with some in the place of those that are cast."""
    return {
        name: torch.zeros(buffer.shape, dtype=getattr(torch, buffer.dtype.name), device=device)
        if name in made
        else tensors[name]
        for name, buffer in buffers.items()
    }


def quantised(tile: torch.Tensor, scaled: ScaledTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The elements and the scales of blocks, see `reshard.models.block_scales.quantised`."""
    most, block, values = scaled.cast.most, scaled.cast.block, tile.float()
    counts = blocks_in(values.shape, block)
    padded = values.new_zeros([count * part for count, part in zip(counts, block, strict=True)])
    inside = tuple(slice(0, size) for size in values.shape)
    padded[inside] = values.abs()
    shape = [size for pair in zip(counts, block, strict=True) for size in pair]
    largest = padded.view(shape).amax(dim=tuple(range(1, len(shape), 2)))
    scales = torch.where(largest > 0, largest / values.new_tensor(most), values.new_tensor(1.0))
    spread = scales
    for dim, part in enumerate(block):
        spread = spread.repeat_interleave(part, dim=dim)
    elements = (values / spread[inside]).clamp(-most, most)
    return elements.to(getattr(torch, scaled.cast.dtype.name)), scales
