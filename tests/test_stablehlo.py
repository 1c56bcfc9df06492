"""Programs from StableHLO: a module is read as what it says, and computes what JAX computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import AbstractMesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_functions import FUNCTIONS, attention, embedding_loss, floats, nested_scan, stack  # noqa: E402
from llama import SMALL, layer, shardings, step  # noqa: E402
from test_jax_programs import assert_close  # noqa: E402
from tilefiles import command  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.cli import main  # noqa: E402
from reshard.jax import partition_spec_of, to_jax, trace  # noqa: E402
from reshard.propagation import Program  # noqa: E402

pytestmark = pytest.mark.engine
MESH = rs.Mesh.of(x=2, y=4)
ABSTRACT = AbstractMesh((2, 4), ("x", "y"))
MESH_LINE = 'sdy.mesh @mesh = <["x"=2, "y"=4]>'


def on(*dims: Any) -> NamedSharding:
    return NamedSharding(ABSTRACT, P(*dims))


def lowered(function: Callable[..., Any], *avals: Any) -> str:
    """The module that JAX lowers a function to."""
    text: str = jax.jit(function).trace(*avals).lower(lowering_platforms=("cpu",)).as_text()
    return text


def module(body: str, arguments: str = "%a: tensor<8x8xf32>", result: str = "tensor<8x8xf32>", more: str = "") -> str:
    return f"{MESH_LINE}\nfunc.func @main({arguments}) -> {result} {{\n{body}\n}}\n{more}"


def program_of(*arguments: Any, **fields: Any) -> Program:
    return rs.Program.from_stablehlo(module(*arguments, **fields))


def names(program: Program) -> list[str]:
    return [operation.name for operation in program.operations]


# What JAX lowers, run device by device


def mlp(x: Any, up: Any, down: Any) -> Any:
    h = held(jax.nn.relu(x @ up))
    return jax.nn.softmax(h @ down) * jnp.arange(x.shape[1])


def held(h: Any) -> Any:
    """Where it is traced, in a sharding."""
    return lax.with_sharding_constraint(h, on("x", "y")) if isinstance(h, jax.core.Tracer) else h


def turned(x: Any, w: Any) -> Any:
    """A loop with a trip count, one that only a run ends, and a choice."""
    x = lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w) + i, x)
    x, turns = lax.while_loop(lambda state: state[0].sum() < 50, lambda state: (state[0] + 1.0, state[1] + 1), (x, 0))
    return lax.cond(turns > 2, jnp.sin, lambda a: a - a.sum(0), x), turns


def rearranged(x: Any, w: Any) -> Any:
    parts = x[1:5, ::2], jnp.pad(x, ((1, 2), (0, 0)), constant_values=2.0), jnp.concatenate([x, w]), x.reshape(4, 2, -1)
    return *parts, x.T, jnp.cumsum(x, 0), lax.cummax(x, 1, reverse=False), jnp.sort(x, 1), x.argmax(1), (x > 0).any(0)


WITH_NUMPY: dict[str, tuple[Callable[..., Any], Callable[[], Any], tuple[NamedSharding, ...]]] = {
    "a constraint": (
        mlp,
        floats((8, 16), (16, 32), (32, 16)),
        (on("x", None), on(None, "y"), on("y", None)),
    ),
    "attention": (
        attention,
        floats((4, 8, 16), (16, 4, 8), (16, 4, 8), (16, 4, 8)),
        (on("x"), on(None, "y"), on(None, "y"), on(None, "y")),
    ),
    "scan": (stack, floats((8, 16), (3, 16, 16)), (on("x"), on(None, None, "y"))),
    "a scan in a scan from the last": (nested_scan, floats((4, 16)), (on(None, "y"),)),
    "loops and a choice": (turned, floats((8, 16), (16, 16)), (on("x"), on("y"))),
    "rearranged": (rearranged, floats((8, 16), (4, 16)), (on("x"), on(None, "y"))),
}


@pytest.mark.parametrize("name", WITH_NUMPY)
def test_a_module_computes_what_jax_computes(name: str) -> None:
    function, draw, given = WITH_NUMPY[name]
    arguments = draw()
    avals = [
        jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
        for array, sharding in zip(arguments, given, strict=True)
    ]
    program = rs.Program.from_stablehlo(lowered(function, *avals))
    assert [program.annotations[value] for value in program.inputs] == [
        rs.jax.sharding_of(sharding, MESH, array.ndim) for sharding, array in zip(given, arguments, strict=True)
    ]
    placed = program.propagate()
    inputs = {value.name: array for value, array in zip(placed.inputs, arguments, strict=True)}
    results = rs.numpy.run_program(placed, inputs)
    assert_close([results[value.name] for value in placed.outputs], _arrays(function(*map(jnp.asarray, arguments))))


def _arrays(results: Any) -> list[Any]:
    return [np.asarray(result) for result in jax.tree.leaves(results)]


@pytest.mark.parametrize(
    "name",
    ["captured", "argmax sort top", "embedding outside", "one per row", "loss", "dynamic update", "own reduction"],
)
def test_what_numpy_lacks_jax_runs(name: str) -> None:
    function, draw = FUNCTIONS[name]
    arguments = draw()
    text = lowered(function, *arguments).replace("{\n", f"{{\n{MESH_LINE}\n", 1)
    found = jax.jit(to_jax(rs.Program.from_stablehlo(text).propagate()))(*arguments)
    assert_close(jax.tree.leaves(found), jax.tree.leaves(function(*map(jnp.asarray, arguments))))


@pytest.mark.parametrize(
    ("function", "apart"),
    [
        (layer, 0.0),
        # Of the gradient the search proves nothing, and the two programs do not list their operations alike.
        pytest.param(step, 0.01, marks=pytest.mark.slow),
    ],
)
def test_a_layer_of_llama_costs_what_its_trace_costs(function: Callable[..., Any], apart: float) -> None:
    mesh = rs.Mesh.of(data=2, model=4)
    abstract = AbstractMesh((2, 4), ("data", "model"))

    def aval(shape: tuple[int, ...], sharding: rs.Sharding) -> Any:
        named = NamedSharding(abstract, partition_spec_of(sharding))
        return jax.ShapeDtypeStruct(shape, "float32", sharding=named)

    weights, x = shardings(mesh)
    avals = {name: aval(shape, weights[name]) for name, shape in SMALL.shapes.items()}, aval(SMALL.x, x)
    read = rs.Program.from_stablehlo(lowered(function, *avals)).propagate()
    traced = trace(function, *avals).propagate()
    assert read.received_bytes == pytest.approx(traced.received_bytes, rel=apart, abs=0)


def test_the_rows_of_an_embedding_are_selected() -> None:
    table = jax.ShapeDtypeStruct((24, 16), "float32", sharding=on("y"))
    w = jax.ShapeDtypeStruct((16, 40), "float32", sharding=on(None, "y"))
    ids = jax.ShapeDtypeStruct((4, 8), "int32", sharding=on("x"))
    program = rs.Program.from_stablehlo(lowered(embedding_loss, table, w, ids))
    gathers = [operation for operation in program.operations if operation.name == "gather"]
    assert [operation.selected for operation in gathers] == [("t0",), ("t2",)]


# Loops


COUNTED = """
  %i = stablehlo.constant dense<{start}> : tensor<i32>
  %0:2 = stablehlo.while(%n = %i, %h = %a) : tensor<i32>, tensor<8x8xf32>
  cond {{
    %stop = stablehlo.constant dense<{stop}> : tensor<i32>
    %more = stablehlo.compare {asks}, {sides} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }} do {{
    %step = stablehlo.constant dense<{step}> : tensor<i32>
    %next = stablehlo.{moves} %n, %step : tensor<i32>
    %after = stablehlo.sine %h : tensor<8x8xf32>
    stablehlo.return %next, %after : tensor<i32>, tensor<8x8xf32>
  }}
  return %0#1 : tensor<8x8xf32>"""


@pytest.mark.parametrize(
    ("start", "asks", "stop", "moves", "step", "sides", "turns"),
    [
        (0, "LT", 12, "add", 1, "%n, %stop", 12),
        (0, "LE", 12, "add", 5, "%n, %stop", 3),
        (9, "GT", 0, "subtract", 2, "%n, %stop", 5),
        (9, "GE", 0, "add", -1, "%n, %stop", 10),
        (0, "NE", 12, "add", 3, "%n, %stop", 4),
        (0, "GT", 7, "add", 1, "%stop, %n", 7),
        (5, "LT", 5, "add", 1, "%n, %stop", 0),
        (0, "NE", 7, "add", 2, "%n, %stop", None),
        (0, "LT", 7, "subtract", 1, "%n, %stop", None),
        (0, "LT", 7, "multiply", 1, "%n, %stop", None),
    ],
)
def test_a_counter_tells_the_trip_count(
    start: int, asks: str, stop: int, moves: str, step: int, sides: str, turns: int | None
) -> None:
    body = COUNTED.format(start=start, asks=asks, stop=stop, moves=moves, step=step, sides=sides)
    sine = next(operation for operation in program_of(body).operations if operation.name == "sin")
    loop: Any = sine.block
    assert loop.trip_count == turns


def both_ways(x: Any) -> Any:
    """Two loops that write from the last to the first: one that reads so, and one that reads nothing."""
    h, rows = lax.scan(lambda h, row: (h + row, h * row), x[0], x, reverse=True)
    return rows, lax.scan(lambda h, _: (h + 1.0, h), h, None, length=3, reverse=True)[1]


@pytest.mark.parametrize(
    ("function", "shapes", "elements", "stacks"),
    [(stack, ((8, 16), (3, 16, 16)), 1, 1), (nested_scan, ((4, 16),), 1, 2), (both_ways, ((4, 16),), 1, 2)],
)
def test_a_scan_has_elements_and_stacks_again(function: Any, shapes: Any, elements: int, stacks: int) -> None:
    avals = [jax.ShapeDtypeStruct(shape, "float32", sharding=on()) for shape in shapes]
    program = rs.Program.from_stablehlo(lowered(function, *avals))
    made = names(program)
    assert (made.count("element"), made.count("stack")) == (elements, stacks)
    assert not {"dynamic_slice", "dynamic_update_slice"} & {*made}
    arrays = {value.name: np.random.default_rng(1).random(value.shape, np.float32) for value in program.inputs}
    results = rs.numpy.run_program(program.propagate(), arrays)
    assert_close([*results.values()], _arrays(function(*map(jnp.asarray, arrays.values()))))


def test_what_a_loop_reads_of_what_it_writes_is_no_stack() -> None:
    def sums(x: Any) -> Any:
        def turn(n: Any, h: Any) -> Any:
            return lax.dynamic_update_index_in_dim(h, h.sum(0), n, 0)

        return lax.fori_loop(0, 4, turn, x)

    program = rs.Program.from_stablehlo(lowered(sums, jax.ShapeDtypeStruct((4, 16), "float32", sharding=on())))
    assert "stack" not in names(program)
    x = np.random.default_rng(1).random((4, 16), np.float32)
    assert_close(to_jax(program.propagate())(x), sums(jnp.asarray(x)))


# What the sdy dialect says


def text_of(program: Program, name: str) -> list[str]:
    """The annotations of the results of all operations of a name."""
    made = (operation.result for operation in program.operations if operation.name == name)
    return [program.annotations[value].text() for value in made]


def test_shardings_of_ends_constraints_and_operations() -> None:
    program = program_of(
        """
  %0 = sdy.sharding_constraint %a <@mesh, [{"y"}, {"x"}]> : tensor<8x8xf32>
  %1 = stablehlo.sine %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {?}]>]>} : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>""",
        '%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}p1, {}], replicated={"y"}>}',
        '(tensor<8x8xf32> {jax.result_info = "loss", sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})',
    )
    assert text_of(program, "input") == ['[{"x", ?}p1, {}], replicated={"y"}']
    assert text_of(program, "copy") == ['[{"y"}, {"x"}]', '[{"x"}, {?}]']
    assert text_of(program, "output") == ['[{"y"}, {}]']
    assert [value.name for value in program.outputs] == ["loss"]


def test_meshes_within_shardings_are_meshes() -> None:
    sharding = '#sdy.sharding<mesh<["a"=2, "b"=4]>, [{"a"}, {?}]>'
    text = f"func.func @main(%a: tensor<8x8xf32> {{sdy.sharding = {sharding}}}) -> tensor<8x8xf32> {{\n  return %a"
    program = Program.from_stablehlo(f"{text} : tensor<8x8xf32>\n}}")
    assert program.mesh == rs.Mesh.of(a=2, b=4)
    assert text_of(program, "input") == ['[{"a"}, {?}]']


def test_what_has_no_result_may_say_where_it_runs() -> None:
    program = Program.from_stablehlo(f"""{MESH_LINE}
sdy.mesh @one = <[], device_ids=[0]>
func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  stablehlo.custom_call @called_back(%a)
    {{has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>}} : (tensor<8x8xf32>) -> ()
  return %a : tensor<8x8xf32>
}}""")
    assert names(program) == ["input", "output"]


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
def test_a_comparison_may_be_in_total_order(direction: str) -> None:
    """-NaN < -1 < -0 < 0 < 1 < NaN: places that all pairs are compared by."""
    numbers = "tensor<6x6xf32>"
    body = f"""  %0 = stablehlo.compare {direction}, %a, %b, TOTALORDER : ({numbers}, {numbers}) -> tensor<6x6xi1>
  return %0 : tensor<6x6xi1>"""
    arguments = '%a: tensor<6x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %b: tensor<6x6xf32>'
    placed = program_of(body, arguments, "tensor<6x6xi1>").propagate()
    ordered = np.array([-np.nan, -1, -0.0, 0, 1, np.nan], "float32")
    assert [bool(sign) for sign in np.signbit(ordered)] == [True, True, True, False, False, False]
    left, right = np.meshgrid(ordered, ordered, indexing="ij")
    first, second = np.indices((6, 6))
    compared = {"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal}
    compared |= {"GT": np.greater, "GE": np.greater_equal}
    np.testing.assert_array_equal(to_jax(placed)(left, right), compared[direction](first, second))


@pytest.mark.parametrize("best", [lax.max, lax.min])
@pytest.mark.parametrize(("window", "stride", "room"), [(2, 2, "VALID"), (3, 1, "SAME"), (3, 2, "SAME")])
def test_the_gradient_of_a_pooling(best: Any, window: int, stride: int, room: str) -> None:
    worst = -np.inf if best is lax.max else np.inf

    def pooled(x: Any) -> Any:
        return (lax.reduce_window(x, worst, best, (1, window, 1), (1, stride, 1), room) ** 2).sum()

    x = np.random.default_rng(0).standard_normal((2, 8, 4)).astype("float32")
    aval = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on("x", "y"))
    found = to_jax(rs.Program.from_stablehlo(lowered(jax.grad(pooled), aval)).propagate())(x)
    np.testing.assert_allclose(found, jax.grad(pooled)(x), rtol=1e-6)


@pytest.mark.parametrize(("kind", "dtype"), [("f32", "float32"), ("i32", "int32"), ("ui8", "uint8")])
def test_a_sort_may_put_the_largest_first(kind: str, dtype: str) -> None:
    """Along a cut dim, with other elements in the same order, equal ones in the order in which they were."""
    both = f"tensor<8x4x{kind}>, tensor<8x4xi32>"
    body = f"""  %0:2 = "stablehlo.sort"(%a, %b) <{{dimension = 0 : i64, is_stable = true}}> ({{
  ^bb0(%x: tensor<{kind}>, %y: tensor<{kind}>, %u: tensor<i32>, %v: tensor<i32>):
    %1 = stablehlo.compare GT, %x, %y : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }}) : ({both}) -> ({both})
  return %0#0, %0#1 : {both}"""
    arguments = f'%a: tensor<8x4x{kind}> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}, %b: tensor<8x4xi32>'
    placed = program_of(body, arguments, f"({both})").propagate()
    rng = np.random.default_rng(0)
    keys, others = rng.integers(0, 5, (8, 4)).astype(dtype), rng.integers(0, 99, (8, 4)).astype("int32")
    order = np.argsort(-keys.astype("int64"), axis=0, kind="stable")
    found = to_jax(placed)(keys, others)
    np.testing.assert_array_equal(found[0], np.take_along_axis(keys, order, 0))
    np.testing.assert_array_equal(found[1], np.take_along_axis(others, order, 0))


def test_a_call_stands_where_it_is_called() -> None:
    double = """func.func private @f(%b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> tensor<8x8xf32> {
  %0 = stablehlo.add %b, %b : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}"""
    call = "call @f({}) : (tensor<8x8xf32>) -> tensor<8x8xf32>"
    body = f"  %0 = {call.format('%a')}\n  %1 = {call.format('%0')}\n  return %1 : tensor<8x8xf32>"
    program = program_of(body, more=double)
    assert names(program) == ["input", "copy", "add", "copy", "add", "output"]
    assert text_of(program, "copy") == ['[{"x"}, {}]'] * 2


def test_what_a_called_function_says_of_its_result_is_kept() -> None:
    """It is whole there, though who calls it wants partial sums; Shardy's pipeline leaves them partial."""
    partial = '[{}, {}], unreduced={"x"}'
    called = f"""func.func private @f(%b: tensor<8x8xf32>)
    -> (tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}) {{
  %0 = sdy.sharding_constraint %b <@mesh, {partial}> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}}"""
    call = "func.call @f({}) : (tensor<8x8xf32>) -> tensor<8x8xf32>"
    body = f"  %0 = {call.format('%a')}\n  %1 = {call.format('%0')}\n  return %1 : tensor<8x8xf32>"
    program = program_of(body, f"%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {partial}>}}", more=called)
    assert text_of(program, "copy") == [partial, "[{}, {}]"] * 2
    assert program.propagate().received_bytes == 2 * 8 * 8 * 4


def test_a_choice_goes_by_what_is_true() -> None:
    program = program_of(
        """
  %0 = "stablehlo.if"(%p) ({
    %1 = stablehlo.negate %a : tensor<8x8xf32>
    stablehlo.return %1 : tensor<8x8xf32>
  }, {
    stablehlo.return %a : tensor<8x8xf32>
  }) : (tensor<i1>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>""",
        "%a: tensor<8x8xf32>, %p: tensor<i1>",
    )
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    for truth, sign in ((True, -1), (False, 1)):
        results = rs.numpy.run_program(program.propagate(), {"arg0": array, "arg1": np.array(truth)})
        np.testing.assert_array_equal(results["result"], sign * array)


@pytest.mark.parametrize(("number", "factor"), [(0, 1), (1, -1), (2, 0), (3, 0), (-1, 0)])
def test_a_number_without_a_branch_picks_the_last(number: int, factor: int) -> None:
    branches = ["stablehlo.return %a", "%1 = stablehlo.negate %a", "%1 = stablehlo.subtract %a, %a"]
    regions = [
        f"{branch} : tensor<8x8xf32>" + ("" if "return" in branch else "\nstablehlo.return %1 : tensor<8x8xf32>")
        for branch in branches
    ]
    cases = "}, {\n".join(regions)
    body = f"""  %0 = "stablehlo.case"(%p) ({{\n{cases} }}) : (tensor<i32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>"""
    placed = program_of(body, "%a: tensor<8x8xf32>, %p: tensor<i32>").propagate()
    array = np.ones((8, 8), np.float32)
    results = rs.numpy.run_program(placed, {"arg0": array, "arg1": np.array(number, np.int32)})
    np.testing.assert_array_equal(results["result"], factor * array)


def test_a_manual_computation_keeps_the_shardings_that_it_states() -> None:
    placed = program_of("""
  %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {"x"}]>]
      manual_axes={"x"} (%b: tensor<4x8xf32>) {
    %1 = stablehlo.reshape %b : (tensor<4x8xf32>) -> tensor<8x4xf32>
    sdy.return %1 : tensor<8x4xf32>
  } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>""").propagate()
    (region,) = (operation for operation in placed.operations if operation.name == "manual_computation")
    assert str(region.pattern) == "(m0 a0_0) a0_1 -> r0 (m0 r1)"
    assert [placed.sharding(value).text() for value in region.values] == ['[{"x"}, {}]', '[{}, {"x"}]']
    assert placed.received_bytes == 0


def test_shardings_go_through_a_custom_call_by_its_rule() -> None:
    program = program_of("""
  %0 = stablehlo.custom_call @my.call(%a) {sdy.sharding_rule =
    #sdy.op_sharding_rule<([i, jk])->([i, jk]) {i=8, j=4, k=2} need_replication={j}, custom>}
    : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.custom_call @other(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>""")
    _, ruled, other, _ = program.operations
    assert (ruled.name, str(ruled.pattern), ruled.replicated) == (
        "custom_call.my_call",
        "f0 (f1 f2) -> f0 (f1 f2)",
        ("f1",),
    )
    assert other.replicated == ("a0_0", "a0_1", "r0", "r1")
    assert [*program.without_rule] == ["custom_call.other"]


def test_the_values_of_a_group_are_sharded_alike() -> None:
    program = program_of("""
  %0 = sdy.sharding_constraint %a <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  sdy.sharding_group %0 group_id=7 : tensor<8x8xf32>
  %1 = sdy.propagation_barrier %0 allowed_direction=NONE : tensor<8x8xf32>
  %2 = stablehlo.optimization_barrier %1 : tensor<8x8xf32>
  %3 = stablehlo.sine %2 : tensor<8x8xf32>
  sdy.sharding_group %3 group_id=7 : tensor<8x8xf32>
  return %3 : tensor<8x8xf32>""")
    assert [(value.name, first.name) for value, first in program.ties] == [("sin_4", "copy_1")]
    placed = program.propagate()
    (sine,) = (operation.result for operation in placed.operations if operation.name == "sin")
    assert placed.sharding(sine).text() == '[{"x"}, {}]'


@pytest.mark.parametrize(
    ("text", "dtype", "array"),
    [
        ("[1, -2]", "i32", [1, -2]),
        ("[1.5, 0x7F80]", "bf16", [1.5, np.inf]),
        ("[(1.0, -2.0), (0.5, 0.0)]", "complex<f32>", [1 - 2j, 0.5]),
        ('"0x0000803F00000040"', "f32", [1, 2]),
        ("[true, false]", "i1", [True, False]),
    ],
)
def test_constants(text: str, dtype: str, array: list[Any]) -> None:
    kind = f"tensor<2x{dtype}>"
    body = f"  %0 = stablehlo.constant dense<{text}> : {kind}\n  return %0 : {kind}"
    as_shardy_has_it = program_of(body.replace("stablehlo.", "sdy."), "", kind)
    assert str(as_shardy_has_it) == str(program_of(body, "", kind))
    found = to_jax(as_shardy_has_it.propagate())()
    np.testing.assert_array_equal(np.asarray(found, complex), np.asarray(array, complex))


# Refusals


ADD = "  %0 = stablehlo.add %a, %a : {0}\n  return %0 : {0}"
REFUSED: dict[str, tuple[str, str, str]] = {
    "not MLIR": ("hello", "syntax", "line 1: "),
    "an operation that MLIR does not know": (
        module("  %0 = stablehlo.addd %a : tensor<8x8xf32>\n  return %0 : tensor<8x8xf32>"),
        "syntax",
        "line 3: custom op 'stablehlo.addd' is unknown",
    ),
    "no mesh": ("module {}", "unknown-mesh", "the module defines no mesh"),
    "a mesh beyond all bounds": (
        'sdy.mesh @mesh = <["x"=9223372036854775807, "y"=4]>',
        "too-large",
        "line 1: sdy.mesh: a mesh of 2**62 devices or more is too large",
    ),
    "what no text holds": ("// \udcff\nhello", "syntax", "line 2: "),
    "no main": (MESH_LINE, "bad-program", "no function @main"),
    "a collective": (
        module("""  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64,
    replica_groups = dense<0> : tensor<1x1xi64>}> : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>"""),
        "cannot-express",
        "line 3: stablehlo.all_gather: ",
    ),
    "an endless number": (
        module(f"  %0 = stablehlo.slice %a [0:{'1' * 20_000}]"),
        "syntax",
        "line 3: a number of 20000",
    ),
    "a size that only a run tells": (
        module("  return %a : tensor<?xf32>", "%a: tensor<?xf32>", "tensor<?xf32>"),
        "cannot-express",
        "line 2: func.func: a value must be a tensor of known sizes",
    ),
    "a token": (
        module("""  %0 = stablehlo.custom_call @sleep(%a) : (tensor<8x8xf32>) -> !stablehlo.token
  return %a : tensor<8x8xf32>"""),
        "cannot-express",
        "line 3: stablehlo.custom_call: a value must be a tensor of known sizes",
    ),
    "a dtype that is not known": (
        module(ADD.format("tensor<8xf6E2M3FN>"), "%a: tensor<8xf6E2M3FN>", "tensor<8xf6E2M3FN>"),
        "unknown-dtype",
        "line 2: func.func: dtype 'f6E2M3FN'",
    ),
    "a function that calls itself": (
        module("  %0 = call @main(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>\n  return %0 : tensor<8x8xf32>"),
        "cannot-express",
        "line 3: func.call: @main calls itself",
    ),
    "a manual sharding of HLO": (
        module("""  %0 = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{manual}"}
    : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>"""),
        "cannot-express",
        "line 3: stablehlo.custom_call: HLO does not say what a manual computation shares out",
    ),
    "a sort by what is no order": (
        module("""  %0 = "stablehlo.sort"(%a) <{dimension = 0 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.compare NE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>"""),
        "cannot-express",
        "line 3: stablehlo.sort: ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_operation_and_its_line(name: str) -> None:
    text, code, sentence = REFUSED[name]
    with pytest.raises(rs.ReshardError) as refusal:
        rs.Program.from_stablehlo(text)
    assert refusal.value.code == code
    assert sentence in str(refusal.value)


# The command line


def test_propagate_knows_a_module_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    avals = [jax.ShapeDtypeStruct(shape, "float32", sharding=on("x")) for shape in ((8, 16), (16, 16))]
    path.write_text(lowered(lambda x, w: jnp.tanh(x @ w), *avals))
    printed = command("propagate", path)
    assert (printed.status, printed.err) == (0, "")
    assert "tanh(einsum_2)" in printed.out
    path.write_text(f"{MESH_LINE}\nmodule = input : f32[8, 8]\nout = output (module)\n")
    assert "output(module)" in command("propagate", path).out


def test_shardings_go_through_a_custom_call_by_the_rule_that_shardy_knows() -> None:
    program = program_of("""
  %0:2 = stablehlo.custom_call @mhlo.topk(%a) {mhlo.attributes = {k = 2 : i64, largest = true}, mhlo.version = 1 : i64}
    : (tensor<8x8xf32>) -> (tensor<8x2xf32>, tensor<8x2xi32>)
  %1 = stablehlo.reshape %0#0 : (tensor<8x2xf32>) -> tensor<2x8xf32>
  %2 = stablehlo.dot %0#0, %1 : (tensor<8x2xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>""")
    _, top, *_ = program.operations
    assert (top.name, str(top.pattern), top.replicated) == (
        "custom_call.mhlo_topk",
        "f0 f1 -> f0 w1_1",
        ("f1", "w1_1"),
    )
    assert "einsum" in names(program)
    assert not program.without_rule


# HLO from before partitioning.


HLO = """HloModule jit_f, num_partitions=4NAMES

ENTRY main {
  p = f32[8,4]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}
  q = f32[4,6]{1,0} parameter(1), sharding={devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  c = f32[8,4]{1,0} custom-call(p), custom_call_target="Sharding", sharding={devices=[2,2]<=[4]}CONFIG
  t = f32[8,6]{1,0} dot(c, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[8,6]{1,0} tanh(t), sharding={replicated}
}
"""
NAMES = r', frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2, "y"=2]>}}'


def hlo(names: str = "", config: str = "") -> str:
    return HLO.replace("NAMES", names).replace("CONFIG", config)


@pytest.mark.parametrize(("names", "axes"), [("", "ab"), (NAMES, "xy")])
def test_hlo_is_read_with_its_shardings(names: str, axes: str) -> None:
    first, second = axes
    program = Program.from_stablehlo(hlo(names))
    assert program.mesh == rs.Mesh.of({first: 2, second: 2})
    given = {value.name: sharding.text() for value, sharding in program.annotations.items()}
    assert given["arg0"] == f'[{{"{first}", "{second}"}}, {{}}]'
    assert given["arg1"] == f'[{{}}, {{"{second}"}}]'
    assert f'[{{"{first}"}}, {{"{second}"}}]' in given.values()
    assert given["result"] == "[{}, {}]"
    placed = program.propagate()
    p, q = np.arange(32, dtype=np.float32).reshape(8, 4) / 32, np.arange(24, dtype=np.float32).reshape(4, 6) / 24
    found = rs.numpy.run_program(placed, {"arg0": p, "arg1": q})
    assert np.allclose(found["result"], np.tanh(p @ q), rtol=1e-6)


def test_dims_that_hlo_leaves_unspecified_are_open() -> None:
    program = Program.from_stablehlo(hlo(config=', backend_config="unspecified_dims=[1]"'))
    assert '[{"a"}, {"b", ?}]' in [sharding.text() for sharding in program.annotations.values()]


def test_what_jax_dumps_is_placed_as_what_it_lowers() -> None:
    """The same layer, by way of XLA's text."""
    module = lowered(lambda x, w: jnp.tanh(x @ w) @ w.T, jax.ShapeDtypeStruct((16, 8), "float32", sharding=on("x")),
                     jax.ShapeDtypeStruct((8, 32), "float32", sharding=on(None, "y")))  # fmt: skip
    computation = jax._src.lib._jax.mlir.mlir_module_to_xla_computation(
        module.replace("{\n", f"{{\n{MESH_LINE}\n", 1) if "sdy.mesh" not in module else module
    )
    text = computation.get_hlo_module().to_string()
    from_text, from_module = Program.from_stablehlo(text), Program.from_stablehlo(module)
    assert from_text.propagate().received_bytes == from_module.propagate().received_bytes


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (hlo().replace("HloModule jit_f,", "HloModule jit_f, is_scheduled=true,"), "cannot-express", "before optimi"),
        (hlo().replace("sharding={devices=[2,2]<=[4]}", "sharding={manual}"), "cannot-express", "manual computation"),
        (hlo().replace("[2,2]<=[4]}", "[2,2]<=[2,2]T(1,0)}"), "", ""),
        ("HloModule m\nENTRY e {\n  ROOT p = f32[8] parameter(0)\n}\n", "unknown-mesh", "no mesh with axes"),
        ("HloModule m\nENTRY e {\n  ROOT p = what(0)\n}\n", "syntax", "XLA refuses the text"),
        ("HloModule", "syntax", "XLA refuses the text"),
    ],
    ids=["compiled", "manual", "another order", "no sharding", "no operation", "cut short"],
)
def test_hlo_is_read_or_refused(text: str, code: str, says: str) -> None:
    if not code:
        assert Program.from_stablehlo(text).propagate().received_bytes
        return
    with pytest.raises(rs.ReshardError, match=says) as refused:
        Program.from_stablehlo(text)
    assert refused.value.code == code


def test_a_dump_of_hlo_alone_tells_what_propagate_would_receive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))
    x = jax.ShapeDtypeStruct((8, 4), "float32", sharding=rows)
    program = jax.jit(jnp.tanh, out_shardings=columns).trace(x).lower()
    texts = {"before": program.as_text(dialect="hlo"), "cpu_after": program.compile().as_text()}
    for place, text in texts.items():
        (tmp_path / f"module_0001.jit_tanh.{place}_optimizations.txt").write_text(str(text))
    assert main(["inspect", "--json", str(tmp_path)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["placed_bytes"], record["placed_why"]) == (24, "")


def test_a_reduction_may_call_functions() -> None:
    """Where JAX lowers what a reduction does to a call, as it does `where`: the largest of a row, and its place."""

    def larger(left: Any, right: Any) -> Any:
        return jnp.where(left[0] > right[0], left[0], right[0]), jnp.where(left[0] > right[0], left[1], right[1])

    def largest(x: Any, places: Any) -> Any:
        return lax.reduce((x, places), (np.float32(-np.inf), np.int32(0)), larger, (1,))

    x = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
    places = np.indices((8, 4), dtype="int32")[1]
    avals = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=on("x", None)) for each in (x, places)]
    text = lowered(largest, *avals)
    assert "func.call" in text or "call @" in text
    found = to_jax(rs.Program.from_stablehlo(text).propagate())(x, places)
    for each, expected in zip(found, (x.max(axis=1), x.argmax(axis=1)), strict=True):
        np.testing.assert_array_equal(each, expected)


@pytest.mark.parametrize("keys", [2, 3])
def test_a_sort_may_have_several_keys(keys: int) -> None:
    """Each of few values, so that the next key decides often; NaN is last, and both zeros are one."""

    def ordered(*arrays: Any) -> Any:
        return lax.sort(arrays, dimension=1, num_keys=keys)

    rng = np.random.default_rng(keys)
    floats_of_few = rng.choice(np.array([-1, -0.0, 0.0, 2, np.nan], "float32"), (8, 16))
    arrays = [rng.integers(-1, 2, (8, 16)).astype("int32"), floats_of_few, rng.integers(0, 2, (8, 16)).astype("uint8")]
    avals = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=on("x", None)) for each in arrays]
    found = to_jax(rs.Program.from_stablehlo(lowered(ordered, *avals)).propagate())(*arrays)
    for each, expected in zip(found, ordered(*arrays), strict=True):
        np.testing.assert_array_equal(each, expected)


def test_a_comparator_may_go_down_by_one_key_and_up_by_the_next() -> None:
    def text(second: str, same: str = "%a0, %b0") -> str:
        pair, numbers = "(tensor<i32>, tensor<i32>) -> tensor<i1>", "tensor<8x8xi32>"
        return module(
            f"""  %0:2 = "stablehlo.sort"(%a, %b) <{{dimension = 1 : i64, is_stable = true}}> ({{
  ^bb0(%a0: tensor<i32>, %b0: tensor<i32>, %a1: tensor<i32>, %b1: tensor<i32>):
    %1 = stablehlo.compare GT, %a0, %b0, SIGNED : {pair}
    %2 = stablehlo.compare EQ, {same}, SIGNED : {pair}
    %3 = stablehlo.compare LT, {second}, SIGNED : {pair}
    %4 = stablehlo.and %2, %3 : tensor<i1>
    %5 = stablehlo.or %1, %4 : tensor<i1>
    stablehlo.return %5 : tensor<i1>
  }}) : ({numbers}, {numbers}) -> ({numbers}, {numbers})
  return %0#1 : {numbers}""",
            f"%a: {numbers}, %b: {numbers}",
            numbers,
        )

    first, second = np.random.default_rng(0).integers(0, 3, (2, 8, 8)).astype("int32")
    order = np.lexsort((second, -first), axis=1)
    found = to_jax(rs.Program.from_stablehlo(text("%a1, %b1")).propagate())(first, second)
    np.testing.assert_array_equal(found, np.take_along_axis(second, order, axis=1))
    for refused in (text("%b1, %a1"), text("%a1, %b1", "%a1, %b1"), text("%a0, %b1")):
        with pytest.raises(rs.ReshardError, match="must go by the size of the elements") as caught:
            rs.Program.from_stablehlo(refused)
        assert caught.value.code == "cannot-express"
