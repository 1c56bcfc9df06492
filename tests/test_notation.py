"""Shardy's text is read as Shardy reads it, and a wrong text of any form is refused with its place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from reshard.axis import Axis
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import parse_mesh, parse_module, parse_sharding
from reshard.sharding import Sharding

XY = Mesh.of(x=2, y=4)


def refusal(text: object, *args: object, **keywords: object) -> tuple[str, str]:
    """The code and the sentence of what `parse_sharding` refuses."""
    with pytest.raises(ReshardError) as caught:
        parse_sharding(text, *args, **keywords)  # type: ignore[arg-type]
    return caught.value.code, str(caught.value)


# Shardy's text

SHARDY = [
    ("[]", Sharding.of(XY)),
    ("[{}]", Sharding.of(XY, None)),
    ("[{?}]", Sharding.of(XY, "?")),
    ('[{"x"}]', Sharding.of(XY, "x")),
    ('[{"x", ?}]', Sharding.of(XY, ("x", "?"))),
    ('[{"y", "x"}, {}]', Sharding.of(XY, ("y", "x"), None)),
    ('[{"x"}p0]', Sharding(XY, (DimSharding((Axis("x"),), priority=0),))),
    ("[{?}p9223372036854775807]", Sharding(XY, (DimSharding((), True, 2**63 - 1),))),
    ('[{"x"} p3]', Sharding(XY, (DimSharding((Axis("x"),), priority=3),))),
    ('[{"y":(1)2}, {"y":(2)2}]', Sharding.of(XY, "y:(1)2", "y:(2)2")),
    ('[{"y":(2)2, "y":(1)2}]', Sharding.of(XY, ("y:(2)2", "y:(1)2"))),
    ('[{ "y" :\t( 0x2 )\n02 }]', Sharding.of(XY, "y:(2)2")),
    ('[{}], replicated={"x", "y":(1)2}', Sharding.of(XY, None, replicated=("x", "y:(1)2"))),
    ('[{}], unreduced={"y"}, replicated={"x"}', Sharding.of(XY, None, replicated="x", unreduced="y")),
    ('[{}], unreduced=max{"y"}', Sharding.of(XY, None, unreduced="y", reduction="max")),
    ('[{}], unreduced=sum{"y"}', Sharding.of(XY, None, unreduced="y")),
    ('[{"x", "y"}], uneven=chunk', Sharding.of(XY, ("x", "y"), uneven="chunk")),
    ('[{"x"}], uneven=ceil, unreduced=bor{"y"}', Sharding.of(XY, "x", unreduced="y", reduction="bor")),
    ('// what\n[{"x"} // "this\n, {}] // is', Sharding.of(XY, "x", None)),
    ('<@m, [{"x"}]>', Sharding.of(XY, "x")),
    ('#sdy.sharding<@m, [{"x"}]>', Sharding.of(XY, "x")),
    ('#sdy.sharding<@"a b\\22", [{"x"}]>', Sharding.of(XY, "x")),
    ('#sdy<sharding<@m, [{"x"}]>>', Sharding.of(XY, "x")),
    ('#sdy.sharding<mesh<["x"=2, "y"=4]>, [{"x"}]>', Sharding.of(XY, "x")),
]


@pytest.mark.parametrize(("text", "expected"), SHARDY)
def test_shardys_text(text: str, expected: Sharding) -> None:
    assert parse_sharding(text, XY) == expected


def test_an_inlined_mesh_needs_no_other() -> None:
    read = parse_sharding('<mesh<["a"=2, "b"=3], device_ids=[5, 4, 3, 2, 1, 0]>, [{"b"}]>')
    assert read == Sharding.of(Mesh.of(a=2, b=3, device_ids=(5, 4, 3, 2, 1, 0)), "b")
    assert parse_sharding("<mesh<[], device_ids=[3]>, []>") == Sharding(Mesh.of(device_ids=(3,)), ())
    assert parse_sharding("<mesh<[]>, [{}, {?}]>") == Sharding.of(Mesh.of(), None, "?")
    assert parse_sharding('<mesh<["a"=2], devices=[9, 8]>, [{"a"}]>') == Sharding.of(
        Mesh.of(a=2, device_ids=(9, 8)), "a"
    )


MESHES = [
    ('<["x"=2, "y"=4]>', XY),
    ('mesh<["x"=2, "y"=4]>', XY),
    ('#sdy.mesh<["x"=2, "y"=4]>', XY),
    ('sdy.mesh @m = <["x"=2, "y"=4]>', XY),
    ('@m = #sdy.mesh<["x"=2, "y"=4]>', XY),
    ("x=2,y=4", XY),
    (" x = 2 , y = 4 ", XY),
    ("data-parallel=2,轴=3", Mesh.of({"data-parallel": 2, "轴": 3})),
    ('<["x"=2], device_ids=[0, 1]>', Mesh.of(x=2)),
    ('<["x"=2], device_ids=[0x1, false]>', Mesh.of(x=2, device_ids=(1, 0))),
    ('<["x"=2], devices=[8, 9]>', Mesh.of(x=2, device_ids=(8, 9))),
    ("<[], device_ids=[7]>", Mesh.of(device_ids=(7,))),
    ("<[]>", Mesh.of()),
    (r'<["\22\\\"\n\t\C3\A9"=1]>', Mesh.of({'"\\"\n\té': 1})),
    ('<[""=1, "\t\r\x00"=1]>', Mesh.of({"": 1, "\t\r\x00": 1})),
]


@pytest.mark.parametrize(("text", "expected"), MESHES)
def test_meshes(text: str, expected: Mesh) -> None:
    assert parse_mesh(text) == expected


def test_what_shardy_writes_is_canonical() -> None:
    for text in (
        '#sdy.sharding<mesh<["x"=2, "y"=4]>, [{"x", ?}p1, {}], replicated={"y":(1)2}, unreduced={"y":(2)2}>',
        '#sdy.sharding<mesh<["x"=2], devices=[9, 8]>, [{"x"}], uneven=chunk>',
        '#sdy.sharding<mesh<["x"=2], device_ids=[1, 0]>, [], unreduced=max{"x"}>',
        '#sdy.sharding<mesh<["a\\22\\0A\\C3\\A9"=2]>, [{"a\\22\\0A\\C3\\A9"}]>',
        "#sdy.sharding<mesh<[], device_ids=[3]>, []>",
    ):
        assert str(parse_sharding(text)) == text


# the mesh that a text is read on


def test_a_given_mesh_is_used_whatever_the_text_calls_it() -> None:
    assert parse_sharding('<@other, [{"x"}]>', XY).mesh == XY
    assert parse_sharding('<@b, [{"x"}]>', {"a": Mesh.of(x=3), "b": XY}).mesh == XY
    assert parse_sharding('[{"x"}]', {"a": XY}).mesh == XY
    assert parse_sharding('<mesh<["x"=2]>, [{"x"}]>', {"a": XY}).mesh == Mesh.of(x=2)


def test_a_mesh_that_is_missing_or_another_is_refused() -> None:
    assert refusal('<@m, [{"x"}]>') == (
        "unknown-mesh",
        'the text refers to the mesh `@m`; given: no mesh, in <@m, [{"x"}]>',
    )
    assert refusal('<@m, [{"x"}]>', {"a": XY, "b": XY})[1].startswith(
        "the text refers to the mesh `@m`; given: `@a`, `@b`"
    )
    assert refusal('[{"x"}]')[0] == refusal('[{"x"}]', {"a": XY, "b": XY})[0] == "unknown-mesh"
    assert refusal("[[0]]")[0] == refusal("A[I_x]")[0] == "unknown-mesh"
    assert refusal('<mesh<["x"=2]>, [{"x"}]>', XY) == (
        "different-meshes",
        'the text\'s own mesh <["x"=2]> is not the given mesh <["x"=2, "y"=4]>, in <mesh<["x"=2]>, [{"x"}]>',
    )


def test_the_number_of_dims_is_checked() -> None:
    assert refusal('[{"x"}]', XY, 2) == ("rank-mismatch", 'the sharding has 1 dims, the tensor 2, in [{"x"}]')
    assert refusal("A[I_x]", XY, 2)[0] == refusal("[[0], [1]]", XY, 1)[0] == "rank-mismatch"
    assert refusal("{devices=[2,4]<=[8]}", XY, 3)[0] == "rank-mismatch"
    assert parse_sharding("<mesh<[], device_ids=[3]>, []>", ndim=2).ndim is None


@pytest.mark.parametrize("text", [None, 3, b"[]", ["[]"]])
def test_a_text_is_a_string(text: object) -> None:
    assert refusal(text, XY)[0] == "bad-argument"
    for parse in (parse_mesh, parse_module):
        with pytest.raises(ReshardError, match="a text must be a string") as caught:
            parse(text)  # type: ignore[operator]
        assert caught.value.code == "bad-argument"


def test_arguments_are_checked() -> None:
    assert refusal("[]", "x=2")[0] == refusal("[]", {"m": "x=2"})[0] == "bad-argument"
    assert refusal("[]", XY, -1)[0] == refusal("[]", XY, "2")[0] == refusal("[]", XY, True)[0] == "bad-argument"


# refusals of a syntax: the whole message, with the caret

MANUAL = (
    "a manual sharding leaves to the program what each device holds, so it cannot be read; found `manual` at column 2"
)
FORMS = '`#sdy.sharding<@m, [{"x"}]>`, `[{"x"}]`, `[[0]]`, `{devices=[2]<=[2]}` or `A[I_X]`'
PLACES = [
    ('[{"x"} {"y"}]', "expected `,`, `]` or a priority such as `p1` at column 8, found `{`", '[{"x"} ', '{"y"}]'),
    ('[{"x"}, ', "expected `{` at column 8, found the end of the text", '[{"x"},', " "),
    ('[{"x",}]', "expected `?` or a name in double quotes at column 7, found `}`", '[{"x",', "}]"),
    ('[{"x"?}]', "expected `,`, `:` or `}` at column 6, found `?`", '[{"x"', "?}]"),
    ('[{?, "x"}]', "expected `}` at column 4, found `,`", "[{?", ', "x"}]'),
    ('[{"x"}p01]', "a priority must have no leading zeros; found `p01` at column 7", '[{"x"}', "p01]"),
    ('[{"x"}q1]', "a priority must be `p` and digits; found `q1` at column 7", '[{"x"}', "q1]"),
    ('[{"x":2}]', "expected `(` at column 7, found `2`", '[{"x":', "2}]"),
    ("[{}], x={}", "expected `replicated`, `uneven` or `unreduced` at column 7, found `x`", "[{}], ", "x={}"),
    ("[{}], replicated={}", "expected a name in double quotes at column 19, found `}`", "[{}], replicated={", "}"),
    ("[{}],", "expected `replicated`, `uneven` or `unreduced` at column 6, found the end of the text", "[{}],", ""),
    (
        '[{}], unreduced={"x"}, unreduced={"y"}',
        "`unreduced` is given twice at column 24",
        '[{}], unreduced={"x"}, ',
        'unreduced={"y"}',
    ),
    ('[{"x}]', "the string that begins here is not closed on its line at column 3", "[{", '"x}]'),
    (
        r'[{"x\q"}]',
        r"`\q` is no escape; expected `\\`, `\"`, `\n`, `\t` or two hexadecimal digits at column 5",
        '[{"x',
        r'\q"}]',
    ),
    (r'[{"\FF"}]', r'the bytes of `"\FF"` are no UTF-8 at column 3', "[{", r'"\FF"}]'),
    ("[{\x0b}]", "expected `?`, `}` or a name in double quotes at column 3, found the character U+000B", "[{", "�}]"),
    ("<@m [{}]>", "expected `,` at column 5, found `[`", "<@m ", "[{}]>"),
    ("<@1, [{}]>", "expected `mesh` or a mesh's name after `@` at column 2, found `@`", "<", "@1, [{}]>"),
    ("[[0], [1,]]", "expected the number of a mesh axis at column 10, found `]`", "[[0], [1,", "]]"),
    ("A[I_x, 2]", "expected a name at column 8, found `2`", "A[I_x, ", "2]"),
    ("A[I_x] {V_y}", "expected `U` at column 9, found `V`", "A[I_x] {", "V_y}"),
    ("{devices=[2,4]<=[2,4]}", "expected `T` at column 22, found `}`", "{devices=[2,4]<=[2,4]", "}"),
    (
        "{devices=[2,4]<=[2,4]T(1,1)}",
        "a transposition of 2 dims must hold each of 0 to 1 once; found `1,1` at column 24",
        "{devices=[2,4]<=[2,4]T(",
        "1,1)}",
    ),
    ("{devices=[0]<=[0]}", "a dim must be cut into at least 1 tile; found 0 at column 11", "{devices=[", "0]<=[0]}"),
    (
        "{{replicated}, {replicated}}",
        "a tuple sharding begins at column 1; it holds a sharding for every part of a tuple, so give one of those",
        "",
        "{{replicated}, {replicated}}",
    ),
    (
        "{manual}",
        MANUAL,
        "{",
        "manual}",
    ),
    ("{unknown}", "an unknown sharding says nothing; found `unknown` at column 2", "{", "unknown}"),
    (
        "@m",
        f"expected a sharding, such as {FORMS}, at column 1, found `@`",
        "",
        "@m",
    ),
]


@pytest.mark.parametrize(("text", "sentence", "before", "after"), PLACES)
def test_a_refusal_says_where_and_what(text: str, sentence: str, before: str, after: str) -> None:
    assert refusal(text, XY) == ("syntax", f"{sentence}\n  {before}{after}\n  {' ' * len(before)}^")


def test_a_place_in_several_lines_is_line_and_column() -> None:
    _, message = refusal('#sdy.sharding<@m,\n  [{"x"},\n   {"y" "z"}]>', XY)
    assert message == 'expected `,`, `:` or `}` at 3:9, found `"z"`\n     {"y" "z"}]>\n          ^'


def test_a_long_line_is_cut_around_the_place() -> None:
    text = "[" + ", ".join('{"x"}' for _ in range(500)) + " !" + ", {}" * 500 + "]"
    _, message = refusal(text, XY)
    _, line, caret = message.split("\n")
    assert line.startswith("  …")
    assert line.endswith("…")
    assert line[caret.index("^")] == "!"
    assert len(line) < 120


CODED = [
    ('[{"z"}]', "unknown-axis", 'axis "z" is not in mesh <["x"=2, "y"=4]>, in [{"z"}]'),
    ('[{"x"}, {"x"}]', "duplicate-axis-ref", 'axis "x" is used twice, in [{"x"}, {"x"}]'),
    ("[{}p1]", "needless-priority", "dim 0 is empty and closed but has priority 1, in [{}p1]"),
    ('[{"y":(true)2}]', "sub-axis-pre-size", 'sub-axis "y":(-1)2 has a pre-size below 1, in [{"y":(true)2}]'),
    ("[[2]]", "unknown-axis", 'mesh <["x"=2, "y"=4]> has no axis 2; its axes are numbered from 0, in [[2]]'),
    ("A[I_xq]", "unknown-axis", '`xq` is no row of axes of mesh <["x"=2, "y"=4]>, in A[I_xq]'),
    (
        "{devices=[2,4]0,1,2,3}",
        "device-ids-count",
        "4 devices are given for 8 tiles, in {devices=[2,4]0,1,2,3}",
    ),
    ("{devices=[2]1,1}", "duplicate-device-id", "device 1 is listed twice, in {devices=[2]1,1}"),
    (
        "{devices=[2]<=[2]}",
        "different-meshes",
        'the text is about 2 devices, mesh <["x"=2, "y"=4]> has 8, in {devices=[2]<=[2]}',
    ),
    (
        "{devices=[8]0,1,2,3,4,5,6,9}",
        "different-meshes",
        'the text is about device 9, which is not in mesh <["x"=2, "y"=4]>, in {devices=[8]0,1,2,3,4,5,6,9}',
    ),
    ("{maximal device=8}", "unknown-device", 'device 8 is not in mesh <["x"=2, "y"=4]>, in {maximal device=8}'),
    ("{replicated}", "bad-argument", "the text does not say the number of dims; ndim must be given, in {replicated}"),
    (
        '[{}], unreduced=all{"x"}',
        "unknown-reduction",
        "reduction 'all' must be one of sum, avg, product, max, min, band, bor, bxor, in [{}], unreduced=all{\"x\"}",
    ),
    (
        "[{}p99999999999999999999]",
        "too-large",
        f"number `{'9' * 20}` at column 4 is too large; it must be below 2**63\n  [{{}}p{'9' * 20}]\n     ^",
    ),
]


@pytest.mark.parametrize(("text", "code", "sentence"), CODED)
def test_what_a_text_says_is_refused_with_its_own_code(text: str, code: str, sentence: str) -> None:
    assert refusal(text, XY) == (code, sentence)


BAD_MESHES = [
    ('<["x"=0]>', "axis-size"),
    ('<["x"=-2]>', "axis-size"),
    ('<["x"= - 2]>', "axis-size"),
    ('<["x"=true]>', "axis-size"),
    ("x=0", "axis-size"),
    ("x=-1", "axis-size"),
    ('<["x"=2], device_ids=[-1, 0]>', "negative-device-id"),
    ("<[], device_ids=[0, 1]>", "maximal-mesh"),
    ('<["x"=2, "x"=2]>', "duplicate-axis"),
    ("x=2,x=3", "duplicate-axis"),
    ('<["x"=2], device_ids=[0]>', "device-ids-count"),
    ('<["x"=2], device_ids=[1, 1]>', "duplicate-device-id"),
    ('<["x"=2], device_ids=[1, 2]>', "device-ids-not-iota"),
    ('<["x"=2], devices=[1, 0]>', "syntax"),
    ("<[], devices=[1]>", "syntax"),
    ('<["x"=2], device_ids=[]>', "syntax"),
    ('<["x"=9223372036854775808]>', "too-large"),
    ('<["x"=0x8000000000000000]>', "too-large"),
    (f'<["x"={"9" * 5000}]>', "too-large"),
    ('<["x"=4611686018427387904]>', "too-large"),
    ("x=99999999999999999999", "too-large"),
    ('<["x"=2.0]>', "syntax"),
    ('<["x"=+2]>', "syntax"),
    ('<["x"=2,]>', "syntax"),
    ('<["x"=2],>', "syntax"),
    ("<['x'=2]>", "syntax"),
    ("<[x=2]>", "syntax"),
    ('#sdy.mesh <["x"=2]>', "syntax"),
    ('#sdy.mesh<["x"=2] // ]\n>', "syntax"),
    ("x=2,", "syntax"),
    ("x", "syntax"),
    ("", "syntax"),
]


@pytest.mark.parametrize(("text", "code"), BAD_MESHES)
def test_bad_meshes(text: str, code: str) -> None:
    with pytest.raises(ReshardError) as caught:
        parse_mesh(text)
    assert caught.value.code == code


def test_a_mesh_over_part_of_the_world_is_written_apart() -> None:
    with pytest.raises(ReshardError) as caught:
        parse_mesh('<["x"=2], device_ids=[8, 9]>')
    assert str(caught.value) == (
        "device ids that are not 0 to 1 in some order stand at column 11; a part of the world is written `devices=`\n"
        '  <["x"=2], device_ids=[8, 9]>\n'
        "            ^"
    )


# hostile texts


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**6,
        "{" * 10**6,
        "<" * 10**6,
        "#sdy.sharding<" + "<" * 10**6,
        "{replicated metadata=" + "{" * 10**5,
        '"' * 10**5,
        '[{"' + "x" * 10**6,
        "[{}" + ", {}" * 10**4,
        "A[" + "I_" * 10**5,
        "A[I_" + "x" * 10**4 + "]",
        "// " * 10**5,
        "\ud800",
        '[{"\ud800"}]',
        "\x00",
        "[\x00]",
        "{devices=[" + "9" * 10**5 + "]<=[1]}",
        "{devices=[" + ",".join(["9" * 18] * 10**4) + "]<=[2]}",
        "{devices=[" + ",".join(["1"] * 10**4) + "]<=[2]}",
        "{devices=[9]" + ",".join(map(str, range(10**5))) + ",7}",
        ",".join(f"x{place}={2**62}" for place in range(10**4)),
        ",".join(f"x{place}=1" for place in range(10**4)) + ",x9=1",
        '<["x"=100001], device_ids=[' + ", ".join(map(str, range(10**5))) + ", 7]>",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_texts_are_refused(text: str) -> None:
    for parse in (lambda: parse_sharding(text, XY), lambda: parse_mesh(text)):
        with pytest.raises(ReshardError) as caught:
            parse()
        str(caught.value).encode()
        assert len(str(caught.value)) < 1000


def test_a_hostile_module_is_refused_or_empty() -> None:
    with pytest.raises(ReshardError, match="is never closed"):
        parse_module("<@" + "<" * 10**6)
    assert parse_module("<" * 10**5) == ({}, [])


def test_a_name_may_hold_what_text_can() -> None:
    mesh = Mesh.of({"\ud800": 2})
    assert parse_sharding(str(Sharding.of(mesh, "\ud800"))) == Sharding.of(mesh, "\ud800")


def test_lark_loads_with_the_first_text(tmp_path: Path) -> None:
    lines = (
        "import sys, reshard.notation",
        "assert 'lark' not in sys.modules",
        "reshard.notation.parse_mesh('x=2')",
        "assert 'lark' in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=tmp_path, check=True)


def test_every_grammar_has_its_reader() -> None:
    import reshard.notation

    folder = Path(reshard.notation.__file__).parent
    grammars = {path.stem for path in folder.glob("*.lark")}
    sources = [path.read_text(encoding="utf-8") for path in folder.parent.rglob("*.py")]
    readers = {
        name for text in sources for name in re.findall(r'^FORM = Form\(\s*(?:name=)?"(\w+)"', text, re.MULTILINE)
    }
    of_engines = {"partition_spec", "placements"}
    assert grammars == readers == of_engines | {"mlir_list", "named", "program", "shardy", "sizes", "xla"}
