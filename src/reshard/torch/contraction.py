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

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh

from reshard.contraction import EinsumPlan
from reshard.contraction.bounds import stages_of
from reshard.contraction.einsum_plan import local_flops
from reshard.contraction.paths import flat, pair_pattern
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.operations.pattern import Pattern, Term
from reshard.torch.exchange import UNWATCHED, Finish, Index, Leg, Watch
from reshard.torch.transfer import Route, device_type_of, route_of

PART_S = 2e-5
"""What a further part of a product costs, in seconds: calls, and a result that is written once more."""

Cut = Mapping[str, slice]
"""Of some labels, which of a rank's indices are meant; of the others all are."""


@dataclass(frozen=True)
class Product:
    """What a rank makes of its tiles."""

    pattern: Pattern
    sizes: Mapping[str, int]
    """Per label, how many of its indices the rank has."""
    path: Sequence[tuple[int, int]]
    """In which order tiles are contracted, as pairs of places."""

    @cached_property
    def held(self) -> tuple[str, ...]:
        """The labels of the result that an operand has; along the others it repeats itself."""
        operands = {label for term in self.pattern.operands for label in flat(term)}
        return tuple(label for label in flat(self.pattern.output) if label in operands)

    @cached_property
    def equations(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Which tiles are contracted, by their places, and how; the product goes to the end of the list."""
        output = tuple((label,) for label in self.held)
        terms: list[Term] = [tuple((label,) for label in flat(term)) for term in self.pattern.operands]
        if len(terms) == 1:
            return (((0,), equation(Pattern((terms[0],), output))),)
        found = []
        for pair in self.path:
            one = pair_pattern(terms, pair, output)
            found.append((pair, equation(one)))
            terms = [*(term for place, term in enumerate(terms) if place not in pair), one.output]
        return tuple(found)

    @cached_property
    def is_plain(self) -> bool:
        """Whether every dim is one label or none, and no label stands twice, so that boxes of tiles cut labels."""
        groups = [group for term in self.pattern.terms for group in term]
        return not self.pattern.repeated and all(len(group) < 2 for group in groups) and not self.repeats

    @property
    def repeats(self) -> bool:
        """Whether the result repeats itself along a label."""
        return len(self.held) < len(flat(self.pattern.output))

    def parts(self, tiles: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tiles with a dim per label."""
        terms = [flat(term) for term in self.pattern.operands]
        return [
            tile.reshape([self.sizes[label] for label in labels]) for tile, labels in zip(tiles, terms, strict=True)
        ]

    def of(self, parts: Sequence[torch.Tensor], cut: Cut | None = None) -> torch.Tensor:
        """The product of parts of the tiles, with a dim per label that is held.

        Args:
            parts: as `parts` gives them.
            cut: which part of the product is wanted, or, of summed labels, taken.
        """
        here = list(parts)
        for number, term in enumerate(self.pattern.operands if cut else ()):
            here[number] = here[number][index_of(flat(term), cut or {})]
        for places, text in self.equations:
            made = torch.einsum(text, *(here[place] for place in places))
            here = [*(part for place, part in enumerate(here) if place not in places), made]
        return here[0]

    def joined(self, made: torch.Tensor) -> torch.Tensor:
        """The tile of the result, contiguous, of the product."""
        labels = flat(self.pattern.output)
        spread = made[tuple(slice(None) if label in self.held else None for label in labels)]
        whole = spread.expand([self.sizes[label] for label in labels])  # a view, as is what a transpose gives
        return whole.contiguous().view([prod(self.sizes[label] for label in group) for group in self.pattern.output])


def index_of(labels: Sequence[str], cut: Cut) -> tuple[slice, ...]:
    """The index of a cut into a tensor of these labels."""
    return tuple(cut.get(label, slice(None)) for label in labels)


def equation(pattern: Pattern) -> str:
    """A pattern of single labels in the letters of `torch.einsum`.

    Raises:
        ReshardError: `too-large` where there are more labels than letters.

    >>> equation(Pattern.of("rows columns, columns n -> rows n"))
    'ab,bc->ac'
    """
    if len(pattern.labels) > len(string.ascii_letters):
        raise ReshardError("too-large", f"torch has no einsum of {len(pattern.labels)} labels, as {pattern} has")
    letters = dict(zip(pattern.labels, string.ascii_letters, strict=False))
    texts = ["".join(letters[label] for label in flat(term)) for term in pattern.terms]
    return f"{','.join(texts[:-1])}->{texts[-1]}"


class Gathered:
    """The product of tiles of which one arrives piece by piece."""

    def __init__(self, product: Product, operand: int) -> None:
        """The tiles are set before the first piece is there."""
        self.product = product
        self.operand = operand
        self.tiles: list[torch.Tensor] = []
        self.made = torch.empty(0)

    def begin(self, tiles: Sequence[torch.Tensor]) -> None:
        """Take the tiles that are there; in the place of the one that arrives may stand any."""
        self.tiles = list(tiles)
        self.made = tiles[0].new_zeros([self.product.sizes[label] for label in self.product.held])

    def add(self, tile: torch.Tensor, index: Index | None) -> None:
        """Multiply a piece that has arrived."""
        self.tiles[self.operand] = tile
        cut = cut_of(self.product.pattern.operands[self.operand], index)
        piece = self.product.of(self.product.parts(self.tiles), cut)
        room = self.made[index_of(self.product.held, cut)]
        if all(label in self.product.held for label in cut):  # pieces do not overlap, so nothing else comes here
            room.copy_(piece)
        else:
            room += piece


class Scattered:
    """A product that is computed piece by piece, as pieces are asked for."""

    def __init__(self, product: Product, tiles: Sequence[torch.Tensor]) -> None:
        """Nothing is computed yet."""
        self.product = product
        self.parts = product.parts(tiles)
        self.made = tiles[0].new_empty([product.sizes[label] for label in product.held])
        self.done: list[Cut] = []

    def compute(self, index: Index | None) -> None:
        """Compute a piece, where it is not there."""
        cut = cut_of(self.product.pattern.output, index)
        if cut not in self.done:
            self.done.append(cut)
            self.made[index_of(self.product.held, cut)] = self.product.of(self.parts, cut)


def cut_of(term: Term, index: Index | None) -> Cut:
    """The cut of the labels that an index of a plain tensor is."""
    pairs = zip(term, index or (), strict=False)
    return {group[0]: part for group, part in pairs if group and part != slice(None)}


@dataclass(frozen=True)
class Contraction:
    """What one rank does in one contraction of a plan."""

    inputs: tuple[int | Contraction, ...]
    """Per operand, the number of the tensor that is handed in, or the contraction whose result it is."""
    routes: tuple[Route, ...]
    """Per operand."""
    output: Route
    product: Product | None
    """None where the rank takes no part in the product."""
    overlapped: int | None
    """Which operand is multiplied while it arrives; the number of operands for the result; None for no overlap."""

    def check_tiles(self, tiles: Sequence[torch.Tensor]) -> None:
        """Refuse tiles that are not the rank's.

        Raises:
            ReshardError: `bad-tiles`.
        """
        for one, route in zip(self.inputs, self.routes, strict=True):
            if isinstance(one, int):
                route.check_tile(tiles[one])
            else:
                one.check_tiles(tiles)

    def run(self, tiles: Sequence[torch.Tensor]) -> torch.Tensor:
        """The rank's tile of the result from its tiles of the operands; empty where it has none.

        Raises:
            ReshardError: `exchange-failed`.
        """
        given = [tiles[one] if isinstance(one, int) else one.run(tiles) for one in self.inputs]
        if self.product is None or self.overlapped is None:
            return self._one_after_the_other(given)
        if self.overlapped == len(given):
            made = Scattered(self.product, self._brought(given))
            return self.output.start(self.product.joined(made.made), watch=Watch(before_read=made.compute))()
        return self._while_arriving(given, self.product, self.overlapped)

    def _one_after_the_other(self, given: Sequence[torch.Tensor]) -> torch.Tensor:
        used = self._brought(given)
        if self.product is None:
            return self.output.start(used[0].new_empty(0))()
        return self.output.start(self.product.joined(self.product.of(self.product.parts(used))))()

    def _brought(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The operands where they are used; they travel together."""
        return [finish() for finish in self._started(given, (UNWATCHED,) * len(given))]

    def _started(self, given: Sequence[torch.Tensor], watches: Sequence[Watch]) -> list[Finish]:
        """The exchanges of all operands, under way; each is packed before the first begins."""
        triples = zip(self.routes, given, watches, strict=True)
        posts = [route.pack(tile, watch=watch) for route, tile, watch in triples]
        return [post() for post in posts]

    def _while_arriving(self, given: Sequence[torch.Tensor], product: Product, operand: int) -> torch.Tensor:
        made = Gathered(product, operand)
        watches = [Watch(after_write=made.add) if number == operand else UNWATCHED for number in range(len(given))]
        finishes = self._started(given, watches)
        made.begin([tile if number == operand else finishes[number]() for number, tile in enumerate(given)])
        finishes[operand]()
        return self.output.start(product.joined(made.made))()


def contraction_of(
    plan: EinsumPlan, rank: int, meshes: Mapping[Mesh, DeviceMesh], dtype: torch.dtype, overlap: bool | None, words: str
) -> Contraction:
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
        one if isinstance(one, int) else contraction_of(one, rank, meshes, dtype, overlap, words) for one in plan.inputs
    )
    routes = [route_of(by, rank, meshes, dtype, words) for by in plan.plans]
    product = None
    _check_multiplies(plan.pattern, dtype, device_type_of(meshes))
    if rank in plan.layout.mesh:
        product = Product(plan.pattern, plan.local_sizes(rank), plan.local_path)
    term = None if product is None or not product.is_plain or overlap is False else _busiest(plan, routes)
    if term is not None and overlap is None and not _pays(plan, term, routes[term]):
        term = None
    return Contraction(inputs, tuple(routes[:-1]), routes[-1], product, term)


def _busiest(plan: EinsumPlan, routes: Sequence[Route]) -> int | None:
    """Of the tensors whose exchange can be cut, that which moves the most."""
    terms = [number for number, route in enumerate(routes) if _pieces(route, is_result=number + 1 == len(routes)) > 1]
    return max(terms, key=lambda number: plan.plans[number].received_bytes, default=None)


def _pieces(route: Route, *, is_result: bool) -> int:
    """In how many pieces an operand arrives, or the result is sent; 0 where nothing travels."""
    if not route.stages:
        return 0
    stage = route.stages[0 if is_result else -1]
    if not isinstance(stage, Leg) or (stage.reduction and not is_result):
        return 0
    messages = stage.sends if is_result else stage.receives
    kept = [held if is_result else place for place, held in stage.kept]
    parts = [part for message in messages for part in message.parts]
    return len({part.box for part in (*kept, *parts)}) if parts else 0


def _pays(plan: EinsumPlan, term: int, route: Route) -> bool:
    """Whether more is hidden than the parts cost; without a network, or one that does not say flop/s, never."""
    if plan.network is None or not plan.network.flops:
        return False
    pieces = _pieces(route, is_result=term == len(plan.operands))
    arithmetic = local_flops(plan.layout, plan.sizes, stages_of(plan.pattern, plan.sizes)) / plan.network.flops
    hidden = min(plan.plans[term].seconds or 0.0, arithmetic) * (pieces - 1) / pieces
    return hidden > pieces * PART_S


def _check_multiplies(pattern: Pattern, dtype: torch.dtype, device: str) -> None:
    """Refuse a dtype whose values torch cannot multiply so on a device of that type.

    Raises:
        ReshardError: `reduction-dtype`.
    """
    product = Product(pattern, dict.fromkeys(pattern.labels, 1), ((0, 1),) * (len(pattern.operands) - 1))
    ones = [torch.ones([1] * len(term), dtype=dtype, device=device) for term in pattern.operands]
    try:
        product.joined(product.of(product.parts(ones)))
    except RuntimeError:
        raise ReshardError("reduction-dtype", f"torch has no einsum {pattern} of values of dtype {dtype}") from None
