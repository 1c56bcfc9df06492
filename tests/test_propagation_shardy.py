"""Propagation against Shardy's own pipeline, the copy inside jaxlib."""

from __future__ import annotations

from collections import Counter
from math import gcd

import pytest

pytest.importorskip("jaxlib")

from programs import conflicting, generate, place_as
from shardy_programs import propagated

from reshard import Axis
from reshard.propagation.fixpoint import Net, sharding_of

pytestmark = pytest.mark.engine


def at_the_border(axes: tuple[Axis, ...], size: int, sizes: dict[str, int], *, is_open: bool) -> tuple[Axis, ...]:
    """What Shardy leaves of a dim of an input or an output: the longest beginning that divides it.

    That may end inside an axis; a dim that was open then loses the part.
    """
    kept: list[Axis] = []
    for axis in axes:
        parts = axis.size_in(sizes[axis.name])
        shared = gcd(size, parts)
        if shared > 1:
            kept.append(Axis.between(axis.name, axis.start, axis.start * shared, sizes[axis.name]))
        size //= shared
        if shared != parts:
            break
    while is_open and kept and not kept[-1].is_whole:
        kept.pop()
    return tuple(kept)


@pytest.mark.parametrize(
    "seeds", [range(200), pytest.param(range(200, 1400), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_equals_shardy_where_nothing_conflicts(seeds: range) -> None:
    compared = 0
    for seed in seeds:
        program = generate(seed)
        net = Net(program)
        flow = net.run()
        assert not flow.disputed, seed
        theirs = propagated(program)
        border = {*program.inputs, *program.outputs}
        assert {value.name for value in program.values} == theirs.keys()
        for value in program.values:
            ours = [dim.axes for dim in sharding_of(net, flow, value).dims]
            if value in border:
                given = program.annotations.get(value)
                opens = [given is None or dim.is_open for dim in (given.dims if given else [None] * len(ours))]  # type: ignore[union-attr]
                sizes = program.mesh.sizes
                ours = [
                    at_the_border(axes, size, sizes, is_open=is_open)
                    for axes, size, is_open in zip(ours, value.shape, opens, strict=True)
                ]
            assert ours == [dim.axes for dim in theirs[value.name].dims], (seed, value)
            compared += 1
    assert compared > 9 * len(seeds)


@pytest.mark.parametrize(
    "seeds", [range(14), pytest.param(range(14, 1000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_never_dearer_than_shardy_where_something_conflicts(seeds: range) -> None:
    count: Counter[str] = Counter()
    for seed in seeds:
        program = conflicting(seed)
        ours = program.propagate().received_bytes
        theirs = place_as(program, propagated(program)).received_bytes
        assert ours <= theirs, seed
        count["below" if ours < theirs else "equal"] += 1
    assert count["below"] > len(seeds) // 5
