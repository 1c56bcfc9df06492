"""The shardings that a text names, and both ends of a reshard on one mesh.

XLA's text says which devices hold what and names no axes.
Where the module names a mesh, its axes are used; where it does not, a mesh with axes a, b, c, … is made that both
ends can be written on, so that the two can be compared by eye.

>>> source, target = Reader({}).pair("{devices=[2,4]<=[8]}", "{devices=[4,1,2]<=[8] last_tile_dim_replicate}", 2)
>>> print(source.text(), target)
[{"a"}, {"b", "c"}] #sdy.sharding<mesh<["a"=2, "b"=2, "c"=2]>, [{"a", "b"}, {}]>
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import parse_sharding, to_xla
from reshard.sharding import Sharding
from reshard.xla.read.scan import closing

_NAMED = re.compile(r"\{\s*mesh\[")
_META = re.compile(r",?\s*metadata=\{.*")


class Reader:
    """Reads the shardings of one module."""

    def __init__(self, meshes: Mapping[str, Mesh]) -> None:
        self.meshes = dict(meshes)

    def read(self, text: str, ndim: int) -> Sharding:
        """One sharding.

        Raises:
            ReshardError: where it cannot be read, or is none of whole values: `{manual}`, `{unknown}`.
        """
        return _read(text, tuple(self.meshes.items()), ndim)

    def pair(self, source: str, target: str, ndim: int) -> tuple[Sharding, Sharding]:
        """Two shardings, on one mesh where one can express both.

        Raises:
            ReshardError: where one of them cannot be read.
        """
        return joined(self.read(source, ndim), self.read(target, ndim))


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
            found = parse_sharding(text, mesh, ndim)
        except ReshardError as error:
            if error.code != "different-meshes":
                raise
            continue
        if found.mesh == mesh:
            return found
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


def joined(source: Sharding, target: Sharding) -> tuple[Sharding, Sharding]:
    """The same two on one mesh, where neither names devices and cuts of the one and the other nest."""
    here, there = source.mesh, target.mesh
    if here == there or here.is_empty or there.is_empty or here.size != there.size:
        return source, target
    if here.device_ids is not None or there.device_ids is not None or source.unreduced or target.unreduced:
        return source, target
    cuts = sorted({stride for mesh in (here, there) for stride in _strides(mesh)})
    if any(large % small for small, large in pairwise(cuts)):
        return source, target
    sizes = [large // small for small, large in pairwise(cuts)][::-1]
    mesh = Mesh(tuple((chr(ord("a") + place), size) for place, size in enumerate(sizes)))
    made = [_moved(sharding, mesh) for sharding in (source, target)]
    return made[0] or source, made[1] or target


def _strides(mesh: Mesh) -> list[int]:
    strides = [1]
    for _, size in reversed(mesh.axes):
        strides.append(strides[-1] * size)
    return strides


def _moved(sharding: Sharding, mesh: Mesh) -> Sharding | None:
    try:
        found = parse_sharding(to_xla(sharding), mesh, sharding.ndim)
    except ReshardError:
        return None
    return found if found.mesh == mesh else None
