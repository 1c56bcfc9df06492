"""Meshes and shardings to and from JAX's: the same indices on the same devices."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec  # noqa: E402
from jax_problems import draw_problem  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import hlo_sharding_of, mesh_of, named_sharding_of, partition_spec_of, sharding_of  # noqa: E402

pytestmark = pytest.mark.engine


def mesh_in_order(order: list[int], sizes: tuple[int, ...] = (2, 4)) -> Mesh:
    return Mesh(np.array(jax.devices())[order].reshape(sizes), ("x", "y", "z")[: len(sizes)])


def boxes(sharding: object, shape: tuple[int, ...]) -> dict[int, list[tuple[int, int]]]:
    """Per place in `jax.devices()` what JAX says it holds."""
    places = {device: place for place, device in enumerate(jax.devices())}
    return {
        places[device]: [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
        for device, index in sharding.devices_indices_map(shape).items()
    }


def test_devices_are_places_in_the_list_of_jax() -> None:
    order = [3, 1, 0, 2, 7, 5, 4, 6]
    assert mesh_of(mesh_in_order(order)) == rs.Mesh.of(x=2, y=4, device_ids=order)
    assert mesh_of(mesh_in_order(list(range(8)))) == rs.Mesh.of(x=2, y=4)
    assert mesh_of(mesh_in_order(order).abstract_mesh) == rs.Mesh.of(x=2, y=4)
    assert mesh_of(AbstractMesh((2, 4), ("x", "y"))) == rs.Mesh.of(x=2, y=4)


@pytest.mark.parametrize("seed", range(40))
def test_both_say_the_same_of_every_device(seed: int) -> None:
    problem = draw_problem(Random(seed), AxisType.Auto)
    shape, mesh = problem.array.shape, problem.source.mesh
    ours = sharding_of(problem.source)
    right = boxes(problem.source, shape)
    assert {device: list(ours.box(device, shape)) for device in ours.mesh.devices} == right
    assert sharding_of(problem.source.spec, mesh, 3) == ours
    assert named_sharding_of(ours, mesh).is_equivalent_to(problem.source, 3)
    assert boxes(named_sharding_of(ours), shape) == right
    hlo = problem.source._to_xla_hlo_sharding(3)
    assert sharding_of(hlo, mesh, 3).is_equivalent_to(ours, shape)
    assert hlo_sharding_of(ours, 3) == hlo
    assert str(hlo_sharding_of(sharding_of(hlo, ndim=3))) == str(hlo) or hlo.is_replicated()


@pytest.mark.parametrize("seed", range(20))
def test_a_refined_mesh_holds_what_sub_axes_say(seed: int) -> None:
    rng = Random(seed)
    mesh = mesh_in_order(rng.sample(range(16), 16), (2, 8))
    parts = rng.sample(["x", "y:(1)2", "y:(2)2", "y:(4)2"], 4)
    cut = rng.randrange(5)
    ours = rs.Sharding.of(mesh_of(mesh), parts[:cut], parts[cut : rng.randint(cut, 4)])
    found = named_sharding_of(ours, mesh, refine=True)
    assert list(found.mesh.devices.flat) == list(mesh.devices.flat)
    shape = (16, 32)
    assert {device: list(ours.box(device, shape)) for device in ours.mesh.devices} == boxes(found, shape)
    assert found.mesh.axis_types == (mesh.axis_types[0],) * len(found.mesh.axis_names)


def test_names_of_a_refined_mesh_are_new() -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("y0", "y"))
    found = named_sharding_of(rs.Sharding.of(mesh_of(mesh), "y:(1)2"), mesh, refine=True)
    assert found.mesh.shape_tuple == (("y0", 2), ("y_0", 2), ("y1", 2))
    assert found.spec == PartitionSpec("y_0")


def test_other_names_of_the_same_devices_are_put_in_terms_of_the_mesh() -> None:
    mesh = mesh_in_order(list(range(8)))
    flat = rs.Sharding.of(rs.Mesh.of(a=8), "a", None)
    assert named_sharding_of(flat, mesh).spec == PartitionSpec(("x", "y"), None)
    six = Mesh(np.array(jax.devices()[:6]).reshape(2, 3), ("x", "y"))
    other = rs.Sharding.of(rs.Mesh.of(p=3, q=2), "p")
    found = named_sharding_of(other, six, refine=True)
    assert boxes(found, (6,)) == {device: list(other.box(device, (6,))) for device in range(6)}
    with pytest.raises(rs.ReshardError, match="cannot express") as caught:
        named_sharding_of(other, six)
    assert caught.value.code == "cannot-express"


def test_unreduced_axes_go_both_ways() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    theirs = NamedSharding(mesh, PartitionSpec("x", None, unreduced={"y"}))
    ours = rs.Sharding.of(mesh_of(mesh), "x", None, unreduced="y")
    assert sharding_of(theirs) == ours
    assert named_sharding_of(ours, mesh) == theirs
    assert sharding_of(theirs._to_xla_hlo_sharding(2), mesh, 2) == ours
    assert hlo_sharding_of(ours) == theirs._to_xla_hlo_sharding(2)
    reduced = sharding_of(PartitionSpec("x", None, reduced={"y"}), mesh)
    assert [axis.name for axis in reduced.replicated] == ["y"]


def test_one_device_and_scalars() -> None:
    there = jax.device_put(np.zeros(3), jax.devices()[5])
    assert sharding_of(there.sharding).mesh == rs.Mesh.of(device_ids=(5,))
    mesh = mesh_in_order([2, 3], (2,))
    assert sharding_of(PartitionSpec(), mesh) == rs.Sharding.of(mesh_of(mesh))
    assert partition_spec_of(rs.Sharding.of(mesh_of(mesh))) == PartitionSpec()


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda m: mesh_of("x"), "bad-argument", "a mesh of JAX is wanted, got: 'x'"),
        (lambda m: sharding_of(PartitionSpec("x")), "unknown-mesh", "a mesh must be given or set"),
        (lambda m: sharding_of(PartitionSpec("x", None), m, 1), "rank-mismatch", "names 2 dims, the tensor has 1"),
        (lambda m: sharding_of(PartitionSpec("q"), m), "unknown-axis", 'axis "q" is not in mesh'),
        (lambda m: sharding_of(PartitionSpec(3), m), "axis-name", "an axis name must be a string, got: 3"),
        (lambda m: sharding_of(7, m), "bad-argument", "a sharding must be a PartitionSpec, a NamedSharding or ours"),
        (lambda m: partition_spec_of(rs.Sharding.of(mesh_of(m), "y:(1)2")), "cannot-express", "JAX has no sub-axes"),
        (
            lambda m: partition_spec_of(rs.Sharding.of(mesh_of(m), None, unreduced="y", reduction="max")),
            "cannot-express",
            "JAX has sums alone",
        ),
        (
            lambda m: named_sharding_of(rs.Sharding.of(rs.Mesh.of(x=16, y=4), "x"), None),
            "unknown-device",
            "device 63 is wanted; JAX has 32 devices here",
        ),
        (
            lambda m: named_sharding_of(rs.Sharding.of(rs.Mesh.of(x=2, y=2), "x"), m),
            "different-meshes",
            "is on other devices than the mesh",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(make: object, code: str, words: str) -> None:
    with pytest.raises(rs.ReshardError) as caught:
        make(mesh_in_order(list(range(8))))
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_specs_with_open_dims_stay_open() -> None:
    mesh = mesh_in_order(list(range(8)))
    ours = sharding_of(PartitionSpec(PartitionSpec.UNCONSTRAINED, "x"), mesh)
    assert ours.dims[0].is_open
    assert not ours.dims[0].axes
