"""What shifts, slides or runs along a dim that is cut: bytes in compiled programs, of plain `jit` and of placed ones.

`python -m bench.shifts [row ...]` prints, per function, what the busiest of 8 devices of a CPU receives in a run.
Both ways take and give arrays that lie alike, the values of both are compared, and both are counted from the compiled
HLO by one reader that asks nothing of the planner.

By hand, a roll by 1 of 1024 x 64 floats over 8 devices: each receives one row of 64 floats, 256 bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.resharding_jax import measured
from bench.timing import Row

sys.path.insert(
    0, str(Path(__file__).parent.parent / "tests")
)  # the functions, and the reader of HLO, lie with the tests

DEVICES = 8
TIMEOUT_S = 1800
TASK = "figures"


def received(text: str) -> int:
    """What the busiest device receives in a run of a compiled program, loops counted by their turns."""
    from jax_hlo import LINE  # noqa: PLC0415
    from jax_hlo import received as received_by  # noqa: PLC0415

    from reshard.xla.read.collectives import find_collectives  # noqa: PLC0415
    from reshard.xla.read.reading import read_text  # noqa: PLC0415

    lines = text.splitlines()
    (module,) = read_text(text).modules
    totals = dict.fromkeys(range(DEVICES), 0)
    for collective in find_collectives(module):
        line = LINE.match(lines[collective.line - 1])
        assert line, lines[collective.line - 1]
        for device, size in received_by(line["kind"], line["type"], line["rest"], DEVICES).items():
            totals[device] += size * collective.executions
    return max(totals.values())


def functions() -> dict[str, Any]:
    """Those that are measured."""
    from jax_habits import habits  # noqa: PLC0415
    from jax_shifts import cases  # noqa: PLC0415

    return cases() | habits()


def figures_of(name: str) -> dict[str, Any]:
    """Bytes of both ways; their results are compared."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    import reshard as rs  # noqa: PLC0415

    case = functions()[name]
    mesh = jax.make_mesh(
        case.axes, ("x", "y")[: len(case.axes)], axis_types=(jax.sharding.AxisType.Auto,) * len(case.axes)
    )
    ends = [jax.NamedSharding(mesh, jax.P(*spec)) for spec in case.specs]
    out = None if case.result is None else jax.NamedSharding(mesh, jax.P(*(case.result or case.specs[0])))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in case.shapes]
    avals = [jax.ShapeDtypeStruct(shape, np.float32) for shape in case.shapes]
    shape = jax.eval_shape(case.function, *avals)
    if out is not None and len(jax.tree.leaves(shape)) == 1:
        (leaf,) = jax.tree.leaves(shape)
        uneven = any(axis and size % mesh.shape[axis] for axis, size in zip(out.spec, leaf.shape, strict=False))
        out = None if uneven else out
    plain = jax.jit(case.function, in_shardings=tuple(ends), out_shardings=out).lower(*avals).compile()
    placed = rs.jax.trace(case.function, *avals, in_shardings=tuple(ends), out_shardings=out, mesh=mesh).propagate(
        goal="bytes"
    )
    if "--show" in sys.argv:
        print(placed, file=sys.stderr)
    function = rs.jax.to_jax(placed)
    ours = jax.jit(function, in_shardings=tuple(ends), out_shardings=out).lower(*avals).compile()
    inputs = [jax.device_put(array, end) for array, end in zip(arrays, ends, strict=True)]
    for own, theirs in zip(jax.tree.leaves(ours(*inputs)), jax.tree.leaves(plain(*inputs)), strict=True):
        np.testing.assert_allclose(own, theirs, rtol=2e-3, atol=2e-3)
    texts = ours.as_text(), plain.as_text()
    figures = {
        "ours": received(texts[0]),
        "xla": received(texts[1]),
        "told": placed.received_bytes,
        "least": case.least,
    }
    return figures | {"without a rule": dict(placed.without_rule)}


def figures() -> dict[str, Any]:
    """Those of all functions, or of those that are named."""
    names = [name for name in sys.argv[1:] if name != TASK and not name.startswith("--")]
    found: dict[str, Any] = {}
    for name in names or functions():
        found[name] = figures_of(name)
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def rows() -> Iterator[Row]:
    """What is measured."""
    for name, one in measured(TASK, DEVICES, "bench.shifts", TIMEOUT_S).items():
        bound = "" if one["least"] is None else f", {one['least']} B at least"
        text = f"{one['ours']} B, plain jit {one['xla']} B{bound}"
        yield Row(f"{name}: received by the busiest device", text, "at most plain jit's", one["ours"] <= one["xla"])


if __name__ == "__main__":
    print(json.dumps(figures()))
