"""Text of HLO as the StableHLO that it came from, with the shardings that HLO says.

XLA's own parser reads the text, and XLA's own translation gives StableHLO; shardings stay what they are in HLO, texts
that number the devices.
Where JAX wrote the names of the mesh beside them these are used; else a mesh with axes a, b, c, … is made on which
all of them can be said.

>>> texts = ["{devices=[4,1]<=[4]}", "{devices=[2,1,2]<=[4] last_tile_dim_replicate}", "{replicated}"]
>>> mesh_of_texts(texts)
Mesh.of(a=2, b=2)
>>> hlo_sharding("{devices=[4,1]<=[4]}", {"mesh": mesh_of_texts(texts)}, 2).text()
'[{"a", "b"}, {}]'
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import parse_mesh, parse_sharding
from reshard.sharding import Sharding
from reshard.xla.read.shardings import HLO, mesh_texts, parts_of, read_sharding, shared_mesh

SYNTAX, NO_WORD = 3, 4
"""How the translation ends where it refuses: at the text, or at what the text says."""
REFUSALS = {
    SYNTAX: ("syntax", "XLA refuses the text"),
    NO_WORD: ("cannot-express", "StableHLO cannot say the module"),
}
TRANSLATION = f"""
import sys
from jaxlib import _hlo, _jax
code = {SYNTAX}
try:
    module = _hlo.hlo_module_from_text(sys.stdin.buffer.read().decode("utf-8", "replace"))
    code = {NO_WORD}
    translated = _jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
except Exception as error:
    print("", " ".join(str(error).split()) or type(error).__name__, sep="\\n", file=sys.stderr)
    sys.exit(code)
sys.stdout.buffer.write(translated)
"""
"""Run in a process of its own, since XLA's parser falls over some texts, and the process with it."""
LONGEST_S = 120.0
"""After so long a translation is given up."""
_UNSPECIFIED = re.compile(r"unspecified_dims=\[([\d,\s]*)\]")


def stablehlo_of(text: str) -> bytes:
    """The module of StableHLO, as MLIR writes it for machines, of a text of HLO from before partitioning.

    Raises:
        ReshardError: `syntax` where XLA refuses the text or falls over it; `cannot-express` where it is partitioned
            already, or StableHLO has no word for an operation.
    """
    head = HLO.search(text)
    if head is not None and "is_scheduled=true" in head.group():
        raise ReshardError(
            "cannot-express", "what XLA compiled is partitioned already; its text before optimizations is what is read"
        )
    text_bytes = text[head.start() if head else 0 :].encode("utf-8", "replace")
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRANSLATION], input=text_bytes, capture_output=True, check=False, timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired:
        raise ReshardError("syntax", f"XLA is not through with the text after {LONGEST_S:g} s") from None
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    reason = lines[-1][:300] if lines and done.returncode in REFUSALS else "it ends over it"
    code, sentence = REFUSALS.get(done.returncode, REFUSALS[SYNTAX])
    raise ReshardError(code, f"{sentence}: {reason}")


def named_meshes(module: ir.Module) -> dict[str, Mesh]:
    """The meshes that JAX wrote beside a module of HLO, by their names."""
    said = _beside(module.operation.attributes, "xla.sdy.meshes") or ""
    return {name: parse_mesh(text) for name, text in mesh_texts(said)}


def said_beside(attributes: Any) -> ir.Attribute | None:
    """The sharding of the sdy dialect that JAX wrote beside that of HLO, if it did."""
    said = _beside(attributes, "xla.sdy.sharding")
    return None if said is None else ir.Attribute.parse(said)


def _beside(attributes: Any, name: str) -> str | None:
    if "mhlo.frontend_attributes" not in attributes:
        return None
    beside = ir.DictAttr(attributes["mhlo.frontend_attributes"])
    return ir.StringAttr(beside[name]).value if name in beside else None


def mesh_of_texts(texts: Iterable[str]) -> Mesh | None:
    """A mesh on which all shardings of HLO can be said; None where there is none, or none of them says a mesh."""
    tiled = dict.fromkeys(part for text in texts for part in parts_of(text) if "devices=" in part)
    return shared_mesh(parse_sharding(text).mesh for text in tiled) if tiled else None


def hlo_sharding(text: str, meshes: Mapping[str, Mesh], ndim: int, config: str = "") -> Sharding | None:
    """A sharding from HLO's text; None where that says nothing.

    Args:
        text: of one value.
        meshes: on one of which it is to be said.
        ndim: the number of dims of the value.
        config: what the call says besides: the dims that propagation may shard further.

    Raises:
        ReshardError: `cannot-express` where no mesh has axes for it, or every device does work of its own.
    """
    if "unknown" in text:
        return None
    if "manual" in text:
        raise ReshardError("cannot-express", "HLO does not say what a manual computation shares out; StableHLO does")
    sharding = read_sharding(text, meshes, ndim)
    if sharding.mesh not in meshes.values():
        raise ReshardError("cannot-express", f"no mesh of the module has axes for {text}")
    unspecified = _UNSPECIFIED.search(config)
    opened = [] if unspecified is None else list(map(int, re.findall(r"\d+", unspecified[1])))
    dims = [replace(dim, is_open=dim.is_open or number in opened) for number, dim in enumerate(sharding.dims)]
    return replace(sharding, dims=tuple(dims))
