"""Functions that shift, slide or run along a cut dim compute what they did, with no byte more than plain `jit`."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax_habits import habits  # noqa: E402
from jax_hlo import busiest_with_loops, collectives, received_bytes  # noqa: E402
from jax_shifts import DEVICES, Case, cases  # noqa: E402

import reshard as rs  # noqa: E402

pytestmark = pytest.mark.engine
CASES = cases() | habits()
AT_BOUND = {
    "roll by 1": 256,
    "gradient of a roll": 1536,
    "shift by a pad that is cut": 256,
    "update at a known place": 32768,
    "convolution 3 x 3, stride 2": 4096,
    "gradient of a convolution, stride 2": 6144,
    "gradient of a pooling 3": 22528,
    "running sum": 256,
    "sum from behind by turning round": 256,
    "running sum of what is before": 256,
    "stencil of rows padded by their edge": 512,
    "heat in a box with its edges around": 512,
    "gradient of heat in a box": 1920,
    "gradient of a stencil in zeros": 1024,
    "gradient of a product of neighbours by their edge": 1024,
    "neighbours by numbers that are clipped": 512,
    "red and black rows in turns": 1024,
    "padded by hand, then a convolution": 768,
    "gradient of a pooling side by side": 0,
    "attention in a window, by mask": 32704,
    "top 8 over a vocabulary, places": 2688,
}
"""Functions with what the busiest device receives."""


def programs(case: Case, *, with_plain: bool = False) -> tuple[rs.Program, list[Any], list[Any]]:
    """What is placed, compiled, and beside it what plain `jit` compiles; and arrays for it."""
    names = ("x", "y")[: len(case.axes)]
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    mesh = jax.make_mesh(case.axes, names, kinds, devices=jax.devices()[:DEVICES])
    ends = tuple(jax.NamedSharding(mesh, jax.P(*spec)) for spec in case.specs)
    avals = [jax.ShapeDtypeStruct(shape, np.float32) for shape in case.shapes]
    (made,) = jax.tree.leaves(jax.eval_shape(case.function, *avals))
    spec = () if case.result is None else case.result or case.specs[0]
    is_even = all(not axis or size % mesh.shape[axis] == 0 for axis, size in zip(spec, made.shape, strict=False))
    out = jax.NamedSharding(mesh, jax.P(*spec)) if is_even else jax.NamedSharding(mesh, jax.P())
    placed = rs.jax.trace(case.function, *avals, in_shardings=ends, out_shardings=out, mesh=mesh).propagate(
        goal="bytes"
    )
    functions = [rs.jax.to_jax(placed), *([case.function] if with_plain else [])]
    compiled = [jax.jit(each, in_shardings=ends, out_shardings=out).lower(*avals).compile() for each in functions]
    rng = np.random.default_rng(0)
    arrays = [
        jax.device_put(rng.normal(size=shape).astype(np.float32), end)
        for shape, end in zip(case.shapes, ends, strict=True)
    ]
    return placed, compiled, arrays


@pytest.mark.parametrize("name", AT_BOUND)
def test_values_and_bytes(name: str) -> None:
    case = CASES[name]
    placed, (compiled,), arrays = programs(case)
    busiest = max(received_bytes(collectives(compiled.as_text(), DEVICES), DEVICES))
    assert busiest == placed.received_bytes == AT_BOUND[name]
    assert case.least is None or busiest <= 1.1 * case.least
    np.testing.assert_allclose(compiled(*arrays), case.function(*map(np.asarray, arrays)), rtol=2e-3, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CASES) - set(AT_BOUND)))
def test_no_byte_more_than_plain_jit(name: str) -> None:
    _, (ours, plain), arrays = programs(CASES[name], with_plain=True)
    for own, theirs in zip(jax.tree.leaves(ours(*arrays)), jax.tree.leaves(plain(*arrays)), strict=True):
        np.testing.assert_allclose(own, theirs, rtol=2e-3, atol=2e-3 + 1e-6 * float(abs(theirs).max(initial=0)))
    if "scan" in name or "times" in name:  # whose collectives stand in loops
        return
    received = [max(received_bytes(collectives(way.as_text(), DEVICES), DEVICES)) for way in (ours, plain)]
    assert received[0] <= received[1]
    assert CASES[name].least is None or received[0] <= 1.1 * CASES[name].least


def convolved(kernel: int, strides: range, dilations: range) -> Any:
    """A sum of convolutions of convolutions, so that the inner ones have tiles of uneven sizes."""

    def function(x: Any, w: Any) -> Any:
        numbers = ("NHC", "HIO", "NHC")
        total = 0.0
        for stride in strides:
            for dilation in dilations:
                reach = (kernel - 1) * dilation
                pads = [((reach // 2, reach - reach // 2),), ((kernel, 0),)]
                y = lax.conv_general_dilated(
                    x, w, (stride,), pads[0], rhs_dilation=(dilation,), dimension_numbers=numbers
                )
                z = lax.conv_general_dilated(
                    jnp.tanh(y), w, (1,), pads[1], lhs_dilation=(stride,), dimension_numbers=numbers
                )
                total += (z[:, : x.shape[1] - 5] ** 2).sum()
        return total

    return function


def check_convolutions(kernel: int, strides: range, dilations: range) -> None:
    mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:DEVICES])
    ends = tuple(jax.NamedSharding(mesh, jax.P(*spec)) for spec in ((None, "x", None), ()))
    rng = np.random.default_rng(kernel)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((2, 40, 3), (kernel, 3, 3))]
    function = jax.value_and_grad(convolved(kernel, strides, dilations), (0, 1))
    placed = rs.jax.trace(function, *arrays, in_shardings=ends, mesh=mesh).propagate(goal="bytes")
    assert any(sharding.has_windows for sharding in placed.shardings.values())
    found = jax.jit(rs.jax.to_jax(placed))(*map(jax.device_put, arrays, ends))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(function(*arrays)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)


def test_convolutions_with_uneven_tiles_and_their_gradients() -> None:
    check_convolutions(3, range(2, 3), range(2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", range(1, 10))
def test_all_convolutions_and_their_gradients(kernel: int) -> None:
    check_convolutions(kernel, range(1, 4), range(1, 4))


@pytest.mark.parametrize(
    "function",
    [lambda x: jnp.concatenate([x] * 5) ** 2, lambda x: jnp.pad(x, (11, 13), mode="wrap") ** 2],
    ids=["copies", "border"],
)
def test_what_goes_round_more_than_once(function: Any) -> None:
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    rows, x = jax.NamedSharding(mesh, jax.P("x")), np.arange(1.0, 9.0, dtype=np.float32)
    placed = rs.jax.trace(function, x, in_shardings=rows, out_shardings=rows, mesh=mesh).propagate(goal="bytes")
    assert any(sharding.has_windows for sharding in placed.shardings.values())
    run, weights = rs.jax.to_jax(placed), np.random.default_rng(0).normal(size=function(x).shape).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(run)(jax.device_put(x, rows)), function(x))
    gradients = [jax.jit(jax.grad(lambda x, f=f: (f(x) * weights).sum()))(x) for f in (run, function)]
    np.testing.assert_allclose(*gradients, rtol=1e-5)


def chained(x: Any) -> Any:
    """So many steps that no frame of Python can be had for each."""
    for _ in range(200):
        x = jnp.sin(x) + 1
    return x


def counted(x: Any) -> Any:
    """Rows by numbers that so many steps make of counts: the next ones in the end."""
    places = jnp.arange(len(x))
    for _ in range(199):
        places = (places + 7) % len(x)
    return x[places]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.at[1:-1].set(chained(x[2:] + x[:-2])),
        lambda x: jnp.flip(chained(jnp.cumsum(jnp.flip(x, 0), 0) * 0.01), 0),
        counted,
    ],
    ids=["stencil", "turned", "counted"],
)
def test_chains_of_hundreds_of_operations(function: Any) -> None:
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    rows, x = jax.NamedSharding(mesh, jax.P("x")), np.arange(1.0, 65.0, dtype=np.float32).reshape(16, 4)
    placed = rs.jax.trace(function, x, in_shardings=rows, out_shardings=rows, mesh=mesh).propagate(goal="bytes")
    assert placed.received_bytes <= 2 * 16
    np.testing.assert_allclose(
        jax.jit(rs.jax.to_jax(placed))(jax.device_put(x, rows)), function(jnp.asarray(x)), rtol=1e-5
    )


def test_drawn_places_that_are_known() -> None:
    """Parts put at every few places of two dims, of numbers, arrays or these places themselves."""
    mesh, random = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:4]), Random(3)
    rows, x = jax.NamedSharding(mesh, jax.P("x")), np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)

    def drawn(size: int) -> Any:
        first = random.randrange(size // 2)
        places = slice(first, random.randrange(first + 1, size + 1), random.choice([1, 2, 3]))
        return random.choice([slice(None), random.randrange(-size, size), places, places])

    parts = [(drawn(16), drawn(8)) for _ in range(9)]
    parts += [(np.arange(0, 16, 3), slice(None)), (np.arange(0, 8, 2)[:, None], np.arange(4)), (np.array([3, 3, 3]),)]

    def function(x: Any) -> list[Any]:
        ways = ["set", "add", "max"]
        values = [2.5, x[:, 0].sum(), None]
        return [
            getattr(x.at[part], ways[number % 3 if number < 11 else 1])(
                x[part] * 0.5 + 1 if values[number // 3 % 3] is None else values[number // 3 % 3]
            )
            for number, part in enumerate(parts)
        ]

    placed = rs.jax.trace(function, x, in_shardings=rows, out_shardings=rows, mesh=mesh).propagate(goal="bytes")
    found = jax.jit(rs.jax.to_jax(placed))(jax.device_put(x, rows))
    for ours, theirs in zip(found, function(jnp.asarray(x)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_drawn_joins() -> None:
    """Parts joined, padded, cut, turned and named by numbers, of one another."""
    mesh, random = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:4]), Random(5)
    rows, x = jax.NamedSharding(mesh, jax.P("x")), np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)

    def part(x: Any) -> Any:
        first = random.randrange(len(x))
        last = random.choice([first + 1, min(first + 2, len(x)), len(x)])
        return x[first:last][:: random.choice([1, 1, -1])]

    def drawn(x: Any) -> Any:
        return random.choice(
            [
                lambda: jnp.concatenate([part(x) for _ in range(random.randint(1, 3))]),
                lambda: jnp.concatenate([part(x), jnp.full((random.randint(1, 3), x.shape[1]), 0.5), part(x)]),
                lambda: jnp.pad(x, ((random.randint(0, 2), 1), (0, random.randint(0, 1))), "edge"),
                lambda: jnp.pad(x, ((random.randint(0, 2), 1), (0, 0)), random.choice(["constant", "wrap", "empty"])),
                lambda: jnp.pad(x, ((1, 2), (0, 0)), random.choice(["reflect", "symmetric"])) if len(x) > 2 else x,
                lambda: x[random.randrange(len(x)) :],
                lambda: jnp.concatenate([x[1:], x[-1:]]),
                lambda: x[np.clip(np.arange(len(x)) + random.randint(-2, 2), 0, len(x) - 1)],
                lambda: x.at[random.randrange(len(x))].set(x[random.randrange(len(x))]),
                lambda: jnp.cumsum(jnp.concatenate([jnp.zeros((2, x.shape[1])), x[:-1]])[: len(x)], 0) * 0.1,
            ]
        )()

    def function(x: Any) -> list[Any]:
        random.seed(5)
        results = [x]
        for _ in range(60):
            results.append(drawn(random.choice([x, *results[-3:]])))
        return results

    placed = rs.jax.trace(function, x, in_shardings=rows, mesh=mesh).propagate(goal="bytes")
    found = jax.jit(rs.jax.to_jax(placed))(jax.device_put(x, rows))
    for ours, theirs in zip(found, function(jnp.asarray(x)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_slice_at_a_place_that_is_computed_is_given_by_those_who_have_it() -> None:
    mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:DEVICES])
    rows, x = jax.NamedSharding(mesh, jax.P("x")), np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)

    def function(x: Any, n: Any) -> Any:
        return lax.dynamic_slice(x, (n, 2), (5, 29))

    placed = rs.jax.trace(function, x, np.int32(0), in_shardings=(rows, None), mesh=mesh).propagate(goal="bytes")
    assert placed.received_bytes <= 2 * 5 * 29 * 4
    run = jax.jit(rs.jax.to_jax(placed))
    for first in (-3, 0, 6, 57, 99):
        np.testing.assert_array_equal(run(jax.device_put(x, rows), first), function(jnp.asarray(x), first))


@pytest.mark.parametrize("widths", [(-1, 2), (3, 0), (2, -2)])
def test_what_is_left_out_before_a_convolution_is_not_what_it_fills(widths: tuple[int, int]) -> None:
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    ends, random = tuple(jax.NamedSharding(mesh, jax.P(*spec)) for spec in ((None, "x"), ())), np.random.default_rng(0)
    x, w = (random.normal(size=shape).astype(np.float32) for shape in ((1, 16, 2), (3, 2, 2)))

    def function(x: Any, w: Any) -> Any:
        padded = lax.pad(x, np.float32(0), ((0, 0, 0), (*widths, 0), (0, 0, 0)))
        return lax.conv_general_dilated(padded, w, (1,), ((1, 1),), dimension_numbers=("NHC", "HIO", "NHC"))

    placed = rs.jax.trace(function, x, w, in_shardings=ends, mesh=mesh).propagate(goal="bytes")
    np.testing.assert_allclose(
        jax.jit(rs.jax.to_jax(placed))(*map(jax.device_put, (x, w), ends)), function(x, w), rtol=1e-4, atol=1e-5
    )


def test_the_gradient_of_what_is_placed() -> None:
    mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:DEVICES])
    rows = jax.NamedSharding(mesh, jax.P("x"))
    x = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)

    def loss(x: Any) -> Any:
        return (jnp.roll(x, 3, 0) * lax.cumsum(x)).sum() + (x[1:] ** 3 * x[:-1]).sum()

    placed = rs.jax.trace(loss, x, in_shardings=rows, mesh=mesh).propagate(goal="bytes")
    assert any(sharding.has_windows for sharding in placed.shardings.values())
    found = jax.jit(jax.grad(rs.jax.to_jax(placed)))(jax.device_put(x, rows))
    np.testing.assert_allclose(found, jax.grad(loss)(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("places", "least"),
    [
        (np.arange(64).reshape(8, 8)[[2, 0, 3, 1, 6, 5, 7, 4]].ravel(), 512),  # tiles that change places
        (np.arange(64).reshape(8, 8)[:, [3, 1, 0, 2, 7, 6, 4, 5]].ravel(), 0),  # rows in their tiles
        (np.clip(np.arange(64) + np.tile([-1, 2, 0, 1], 16), 0, 63), 128),  # rows near to where they were
    ],
)
def test_rows_in_an_order_that_is_known(places: Any, least: int) -> None:
    case = Case(lambda x: x[places], ((64, 16),), (("x", None),))
    placed, (compiled,), arrays = programs(case)
    busiest = max(received_bytes(collectives(compiled.as_text(), DEVICES), DEVICES))
    assert busiest == placed.received_bytes == least
    np.testing.assert_array_equal(compiled(*arrays), np.asarray(arrays[0])[places])


def test_a_loop_asks_where_plain_jit_does() -> None:
    """What a loop of unknown length sums to know whether to go on is summed once a turn, not before the loop too."""
    mesh = jax.make_mesh((DEVICES,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:DEVICES])
    end = jax.NamedSharding(mesh, jax.P("x"))
    x = jax.device_put(np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32), end)

    def function(x: Any) -> Any:
        smoothed = jax.lax.while_loop(lambda u: jnp.abs(u).sum() > 1, lambda u: 0.2 * (u + jnp.roll(u, 1, 0)), x)
        return jax.lax.while_loop(lambda u: u.max() < 0, lambda u: u + 1, smoothed)

    placed = rs.jax.trace(function, x, in_shardings=(end,), out_shardings=end, mesh=mesh).propagate()
    ways = [jax.jit(each, in_shardings=(end,), out_shardings=end) for each in (rs.jax.to_jax(placed), function)]
    ours, plain = (way.lower(x).compile() for way in ways)
    np.testing.assert_allclose(ours(x), plain(x), rtol=1e-4, atol=1e-6)
    received = [busiest_with_loops(program.as_text(), DEVICES) for program in (ours, plain)]
    assert received == [64 + 2 * 7, 64 + 2 * 7]


def test_gates_that_are_cut_receive_no_more_than_plain_jit() -> None:
    """Steps of an LSTM whose gates lie one after another in a dim that is cut: by no more axes than it is, each."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:DEVICES])

    def step(state: Any, row: Any, w: Any, u: Any) -> Any:
        hidden, cell = state
        put, forget, new, out = jnp.split(row @ w + hidden @ u, 4)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(put) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
        return (hidden, cell), hidden

    def function(x: Any, w: Any, u: Any) -> Any:
        return lax.scan(lambda state, row: step(state, row, w, u), (jnp.zeros(32), jnp.zeros(32)), x)[1]

    ends = tuple(jax.NamedSharding(mesh, jax.P(*spec)) for spec in ((), (None, "x"), (None, "x")))
    shapes = (8, 32), (32, 128), (32, 128)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    placed = rs.jax.trace(function, *arrays, in_shardings=ends, out_shardings=ends[1], mesh=mesh).propagate()
    ways = [jax.jit(each, in_shardings=ends, out_shardings=ends[1]) for each in (rs.jax.to_jax(placed), function)]
    ours, plain = (way.lower(*arrays).compile() for way in ways)
    arrays = [jax.device_put(array, end) for array, end in zip(arrays, ends, strict=True)]
    np.testing.assert_allclose(ours(*arrays), plain(*arrays), rtol=1e-3, atol=1e-4)
    received = [busiest_with_loops(program.as_text(), DEVICES) for program in (ours, plain)]
    assert received[0] == placed.received_bytes <= received[1]
