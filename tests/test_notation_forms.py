"""The forms beside Shardy's, MLIR's list, XLA's and named axes, are read and written as their systems do."""

from __future__ import annotations

import pytest

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import parse_sharding, to_mlir_list, to_named, to_xla
from reshard.sharding import Sharding

XY = Mesh.of(x=2, y=4)
WXYZ = Mesh.of(W=2, X=2, Y=4, Z=2)


# MLIR's list

LISTS = [
    ("[[0], [1]]", 2, Sharding.of(XY, "x", "y")),
    ("[[1, 0], []]", None, Sharding.of(XY, ("y", "x"), None)),
    ("[[]]", None, Sharding.of(XY, None)),
    ("[[1]]", 3, Sharding.of(XY, "y", None, None)),
    ("[ [ 0 ] ]", None, Sharding.of(XY, "x")),
    ("[]", None, Sharding.of(XY)),
    ("[]", 2, Sharding.of(XY, None, None)),
    ("[[]]", 2, Sharding.of(XY, None, None)),
]


@pytest.mark.parametrize(("text", "ndim", "expected"), LISTS)
def test_mlirs_list(text: str, ndim: int | None, expected: Sharding) -> None:
    assert parse_sharding(text, XY, ndim) == expected
    assert parse_sharding(to_mlir_list(expected), XY) == expected


# XLA's text: on the mesh x=2, y=4 where not said otherwise, and on none

XLA = [
    ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", '[{"x"}, {}]', '<["a"=2, "b"=4]>', '[{"a"}, {}]'),
    ("{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}", '[{"y"}, {}]', '<["a"=2, "b"=4]>', '[{"b"}, {}]'),
    ("{devices=[8,1]<=[8]}", '[{"x", "y"}, {}]', '<["a"=8]>', '[{"a"}, {}]'),
    ("{devices=[8,1]<=[2,4]T(1,0)}", '[{"y", "x"}, {}]', '<["a"=2, "b"=4]>', '[{"b", "a"}, {}]'),
    ("{devices=[4,2]<=[8]}", '[{"x", "y":(1)2}, {"y":(2)2}]', '<["a"=4, "b"=2]>', '[{"a"}, {"b"}]'),
    ("{devices=[2,4]0,1,2,3,4,5,6,7}", '[{"x"}, {"y"}]', '<["a"=2, "b"=4]>', '[{"a"}, {"b"}]'),
    ("{devices=[4,2]0,4,1,5,2,6,3,7}", '[{"y"}, {"x"}]', '<["a"=2, "b"=4]>', '[{"b"}, {"a"}]'),
    (
        "{devices=[1,2,4]<=[8] last_tile_dims={unreduced}}",
        '[{}, {"x"}], unreduced={"y"}',
        '<["a"=2, "b"=4]>',
        '[{}, {"a"}], unreduced={"b"}',
    ),
    (
        "{devices=[2,2,2]<=[8] last_tile_dims={replicated, unreduced}}",
        '[{"x"}], unreduced={"y":(2)2}',
        '<["a"=2, "b"=2, "c"=2]>',
        '[{"a"}], unreduced={"c"}',
    ),
    ("{devices=[2,4]<=[8] last_tile_dims={replicated}}", '[{"x"}]', '<["a"=2, "b"=4]>', '[{"a"}]'),
    ("{devices=[2,4]<=[8] last_tile_dims={}}", '[{"x"}, {"y"}]', '<["a"=2, "b"=4]>', '[{"a"}, {"b"}]'),
    ("devices=[2,4]<=[8]", '[{"x"}, {"y"}]', '<["a"=2, "b"=4]>', '[{"a"}, {"b"}]'),
    (
        'sharding={devices=[2,4]<=[8]}, metadata={op_name="jit(f)/}{" source_line=3}',
        '[{"x"}, {"y"}]',
        '<["a"=2, "b"=4]>',
        '[{"a"}, {"b"}]',
    ),
    (
        '{devices=[2,4]<=[8] metadata={{op_name="a"}, {op_name="b"}}}',
        '[{"x"}, {"y"}]',
        '<["a"=2, "b"=4]>',
        '[{"a"}, {"b"}]',
    ),
    ("{devices=[8] /*index=5*/ <= [ 8 ]}", '[{"x", "y"}]', '<["a"=8]>', '[{"a"}]'),
]


@pytest.mark.parametrize(("text", "on_mesh", "mesh", "alone"), XLA)
def test_xlas_text(text: str, on_mesh: str, mesh: str, alone: str) -> None:
    assert parse_sharding(text, XY) == parse_sharding(on_mesh, XY)
    assert parse_sharding(text) == parse_sharding(f"<mesh{mesh}, {alone}>")


def test_xlas_words_for_the_whole_mesh() -> None:
    assert parse_sharding("{replicated}", XY, 2) == Sharding.of(XY, None, None)
    assert parse_sharding("replicated", ndim=1) == Sharding.of(Mesh.of(), None)
    assert parse_sharding("{unreduced}", XY, 1) == Sharding.of(XY, None, unreduced=("x", "y"))
    with pytest.raises(ReshardError, match="a mesh must be given"):
        parse_sharding("{unreduced}", ndim=1)
    assert parse_sharding("{maximal device=3}") == Sharding(Mesh.of(device_ids=(3,)), ())
    assert parse_sharding("{maximal device=3}", XY, 2) == Sharding(Mesh.of(device_ids=(3,)), ())
    assert parse_sharding("{replicated}", Mesh.of(device_ids=(3,)), 2) == Sharding(Mesh.of(device_ids=(3,)), ())


def test_xlas_order_of_devices_that_no_axes_follow_is_a_fresh_mesh() -> None:
    odd = parse_sharding("{devices=[2,2]3,0,1,2}", Mesh.of(x=2, y=2))
    assert odd == Sharding.of(Mesh.of(a=2, b=2, device_ids=(3, 0, 1, 2)), "a", "b")
    uneven = parse_sharding("{devices=[3,2]<=[3,2]T(1,0)}")
    assert uneven == Sharding.of(Mesh.of(a=3, b=2, device_ids=(0, 2, 4, 1, 3, 5)), "a", "b")
    sixes = Mesh.of(x=2, y=3)
    assert parse_sharding("{devices=[3,2]<=[6]}", sixes) == Sharding.of(Mesh.of(a=3, b=2), "a", "b")


def test_xlas_devices_are_found_by_their_number_in_the_mesh() -> None:
    turned = Mesh.of(x=2, y=2, device_ids=(3, 1, 2, 0))
    assert parse_sharding("{devices=[2,2]3,1,2,0}", turned) == Sharding.of(turned, "x", "y")
    assert parse_sharding("{devices=[2,2]3,2,1,0}", turned) == Sharding.of(turned, "y", "x")
    part = Mesh.of(x=2, device_ids=(9, 8))
    assert parse_sharding("{devices=[2]9,8}", part) == Sharding.of(part, "x")
    assert parse_sharding("{devices=[2]8,9}") == Sharding.of(Mesh.of(a=2, device_ids=(8, 9)), "a")


def test_xlas_text_may_be_about_very_many_devices() -> None:
    read = parse_sharding("{devices=[1000000,1,1000]<=[1000,1000000]T(1,0) last_tile_dim_replicate}")
    assert read == Sharding.of(Mesh.of(a=1000, b=1000000), "b", None)


def test_xlas_text_may_have_very_many_dims() -> None:
    ones = ",".join("1" * 200)
    places = ",".join(map(str, reversed(range(200))))
    for text in (
        f"{{devices=[{ones},2]<=[2]}}",
        f"{{devices=[{ones},2]<=[{ones[:-2]},2]T({places})}}",
        f"{{devices=[{ones},2]0,1}}",
    ):
        assert parse_sharding(text) == Sharding.of(Mesh.of(a=2), *[None] * 200, "a")
        assert parse_sharding(text, Mesh.of(x=2, device_ids=(1, 0))).box(0, (1,) * 200 + (2,))[-1] == (0, 1)


TO_XLA = [
    (Sharding.of(XY, "x", None), "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"),
    (Sharding.of(XY, "y", None), "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"),
    (Sharding.of(XY, ("y", "x")), "{devices=[8]<=[2,4]T(1,0)}"),
    (Sharding.of(XY, ("x", "y")), "{devices=[8]<=[8]}"),
    (Sharding.of(XY, None, None), "{replicated}"),
    (Sharding.of(XY, None, unreduced=("x", "y")), "{unreduced}"),
    (Sharding.of(XY, None, unreduced="x"), "{devices=[1,2,4]<=[8] last_tile_dims={unreduced, replicated}}"),
    (Sharding.of(XY, "y", unreduced="x"), "{devices=[4,2]<=[2,4]T(1,0) last_tile_dims={unreduced}}"),
    (Sharding.of(XY, "y:(2)2"), "{devices=[2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"),
    (Sharding.of(XY, ("y:(2)2", "y:(1)2"), "x"), "{devices=[4,2]<=[2,2,2]T(2,1,0)}"),
    (
        Sharding.of(Mesh.of(D=2, Y=8, X=4, T=4), "D", ("X", "Y")),
        "{devices=[2,32,4]<=[2,8,4,4]T(0,2,1,3) last_tile_dim_replicate}",
    ),
    (Sharding.of(Mesh.of(x=2, y=2, device_ids=(3, 0, 1, 2)), "x", "y"), "{devices=[2,2]3,0,1,2}"),
    (Sharding.of(Mesh.of(x=2, y=2, device_ids=(0, 2, 1, 3)), "x", "y"), "{devices=[2,2]<=[2,2]T(1,0)}"),
    (Sharding.of(Mesh.of(x=2, device_ids=(9, 8)), "x"), "{devices=[2]9,8}"),
    (Sharding(Mesh.of(device_ids=(3,)), ()), "{maximal device=3}"),
    (Sharding.of(Mesh.of(), None), "{replicated}"),
    (Sharding.of(Mesh.of(x=1), "x"), "{replicated}"),
    (Sharding.of(XY, "x", "y", uneven="chunk"), "{devices=[2,4]<=[8]}"),
]


@pytest.mark.parametrize(("sharding", "text"), TO_XLA)
def test_writing_xlas_text(sharding: Sharding, text: str) -> None:
    assert to_xla(sharding) == text
    assert to_xla(sharding, sharding.ndim) == text


# named axes

NAMED = [
    ("A[I_X, J_YZ] {U_W}", Sharding.of(WXYZ, "X", ("Y", "Z"), unreduced="W"), "A[I_X, J_YZ] {U_W}"),
    ("A[I_X,J_{YZ}]{U_{W}}", Sharding.of(WXYZ, "X", ("Y", "Z"), unreduced="W"), "A[I_X, J_YZ] {U_W}"),
    ("A'[I_{Y, Z}, J]", Sharding.of(WXYZ, ("Y", "Z"), None), "A[I_YZ, J]"),
    ("[I, J_X]", Sharding.of(WXYZ, None, "X"), "A[I, J_X]"),
    ("Weights[Batch_X, Model2]", Sharding.of(WXYZ, "X", None), "A[I_X, J]"),
    ("A[]", Sharding.of(WXYZ), "A[]"),
    ("A[I] {U_WX}", Sharding.of(WXYZ, None, unreduced=("W", "X")), "A[I] {U_WX}"),
]


@pytest.mark.parametrize(("text", "expected", "written"), NAMED)
def test_named_axes(text: str, expected: Sharding, written: str) -> None:
    assert parse_sharding(text, WXYZ) == expected
    assert to_named(expected) == written


def test_names_of_many_letters_are_read_longest_first() -> None:
    mesh = Mesh.of(data=2, model=2, data2=2, m=2, odel_x=1)
    assert parse_sharding("A[I_{data,model}]", mesh) == Sharding.of(mesh, ("data", "model"))
    assert parse_sharding("A[I_datamodel]", mesh) == Sharding.of(mesh, ("data", "model"))
    assert parse_sharding("A[I_data2, J_data]", mesh) == Sharding.of(mesh, "data2", "data")
    assert parse_sharding("A[I_model_x]", mesh) == Sharding.of(mesh, ("m", "odel_x"))
    assert to_named(Sharding.of(mesh, ("data", "model"), "data2"), "B", ["X", "Y'"]) == "B[X_{data,model}, Y'_data2]"


def test_the_notes_own_examples() -> None:
    mesh = Mesh.of(X=2, Y=2)
    assert to_named(parse_sharding("A[I_{XY}, J]", mesh)) == "A[I_XY, J]"
    assert parse_sharding("C[I, K]{U_X}", mesh) == Sharding.of(mesh, None, None, unreduced="X")


# what a form cannot hold

CANNOT = [
    (to_mlir_list, Sharding.of(XY, "y:(1)2"), 'the list form has no sub-axes, but [{"y":(1)2}] uses "y":(1)2'),
    (
        to_mlir_list,
        Sharding.of(XY, None, unreduced="x"),
        'the list form has no unreduced axes, but [{}], unreduced={"x"} has some',
    ),
    (
        to_mlir_list,
        Sharding(Mesh.of(device_ids=(3,)), ()),
        "the list form has no mesh of a single device, as <[], device_ids=[3]> is",
    ),
    (
        to_mlir_list,
        Sharding.of(XY, ("x", "y"), uneven="chunk"),
        'the list form has no chunks of chunks, as [{"x", "y"}], uneven=chunk cuts a dim',
    ),
    (to_named, Sharding.of(XY, "y:(1)2"), 'named-axis notation has no sub-axes, but [{"y":(1)2}] uses "y":(1)2'),
    (
        to_named,
        Sharding.of(XY, unreduced="x", reduction="max"),
        'named-axis notation has sums alone, but [], unreduced=max{"x"} is under max',
    ),
    (to_named, Sharding.of(Mesh.of({"a b": 2}), "a b"), 'named-axis notation cannot write the axis "a b"'),
    (
        to_xla,
        Sharding.of(XY, ("x", "y"), uneven="chunk"),
        'XLA\'s form has no chunks of chunks, as [{"x", "y"}], uneven=chunk cuts a dim',
    ),
    (
        to_xla,
        Sharding.of(XY, unreduced="x", reduction="avg"),
        'XLA\'s form has sums alone, but [], unreduced=avg{"x"} is under avg',
    ),
]


@pytest.mark.parametrize(("write", "sharding", "sentence"), CANNOT)
def test_what_a_form_cannot_hold_is_refused(write: type, sharding: Sharding, sentence: str) -> None:
    with pytest.raises(ReshardError) as caught:
        write(sharding)
    assert (caught.value.code, str(caught.value)) == ("cannot-express", sentence)


def test_writers_check_their_arguments() -> None:
    for code, write in (
        ("rank-mismatch", lambda: to_named(Sharding.of(XY, "x"), dims=["I", "J"])),
        ("bad-argument", lambda: to_named(Sharding.of(XY, "x"), dims=["I_"])),
        ("bad-argument", lambda: to_named(Sharding.of(XY, "x"), name="")),
        ("bad-argument", lambda: to_named(Sharding.of(XY, "x"), name=3)),  # type: ignore[arg-type]
        ("rank-mismatch", lambda: to_xla(Sharding.of(XY, "x"), 2)),
    ):
        with pytest.raises(ReshardError) as caught:
            write()
        assert caught.value.code == code
