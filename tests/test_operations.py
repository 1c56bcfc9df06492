"""Every kind of operation on the tiles of every engine, held to NumPy on the whole; and names that nobody knows."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import reshard as rs
from reshard import Mesh, ReshardError, Sharding
from reshard.operations.interpreter import BoxExtents, Verbs, compute
from reshard.operations.kinds import KINDS, KindForm
from reshard.propagation import Placement, Program, Value

Array = Any


class Engine(NamedTuple):
    verbs: Verbs
    take_in: Callable[[Array], Any]
    give_back: Callable[[Any], Array]


def engine(name: str) -> Engine:
    """An engine's arrays, and the way to them and back."""
    third_party = np if name == "numpy" else pytest.importorskip(name)
    verbs = importlib.import_module(f"reshard.{name}.verbs").VERBS
    if name != "torch":
        return Engine(verbs, (third_party if name == "numpy" else third_party.numpy).asarray, np.asarray)

    def take_in(array: Array) -> Any:
        if array.dtype.name == "bfloat16":
            return third_party.tensor(array.astype(np.float32)).bfloat16()
        return third_party.tensor(array)

    def give_back(tensor: Any) -> Array:
        return tensor.float().numpy().astype("bfloat16") if tensor.dtype == third_party.bfloat16 else tensor.numpy()

    return Engine(verbs, take_in, give_back)


def run_on(engine: Engine, placed: Placement, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a placed program, every operation computed on tiles of an engine and reshards by NumPy."""
    tiles: dict[str, dict[int, Array]] = {}
    results = {}
    for operation in placed.operations:
        value, sharding = operation.result, placed.sharding(operation.result)
        sources = [tiles[operand.name] for operand in operation.operands]
        if operation.name == "input":
            tiles[value.name] = rs.numpy.scatter(inputs[value.name], sharding)
        elif operation.name == "constant":
            whole = np.full(value.shape, operation.attribute("value"), value.dtype.name)
            tiles[value.name] = rs.numpy.scatter(whole, sharding)
        elif value in placed.plans:
            tiles[value.name] = rs.numpy.run(placed.plans[value], sources[0])
        elif operation.name == "output":
            tiles[value.name] = sources[0]
            results[value.name] = rs.numpy.gather(sources[0], sharding, value.shape)
        else:
            shardings = [placed.sharding(one) for one in operation.values]
            tiles[value.name] = {}
            for device in sharding.mesh.devices:
                extents = BoxExtents(operation, shardings, device)
                arrays = [engine.take_in(own[device]) for own in sources]
                with np.errstate(all="ignore"):
                    result = engine.give_back(compute(engine.verbs, operation, extents, arrays))
                assert result.dtype.name == value.dtype.name
                tiles[value.name][device] = result
    return results


# Every kind, with what NumPy makes of it


class Case(NamedTuple):
    """An operation of some arrays of `rows` rows."""

    arrays: Callable[[int], list[Array]]
    build: Callable[[Program, list[Value]], Value]
    expected: Callable[..., Array]


def floats(*shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> Callable[[int], list[Array]]:
    """Arrays of these shapes, 0 standing for the number of rows."""

    def draw(rows: int) -> list[Array]:
        rng = np.random.default_rng(rows)
        return [rng.uniform(low, high, [size or rows for size in shape]).astype(np.float32) for shape in shapes]

    return draw


def integers(
    *shapes: tuple[int, ...], low: int = -7, high: int = 8, dtype: str = "int32"
) -> Callable[[int], list[Array]]:
    """As `floats`, whole numbers."""

    def draw(rows: int) -> list[Array]:
        rng = np.random.default_rng(rows)
        return [rng.integers(low, high, [size or rows for size in shape]).astype(dtype) for shape in shapes]

    return draw


def by_pattern(name: str, pattern: str, **how: Any) -> Callable[[Program, list[Value]], Value]:
    return lambda program, values: program.op(pattern, *values, name=name, **how)


def of_elements(name: str, function: Callable[..., Array], arrays: Any = None, **how: Any) -> Case:
    """An elementwise operation; its operands are as many as its kind has."""
    count = KINDS[name].operands or 3
    pattern = ",".join(["ij"] * count) + "->ij"
    return Case(arrays or floats(*[(0, 4)] * count), by_pattern(name, pattern, **how), function)


def with_flags(rows: int) -> list[Array]:
    first, *others = floats((0, 4), (0, 4), (0, 4))(rows)
    return [first > 0, *others]


def bounds(rows: int) -> list[Array]:
    (low, a, high) = floats((0, 4), (0, 4), (0, 4))(rows)
    return [low / 2 - 1, a, high / 2 + 1]


def halves(rows: int) -> list[Array]:
    (a,) = floats((0, 4))(rows)
    return [np.where(a > 0, a, np.float32(np.inf))]


def complexes(rows: int) -> list[Array]:
    (a, b) = floats((0, 4), (0, 4))(rows)
    return [(a + 1j * b).astype(np.complex64)]


POSITIVE = floats((0, 4), low=0.1)
BITS = integers((0, 4), (0, 4))
COMPARED = integers((0, 4), (0, 4), low=0, high=3)


def sigmoid(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


def softmax(a: Array) -> Array:
    powers = np.exp(a)
    return powers / powers.sum(1, keepdims=True)


ELEMENTWISE = {
    "abs": of_elements("abs", np.abs),
    "add": of_elements("add", np.add),
    "and": of_elements("and", np.bitwise_and, BITS),
    "atan2": of_elements("atan2", np.arctan2),
    "cbrt": of_elements("cbrt", np.cbrt),
    "ceil": of_elements("ceil", np.ceil),
    "clamp": of_elements("clamp", lambda low, a, high: np.where(a < low, low, np.where(a > high, high, a)), bounds),
    "complex": of_elements("complex", lambda a, b: a + 1j * b, dtype="complex64"),
    "conj": of_elements("conj", lambda a: a.real - 1j * a.imag, complexes),
    "cos": of_elements("cos", np.cos),
    "cosh": of_elements("cosh", np.cosh),
    "div": of_elements("div", np.divide, floats((0, 4), (0, 4), low=0.5)),
    "equal": of_elements("equal", np.equal, COMPARED, dtype="bool"),
    "erf": of_elements("erf", lambda a: np.array([math.erf(x) for x in a.ravel()]).reshape(a.shape)),
    "exp": of_elements("exp", np.exp),
    "exp2": of_elements("exp2", lambda a: 2.0**a),
    "expm1": of_elements("expm1", lambda a: np.exp(a) - 1),
    "floor": of_elements("floor", np.floor),
    "ge": of_elements("ge", np.greater_equal, COMPARED, dtype="bool"),
    "gt": of_elements("gt", np.greater, COMPARED, dtype="bool"),
    "imag": of_elements("imag", lambda a: a.imag, complexes, dtype="float32"),
    "integer_pow": of_elements("integer_pow", lambda a: a * a * a, attributes={"y": 3}),
    "is_finite": of_elements("is_finite", np.isfinite, halves, dtype="bool"),
    "le": of_elements("le", np.less_equal, COMPARED, dtype="bool"),
    "less": of_elements("less", np.less, COMPARED, dtype="bool"),
    "log": of_elements("log", np.log, POSITIVE),
    "log1p": of_elements("log1p", lambda a: np.log(1 + a), POSITIVE),
    "logaddexp": of_elements("logaddexp", np.logaddexp),
    "maximum": of_elements("maximum", np.maximum),
    "minimum": of_elements("minimum", np.minimum),
    "mul": of_elements("mul", np.multiply),
    "ne": of_elements("ne", np.not_equal, COMPARED, dtype="bool"),
    "neg": of_elements("neg", np.negative),
    "not": of_elements("not", np.invert, integers((0, 4))),
    "or": of_elements("or", np.bitwise_or, BITS),
    "pow": of_elements("pow", np.power, floats((0, 4), (0, 4), low=0.5)),
    "real": of_elements("real", lambda a: a.real, complexes, dtype="float32"),
    "relu": of_elements("relu", lambda a: np.where(a > 0, a, 0)),
    "rem": of_elements("rem", np.fmod, floats((0, 4), (0, 4), low=0.5)),
    "round": of_elements("round", np.rint, integers((0, 4), low=-5, high=6, dtype="float32")),
    "rsqrt": of_elements("rsqrt", lambda a: a**-0.5, POSITIVE),
    "select": of_elements("select", np.where, with_flags, dtype="float32"),
    "select_n": of_elements("select_n", lambda which, a, b: np.where(which, b, a), with_flags, dtype="float32"),
    "sigmoid": of_elements("sigmoid", sigmoid),
    "sign": of_elements("sign", np.sign),
    "silu": of_elements("silu", lambda a: a * sigmoid(a)),
    "sin": of_elements("sin", np.sin),
    "sinh": of_elements("sinh", np.sinh),
    "sqrt": of_elements("sqrt", np.sqrt, POSITIVE),
    "square": of_elements("square", lambda a: a * a),
    "stop_gradient": of_elements("stop_gradient", lambda a: a),
    "sub": of_elements("sub", np.subtract),
    "tan": of_elements("tan", np.tan, floats((0, 4), low=-1.0, high=1.0)),
    "tanh": of_elements("tanh", np.tanh),
    "xor": of_elements("xor", np.bitwise_xor, BITS),
}


def table_and_rows(rows: int) -> list[Array]:
    return [floats((0, 4))(rows)[0], np.random.default_rng(0).integers(0, rows, (2, 3)).astype(np.int32)]


def along(name: str, dim: int, function: Callable[..., Array]) -> Case:
    return Case(floats((0, 4)), by_pattern(name, "ij->ij", replicated="ij"[dim]), function)


def picked(program: Program, values: list[Value]) -> Value:
    """The last row."""
    attributes = {"dims": (0,), "start": (values[0].shape[0] - 1,)}
    return program.op("ij->1j", *values, name="pick", selected="i", attributes=attributes)


def put(program: Program, rows: int, value: Value) -> Value:
    """A last row after rows of sevens."""
    attributes = {"dims": (0,), "start": (rows - 1,), "value": 7}
    return program.op("1j->ij", value, name="put", sizes={"i": rows}, attributes=attributes)


def counted(program: Program, values: list[Value]) -> Value:
    rows, columns = values[0].shape
    zero = program.constant(0, (), "int32")
    numbers = program.op("->ij", zero, name="iota", sizes={"i": rows, "j": columns}, attributes={"dim": 0})
    return program.op("ij,ij->ij", values[0], numbers, name="add")


OTHERS = {
    "broadcast": Case(
        floats((0, 4)),
        lambda p, v: p.broadcast(v[0], (v[0].shape[0], 3, 4), (0, 2)),
        lambda a: np.stack([a] * 3, 1),
    ),
    "cast": Case(integers((0, 4)), by_pattern("cast", "ij->ij", dtype="float32"), lambda a: a.astype(np.float32)),
    "concatenate": Case(floats((0, 4), (0, 2)), lambda p, v: p.concatenate(v, 1), lambda a, b: np.hstack([a, b])),
    "convert": Case(floats((0, 4)), by_pattern("convert", "ij->ij", dtype="float16"), lambda a: a.astype(np.float16)),
    "copy": Case(floats((0, 4)), by_pattern("copy", "ij->ij"), lambda a: a),
    "cumlogsumexp": along("cumlogsumexp", 0, lambda a: np.logaddexp.accumulate(a, 0)),
    "cummax": along("cummax", 1, lambda a: np.maximum.accumulate(a, 1)),
    "cummin": along("cummin", 0, lambda a: np.minimum.accumulate(a, 0)),
    "cumprod": along("cumprod", 1, lambda a: np.cumprod(a, 1)),
    "cumsum": along("cumsum", 0, lambda a: np.cumsum(a, 0)),
    "einsum": Case(floats((0, 4), (4, 5)), by_pattern("einsum", "ij,jk->ki"), lambda a, b: (a @ b).T),
    "iota": Case(floats((0, 4)), counted, lambda a: a + np.arange(len(a))[:, None]),
    "max": Case(floats((0, 4)), by_pattern("max", "ij->j"), lambda a: a.max(0)),
    "min": Case(floats((0, 4)), by_pattern("min", "ij->"), lambda a: a.min()),
    "pad": Case(
        floats((0, 4)),
        lambda p, v: p.pad(v[0], (0, 1), (0, 2), 3.0),
        lambda a: np.pad(a, ((0, 0), (1, 2)), constant_values=3),
    ),
    "pick": Case(floats((0, 4)), picked, lambda a: a[-1:]),
    "product": Case(floats((0, 4)), by_pattern("product", "ij->j"), lambda a: a.prod(0)),
    "put": Case(
        lambda rows: [*floats((0, 4))(rows), *floats((1, 4))(rows)],
        lambda p, v: p.op("ij,ij->ij", v[0], put(p, v[0].shape[0], v[1]), name="add"),
        lambda a, b: a + np.vstack([np.full((len(a) - 1, 4), 7, a.dtype), b]),
    ),
    "reshape": Case(floats((0, 4)), lambda p, v: p.reshape(v[0], (v[0].shape[0] * 2, 2)), lambda a: a.reshape(-1, 2)),
    "reverse": Case(floats((0, 4)), lambda p, v: p.reverse(v[0], (0,)), lambda a: a[::-1]),
    "roll": Case(floats((0, 4)), lambda p, v: p.roll(v[0], (2, 1), (0, 1)), lambda a: np.roll(a, (2, 1), (0, 1))),
    "slice": Case(floats((0, 4)), lambda p, v: p.slice(v[0], (0, 1), (v[0].shape[0], 4), (1, 2)), lambda a: a[:, 1::2]),
    "softmax": along("softmax", 1, softmax),
    "sort": Case(floats((0, 4)), by_pattern("sort", "ij->ji", replicated="j"), lambda a: np.sort(a, 1).T),
    "sum": Case(floats((0, 4)), by_pattern("sum", "ij->i"), lambda a: a.sum(1)),
    "take": Case(table_and_rows, lambda p, v: p.take(*v), lambda table, rows: table[rows]),
    "transpose": Case(floats((0, 4)), lambda p, v: p.transpose(v[0], (1, 0)), lambda a: a.T),
}
CASES = ELEMENTWISE | OTHERS
LAYOUTS = {"uneven": (3, 7), "with empty tiles": (4, 2)}
"""Devices and rows."""


def placed_case(case: Case, devices: int, rows: int) -> tuple[Placement, dict[str, Array], Array]:
    mesh = Mesh.of(x=devices)
    program = Program(mesh)
    arrays = case.arrays(rows)
    values = [
        program.input(f"in{n}", array.shape, array.dtype, Sharding.of(mesh, "x", *["?"] * (array.ndim - 1)))
        if array.shape[0] == rows
        else program.input(f"in{n}", array.shape, array.dtype)
        for n, array in enumerate(arrays)
    ]
    program.output(case.build(program, values), result="out")
    with np.errstate(all="ignore"):
        expected = case.expected(*arrays)
    return program.propagate(), {value.name: array for value, array in zip(values, arrays, strict=True)}, expected


def test_there_is_a_case_for_every_kind() -> None:
    assert set(CASES) == {
        name for name, kind in KINDS.items() if kind.form not in (KindForm.END, KindForm.ENTERING, KindForm.LEAVING)
    }


@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_an_engine_knows_every_function(name: str) -> None:
    verbs = engine(name).verbs
    assert set(verbs.elementwise) == {name for name, kind in KINDS.items() if kind.form is KindForm.ELEMENTWISE}
    assert set(verbs.along) == {name for name, kind in KINDS.items() if kind.form is KindForm.ALONG}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("on", ["numpy", "jax", "torch"])
def test_every_kind_on_every_engine(on: str, layout: str) -> None:
    verbs = engine(on)
    compiled_anew = on == "jax" and layout != "uneven"  # for every shape of every operation
    for name, case in (OTHERS if compiled_anew else CASES).items():
        placed, inputs, expected = placed_case(case, *LAYOUTS[layout])
        (result,) = run_on(verbs, placed, inputs).values()
        assert result.shape == expected.shape, name
        if result.dtype.kind in "biu":
            np.testing.assert_array_equal(result, expected, err_msg=name)
        else:
            np.testing.assert_allclose(
                result, expected, rtol=2e-3 if name == "convert" else 1e-5, atol=1e-5, err_msg=name
            )


def with_dtype(case: Case, dtype: str) -> Case:
    """A case with arrays of whole numbers in another dtype."""

    def arrays(rows: int) -> list[Array]:
        return [array if array.dtype == bool else np.rint(array).astype(dtype) for array in case.arrays(rows)]

    return case._replace(arrays=arrays)


MOVING = "broadcast concatenate copy pad pick put reshape slice sort transpose"
OTHER_DTYPES = {
    "bfloat16": f"{MOVING} add cbrt cumsum div einsum exp max min neg product relu select_n sigmoid softmax sum",
    "int8": f"{MOVING} abs add and cummax cumsum div einsum integer_pow max min mul neg not product rem sub sum xor",
    "uint8": f"{MOVING} add and cummin einsum equal less max min mul or sum",
    "bool": "and broadcast concatenate copy equal max min not or pick reshape slice sum transpose xor",
}


@pytest.mark.parametrize("dtype", OTHER_DTYPES)
@pytest.mark.parametrize("on", ["numpy", "jax", "torch"])
def test_other_dtypes(on: str, dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    verbs = engine(on)
    for name in OTHER_DTYPES[dtype].split():
        case = with_dtype(CASES[name], dtype)
        if name == "div" and dtype == "int8":  # cut towards zero
            case = case._replace(expected=lambda a, b: np.trunc(np.divide(a, b, dtype=np.float32)))
            case = case._replace(arrays=lambda rows: [*integers((0, 4))(rows), *integers((0, 4), low=1)(rows)])
            case = with_dtype(case, dtype)
        placed, inputs, _ = placed_case(case._replace(expected=lambda *_: None), 3, 7)
        wide = {"b": np.bool_, "i": np.int64, "u": np.int64}.get(np.dtype(dtype).kind, np.float32)
        with np.errstate(all="ignore"):
            expected = np.asarray(case.expected(*(array.astype(wide) for array in inputs.values())))
        (result,) = run_on(verbs, placed, inputs).values()
        if dtype == "bfloat16":
            result, expected = result.astype(np.float32), expected.astype(np.float32)
            np.testing.assert_allclose(result, expected, rtol=2e-2, atol=2e-2, err_msg=name)
        else:
            np.testing.assert_array_equal(result, expected.astype(dtype), err_msg=name)


# Names that nobody knows


HEAD = 'sdy.mesh @mesh = <["x"=2]>\na = input : float32[4, 6] <@mesh, [{"x"}, {}]>\n'


def test_an_unknown_operation_is_refused_unless_it_is_opaque() -> None:
    program = Program(Mesh.of(x=2))
    a = program.input("a", (4, 6), sharding=Sharding.of(program.mesh, "x", None))
    refusals = [
        (lambda: program.op("ij->ij", a, name="riddle"), "operation riddle is not known"),
        (lambda: Program.parse(HEAD + 'b = riddle "ij->ij" (a)'), "line 3, value b: operation riddle is not known"),
        (lambda: program.op("ij->ij", a, name="exp", opaque=True), "operation exp is known, and cannot be opaque"),
        (lambda: Program.parse(HEAD + 'b = exp "ij->ij" (a) {opaque=3}'), "opaque must stand alone"),
        (lambda: Program.parse(HEAD + 'b = exp "ij->ij" (a) {loud}'), "attribute loud must have a value"),
    ]
    for call, words in refusals:
        with pytest.raises(ReshardError) as refused:
            call()
        assert refused.value.code == "bad-program"
        assert words in str(refused.value)
    riddle = program.op("ij->i", a, name="riddle", opaque=True, result="b")
    program.output(riddle, result="out")
    assert Program.parse(str(program)).operations == program.operations
    assert "{opaque}" in str(program)
    placed = program.propagate()
    assert placed.sharding(riddle).text() == '[{"x"}]'
    assert Program.parse(placed.text()).propagate().text() == placed.text()
    with pytest.raises(ReshardError, match="value b: operation riddle is not known here") as refused:
        rs.numpy.run_program(placed, {"a": np.zeros((4, 6), np.float32)})
    assert refused.value.code == "bad-program"


def test_an_opaque_operation_has_what_it_drops_whole_and_is_priced() -> None:
    program = Program(Mesh.of(x=2))
    a = program.input("a", (4, 6), sharding=Sharding.of(program.mesh, None, "x"))
    program.output(program.op("ij->i", a, name="riddle", opaque=True), Sharding.of(program.mesh, None))
    assert program.propagate().received_bytes == 2 * 3 * 4 + 2 * 4  # the other half of its rows, then the other results


@pytest.mark.parametrize(
    ("pattern", "name", "more", "words"),
    [
        ("ij->ij", "sort", {}, "operation sort must name the one replicated label"),
        ("ij->ij", "softmax", {"replicated": "ij"}, "operation softmax must name the one replicated label"),
        ("ij->i", "relu", {}, "operation relu of ij->i drops label j"),
        ("ii->i", "sum", {}, "may have no label twice in an operand"),
        ("i j -> i ; j", "sum", {}, "may join no label"),
        ("ij->ij", "slice", {}, "operation slice must have the attribute start"),
        ("ij->ij", "add", {}, "operation add must have 2 operands, got 1"),
    ],
)
def test_what_a_kind_cannot_be_is_refused(pattern: str, name: str, more: dict[str, Any], words: str) -> None:
    program = Program(Mesh.of(x=2))
    with pytest.raises(ReshardError) as refused:
        program.op(pattern, program.input("a", (4, 4)), name=name, **more)
    assert words in str(refused.value)
