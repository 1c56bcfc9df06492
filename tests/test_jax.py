"""`reshard.jax.reshard`: every way to call it, every transformation around it, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import calibrate, reshard, sharding_of  # noqa: E402
from reshard.network import engine_fit  # noqa: E402

pytestmark = pytest.mark.engine

ARRAY = np.arange(64, dtype=np.float32).reshape(8, 8)
SOURCE, TARGET = P("y", None), P("x", "y")
KINDS = (AxisType.Explicit, AxisType.Auto)


class Setting:
    """A mesh of one kind of axes, an array on it, and where it goes."""

    def __init__(self, kind: AxisType, named: bool) -> None:
        self.mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind,) * 2, devices=jax.devices()[:8])
        self.explicit = kind == AxisType.Explicit
        self.source, self.target = self.on(SOURCE), self.on(TARGET)
        self.said = self.source if named else None
        self.x = jax.device_put(ARRAY, self.source)

    def on(self, spec: P) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def move(self, x: Any) -> Any:
        return reshard(x, self.target, self.said)


@pytest.fixture(params=["explicit", "auto, source=", "auto"])
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(KINDS[0] if request.param == "explicit" else KINDS[1], request.param == "auto, source=")


def assert_there(result: jax.Array, target: NamedSharding, values: np.ndarray = ARRAY) -> None:
    assert result.sharding.is_equivalent_to(target, result.ndim)
    assert dict(result.sharding.mesh.shape_tuple) == dict(target.mesh.shape_tuple)
    for shard in result.addressable_shards:
        index = target.devices_indices_map(values.shape)[shard.device]
        assert np.array_equal(shard.data, values[index])


def found(function: Callable[..., Any], *given: Any) -> list[Any]:
    return collectives(jax.jit(function).lower(*given).compile().as_text(), 8)


# Ways to call it


def test_eager_and_in_jit(setting: Setting) -> None:
    assert_there(setting.move(setting.x), setting.target)
    assert_there(jax.jit(setting.move)(setting.x), setting.target)
    assert setting.move(setting.x).sharding == setting.target


def test_targets_of_every_kind(setting: Setting) -> None:
    ours = sharding_of(setting.target, ndim=2)
    for target in (setting.target, TARGET, ours, P("x", ("y",))):
        assert_there(reshard(setting.x, target, setting.said), setting.target)
    for target in (setting.target, ours):
        assert_there(jax.jit(lambda x, t=target: reshard(x, t, setting.said))(setting.x), setting.target)


def test_under_set_mesh(setting: Setting) -> None:
    with jax.set_mesh(setting.mesh):
        source = None if setting.said is None else SOURCE
        assert_there(jax.jit(lambda x: reshard(x, TARGET, source))(setting.x), setting.target)
        assert_there(reshard(setting.x, TARGET), setting.target)


def test_in_the_middle_of_a_program(setting: Setting) -> None:
    result = jax.jit(lambda x: setting.move(x * 2) + 1)(setting.x)
    assert_there(result, setting.target, ARRAY * 2 + 1)


def test_in_a_scan(setting: Setting) -> None:
    back = setting.target if setting.said else None

    def there_and_back(carry: Any, _: None) -> tuple[Any, None]:
        return reshard(setting.move(carry), setting.source, back) + 1, None

    result = jax.jit(lambda x: jax.lax.scan(there_and_back, x, None, length=3)[0])(setting.x)
    assert np.array_equal(result, ARRAY + 3)


def test_pytrees_with_one_target_or_a_tree_of_them(setting: Setting) -> None:
    tree = {"a": setting.x, "b": [setting.x, (setting.x,)]}
    source = None if setting.said is None else {"a": setting.source, "b": setting.source}
    for result in jax.tree.leaves(jax.jit(lambda t: reshard(t, setting.target, source))(tree)):
        assert_there(result, setting.target)
    result = reshard(tree, {"a": setting.target, "b": [setting.source, setting.target]})
    assert_there(result["a"], setting.target)
    assert_there(result["b"][0], setting.source)
    assert_there(result["b"][1][0], setting.target)


def test_arrays_that_are_on_no_mesh_yet(setting: Setting) -> None:
    assert_there(reshard(ARRAY, setting.target), setting.target)
    assert_there(reshard(jax.numpy.asarray(ARRAY), setting.target), setting.target)


def test_eager_to_another_mesh(setting: Setting) -> None:
    devices = [jax.devices()[place] for place in (9, 3, 12, 1)]
    mesh = jax.sharding.Mesh(np.array(devices).reshape(2, 2), ("p", "q"))
    reordered = jax.sharding.Mesh(np.array(jax.devices()[:8])[::-1].reshape(4, 2), ("x", "y"))
    renamed = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(8), ("a",))
    for target in (
        NamedSharding(mesh, P("q", "p")),
        NamedSharding(reordered, P("y", "x")),
        NamedSharding(renamed, P(None, "a")),
    ):
        assert_there(reshard(setting.x, target), target)


def test_none_in_a_pytree_stays(setting: Setting) -> None:
    tree = {"a": setting.x, "b": None}
    for target in (setting.target, {"a": setting.target, "b": None}):
        for result in (
            reshard(tree, target),
            jax.jit(lambda t, to=target: reshard(t, to, setting.said))(tree),
        ):
            assert result["b"] is None
            assert_there(result["a"], setting.target)


def test_arrays_of_numpy_in_jit_are_put_on_the_mesh(setting: Setting) -> None:
    """Where no argument is on the mesh, the target alone says what devices the program is for."""
    for function, given in (
        (setting.move, (ARRAY,)),
        (lambda: setting.move(ARRAY), ()),
        (lambda: setting.move(jax.numpy.asarray(ARRAY)), ()),
        (jax.grad(lambda x: (setting.move(x) * ARRAY).sum()), (ARRAY,)),
    ):
        with jax.set_mesh(setting.mesh):
            assert np.array_equal(jax.jit(function)(*given), ARRAY)
        assert np.array_equal(jax.jit(function)(*given), ARRAY)
    assert_there(jax.jit(setting.move)(ARRAY), setting.target)
    with jax.set_mesh(setting.mesh):
        assert_there(jax.jit(setting.move)(ARRAY), setting.target)


def test_jacobians(setting: Setting) -> None:
    """A tangent lies elsewhere than its value."""
    z = jax.device_put(np.arange(8, dtype=np.float32), setting.on(P("y")))
    for jacobian in (jax.jacfwd, jax.jacrev):
        run = jacobian(lambda z: reshard(z, setting.on(P("x")), setting.said and setting.on(P("y"))) ** 2)
        for result in (run(z), jax.jit(run)(z)):
            assert np.array_equal(result, np.diag(2 * np.arange(8)))


def test_the_gradient_along_axes_of_both_kinds_moves_the_bound() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=KINDS, devices=jax.devices()[:8])
    source, target = (NamedSharding(mesh, spec) for spec in (P("x", "y"), P("y", "x")))
    x, given = (jax.device_put(ARRAY, end) for end in (source, target))
    back = found(lambda x, g: jax.vjp(lambda x: reshard(x, target, source), x)[1](g)[0], x, given)
    plan = rs.plan(sharding_of(target), sharding_of(source), (8, 8))
    assert received_bytes(back, 8) == [plan.lower_bound_bytes_on(device) for device in range(8)]


def test_under_checkpoint_cond_and_linear_transpose(setting: Setting) -> None:
    loss = jax.checkpoint(lambda x: (setting.move(x) ** 2).sum())
    assert np.array_equal(jax.jit(jax.grad(loss))(setting.x), 2 * ARRAY)
    chosen = jax.jit(lambda x: jax.lax.cond(x.sum() > 0, setting.move, lambda x: setting.move(x + 1), x))
    assert np.array_equal(chosen(setting.x), ARRAY)
    given = jax.device_put(ARRAY, setting.target)
    assert np.array_equal(jax.jit(lambda g: jax.linear_transpose(setting.move, setting.x)(g)[0])(given), ARRAY)


def test_scalars_and_empty_arrays(setting: Setting) -> None:
    one = jax.device_put(np.float32(3), setting.on(P()))
    assert float(jax.jit(lambda x: reshard(x, setting.on(P()), setting.said and setting.on(P())))(one)) == 3
    empty = jax.device_put(np.zeros((0, 8), np.float32), setting.source)
    assert jax.jit(setting.move)(empty).shape == (0, 8)


def test_where_integers_have_64_bits(setting: Setting) -> None:
    """A box starts at a place that is known along one dim and looked up along another."""
    for source, target in ((P("y", None), P("y", "x")), (P("x", "y"), P("y", "x")), (P(None, "y"), P("y"))):
        ends = setting.on(source), setting.on(target)
        with jax.enable_x64(True):
            x = jax.device_put(ARRAY.astype(np.float64), ends[0])
            result = jax.jit(lambda x, ends=ends: reshard(x, ends[1], setting.said and ends[0]))(x)
            assert_there(result, ends[1], ARRAY.astype(np.float64))


def test_the_same_placement_moves_nothing(setting: Setting) -> None:
    assert found(lambda x: reshard(x, setting.source, setting.said), setting.x) == []


def test_the_program_is_the_plan_and_nothing_else(setting: Setting) -> None:
    plan = rs.plan(sharding_of(setting.source), sharding_of(setting.target), (8, 8))
    assert received_bytes(found(setting.move, setting.x), 8) == [plan.lower_bound_bytes_on(d) for d in range(8)]


# Transformations


def cubed(setting: Setting) -> Callable[[Any], Any]:
    return lambda x: (setting.move(x) ** 3).sum()


def test_derivatives_of_any_order(setting: Setting) -> None:
    loss = cubed(setting)
    first = jax.jit(jax.grad(loss))
    assert np.array_equal(first(setting.x), 3 * ARRAY**2)
    if setting.mesh.axis_types[0] == AxisType.Explicit or setting.said:
        assert first(setting.x).sharding.is_equivalent_to(setting.source, 2)
    assert np.allclose(jax.jvp(loss, (setting.x,), (setting.x,))[1], (3 * ARRAY**3).sum())
    second = jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (x,))[1])
    assert np.array_equal(second(setting.x), 6 * ARRAY**2)
    with jax.set_mesh(setting.mesh):
        third = jax.jit(jax.grad(lambda x: jax.grad(lambda x: jax.grad(loss)(x).sum())(x).sum()))
        assert np.array_equal(third(setting.x), np.full((8, 8), 6))
        assert np.array_equal(jax.grad(loss)(setting.x), 3 * ARRAY**2)


def test_the_gradient_of_a_replicated_source_has_no_all_reduce(setting: Setting) -> None:
    whole = setting.on(P(None, None))
    x = jax.device_put(ARRAY, whole)
    move = jax.jit(jax.grad(lambda x: (reshard(x, setting.target, setting.said and whole) ** 2).sum()))
    assert np.array_equal(move(x), 2 * ARRAY)
    back = found(
        lambda x, g: jax.vjp(lambda x: reshard(x, setting.target, setting.said and whole), x)[1](g)[0],
        x,
        jax.device_put(ARRAY, setting.target),
    )
    assert {one.kind for one in back} <= {"all-gather"}


def test_a_sharded_batch_stays_where_it_is(setting: Setting) -> None:
    batch = np.arange(256, dtype=np.float32).reshape(4, 8, 8)
    x = jax.device_put(batch, setting.on(P("x", "y", None)))
    inner = setting.on(P(None, "y"))
    move = jax.vmap(lambda x: reshard(x, inner, setting.said and setting.on(P("y", None))))
    wanted = setting.on(P("x", None, "y"))
    for result in (move(x), jax.jit(move)(x)):
        assert_there(result, wanted, batch)
    assert [one.kind for one in found(move, x)] == ["all-to-all"]
    if setting.mesh.axis_types[0] == AxisType.Auto:
        named = jax.vmap(lambda x: reshard(x, inner, setting.said and setting.on(P("y", None))), spmd_axis_name="x")
        assert [one.kind for one in found(named, x)] == ["all-to-all"]
    gradient = jax.jit(jax.grad(lambda x: (move(x) ** 2).sum()))
    assert np.array_equal(gradient(x), 2 * batch)


def test_a_batch_of_which_other_dims_are_mapped(setting: Setting) -> None:
    move = jax.vmap(
        lambda x: reshard(x, setting.on(P("y")), setting.said and setting.on(P("y"))), in_axes=1, out_axes=1
    )
    assert np.array_equal(jax.jit(move)(setting.x), ARRAY)


def test_both_batched_and_not(setting: Setting) -> None:
    y = jax.device_put(ARRAY, setting.on(P()))
    total = jax.jit(jax.vmap(lambda x: setting.move(setting.x) @ x))(y)
    assert np.allclose(total, (ARRAY @ ARRAY.T).T)


# Partial values


def test_partial_values_are_reduced_where_they_are_needed() -> None:
    setting = Setting(AxisType.Explicit, named=False)
    partial = jax.jit(lambda x: reshard(x, setting.on(P(None, None, unreduced={"y"}))))(setting.x)
    assert jax.typeof(partial).sharding.spec.unreduced == {"y"}
    for spec, kinds in (
        (P(None, None), ["all-reduce", "all-gather"]),  # the two devices with equal parts sum one half each
        (P("y", None), ["reduce-scatter", "all-gather"]),
        (P(("y", "x"), None), ["reduce-scatter"]),
    ):
        move = lambda x, spec=spec: reshard(x, setting.on(spec))  # noqa: E731
        assert np.array_equal(jax.jit(move)(partial), ARRAY)
        moved, plan = (
            found(move, partial),
            rs.plan(sharding_of(partial.sharding), sharding_of(setting.on(spec)), (8, 8)),
        )
        assert [one.kind for one in moved] == kinds
        assert received_bytes(moved, 8) == [plan.received_bytes_on(device) for device in range(8)]


def test_the_gradient_of_a_reduced_value_is_partial() -> None:
    setting = Setting(AxisType.Explicit, named=False)
    x = jax.device_put(ARRAY, setting.on(P("x", None)))

    def loss(x: Any) -> Any:
        y = reshard(x, setting.on(P("x", None, reduced={"y"})))
        return (reshard(y, setting.on(P("x", None))) ** 2).sum()

    assert np.array_equal(jax.jit(jax.grad(loss))(x), 2 * ARRAY)


# Sub-axes, networks


def test_sub_axes_come_back_on_a_refined_mesh_where_asked(setting: Setting) -> None:
    target = rs.Sharding.of(rs.Mesh.of(x=2, y=4), "x", "y:(1)2")
    for function in (
        lambda x: reshard(x, target, setting.said, refine=True),
        jax.jit(lambda x: reshard(x, target, setting.said, refine=True)),
    ):
        result = function(setting.x)
        assert result.sharding.mesh.shape_tuple == (("x", 2), ("y0", 2), ("y1", 2))
        for shard in result.addressable_shards:
            box = target.box(jax.devices().index(shard.device), (8, 8))
            assert np.array_equal(shard.data, ARRAY[box.slices()])
    with jax.set_mesh(setting.mesh):
        inner = jax.jit(lambda x: reshard(x, target, setting.said and SOURCE, refine=True))
        assert np.array_equal(inner(setting.x), ARRAY)
    with pytest.raises(rs.ReshardError, match="ask for a refined mesh with refine=True"):
        reshard(setting.x, target)


def test_a_network_chooses_the_plan(setting: Setting) -> None:
    """Where messages are all that costs, a gather beats the 7 rounds that move the fewest bytes, and two steps that."""
    slow = rs.Network.of(rs.Mesh.of(x=2, y=4), x=("switch", 1e12, 1e-2), y=("switch", 1e12, 1e-2))
    source, target = setting.on(P(None, ("x", "y"))), setting.on(P(("y", "x"), None))
    x = jax.device_put(ARRAY, source)
    for network, kinds in ((None, ["all-to-all"]), (slow, ["all-gather", "all-to-all"])):
        plan = rs.plan(sharding_of(source), sharding_of(target), (8, 8), network=network)
        moved = found(lambda x, n=network: reshard(x, target, setting.said and source, network=n), x)
        assert [one.kind for one in moved] == kinds
        assert received_bytes(moved, 8) == [plan.received_bytes_on(device) for device in range(8)]


@pytest.mark.heavy
def test_a_network_is_fitted_to_the_devices_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_fit, "WHOLE_BYTES", (1 << 14, 1 << 20))  # half of the programs to compile
    mesh = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices()[:4])
    network, report = calibrate(mesh, sizes=[2**power for power in range(12, 23, 2)], repeats=1)
    assert [(level.stride, level.size) for level in network.levels] in ([(1, 2), (2, 2)], [(1, 4)])
    assert all(level.bandwidth > 0 and level.latency_s >= 0 for level in network.levels)
    assert len(report.levels) == len(network.levels)
    assert network.call_s + network.launch_s + sum(level.latency_s for level in network.levels) > 0
    assert network.flops is not None
    assert network.memory_bandwidth is not None
    assert 1e8 < network.flops < 1e14
    assert 1e8 < network.memory_bandwidth < 1e13


# Refusals


OTHER = (4, 2)
REFUSED = {
    "a target for another mesh": (
        lambda s, x: reshard(x, NamedSharding(jax.make_mesh(OTHER, ("x", "y"), devices=jax.devices()[:8]), TARGET)),
        "different-meshes",
        "inside jit both must be on one mesh",
    ),
    "our target for other devices": (
        lambda s, x: reshard(x, rs.Sharding.of(rs.Mesh.of(x=3), "x", None), s.said),
        "different-meshes",
        "is on other devices than",
    ),
    "an unknown source": (lambda s, x: reshard(x, s.target, "x"), "bad-argument", "the source of a reshard must be"),
    "an unknown target": (lambda s, x: reshard(x, 5), "bad-argument", "the target of a reshard must be"),
    "no target": (lambda s, x: reshard(x, None), "bad-argument", "the target of a reshard must be"),
    "an axis that is not there": (
        lambda s, x: reshard(x, P("q")),
        "unknown-axis",
        '"q"',
    ),
    "too many dims": (lambda s, x: reshard(x, s.on(P("x", None, None))), "rank-mismatch", "names 3 dims"),
    "an axis twice": (lambda s, x: reshard(x, P("x", ("y", "x"))), "duplicate-axis-ref", "is used twice"),
    "a tree that does not fit": (
        lambda s, x: reshard([x, x], [s.target]),
        "bad-argument",
        "the target does not fit the pytree",
    ),
    "devices in another order": (
        lambda s, x: reshard(
            x, NamedSharding(jax.sharding.Mesh(s.mesh.devices[::-1], ("x", "y"), axis_types=s.mesh.axis_types), TARGET)
        ),
        "different-meshes",
        "inside jit both must be the same in one order",
    ),
    "no array": (lambda s, x: reshard("x", s.target), "bad-argument", "an array or a number is resharded, got: 'x'"),
    "a batch on an axis of the target": (
        lambda s, x: jax.vmap(lambda x: reshard(x, s.on(P("y"))), spmd_axis_name=None if s.explicit else "y")(x),
        "duplicate-axis-ref",
        'vmap maps over axis "y"',
    ),
    "a network of no kind": (lambda s, x: reshard(x, s.target, s.said, network=3), "bad-argument", "the network"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_at_trace_time(setting: Setting, case: str) -> None:
    call, code, words = REFUSED[case]
    with pytest.raises(rs.ReshardError) as caught, jax.set_mesh(setting.mesh):
        jax.jit(lambda x: call(setting, x)).trace(setting.x)
    assert caught.value.code == code, str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_axis_that_does_not_divide_is_refused_where_types_say_it() -> None:
    setting = Setting(AxisType.Explicit, named=False)
    for call in (lambda x: reshard(x, P(None, "y")), jax.jit(lambda x: reshard(x, P(None, "y")))):
        with jax.set_mesh(setting.mesh), pytest.raises(rs.ReshardError, match="dim 1 with size 6 is not") as caught:
            call(setting.x[:, :6])
        assert caught.value.code == "not-divisible"


def test_a_source_that_contradicts_the_type_is_refused() -> None:
    setting = Setting(AxisType.Explicit, named=False)
    for call in (lambda x: reshard(x, setting.target, setting.target), jax.jit(lambda x: reshard(x, TARGET, TARGET))):
        with pytest.raises(rs.ReshardError, match="source is") as caught:
            call(setting.x)
        assert caught.value.code == "bad-argument"


def test_without_shardy_the_source_must_be_said() -> None:
    for named in (True, False):
        setting = Setting(AxisType.Auto, named)
        with shardy_off():
            if named:
                assert_there(jax.jit(setting.move)(setting.x), setting.target)
                continue
            with pytest.raises(rs.ReshardError, match="switched off; pass source="):
                jax.jit(setting.move)(setting.x)


@contextmanager
def shardy_off() -> Iterator[None]:
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)


def test_devices_in_another_order_are_refused_without_a_mesh_that_is_set(setting: Setting) -> None:
    mesh = jax.sharding.Mesh(setting.mesh.devices[::-1], ("x", "y"), axis_types=setting.mesh.axis_types)
    target = NamedSharding(mesh, TARGET)
    with pytest.raises(ValueError, match="incompatible devices"):
        jax.jit(lambda x: reshard(x, target, setting.said and NamedSharding(mesh, SOURCE)))(setting.x)
    with pytest.raises(rs.ReshardError, match="reshard outside"):
        jax.grad(lambda x: reshard(x, target).sum())(setting.x)


def test_without_a_mesh_there_is_no_target() -> None:
    for call in (lambda x: reshard(x, P("x")), jax.jit(lambda x: reshard(x, P("x")))):
        with pytest.raises(rs.ReshardError) as caught:
            call(jax.numpy.zeros(8))
        assert caught.value.code == "unknown-mesh"


def test_inside_shard_map_it_is_refused(setting: Setting) -> None:
    inner = jax.shard_map(setting.move, mesh=setting.mesh, in_specs=SOURCE, out_specs=SOURCE, check_vma=False)
    with pytest.raises(rs.ReshardError, match="inside shard_map"):
        jax.jit(inner)(setting.x)


def test_a_shape_that_is_a_symbol_is_refused(setting: Setting) -> None:
    (size,) = jax.export.symbolic_shape("n")
    given = jax.ShapeDtypeStruct((size, 8), np.float32)
    with pytest.raises(rs.ReshardError, match="static shape") as caught:
        jax.export.export(jax.jit(lambda x: reshard(x, setting.target)))(given)
    assert caught.value.code == "bad-shape"
