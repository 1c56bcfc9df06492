"""The space in which a program is placed: how every value may be kept, and how every operation may be computed.

The axes of the mesh are cut into *pieces*: where an annotation or a flow cuts one, and in small programs where a label
is shorter than an axis, or at small divisors (`known_options.py`).
An *option* of a value gives each piece to a dim, to none, or leaves the value unreduced along it; a *layout* of an
operation gives each piece to a label, to none, or to operands that wait.
Both are complete: a piece may go anywhere where it cuts evenly, whether or not an annotation brought it there; where
it does not, only what annotations and flows have, but in small programs on few devices (`domains.py`).
Several pieces cut one dim in the order of the mesh, in one that an annotation has, or with the axes turned round.
Where there are so many pieces that a value would have more than `MOST_ROWS` ways, those that nothing names stay out of
it, the last ones first, and then pieces go where flows have them alone, beside waiting: tables of pairs of options
grow with the square of their number.

Options are numbered, shape by shape, and layouts (`ways.py`) are arrays of these numbers, so that all of them are
looked at together.

By hand, on x = 2, y = 2, for 4 x 1 elements: dim 0 takes x, y, both or none.

>>> pieces = Pieces(Mesh.of(x=2, y=2), [])
>>> [option.dims[0] for option in Options(pieces, (4, 1)).all]
[(), (1,), (0,), (0, 1), (1, 0)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.axis import Axes, Axis, split_points
from reshard.axis import pieces as pieces_of
from reshard.contraction.compute_layout import closed_sharding
from reshard.digits import Digits, nest
from reshard.dim_sharding import DimSharding
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.network.inflow import groups_of
from reshard.sharding import Sharding

Numbers = NDArray[np.int64]
Costs = NDArray[np.float64]
MOST_OPTIONS = 350
"""Up to how many options of a tensor of five dims axes are cut for the sake of labels shorter than they."""
MOST_ROWS = 6**4
"""How many ways there may be to give pieces to the dims of a tensor: as many as four pieces have with four dims."""
MOST_ORDERS = 3
"""How many orders of the pieces are looked at that something has."""


class Option(NamedTuple):
    """How a value may be kept."""

    dims: tuple[tuple[int, ...], ...]
    """Per dim the numbers of the pieces that cut it, major to minor."""
    unreduced: tuple[int, ...] = ()
    """The numbers of the pieces along which it is unreduced."""
    sharding: Sharding | None = None
    """Where it is cut within a piece, and the rest says nothing, or holds windows beside what the rest says."""

    @property
    def has_windows(self) -> bool:
        """Whether an operation wants it so, to be read beyond the edges; no value is kept so."""
        return self.sharding is not None and self.sharding.has_windows


class Pieces:
    """The pieces into which the axes of a mesh are cut.

    Args:
        mesh: whose axes they are.
        lists: axes as dims have them; what they cut apart is apart.
        lengths: at which longer axes are cut, the first ones first.
    """

    def __init__(self, mesh: Mesh, lists: Iterable[Axes], lengths: Iterable[int] = ()) -> None:
        lists = list(lists)
        self.mesh = mesh
        sizes = {} if mesh.is_maximal else mesh.sizes
        points = split_points((axis for axes in lists for axis in axes), sizes)
        cuts = {name: {1, size, *points.get(name, ())} for name, size in sizes.items() if size > 1}
        whole = {name for name, ends in cuts.items() if not nest(sorted(ends))}  # said in parts that are no pieces
        cuts |= {name: {1, sizes[name]} for name in whole}
        for length in lengths:
            for name, size in sizes.items():
                cut = 1 if name in whole else gcd(size, length)
                if 1 < cut < size and cut not in cuts[name] and nest(sorted(cuts[name] | {cut})):
                    if 7 ** (1 + sum(len(ends) - 1 for ends in cuts.values())) > MOST_OPTIONS:
                        break
                    cuts[name].add(cut)
        self.all: tuple[Axis, ...] = tuple(
            piece for name, ends in cuts.items() for piece in pieces_of(Axis(name), ends, sizes)
        )
        self.sizes = np.array([piece.size_in(sizes[piece.name]) for piece in self.all], dtype=np.int64)
        self._listed: list[int] = self.sizes.tolist()
        self._numbers = {piece: number for number, piece in enumerate(self.all)}
        self.cuts = cuts
        self._known: dict[Axes, tuple[int, ...] | None] = {}
        self.runs: dict[tuple[DimSharding, int, str], Costs] = {}
        """Per way to cut a dim, its size and the rule for uneven ones, where the runs of each shard begin and end."""
        self.options: dict[tuple[tuple[int, ...], int], dict[int, Option]] = {}
        """Per order, and number of roles, the options that are known by their codes."""
        self._begin: dict[tuple[tuple[int, ...], ...], NDArray[np.bool_]] = {}
        named = {number for axes in lists for number in self.of(axes) or ()}
        self.rest: list[int] = [number for number in range(len(self.all)) if number not in named]
        """The pieces that nothing names."""
        canonical = tuple(range(len(self.all)))
        orders = {canonical: None}
        for axes in lists:
            said = self.of(axes)
            if said is not None and said != tuple(sorted(said)):
                rest = iter(said)
                orders[tuple(next(rest) if number in said else number for number in canonical)] = None
        axes_turned = [number for name in reversed(cuts) for number in canonical if self.all[number].name == name]
        orders = dict.fromkeys([*list(orders)[:MOST_ORDERS], tuple(axes_turned)])
        self.orders = list(orders)
        """In which the pieces of a dim may stand: as in the mesh, as an annotation has them, the last axis first."""

    def of(self, axes: Axes) -> tuple[int, ...] | None:
        """The numbers of the pieces of axes; None where one is cut within a piece."""
        if axes not in self._known:
            sizes = self.mesh.sizes
            split = [piece for axis in axes for piece in pieces_of(axis, self.cuts.get(axis.name, ()), sizes)]
            split = [piece for piece in split if piece.size_in(sizes[piece.name]) > 1]
            is_whole = all(piece in self._numbers for piece in split)
            self._known[axes] = tuple(self._numbers[piece] for piece in split) if is_whole else None
        return self._known[axes]

    def option(self, sharding: Sharding, ndim: int) -> Option:
        """A sharding of a value of so many dims as an option."""
        if self.mesh.is_maximal:
            return Option(((),) * ndim)
        dims = [self.of(dim.axes) for dim in sharding.dims]
        unreduced = self.of(sharding.unreduced)
        if unreduced is None or any(axes is None for axes in dims):
            return Option(((),) * ndim, (), sharding)
        return Option(tuple(axes for axes in dims if axes is not None), tuple(sorted(unreduced)))

    def sharding(self, option: Option, reduction: str, uneven: str) -> Sharding:
        """An option as a sharding."""
        if option.sharding is not None:
            return option.sharding
        dims = tuple(tuple(self.all[number] for number in axes) for axes in option.dims)
        unreduced = tuple(self.all[number] for number in option.unreduced)
        return closed_sharding(self.mesh, dims, unreduced, reduction if unreduced else "sum", uneven)

    def dividing(self, numbers: tuple[int, ...], size: int) -> tuple[int, ...]:
        """The first of some, as long as they cut a dim of a size evenly."""
        stop = next((n for n in range(len(numbers)) if size % self.count(numbers[: n + 1])), len(numbers))
        return numbers[:stop]

    def count(self, numbers: Iterable[int]) -> int:
        """The product of the sizes of some."""
        return prod(map(self._listed.__getitem__, numbers))

    def begin(self, lists: tuple[tuple[int, ...], ...]) -> NDArray[np.bool_]:
        """Per pair of lists of pieces, whether one begins the other."""
        if lists not in self._begin:
            self._begin[lists] = np.array([[a == b[: len(a)] or b == a[: len(b)] for b in lists] for a in lists])
        return self._begin[lists]


class Options:
    """The options of all values of one shape.

    Args:
        pieces: of the axes of the mesh.
        shape: of the values.
        waiting: the pieces along which such a value may be unreduced.
        besides: options that do not cut evenly, or in another order.
        evenly: whether these are all that do not cut evenly.
    """

    def __init__(
        self,
        pieces: Pieces,
        shape: tuple[int, ...],
        waiting: Iterable[int] = (),
        besides: Iterable[Option] = (),
        *,
        evenly: bool = True,
    ) -> None:
        self.pieces, self.shape, self.evenly = pieces, shape, evenly
        self.roles = len(shape) + 2
        """What a piece may do: nothing, cut a dim, or leave the value unreduced."""
        self.all: list[Option] = []
        self.numbers: dict[Option, int] = {}
        self._givers: dict[frozenset[int], tuple[Numbers, Numbers, Numbers]] = {}
        count = len(pieces.all)
        self._places = self.roles ** np.arange(count, dtype=np.int64)
        besides = list(besides)
        rows = rows_of(self._allowed(frozenset(waiting), besides))
        shards = self._shards(rows)
        sizes = np.array(shape, dtype=np.int64)
        may_cut = (sizes > 0) & (sizes % shards == 0) if evenly else shards <= sizes
        rows = rows[((shards == 1) | may_cut).all(axis=1)]
        known: list[dict[int, int]] = [{} for _ in pieces.orders]
        for order, lookup in zip(pieces.orders, known, strict=True):
            options = pieces.options.setdefault((order, self.roles), {})
            for row, code in zip(rows.tolist(), self.codes(rows).tolist(), strict=True):
                if code not in options:
                    options[code] = self._option(row, order)
                lookup[code] = self.add(options[code])
        for option in besides:
            number = self.add(option)
            if option.sharding is not None:
                continue
            row = np.zeros((1, count), dtype=np.int64)
            for dim, cut_by in enumerate(option.dims):
                row[0, list(cut_by)] = 1 + dim
            row[0, list(option.unreduced)] = self.roles - 1
            for order, lookup in zip(pieces.orders, known, strict=True):
                if self._option(row[0].tolist(), order) == option:
                    lookup[int(self.codes(row)[0])] = number
        self._lookups = [np.array(sorted(lookup.items()), dtype=np.int64).T for lookup in known]
        """Per order the codes that have an option, sorted, and their options' numbers."""

    def _allowed(self, waiting: frozenset[int], flowing: Sequence[Option]) -> list[list[int]]:
        """Per piece what it may do: all it can, or, where that is too much, nothing or what it does in flows."""
        waits = [[self.roles - 1] if number in waiting else [] for number in range(len(self.pieces.all))]
        allowed = [[0, *range(1, self.roles - 1), *wait] for wait in waits]
        for number in reversed(self.pieces.rest):
            if prod(map(len, allowed)) > MOST_ROWS:
                allowed[number] = [0]
        for number in reversed(range(len(allowed))):
            if prod(map(len, allowed)) > MOST_ROWS and len(allowed[number]) > 1:
                dims = {1 + dim for option in flowing for dim, cut_by in enumerate(option.dims) if number in cut_by}
                allowed[number] = [0, *sorted(dims), *waits[number]]
        for number in reversed(range(len(allowed))):
            if prod(map(len, allowed)) > MOST_ROWS:
                allowed[number] = [0]
        return allowed

    def _option(self, row: Sequence[int], order: Sequence[int]) -> Option:
        dims: list[list[int]] = [[] for _ in self.shape]
        for piece in order:
            if 0 < row[piece] < self.roles - 1:
                dims[row[piece] - 1].append(piece)
        return Option(tuple(map(tuple, dims)), tuple(piece for piece, role in enumerate(row) if role == self.roles - 1))

    def _shards(self, rows: Numbers) -> Numbers:
        shards = np.ones((len(rows), len(self.shape)), dtype=np.int64)
        for piece, size in enumerate(self.pieces.sizes.tolist()):
            for dim in range(len(self.shape)):
                shards[rows[:, piece] == 1 + dim, dim] *= size
        return shards

    def add(self, option: Option) -> int:
        """The number of an option."""
        number = self.numbers.get(option)
        if number is None:
            number = self.numbers[option] = len(self.all)
            self.all.append(option)
        return number

    def codes(self, rows: Numbers) -> Numbers:
        """Per row of what each piece does, one number for all of it."""
        return rows @ self._places if len(self._places) else np.zeros(len(rows), dtype=np.int64)

    def find(self, rows: Numbers, order: int) -> Numbers:
        """Per row of what each piece does, the number of the option in which they stand in an order, or -1."""
        codes, numbers = self._lookups[order]
        wanted = self.codes(rows)
        places = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
        return np.where(codes[places] == wanted, numbers[places], -1)

    @cached_property
    def cuts(self) -> list[tuple[tuple[tuple[int, ...], ...], Numbers]]:
        """Per dim each list of pieces that cuts it, once, and which of them each option has."""
        cuts = []
        for dim in range(len(self.shape)):
            lists: dict[tuple[int, ...], int] = {}
            which = [lists.setdefault(option.dims[dim], len(lists)) for option in self.all]
            cuts.append((tuple(lists), np.array(which, dtype=np.int64)))
        return cuts

    @cached_property
    def parts(self) -> Numbers:
        """Per option and dim into how many parts it cuts that."""
        parts = np.ones((len(self.all), len(self.shape)), dtype=np.int64)
        for dim, (lists, which) in enumerate(self.cuts):
            parts[:, dim] = np.array([self.pieces.count(cut_by) for cut_by in lists], dtype=np.int64)[which]
        return parts

    @cached_property
    def sides(self) -> Numbers:
        """Per option and dim the side of a tile, at most."""
        return np.asarray(-(-np.array(self.shape, dtype=np.int64) // self.parts))

    @cached_property
    def tiles(self) -> Costs:
        """Per option the elements of a tile, at most."""
        return np.asarray(self.sides.prod(axis=1, dtype=np.float64))

    @cached_property
    def doing(self) -> Numbers:
        """Per option and piece what it does: 0 nothing, 1 + dim, and `roles` - 1 where the value is unreduced."""
        rows = [[0] * len(self.pieces.all) for _ in self.all]
        for row, option in zip(rows, self.all, strict=True):
            for dim, cut_by in enumerate(option.dims):
                for piece in cut_by:
                    row[piece] = 1 + dim
            for piece in option.unreduced:
                row[piece] = self.roles - 1
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.pieces.all))

    @cached_property
    def is_of_pieces(self) -> NDArray[np.bool_]:
        """The options that pieces say."""
        return np.array([option.sharding is None for option in self.all], dtype=np.bool_)

    @cached_property
    def is_even(self) -> NDArray[np.bool_]:
        """The options that cut every dim evenly."""
        return np.asarray(self.is_of_pieces & (np.array(self.shape, dtype=np.int64) % self.parts == 0).all(axis=1))

    @cached_property
    def nested(self) -> NDArray[np.bool_]:
        """Per pair of options, whether in every dim the pieces of one begin those of the other."""
        nested = np.ones((len(self.all), len(self.all)), dtype=np.bool_)
        for lists, which in self.cuts:
            nested &= self.pieces.begin(lists)[which[:, None], which]
        return nested

    def received(self, inside: Iterable[int] | None = None) -> Costs:
        """Per pair of options, elements that the busiest device receives at the least when one becomes the other.

        What a device lacks is its tile less what it has of it: in each dim the shorter side where one list of pieces
        begins the other, else nothing on some device; that of the first device where a dim is cut unevenly.
        Values of p classes that are combined take R + p - 2 transfers, where R devices want each, and one more where
        none of these has any of them: all but one part in n are such where a piece of n goes from one dim to another.
        Where a value becomes unreduced along a piece that cuts it, each device gives its own part, and zeros elsewhere.
        Infinite where it does while it is combined along another piece, which is not of the space.

        Args:
            inside: the pieces that count, where devices are looked at in groups; all unless given.
        """
        counted = frozenset(range(len(self.pieces.all)) if inside is None else inside)
        count = len(self.all)
        overlap, tile = np.ones((count, count)), np.ones(count)
        nested = np.ones((count, count), dtype=np.bool_)
        for size, (cut_by, which) in zip(self.shape, self.cuts, strict=True):
            lists = tuple(tuple(n for n in axes if n in counted) for axes in cut_by)
            side = np.array([-(-size // self.pieces.count(axes)) for axes in lists], dtype=np.float64)
            pairs = which[:, None], which
            nested &= self.pieces.begin(lists)[pairs]
            overlap *= np.minimum(side[:, None], side)[pairs]
            tile *= side[which]
        nested |= ~(self.is_even[:, None] & self.is_even[None, :])
        received = tile[None, :] - np.where(nested, overlap, 0.0)
        kinds, which = self._kinds(counted)
        if len(kinds) > 1:
            lost, kept, gained = self._waits_of(list(kinds), which)
            size = self.pieces.count(counted)
            apart = np.where(self.is_even[:, None] & self.is_even, 1 - 1 / self._sizes_carried(counted)[0], 0.0)
            share = np.where(self.is_even[None, :], (lost - 2 + apart) * prod(self.shape) * kept / size, 0.0)
            combined = tile[None, :] + np.maximum(share, 0.0)
            received = np.where(lost > 1, np.where(gained > 1, np.inf, combined), received)
            for wait, column in kinds.items():
                rows, uncut, parts = self._giving(wait)
                if len(rows):  # each device its own part, and zeros elsewhere
                    columns = (which == column).nonzero()[0]
                    whole = np.where(uncut[:, None] < 0, np.inf, received[uncut[:, None], columns])
                    is_same = self.is_even[rows][:, None] & self.is_even[columns] | (whole == np.inf)
                    received[rows[:, None], columns] = np.where(is_same, whole / parts[:, None], 0.0)
        received[~self.is_of_pieces], received[:, ~self.is_of_pieces] = 0.0, 0.0
        return np.asarray(received)

    def carried_besides(self) -> Costs:
        """Per pair of options, elements that a device receives besides, as far as is known before any is planned.

        Of values that are combined, where several pieces go from dim to dim: each of them leaves one part in n to
        devices that have some, and they do so one by one unless they change places.
        And where tiles come out uneven, whatever the mean of all devices is above the largest tile.
        """
        everything = range(len(self.pieces.all))
        kinds, which = self._kinds(frozenset(everything))
        if len(kinds) < 2:
            return np.zeros((len(self.all), len(self.all)))
        lost, kept, gained = self._waits_of(list(kinds), which)
        is_combined = (lost > 1) & (gained == 1) & self.is_even[:, None] & self.is_even
        largest, product = self._sizes_carried(everything)
        each = prod(self.shape) * kept / self.pieces.count(everything)
        mean = prod(self.shape) / self.parts.prod(axis=1, dtype=np.float64) + (lost - 2) * each
        is_uneven = (lost > 1) & (gained == 1) & ~self.is_even & self.is_of_pieces
        share = np.where(is_combined, (1 / largest - 1 / product) * each, 0.0)
        return np.where(is_uneven, np.maximum(mean - self.tiles, 0.0), share)

    def _kinds(self, counted: frozenset[int]) -> tuple[dict[frozenset[int], int], Numbers]:
        """The sets of pieces along which values wait, numbered, and which of them each option has."""
        kinds: dict[frozenset[int], int] = {}
        which = [kinds.setdefault(counted.intersection(each.unreduced), len(kinds)) for each in self.all]
        return kinds, np.array(which)

    def _sizes_carried(self, counted: Iterable[int]) -> tuple[Costs, Costs]:
        """Per pair of options the size of the largest piece that goes from one dim to another, and of all of them."""
        largest, product = np.ones((2, len(self.all), len(self.all)))
        for piece in counted:
            doing, size = self.doing[:, piece], float(self.pieces.sizes[piece])
            cuts = (doing > 0) & (doing < self.roles - 1)
            carried = np.where(cuts[:, None] & cuts & (doing[:, None] != doing), size, 1.0)
            np.maximum(largest, carried, out=largest)
            product *= carried
        return largest, product

    def _waits_of(self, kinds: Sequence[frozenset[int]], which: Numbers) -> tuple[Costs, Costs, Costs]:
        """Per pair of options the sizes of the pieces along which both values wait, only the first, only the second.

        Args:
            kinds: the sets of pieces along which values wait.
            which: of them each option has.
        """
        has = np.array([[number in kind for number in range(len(self.pieces.all))] for kind in kinds])
        before, after, pairs = has[:, None], has[None, :], (which[:, None], which)
        both = (before & ~after, before & after, after & ~before)
        first, shared, second = (np.where(each, self.pieces.sizes, 1).prod(axis=2)[pairs] * 1.0 for each in both)
        return first, shared, second

    def _giving(self, wait: frozenset[int]) -> tuple[Numbers, Numbers, Numbers]:
        """The options that some pieces cut, each without these, -1 where that is none, and in how many parts they cut.

        Args:
            wait: the pieces.
        """
        if wait not in self._givers:
            gained = sorted(wait)
            doing = self.doing[:, gained]
            is_cut = (doing > 0) & (doing < self.roles - 1)
            rows = np.flatnonzero(is_cut.any(axis=1))
            without = {axes: tuple(n for n in axes if n not in wait) for lists, _ in self.cuts for axes in lists}
            uncut = []
            for option in map(self.all.__getitem__, rows.tolist()):
                dims = tuple([without[axes] for axes in option.dims])
                uncut.append(self.numbers.get(Option(dims, *option[1:]), -1))
            parts = np.where(is_cut[rows], self.pieces.sizes[gained], 1).prod(axis=1)
            self._givers[wait] = rows, np.array(uncut, dtype=np.int64), parts
        return self._givers[wait]

    def seconds(self, network: Network, itemsize: int) -> Costs:
        """Per pair what a reshard takes on a network at the least: what comes into the slowest group of devices."""
        mesh = self.pieces.mesh
        bound = np.zeros((len(self.all), len(self.all)))
        own = [mesh.digit_of(piece) for piece in self.pieces.all]
        for group in groups_of(network, mesh):
            joined = Digits(sorted(group.digits, reverse=True)).joined()
            within = [any(Digits((digit,)).within(other) == (digit,) for other in joined) for digit in own]
            inside = [number for number, is_within in enumerate(within) if is_within]
            if prod(self.pieces.sizes[inside].tolist()) != group.digits.size and len(inside) < len(own):
                continue
            received = self.received(inside) * itemsize
            if len(inside) < len(own):
                received = np.where(self.is_even[:, None] & self.is_even[None, :], received, 0.0)
            devices = mesh.size // self.pieces.count(inside)
            bound = np.maximum(bound, group.seconds(received / devices, network.launch_s))
        return bound


def rows_of(choices: Sequence[Sequence[int]]) -> Numbers:
    """Every way to take one of each list, as rows."""
    rows = np.zeros((prod(map(len, choices)), len(choices)), dtype=np.int64)
    within = len(rows)
    for column, each in enumerate(choices):
        within //= len(each)
        rows[:, column] = np.tile(np.repeat(np.array(each, dtype=np.int64), within), len(rows) // (within * len(each)))
    return rows
