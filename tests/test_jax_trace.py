"""Programs from functions of JAX: what is traced, and how shardings go through it."""

from __future__ import annotations

from typing import Any, NamedTuple

import blocks
import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from effort import calls_of  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_functions import attention  # noqa: E402
from llama import REAL, layer, shardings, step  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import mesh_of, trace  # noqa: E402
from reshard.jax.tracing.evaluation import numbers_of, values_of  # noqa: E402
from reshard.propagation import Program  # noqa: E402

pytestmark = pytest.mark.engine
MESH = rs.Mesh.of(data=2, model=4)


def on(*dims: Any, mesh: rs.Mesh = MESH) -> rs.Sharding:
    return rs.Sharding.of(mesh, *dims)


def shape(*sizes: int, dtype: str = "float32") -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)


def texts(placed: Any, name: str) -> list[str]:
    """The shardings of the results of all operations of a name."""
    return [placed.sharding(op.result).text() for op in placed.operations if op.name == name]


def mlp(x: Any, up: Any, down: Any) -> Any:
    return jnp.tanh(x @ up) @ down


def test_a_program_line_by_line() -> None:
    program = trace(mlp, shape(8, 4), shape(4, 16), shape(16, 4), in_shardings=(on("data", None), None, None))
    assert str(program).splitlines() == [
        'sdy.mesh @mesh = <["data"=2, "model"=4]>',
        'x = input : float32[8, 4] <@mesh, [{"data"}, {}]>',
        "up = input : float32[4, 16]",
        "down = input : float32[16, 4]",
        'einsum_3 = einsum "l0 c0, c0 r1 -> l0 r1" (x, up) : float32[8, 16]',
        'tanh_4 = tanh "d0 d1 -> d0 d1" (einsum_3) : float32[8, 16]',
        'einsum_5 = einsum "l0 c0, c0 r1 -> l0 r1" (tanh_4, down) : float32[8, 4]',
        "out = output (einsum_5) : float32[8, 4]",
    ]
    again = Program.parse(str(program))
    assert str(again) == str(program)
    assert again.propagate().received_bytes == program.propagate().received_bytes


def test_what_numpy_knows_runs_there_too() -> None:
    def function(x: Any, up: Any, down: Any) -> Any:
        y = mlp(x, up, down) / 2 - x[:, :1]
        return jnp.concatenate([jnp.cumsum(y, 1), jnp.maximum(y, 0).reshape(8, 2, 2).sum(2)], 1), jnp.exp(y.max(0))

    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=size).astype(np.float32) for size in ((8, 4), (4, 16), (16, 4))]
    given = on("data", None), on(None, "model"), on("model", None)
    placed = trace(function, *arrays, in_shardings=given).propagate()
    found = rs.numpy.run_program(placed, dict(zip(("x", "up", "down"), arrays, strict=True)))
    for one, wanted in zip(found.values(), function(*arrays), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-5)
    pairs = trace(lambda x: lax.sort((x, -x), num_keys=1)[1], shape(8), in_shardings=on("data")).propagate()
    with pytest.raises(rs.ReshardError, match="sort_together is not known here"):
        rs.numpy.run_program(pairs, {"x": np.ones(8, np.float32)})


def test_complex_numbers_and_gradients_of_choices_run_on_numpy() -> None:
    cases: list[tuple[Any, Any]] = [
        (lambda x: x * (1 + 2j) + jnp.full((8,), 3j), np.arange(8, dtype=np.complex64)),
        (jax.grad(lambda x: lax.cond(x.sum() > 0, jnp.sin, lambda a: a * 2, x).sum()), np.arange(8, dtype=np.float32)),
    ]
    for function, array in cases:
        program = trace(function, array, in_shardings=on("data"))
        for each in (program, Program.parse(str(program))):
            (result,) = rs.numpy.run_program(each.propagate(), {each.inputs[0].name: array}).values()
            np.testing.assert_allclose(result, function(array), rtol=1e-5)


def test_loops_and_choices_are_printed_as_blocks() -> None:
    """The text, which `test_blocks` and `test_torch_programs` read back and run."""

    def function(x: Any, w: Any) -> Any:
        def body(h: Any, u: Any) -> Any:
            h = jnp.tanh(h @ u)
            h = lax.cond(h.sum() > 0, lambda a: a * 2, lambda a: -a, h)
            return h, h.max(0)

        h, rows = lax.scan(body, x, w)
        return lax.while_loop(lambda h: jnp.abs(h).sum() > 1, lambda h: h * 0.5, h), rows

    given = rs.Sharding.of(blocks.MESH, "x", "y"), None
    program = trace(function, shape(4, 4), shape(3, 4, 4), in_shardings=given)
    assert str(program) == blocks.TRACED
    assert str(Program.parse(str(program))) == str(program)
    _, arrays, wanted = blocks.CASES["traced"]()
    results = jax.jit(rs.jax.to_jax(program.propagate()))(*arrays.values())
    for result, right in zip(results, wanted.values(), strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-5)


def test_a_program_read_from_its_text_runs_on_both_engines() -> None:
    def function(x: Any, y: Any) -> Any:
        inside = jnp.where((x > 0) & (y <= 1), jnp.sin(x) * jax.scipy.special.erf(y), jnp.clip(y, -1, 0.5))
        ends = lax.pad(x[:, -1:], np.float32(3), ((0, 0, 0), (2, 1, 0))), lax.cummax(x, 1) + jnp.cumprod(y, 0)
        return inside % 2, jnp.isfinite(x), jnp.round(x).astype(jnp.int32) // 2, x[:, -1] ** 3 + jnp.arange(8), *ends

    arrays = [np.random.default_rng(seed).normal(size=(8, 4)).astype(np.float32) for seed in (0, 1)]
    program = trace(function, *arrays, in_shardings=(on("data", "?"), on("?", "model")))
    assert {"pick", "put", "iota", "integer_pow", "round"} <= {operation.name for operation in program.operations}
    placed = Program.parse(str(program)).propagate()
    wanted = function(*arrays)
    ours = rs.numpy.run_program(placed, dict(zip("xy", arrays, strict=True))).values()
    for results in (ours, jax.jit(rs.jax.to_jax(placed))(*arrays)):
        for one, other in zip(results, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_megatron_from_one_weight_each() -> None:
    placed = trace(
        mlp,
        shape(8, 4),
        shape(4, 16),
        shape(16, 4),
        in_shardings=(on("data", None), on("?", "model"), None),
        out_shardings=on("data", None),
    ).propagate()
    assert placed.sharding("down").text() == '[{"model"}, {}]'
    assert texts(placed, "tanh") == ['[{"data"}, {"model"}]']
    (plan,) = placed.plans.values()
    assert [one.kind for one in plan.steps] == ["AllReduce"]
    assert placed.received_bytes == 2 * 3 * (4 * 4 * 4) // 4


def test_heads_of_attention_go_all_the_way() -> None:
    heads = on("?", "model", "?")
    placed = trace(
        attention,
        shape(4, 8, 16),
        *[shape(16, 4, 8)] * 3,
        in_shardings=(on("data", None, None), heads, None, None),
    ).propagate()
    assert placed.received_bytes == 0
    assert placed.sharding("wv").text() == '[{}, {"model"}, {}]'
    assert placed.sharding("out").text() == '[{"data"}, {}, {"model"}, {}]'
    assert texts(placed, "exp") == ['[{"data"}, {"model"}, {}, {}]']


def test_a_reshape_splits_heads_on_part_of_an_axis() -> None:
    mesh = rs.Mesh.of(x=8)
    program = trace(lambda a: a.reshape(4, 4, 8), shape(4, 32), in_shardings=on(None, "x", mesh=mesh))
    assert program.propagate().sharding("out").text() == '[{}, {"x":(1)4}, {"x":(4)2}]'


def test_every_way_to_say_a_sharding() -> None:
    there = jax.make_mesh((2, 4), ("data", "model"), devices=jax.devices()[:8])
    spec, wanted = P("data", None), '[{"data"}, {}]'
    forms = [
        trace(jnp.sin, shape(8, 4), in_shardings=on("data", None)),
        trace(jnp.sin, shape(8, 4), in_shardings=(spec,), mesh=there),
        trace(jnp.sin, shape(8, 4), in_shardings=spec, mesh=there.abstract_mesh),
        trace(jnp.sin, shape(8, 4), in_shardings=spec, mesh=MESH),
        trace(jnp.sin, shape(8, 4), in_shardings=NamedSharding(there, spec)),
        trace(jnp.sin, jax.ShapeDtypeStruct((8, 4), "float32", sharding=NamedSharding(there, spec))),
        trace(jnp.sin, jax.device_put(np.zeros((8, 4), np.float32), NamedSharding(there, spec))),
        trace(jnp.sin, shape(8, 4), out_shardings=NamedSharding(there, spec)),
    ]
    with jax.set_mesh(there):
        forms.append(trace(jnp.sin, shape(8, 4), in_shardings=spec))
    for program in forms:
        assert program.mesh == MESH == mesh_of(there)
        assert program.propagate(until_priority=0).sharding("out").text() == wanted


def test_trees_and_their_names() -> None:
    def function(params: Any, x: Any) -> Any:
        return {"y": x * params["a"][0], "z": params["b"]}

    program = trace(
        function,
        {"a": [shape(8)], "b": shape(4)},
        shape(8),
        in_shardings=({"a": on("data"), "b": None}, None),
        out_shardings={"y": None, "z": on("model")},
    )
    assert [value.name for value in program.inputs] == ["params.a.0", "params.b", "x"]
    assert [value.name for value in program.outputs] == ["out.y", "out.z"]
    assert program.propagate().sharding("params.b").text() == '[{"model"}]'
    assert program.propagate().sharding("x").text() == '[{"data"}]'


def test_constraints_inside() -> None:
    there = jax.make_mesh((2, 4), ("data", "model"), (AxisType.Auto,) * 2, devices=jax.devices()[:8])

    def function(x: Any) -> Any:
        y = lax.with_sharding_constraint(jnp.sin(x), NamedSharding(there, P("data", P.UNCONSTRAINED)))
        z = jax.jit(jnp.cos, out_shardings=NamedSharding(there, P(None, "model")))(y)
        return rs.jax.reshard(z, NamedSharding(there, P("model", "data")))

    placed = trace(function, shape(8, 8), mesh=there).propagate()
    assert placed.sharding("out").text() == '[{"model"}, {"data"}]'
    assert placed.sharding("x").text() == '[{"data"}, {"model"}]'  # dim 1 is open, and gets what comes after it
    moves = [(plan.source.text(), plan.target.text()) for plan in placed.plans.values()]
    assert moves == [
        ('[{"data"}, {"model"}]', '[{}, {"model"}]'),
        ('[{}, {"model"}]', '[{"model"}, {"data"}]'),
    ]


def test_a_primitive_without_a_rule_is_named_and_whole(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 2

    program = trace(function, shape(8, 4), in_shardings=on("data", None), out_shardings=on("data", None))
    assert program.without_rule == {"pure_callback": 1}
    assert "pure_callback" in caplog.text
    placed = program.propagate()
    assert "without a rule, whole on every device: pure_callback (1)" in str(placed)
    (made,) = (op for op in placed.operations if op.name == "pure_callback")
    assert placed.sharding(made.operands[0]).text() == "[{}, {}]"
    assert placed.sharding(made.result).text() == "[{}, {}]"


def test_embeddings_are_taken_where_they_are() -> None:
    placed = trace(
        lambda table, ids: table[ids],
        shape(160, 8),  # of 16 rows it would be cheaper to gather the table
        shape(4, 6, dtype="int32"),
        in_shardings=(on("model", None), on("data", None)),
        out_shardings=on("data", None, None),
    ).propagate()
    (plan,) = placed.plans.values()
    assert plan.source.text() == '[{"data"}, {}, {}], unreduced={"model"}'
    grad = trace(
        jax.grad(lambda table, ids: (table[ids] ** 2).sum()),
        shape(16, 8),
        shape(4, 6, dtype="int32"),
        in_shardings=(on(None, "model"), on("data", None)),
        out_shardings=on(None, "model"),
    ).propagate(until_priority=0)
    sums = [plan for plan in grad.plans.values() if plan.source.unreduced]
    assert [plan.source.text() for plan in sums] == ['[{}, {"model"}], unreduced={"data"}']


def test_the_carry_of_a_scan_is_a_fixed_point() -> None:
    def function(x: Any, w: Any) -> Any:
        return lax.scan(lambda h, one: (jnp.tanh(h @ one), h.sum(0)), x, w)

    arguments = (shape(8, 16), shape(5, 16, 16))
    for given, wanted in (  # what one end of the loop is given goes to the other, through the body
        ({"out_shardings": (on("data", "?"), None)}, '[{"data"}, {}]'),
        ({"in_shardings": (on("data", "?"), None)}, '[{"data"}, {}]'),
    ):
        placed = trace(function, *arguments, mesh=MESH, **given).propagate(until_priority=0)
        carries = {placed.sharding(op.result).text() for op in placed.operations if op.name in ("carry", "last")}
        assert carries == {placed.sharding("x").text()} == {placed.sharding("out.0").text()} == {wanted}
        moving = [value for value, plan in placed.plans.items() if plan.received_bytes]
        assert {placed.trip_count(value) for value in moving} == {5}
        assert placed.received_bytes == 5 * sum(placed.plans[value].received_bytes for value in moving) == 5 * 64


def test_priorities_batch_then_megatron_then_zero() -> None:
    arguments = (shape(16, 8), shape(8, 32), shape(32, 8))
    given = (
        on(rs.DimSharding.of("data"), "?"),
        on(rs.DimSharding.of("data", "?", priority=2), rs.DimSharding.of("model", priority=1)),
        on(rs.DimSharding.of("model", priority=1), rs.DimSharding.of("data", "?", priority=2)),
    )
    program = trace(jax.value_and_grad(lambda x, a, b: mlp(x, a, b).sum(), (1, 2)), *arguments, in_shardings=given)
    rounds = [program.propagate(until_priority=number) for number in (0, 1, 2)]
    assert [texts(one, "tanh") for one in rounds] == [
        ['[{"data"}, {}]'],
        ['[{"data"}, {"model"}]'],
        ['[{"data"}, {"model"}]'],
    ]
    assert [one.sharding("a").text() for one in rounds] == ["[{}, {}]", '[{}, {"model"}]', '[{"data"}, {"model"}]']


def test_refusals() -> None:
    cases = [
        ("unknown-mesh", lambda: trace(jnp.sin, shape(8)), "no sharding says on which mesh"),
        ("bad-argument", lambda: trace(jnp.sin, shape(8), in_shardings=(on("data"), on("data"))), "in_shardings"),
        ("bad-argument", lambda: trace(jnp.sin, shape(8), in_shardings=3), "in_shardings must be"),
        ("bad-argument", lambda: trace(jnp.sin, shape(8), mesh=3), "the mesh of a trace"),
        ("rank-mismatch", lambda: trace(jnp.sin, shape(8), in_shardings=on("data", None)), "2 dims"),
        ("unknown-axis", lambda: trace(jnp.sin, shape(8), in_shardings=P("z"), mesh=MESH), '"z"'),
    ]
    for code, call, text in cases:
        with pytest.raises(rs.ReshardError) as caught:
            call()
        assert (caught.value.code, text in str(caught.value)) == (code, True), str(caught.value)


def test_numbers_of_four_bits() -> None:
    """Once refused, for no table had them; they are moved as they are, and summed as what they are cast to."""
    x = (np.arange(64).reshape(8, 8) % 16 - 8).astype(jnp.int4)
    function = lambda a: (a.astype(jnp.int32).sum(1), a.T)  # noqa: E731
    placed = trace(function, x, in_shardings=on("data", "model"), out_shardings=(None, on("data", "model"))).propagate()
    sums, turned = jax.jit(rs.jax.to_jax(placed))(x)
    np.testing.assert_array_equal(sums, x.astype(np.int32).sum(1))
    np.testing.assert_array_equal(np.asarray(turned).astype(np.int32), x.T.astype(np.int32))


# A layer of Llama 3


def llama(mesh: rs.Mesh, **ways: Any) -> Any:
    weights, x = shardings(mesh, **ways)
    shapes = {name: shape(*sizes, dtype="bfloat16") for name, sizes in REAL.shapes.items()}
    return trace(
        step, shapes, shape(*REAL.x, dtype="bfloat16"), in_shardings=(weights, x), out_shardings=(None, (weights, x))
    )


class Layer(NamedTuple):
    """A layer of real size, and what it took to place it."""

    program: Any
    placed: Any
    calls: int


@pytest.fixture(scope="module")
def layer_at_real_size() -> Layer:
    program = llama(rs.Mesh.of(data=8, model=8))
    return Layer(program, *calls_of(program.propagate))


def test_a_layer_of_llama_at_real_size(layer_at_real_size: Layer) -> None:
    placed = layer_at_real_size.placed
    assert layer_at_real_size.calls < 2_000_000
    assert not placed.without_rule
    # 2 sums forward, 2 backward, one for each gradient, and a loss, as 14 AllReduces, would receive this much;
    # to gather small operands of the products over heads instead of adding up their large results receives less.
    assert placed.received_bytes < 1_034_962_460
    scores = [value for value in placed.values if value.shape == (16, 8, 4, 8192, 8192)]
    assert {placed.sharding(value).text() for value in scores} == {'[{"data"}, {"model"}, {}, {}, {}]'}


def test_a_stack_by_scan_costs_a_small_factor_of_a_layer(layer_at_real_size: Layer) -> None:
    mesh = rs.Mesh.of(data=8, model=8)
    weights, x = shardings(mesh)
    many = {name: shape(48, *sizes, dtype="bfloat16") for name, sizes in REAL.shapes.items()}
    held = {name: rs.Sharding(mesh, (rs.DimSharding(), *one.dims)) for name, one in weights.items()}

    def train(weights: Any, x: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            out = lax.scan(lambda h, one: (layer(one, h), None), x, weights)[0]
            return (out.astype(jnp.float32) ** 2).mean()

        return jax.value_and_grad(loss, (0, 1))(weights, x)

    one = layer_at_real_size
    stack = trace(
        train, many, shape(*REAL.x, dtype="bfloat16"), in_shardings=(held, x), out_shardings=(None, (held, x))
    )
    placed, calls = calls_of(stack.propagate)
    assert len(stack.operations) < 1.5 * len(one.program.operations)
    assert calls < 2 * one.calls
    (loss,) = (plan.received_bytes for plan in one.placed.plans.values() if plan.shape == ())
    assert placed.received_bytes - loss < 48 * 1.0001 * (one.placed.received_bytes - loss)
    assert placed.cost < 48 * 1.001 * one.placed.cost


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways",
    [
        {"sequence": "model"},
        {"fully": "data"},
        {"sequence": "model", "fully": "data"},
        {"fully": "data", "priorities": True},
    ],
    ids=" ".join,
)
def test_other_ways_to_shard_a_layer_at_real_size(ways: dict[str, Any]) -> None:
    placed, plain = (llama(rs.Mesh.of(data=8, model=8), **way).propagate() for way in (ways, {}))
    assert not placed.without_rule
    assert placed.received_bytes <= plain.received_bytes


WORKED_OUT = {
    "ufuncs": lambda a, b: [f(a, b) for f in (lax.add, lax.sub, lax.mul, lax.max, lax.min, lax.bitwise_and, lax.rem)],
    "comparisons": lambda a, b: [f(a, b) for f in (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)],
    "remainders by 0": lambda a, b: lax.rem(a, lax.sub(b, b)),
    "choices": lambda a, b: lax.select(~(a > b) | (a == b), a, b),
    "dtypes": lambda a, b: [lax.convert_element_type(a + b, name) for name in ("int8", "uint32", "bool", "float32")],
    "scalars": lambda a, b: [f(a[0, n], b[0, n]) for f in (lax.add, lax.mul, lax.rem) for n in range(4)],
    "shapes": lambda a, b: lax.broadcast_in_dim(lax.squeeze(lax.reshape(a + b, (1, 4, 3)), (0,)), (4, 2, 3), (0, 2)),
    "places": lambda a, b: (lax.broadcasted_iota("int32", (3, 4), 1) * 7 + 3) % 5 + b[0, 0].astype("int32"),
}


@pytest.mark.parametrize("function", WORKED_OUT.values(), ids=WORKED_OUT)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8"])
def test_known_numbers_are_what_jax_makes_of_them(function: Any, dtype: str) -> None:
    info = np.iinfo(dtype)
    a, b = np.random.default_rng(0).integers(info.min, info.max, (2, 3, 4), dtype=dtype, endpoint=True)
    a[0, :2] = info.min, info.max
    b[0, :2] = np.array([-1, 1]).astype(dtype)
    closed = jax.make_jaxpr(function)(a, b)
    for ours, wanted in zip(values_of(closed, (a, b), numbers_of), values_of(closed, (a, b)), strict=True):
        assert ours.dtype == wanted.dtype
        assert np.array_equal(ours, wanted)


def test_none_in_the_arguments_is_no_leaf() -> None:
    rows = on("data", None)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    placed = trace(lambda x, bias: x * 2 if bias is None else x + bias, x, None, in_shardings=(rows, None)).propagate()
    assert placed.sharding("x") == rows
    assert np.array_equal(jax.jit(rs.jax.to_jax(placed))(x, None), x * 2)


def test_what_nothing_reads_is_not_in_the_program() -> None:
    """Of the largest elements of blocks, gathered in 8, their places are not asked for."""
    values = jax.ShapeDtypeStruct((16, 64), "float32")
    mesh = rs.Mesh.of(x=8)
    program = rs.jax.trace(lambda x: jax.lax.top_k(x, 2)[0], values, in_shardings=(P(None, "x"),), mesh=mesh)
    read = {operand for operation in program.operations for operand in operation.operands}
    assert all(value in read or value in program.outputs for value in program.values)
    assert [value.number for value in program.values] == [*range(len(program.values))]
    assert program.propagate().received_bytes == 16 * 2 * 7 * 4 // 8


ROWS = np.arange(8)[:, None]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, j: x[i, jnp.arange(8)[:, None], j],
        lambda x, i, j: x[i, ROWS, j],
        lambda x, i, j: x.at[i, ROWS, j].add(1.0, mode="drop"),
        lambda x, i, j: jax.grad(lambda x: (x[i, ROWS, j] ** 2).sum())(x),
    ],
)
def test_an_index_that_only_counts_moves_nothing_beside_several_others(function: Any) -> None:
    random = np.random.default_rng(0)
    arguments = random.normal(size=(4, 8, 6, 2)).astype("float32"), *random.integers(-4, 9, (2, 8, 5)).astype("int32")
    shardings = on(None, ("data", "model"), None, None), *2 * (on(("data", "model"), None),)
    placed = trace(function, *arguments, in_shardings=shardings).propagate()
    assert placed.received_bytes == 0
    np.testing.assert_allclose(jax.jit(rs.jax.to_jax(placed))(*arguments), jax.jit(function)(*arguments), rtol=1e-6)


DEEP: dict[str, Any] = {
    "a residual": lambda x, w: x + jnp.tanh(x @ w),
    "a choice": lambda x, w: jnp.where(x > 0, x, x + w),
    "a sum with a neighbour": lambda x, w: x + jnp.roll(x, 1, 0),
    "turned round": lambda x, w: x.T + w,
}


@pytest.mark.parametrize("change", DEEP.values(), ids=DEEP)
def test_deep_functions_are_traced_and_run(change: Any) -> None:
    """Of 300 layers one after another, each of which reads the last one twice; then a mask is made of them."""

    def function(x: Any, w: Any) -> Any:
        for _ in range(300):
            x = change(x, w)
        return jnp.where(x > 0.5, x @ w, 0.0).sum(0)

    traced = trace(function, shape(8, 8), shape(8, 8), in_shardings=(on("data", None), None))
    placed = traced.propagate()
    assert len(placed.operations) > 300
    run = jax.make_jaxpr(rs.jax.to_jax(placed))(shape(8, 8), shape(8, 8))
    assert [var.aval.shape for var in run.jaxpr.outvars] == [(8,)]
