"""How long shardings take to be carried through programs and placed."""

from __future__ import annotations

from collections.abc import Iterator

import reshard as rs
from bench.timing import Row, seconds, within

MESH = rs.Mesh.of(data=8, model=8)


def chain(layers: int, *, contradicts: bool) -> rs.Program:
    """Two products and an activation per layer, with weights cut as a tensor-parallel layer has them, or not all."""
    program = rs.Program(MESH)
    value = program.input("x", (8192, 4096), "bf16", rs.Sharding.of(MESH, "data", None))
    for layer in range(layers):
        cut = (None, "model") if not contradicts or layer % 3 else ("model", None)
        up = program.input(f"up{layer}", (4096, 16384), "bf16", rs.Sharding.of(MESH, *cut))
        down = program.input(f"down{layer}", (16384, 4096), "bf16", rs.Sharding.of(MESH, "model", None))
        hidden = program.op("bf->bf", program.op("bd,df->bf", value, up), name="relu")
        value = program.op("bf,fd->bd", hidden, down)
    program.output(value)
    return program


def rows() -> Iterator[Row]:
    """Every figure of programs."""
    for layers, limit in ((48, 2.0), (2000, 10.0)):
        for contradicts in (False, True):
            program = chain(layers, contradicts=contradicts)
            what = f"propagate and place {len(program.operations)} operations, 64 devices"
            if contradicts:
                what += ", a third of the layers against the others"
            time = seconds(lambda program=program: program.propagate())
            yield within(what, 1e3 * time, 1e3 * limit)
