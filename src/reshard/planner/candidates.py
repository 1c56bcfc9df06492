"""Chains of steps that lead from source to target.

The first is the shortest chain, which receives exactly the bound wherever nothing is partial.
Three kinds of detour may do better:
    scatter in place    where partial values are combined: combine them where they are, over as many devices as
                        can share the work, and move the result
    gather late         where a network has a slow level: cut the target further by the axes that lie within a
                        fast part, so that what is needed there crosses the slow level once, and gather inside;
                        near replicas send
    spread in a host    where what hosts hold changes: let all devices of a host share what crosses (`spread`)

The first two are refinements of an end by axes that it does not use.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from reshard.axis import Axis, aligned, difference, merged
from reshard.chains import Chain, chain_through, shortest_chain
from reshard.digits import Digit
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.planner.spread import collides, spread
from reshard.sharding import Sharding, becomes_unreduced

TRIED = 16
"""How many refinements of one kind are tried."""


def candidates(
    source: Sharding,
    target: Sharding,
    shape: tuple[int, ...],
    dtype: DType,
    boundaries: Sequence[int] = (),
    hosts: Container[int] = (),
) -> Iterator[Chain]:
    """Chains worth comparing, the shortest first.

    Args:
        source: where the tensor is.
        target: where it is wanted.
        shape: of the whole tensor.
        dtype: of its elements.
        boundaries: strides of the device number at which a level begins.
        hosts: those of them at which it is slower than the one inside.

    Raises:
        ReshardError: as `shortest_chain`.
    """
    yield shortest_chain(source, target, shape, dtype)
    for points, near in _detours(source, target, shape, boundaries, hosts):
        try:
            yield chain_through(points, shape, dtype, near)
        except ReshardError:
            continue  # a detour that cannot be made is none


def _detours(
    source: Sharding, target: Sharding, shape: tuple[int, ...], boundaries: Sequence[int], hosts: Container[int]
) -> Iterator[tuple[tuple[Sharding, ...], int]]:
    """Points to pass, and from which stride on near replicas send."""
    combined = becomes_unreduced(target, source)  # partial before and no longer
    if combined:
        scattered = refinements(source, [*combined, *source.unused_axes()], target, shape)
        for middle in islice(scattered, TRIED):
            yield (source, middle, target), 0
    for boundary in boundaries if target.mesh.device_ids is None else ():
        if any(digit.end > boundary for digit in source.layout.free):  # else none is nearer
            yield (source, target), boundary
        below = target.mesh.parts_within(target.unused_axes(), Digit(1, boundary))
        late = list(islice(refinements(target, below, source, shape), TRIED))
        for middle in late:
            yield (source, middle, target), boundary
        if boundary in hosts:
            for middles in _spread(source, target, late, shape, boundary):
                yield (source, *middles, target), boundary


def _spread(
    source: Sharding, target: Sharding, late: Sequence[Sharding], shape: tuple[int, ...], boundary: int
) -> Iterator[tuple[Sharding, ...]]:
    """Middles that share out what crosses between hosts, where no end and no middle known does."""
    giving = collides(source, target, boundary)
    taking = giving or all(collides(middle, source, boundary) for middle in late or [target])
    arriving = spread(target, source, shape, boundary) if taking else None
    leaving = spread(source, target, shape, boundary) if giving else None
    if arriving:
        yield (arriving,)
    if leaving:
        yield (leaving,)
        if arriving:
            yield leaving, arriving


def refinements(
    sharding: Sharding, axes: Iterable[Axis], beside: Sharding, shape: tuple[int, ...]
) -> Iterator[Sharding]:
    """The sharding with its dims cut further by all of `axes`, evenly: each the dim that it cuts in `beside`, or any.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=2)
    >>> for found in refinements(Sharding.of(mesh, "x", None), [Axis("y")], Sharding.of(mesh, None, None), (4, 4)):
    ...     print(found.text())
    [{"x", "y"}, {}]
    [{"x"}, {"y"}]
    """
    sizes = sharding.mesh.sizes
    cutting = [
        (axis, number) for number, dim in enumerate(beside.dims) for axis in dim.axes if beside.mesh == sharding.mesh
    ]
    parts, _ = aligned(list(axes), [axis for axis, _ in cutting], sizes)
    wanted = {part: number for part in parts for axis, number in cutting if axis.contains(part)}
    left = difference(sharding.unreduced, parts, sizes)  # what was partial and now cuts a dim is partial no longer

    def placed(found: Sharding, rest: Sequence[Axis]) -> Iterator[Sharding]:
        if not rest:
            yield found
            return
        part, *others = rest
        for number in [wanted[part]] if part in wanted else range(len(shape)):
            dims = list(found.dims)
            dims[number] = replace(dims[number], axes=merged([*dims[number].axes, part], sizes))
            further = replace(found, dims=tuple(dims))
            if shape[number] % further.layout.shards(number) == 0:
                yield from placed(further, others)

    if parts:
        yield from placed(replace(sharding, unreduced=left, replicated=()), parts)
