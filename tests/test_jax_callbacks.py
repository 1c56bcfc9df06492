"""Calls of Python with effects happen as often as in plain `jit`: once, on however many devices a program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax.experimental import io_callback  # noqa: E402
from jax_hlo import busiest_with_loops  # noqa: E402

import reshard as rs  # noqa: E402

pytestmark = pytest.mark.engine

SHAPE = (16, 4)
CALLS: list[Any] = []


def noted(value: Any) -> None:
    CALLS.append(np.asarray(value).tolist())


def doubled(value: Any) -> Any:
    noted(value)
    return np.asarray(value) * 2


def several(value: Any) -> Any:
    noted(value)
    return np.int8(7), np.asarray(value)[0] > 0, np.complex64(1 - 2j), np.asarray(value) + 1


def of_rows(x: Any, **said: Any) -> Any:
    return io_callback(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype), x, **said)


KINDS = tuple(
    jax.ShapeDtypeStruct(shape, dtype)
    for shape, dtype in [((), np.int8), ((4,), np.bool_), ((), np.complex64), (SHAPE, np.float32)]
)


def in_turns(x: Any) -> Any:
    def turn(count: Any, row: Any) -> tuple[Any, Any]:
        jax.debug.callback(noted, row[0])
        return count + 1, row * 2

    return lax.scan(turn, 0, x)[1]


def alone_in_turns(x: Any) -> Any:
    lax.scan(lambda _, row: (jax.debug.callback(noted, row), None), None, x)
    return x + 1


def until(x: Any) -> Any:
    def turn(state: Any) -> Any:
        jax.debug.callback(noted, state[1][0])
        return state[0] + 1, state[1] * 2

    return lax.while_loop(lambda state: state[0] < 3, turn, (0, x))[1]


def until_told(x: Any) -> Any:
    def is_less(state: Any) -> Any:
        jax.debug.callback(noted, state[1][1])
        return state[0] < 3

    return lax.while_loop(is_less, lambda state: (state[0] + 1, state[1] * 2), (0, x))[1]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "with a result": of_rows,
    "in order": lambda x: of_rows(of_rows(x, ordered=True), ordered=True),
    "unread": lambda x: (of_rows(x), x + 1)[1],
    "of several kinds": lambda x: io_callback(several, KINDS, x),
    "of all": lambda x: (jax.debug.callback(noted, x), x + 1)[1],
    "of a sum": lambda x: (jax.debug.callback(noted, x.sum()), x + 1)[1],
    "in turns": in_turns,
    "alone in turns": alone_in_turns,
    "until": until,
    "in a branch": lambda x: lax.cond(x[0, 0] < 99, lambda x: (jax.debug.callback(noted, x[1]), x)[1], lambda x: x, x),
}


def mesh_of_four() -> Any:
    return jax.make_mesh((2, 2), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_often_as_in_plain_jit(name: str) -> None:
    function, mesh = FUNCTIONS[name], mesh_of_four()
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(SHAPE), jax.NamedSharding(mesh, jax.P("x", "y")))
    placed = rs.jax.trace(function, x).propagate()
    (named,) = placed.without_rule
    assert f"{named} (" in str(placed)
    called, results = [], []
    for run in (jax.jit(function), jax.jit(rs.jax.to_jax(placed))):
        CALLS.clear()
        results.append(jax.tree.map(np.asarray, run(x)))
        jax.effects_barrier()
        called.append(sorted(map(str, CALLS)))
    theirs, ours = called
    assert ours == theirs
    assert theirs
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_a_condition_calls_once_more_than_turns() -> None:
    """Beside JAX without `jit`, which leaves such calls out."""
    x = np.arange(64, dtype=np.float32).reshape(SHAPE)
    placed = rs.jax.trace(until_told, x, in_shardings=jax.NamedSharding(mesh_of_four(), jax.P("x", "y"))).propagate()
    called = []
    for run in (until_told, jax.jit(rs.jax.to_jax(placed))):
        CALLS.clear()
        jax.block_until_ready(run(x))
        jax.effects_barrier()
        called.append(sorted(map(str, CALLS)))
    assert called[0] == called[1]
    assert len(called[0]) == 4


def test_a_result_goes_where_it_is_needed() -> None:
    """XLA sums it everywhere."""
    end = jax.NamedSharding(mesh_of_four(), jax.P("x", "y"))
    x = jax.device_put(np.ones(SHAPE, np.float32), end)
    placed = rs.jax.trace(of_rows, x, out_shardings=end).propagate(goal="bytes")
    programs = jax.jit(rs.jax.to_jax(placed)), jax.jit(of_rows, out_shardings=end)
    ours, theirs = (busiest_with_loops(each.lower(x).compile().as_text(), 4) for each in programs)
    assert ours == placed.received_bytes
    assert ours <= theirs
