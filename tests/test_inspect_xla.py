"""What does `inspect` find in programs that JAX compiles here? Counts are XLA's own, from its binary form.

Bytes of reshards are held against index arithmetic on JAX's own map of devices to indices; groups against what an
all-reduce over them sums up when it is run.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hloproto import KINDS, collectives

import reshard as rs
from reshard.xla.read.replica_groups import parse_groups
from reshard.xla.report import Report, inspect_texts

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.engine

from jax import numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

P = PartitionSpec
MESHES = [(2, 4), (2, 2, 2), (4, 4), (2, 3), (6,), (2, 4, 4)]


def mesh_of(sizes: tuple[int, ...], order: list[int] | None = None) -> Any:
    devices = np.array(jax.devices())[order if order is not None else range(prod(sizes))]
    return jax.sharding.Mesh(devices.reshape(sizes), tuple("xyzw")[: len(sizes)])


def struct(shape: tuple[int, ...], sharding: Any, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def random_spec(rng: random.Random, names: tuple[str, ...], rank: int) -> Any:
    dims: list[list[str]] = [[] for _ in range(rank)]
    for name in rng.sample(names, len(names)):
        dim = rng.randrange(rank + 1)
        if dim < rank:
            dims[dim].append(name)
    return P(*(tuple(dim) or None for dim in dims))


def counted(compiled: Any) -> Counter[tuple[str, str, int, int]]:
    (module,) = compiled.runtime_executable().hlo_modules()
    return Counter(tuple(one) for one in collectives(module.as_serialized_hlo_module_proto()))


def found_in(report: Report) -> Counter[tuple[str, str, int, int]]:
    return Counter((one.name, one.kind, one.operand_bytes, one.result_bytes) for one in report.collectives)


def programs() -> dict[str, Callable[[], Any]]:
    """Programs, each lowered when it is called."""
    mesh = mesh_of((2, 4))

    def on(*spec: Any) -> Any:
        return NamedSharding(mesh, P(*spec))

    x = struct((64, 64), on("x", "y"))
    constrain = jax.lax.with_sharding_constraint

    def kinds(x: Any) -> Any:
        lax = jax.lax
        a = lax.psum(lax.all_gather(x, "y", tiled=True), "x")
        b = lax.all_to_all(lax.psum_scatter(a, "y", tiled=True), ("x", "y"), 0, 1, tiled=True)
        c = lax.ppermute(b, ("x", "y"), [(j, (j + 3) % 8) for j in range(7)])
        return lax.pmax(lax.all_to_all(c, "x", 1, 0, tiled=True), ("x", "y"))

    def loop(x: Any) -> Any:
        def body(c: Any, _: Any) -> tuple[Any, None]:
            return constrain(constrain(jnp.sin(c), on("y", "x")) + 1, on("x", "y")), None

        return jax.lax.scan(body, x, None, length=9)[0]

    def grad(x: Any, w: Any) -> Any:
        return jax.grad(lambda w: ((x @ w) ** 2).sum())(w), (x.sum(), x.max())

    def tuples(x: Any) -> Any:
        return [constrain(x.astype(dtype), on(None, ("y", "x"))) for dtype in (jnp.int8, jnp.uint16, jnp.complex64)]

    shard = jax.shard_map(kinds, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=False)
    return {
        "kinds": lambda: jax.jit(shard).lower(x),
        "loop": lambda: jax.jit(loop).lower(x),
        "grad": lambda: jax.jit(grad, out_shardings=(on("x", None), (on(), on()))).lower(x, x),
        "tuples": lambda: jax.jit(tuples).lower(x),
        "wide": lambda: jax.jit(lambda x: x, out_shardings=on(None, ("y", "x"))).lower(x),
    }


@pytest.mark.parametrize("name", ["kinds", "loop", "grad", "tuples", "wide"])
def test_every_collective_is_found_with_its_bytes(name: str) -> None:
    lowered = programs()[name]()
    compiled = lowered.compile()
    report = rs.jax.inspect(compiled)
    expected = counted(compiled)
    assert found_in(report) == expected
    assert sum(expected.values()) > 0
    assert not report.remarks
    assert all(f" {one.name} = " in compiled.as_text().replace("%", "") for one in report.collectives)
    assert {one.kind for one in report.totals} == {kind for _, kind, *_ in expected}
    if name == "loop":
        assert {one.executions for one in report.collectives} == {1, 9}
    if name == "kinds":
        asked = Counter((one.kind, one.operand_bytes, one.result_bytes) for one in rs.jax.inspect(lowered).collectives)
        assert asked == Counter((one.kind, one.operand_bytes, one.result_bytes) for one in report.collectives)
    assert all(Path(one.source.rpartition(":")[0]) == Path(__file__) for one in report.collectives if one.source)


def index_bytes(source: Any, target: Any, shape: tuple[int, ...], itemsize: int) -> int:
    """The most bytes that a device lacks, element by element."""
    held = source.devices_indices_map(shape)
    most = 0
    for device, wanted in target.devices_indices_map(shape).items():
        has, wants = np.zeros(shape, bool), np.zeros(shape, bool)
        has[held[device]] = True
        wants[wanted] = True
        most = max(most, int((wants & ~has).sum()) * itemsize)
    return most


@pytest.mark.parametrize("seed", range(24))
def test_chains_of_random_reshards(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(seed)
    mesh = mesh_of(MESHES[seed % len(MESHES)])
    shape = tuple(rng.choice([1, 2]) * mesh.size for _ in range(rng.choice([2, 3])))
    dtype = rng.choice([np.float32, np.int32, np.int8])
    source, target = (NamedSharding(mesh, random_spec(rng, mesh.axis_names, len(shape))) for _ in range(2))
    lowered = jax.jit(lambda x: x, out_shardings=target).lower(struct(shape, source, dtype))
    capfd.readouterr()
    compiled = lowered.compile()
    log = capfd.readouterr().err
    bound = index_bytes(source, target, shape, np.dtype(dtype).itemsize)
    ours = rs.jax.sharding_of(source, ndim=len(shape)), rs.jax.sharding_of(target, ndim=len(shape))
    report = rs.jax.inspect(compiled)
    assert found_in(report) == counted(compiled)
    for chain in report.chains:
        assert (chain.source, chain.target, chain.shape) == (*ours, shape)
        assert chain.lower_bound_bytes == bound
        assert chain.received_bytes == sum(one.received_bytes or 0 for one in report.collectives)
        assert chain.received_bytes >= bound
    assert len(report.chains) == bool(report.collectives)
    # The lowered module asks for it, and its bytes are those of the compiled one.
    both = rs.jax.inspect([lowered, compiled, log])
    moved = not source.is_equivalent_to(target, len(shape))
    assert [(one.lower_bound_bytes, one.shape) for one in both.reshards] == [(bound, shape)] * moved
    warned = "Involuntary full rematerialization" in log
    assert len(both.warnings) == warned
    if warned:
        (warning,), (asked,) = both.warnings, both.reshards
        assert asked.warned
        assert warning.received_bytes == asked.received_bytes == report.chains[0].received_bytes
        assert warning.call == asked.call == report.chains[0].call
        # From the log alone.
        (alone,) = inspect_texts([("log", log)]).warnings
        assert (alone.received_bytes, alone.lower_bound_bytes) == (warning.received_bytes, bound)


def test_calls_do_what_they_say() -> None:
    mesh = mesh_of((4, 2))
    source, target = NamedSharding(mesh, P("y", None, "x")), NamedSharding(mesh, P(None, ("x", "y"), None))
    compiled = jax.jit(lambda x: x, out_shardings=target).lower(struct((16, 16, 16), source)).compile()
    (chain,) = rs.jax.inspect(compiled).chains
    assert (chain.received_bytes, chain.lower_bound_bytes, chain.ratio) == (14336, 1792, 8.0)
    array = jax.device_put(np.arange(16**3, dtype=np.float32).reshape(16, 16, 16), source)
    with jax.sharding.set_mesh(mesh) if hasattr(jax.sharding, "set_mesh") else jax.set_mesh(mesh):
        run = jax.jit(lambda x: eval(chain.call, {"rs": rs, "P": P, "x": x}))
        result = run(array)
        better = rs.jax.inspect(run.lower(array).compile())
    assert result.sharding.is_equivalent_to(target, 3)
    assert np.array_equal(result, array)
    assert sum(one.received_bytes or 0 for one in better.collectives) == 1792


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_those_that_an_all_reduce_sums_over(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [(2, 4), (2, 2, 2), (4, 4), (2, 3), (3, 2, 2), (2, 4, 2)][seed]
    mesh = mesh_of(sizes)
    names = rng.sample(mesh.axis_names, len(sizes))
    shape = tuple(mesh.shape[name] for name in names)
    axes = tuple(sorted(rng.sample(range(len(sizes)), rng.randint(1, len(sizes) - 1))))
    source = NamedSharding(mesh, P(*names))
    target = NamedSharding(mesh, P(*(None if dim in axes else name for dim, name in enumerate(names))))
    run = jax.jit(lambda x: x.sum(axes, keepdims=True), out_shardings=target).lower(struct(shape, source)).compile()
    devices = list(mesh.devices.flat)
    values = np.zeros(shape, np.float32)
    for device, index in source.devices_indices_map(shape).items():
        values[index] = 2.0 ** devices.index(device)
    result = run(jax.device_put(values, source))
    sums = {devices.index(piece.device): float(np.asarray(piece.data).sum()) for piece in result.addressable_shards}
    texts = re.findall(
        r"all-reduce\(.*?replica_groups=((?:mesh.*?\{[^}]*\})|\S+?),? (?:use|to_apply|metadata)", run.as_text()
    )
    assert texts
    found = {device: {device} for device in sums}
    for text in texts:
        groups = parse_groups(text)
        assert groups
        joined = {device: set().union(*(found[other] for other in group)) for group in groups for device in group}
        found |= joined
    assert {device: sum(2.0**other for other in group) for device, group in found.items()} == sums
    assert {one.group_size for one in rs.jax.inspect(run).collectives} <= set(range(2, mesh.size + 1))


def test_asynchronous_texts_are_read_as_xla_reads_them() -> None:
    from jaxlib import _hlo

    text = (Path(__file__).parent / "data" / "inspect" / "async.txt").read_text()
    module = _hlo.hlo_module_from_text(text)
    report = inspect_texts([("t", module.to_string())])
    expected = [(kind, *sizes) for _, kind, *sizes in collectives(module.as_serialized_hlo_module_proto())]
    found = [
        (one.kind, one.operand_bytes, one.result_bytes)
        for one in report.collectives
        if one.kind in KINDS and not one.name.endswith("start")
    ]
    assert sorted(found) == sorted(one for one in expected if one[0] != "reduce-scatter")
    assert ("reduce-scatter", 512, 128) in expected
    assert [one.kind for one in report.collectives] == [one.kind for one in inspect_texts([("t", text)]).collectives]


def test_a_real_dump_that_is_cut_anywhere_is_read_up_to_there() -> None:
    text = programs()["kinds"]().compile().as_text()
    whole = inspect_texts([("t", text)]).collectives
    rng = random.Random(0)
    for cut in sorted(rng.sample(range(len(text)), 60)):
        report = inspect_texts([("t", text[:cut])])
        read = text[:cut].count("\n")
        assert [one.name for one in report.collectives if one.line <= read] == [
            one.name for one in whole if one.line <= read
        ]
        (part,) = report.parts
        assert part.stopped.startswith(f"line {read + (text[:cut][-1:] != chr(10))}: ") or cut >= len(text) - 3


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(rs.ReshardError) as caught:
        rs.jax.inspect(7)
    assert (caught.value.code, str(caught.value)) == (
        "bad-argument",
        "a compiled or lowered function or a text is wanted, got: 7",
    )


@pytest.mark.heavy
def test_a_dump_folder_of_xla_is_paired(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = """
import jax, numpy as np
from jax.sharding import *
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 3), ("x", "y"))
source, target = NamedSharding(mesh, PartitionSpec("x", "y")), NamedSharding(mesh, PartitionSpec("y", "x"))
jax.jit(lambda x: x, out_shardings=target).lower(jax.ShapeDtypeStruct((12, 12), np.float32, sharding=source)).compile()
"""
    for passes, origin in (("", "operand"), (" --xla_dump_hlo_pass_re=spmd.*", "operand")):
        folder = tmp_path / (origin + str(len(passes)))
        flags = f"--xla_force_host_platform_device_count=6 --xla_dump_to={folder}{passes}"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        (tmp_path / "log").write_text(done.stderr)
        from reshard.xla.report import inspect_paths

        report = inspect_paths([str(folder), str(tmp_path / "log")])
        assert [(one.received_bytes, one.lower_bound_bytes) for one in report.reshards] == [(480, 96)]
        assert [(one.received_bytes, one.lower_bound_bytes) for one in report.chains] == [(480, 96)]
        assert [one.call for one in report.warnings] == ["rs.jax.reshard(x, P('y', 'x'), source=P('x', 'y'))"]
        assert [one.origin for one in report.reshards] == [origin]


@pytest.mark.parametrize("seed", range(8))
def test_all_texts_before_partitioning_ask_for_the_same(seed: int) -> None:
    rng = random.Random(seed)
    mesh = mesh_of(MESHES[seed % len(MESHES)])
    shape = (mesh.size, 2 * mesh.size)
    first, second, third = (NamedSharding(mesh, random_spec(rng, mesh.axis_names, 2)) for _ in range(3))
    constrain = jax.lax.with_sharding_constraint

    def program(x: Any) -> Any:
        return constrain(jnp.tanh(constrain(2 * x, second)), third) - 1

    used = jax.config.jax_use_shardy_partitioner
    lowered = []
    try:
        for shardy in (True, False):
            jax.config.update("jax_use_shardy_partitioner", shardy)
            lowered.append(jax.jit(lambda x, shardy=shardy: program(x)).lower(struct(shape, first)))
    finally:
        jax.config.update("jax_use_shardy_partitioner", used)
    texts = [one.as_text() for one in lowered] + [one.as_text(dialect="hlo") for one in lowered]
    assert ["sdy.sharding" in text for text in texts] == [True, False, True, False]
    expected = [
        index_bytes(source, target, shape, 4)
        for source, target in ((first, second), (second, third))
        if not source.is_equivalent_to(target, 2)
    ]
    for text in texts:
        report = rs.jax.inspect(text)
        assert [one.lower_bound_bytes for one in report.reshards] == expected
        assert not report.remarks
        assert not report.unrecognised


def test_a_choice_with_a_branch_for_every_turn_runs_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds of a plan in a loop: what is counted is what the plan says."""
    from reshard.jax.exchange import rounds

    monkeypatch.setattr(rounds, "MANY_ROUNDS", 2)
    mesh = jax.make_mesh((2, 8), ("x", "y"), devices=jax.devices()[:16])
    x = jax.ShapeDtypeStruct((64, 64), "float32", sharding=jax.NamedSharding(mesh, jax.P("y", None)))
    report = rs.jax.inspect(jax.jit(lambda x: rs.jax.reshard(x, jax.P("x", None)) + 0).lower(x).compile())
    (total,) = report.totals
    bound = rs.plan(rs.jax.sharding_of(x.sharding, None, 2), rs.Sharding.of(rs.Mesh.of(x=2, y=8), "x", None), x.shape)
    assert (total.kind, total.received_bytes, total.is_least) == ("collective-permute", bound.lower_bound_bytes, False)
