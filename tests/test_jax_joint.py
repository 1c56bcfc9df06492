"""Small reshards of one kind go as one collective where none has to wait for another, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import oracle
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import programs, to_jax, trace  # noqa: E402

pytestmark = pytest.mark.engine
MESH = rs.Mesh.of(x=2, y=4)
SHAPES = ((8, 16), (16, 8), (24, 8))


def on(*dims: Any, **fields: Any) -> rs.Sharding:
    return rs.Sharding.of(MESH, *dims, **fields)


def moving(source: rs.Sharding, target: rs.Sharding, shapes: Any = SHAPES) -> Any:
    """The placed program that brings tensors from one sharding to another, each by itself."""
    program = rs.Program(MESH)
    for number, shape in enumerate(shapes):
        value = program.input(f"a{number}", shape, "float32", source)
        program.output(program.op("ij->ij", value, name="copy"), target)
    return program.propagate()


def summing(target: rs.Sharding) -> Any:
    """Products of which every device along y has a part of the sum."""
    program = rs.Program(MESH)
    for number, (rows, columns) in enumerate(SHAPES):
        left = program.input(f"a{number}", (rows, 64), "float32", on(None, "y"))
        right = program.input(f"b{number}", (64, columns), "float32", on("y", None))
        program.output(program.op("ik,kj->ij", left, right), target)
    return program.propagate()


def compiled(placed: Any, arrays: Any) -> tuple[Any, Any, Counter[str], int]:
    """The results, the function, the collectives by kind, and what the busiest device receives."""
    made = to_jax(placed)
    program = jax.jit(made, in_shardings=made.in_shardings, out_shardings=made.out_shardings).lower(*arrays).compile()
    calls = collectives(program.as_text(), MESH.size)
    results = program(*jax.device_put(tuple(arrays), made.in_shardings))
    return results, made, Counter(call.kind for call in calls), max(received_bytes(calls, MESH.size))


def drawn(placed: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, value.shape).astype(value.dtype.name) for value in placed.inputs]


@pytest.mark.parametrize(
    ("placed", "kinds"),
    [
        (lambda: moving(on("y", None), on(None, None)), {"all-gather": 1}),
        (lambda: moving(on(("y", "x"), None), on("y", None)), {"all-gather": 1}),
        (lambda: moving(on("y", None), on(None, "y")), {"all-to-all": 1}),
        (lambda: moving(on("y", None), on("x", "y")), {"collective-permute": 2}),
        (lambda: summing(on(None, None)), {"reduce-scatter": 1, "all-gather": 1}),
        (lambda: summing(on("x", "y")), {"reduce-scatter": 1}),
    ],
    ids=["gather", "gather along a minor axis", "all to all", "exchange", "sum", "scattered sum"],
)
def test_three_go_as_one(placed: Any, kinds: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    placed = placed()
    arrays = drawn(placed)
    results, made, counts, received = compiled(placed, arrays)
    assert counts == kinds
    assert received == placed.received_bytes
    expected = [a @ b for a, b in zip(arrays[::2], arrays[1::2], strict=True)] if "reduce" in str(kinds) else arrays
    devices = jax.devices()
    for result, array, value in zip(results, expected, placed.outputs, strict=True):
        tiles = oracle.tiles(array, placed.sharding(value))
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(shard.data, tiles[devices.index(shard.device)])
    monkeypatch.setattr(programs, "SMALL_BYTES", 0)
    apart, _, more, still = compiled(placed, arrays)
    assert still == received
    assert more == {kind: 3 * count for kind, count in counts.items()}
    for one, other in zip(results, apart, strict=True):
        np.testing.assert_array_equal(one, other)

    def total(function: Any) -> Any:
        return jax.jit(jax.grad(lambda *given: sum((a**2).sum() for a in function(*given)), range(len(arrays))))

    slopes = total(lambda *given: jax.tree.leaves(made(*given)))(*arrays)
    wanted = [2 * array for array in arrays]
    if "reduce" in str(kinds):
        wanted = total(lambda *given: [a @ b for a, b in zip(given[::2], given[1::2], strict=True)])(*arrays)
    for one, other in zip(slopes, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shapes", [SHAPES, ((256, 512), (512, 256))], ids=["together", "by themselves"])
@pytest.mark.parametrize("target", [on(None, "y"), on(None, None)], ids=["all to all", "gather"])
def test_one_kernel_cuts_parts_at_all_places(target: rs.Sharding, shapes: Any) -> None:
    """No part is cut at a place that the compiler knows: such a place is a kernel for itself."""
    made = to_jax(moving(on("y", None), target, shapes))
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    text = jax.jit(made).lower(*arrays).compile().as_text()
    assert " slice(" not in text


def test_large_tiles_go_by_themselves() -> None:
    placed = moving(on("y", None), on(None, None), [(8, 16), (256, 256), (512, 128)])
    _, _, counts, received = compiled(placed, drawn(placed))
    assert counts == {"all-gather": 3}
    assert received == placed.received_bytes


def test_none_waits_for_what_comes_later() -> None:
    """Of two gathers the second is of what the first leads to; a third, which is ready, goes with the first."""
    program = rs.Program(MESH)
    a, b = (program.input(name, (8, 8), "float32", on("y", None)) for name in "ab")
    whole = program.reshard(a, on(None, None))
    cut = program.reshard(program.op("ij->ij", whole, name="tanh"), on("y", None))
    again = program.reshard(program.op("ij->ij", cut, name="neg"), on(None, None))
    program.output(again, on(None, None))
    program.output(program.reshard(b, on(None, None)), on(None, None))
    placed = program.propagate()
    gathers = [plan for plan in placed.plans.values() if plan.received_bytes]
    (ours, other), _, counts, _ = compiled(placed, drawn(placed))
    assert counts == {"all-gather": len(gathers) - 1}
    np.testing.assert_allclose(ours, -np.tanh(drawn(placed)[0]), rtol=1e-5)
    np.testing.assert_array_equal(other, drawn(placed)[1])


def test_small_operations_go_ahead_of_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is gathered where it is multiplied in, of what a small operation makes, but the last, of the product."""
    program = rs.Program(MESH)
    product = program.input("x", (8, 16), "float32", on(None, None))
    for number in range(3):
        row = program.op("j->j", program.input(f"a{number}", (16,), "float32", on("y")), name="neg")
        whole = program.reshard(program.reshard(row, on("y")), on(None))
        product = program.reshard(program.op("ij,j->ij", product, whole), on(None, None))
    cut = program.reshard(program.op("ij->i", product, name="sum"), on("y"))
    program.output(program.reshard(program.op("i->i", cut, name="neg"), on(None)), on(None))
    placed = program.propagate()
    assert sum(plan.received_bytes > 0 for plan in placed.plans.values()) == 4
    x, *rows = drawn(placed)
    result, _, counts, _ = compiled(placed, [x, *rows])
    assert counts == {"all-gather": 2}
    np.testing.assert_array_equal(result, (x * np.prod(rows, axis=0)).sum(1))
    monkeypatch.setattr(programs, "SMALL_BYTES", 0)
    _, _, counts, _ = compiled(placed, [x, *rows])
    assert counts == {"all-gather": 4}


@pytest.mark.parametrize("is_read_in_parts", [False, True])
def test_a_small_sum_is_made_whole_where_its_parts_are_gathered(*, is_read_in_parts: bool) -> None:
    """The root of a mean of squares, one row on each device, of which both are told to be a step of 3 rows."""
    program = rs.Program(MESH)
    x = program.input("x", (8, 16), "float32", on("x", "y"))
    total = program.reshard(program.op("ij->i", program.op("ij->ij", x, name="square"), name="sum"), on(("x", "y")))
    mean = program.op("i->i1", program.op("i,->i", total, program.constant(16.0, (), "float32"), name="div"))
    root = program.reshard(program.op("i1->i1", mean, name="sqrt"), on(("x", "y"), None))
    program.output(program.op("ij,i1->ij", x, program.reshard(root, on("x", None)), name="div"), on("x", "y"))
    if is_read_in_parts:
        program.output(program.op("i->i", total, name="neg"), on(("x", "y")))
    placed = program.propagate()
    (array,) = drawn(placed)
    steps = [step.kind for plan in placed.plans.values() for step in plan.steps if step.received_bytes]
    assert steps == ["ReduceScatter", "AllGather"]
    results, made, counts, received = compiled(placed, [array])
    assert counts == ({"reduce-scatter": 1, "all-gather": 1} if is_read_in_parts else {"all-reduce": 1})
    assert received == placed.received_bytes == 24

    def normed(x: Any) -> Any:
        return x / jnp.sqrt((x**2).sum(1, keepdims=True) / 16)

    first = results[0] if is_read_in_parts else results
    np.testing.assert_allclose(first, normed(array), rtol=1e-6)
    slopes = jax.jit(jax.grad(lambda x: (jax.tree.leaves(made(x))[0] ** 3).sum()))(array)
    np.testing.assert_allclose(slopes, jax.grad(lambda x: (normed(x) ** 3).sum())(array), rtol=1e-4, atol=1e-4)


def test_a_block_that_is_made_again_has_one_barrier() -> None:
    """All that goes into it meets there, the gradient too, so that it is not made before that has come so far."""
    mesh = MESH

    def loss(w: Any, x: Any) -> Any:
        for each in w:
            x = jax.checkpoint(lambda x, each=each: jnp.tanh(jnp.sin(x @ each)))(x)
        return (x**2).sum()

    rng = np.random.default_rng(0)
    arguments = [rng.normal(size=(8, 8)).astype(np.float32) for _ in range(3)], rng.normal(size=(4, 8)).astype("f4")
    given = on(None, "y"), on("x", None)
    placed = trace(jax.grad(loss), *arguments, in_shardings=given, out_shardings=given[0], mesh=mesh).propagate()
    made = to_jax(placed)
    text = jax.jit(made).lower(*arguments).as_text()
    barriers = [line for line in text.splitlines() if "optimization_barrier" in line]
    assert len(barriers) == 3
    assert all(line.count("tensor<") >= 3 for line in barriers)  # a weight, the block's argument, and the gradient
    found = jax.jit(made)(*arguments)
    wanted = jax.grad(loss)(*arguments)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    program = rs.Program.parse(placed.text())
    leaves = dict(zip((value.name for value in placed.inputs), jax.tree.leaves(arguments), strict=True))
    results = rs.numpy.run_program(program.propagate(), leaves)
    for one, other in zip(results.values(), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert sum(operation.attribute("barrier") == 1 for operation in program.operations) >= 9


def test_what_is_made_again_in_a_loop_is_not_kept() -> None:
    """A layer keeps three tensors for its gradient, or the one that goes into it: temporaries as XLA allots them."""

    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(jnp.sin(jnp.cos(x @ w)) @ w.T)

    def gradient(layer: Any) -> Any:
        return jax.grad(lambda w, x: (jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0] ** 2).sum())

    weights, x = jax.ShapeDtypeStruct((16, 64, 128), "float32"), jax.ShapeDtypeStruct((2048, 64), "float32")
    given = on(None, None, "y"), on("x", None)
    temporaries = {}
    for is_made_again in (False, True):
        function = gradient(jax.checkpoint(layer) if is_made_again else layer)
        placed = trace(function, weights, x, in_shardings=given, out_shardings=given[0], mesh=MESH).propagate()
        made = to_jax(placed)
        for way, each in {"jit": function, "placed": made}.items():
            jitted = jax.jit(each, in_shardings=made.in_shardings, out_shardings=made.out_shardings)
            memory = jitted.lower(weights, x).compile().memory_analysis()
            temporaries[way, is_made_again] = memory.temp_size_in_bytes
    assert temporaries["placed", True] < 0.6 * temporaries["placed", False]
    for is_made_again in (False, True):
        assert temporaries["placed", is_made_again] < 1.1 * temporaries["jit", is_made_again], temporaries
