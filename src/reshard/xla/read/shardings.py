"""The shardings that a text names, and both ends of a reshard on one mesh.

XLA's text says which devices hold what and names no axes.
Where the module names a mesh, its axes are used; where it does not, a mesh with axes a, b, c, … is made that both
ends can be written on, so that the two can be compared by eye.

>>> source, target = read_pair("{devices=[2,4]<=[8]}", "{devices=[4,1,2]<=[8] last_tile_dim_replicate}", {}, 2)
>>> print(source.text(), target)
[{"a"}, {"b", "c"}] #sdy.sharding<mesh<["a"=2, "b"=2, "c"=2]>, [{"a", "b"}, {}]>
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from reshard.digits import Digits, nest
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import parse_sharding, to_xla
from reshard.sharding import Sharding
from reshard.xla.read.scan import closing, split

HLO = re.compile(r"^HloModule\b[^\n]*", re.MULTILINE)
"""The line with which a module of HLO begins."""
_MESHES = re.compile(r"([A-Za-z_][\w.$]*|\"[^\"]*\")\s*=\s*#sdy\.mesh")
_NAMED = re.compile(r"\{\s*mesh\[")
_META = re.compile(r",?\s*metadata=\{.*")


def read_pair(source: str, target: str, meshes: Mapping[str, Mesh], ndim: int) -> tuple[Sharding, Sharding]:
    """Two shardings of a module with these meshes, on one mesh where one can express both.

    Raises:
        ReshardError: where one of them cannot be read.
    """
    return joined(read_sharding(source, meshes, ndim), read_sharding(target, meshes, ndim))


def read_sharding(text: str, meshes: Mapping[str, Mesh], ndim: int) -> Sharding:
    """A sharding of a module with these meshes.

    Raises:
        ReshardError: where it cannot be read, or is none of whole values: `{manual}`, `{unknown}`.
    """
    return _read(text, tuple(meshes.items()), ndim)


@lru_cache(4096)
def _read(text: str, meshes: tuple[tuple[str, Mesh], ...], ndim: int) -> Sharding:
    named = dict(meshes)
    text = text.strip()
    if text.startswith("<"):
        return parse_sharding(f"#sdy.sharding{text}", named, ndim)
    if _NAMED.match(text):
        return parse_sharding(_shardy(text), None, ndim)
    for mesh in named.values():
        try:
            sharding = parse_sharding(text, mesh, ndim)
        except ReshardError as error:
            if error.code != "different-meshes":
                raise
            continue
        if sharding.mesh == mesh:
            return sharding
    return parse_sharding(text, None, ndim)


def _shardy(text: str) -> str:
    """Shardy's text for XLA's with names: `{mesh['x'=2], [{'x'}]}`."""
    text = _META.sub("}", text)
    stop = closing(text, text.index("["))
    mesh, rest = text[text.index("[") : stop], text[stop:].strip().removesuffix("}")
    devices = re.match(r"\s*,\s*device_ids=\(?\[?([\d,\s]*)\]?\)?", rest)
    ids = f", device_ids=[{devices.group(1)}]" if devices else ""
    rest = rest[devices.end() :] if devices else rest
    return f"#sdy.sharding<mesh<{mesh}{ids}>{rest}>".replace("'", '"')


def parts_of(text: str) -> tuple[str, ...]:
    """The shardings in HLO's text of a tuple's, or the one that it is; none in an empty text.

    >>> parts_of("{{replicated}, {devices=[2]<=[2]}}"), parts_of("{replicated}")
    (('{replicated}', '{devices=[2]<=[2]}'), ('{replicated}',))
    """
    if not text:
        return ()
    return tuple(split(text.strip()[1:-1])) if re.match(r"\{\s*\{", text) else (text,)


def mesh_texts(text: str) -> Iterator[tuple[str, str]]:
    """The meshes that JAX writes beside a module of HLO: names, and texts in Shardy's notation.

    >>> dict(mesh_texts('{mesh = #sdy.mesh<["x"=2]>, "m-2" = #sdy.mesh<["y"=4]>}'))
    {'mesh': '<["x"=2]>', 'm-2': '<["y"=4]>'}
    """
    for head in _MESHES.finditer(text):
        stop = closing(text, text.find("<", head.end())) if "<" in text[head.end() :] else -1
        end = text.find(">", stop) + 1 if stop >= 0 else 0
        yield head.group(1).strip('"'), text[head.end() : end or None].replace('\\"', '"')


def joined(source: Sharding, target: Sharding) -> tuple[Sharding, Sharding]:
    """The same two on one mesh, where neither names devices and cuts of the one and the other nest."""
    if source.mesh == target.mesh or source.unreduced or target.unreduced:
        return source, target
    mesh = shared_mesh((source.mesh, target.mesh))
    return (source, target) if mesh is None else (_on_mesh(source, mesh), _on_mesh(target, mesh))


def shared_mesh(meshes: Iterable[Mesh]) -> Mesh | None:
    """A mesh with an axis for each part into which meshes cut the same devices; None where their cuts do not nest.

    >>> shared_mesh([Mesh.of(x=4, y=2), Mesh.of(z=2, w=4)])
    Mesh.of(a=2, b=2, c=2)
    >>> shared_mesh([Mesh.of(x=3, y=2), Mesh.of(x=2, y=3)]) is None
    True
    """
    each = tuple(meshes)
    if len({mesh.size for mesh in each}) != 1 or any(mesh.is_empty or mesh.device_ids is not None for mesh in each):
        return None
    cuts = set[int]().union(*(mesh.digits.cuts for mesh in each))
    return Mesh.of_digits(Digits.between(cuts)) if nest(cuts) else None


def _on_mesh(sharding: Sharding, mesh: Mesh) -> Sharding:
    """The sharding by the axes of a mesh; as it is where they cannot express it."""
    try:
        renamed = parse_sharding(to_xla(sharding), mesh, sharding.ndim)
    except ReshardError:
        return sharding
    return renamed if renamed.mesh == mesh else sharding
