r"""Shardy's text: what its parser and its verifier take, and nothing else.

A sharding is `#sdy.sharding<@name, [...]>`, the same without what stands before `<`, or the bare `[{"x"}, {?}]`;
a mesh is `#sdy.mesh<["x"=2]>`, `<["x"=2]>`, `mesh<...>`, or `sdy.mesh @name = <...>`.
Names are quoted with MLIR's escapes: two hexadecimal digits for a byte of the name's UTF-8, `\n`, `\t`, `\\`, `\"`.
Numbers are MLIR's too: decimal or hexadecimal, and `true` and `false`, which count as -1 and 0.

Beyond Shardy these are read, and written where a value needs them:
    devices=[8, 9]        a mesh over part of the world, in place of `device_ids=`, where the ids are no
                          permutation of 0 to D - 1
    unreduced=avg{"x"}    a reduction that is no sum
    uneven=chunk          another rule for dims that their shards do not divide
    {parts(2), "x"}       a deal of blocks among the axes of a dim: parts, cycles, blocks, zigzag or offsets
    {"x", halo(1, 1)}     what is held around what is owned: a halo, or window(0:5, 3:8) for every shard, and after
                          them wrap or pad, and summed
Short of Shardy these are refused: sub-axes that no split of their axis holds together, numbers of devices from
2**62 on, and names that are no UTF-8.

>>> from reshard.notation import parse_sharding
>>> print(parse_sharding('#sdy.sharding<mesh<["x"=2, "y"=4]>, [{"x"}, {"y":(1)2, ?}p1]>').text())
[{"x"}, {"y":(1)2, ?}p1]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from reshard.axis import Axis
from reshard.deal import Deal, Window
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation.grammar import STRING_START, Form, Misread, mentioning, number, parse, placed, rule, shown
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from lark import Token

Meshes = Mesh | Mapping[str, Mesh] | None
"""What a text's mesh may be resolved by: one mesh whatever the text calls it, or meshes by name."""

_PAIRS = {"<": ">", "[": "]", "(": ")", "{": "}"}
_PRETTY_TOKEN = re.compile(rf'{STRING_START}"|->|["<>\[\](){{}}]')
_TOKEN = re.compile(rf"//[^\r\n]*|{_PRETTY_TOKEN.pattern}")
_ATTRIBUTE = re.compile(r"(?:[ \t\r\n]|//[^\r\n]*+)*+#sdy[a-z._]*(?=<)")


class _Unresolved(NamedTuple):
    """A sharding as its text has it."""

    mesh: str | Mesh | None
    """The name of its mesh, the mesh itself, or None where the text has neither."""
    dims: tuple[DimSharding, ...]
    """One per dim."""
    options: dict[str, Any]
    """The other fields of a `Sharding` that the text has."""


class _Devices(NamedTuple):
    """A list of devices and the word before it."""

    key: Token
    ids: tuple[int, ...]


class _ShardyRules:
    """What each rule of the grammar stands for, by its name."""

    @rule
    def integer(self, parts: list[Token]) -> int:
        if parts[0].type == "BOOLEAN":
            return -1 if parts[0] == "true" else 0
        digits = parts[-1]
        value = number(digits)
        return -value if len(parts) == 2 else value

    @rule
    def mesh_axis(self, parts: list[Any]) -> tuple[str, int]:
        return _decoded(parts[0], 1), parts[1]

    @rule
    def device_ids(self, parts: list[Any]) -> _Devices:
        return _Devices(parts[0], tuple(parts[1:]))

    @rule
    def mesh_fields(self, parts: list[Any]) -> Mesh:
        axes = tuple(part for part in parts if not isinstance(part, _Devices))
        if len(axes) == len(parts):
            return Mesh(axes)
        key, ids = parts[-1]
        mesh = Mesh(axes, ids)
        is_world = not axes or max(ids) < mesh.size
        if key == "device_ids" and not is_world:
            problem = f"device ids that are not 0 to {mesh.size - 1} in some order stand"
            raise Misread(key, problem, "; a part of the world is written `devices=`", code="device-ids-not-iota")
        if key == "devices" and is_world:
            raise Misread(key, "devices that are a whole world stand", "; they must be written `device_ids=`")
        return mesh

    @rule
    def mesh(self, parts: list[Any]) -> tuple[str | None, Mesh]:
        return _decoded_symbol(parts[0]) if len(parts) == 2 else None, parts[-1]

    @rule
    def axis(self, parts: list[Any]) -> Axis:
        return Axis(_decoded(parts[0], 1), *parts[1:])

    @rule
    def deal(self, parts: list[Any]) -> Deal:
        return Deal(str(parts[0]), tuple(parts[1:]))

    @rule
    def span(self, parts: list[int]) -> tuple[int, ...]:
        return tuple(parts)

    @rule
    def window(self, parts: list[Any]) -> Window:
        spans = [part for part in parts[1:] if isinstance(part, tuple)]
        widths = [part for part in parts[1:] if isinstance(part, int)]
        words = parts[1 + len(spans) + len(widths) :]
        if bool(spans) == (parts[0] == "halo"):
            raise Misread(
                parts[0], f"{parts[0]} must have {'two widths' if parts[0] == 'halo' else 'spans start:stop'}"
            )
        options: dict[str, Any] = {}
        for word in words:
            options |= {"summed": True} if word == "summed" else {"edge": str(word)}
        if len(options) < len(words) or options.get("edge") == "clip":
            raise Misread(words[-1], "the words of a window must be one edge, `wrap` or `pad`, and `summed`")
        low, high = widths or (0, 0)
        return Window(low, high, spans=tuple(spans), **options)

    @rule
    def dim(self, parts: list[Any]) -> DimSharding:
        axes, deals = [], []
        end: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, Axis):
                axes.append(part)
            elif isinstance(part, Deal):
                deals.append(replace(part, place=len(axes)))
            elif isinstance(part, Window):
                end["window"] = part
            elif part.type == "OPEN":
                end["is_open"] = True
            else:
                end["priority"] = _priority(part)
        return DimSharding(tuple(axes), deals=tuple(deals), **end)

    @rule
    def dims(self, parts: list[DimSharding]) -> tuple[DimSharding, ...]:
        return tuple(parts)

    @rule
    def replicated(self, parts: list[Any]) -> tuple[Token, dict[str, Any]]:
        return parts[0], {"replicated": tuple(parts[1:])}

    @rule
    def unreduced(self, parts: list[Any]) -> tuple[Token, dict[str, Any]]:
        axes = tuple(part for part in parts if isinstance(part, Axis))
        reduction = {} if len(parts) == 1 + len(axes) else {"reduction": str(parts[1])}
        return parts[0], {"unreduced": axes, **reduction}

    @rule
    def uneven(self, parts: list[Token]) -> tuple[Token, dict[str, Any]]:
        return parts[0], {"uneven": str(parts[1])}

    @rule
    def fields(self, parts: list[Any]) -> tuple[tuple[DimSharding, ...], dict[str, Any]]:
        options: dict[str, Any] = {}
        for keyword, option in parts[1:]:
            if str(keyword) in options:
                raise Misread(keyword, f"`{keyword}` is given twice")
            options.update(option)
        return parts[0], options

    @rule
    def on_mesh(self, parts: list[Any]) -> _Unresolved:
        mesh = parts[0] if isinstance(parts[0], Mesh) else _decoded_symbol(parts[0])
        return _Unresolved(mesh, *parts[1])

    @rule
    def bare(self, parts: list[Any]) -> _Unresolved:
        return _Unresolved(None, *parts[0])


FORM = Form(
    name="shardy",
    starts=("sharding", "mesh"),
    words={
        "STRING": "a name in double quotes",
        "DEAL": "a name in double quotes",
        "WINDOW": "a name in double quotes",
        "WORD": "`wrap`, `pad` or `summed`",
        "SYMBOL": "a mesh's name after `@`",
        "INTEGER": "a whole number",
        "BOOLEAN": "a whole number",
        "MINUS": "a whole number",
        "PRIORITY": "a priority such as `p1`",
        "REDUCTION": "a reduction",
        "RULE": "`ceil` or `chunk`",
        "DEVICE_IDS": "`device_ids`",
        "REPLICATED": "`replicated`",
        "UNREDUCED": "`unreduced`",
        "UNEVEN": "`uneven`",
        "_MESH": "`mesh`",
        "_SHARDING": "`sharding`",
    },
    builder=_ShardyRules(),
)


def read_sharding(text: str, meshes: Meshes, *, whole: str | None = None, offset: int = 0) -> Sharding:
    """A sharding from Shardy's text.

    Args:
        text: with a mesh's name, with an inlined mesh, or bare.
        meshes: what gives the mesh where the text has none.
        whole: the text that `text` is a part of; places in refusals are counted in it.
        offset: where `text` begins in `whole`.

    Raises:
        ReshardError: `syntax`, `unknown-mesh`, `different-meshes`, or the code of the rule that is broken.

    >>> print(read_sharding('<@m, [{"x"}]>', {"m": Mesh.of(x=2)}))
    #sdy.sharding<mesh<["x"=2]>, [{"x"}]>
    """
    read: _Unresolved = parse(FORM, "sharding", text, whole=whole, offset=offset)
    _check_brackets(text, whole=whole, offset=offset)
    with mentioning(text):
        return Sharding(_resolved(read.mesh, meshes), read.dims, **read.options)


def read_mesh(text: str, *, whole: str | None = None, offset: int = 0) -> tuple[str | None, Mesh]:
    """A mesh from Shardy's text, after its name, which is None where the text has none.

    >>> read_mesh('sdy.mesh @m = <["x"=2]>')
    ('m', Mesh.of(x=2))
    """
    name, mesh = parse(FORM, "mesh", text, whole=whole, offset=offset)
    _check_brackets(text, whole=whole, offset=offset)
    return name, mesh


def _resolved(mesh: str | Mesh | None, meshes: Meshes) -> Mesh:
    if isinstance(mesh, Mesh):
        if isinstance(meshes, Mesh) and meshes != mesh:
            raise ReshardError("different-meshes", f"the text's own mesh {mesh} is not the given mesh {meshes}")
        return mesh
    if isinstance(meshes, Mesh):
        return meshes
    if mesh is None:
        return only_mesh(meshes)
    if meshes is None or mesh not in meshes:
        names = ", ".join(shown(f"@{name}") for name in meshes or ()) or "no mesh"
        raise ReshardError("unknown-mesh", f"the text refers to the mesh {shown('@' + mesh)}; given: {names}")
    return meshes[mesh]


def only_mesh(meshes: Meshes) -> Mesh:
    """The mesh for a text that names none.

    Raises:
        ReshardError: `unknown-mesh` where there is none, or a choice.
    """
    if isinstance(meshes, Mesh):
        return meshes
    if meshes is None or len(meshes) != 1:
        count = "none was" if not meshes else f"{len(meshes)} were"
        raise ReshardError("unknown-mesh", f"the text names no mesh, so one must be given; {count}")
    return next(iter(meshes.values()))


def closing(text: str, start: int, *, comments: bool) -> int:
    """Where the bracket at `start` closes: the place after its partner.

    Args:
        text: what to look in.
        start: the place of `<`.
        comments: whether `//` begins a comment; MLIR finds the end of a `#dialect.attribute<` without that.

    Raises:
        ReshardError: `syntax` where brackets or strings are not closed in order.

    >>> closing('a <[">"]> b', 2, comments=True)
    9
    """
    opened: list[int] = []
    for match in (_TOKEN if comments else _PRETTY_TOKEN).finditer(text, start):
        token, place = match.group(), match.start()
        if token in _PAIRS:
            opened.append(place)
        elif token == '"':
            raise placed(text, place, "the string that begins here is not closed on its line or has a wrong escape")
        elif token in _PAIRS.values():
            if _PAIRS[text[opened[-1]]] != token:
                raise placed(text, place, f"`{token}`", f" does not close `{text[opened[-1]]}`")
            opened.pop()
            if not opened:
                return place + 1
    raise placed(text, opened[-1], f"`{text[opened[-1]]}`", " is never closed")


def _check_brackets(text: str, *, whole: str | None, offset: int) -> None:
    """Refuse what MLIR refuses in comments inside `#sdy.…<…>`: there it counts brackets without knowing comments."""
    head = _ATTRIBUTE.match(text)
    if "//" not in text or head is None:
        return
    stop = closing(text, head.end(), comments=False)
    rest = re.sub(r"//[^\r\n]*", "", text[stop:])
    if rest.strip():
        place = text.index(rest.strip()[0], stop)
        raise placed(whole or text, offset + place, "expected the end of the text", f", found {shown(text[place:])}")


def _decoded(token: Token, start: int) -> str:
    r"""The text that a quoted token stands for; `start` is where in it the text begins."""
    raw = token[start:-1]
    if "\\" not in raw:
        return raw
    escapes = {"n": b"\n", "t": b"\t", '"': b'"', "\\": b"\\"}
    parts = re.split(r"\\([nt\"\\]|[0-9a-fA-F]{2})", raw)
    pieces = [
        part.encode("utf-8", "surrogatepass") if place % 2 == 0 else escapes.get(part) or bytes.fromhex(part)
        for place, part in enumerate(parts)
    ]
    try:
        return b"".join(pieces).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise Misread(token, f"the bytes of {shown(token)} are no UTF-8") from None


def _decoded_symbol(token: Token) -> str:
    return _decoded(token, 2) if token[1] == '"' else str(token[1:])


def _priority(token: Token) -> int:
    digits = token[1:]
    if token[0] != "p" or not digits.isdigit():
        raise Misread(token, f"a priority must be `p` and digits; found {shown(token)}")
    if digits[0] == "0" and len(digits) > 1:
        raise Misread(token, f"a priority must have no leading zeros; found {shown(token)}")
    return number(token, 1)
