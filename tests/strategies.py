"""Meshes, shardings and shapes that Hypothesis draws, for every test that states a law.

What is drawn is always valid, in its one spelling, and small: shrunken examples fit a hand's table.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hypothesis import strategies as st

from reshard.axis import Axis, pieces
from reshard.dim_sharding import DimSharding
from reshard.mesh import Mesh
from reshard.sharding import UNEVEN, Sharding

PLAIN_NAMES = ("x", "y", "z", "w")
REDUCTIONS = ("sum", "avg", "product", "max", "min", "band", "bor", "bxor")


def names() -> st.SearchStrategy[str]:
    """Axis names of any kind: quotes, escapes, control characters, other scripts, the empty name."""
    odd = st.sampled_from(
        ["", '"', "\\", "a b", "a\nb", "\t", "\x00", "é", "轴", "\\22", '"]>', "//", "\x7f", "p1", "?"]
    )
    return odd | st.text(max_size=4)


@st.composite
def axis_sizes(draw: st.DrawFn, most_axes: int = 4, most_devices: int = 48) -> tuple[int, ...]:
    """One to four sizes of 1 to 6 with a bounded product."""
    sizes: list[int] = []
    for _ in range(draw(st.integers(1, most_axes))):
        room = max(1, most_devices // prod(sizes))
        sizes.append(draw(st.integers(1, min(6, room))))
    return tuple(sizes)


@st.composite
def meshes(
    draw: st.DrawFn, *, most_devices: int = 48, permuted: bool = True, parts: bool = True, odd_names: bool = False
) -> Mesh:
    """Meshes with axes.

    Args:
        most_devices: a bound.
        permuted: some have their devices in another order.
        parts: some are over a part of the world, in any order.
        odd_names: names are of any kind, and not x, y, z, w.
    """
    sizes = draw(axis_sizes(most_devices=most_devices))
    total = prod(sizes)
    used = draw(st.lists(names(), min_size=len(sizes), max_size=len(sizes), unique=True)) if odd_names else PLAIN_NAMES
    orders = [st.none()]
    if permuted:
        orders.append(st.permutations(range(total)))
    if parts:
        world = st.lists(st.integers(0, 2 * total + 2), min_size=total, max_size=total, unique=True)
        orders += [world, st.integers(1, 9).map(lambda first: list(range(first, first + total)))]
    ids = draw(st.one_of(orders))
    return Mesh(tuple(zip(used, sizes, strict=False)), None if ids is None else tuple(ids))


@st.composite
def meshes_of(draw: st.DrawFn, total: int, *, permuted: bool = True) -> Mesh:
    """Meshes of that many devices, 0 to `total` - 1, cut into axes in any way."""
    sizes: list[int] = []
    while total // prod(sizes) > 1:
        rest = total // prod(sizes)
        sizes.append(draw(st.sampled_from([size for size in range(2, rest + 1) if rest % size == 0])))
    ids = draw(st.none() | st.permutations(range(total))) if permuted else None
    return Mesh.of([(f"m{place}", size) for place, size in enumerate(sizes or [1])], device_ids=ids)


@st.composite
def axis_parts(draw: st.DrawFn, mesh: Mesh, *, sub_axes: bool = True) -> list[Axis]:
    """Every axis of a mesh, some of them cut into all their parts, in any order."""
    found: list[Axis] = []
    for name, size in mesh.axes:
        cuts = [1]
        while sub_axes and cuts[-1] < size and draw(st.booleans()):
            steps = [step for step in range(2, size // cuts[-1] + 1) if size // cuts[-1] % step == 0]
            cuts.append(cuts[-1] * draw(st.sampled_from(steps)))
        found += pieces(Axis(name), cuts, mesh.sizes)
    return list(draw(st.permutations(found)))


@st.composite
def shardings(
    draw: st.DrawFn,
    mesh: Mesh | st.SearchStrategy[Mesh] | None = None,
    *,
    ndim: int | None = None,
    sub_axes: bool = True,
    unreduced: bool = True,
    reductions: Sequence[str] = REDUCTIONS,
    uneven: Sequence[str] = UNEVEN,
    decorated: bool = True,
) -> Sharding:
    """Shardings of up to four dims.

    Args:
        mesh: the mesh, a strategy for it, or None for `meshes()`.
        ndim: the number of dims, or None for any.
        sub_axes: some axes are used in part, interleaved with others and in any order.
        unreduced: some have unreduced axes, under one of `reductions`.
        reductions: what to draw a reduction from.
        uneven: what to draw the rule for uneven dims from.
        decorated: some have open dims, priorities and replicated axes.
    """
    if not isinstance(mesh, Mesh):
        mesh = draw(meshes() if mesh is None else mesh)
    count = draw(st.integers(0, 4)) if ndim is None else ndim
    homes: list[list[Axis]] = [[] for _ in range(count)]
    replicated: list[Axis] = []
    partial: list[Axis] = []
    places = [*homes, *homes, *([replicated] if decorated else []), *([partial] if unreduced else []), []]
    for axis in draw(axis_parts(mesh, sub_axes=sub_axes)):
        places[draw(st.integers(0, len(places) - 1))].append(axis)
    dims = []
    for axes in homes:
        is_open = decorated and draw(st.booleans())
        some = decorated and (is_open or bool(axes)) and draw(st.booleans())
        dims.append(DimSharding(tuple(axes), is_open, draw(st.sampled_from([0, 1, 2, 2**63 - 1])) if some else None))
    return Sharding.of(
        mesh,
        *dims,
        replicated=replicated,
        unreduced=partial,
        reduction=draw(st.sampled_from(reductions)),
        uneven=draw(st.sampled_from(uneven)),
    )


def shapes(ndim: int, *, most: int = 13) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with dims of any size, 0 and 1 among them."""
    return st.tuples(*[st.integers(0, most)] * ndim)


def even_shapes(sharding: Sharding, *, most: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes that the shards of a sharding divide."""
    counts = [sharding.layout.shards(dim) for dim in range(len(sharding.dims))]
    return st.tuples(*[st.integers(0, most)] * len(counts)).map(
        lambda blocks: tuple(number * count for number, count in zip(blocks, counts, strict=True))
    )
