"""One rank's part of the plan of an einsum: its tiles brought to the compute layout, contracted, and brought on.

The exchanges of all operands travel at once.
A rank contracts its tiles with `torch.einsum`, two at a time.

Overlap cuts the exchange of one tensor into its messages, each beside its part of the product:

    of an operand      a piece is multiplied while those after it are on their way, and its product added
    of the result      what goes to a peer is computed while what goes to those before it is on its way

By hand, `ij,jk->ik` with j gathered over 4 ranks: of four pieces of 2 columns of the first operand each is multiplied
by its 2 rows of the second, its own first, then those of the peers as they come, and the four products are added.

The messages are the same with and without overlap, and so are the bytes.
A backend that takes all messages of an exchange as one batch, as NCCL's, hides it behind the rank's own piece alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh

from reshard.contraction import EinsumPlan
from reshard.contraction.paths import Path, steps_along
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.operations.pattern import Pattern, Term
from reshard.torch.exchange import Finish
from reshard.torch.local_plan import LocalPlan, device_type_of, local_plan
from reshard.torch.rank_messages import UNWATCHED, Watch
from reshard.torch.verbs import VERBS

PART_S = 2e-5
"""What a further part of a product costs, in seconds: calls, and a result that is written once more."""

LabelSlices = Mapping[str, slice]
"""Of some labels, which of a rank's indices are meant; of the others all are."""


@dataclass(frozen=True)
class Product:
    """What a rank makes of its tiles."""

    pattern: Pattern
    sizes: Mapping[str, int]
    """Per label, how many of its indices the rank has."""
    path: Path
    """In which order tiles are contracted, as pairs of places."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the result that an operand has; along the others it repeats itself."""
        return self.pattern.ungrouped.term_labels[-1]

    @cached_property
    def steps(self) -> Sequence[tuple[tuple[int, ...], list[list[int]]]]:
        """Which tiles are contracted, by their places, and their labels, last those of the product, as numbers.

        The product goes to the end of the list.
        """
        whole = self.pattern.ungrouped
        steps = steps_along(whole, self.path) if len(whole.operands) > 1 else [((0,), whole)]
        return [(places, [[*map(step.labels.index, term)] for term in step.term_labels]) for places, step in steps]

    @cached_property
    def is_plain(self) -> bool:
        """Whether every dim is one label or none, and no label stands twice, so that boxes of tiles cut labels."""
        is_grouped = any(len(group) > 1 for term in self.pattern.terms for group in term)
        return not self.pattern.repeated and not is_grouped and self.labels == self.pattern.term_labels[-1]

    def by_label(self, tiles: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tiles with a dim per label."""
        pairs = zip(tiles, self.pattern.term_labels, strict=False)
        return [tile.reshape([self.sizes[label] for label in labels]) for tile, labels in pairs]

    def of(self, factors: Sequence[torch.Tensor], slices: LabelSlices | None = None) -> torch.Tensor:
        """The product of tiles, with a dim per label that it has.

        Args:
            factors: as `by_label` gives them.
            slices: which part of the product is wanted, or, of summed labels, taken.
        """
        if slices:
            pairs = zip(factors, self.pattern.term_labels, strict=False)
            factors = [factor[index_of(labels, slices)] for factor, labels in pairs]
        for places, (*terms, output) in self.steps:
            result = VERBS.einsum([factors[place] for place in places], terms, output, "")
            factors = [*(factor for place, factor in enumerate(factors) if place not in places), result]
        return factors[0]

    def tile(self, product: torch.Tensor) -> torch.Tensor:
        """The tile of the result, contiguous, of the product."""
        labels = self.pattern.term_labels[-1]
        spread = product[tuple(slice(None) if label in self.labels else None for label in labels)]
        whole = spread.expand([self.sizes[label] for label in labels])  # a view, as is what a transpose gives
        return whole.contiguous().view([prod(self.sizes[label] for label in group) for group in self.pattern.output])


def index_of(labels: Sequence[str], slices: LabelSlices) -> tuple[slice, ...]:
    """The index of a part into a tensor of these labels."""
    return tuple(slices.get(label, slice(None)) for label in labels)


def slices_of(term: Term, index: tuple[slice, ...]) -> LabelSlices:
    """What of the labels an index of a plain tensor takes."""
    return {group[0]: interval for group, interval in zip(term, index, strict=False) if group}


@dataclass(frozen=True)
class LocalContraction:
    """What one rank does in one contraction of a plan."""

    inputs: tuple[int | LocalContraction, ...]
    """Per operand, the number of the tensor that is handed in, or the contraction whose result it is."""
    operands: tuple[LocalPlan, ...]
    output: LocalPlan
    product: Product | None
    """None where the rank takes no part in the product."""
    overlapped: int | None
    """Which operand is multiplied while it arrives; the number of operands for the result; None for no overlap."""

    def check_tiles(self, tiles: Sequence[torch.Tensor]) -> None:
        """Refuse tiles that are not the rank's.

        Raises:
            ReshardError: `bad-tiles`.
        """
        for source, operand in zip(self.inputs, self.operands, strict=True):
            if isinstance(source, int):
                operand.check_tile(tiles[source])
            else:
                source.check_tiles(tiles)

    def run(self, tiles: Sequence[torch.Tensor]) -> torch.Tensor:
        """The rank's tile of the result from its tiles of the operands; empty where it has none.

        Raises:
            ReshardError: `exchange-failed`.
        """
        sources = [tiles[source] if isinstance(source, int) else source.run(tiles) for source in self.inputs]
        product = self.product
        if product is None:
            return self.output.run(self._brought(sources)[0].new_empty(0))
        if self.overlapped == len(sources):
            return self._scattered(product, self._brought(sources))
        if self.overlapped is None:
            result = product.of(product.by_label(self._brought(sources)))
        else:
            result = self._gathered(product, self.overlapped, sources)
        return self.output.run(product.tile(result))

    def _gathered(self, product: Product, operand: int, sources: Sequence[torch.Tensor]) -> torch.Tensor:
        """The product of tiles of which one arrives piece by piece, each multiplied as it comes."""
        tiles = list(sources)
        total = sources[0].new_zeros([product.sizes[label] for label in product.labels])

        def add(tile: torch.Tensor, index: tuple[slice, ...]) -> None:
            tiles[operand] = tile
            slices = slices_of(product.pattern.operands[operand], index)
            piece = product.of(product.by_label(tiles), slices)
            room = total[index_of(product.labels, slices)]
            if all(label in product.labels for label in slices):  # pieces do not overlap: nothing else comes here
                room.copy_(piece)
            else:
                room += piece

        finishes = self._started(sources, Watch(after_write=add))
        for number, finish in enumerate(finishes):
            tiles[number] = tiles[number] if number == operand else finish()
        finishes[operand]()
        return total

    def _scattered(self, product: Product, tiles: Sequence[torch.Tensor]) -> torch.Tensor:
        """The rank's tile of a result whose pieces are computed as they are sent."""
        factors = product.by_label(tiles)
        total = tiles[0].new_empty([product.sizes[label] for label in product.labels])
        computed: list[LabelSlices] = []

        def compute(index: tuple[slice, ...]) -> None:
            slices = slices_of(product.pattern.output, index)
            if slices not in computed:
                computed.append(slices)
                total[index_of(product.labels, slices)] = product.of(factors, slices)

        return self.output.run(product.tile(total), Watch(before_read=compute))

    def _brought(self, sources: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The operands where they are used; they travel together."""
        return [finish() for finish in self._started(sources)]

    def _started(self, sources: Sequence[torch.Tensor], watch: Watch = UNWATCHED) -> list[Finish]:
        """The exchanges of all operands, that which overlaps watched; each is packed before the first begins."""
        posts = [
            operand.pack(tile, watch=watch if number == self.overlapped else UNWATCHED)
            for number, (operand, tile) in enumerate(zip(self.operands, sources, strict=True))
        ]
        return [post() for post in posts]


def local_contraction(
    plan: EinsumPlan, rank: int, meshes: Mapping[Mesh, DeviceMesh], dtype: torch.dtype, overlap: bool | None, words: str
) -> LocalContraction:
    """The part of a rank in a plan.

    Args:
        plan: what all ranks do.
        rank: a global rank.
        meshes: those of torch, by what they are here.
        dtype: of the tiles.
        overlap: whether exchange and product overlap, wherever they can or never; None for where it pays.
        words: what is done, for a sentence.

    Raises:
        ReshardError: `reduction-dtype` where torch cannot multiply or combine values of the dtype, `too-large`.
    """
    inputs = tuple(
        source if isinstance(source, int) else local_contraction(source, rank, meshes, dtype, overlap, words)
        for source in plan.inputs
    )
    *operands, output = (local_plan(reshard, rank, meshes, dtype, words) for reshard in plan.plans)
    _check_multiplies(plan.pattern, dtype, device_type_of(meshes))
    product = overlapped = None
    if rank in plan.layout.mesh:
        product = Product(plan.pattern, plan.local_sizes(rank), plan.local_path)
        if product.is_plain and overlap is not False:
            pieces = [*(_pieces(operand, is_result=False) for operand in operands), _pieces(output, is_result=True)]
            overlapped = _overlapped(plan, pieces, overlap)
    return LocalContraction(inputs, tuple(operands), output, product, overlapped)


def _pieces(plan: LocalPlan, *, is_result: bool) -> int:
    """In how many pieces an operand arrives, or the result is sent; 0 where nothing travels.

    Nor is an operand multiplied piece by piece while what arrives is combined.
    """
    if not plan.exchanges:
        return 0
    exchange = plan.exchanges[0 if is_result else -1]
    messages = exchange.sends if is_result else () if exchange.reduction else exchange.receives
    parts = [part for message in messages for part in message.parts]
    copied = [source if is_result else target for target, source in exchange.copies]
    return len({part.box for part in (*parts, *copied)}) if parts else 0


def _overlapped(plan: EinsumPlan, pieces: Sequence[int], overlap: bool | None) -> int | None:
    """Of the tensors whose exchange can be cut, that which moves the most; None for no overlap.

    It pays where more is hidden than the pieces cost; without a network, or one that does not say flop/s, never.
    """
    terms = [number for number, count in enumerate(pieces) if count > 1]
    term = max(terms, key=lambda number: plan.plans[number].received_bytes, default=None)
    if term is None or overlap:
        return term
    speed = None if plan.network is None else plan.network.flops_of(plan.dtype)
    if not speed:
        return None
    arithmetic = plan.local_flops / speed
    hidden = min(plan.plans[term].seconds or 0.0, arithmetic) * (pieces[term] - 1) / pieces[term]
    return term if hidden > pieces[term] * PART_S else None


def _check_multiplies(pattern: Pattern, dtype: torch.dtype, device: str) -> None:
    """Refuse a dtype whose values torch cannot multiply so on a device of that type.

    Raises:
        ReshardError: `reduction-dtype`.
    """
    product = Product(pattern, dict.fromkeys(pattern.labels, 1), ((0, 1),) * (len(pattern.operands) - 1))
    ones = [torch.ones([1] * len(term), dtype=dtype, device=device) for term in pattern.operands]
    try:
        product.tile(product.of(product.by_label(ones)))
    except RuntimeError:
        raise ReshardError("reduction-dtype", f"torch has no einsum {pattern} of values of dtype {dtype}") from None
