"""Placed programs as functions of JAX: values, gradients, and bytes, on 8 devices."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax_functions import FUNCTIONS, GRADIENTS, scalar  # noqa: E402
from jax_hlo import busiest_with_loops, collectives, received_bytes  # noqa: E402
from llama import SMALL, layer, shardings, step  # noqa: E402
from programs import generate, reference  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import to_jax, trace  # noqa: E402
from reshard.propagation import Placement, Program  # noqa: E402
from reshard.propagation.own_parts import with_own_parts  # noqa: E402

pytestmark = pytest.mark.engine
MESH = rs.Mesh.of(x=2, y=4)


def drawn(rng: Random, shape: tuple[int, ...], mesh: rs.Mesh = MESH) -> rs.Sharding:
    """A sharding with each axis on a dim that it divides, or on none; the dims are open."""
    dims: list[list[str]] = [[] for _ in shape]
    left = list(shape)
    for axis in rng.sample(list(mesh.sizes), len(mesh.sizes)):
        fits = [dim for dim, size in enumerate(left) if size % mesh.sizes[axis] == 0]
        if fits and rng.random() < 0.8:
            dim = rng.choice(fits)
            dims[dim].append(axis)
            left[dim] //= mesh.sizes[axis]
    return rs.Sharding.of(mesh, *([*dim, "?"] for dim in dims))


def assert_close(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        if jnp.issubdtype(one.dtype, jnp.inexact):
            one, other = (np.asarray(array, np.float64) for array in (one, other))
            largest = np.abs(other[np.isfinite(other)]).max(initial=1)
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * largest)
        else:
            np.testing.assert_array_equal(one, other)


class Compiled:
    """A function compiled for the shardings of a placed one."""

    def __init__(self, function: Callable[..., Any], like: Any, arguments: Any) -> None:
        jitted = jax.jit(function, in_shardings=like.in_shardings, out_shardings=like.out_shardings)
        self.run = jitted.lower(*arguments).compile()
        self.arguments, self.text = jax.device_put(arguments, like.in_shardings), self.run.as_text()

    def results(self) -> Any:
        return self.run(*self.arguments)

    @property
    def received_bytes(self) -> int:
        """What the busiest device receives, counted from the program."""
        return max(received_bytes(collectives(self.text, 8), 8))


SUMS: dict[str, Callable[..., Any]] = {
    "of all": lambda x: x.sum(),
    "and its gradient": jax.value_and_grad(lambda x: jnp.tanh(x).sum() ** 2),
    "variance": lambda x: x.var(),
    "by mean and deviation": lambda x: (x - x.mean()) / (x.std() + 1),
    "in a branch": lambda x: jax.lax.cond(x.sum() > 0, jnp.sum, lambda x: (x * x).mean(), x),
    "three beside": lambda x: jnp.stack([x.sum(), (x * x).sum(), (x**3).sum()]),
}


@pytest.mark.parametrize("goal", ["bytes", "balanced"])
@pytest.mark.parametrize("sizes", [(2, 4), (2, 2, 2), (2, 2)], ids=str)
def test_sums_over_several_axes_are_all_reduces_of_all_of_them(sizes: tuple[int, ...], goal: str) -> None:
    names, count = ("x", "y", "z")[: len(sizes)], prod(sizes)
    mesh = jax.make_mesh(sizes, names, (jax.sharding.AxisType.Auto,) * len(names), devices=jax.devices()[:count])
    rows = jax.NamedSharding(mesh, jax.P(names, None))
    x = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
    for name, function in SUMS.items():
        ours = to_jax(trace(function, x, in_shardings=rows, mesh=mesh).propagate(goal=goal))
        received = []
        for run in (ours, function):
            compiled = jax.jit(run, in_shardings=rows, out_shardings=ours.out_shardings).lower(x).compile()
            assert_close(compiled(jax.device_put(x, rows)), jax.jit(function)(x))
            received.append(busiest_with_loops(compiled.as_text(), count))
        assert received[0] <= received[1], name


def placed_with(name: str, function: Callable[..., Any], arguments: Any) -> Placement:
    rng = Random(zlib.crc32(name.encode()))
    given = tuple(drawn(rng, argument.shape) if rng.random() < 0.7 else None for argument in arguments)
    return trace(function, *arguments, in_shardings=given, mesh=MESH).propagate()


SHIFTED = {"slice", "dynamic slice", "dynamic update", "concatenate", "rotate half", "pad", "own reduction"}
"""Of these the dims that shift are whole on every device, where XLA may send the border alone."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_bytes(name: str) -> None:
    function, draw = FUNCTIONS[name]
    arguments = draw()
    placed = placed_with(name, function, arguments)
    assert not placed.without_rule
    made = to_jax(placed)
    ours = Compiled(made, made, arguments)
    assert_close(ours.results(), jax.jit(function)(*arguments))
    if " while(" in ours.text or name == "choice" or not all(map(is_shared, placed.plans.values())):
        return
    assert ours.received_bytes == placed.received_bytes
    if name not in SHIFTED:
        assert ours.received_bytes <= Compiled(function, made, arguments).received_bytes


def is_shared(plan: rs.Plan) -> bool:
    """Whether every device has a part of a sum of partial values to combine.

    Of fewer elements than devices the other count takes fractions.
    """
    return not plan.source.unreduced or prod(plan.source.local_shape(plan.shape)) >= 8


FEW = (
    "matmul",
    "attention",
    "max min product",
    "embedding",
    "scatter add",
    "own derivative",
    "scan",
    "choice",
    "own reduction",
)
"""Gradients of these are taken of the placed function by default; of all on demand."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow]) for name in GRADIENTS]
)
def test_gradients_of_the_placed_function(name: str) -> None:
    function, draw = FUNCTIONS[name]
    arguments = draw()
    floating = tuple(n for n, argument in enumerate(arguments) if argument.dtype == np.float32)
    placed = placed_with(name, function, arguments)
    found = jax.jit(jax.grad(scalar(to_jax(placed)), floating))(*arguments)
    if name == "own derivative":  # the program has the function's operations, and their derivatives
        wanted = jax.grad(scalar(lambda x: 2 * x), floating)(*arguments)
    else:
        wanted = jax.jit(jax.grad(scalar(function), floating))(*arguments)
    assert_close(found, wanted)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "cumulative" else []) for name in GRADIENTS]
)
def test_programs_of_gradients(name: str) -> None:
    function, draw = FUNCTIONS[name]
    arguments = draw()
    floating = tuple(n for n, argument in enumerate(arguments) if argument.dtype == np.float32)
    gradient = jax.value_and_grad(scalar(function), floating)
    placed = placed_with(name, gradient, arguments)
    assert not placed.without_rule
    assert_close(jax.jit(to_jax(placed))(*arguments), jax.jit(gradient)(*arguments))


# What only a program of one device can say


def test_dims_that_the_shards_do_not_divide() -> None:
    def function(a: Any, b: Any) -> Any:
        c = jnp.concatenate([a, b])  # 7 rows
        return (c * 2).sum(0), c.max(0), (c @ c.T).sum(1).mean(), jnp.cumsum(c, 1)[:4]

    arguments = np.random.default_rng(3).normal(size=(4, 8)), np.random.default_rng(4).normal(size=(3, 8))
    arguments = tuple(array.astype(np.float32) for array in arguments)
    program = trace(function, *arguments, mesh=MESH)
    uneven = [value for value in program.values if 7 in value.shape]
    for value in uneven:
        dims = [
            ("y", "?") if size == 7 and dim == value.shape.index(7) else "?" for dim, size in enumerate(value.shape)
        ]
        program.constrain(value, rs.Sharding.of(MESH, *dims))
    placed = program.propagate()
    assert any(placed.sharding(value).local_shape(value.shape)[0] == 2 for value in uneven)
    made = to_jax(placed)
    assert_close(jax.jit(made)(*arguments), function(*arguments))
    found = jax.jit(jax.grad(scalar(made), (0, 1)))(*arguments)
    assert_close(found, jax.grad(scalar(function), (0, 1))(*arguments))


def test_sub_axes_and_two_meshes() -> None:
    other = rs.Mesh.of(a=4, b=2)
    program = Program({"mesh": MESH, "other": other})
    a = program.input("a", (8, 8), "float32", rs.parse_sharding('[{"y":(1)2}, {"y":(2)2}]', MESH))
    b = program.op("ij->ij", a, name="tanh")
    c = program.reshard(b, rs.Sharding.of(other, "b", "a"))
    program.output(program.op("ij->ij", c, name="neg"))
    placed = program.propagate()
    made = to_jax(placed)
    array = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    assert_close(jax.jit(made)(array), jnp.asarray(-np.tanh(array)))
    assert_close(jax.jit(jax.grad(lambda x: made(x).sum()))(array), jnp.asarray(np.tanh(array) ** 2 - 1))
    assert dict(made.mesh.shape) == {"x": 2, "y0": 2, "y1": 2}
    assert made.out_shardings.shard_shape((8, 8)) == (4, 2)


def test_devices_in_another_order() -> None:
    mesh = rs.Mesh.of(x=2, y=4, device_ids=[5, 3, 0, 6, 2, 7, 1, 4])
    function, draw = FUNCTIONS["attention"]
    arguments = draw()
    given = rs.Sharding.of(mesh, "x", None, None), rs.Sharding.of(mesh, "?", "y", "?"), None, None
    made = to_jax(trace(function, *arguments, in_shardings=given).propagate())
    result = jax.jit(made)(*arguments)
    assert_close(result, function(*arguments))
    assert [device.id for device in result.sharding.mesh.devices.flat] == [5, 3, 0, 6, 2, 7, 1, 4]


def test_one_number_that_is_unreduced_counts_once() -> None:
    mesh = rs.Mesh.of(x=2, y=2)
    program = Program(mesh)
    for reduction, dims in (("sum", ["y", None]), ("max", [None, None])):
        number = program.constant(3, (4, 2))
        program.constrain(number, rs.Sharding.of(mesh, *dims, unreduced="x", reduction=reduction))
        program.output(number, rs.Sharding.of(mesh, None, None))
    for result in jax.jit(to_jax(program.propagate()))():
        assert_close(result, np.full((4, 2), 3, np.float32))


def test_a_maximum_over_devices_and_its_gradient() -> None:
    rows = rs.Sharding.of(MESH, ("x", "y"), None)

    def function(a: Any) -> Any:
        return a.max(0) * a.min(0)

    array = np.random.default_rng(1).normal(size=(16, 24)).astype(np.float32)
    array[3] = array[12]  # the gradient is shared where two are largest
    placed = trace(function, array, in_shardings=rows, out_shardings=rs.Sharding.of(MESH, "y")).propagate()
    assert {plan.source.reduction for plan in placed.plans.values() if plan.source.unreduced} == {"max", "min"}
    made = to_jax(placed)
    ours = Compiled(made, made, (array,))
    assert_close(ours.results(), function(jnp.asarray(array)))
    assert ours.received_bytes == placed.received_bytes
    assert_close(jax.jit(jax.grad(scalar(made)))(array), jax.grad(scalar(function))(jnp.asarray(array)))


@pytest.mark.parametrize("between", ['[{"y"}], unreduced=max{"x"}', '[{}], unreduced=max{"x"}', '[{"y"}]'])
def test_a_maximum_combined_in_two_steps_has_its_gradient(between: str) -> None:
    text = f"""
sdy.mesh @mesh = <["x"=2, "y"=4]>
a = input : float32[16, 24] <@mesh, [{{"x", "y"}}, {{}}]>
m = max "ij->j" (a) <@mesh, {between}>
out = output (m) <@mesh, [{{"y"}}]>
"""
    made = to_jax(rs.Program.parse(text).propagate())
    array = np.random.default_rng(1).normal(size=(16, 24)).astype(np.float32)
    array[3, :5] = array[12, :5] = 9  # on two devices that differ along both axes
    assert_close(jax.jit(jax.grad(scalar(made)))(array), jax.grad(scalar(lambda a: a.max(0)))(jnp.asarray(array)))


def test_second_derivatives() -> None:
    array = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)

    def function(a: Any) -> Any:
        return jnp.tanh(a @ a.T).sum()

    made = to_jax(trace(function, array, in_shardings=rs.Sharding.of(MESH, "x", "y")).propagate())

    def twice(f: Any) -> Any:
        return jax.grad(lambda a: (jax.grad(f)(a) ** 2).sum())

    assert_close(jax.jit(twice(made))(array), jax.jit(twice(function))(array))
    (_, found), (_, wanted) = (jax.jvp(f, (array,), (array * 0.5,)) for f in (made, function))
    assert_close(found, wanted)


def divides(sharding: rs.Sharding, shape: tuple[int, ...]) -> bool:
    boxes = {sharding.box(device, shape).shape for device in sharding.mesh.devices}
    return len(boxes) == 1 and all(size % sharding.layout.shards(dim) == 0 for dim, size in enumerate(shape))


@pytest.mark.parametrize(
    "seeds", [(*range(12), 121), pytest.param(range(12, 150), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_programs_written_by_hand(seeds: Sequence[int]) -> None:
    """In that of 121 what cuts a part of a result cuts another dim of an operand already."""
    ran = 0
    for seed in seeds:
        program = generate(seed)
        placed = program.propagate()
        ends = [*placed.inputs, *placed.outputs]
        if not all(divides(placed.sharding(value), value.shape) for value in ends):
            with pytest.raises(rs.ReshardError, match="divisible"):
                to_jax(placed)
            continue
        made = to_jax(placed)
        rng = np.random.default_rng(seed)
        arrays = {value.name: rng.normal(size=value.shape).astype(np.float32) for value in placed.inputs}
        wanted = reference(program, arrays)
        found = jax.jit(made)(*arrays.values())
        found = found if isinstance(found, tuple) else (found,)
        for value, one in zip(placed.outputs, found, strict=True):
            np.testing.assert_allclose(one, wanted[value.name], rtol=1e-3, atol=1e-3)
        ran += 1
    assert ran > len(seeds) // 4


def test_operations_written_by_hand() -> None:
    program = Program(MESH)
    a = program.input("a", (8, 16), "float32", rs.Sharding.of(MESH, "y", "x"))
    table = program.input("table", (24, 16), "float32", rs.Sharding.of(MESH, "y", None))
    rows = program.input("rows", (8,), "int32", rs.Sharding.of(MESH, "x"))
    taken = program.take(table, rows)
    both = program.op("ij,ij->ij", a, taken, name="add")
    parts = program.concatenate([both, a], 0)
    cut = program.pad(program.slice(parts, (2, 0), (10, 16)), (0, 1), (0, 2), 5.0)
    soft = program.op("ij->ij", cut, name="softmax", replicated=["j"])
    scaled = program.op("ij,->ij", soft, program.constant(2.0, ()), name="mul")
    program.output(program.op("ij->j", scaled, name="max"), rs.Sharding.of(MESH, None))
    placed = program.propagate()
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(8, 16)).astype(np.float32),
        "table": rng.normal(size=(24, 16)).astype(np.float32),
        "rows": rng.integers(0, 24, 8).astype(np.int32),
    }
    made = to_jax(placed)
    (wanted,) = rs.numpy.run_program(placed, arrays).values()
    assert_close(jax.jit(made)(*arrays.values()), jnp.asarray(wanted))


def test_refusals() -> None:
    def of(shape: tuple[int, ...], sharding: rs.Sharding, *more: rs.Sharding) -> Any:
        program = Program(MESH)
        a = program.input("a", shape, "float32", sharding)
        for number, one in enumerate(more):
            a = program.reshard(a, one, f"b{number}")
        program.output(a)
        return program.propagate()

    reverse = rs.Mesh.of(x=2, y=4, device_ids=range(7, -1, -1))
    far = rs.Mesh.of(z=64)
    partial = rs.Sharding.of(MESH, None, unreduced=["x"])
    cases = [
        ("not-divisible", of((6,), rs.Sharding.of(MESH, "y")), "value a: dim 0"),
        ("cannot-express", of((8,), rs.Sharding.of(MESH, "y"), rs.Sharding.of(reverse, "y")), "another order"),
        ("cannot-express", of((8,), partial), "value a is unreduced"),
        ("unknown-device", of((64,), rs.Sharding.of(far, "z"), rs.Sharding.of(MESH, "y")), "device"),
    ]
    for code, placed, text in cases:
        with pytest.raises(rs.ReshardError) as caught:
            to_jax(placed)
        assert text in str(caught.value)
        assert caught.value.code == code or far in placed.meshes.values()
    made = to_jax(trace(lambda p: p["a"] + 1, {"a": np.zeros(8, np.float32)}, mesh=MESH).propagate())
    for code, argument in (("bad-argument", {"b": 1}), ("bad-shape", {"a": np.zeros(4)})):
        with pytest.raises(rs.ReshardError) as caught:
            made(argument)
        assert caught.value.code == code


# A layer of Llama 3 at a sixteenth of its size


@pytest.mark.parametrize(
    "ways",
    [
        {},
        pytest.param({"sequence": "model"}, marks=pytest.mark.slow),
        pytest.param({"fully": "data"}, marks=pytest.mark.slow),
        pytest.param({"sequence": "model", "fully": "data"}, marks=pytest.mark.slow),
        pytest.param({"fully": "data", "priorities": True}, marks=pytest.mark.slow),
    ],
    ids=lambda ways: " ".join(ways) or "plain",
)
def test_a_layer_of_llama_forward_and_backward(ways: dict[str, Any]) -> None:
    mesh = rs.Mesh.of(data=2, model=4)
    given = shardings(mesh, **ways)
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.normal(size=sizes) / np.sqrt(sizes[0])).astype(np.float32) for name, sizes in SMALL.shapes.items()
    }
    arguments = weights, rng.normal(size=SMALL.x).astype(np.float32)
    placed = trace(step, *arguments, in_shardings=given, out_shardings=(None, given)).propagate()
    made = to_jax(placed)
    ours, theirs = (Compiled(one, made, arguments) for one in (made, step))
    assert_close(ours.results(), jax.jit(step)(*arguments))
    apart = sum(plan.received_bytes for plan in placed.plans.values() if not is_shared(plan))  # the loss, a scalar
    assert 0 <= placed.received_bytes - ours.received_bytes <= apart < 32
    assert placed.received_bytes < theirs.received_bytes
    assert "remat" not in ours.text


def test_a_stack_of_layers_by_scan_forward_and_backward() -> None:
    mesh = rs.Mesh.of(data=2, model=4)
    each, x = shardings(mesh)
    given = {name: rs.Sharding(mesh, (rs.DimSharding(), *one.dims)) for name, one in each.items()}, x
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.normal(size=(2, *sizes)) / np.sqrt(sizes[0])).astype(np.float32)
        for name, sizes in SMALL.shapes.items()
    }
    arguments = weights, rng.normal(size=SMALL.x).astype(np.float32)

    def train(weights: Any, x: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            return (jax.lax.scan(lambda h, one: (jax.checkpoint(layer)(one, h), None), x, weights)[0] ** 2).mean()

        return jax.value_and_grad(loss)(weights, x)

    placed = trace(train, *arguments, in_shardings=given, out_shardings=(None, given[0])).propagate()
    assert not placed.without_rule
    assert_close(jax.jit(to_jax(placed))(*arguments), jax.jit(train)(*arguments))


def test_a_placed_program_makes_its_own_function() -> None:
    program = rs.Program(rs.Mesh.of(x=2, y=4))
    x = program.input("x", (8, 8), "float32", rs.Sharding.of(program.mesh, "x", None))
    w = program.input("w", (8, 8), "float32", rs.Sharding.of(program.mesh, None, "y"))
    program.output(program.op("bd,df->bf", x, w))
    function = rs.jax.to_jax(program.propagate())
    arrays = [np.arange(64, dtype="float32").reshape(8, 8), np.eye(8, dtype="float32")]
    assert np.array_equal(jax.jit(function)(*arrays), arrays[0])


def test_reshards_that_are_alike_are_traced_once() -> None:
    """Two tensors are gathered, each by itself: one function does it for both, and one does what its gradient does."""
    cut, whole = rs.Sharding.of(MESH, "y", None), rs.Sharding.of(MESH, None, None)
    program = Program(MESH)
    for name in "ab":
        program.output(program.input(name, (256, 256), "float32", cut), whole)
    placed = program.propagate()
    assert [[step.kind for step in plan.steps] for plan in placed.plans.values()] == [["AllGather"], ["AllGather"]]
    function, shape = to_jax(placed), jax.ShapeDtypeStruct((256, 256), np.float32)
    slopes = jax.grad(lambda a, b: sum(out.sum() for out in function(a, b)), argnums=(0, 1))
    for run, kind in ((function, "all_gather"), (slopes, "reduce_scatter")):
        text = jax.jit(run).lower(shape, shape).as_text()
        assert len(re.findall(rf"= \"?stablehlo\.{kind}\b", text)) == 1


def test_a_part_of_what_is_made_of_little_is_made_by_itself() -> None:
    """By hand: of 256 x 1024 ones each device of four reads 256 KiB in the second product, and makes them of 2 KiB."""
    mesh = rs.Mesh.of(x=4)
    whole, cut = rs.Sharding.of(mesh, None, None), rs.Sharding.of(mesh, None, "x")
    program = Program(mesh)
    tokens = program.input("tokens", (256,), "int32", rs.Sharding.of(mesh, None))
    classes = program.input("classes", (1024,), "int32", rs.Sharding.of(mesh, None))
    weights = program.input("weights", (256, 1024), "float32", cut)
    ones = program.op("i,j->ij", tokens, classes, name="equal", dtype="bool")
    ones = program.constrain(program.op("ij->ij", ones, name="cast", dtype="float32"), whole)
    program.output(ones, whole, "ones")
    program.output(program.op("ij,ij->ij", ones, weights), cut, "chosen")
    placed = program.propagate()
    parts = with_own_parts(placed)
    sizes = {v.name: v.dtype.itemsize * prod(parts.sharding(v).local_shape(v.shape)) for v in parts.plans}
    assert max(sizes.values()) == 1 << 10, "classes are cut, and nothing else"
    drawn = np.arange(256, dtype=np.int32) * 3, np.arange(1024, dtype=np.int32), np.ones((256, 1024), np.float32)
    for found in jax.jit(to_jax(placed))(*drawn):
        np.testing.assert_array_equal(found, drawn[0][:, None] == drawn[1])


def test_elements_of_one_value_are_cut_by_one_kernel() -> None:
    """Three rows of a table begin where tables say, so that a compiler knows of none where it is; of two it does."""
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = lambda count: lambda table: [(1 + n) * table[n] for n in range(count)]  # noqa: E731
    for count, known in ((2, 2), (3, 0)):
        on, out = rs.Sharding.of(MESH, None, None), rs.Sharding.of(MESH, None)
        placed = to_jax(trace(rows(count), table, in_shardings=(on,), out_shardings=out).propagate())
        text = str(jax.make_jaxpr(placed)(table))
        assert len(re.findall(r"dynamic_slice\[slice_sizes=\(1, 4\)\] \w+ \d+:i32", text)) == known
        for number, row in enumerate(jax.jit(placed)(table)):
            np.testing.assert_array_equal(row, (1 + number) * table[number])


def test_products_copy_no_operand_to_take_it_apart() -> None:
    """Weights of `n h d` are summed over `n h` as they lie, and over `d` as a matrix that is read the other way."""
    x, weights, y = (np.ones(sizes, np.float32) for sizes in ((8, 2, 4), (2, 4, 64), (8, 64)))
    forth = lambda x, weights: jnp.einsum("bnh,nhd->bd", x, weights)  # noqa: E731
    back = lambda y, weights: jnp.einsum("bd,nhd->bnh", y, weights)  # noqa: E731
    assert "(([2, 1], [1, 0]), ([], []))" in str(jax.make_jaxpr(forth)(x, weights))
    for function, of_batch, summed in ((forth, x, "(([1], [0]), ([], []))"), (back, y, "(([1], [1]), ([], []))")):
        on = rs.Sharding.of(MESH, "y", *[None] * (of_batch.ndim - 1)), rs.Sharding.of(MESH, None, None, None)
        placed = to_jax(trace(function, of_batch, weights, in_shardings=on).propagate())
        assert summed in str(jax.make_jaxpr(placed)(of_batch, weights))
        plain, ours = (Compiled(each, placed, (of_batch, weights)) for each in (function, placed))
        assert ("transpose(" in plain.text, "transpose(" in ours.text) == (True, False)
        assert_close(ours.results(), plain.results())


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("spec", [("x",), ("y",), (("y", "x"),), (None,)])
def test_keys_of_random_numbers_may_come_in_parts_and_go_in_parts(implementation: str, spec: Any) -> None:
    """Every device has all of them in between, whatever is said of them there."""
    devices = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    on = jax.NamedSharding(devices, jax.P(*spec))
    keys = jax.device_put(jax.random.split(jax.random.key(3, impl=implementation), 8), on)

    def drawn_from(keys: Any) -> Any:
        held = jax.lax.with_sharding_constraint(jax.random.clone(keys), jax.NamedSharding(devices, jax.P("y")))
        return jax.vmap(lambda key: jax.random.uniform(key, (4,)))(held), keys[2:6]

    placed = trace(drawn_from, keys, out_shardings=jax.NamedSharding(devices, jax.P("x"))).propagate()
    assert placed.sharding("keys") == rs.jax.sharding_of(on, MESH, 1)
    (numbers, some), (same_numbers, same) = jax.jit(to_jax(placed))(keys), jax.jit(drawn_from)(keys)
    np.testing.assert_array_equal(numbers, same_numbers)
    np.testing.assert_array_equal(jax.random.key_data(some), jax.random.key_data(same))
    assert {shard.data.shape for shard in some.addressable_shards} == {(2,)}


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("int32", np.full(8, 2.7)),
        ("float32", np.full(8, 1 + 5j)),
        ("int8", np.full(8, 300)),
        ("bool", np.full(8, 2)),
        ("float32", np.full(8, None)),
    ],
)
def test_arguments_that_would_lose_are_refused(dtype: str, given: Any) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    traced = rs.jax.trace(lambda x: x, jax.ShapeDtypeStruct((8,), dtype), in_shardings=jax.P("x"), mesh=mesh)
    placed = rs.jax.to_jax(traced.propagate())
    with pytest.raises(rs.ReshardError, match=f"must be of {dtype}") as refusal:
        placed(given)
    assert refusal.value.code == "bad-argument"
    np.testing.assert_array_equal(placed(np.ones(8, dtype)), np.ones(8, dtype))


@pytest.mark.parametrize("number", [2.5, 2**40, True, "1"])
def test_numbers_for_inputs_are_those_of_their_dtype(number: Any) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    traced = rs.jax.trace(
        lambda x, n: x + n, jax.ShapeDtypeStruct((8,), "int32"), 3, in_shardings=(jax.P("x"), jax.P()), mesh=mesh
    )
    placed, array = rs.jax.to_jax(traced.propagate()), np.arange(8, dtype=np.int32)
    if number is True:
        np.testing.assert_array_equal(placed(array, number), array + 1)
        return
    with pytest.raises(rs.ReshardError, match="must be of int32"):
        placed(array, number)


def test_what_is_no_function_is_not_traced() -> None:
    for given in (None, "f", 3):
        with pytest.raises(rs.ReshardError, match="what is traced must be a function") as refusal:
            rs.jax.trace(given)
        assert refusal.value.code == "bad-argument"


@pytest.mark.parametrize("given", ["a", object(), {"x": np.array(["a"])}, np.zeros(2, object)])
def test_what_is_no_array_is_not_traced(given: Any) -> None:
    with pytest.raises(rs.ReshardError, match="takes arrays alone") as refusal:
        rs.jax.trace(lambda x: x, given)
    assert refusal.value.code == "bad-argument"
