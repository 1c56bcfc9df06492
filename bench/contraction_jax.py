"""JAX's own sharded matrix product against ours inside jit, side by side: bytes and run time on 8 CPU devices.

A process of its own has the 8 devices, since their number is fixed when JAX starts.
"""

from __future__ import annotations

import importlib.util
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from bench.resharding_jax import Spec, measured, received_bytes
from bench.timing import Row, seconds

DEVICES = 8
WAYS = ("reshard", "jax")


class Case(NamedTuple):
    """A product of two float32 matrices on one mesh."""

    name: str
    axes: dict[str, int]
    first: Spec
    second: Spec
    target: Spec
    sizes: tuple[int, int, int]
    """Of i, j and k in `ij,jk->ik`."""


LINE, GRID = {"X": 8}, {"X": 2, "Y": 4}
SIDE = 2048
CASES = (
    Case("case 1, nothing moves", LINE, ("X", None), (None, None), ("X", None), (SIDE,) * 3),
    Case("case 2, one contracted dim", LINE, ("X", None), ("X", None), ("X", None), (SIDE,) * 3),
    Case("case 3 to whole", LINE, (None, "X"), ("X", None), (None, None), (SIDE,) * 3),
    Case("case 3 to rows", LINE, (None, "X"), ("X", None), ("X", None), (SIDE,) * 3),
    Case("case 3 to columns", LINE, (None, "X"), ("X", None), (None, "X"), (SIDE, 2 * SIDE, SIDE)),
    Case("case 4", LINE, ("X", None), (None, "X"), ("X", None), (SIDE,) * 3),
    Case("contracted dim against a whole matrix", LINE, (None, "X"), (None, None), (None, "X"), (SIDE,) * 3),
    Case("rows to columns", LINE, ("X", None), (None, None), (None, "X"), (SIDE,) * 3),
    Case("grid", GRID, ("X", "Y"), ("Y", None), ("X", "Y"), (SIDE,) * 3),
    Case("grid, transposed", GRID, ("X", "Y"), ("X", "Y"), ("Y", "X"), (SIDE,) * 3),
    Case("grid, rows of both axes", GRID, (("X", "Y"), None), ("Y", "X"), (("Y", "X"), None), (SIDE,) * 3),
)
CALLS = 7
"""Timed calls of each way, in turn and in random order; one before them is not counted."""


def rows() -> Iterator[Row]:
    """Every case: what is moved, and what it takes; then the rounds of a collective beside the product."""
    if not importlib.util.find_spec("jax"):
        return
    for case in CASES:
        yield from rows_of(case, measured(case.name, DEVICES, "bench.contraction_jax"))


def rows_of(case: Case, found: dict[str, Any]) -> Iterator[Row]:
    """What a case moves and takes."""
    ours, theirs = (found[way] for way in WAYS)
    what = f"{case.name}, {' x '.join(map(str, case.sizes))} on {' x '.join(map(str, case.axes.values()))}"
    yield Row(
        f"{what}: received by the busiest device",
        f"{ours['received']} B, JAX {theirs['received']} B",
        "never more than JAX",
        ours["received"] <= theirs["received"],
    )
    medians = {way: statistics.median(found[way]["times"]) for way in found}
    ratio, twice = medians["reshard"] / medians["jax"], theirs["received"] >= 2 * ours["received"] > 0
    rounds = f", in rounds {1e3 * medians['rounds']:.0f} ms" if "rounds" in medians else ""
    yield Row(
        f"{what}: run",
        f"{ratio:.2f} times: {1e3 * medians['reshard']:.0f} ms, JAX {1e3 * medians['jax']:.0f} ms{rounds}",
        "below 1 time, with half the bytes" if twice else "at most 1.1 times",
        ratio < 1 if twice else ratio <= 1.1,
    )


# In the process with 8 devices


def programs(case: Case) -> tuple[dict[str, Callable[..., Any]], list[Any]]:
    """Both ways, and ours in rounds; and where operands and result are, on Explicit axes."""
    import jax  # noqa: PLC0415  # starts with the number of devices of this process
    import numpy as np  # noqa: PLC0415

    import reshard as rs  # noqa: PLC0415

    devices = np.array(jax.devices()[: prod(case.axes.values())]).reshape(tuple(case.axes.values()))
    mesh = jax.sharding.Mesh(devices, tuple(case.axes), axis_types=(jax.sharding.AxisType.Explicit,) * len(case.axes))
    ends = [jax.NamedSharding(mesh, jax.P(*spec)) for spec in (case.first, case.second, case.target)]
    ways = {
        "reshard": lambda a, b: rs.jax.einsum("ij,jk->ik", a, b, target=ends[2]),
        "jax": lambda a, b: jax.numpy.einsum("ij,jk->ik", a, b, out_sharding=ends[2]),
        "rounds": lambda a, b: rs.jax.einsum("ij,jk->ik", a, b, target=ends[2], overlap=True),
    }
    return ways, ends


def run(name: str) -> dict[str, Any]:
    """Bytes and seconds of calls of each way; what they give is compared with NumPy's product."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    case = next(case for case in CASES if case.name == name)
    ways, ends = programs(case)
    rng = np.random.default_rng(0)
    i, j, k = case.sizes
    arrays = [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((i, j), (j, k))]
    given = [jax.device_put(array, end) for array, end in zip(arrays, ends, strict=False)]
    right = arrays[0] @ arrays[1]
    compiled = {way: jax.jit(function).lower(*given).compile() for way, function in ways.items()}
    result: dict[str, Any] = {}
    for way, program in compiled.items():
        text = program.as_text()
        if way == "rounds" and text.count(" collective-permute(") == compiled["reshard"].as_text().count(
            " collective-permute("
        ):
            continue  # nothing in it can be cut into rounds
        if not np.array_equal(program(*given), right):
            raise RuntimeError(f"{name}: {way} gives wrong values")
        result[way] = {"received": max(received_bytes(text, DEVICES)), "times": []}
    for _ in range(CALLS):
        for way in random.sample(list(result), len(result)):
            result[way]["times"].append(seconds(lambda way=way: jax.block_until_ready(compiled[way](*given))))
    return result


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
