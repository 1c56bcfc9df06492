"""`reshard.jax.einsum`: values on every device, bytes counted from the compiled program, derivatives, and refusals.

Values are small integers, so that every sum is exact in any order; what they should be is NumPy's einsum of the
whole arrays, or JAX's own derivative of its own einsum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax._src.core import ShardingTypeError  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_hlo import Collective, collectives, received_bytes  # noqa: E402
from jax_problems import draw_spec, shards  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.contraction import EinsumPlan  # noqa: E402
from reshard.jax import einsum, sharding_of  # noqa: E402
from reshard.jax.overlap import Ring, overlapped_seconds  # noqa: E402
from reshard.network import Level, Network  # noqa: E402
from reshard.patterns import Pattern  # noqa: E402
from reshard.steps import Step  # noqa: E402

pytestmark = pytest.mark.engine

Array = np.ndarray[Any, Any]
KINDS = (AxisType.Explicit, AxisType.Auto)
MATMUL = "ij,jk->ik"
ROWS, COLUMNS, WHOLE = P("x", None), P(None, "x"), P(None, None)
PLACES = {"R": WHOLE, "S0": ROWS, "S1": COLUMNS, "P": P(None, None, unreduced={"x"})}


def mesh_of(sizes: Sequence[int], kind: AxisType = AxisType.Explicit, devices: Sequence[Any] | None = None) -> Any:
    chosen = np.array(devices or jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return jax.sharding.Mesh(chosen, ("x", "y", "z")[: len(sizes)], axis_types=(kind,) * len(sizes))


def drawn_values(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    return rng.integers(-4, 5, shape).astype(dtype)


def placed(whole: Array, sharding: NamedSharding, rng: np.random.Generator) -> Any:
    """An array on its devices; where it is unreduced every device holds a random part of the sum."""
    parts = {}
    axes = [sharding.mesh.axis_names.index(name) for name in sharding.spec.unreduced]
    cut = NamedSharding(sharding.mesh, P(*sharding.spec.partitions)).devices_indices_map(whole.shape)
    rest: dict[tuple[int, ...], list[Any]] = {}
    for coordinates, device in np.ndenumerate(sharding.mesh.devices):
        key = tuple(c for n, c in enumerate(coordinates) if n not in axes)
        rest.setdefault(key, []).append(device)
    for devices in rest.values():
        left = whole[cut[devices[0]]].copy()
        for device in devices[1:]:
            parts[device] = drawn_values(rng, left.shape, whole.dtype)
            left = left - parts[device]
        parts[devices[0]] = left
    shards_ = [jax.device_put(parts[device], device) for device in sharding.mesh.devices.flat]
    return jax.make_array_from_single_device_arrays(whole.shape, sharding, shards_)


def assert_there(result: Any, target: NamedSharding, expected: Array) -> None:
    """The right values on every device; partial ones add up to them."""
    assert result.shape == expected.shape
    assert result.sharding.is_equivalent_to(target, result.ndim), (result.sharding, target)
    assert result.sharding.spec.unreduced == target.spec.unreduced
    cut = NamedSharding(target.mesh, P(*target.spec.partitions)).devices_indices_map(expected.shape)
    classes = int(np.prod([target.mesh.shape[name] for name in target.spec.unreduced]))
    copies = target.mesh.size // classes
    if classes == 1:
        for shard in result.addressable_shards:
            assert np.array_equal(shard.data, expected[cut[shard.device]])
        return
    total, often = np.zeros_like(expected), np.zeros(expected.shape, int)
    for shard in result.addressable_shards:
        total[cut[shard.device]] += np.asarray(shard.data)
        often[cut[shard.device]] += 1
    assert copies >= 1
    assert np.array_equal(total * classes, expected * often)


def found(function: Callable[..., Any], *given: Any) -> list[Collective]:
    return collectives(jax.jit(function).lower(*given).compile().as_text(), given[0].sharding.mesh.size)


def counted(function: Callable[..., Any], *given: Any) -> list[int]:
    return received_bytes(found(function, *given), given[0].sharding.mesh.size)


def plan_of(text: str, given: Sequence[Any], target: NamedSharding | None, **options: Any) -> EinsumPlan:
    ends = [sharding_of(x.sharding, ndim=x.ndim) for x in given]
    wanted = None if target is None else sharding_of(target, ndim=len(Pattern.of(text).output))
    shapes = [x.shape for x in given]
    return rs.einsum(text, *ends, shapes=shapes, dtype=given[0].dtype, target=wanted, **options)


def whole_einsum(text: str, *arrays: Array) -> Array:
    """By NumPy, of a pattern of letters without groups."""
    return np.asarray(np.einsum(text, *arrays))


def spread_evenly(step: Step) -> bool:
    return len(set(step.all_received_bytes().tolist())) == 1


def check(
    text: str, given: Sequence[Any], arrays: Sequence[Array], target: NamedSharding | None, **options: Any
) -> int:
    """In jit: values on every device, and bytes that are the plan's; the bytes of the busiest device."""
    mesh = given[0].sharding.mesh
    is_auto = AxisType.Auto in mesh.axis_types
    sources = [x.sharding for x in given] if is_auto else None
    program = jax.jit(lambda *xs: einsum(text, *xs, target=target, sources=sources, **options))
    compiled = program.lower(*given).compile()
    result = compiled(*given)
    got = received_bytes(collectives(compiled.as_text(), mesh.size), mesh.size)
    assert_there(result, target or result.sharding, whole_einsum(text, *arrays))
    plan = plan_of(text, given, target or result.sharding)
    said = [plan.received_bytes_on(device) for device in plan.target.mesh.devices]
    steps = [step for part in plan.parts() for by in part.plans for step in by.steps]
    if all(spread_evenly(step) for step in steps if step.kind == "AllReduce"):
        assert got == said
    else:
        assert max(got) <= max(said)  # of less than an element per device XLA's all-reduce loads all devices alike
    return max(got)


# Products of two matrices


@pytest.mark.parametrize(("first", "second"), list(product(PLACES, repeat=2)))
def test_every_product_on_one_axis(first: str, second: str) -> None:
    mesh, rng = mesh_of((4,)), np.random.default_rng(0)
    arrays = [drawn_values(rng, shape, "int32") for shape in ((8, 12), (12, 16))]
    given = [
        placed(array, NamedSharding(mesh, PLACES[place]), rng)
        for array, place in zip(arrays, (first, second), strict=True)
    ]
    for place in PLACES.values():
        check(MATMUL, given, arrays, NamedSharding(mesh, place))
    free = check(MATMUL, given, arrays, None)
    assert free <= plan_of(MATMUL, given, NamedSharding(mesh, PLACES["R"])).received_bytes


def xla_bytes(given: Sequence[Any], target: NamedSharding) -> int | None:
    """What XLA's own product needs on the busiest device; None where JAX cannot say it.

    JAX multiplies no partial operands, so these are first made whole or cut, whatever needs the fewest bytes.
    """
    best: list[int] = []
    ways = [PLACES.values() if x.sharding.spec.unreduced else [x.sharding.spec] for x in given]
    for specs in product(*ways):
        if any(spec.unreduced for spec in specs):
            continue
        ends = [NamedSharding(target.mesh, spec) for spec in specs]

        def run(*xs: Any, ends: Sequence[NamedSharding] = ends) -> Any:
            here = [jax.sharding.reshard(x, end) for x, end in zip(xs, ends, strict=True)]
            return jnp.einsum(MATMUL, *here, out_sharding=target)

        try:
            best.append(max(counted(run, *given)))
        except ShardingTypeError:
            continue  # JAX gives no product that is partial where it makes whole ones
    return min(best, default=None)


def beside_xla(mesh: Any, specs: dict[str, P], cases: Sequence[tuple[str, str, str]]) -> dict[str, list[str]]:
    """Products for which ours needs fewer bytes than XLA's, and as many; never more."""
    rng = np.random.default_rng(0)
    arrays = [drawn_values(rng, (24, 24), "int32") for _ in range(2)]
    table: dict[str, list[str]] = {"fewer": [], "as many": []}
    for first, second, place in cases:
        ends = [NamedSharding(mesh, specs[name]) for name in (first, second, place)]
        given = [placed(array, end, rng) for array, end in zip(arrays, ends, strict=False)]
        ours, theirs = plan_of(MATMUL, given, ends[2]).received_bytes, xla_bytes(given, ends[2])
        if theirs is not None:
            assert ours <= theirs, (first, second, place, ours, theirs)
            table["fewer" if ours < theirs else "as many"].append(f"{first} {second} -> {place}")
    return table


def test_never_more_bytes_than_xla_on_one_axis() -> None:
    cases = [case for case in product(PLACES, repeat=3) if "P" not in case[:2]]
    table = beside_xla(mesh_of((4,)), PLACES, cases)
    assert {key: len(found) for key, found in table.items()} == {"fewer": 11, "as many": 17}
    assert {"S1 R -> S1", "S0 S0 -> R", "S1 S0 -> S1"} <= set(table["fewer"])


@pytest.mark.slow
def test_never_more_bytes_than_xla_with_partial_operands() -> None:
    cases = [case for case in product(PLACES, repeat=3) if "P" in case[:2]]
    table = beside_xla(mesh_of((4,)), PLACES, cases)
    assert len(table["fewer"]) > len(table["as many"]) > 0


MATRICES = {
    f"{first},{second}": P(*dims)
    for first, second, dims in (
        ("R", "R", (None, None)), ("S0", "R", ("x", None)), ("R", "S1", (None, "y")), ("S0", "S1", ("x", "y")),
        ("S1", "S0", ("y", "x")), ("S0", "S0", (("x", "y"), None)), ("S1", "S1", (None, ("y", "x"))),
    )
}  # fmt: skip
"""Where axes x and y may cut a matrix."""


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)], ids=str)
def test_never_more_bytes_than_xla_on_two_axes(sizes: tuple[int, int]) -> None:
    cases = Random(0).sample(list(product(MATRICES, repeat=3)), 12)
    table = beside_xla(mesh_of(sizes), MATRICES, cases)
    assert len(table["fewer"]) > len(table["as many"])


# Any expression


LETTERS = (
    "ij,jk->ik", "bij,bjk->bik", "ij,ij->ij", "ij->ji", "ij->", "ii->i", "ij,j->i", "i,j->ij", ",ij->ij",
    "iij,jk->ik", "ij,jk,kl->il", "bthd,bshd->bhts",
)  # fmt: skip


def drawn_operand(rng: Random, mesh: Any, sizes: dict[str, int], term: str, dtype: str) -> tuple[Array, NamedSharding]:
    spec = draw_spec(rng, mesh.axis_names, len(term))
    fits = [
        entry if sizes[label] % shards(spec, dim, mesh) == 0 else None
        for dim, (label, entry) in enumerate(zip(term, spec.partitions, strict=True))
    ]
    whole = drawn_values(np.random.default_rng(rng.randrange(2**32)), [sizes[label] for label in term], dtype)
    used = {name for entry in fits for name in (entry if isinstance(entry, tuple) else (entry,))}
    free = [name for name in mesh.axis_names if name not in used and rng.random() < 0.2]
    return whole, NamedSharding(mesh, P(*fits, unreduced=frozenset(free)))


@pytest.mark.parametrize("text", LETTERS)
def test_any_expression_from_anywhere_to_anywhere(text: str) -> None:
    rng = Random(text)
    operands, output = text.split("->")
    for number in range(2 if operands.count(",") == 2 else 4):
        sizes = rng.choice(((4,), (2, 2), (2, 3), (1, 3), (2, 2, 2)))
        devices = rng.sample(jax.devices(), int(np.prod(sizes)))
        mesh = mesh_of(sizes, KINDS[0], devices if number % 2 else None)
        labels = {label: rng.choice((1, 2, 4, 6, 6, 12)) for label in text if label.isalpha()}
        drawn = [drawn_operand(rng, mesh, labels, term, "int32") for term in operands.split(",")]
        _, target = drawn_operand(rng, mesh, labels, output, "int32")
        given = [placed(whole, sharding, np.random.default_rng(number)) for whole, sharding in drawn]
        check(text, given, [whole for whole, _ in drawn], rng.choice((None, target)))


def test_what_is_filled_up_is_not_summed() -> None:
    mesh, rng = mesh_of((4,)), np.random.default_rng(0)
    array = drawn_values(rng, (12, 6), "float32")
    array[:, 3] = np.inf
    given = [placed(array, NamedSharding(mesh, WHOLE), rng)]
    target = NamedSharding(mesh, P(None, unreduced={"x"}))
    assert plan_of("ij->i", given, target).layout.shards("j") == 4
    check("ij->i", given, [array], target)
    mesh = mesh_of((2, 3))
    arrays = [drawn_values(rng, (3, 3), "int32") for _ in range(2)]
    ends = [NamedSharding(mesh, P(None, None, unreduced=axes)) for axes in ({"y"}, set())]
    given = [placed(array, end, rng) for array, end in zip(arrays, ends, strict=True)]
    target = NamedSharding(mesh, P("y", None, unreduced={"x"}))
    assert plan_of(MATMUL, given, target).layout.shards("j") == 2
    check(MATMUL, given, arrays, target)


def test_groups_of_labels() -> None:
    mesh = mesh_of((2, 4))
    array = np.arange(64, dtype=np.int32)
    x = jax.device_put(array, NamedSharding(mesh, P(("x", "y"))))
    cut = NamedSharding(mesh, P("x", "y"))
    split = lambda x: einsum("(a b) -> a b", x, sizes={"a": 2}, target=cut)  # noqa: E731
    assert_there(split(x), cut, array.reshape(2, 32))
    assert found(split, x) == []
    joined = lambda x: einsum("a b c -> (a b) c", x.reshape(2, 8, 4), target=NamedSharding(mesh, P("y", None)))  # noqa: E731
    whole = jax.device_put(array, NamedSharding(mesh, P(None)))
    assert_there(jax.jit(joined)(whole), NamedSharding(mesh, P("y", None)), array.reshape(16, 4))


def test_without_a_target_the_result_lies_where_jax_can_say_it() -> None:
    mesh = mesh_of((4, 2))
    x = jax.device_put(np.arange(48, dtype=np.int32).reshape(8, 6), NamedSharding(mesh, P("x", None)))
    result = einsum("(a b) c -> a b c", x, sizes={"a": 2})
    assert np.array_equal(result, np.asarray(x).reshape(2, 4, 6))
    assert np.array_equal(einsum("ij->ji", x), np.asarray(x).T)
    assert einsum("ij->ji", x).sharding.spec == P(None, "x")


# Ways to call it


A, B = (np.arange(64, dtype=np.float32).reshape(8, 8) * n % 7 - 3 for n in (3, 5))


class Setting:
    """Two matrices on a mesh of one kind of axes, and where their product goes."""

    def __init__(self, kind: AxisType) -> None:
        self.mesh = mesh_of((2, 4), kind)
        self.target = self.on("x", "y")
        self.a, self.b = jax.device_put(A, self.on("x", "y")), jax.device_put(B, self.on("y", None))
        self.said = None if kind == AxisType.Explicit else (self.a.sharding, self.b.sharding)

    def on(self, *dims: Any) -> NamedSharding:
        return NamedSharding(self.mesh, P(*dims))

    def product(self, a: Any, b: Any, **options: Any) -> Any:
        return einsum(MATMUL, a, b, target=self.target, sources=self.said, **options)

    def loss(self, a: Any, b: Any) -> Any:
        return (self.product(a, b) ** 2).sum()


@pytest.fixture(params=KINDS, ids=["explicit", "auto"])
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(request.param)


def loss(a: Any, b: Any) -> Any:
    return ((a @ b) ** 2).sum()


def test_eager_in_jit_and_in_a_scan(setting: Setting) -> None:
    assert_there(setting.product(setting.a, setting.b), setting.target, A @ B)
    assert_there(einsum(MATMUL, setting.a, setting.b, target=P("x", "y")), setting.target, A @ B)
    assert_there(jax.jit(setting.product)(setting.a, setting.b), setting.target, A @ B)

    def body(carry: Any, _: None) -> tuple[Any, None]:
        return setting.product(carry, setting.b), None

    result = jax.jit(lambda a: jax.lax.scan(body, a, None, length=2)[0])(setting.a)
    assert np.array_equal(result, A @ B @ B)


def test_arrays_that_are_on_no_mesh_yet(setting: Setting) -> None:
    for other in (B, jnp.asarray(B)):
        assert np.array_equal(einsum(MATMUL, setting.a, other), A @ B)
    said = setting.said and (setting.said[0], None)
    assert np.array_equal(jax.jit(lambda a: einsum(MATMUL, a, B, sources=said))(setting.a), A @ B)
    with jax.set_mesh(setting.mesh):
        assert_there(einsum(MATMUL, A, B, target=P("x", "y")), setting.target, A @ B)
        assert np.array_equal(jax.jit(lambda a: einsum(MATMUL, a, B, sources=said))(setting.a), A @ B)


def test_operands_of_other_names_and_dtypes(setting: Setting) -> None:
    renamed = jax.sharding.Mesh(setting.mesh.devices, ("p", "q"))
    b = jax.device_put(B, NamedSharding(renamed, P("q", None)))
    assert_there(einsum(MATMUL, setting.a, b, target=setting.target), setting.target, A @ B)
    small = setting.a.astype("bfloat16")
    mixed = einsum(MATMUL, small, setting.b)
    assert mixed.dtype == np.float32
    assert np.array_equal(mixed, A @ B)
    wide = jax.jit(lambda a, b: setting.product(a, b, preferred_element_type="float32", precision="highest"))
    result = wide(small, setting.b.astype("bfloat16"))
    assert result.dtype == np.float32
    assert np.array_equal(result, A @ B)
    gradient = jax.jit(jax.grad(lambda a, b: setting.product(a, b, preferred_element_type="float32").sum()))(
        small, setting.b.astype("bfloat16")
    )
    assert gradient.dtype == jnp.bfloat16
    assert np.array_equal(gradient.astype("float32"), np.ones((8, 8)) @ B.T)


def test_an_operand_moves_in_its_own_dtype() -> None:
    mesh, rng = mesh_of((4,)), np.random.default_rng(0)
    a = placed(drawn_values(rng, (8, 8), "bfloat16"), NamedSharding(mesh, P("x", None)), rng)
    b = placed(drawn_values(rng, (8, 8), "float32"), NamedSharding(mesh, P(None, None)), rng)
    whole = NamedSharding(mesh, P(None, "x"))
    plan = rs.einsum(MATMUL, *(sharding_of(x.sharding) for x in (a, b)), shapes=[(8, 8)] * 2, target=sharding_of(whole))
    assert [step.kind for step in plan.operands[0].steps + plan.output.steps] == ["AllToAll"]
    got = max(counted(lambda a, b: einsum(MATMUL, a, b, target=whole), a, b))
    assert got == plan.received_bytes // (2 if plan.operands[0].steps else 1)


# Derivatives and batches


def test_derivatives_of_any_order(setting: Setting) -> None:
    with jax.set_mesh(setting.mesh):
        gradients = jax.grad(loss, (0, 1))(A, B)
        for run in (jax.jit(jax.grad(setting.loss, (0, 1))), jax.grad(setting.loss, (0, 1))):
            for got, wanted, given in zip(run(setting.a, setting.b), gradients, (setting.a, setting.b), strict=True):
                assert_there(got, given.sharding, np.asarray(wanted))

        def second(one: Callable[..., Any]) -> Callable[..., Any]:
            return jax.jit(lambda a, b: jax.jvp(lambda a: jax.grad(one, 1)(a, b), (a,), (a,)))

        for got, wanted in zip(second(setting.loss)(setting.a, setting.b), second(loss)(A, B), strict=True):
            assert np.array_equal(got, wanted)
        third = jax.jit(jax.grad(lambda a, b: jax.grad(lambda a: jax.grad(setting.loss)(a, b).sum())(a).sum(), 1))
        wanted = jax.grad(lambda a, b: jax.grad(lambda a: jax.grad(loss)(a, b).sum())(a).sum(), 1)(A, B)
        assert np.array_equal(third(setting.a, setting.b), wanted)


def test_without_sources_an_array_tells_where_it_is() -> None:
    setting = Setting(AxisType.Auto)
    for got, wanted in zip(
        jax.grad(lambda a, b: (einsum(MATMUL, a, b) ** 2).sum(), (0, 1))(setting.a, setting.b),
        jax.grad(loss, (0, 1))(A, B),
        strict=True,
    ):
        assert np.array_equal(got, wanted)
    twice = jax.grad(lambda a: jax.grad(lambda a: (einsum(MATMUL, a, setting.b) ** 2).sum())(a).sum())(setting.a)
    assert np.array_equal(twice, jax.grad(lambda a: jax.grad(loss)(a, B).sum())(A))


def test_what_flows_back_moves_what_its_own_plan_says(setting: Setting) -> None:
    cotangent = jax.device_put(A, setting.target)
    for number, text in enumerate(("ik,jk->ij", "ik,ij->jk")):
        given = [cotangent, (setting.b, setting.a)[number]]
        plan = plan_of(text, given, (setting.a, setting.b)[number].sharding)

        def back(cotangent: Any, a: Any, b: Any, number: int = number) -> Any:
            return jax.vjp(setting.product, a, b)[1](cotangent)[number]

        got = counted(back, cotangent, setting.a, setting.b)
        assert got == [plan.received_bytes_on(device) for device in range(8)]


def test_the_gradient_of_a_whole_operand_is_summed_as_its_plan_says() -> None:
    mesh = mesh_of((4,))
    a = jax.device_put(A, NamedSharding(mesh, P("x", None)))
    b = jax.device_put(B, NamedSharding(mesh, P(None, None)))
    back = lambda a, b, c: jax.vjp(lambda b: einsum(MATMUL, a, b, target=a.sharding), b)[1](c)[0]  # noqa: E731
    plan = plan_of("ij,ik->jk", [a, a], b.sharding)
    assert plan.received_bytes < 2 * 3 * 64  # what an all-reduce of the result needs
    assert max(counted(lambda b, c: back(a, b, c), b, a)) == plan.received_bytes
    assert np.array_equal(jax.jit(lambda b, c: back(a, b, c))(b, a), A.T @ A)


@pytest.mark.parametrize(
    "text", ["ii->i", "ii->", "iij,jk->ik", "ij->", "ij,ij->ij", "ij,jk,kl->il", "i,i,i->i", ",ij->j"]
)
def test_gradients_of_other_expressions(setting: Setting, text: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [drawn_values(rng, (8,) * len(term), "float32") for term in text.partition("->")[0].split(",")]
    given = [jax.device_put(x, setting.on(*("x", "y", None)[: x.ndim])) for x in arrays]
    said = setting.said and [x.sharding for x in given]
    every = tuple(range(len(arrays)))
    wanted = jax.grad(lambda *xs: (jnp.einsum(text, *xs) ** 2).sum(), every)(*arrays)
    with jax.set_mesh(setting.mesh):
        run = jax.jit(jax.grad(lambda *xs: (einsum(text, *xs, sources=said) ** 2).sum(), every))
        for one, right, start in zip(run(*given), wanted, given, strict=True):
            assert_there(one, start.sharding, np.asarray(right))


def test_batches(setting: Setting) -> None:
    batch = np.stack([A, B, A + B, A - B])
    x = jax.device_put(batch, setting.on("x", None, "y"))
    said = setting.said and (setting.on(None, "y"), setting.said[1])

    def one(x: Any, b: Any) -> Any:
        return einsum(MATMUL, x, b, target=setting.on(None, "y"), sources=said)

    name = "x" if setting.said else None
    run = jax.vmap(one, (0, None), spmd_axis_name=name)
    for result in (run(x, setting.b), jax.jit(run)(x, setting.b)):
        assert_there(result, setting.on("x", None, "y"), batch @ B)
    both = jax.vmap(one, (0, 0), 1, spmd_axis_name=name)
    y = jax.device_put(batch, setting.on("x", "y", None))
    assert np.array_equal(jax.jit(both)(x, y), np.moveaxis(batch @ batch, 0, 1))
    gradient = jax.jit(jax.grad(lambda x, b: run(x, b).sum(), 1))(x, setting.b)
    assert np.array_equal(gradient, batch.sum((0, 1))[:, None] * np.ones((1, 8)))
    if setting.said:
        whole = jax.device_put(batch, setting.on(None, None, "y"))
        assert np.array_equal(jax.jit(jax.vmap(one, (0, None)))(whole, setting.b), batch @ B)


# Collective matmul


RINGS = {
    "a contracted dim is gathered": ((4,), MATMUL, [COLUMNS, WHOLE], WHOLE, "bfloat16"),
    "a free dim is gathered": ((4,), MATMUL, [ROWS, WHOLE], WHOLE, "int32"),
    "a batch dim is gathered": ((4,), "bij,bjk->bik", [P("x", None, None), P()], P(), "int32"),
    "gathered on an inner axis": ((2, 2), MATMUL, [P(("x", "y"), None), WHOLE], ROWS, "int32"),
    "gathered on an outer and an inner axis": ((2, 3), MATMUL, [P(None, ("y", "x")), WHOLE], WHOLE, "int32"),
    "the result is scattered": ((4,), MATMUL, [COLUMNS, ROWS], ROWS, "bfloat16"),
    "by columns": ((6,), MATMUL, [COLUMNS, ROWS], COLUMNS, "int32"),
    "two devices": ((2,), MATMUL, [COLUMNS, ROWS], COLUMNS, "int32"),
    "three devices": ((3,), MATMUL, [COLUMNS, ROWS], ROWS, "float32"),
    "an inner axis": ((2, 4), MATMUL, [P("x", "y"), P("y", None)], P(("x", "y"), None), "int32"),
    "two axes at once": ((2, 3), MATMUL, [P(None, ("y", "x")), P(("y", "x"), None)], P(("x", "y"), None), "int32"),
}
"""Per case the mesh, the expression, where operands and result are, and the dtype."""


@pytest.mark.parametrize("name", RINGS)
def test_rounds_beside_the_product_move_the_same_bytes(name: str) -> None:
    sizes, text, specs, last, dtype = RINGS[name]
    rng = np.random.default_rng(0)
    devices = Random(name).sample(jax.devices(), int(np.prod(sizes)))
    mesh = mesh_of(sizes, devices=devices)
    labels = {"b": 8, "i": 24, "j": 24, "k": 96} if "gathered" in name else {"i": 24, "j": 96, "k": 24}
    shapes = [[labels[label] for label in term] for term in text.partition("->")[0].split(",")]
    arrays = [drawn_values(rng, shape, dtype) % 2 for shape in shapes]
    given = [placed(array, NamedSharding(mesh, spec), rng) for array, spec in zip(arrays, specs, strict=True)]
    target = NamedSharding(mesh, last)
    programs = {
        overlap: jax.jit(lambda *xs, on=overlap: einsum(text, *xs, target=target, overlap=on)).lower(*given).compile()
        for overlap in (True, False, None)
    }
    moved = {overlap: collectives(program.as_text(), mesh.size) for overlap, program in programs.items()}
    right = whole_einsum(text, *(array.astype("float32") for array in arrays)).astype(dtype)
    for program in programs.values():
        assert_there(program(*given), target, right)
    assert {one.kind for one in moved[True]} == {"collective-permute"}
    assert "collective-permute" not in {one.kind for one in moved[False]}
    assert [one.kind for one in moved[None]] == [one.kind for one in moved[False]], "without a network nothing says so"
    sums = 2 if dtype == "bfloat16" and moved[False][0].kind != "all-gather" else 1  # a CPU adds these up in float32
    once = received_bytes(moved[False], mesh.size)
    assert [sums * count for count in received_bytes(moved[True], mesh.size)] == once


def network_of(bandwidth: float, flops: float | None, latency_s: float = 0.0) -> Network:
    return Network((Level(1, 4, "ring", bandwidth, latency_s),), flops=flops)


@pytest.mark.parametrize(
    ("network", "in_rounds"),
    [
        (network_of(1e9, 1e9), True),
        (network_of(1e9, None), False),
        (network_of(1e9, 1e9, 1e-3), False),
        (network_of(1e9, 1e15), True),
    ],
    ids=["both take time", "arithmetic takes none", "every round waits", "little to hide"],
)
def test_the_price_says_whether_rounds_pay(network: Network, in_rounds: bool) -> None:
    mesh = mesh_of((4,))
    a = jax.device_put(A, NamedSharding(mesh, P(None, "x")))
    b = jax.device_put(B, NamedSharding(mesh, P("x", None)))
    run = lambda a, b, **options: einsum(MATMUL, a, b, target=P("x", None), network=network, **options)  # noqa: E731
    kinds = {one.kind for one in found(run, a, b)}
    assert kinds == ({"collective-permute"} if in_rounds else {"reduce-scatter"})
    assert {one.kind for one in found(lambda a, b: run(a, b, overlap=False), a, b)} == {"reduce-scatter"}
    assert np.array_equal(jax.jit(run)(a, b), A @ B)
    gradient = jax.jit(jax.grad(lambda a: (run(a, b) ** 2).sum()))(a)
    assert np.array_equal(gradient, jax.grad(loss)(A, B))


def test_what_rounds_take_by_hand() -> None:
    ring, devices = Ring(0, "j", ((0, 1, 2, 3, 4),)), np.arange(5)
    five = Network((Level(1, 5, "ring", 10.0, 0.0),), flops=1.0)
    assert overlapped_seconds(ring, devices, 10, 0.0, five) == 2  # two rounds of messages of 1 s, both ways at once
    assert overlapped_seconds(ring, devices, 0, 5.0, five) == 5  # five products
    assert overlapped_seconds(ring, devices, 10, 5.0, five) == 1 + 2 + 2  # one, two and two products, the first beside
    one_way = Network((Level(1, 5, "one-way-ring", 10.0, 0.0),), flops=1.0)
    assert overlapped_seconds(ring, devices, 10, 0.0, one_way) > 2


# Refusals


REFUSED: dict[str, tuple[Callable[[Setting], Any], str]] = {
    "sizes that differ": (lambda s: einsum("ij,jk->ik", s.a, jnp.ones((4, 8))), "bad-shape"),
    "too few operands": (lambda s: einsum(MATMUL, s.a), "bad-argument"),
    "no arrow": (lambda s: einsum("ij,jk", s.a, s.b), "syntax"),
    "a label that no operand has": (lambda s: einsum("ij,jk->il", s.a, s.b), "bad-shape"),
    "an operand of another rank": (lambda s: einsum("ijk,jk->ik", s.a, s.b), "rank-mismatch"),
    "a target of another rank": (lambda s: einsum(MATMUL, s.a, s.b, target=P("x", "y", None)), "rank-mismatch"),
    "a target that does not divide": (lambda s: einsum("ij->", s.a, target=P("x")), "rank-mismatch"),
    "an uneven target": (lambda s: einsum("ij,jk->ik", s.a, B[:, :3], target=P(None, "y")), "not-divisible"),
    "an open target": (lambda s: einsum(MATMUL, s.a, s.b, target=P(P.UNCONSTRAINED, None)), "bad-argument"),
    "a target that is none": (lambda s: einsum(MATMUL, s.a, s.b, target="x"), "bad-argument"),
    "one source of two": (lambda s: einsum(MATMUL, s.a, s.b, sources=[s.a.sharding]), "bad-argument"),
    "a wrong source": (lambda s: einsum(MATMUL, s.a, s.b, sources=[s.b.sharding, None]), "bad-argument"),
    "another mesh": (
        lambda s: einsum(MATMUL, s.a, jax.device_put(B, NamedSharding(mesh_of((2, 2)), P("x", None)))),
        "different-meshes",
    ),
    "other devices": (
        lambda s: einsum(
            MATMUL, s.a, jax.device_put(B, NamedSharding(mesh_of((2, 4), devices=jax.devices()[8:16]), P("x", None)))
        ),
        "different-meshes",
    ),
    "no mesh": (lambda s: einsum(MATMUL, A, B), "unknown-mesh"),
    "a network that is none": (lambda s: einsum(MATMUL, s.a, s.b, network="no-such"), "bad-network"),
    "a network that is too small": (
        lambda s: einsum(MATMUL, s.a, s.b, target=P(None, None), network=network_of(1e9, 1e9)),
        "bad-network",
    ),
    "a sub-axis": (
        lambda s: einsum(MATMUL, s.a, s.b, target=rs.Sharding.of(rs.Mesh.of(x=2, y=4), "y:(1)2", None)),
        "cannot-express",
    ),
}


@pytest.mark.parametrize("cause", REFUSED)
def test_refusals(setting: Setting, cause: str) -> None:
    run, code = REFUSED[cause]
    with pytest.raises(rs.ReshardError) as refusal:
        run(setting)
    assert refusal.value.code == code
    assert len(str(refusal.value).splitlines()) == 1


def test_a_traced_array_on_auto_axes_needs_its_source() -> None:
    setting = Setting(AxisType.Auto)
    with pytest.raises(rs.ReshardError, match="pass sources="):
        jax.jit(lambda a: einsum(MATMUL, a, setting.b))(setting.a)
