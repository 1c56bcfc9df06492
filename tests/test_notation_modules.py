"""The meshes and shardings of a module of MLIR text are found, in order, and nothing else is."""

from __future__ import annotations

import pytest

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import parse_module

MODULE = """
#loc = loc("<@not, [{}]>")
module @jit_f attributes {mhlo.num_partitions = 8 : i32} {  // <@nor, [{}]>
  sdy.mesh @mesh = <["X"=2, "Y"=4]> loc(#loc)
  sdy.mesh @"other one" = #sdy.mesh<["a"=8], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
  func.func public @main(
    %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"X"}, {}]>, jax.note = "<@x, [{}]>"}
  ) -> (tensor<8x8xf32> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@late, [{}, {"X"}]>}) {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"Y"}, {"X", ?}p1]> : tensor<8x8xf32>
    %1 = sdy.reshard %0 <@"other one", [{"a"}, {}]> : tensor<8x8xf32>
    %2 = sdy.reshard %1 <mesh<["z"=2]>, [{}, {"z"}]> : tensor<8x8xf32>
    %3 = sdy.manual_computation(%2) in_shardings=[<@mesh, [{"X"}, {}]>] out_shardings=[<@mesh, [{"X"}, {?}]>]
      manual_axes={"X"} (%arg1: tensor<4x8xf32>) { sdy.return %arg1 : tensor<4x8xf32> }
      : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %4 = stablehlo.add %3, %3 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"X"}, {"Y"}]>]>} : tensor<8x8xf32>
    %5 = sdy.all_gather [{}, {"Y"}] %4 out_sharding=<@mesh, [{"X"}, {}]> : tensor<8x8xf32>
    return %5 : tensor<8x8xf32>
  }
  sdy.mesh @late = <["X"=2]>
}
"""


def test_a_module() -> None:
    meshes, shardings = parse_module(MODULE)
    assert meshes == {
        "mesh": Mesh.of(X=2, Y=4),
        "other one": Mesh.of(a=8, device_ids=range(7, -1, -1)),
        "late": Mesh.of(X=2),
    }
    assert [(sharding.mesh, sharding.text()) for sharding in shardings] == [
        (meshes["mesh"], '[{"X"}, {}]'),
        (meshes["late"], '[{}, {"X"}]'),
        (meshes["mesh"], '[{"Y"}, {"X", ?}p1]'),
        (meshes["other one"], '[{"a"}, {}]'),
        (Mesh.of(z=2), '[{}, {"z"}]'),
        (meshes["mesh"], '[{"X"}, {}]'),
        (meshes["mesh"], '[{"X"}, {?}]'),
        (meshes["mesh"], '[{"X"}, {"Y"}]'),
        (meshes["mesh"], '[{"X"}, {}]'),
    ]


def test_a_module_without_meshes_has_none() -> None:
    assert parse_module("module { func.func @f(%a: tensor<8xf32>) { return } }") == ({}, [])


BAD_MODULES = [
    ("sdy.mesh @m = [2]", "syntax", 'expected `sdy.mesh @name = <["axis"=size, ...]>` at column 1'),
    ('sdy.mesh @m = <["x"=2>', "syntax", "`>` at column 22 does not close `[`"),
    ('sdy.mesh @m = <["x"=2]', "syntax", "`<` at column 15 is never closed"),
    ('sdy.mesh @m = <["x"=2]>\nsdy.mesh @m = <["x"=2]>', "syntax", "the mesh `@m` is defined a second time at 2:1"),
    ('sdy.mesh @m = <["x"=0]>', "axis-size", 'axis "x" has size 0; it must be at least 1, in sdy.mesh @m = <["x"=0]>'),
    ("a = #sdy.sharding<@m, [{}]>", "unknown-mesh", "the text refers to the mesh `@m`; given: no mesh, in <@m, [{}]>"),
    (
        'sdy.mesh @m = <["x"=2]>\n%0 = sdy.reshard %1 <@m, [{x}]> : tensor<8xf32>',
        "syntax",
        "expected `?`, `}` or a name in double quotes at 2:28, found `x`",
    ),
]


@pytest.mark.parametrize(("text", "code", "sentence"), BAD_MODULES)
def test_bad_modules(text: str, code: str, sentence: str) -> None:
    with pytest.raises(ReshardError) as caught:
        parse_module(text)
    assert (caught.value.code, str(caught.value).split("\n")[0]) == (code, sentence)


def test_hostile_modules_are_read_in_time() -> None:
    for text in ("<" + "// " * 10**5, "sdy.mesh" + "// " * 10**5, "sdy.mesh @m" + " //" * 10**5 + "\n", '"\\' * 10**5):
        try:
            assert parse_module(text) == ({}, [])
        except ReshardError as error:
            assert error.code == "syntax"  # noqa: PT017  # either is right; what counts is that it ends
