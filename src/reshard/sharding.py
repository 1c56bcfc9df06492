"""A sharding: which part of a tensor each device of a mesh holds.

Per dim, the axes that cut it, major to minor; further the axes that are explicitly replicated, and those along
which the value is the reduction of what the devices hold.
`str` is Shardy's text with the mesh inlined, and parses back.

By hand, 4 x 8 on x=2, y=4, z=2 with `[{"x"}, {"z", "y"}]`: dim 0 is cut into 2 blocks of 2 rows by x, dim 1 into
8 blocks of 1 column, of which device (x=1, y=2, z=1) holds number 1 * 4 + 2 = 6.

>>> from reshard.mesh import Mesh
>>> sharding = Sharding.of(Mesh.of(x=2, y=4, z=2), "x", ("z", "y"))
>>> sharding.local_shape((4, 8)), sharding.box(13, (4, 8))
((2, 1), Box([(2, 4), (6, 7)]))
>>> print(Sharding.of(Mesh.of(x=2, y=4), ("x", "?"), None, replicated="y:(1)2"))
#sdy.sharding<mesh<["x"=2, "y"=4]>, [{"x", ?}, {}], replicated={"y":(1)2}>
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from reshard.axis import Axis, difference, sorted_and_merged
from reshard.axis_rules import check_lists, check_sub_axes
from reshard.box import Box
from reshard.checks import all_of, checked_shape, expect, integer, listed, shown
from reshard.deal import DealStage, Weave, Window
from reshard.digits import NO_DIGITS
from reshard.dim_sharding import AxesLike, DimSharding, axes_listed, braced
from reshard.drawing.held_tiles import draw_held
from reshard.drawing.notebooks import mimebundle
from reshard.dtypes import REDUCTIONS
from reshard.equivalence import same_by_digits, same_placement
from reshard.errors import ReshardError
from reshard.foreign import SpecRecord, mesh_record, sharding_record
from reshard.layout import Layout
from reshard.mesh import Mesh
from reshard.tile import Tile

UNEVEN = ("ceil", "chunk")
"""How a dim that its shard count does not divide is cut: in blocks of the ceiling over the product of its axes
(Shardy, XLA), or in chunks of chunks, axis by axis (torch)."""

DRAWN_DEVICES = 256
"""Of more devices a notebook shows text alone."""


@dataclass(frozen=True)
class Sharding:
    """What every device of a mesh holds of a tensor.

    Rules, in the order checked; all but the last two are those of Shardy's verifier:
        unknown-reduction, unknown-rule: reduction and rule for uneven dims are in their closed sets
        maximal-sharding: on a maximal mesh there are no dims and no axes
        negative-priority: a priority is at least 0
        needless-priority: an empty closed dim has none
        unknown-axis: every axis is in the mesh
        duplicate-axis-ref: no axis or sub-axis stands twice
        mergeable-sub-axes: no sub-axis continues the one before it in its list
        unsorted-axes: replicated and unreduced axes are in mesh order
        axis-and-sub-axis: no axis is used whole and in part
        sub-axis-pre-size, sub-axis-size: a sub-axis has pre-size at least 1 and size at least 2
        sub-axis-divisor: pre-size times size divides the axis
        sub-axis-is-axis: a sub-axis is smaller than its axis
        overlapping-sub-axes: a sub-axis does not overlap the one before it in mesh order
        sub-axes-cannot-coexist: one split of the axis has them all
        bad-window: all windows are summed, and partial values are too, or none; a dim with deals has no spans
    """

    mesh: Mesh
    """The devices."""
    dims: tuple[DimSharding, ...]
    """One per dim of the tensor; none on a maximal mesh."""
    replicated: tuple[Axis, ...] = ()
    """Axes that propagation must leave replicated, in mesh order; where things lie is not changed by them."""
    unreduced: tuple[Axis, ...] = ()
    """Axes along which the value is the reduction of what the devices hold, in mesh order."""
    reduction: str = "sum"
    """How: sum, avg, product, max, min, band, bor or bxor; sum where nothing is unreduced."""
    uneven: str = "ceil"
    """How a dim is cut that its shard count does not divide: ceil or chunk."""

    def __post_init__(self) -> None:
        expect(self.mesh, Mesh, "the mesh of a sharding")
        all_of(self.dims, DimSharding, "the dims of a sharding")
        all_of(self.replicated, Axis, "the replicated axes of a sharding")
        all_of(self.unreduced, Axis, "the unreduced axes of a sharding")
        if expect(self.reduction, str, "a reduction", "unknown-reduction") not in REDUCTIONS:
            raise ReshardError(
                "unknown-reduction", f"reduction {shown(self.reduction)} must be one of {', '.join(REDUCTIONS)}"
            )
        if expect(self.uneven, str, "the rule for uneven dims", "unknown-rule") not in UNEVEN:
            raise ReshardError(
                "unknown-rule", f"the rule for uneven dims {shown(self.uneven)} must be one of {', '.join(UNEVEN)}"
            )
        if not self.unreduced and self.reduction != "sum":
            object.__setattr__(self, "reduction", "sum")
        if self.mesh.is_maximal:
            if self.dims or self.replicated or self.unreduced:
                raise ReshardError("maximal-sharding", "a sharding on a maximal mesh must have no dims and no axes")
            return
        check_lists(self.mesh, self.dims, {"replicated": self.replicated, "unreduced": self.unreduced})
        check_sub_axes(self.mesh, list(self.axes()))
        if self.has_windows:
            self._check_windows()

    def _check_windows(self) -> None:
        if len({dim.window.summed for dim in self.dims if dim.window is not None}) > 1:
            raise ReshardError("bad-window", f"{self.text()} has windows that are summed and others that are not")
        if self.is_summed and self.reduction != "sum":
            raise ReshardError(
                "bad-window", f"{self.text()} sums windows and has partial values under {self.reduction}"
            )
        for number, dim in enumerate(self.dims):
            if dim.window is not None and dim.window.spans and dim.deals:
                raise ReshardError("bad-window", f"dim {number} is dealt in blocks, so {dim.window} must be a halo")

    @classmethod
    def of(
        cls,
        mesh: Mesh,
        *dims: Any,
        replicated: AxesLike = (),
        unreduced: AxesLike = (),
        reduction: str = "sum",
        uneven: str = "ceil",
    ) -> Sharding:
        """A sharding from loose input, brought to its one spelling.

        Args:
            mesh: the devices; JAX's `Mesh` and torch's `DeviceMesh` are taken too.
            dims: per dim None, an axis, axes major to minor, or a DimSharding; a last `?` opens the dim,
                `y:(2)4` names a sub-axis, and a `Deal` among the axes deals blocks to those behind it. Or one
                `PartitionSpec` of JAX, which says them all.
            replicated: axes that stay replicated, in any order.
            unreduced: axes along which values are partial, in any order.
            reduction: how partial values combine.
            uneven: how dims are cut that do not divide.

        Raises:
            ReshardError: with the code of the first rule that is broken.

        >>> mesh = Mesh.of(x=2, y=8)
        >>> print(Sharding.of(mesh, ("y:(1)2", "y:(2)2", "?"), None, unreduced="x").text())
        [{"y":(1)4, ?}, {}], unreduced={"x"}
        """
        if (on := mesh_record(mesh)) is not None:
            mesh = Mesh.of_record(on)
        expect(mesh, Mesh, "what a sharding is on")
        specs = [spec for spec in map(_spec_record, dims) if spec is not None]
        if specs:
            if len(dims) > 1 or replicated or unreduced:
                raise ReshardError("bad-argument", f"a PartitionSpec says all dims of a sharding, got: {shown(dims)}")
            return replace(cls.of_spec(mesh, specs[0]), reduction=reduction, uneven=uneven)
        sizes = mesh.sizes
        built = []
        for dim in dims:
            dim = dim if isinstance(dim, DimSharding) else DimSharding.of(*axes_listed(dim))
            built.append(dim.merged(sizes))
        sets = []
        for listing in (replicated, unreduced):
            axes = [Axis.of(axis) for axis in axes_listed(listing)]
            known = all(axis.name in sizes for axis in axes)
            sets.append(sorted_and_merged(axes, sizes) if known else tuple(axes))
        return cls(mesh, tuple(built), sets[0], sets[1], reduction, uneven)

    @classmethod
    def of_spec(cls, mesh: Mesh, spec: SpecRecord, ndim: int | None = None) -> Sharding:
        """What a spec of JAX means on a mesh; dims that it does not name are whole.

        Raises:
            ReshardError: `rank-mismatch` where it names more dims than there are, or with the code of the first rule
                that is broken.

        >>> print(Sharding.of_spec(Mesh.of(x=2, y=4), SpecRecord(((), ("x",)), unreduced=("y",)), 3).text())
        [{}, {"x"}, {}], unreduced={"y"}
        """
        rank = len(spec.dims) if ndim is None else ndim
        if len(spec.dims) > rank:
            raise ReshardError("rank-mismatch", f"a PartitionSpec names {len(spec.dims)} dims, the tensor has {rank}")
        if mesh.is_maximal:
            return cls(mesh, ())
        dims = [
            DimSharding(tuple(map(Axis, names)), place in spec.open_dims)
            for place, names in enumerate([*spec.dims, *[()] * (rank - len(spec.dims))])
        ]
        return cls.of(mesh, *dims, replicated=map(Axis, spec.replicated), unreduced=map(Axis, spec.unreduced))

    def __repr__(self) -> str:
        """The call of `Sharding.of` that makes it; all fields where that has no short words for a dim."""
        fields = [f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__]
        is_short = all(dim == DimSharding(dim.axes, dim.is_open) for dim in self.dims)
        if not is_short or any(re.search(r"[:?()]", axis.name) for axis in self.axes()):
            return f"Sharding({', '.join(fields)})"
        dims = [[_word(axis) for axis in dim.axes] + ["?"] * dim.is_open for dim in self.dims]
        words = [repr(names[0] if len(names) == 1 else tuple(names) or None) for names in dims]
        sets = {"replicated": self.replicated, "unreduced": self.unreduced}
        words += [f"{name}={tuple(map(_word, axes))!r}" for name, axes in sets.items() if axes]
        words += [f"reduction={self.reduction!r}"] if self.reduction != "sum" else []
        words += [f"uneven={self.uneven!r}"] if self.uneven != "ceil" else []
        return f"Sharding.of({', '.join([repr(self.mesh), *words])})"

    def __str__(self) -> str:
        return f"#sdy.sharding<mesh{self.mesh}, {self.text()}>"

    def text(self) -> str:
        """What follows the mesh in Shardy's text.

        `uneven=chunk` and the reductions beside sum, max and min are words that Shardy does not know.
        """
        word = "" if self.reduction == "sum" else self.reduction
        return (
            f"[{', '.join(map(str, self.dims))}]"
            + (f", replicated={braced(self.replicated)}" if self.replicated else "")
            + (f", unreduced={word}{braced(self.unreduced)}" if self.unreduced else "")
            + ("" if self.uneven == "ceil" else f", uneven={self.uneven}")
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def _hash(self) -> int:
        return hash((self.mesh, self.dims, self.replicated, self.unreduced, self.reduction, self.uneven))

    def __hash__(self) -> int:
        return self._hash

    def axes(self) -> Iterator[Axis]:
        """Every axis that is named: of the dims, replicated, unreduced."""
        for dim in self.dims:
            yield from dim.axes
        yield from self.replicated
        yield from self.unreduced

    @property
    def ndim(self) -> int | None:
        """The number of dims; None on a maximal mesh, where any tensor fits."""
        return None if self.mesh.is_maximal else len(self.dims)

    @cached_property
    def layout(self) -> Layout:
        """The sharding with the names taken away."""
        digits_of = self.mesh.digits_of
        dims, weaves = [], []
        for dim in self.dims:
            stages = [(digits_of(axes).joined(), deal) for axes, deal in dim.stages(self.uneven)]
            dims.append(tuple(digits for digits, _ in stages if digits))
            woven = tuple(DealStage(digits.size, deal) for digits, deal in stages if digits or deal)
            weaves.append(Weave(woven, dim.window) if dim.is_woven else None)
        unreduced = digits_of(self.unreduced).joined()
        return Layout(tuple(dims), unreduced, self.mesh.size, tuple(weaves) if any(weaves) else ())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows: the smallest tensor that all shards divide, and the devices of its tiles."""
        shape = tuple(self.layout.shards(dim) for dim in range(len(self.dims)))
        longest = max(shape, default=1)
        return self.drawn(tuple(longest if size == 1 else size for size in shape))

    def drawn(self, shape: Sequence[int]) -> dict[str, str]:
        """What a notebook shows of a tensor of this shape; text alone where devices are too many."""
        drawing = None
        if self.mesh.size <= DRAWN_DEVICES:
            classes = self.layout_for(shape).unreduced.size
            drawing = draw_held(shape, self.tiles(shape), classes, self.text())
        return mimebundle(repr(self), drawing)

    def layout_for(self, shape: Sequence[int]) -> Layout:
        """The layout of a tensor of this shape, which on a maximal mesh has dims that nothing cuts.

        Raises:
            ReshardError: `rank-mismatch`, `bad-shape`, `too-large`.
        """
        sizes = checked_shape(shape)
        if self.mesh.is_maximal:
            return Layout(((),) * len(sizes), NO_DIGITS, 1)
        if len(sizes) != len(self.dims):
            raise ReshardError(
                "rank-mismatch", f"sharding {self.text()} has {len(self.dims)} dims, shape {sizes} has {len(sizes)}"
            )
        return self.layout

    def box(self, device: int, shape: Sequence[int]) -> Box:
        """Where the tile of a device lies, one half-open interval per dim; an empty one is (size, size).

        Raises:
            ReshardError: `unknown-device`, `rank-mismatch`, `bad-shape`, `too-large`; `cannot-express` where the
                tile is not one box.

        >>> [Sharding.of(Mesh.of(x=3), "x").box(device, (4,)) for device in range(3)]
        [Box([(0, 2)]), Box([(2, 4)]), Box([(4, 4)])]
        """
        sizes = checked_shape(shape)
        return self.layout_for(sizes).box(self.mesh.position_of(device), sizes)

    def boxes(self, device: int, shape: Sequence[int]) -> tuple[Box, ...]:
        """The boxes that the tile of a device consists of, in the order in which they lie in its array.

        The array holds in each dim the runs of its boxes one after the other; a window that wraps may bring an
        element twice, and what is padded is in no box.

        Raises:
            ReshardError: `unknown-device`, `rank-mismatch`, `bad-shape`, `too-large`.

        >>> from reshard.deal import Deal
        >>> sharding = Sharding.of(Mesh.of(x=3), (Deal.zigzag(), "x"))
        >>> [sharding.boxes(device, (12,)) for device in range(2)]
        [(Box([(0, 2)]), Box([(10, 12)])), (Box([(2, 4)]), Box([(8, 10)]))]
        """
        sizes = checked_shape(shape)
        tile = self.layout_for(sizes).tile(self.mesh.position_of(device), sizes)
        return tile.boxes() if isinstance(tile, Tile) else () if tile.is_empty else (tile,)

    def tiles(self, shape: Sequence[int]) -> dict[tuple[Box, ...], tuple[int, ...]]:
        """The tiles that there are, by their boxes, each with the devices that hold it, in the order of the mesh.

        Raises:
            ReshardError: `rank-mismatch`, `bad-shape`, `too-large`.

        >>> Sharding.of(Mesh.of(x=2, y=2), "y").tiles((4,))
        {(Box([(0, 2)]),): (0, 2), (Box([(2, 4)]),): (1, 3)}
        """
        holders: dict[tuple[Box, ...], list[int]] = {}
        for device in self.mesh.device_array.tolist():
            holders.setdefault(self.boxes(device, shape), []).append(device)
        return {boxes: tuple(devices) for boxes, devices in holders.items()}

    def with_halo(self, widths: Mapping[int, tuple[int, int]], edge: str = "clip", *, summed: bool = False) -> Sharding:
        """The sharding with a border around every run that a device owns.

        As a target it lacks the border; as a source it counts for what is owned alone.

        Args:
            widths: per dim how many elements before each run, and how many after it.
            edge: at the ends of the tensor the border is left out (`clip`), goes round (`wrap`), or is zero (`pad`).
            summed: whether the value is the sum of what all borders and runs hold: the gradient of a filled border.

        Raises:
            ReshardError: `bad-window`, `rank-mismatch` where there is no such dim.

        >>> sharding = Sharding.of(Mesh.of(x=2), "x").with_halo({0: (1, 2)})
        >>> sharding.text(), sharding.box(0, (8,)), sharding.box(1, (8,))
        ('[{"x", halo(1, 2)}]', Box([(0, 6)]), Box([(3, 8)]))
        """
        windows: dict[int, Window | None] = {}
        for dim, pair in expect(widths, dict, "widths", "bad-window").items():
            ends = [integer(end, "the width of a halo", "bad-window") for end in listed(pair, "the widths of a halo")]
            if len(ends) != 2:
                raise ReshardError("bad-window", f"a halo must have two widths, got: {shown(pair)}")
            windows[dim] = Window(ends[0], ends[1], edge, summed=summed) if any(ends) else None
        return self.with_windows(windows)

    def with_windows(self, windows: Mapping[int, Window | None]) -> Sharding:
        """The sharding with other windows in some dims; None takes a dim's away.

        Raises:
            ReshardError: `bad-window`, `rank-mismatch` where there is no such dim.

        >>> windows = {0: Window(spans=((0, 5), (3, 8)))}
        >>> Sharding.of(Mesh.of(x=2), "x").with_windows(windows).text()
        '[{"x", window(0:5, 3:8)}]'
        """
        dims = list(self.dims)
        for dim, window in windows.items():
            if not 0 <= integer(dim, "the dim of a window", "bad-window") < len(dims):
                raise ReshardError("rank-mismatch", f"dim {dim} has a window; {self.text()} has {len(dims)} dims")
            dims[dim] = replace(dims[dim], window=window)
        return replace(self, dims=tuple(dims))

    def owned(self) -> Sharding:
        """The sharding without windows: what each device owns."""
        return self.with_windows({dim: None for dim, dim_sharding in enumerate(self.dims) if dim_sharding.window})

    @cached_property
    def is_woven(self) -> bool:
        """Whether some dim has a deal or a window, so that tiles may be several boxes."""
        return any(dim.is_woven for dim in self.dims)

    @cached_property
    def is_summed(self) -> bool:
        """Whether the value is the sum of what windows hold."""
        return any(dim.window is not None and dim.window.summed for dim in self.dims)

    @cached_property
    def has_windows(self) -> bool:
        """Whether devices hold other elements than those that they own."""
        return any(dim.window is not None for dim in self.dims)

    def check_plain(self, what: str) -> None:
        """Refuse deals and windows where every tile must be one box of its own.

        Raises:
            ReshardError: `cannot-express`.
        """
        if self.is_woven:
            raise ReshardError("cannot-express", f"{self.text()} deals blocks or has windows, which {what} cannot hold")

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the largest tile: per dim the ceiling of its size over its shards.

        Raises:
            ReshardError: `rank-mismatch`, `bad-shape`, `too-large`.
        """
        sizes = checked_shape(shape)
        return self.layout_for(sizes).local_shape(sizes)

    def check_divisible(self, shape: Sequence[int]) -> None:
        """Refuse a shape that some dim's shards do not divide.

        Raises:
            ReshardError: `not-divisible`, and what `local_shape` raises.
        """
        sizes = checked_shape(shape)
        layout = self.layout_for(sizes)
        for dim, size in enumerate(sizes):
            if size % layout.shards(dim):
                raise ReshardError(
                    "not-divisible", f"dim {dim} with size {size} is not divisible by its {layout.shards(dim)} shards"
                )

    def is_equivalent_to(self, other: Sharding, shape: Sequence[int]) -> bool:
        """Whether both put every element of a tensor of this shape on the same devices.

        Names, open dims, priorities and explicit replication do not count; partial values must be partial
        over the same devices and by the same reduction.

        Raises:
            ReshardError: `rank-mismatch`, `bad-shape`, `too-large`.

        >>> flat = Sharding.of(Mesh.of(a=8), "a:(1)4", "a:(4)2")
        >>> flat.is_equivalent_to(Sharding.of(Mesh.of(x=2, y=2, z=2), ("x", "y"), "z"), (4, 4))
        True
        """
        shape = checked_shape(shape)
        expect(other, Sharding, "what a sharding is compared with")
        first, second = with_mesh(self, other.mesh), with_mesh(other, self.mesh)
        ours, theirs = first.layout_for(shape), second.layout_for(shape)
        if ours.unreduced and theirs.unreduced and first.reduction != second.reduction:
            return False
        if first.mesh.same_order_as(second.mesh):
            is_same = same_by_digits(ours, theirs, shape)
            if is_same is not None:
                return is_same
        return same_placement((ours, theirs), (first.mesh.device_array, second.mesh.device_array), shape)

    def unused_axes(self) -> tuple[Axis, ...]:
        """The parts of the mesh that neither cut a dim nor are unreduced: on these the tensor is replicated.

        >>> print(*Sharding.of(Mesh.of(x=2, y=4), "y:(1)2").unused_axes())
        "x" "y":(2)2
        """
        used = [axis for dim in self.dims for axis in dim.axes] + list(self.unreduced)
        whole = [Axis(name) for name, size in self.mesh.axes if size > 1]
        return difference(whole, used, self.mesh.sizes)

    def dual(self) -> Sharding:
        """The sharding of the gradient: replicated and unreduced axes change places, windows are summed or no longer.

        Raises:
            ReshardError: `bad-argument` where the reduction is no sum.

        >>> print(Sharding.of(Mesh.of(x=2, y=4), "x").dual().text())
        [{"x"}], unreduced={"y"}
        """
        if self.reduction != "sum":
            raise ReshardError("bad-argument", f"a sharding with partial values under {self.reduction} has no dual")
        windows = {dim: sharding.window.dual() for dim, sharding in enumerate(self.dims) if sharding.window is not None}
        return replace(self.with_windows(windows), replicated=(), unreduced=self.unused_axes())


def _word(axis: Axis) -> str:
    """An axis as `Axis.of` takes it."""
    return axis.name if axis.is_whole else f"{axis.name}:({axis.pre_size}){axis.size}"


def _spec_record(dim: object) -> SpecRecord | None:
    """The record of a `PartitionSpec`; None for all else that a dim may be said by."""
    if dim is None or isinstance(dim, str | DimSharding | Axis):
        return None
    record = sharding_record(dim)
    return record if isinstance(record, SpecRecord) else None


def with_mesh(sharding: Sharding, mesh: Mesh) -> Sharding:
    """The sharding itself, or, where its mesh is the empty placeholder, the same on `mesh`: replicated."""
    if not sharding.mesh.is_empty or mesh.is_empty:
        return sharding
    return Sharding(mesh, ()) if mesh.is_maximal else replace(sharding, mesh=mesh)
