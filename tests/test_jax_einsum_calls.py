"""Ways to call `reshard.jax.einsum`: eager and traced, its derivatives and batches, in a program, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_einsums import (  # noqa: E402
    KINDS,
    MATMUL,
    A,
    B,
    assert_there,
    counted,
    drawn_values,
    loss,
    mesh_of,
    network_of,
    placed,
    plan_of,
)

import reshard as rs  # noqa: E402
from reshard.jax import einsum, reshard, sharding_of, to_jax, trace  # noqa: E402

pytestmark = pytest.mark.engine


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


def test_a_batch_of_numbers_is_cut_as_the_mapping_says(setting: Setting) -> None:
    rows = setting.on("y")
    said = setting.said and (rows, rows)

    def dot(x: Any, y: Any) -> Any:
        return einsum("i,i->", x, y, target=setting.on(), sources=said)

    run = jax.vmap(dot, spmd_axis_name="x" if setting.said else None)
    for result in (run(setting.a, setting.a), jax.jit(run)(setting.a, setting.a)):
        assert_there(result, setting.on("x"), (A * A).sum(1))


# In a program that is traced


def traced(setting: Setting, function: Callable[..., Any], *arguments: Any) -> Any:
    """The values of a placed program, all of whose operations must have a rule, and the program."""
    with jax.set_mesh(setting.mesh):
        placed = trace(function, *arguments).propagate()
    assert not placed.without_rule
    return jax.jit(to_jax(placed))(*arguments), placed


def test_in_a_program_it_is_a_contraction_with_a_constraint() -> None:
    setting = Setting(AxisType.Auto)

    def function(a: Any, b: Any) -> Any:
        return jnp.tanh(einsum(MATMUL, a, b, target=setting.target))

    program = trace(function, A, B, mesh=setting.mesh)
    assert str(program).splitlines()[3:] == [
        'einsum_2 = einsum "l0 c0, c0 r1 -> l0 r1" (a, b) : float32[8, 8]',
        'copy_3 = copy "d0 d1 -> d0 d1" (einsum_2) : float32[8, 8] <@mesh, [{"x"}, {"y"}]>',
        'tanh_4 = tanh "d0 d1 -> d0 d1" (copy_3) : float32[8, 8]',
        "out = output (tanh_4) : float32[8, 8]",
    ]
    result, placed = traced(setting, function, A, B)
    assert [placed.sharding(name).text() for name in ("a", "b")] == ['[{"x"}, {}]', '[{}, {"y"}]']
    assert placed.received_bytes == 0
    np.testing.assert_allclose(result, np.tanh(A @ B), rtol=1e-6)


def test_in_a_program_it_may_be_open_and_take_labels_apart() -> None:
    setting = Setting(AxisType.Auto)

    def function(a: Any, b: Any) -> Any:
        apart = einsum("(h k) j, j l -> h (k l)", a, b, sizes={"h": 2}, target=setting.on("x", None))
        three = einsum("hk,ij,jl->hil", apart, a, b.astype("bfloat16"), sources=(P("x", None), None, None))
        return einsum("hii->h", three).sum(), einsum("i j -> j i 1", a, preferred_element_type="float32")

    def wanted(a: Any, b: Any) -> Any:
        apart = (a @ b).reshape(2, 32)
        three = jnp.einsum("hk,ij,jl->hil", apart, a, b)
        return jnp.einsum("hii->h", three).sum(), a.T[:, :, None]

    result, _ = traced(setting, function, A, B)
    for one, right in zip(result, wanted(A, B), strict=True):
        assert one.dtype == np.float32
        assert np.array_equal(one, right)
    first = lambda run: lambda *given: run(*given)[0]  # noqa: E731
    gradients, _ = traced(setting, jax.grad(first(function), (0, 1)), A, B)
    for one, right in zip(gradients, jax.grad(first(wanted), (0, 1))(A, B), strict=True):
        assert np.array_equal(one, right)


def test_a_reshard_in_a_program_is_a_constraint() -> None:
    setting = Setting(AxisType.Auto)

    def function(a: Any) -> Any:
        moved = reshard(a * 2, setting.on("x", "y"))
        return reshard(moved, setting.on("y", None), source=setting.on("x", "y")) + 1

    program = trace(function, A, mesh=setting.mesh, in_shardings=P(None, "y"))
    asked = [sharding.text() for sharding in program.annotations.values()]
    assert asked == ['[{}, {"y"}]', '[{"x"}, {"y"}]', '[{"y"}, {}]']
    result, placed = traced(setting, function, jax.device_put(A, setting.on(None, "y")))
    assert '[{"y"}, {}]' in {placed.sharding(value).text() for value in placed.values}
    plan = rs.plan(*(sharding_of(setting.on(*spec)) for spec in (("x", "y"), ("y", None))), (8, 8), "float32")
    assert placed.received_bytes == plan.received_bytes
    assert np.array_equal(result, A * 2 + 1)
    mapped, _ = traced(setting, jax.grad(lambda a: jax.vmap(lambda a: function(a) ** 2)(a[None]).sum()), A)
    assert np.array_equal(mapped, (A * 2 + 1) * 4)


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
