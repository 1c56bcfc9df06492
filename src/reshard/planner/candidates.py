"""Ways that lead from source to target.

The first is the shortest chain, which receives exactly the bound wherever nothing is partial.
Seven kinds of detour may do better:
    scatter in place    where partial values are combined: combine them where they are, over as many devices as
                        can share the work, and move the result; or in every host alike, where hosts have all values
    combine alone       where latencies decide: every device gathers all values that it wants and combines them
                        itself, in half the messages
    gather late         where a network has a slow level: cut the target further by the axes that lie within a
                        fast part, so that what is needed there crosses the slow level once, and gather inside;
                        near replicas send
    spread in a host    where what hosts hold changes: let all devices of a host share what crosses (`spread`)
    digit by digit      where tiles change places along several lines: halves of lines first (`digit_by_digit`)
    gather first        where latencies decide: gather along some axes, and exchange what is left in fewer messages
    by hosts            where axes do not nest in hosts: to each host once what its devices need (`by_hosts`)

The first two are refinements of an end by axes that it does not use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise, product
from math import prod
from operator import le

from reshard.axis import Axis, aligned, common_prefix, difference, merged
from reshard.collectives.fewest_bytes import fewest_bytes_chain, fewest_bytes_middles
from reshard.digits import Digit, Digits
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.network import Network, nested
from reshard.planner.by_hosts import by_hosts
from reshard.planner.digit_by_digit import digit_by_digit
from reshard.planner.likeness import unlike
from reshard.planner.policy import is_small
from reshard.planner.relay import relay
from reshard.planner.route_prices import RoutePrices, timed_routes
from reshard.planner.spread import collides, spread
from reshard.planner.tensor_digits import dim_cuts
from reshard.problem import Reshard, becomes_unreduced
from reshard.sharding import Sharding
from reshard.steps import Route

TRIED = 16
"""How many refinements of one kind are tried."""
COMBINED = 4
"""Of how many places where values are combined it is tried to combine them inside hosts first."""


def candidates(reshard: Reshard, network: Network | None = None) -> Iterator[Route]:
    """Ways from source to target, the one that moves least first.

    Args:
        reshard: what is to be moved.
        network: whose levels are looked at; without one only the bytes count.

    Raises:
        ReshardError: as `RoutePrices.timed`.
    """
    if network is None:
        yield from detours(reshard)
        return
    prices = RoutePrices.of(reshard, network)
    routes = list(_on_levels(prices))
    yield from routes
    if is_small(reshard):
        least = min(way.seconds for way in timed_routes(prices, routes))
        with suppress(ReshardError):
            yield gathered(reshard)
        for middle in _gathers(prices, least) if network.has_switches else ():
            yield Route((middle,))


def _boundaries(reshard: Reshard, network: Network) -> list[int]:
    """The strides at which a level begins, or groups in which axes nest, and the end of the last."""
    mesh = reshard.target.mesh
    return sorted({*level_strides(network), *level_strides(nested(network, mesh)), mesh.size} - {1})


def at_once(prices: RoutePrices) -> list[Route]:
    """The ways in one step that sends, where no way in several takes less; else none.

    By hand, on 8 devices of a host a step takes 6.6 us to start and 0.6 us a message: where each of 4 sends to the
    others that is 8.4 us, and two steps take 14.4.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=4, y=2)
    >>> ends = Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x")
    >>> prices = RoutePrices.of(Reshard.of(*ends, (8, 8)), Network.preset("h100-8"))
    >>> [[middle.text() for middle in route.middles] for route in at_once(prices)]
    [[], ['[{}, {}]']]
    """
    two_s = prices.least_seconds(2) if prices.network.launch_s else 0.0  # else a step more takes nearly nothing
    if not two_s:
        return []
    strides, free = _boundaries(prices.reshard, prices.network), prices.reshard.source.layout.free
    near = [stride for stride in strides if any(digit.end > stride for digit in free)]
    routes = [Route((), stride) for stride in (0, *near)]
    if min(way.seconds for way in timed_routes(prices, routes)) > two_s:
        return []
    with suppress(ReshardError):
        routes.append(gathered(prices.reshard))
    return routes


def _on_levels(prices: RoutePrices) -> Iterator[Route]:
    """Those for a network, however much data there are."""
    reshard, network = prices.reshard, prices.network
    mesh = reshard.target.mesh
    as_axes_nest = nested(network, mesh)
    slow = {*slow_strides(network), *slow_strides(as_axes_nest)}
    hosts = {stride for stride in slow if stride < mesh.size}
    yield from detours(reshard, _boundaries(reshard, network), hosts)
    for host in hosts.difference(level_strides(as_axes_nest)):  # in which axes do not nest
        yield from [Route(middles, host) for middles in by_hosts(reshard, host)]
    with suppress(ReshardError):
        middles = digit_by_digit(reshard, network)
        yield from [Route(tuple(middles))] if middles else []
    yield from collectives(prices)


def collectives(prices: RoutePrices) -> Iterator[Route]:
    """A chain of collectives, mostly the one that receives least; not all ends have one."""
    with suppress(ReshardError):
        if prices.by_digits:
            yield Route(fewest_bytes_middles(prices.reshard, prices.is_one_collective()))
        else:
            yield Route(steps=fewest_bytes_chain(prices.reshard)[0])


def level_strides(network: Network) -> list[int]:
    """The strides of the device number at which a level of the network begins, the innermost left out."""
    return [level.stride for level in network.levels[1:]]


def slow_strides(network: Network) -> list[int]:
    """Those of them at which the level is slower than the one inside: of hosts, as devices per host."""
    return [outer.stride for inner, outer in pairwise(network.levels) if outer.bandwidth < inner.bandwidth]


def gathered(reshard: Reshard) -> Route:
    """All that the ends cut otherwise gathered, then each its part."""
    source, target = reshard.source, reshard.target
    if source.mesh != target.mesh or source.is_woven or target.is_woven:
        return all_gathered(reshard)
    return Route((kept_cuts(source, target),))


def kept_cuts(source: Sharding, target: Sharding) -> Sharding:
    """All gathered that two shardings on one mesh cut otherwise; no windows."""
    kept = [common_prefix(before.axes, after.axes) for before, after in zip(source.dims, target.dims, strict=True)]
    return Sharding(target.mesh, tuple(map(DimSharding, kept)), uneven=target.uneven)


def _gathers(prices: RoutePrices, limit_s: float) -> Iterator[Sharding]:
    """The source with some of its last axes gathered: what is then exchanged goes between fewer, in fewer messages.

    Only what is gathered sooner than a limit.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=2)
    >>> reshard = Reshard.of(Sharding.of(mesh, ("x", "y"), None), Sharding.of(mesh, None, ("y", "x")), (4, 4))
    >>> prices = RoutePrices.of(reshard, Network.preset("h100-4"))
    >>> [middle.text() for middle in _gathers(prices, 1.0)]
    ['[{"x"}, {}]', '[{}, {}]']
    """
    reshard = prices.reshard
    source, target = reshard.source, reshard.target
    if source.mesh != target.mesh or source.is_woven or target.is_woven:
        return
    cutting = [dim.axes for dim in source.dims]
    sizes = [[axis.size_in(source.mesh.sizes[axis.name]) for axis in axes] for axes in cutting]
    slow: list[tuple[int, ...]] = []  # what is gathered further takes longer yet
    for counts in sorted(product(*(range(len(axes) + 1) for axes in cutting)), key=sum, reverse=True)[1:]:
        if any(all(map(le, counts, known)) for known in slow):
            continue
        with suppress(ReshardError):
            shards = [prod(parts[:count]) for parts, count in zip(sizes, counts, strict=True)]
            lengths = [size // parts for size, parts in zip(reshard.shape, shards, strict=True)]
            seconds = prices.seconds_to_gather(lengths)
            if seconds is not None and seconds >= limit_s:
                slow.append(counts)
                continue
            kept = [axes[:count] for axes, count in zip(cutting, counts, strict=True)]
            middle = Sharding(source.mesh, tuple(map(DimSharding, kept)), uneven=target.uneven)
            if seconds is not None or prices.seconds_to(middle) < limit_s:
                yield middle


def all_gathered(reshard: Reshard) -> Route:
    """Everything to everyone, then each its part."""
    return Route((Sharding.of(reshard.target.mesh, *[None] * len(reshard.target.dims)),))


def detours(reshard: Reshard, boundaries: Sequence[int] = (), hosts: Collection[int] = ()) -> Iterator[Route]:
    """The shortest chain, and those by way of other shardings.

    Args:
        reshard: what is to be moved.
        boundaries: strides of the device number at which a level begins.
        hosts: those of them at which it is slower than the one inside.
    """
    yield Route()
    source, target, shape = reshard.source, reshard.target, reshard.shape
    if source.is_woven or target.is_woven:
        return
    combined = becomes_unreduced(target, source)  # unreduced before and no longer
    if combined:
        if hosts and _is_of_hosts(source, max(hosts)):
            yield Route((), near=1)
            in_groups = list(islice(refinements(source, combined, target, shape), TRIED))
            yield from [Route((middle,), near=1) for middle in unlike(in_groups, reshard)]
        if boundaries and is_small(reshard):
            in_place = replace(source, unreduced=difference(source.unreduced, combined, source.mesh.sizes))
            on_the_way = () if in_place == target else (in_place,)
            yield Route(on_the_way)
            if reshard.tilings[0].is_even():
                yield Route(on_the_way, near=1)  # each device combines what it needs, in half the messages
        cut_by = [*combined, *source.unused_axes()]
        scattered = list(islice(refinements(source, cut_by, target, shape), TRIED))
        if not scattered:  # no equal parts lie where they are wanted
            unevenly = refinements(source, cut_by, target, shape, evenly=False)
            anywhere = refinements(source, cut_by, source, shape)
            scattered = [*islice(unevenly, TRIED), *islice(anywhere, TRIED)]
        for number, middle in enumerate(unlike(scattered, reshard)):
            yield Route((middle,))
            for boundary in sorted(hosts) if number < COMBINED else ():
                inner = _combined_inside(source, middle, boundary)
                if inner is not None:
                    yield Route((inner, middle))
    for boundary in boundaries if target.mesh.device_ids is None else ():
        if any(digit.end > boundary for digit in source.layout.free):  # else none is nearer
            yield Route((), boundary)
        below = target.mesh.parts_within(target.unused_axes(), Digit(1, boundary))
        late = list(islice(refinements(target, below, source, shape), TRIED))
        if combined:  # else what they take is soon told
            late = unlike(late, reshard)
        for middle in late:
            yield Route((middle,), boundary)
        if boundary in hosts:
            for middles in _spread(source, target, late, shape, boundary):
                yield Route(middles, boundary)
            relayed = relay(reshard, boundary)
            if relayed is not None:
                yield Route(relayed, boundary)
                if source not in relayed and target not in relayed:  # else an end falls out
                    yield Route(relayed[1:], boundary)


def _is_of_hosts(source: Sharding, boundary: int) -> bool:
    """Whether hosts have all of the values that they hold some of."""
    unreduced = Digits([source.mesh.digit_of(axis) for axis in source.unreduced])
    return source.mesh.device_ids is None and all(digit.end <= boundary for digit in unreduced)


def _combined_inside(source: Sharding, middle: Sharding, boundary: int) -> Sharding | None:
    """What lies between partial values and where they are combined: combined inside hosts alone.

    What hosts are to have of a device lies on it as blocks with a stride; None where values are partial inside hosts
    alone, or between them alone.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(h=2, g=4)
    >>> source, middle = Sharding.of(mesh, None, unreduced=("h", "g")), Sharding.of(mesh, ("h", "g"))
    >>> print(_combined_inside(source, middle, 4).text())
    [{parts(2), "g"}], unreduced={"h"}
    """
    mesh = source.mesh
    of_hosts, of_devices = Digit(boundary, mesh.size // boundary), Digit(1, boundary)
    between, inside = (mesh.parts_within(source.unreduced, digit) for digit in (of_hosts, of_devices))
    if not between or not inside or source.mesh.device_ids is not None:
        return None
    waiting = Digits([mesh.digit_of(axis) for axis in between]).primes()
    dims = []
    for dim in middle.dims:
        digits: list[Digit] = []
        for whole in (Digits([mesh.digit_of(axis)]) for axis in dim.axes):
            parts = Digits([*whole.within(of_hosts), *whole.within(of_devices)])
            digits += (parts if parts.size == whole.size else whole).primes()
        dims.append(dim_cuts(mesh, [(digit.size, None if digit in waiting else digit) for digit in digits]))
    with suppress(ReshardError):  # what stays partial may cut a dim too
        return Sharding.of(mesh, *dims, unreduced=between, reduction=source.reduction)
    return None


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


def refined(
    sharding: Sharding,
    axes: tuple[Axis, ...],
    beside: Sharding,
    shape: tuple[int, ...],
    *,
    evenly: bool = True,
    in_order: bool = False,
) -> Sharding | None:
    """The first of the `refinements`; None where there are no axes, or dims have no such parts."""
    ways = refinements(sharding, axes, beside, shape, evenly=evenly, in_order=in_order)
    return next(ways, None) if axes else None


def refinements(
    sharding: Sharding,
    axes: Iterable[Axis],
    beside: Sharding,
    shape: tuple[int, ...],
    *,
    evenly: bool = True,
    in_order: bool = False,
) -> Iterator[Sharding]:
    """The sharding with its dims cut further by all of `axes`: each the dim that it cuts in `beside`, or any.

    Evenly, or in no more parts than there are elements; in the order of `axes`, or those first that cut `beside`, in
    the order in which they do.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=2)
    >>> for finer in refinements(Sharding.of(mesh, "x", None), [Axis("y")], Sharding.of(mesh, None, None), (4, 4)):
    ...     print(finer.text())
    [{"x", "y"}, {}]
    [{"x"}, {"y"}]
    """
    sizes = sharding.mesh.sizes
    cutting = [
        (axis, number) for number, dim in enumerate(beside.dims) for axis in dim.axes if beside.mesh == sharding.mesh
    ]
    pieces, _ = aligned(list(axes), [axis for axis, _ in cutting], sizes)
    homes = {piece: number for piece in pieces for axis, number in cutting if axis.contains(piece)}
    if in_order:
        places = {piece: place for piece in pieces for place, (axis, _) in enumerate(cutting) if axis.contains(piece)}
        pieces = tuple(sorted(pieces, key=lambda piece: places.get(piece, len(cutting))))

    def placed(added: tuple[tuple[Axis, ...], ...], parts: Sequence[int]) -> Iterator[tuple[tuple[Axis, ...], ...]]:
        """What each dim is cut by besides, of all pieces, from what some are and into how many parts that cuts dims."""
        count = sum(map(len, added))
        if count == len(pieces):
            yield added
            return
        piece = pieces[count]
        for number in [homes[piece]] if piece in homes else range(len(shape)):
            cut = parts[number] * piece.size_in(sizes[piece.name])
            if shape[number] % cut == 0 or (not evenly and cut <= shape[number]):
                behind = number + 1
                yield from placed(
                    (*added[:number], (*added[number], piece), *added[behind:]), [*parts[:number], cut, *parts[behind:]]
                )

    if not pieces:
        return
    unreduced = difference(sharding.unreduced, pieces, sizes)  # what now cuts a dim is unreduced no longer
    for added in placed(((),) * len(shape), [sharding.layout.shards(dim) for dim in range(len(shape))]):
        dims = tuple(
            replace(dim, axes=merged([*dim.axes, *more], sizes)) if more else dim
            for dim, more in zip(sharding.dims, added, strict=True)
        )
        yield replace(sharding, dims=dims, unreduced=unreduced, replicated=())
