"""JAX's own reshard against ours inside jit, side by side: bytes, memory, compile time, run time.

And the eager one between meshes, against `device_put`.

Every figure comes from a process of its own, since the number of CPU devices is fixed when JAX starts:
256 devices where programs are only compiled, from shapes, and 16 where they are run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import lcm, prod
from typing import Any, NamedTuple

from bench.timing import Row, seconds

TIMEOUT_S = 280
Spec = tuple[Any, ...]


class Case(NamedTuple):
    """A reshard of float32 on one mesh."""

    name: str
    axes: dict[str, int]
    source: Spec
    target: Spec
    shape: tuple[int, ...]
    """That is compiled."""
    run_shape: tuple[int, ...] | None = None
    """That is run; None where it is only compiled."""
    faster: float = 1 / 1.1
    """How many times faster than JAX's it should at least be."""


SIDE = 4096
XY, YX, CUBE = {"X": 2, "Y": 4}, (("Y", "X"), ("X", "Y")), {"C": 1, "D": 2, "Y": 8, "X": 4, "T": 4}
GATHERED = ("D", ("X", "Y")), (None, ("D", "Y", "X", "T"))
CASES = (
    Case("document 1", XY, ("X", None), ("Y", "X"), (2048, 2048), (SIDE, SIDE)),
    Case("document 2", XY, ("Y", None), ("X", "Y"), (2048, 2048), (SIDE, SIDE)),
    Case("document 3", CUBE, (None, ("X", "T")), (("D", "Y", "X", "T"), None), (2048, 2048)),
    Case("document 4", CUBE, *GATHERED, (2048, 2048)),
    Case(
        "document 3, 16 devices",
        dict.fromkeys("DYXT", 2),
        (None, ("X", "T")),
        (("D", "Y", "X", "T"), None),
        (2048, 2048),
        (SIDE, SIDE),
    ),
    Case("document 4, 16 devices", dict.fromkeys("DYXT", 2), *GATHERED, (2048, 2048), (SIDE, SIDE), 10),
    Case("xla#15207", {"x": 4, "y": 2}, ("y", None, "x"), (None, ("x", "y"), None), (16, 16, 16), (256, 256, 256), 10),
    Case("transposition 2 x 4", XY, ("X", "Y"), ("Y", "X"), (48, 48), (SIDE, SIDE), 1.2),
    Case("transposition 2 x 3", {"X": 2, "Y": 3}, ("X", "Y"), ("Y", "X"), (48, 48), (4092, 4092), 5),
    Case("transposition 4 x 4", {"X": 4, "Y": 4}, ("X", "Y"), ("Y", "X"), (48, 48), (SIDE, SIDE)),
    Case("gather of rows and columns", XY, ("X", "Y"), (None, None), (2048, 2048), (SIDE, SIDE)),
    Case("columns to rows on two devices each", XY, (None, ("Y", "X")), ("Y", None), (2048, 2048), (SIDE, SIDE)),
)
OTHERS = {
    "the same tiles on other devices": ({"X": 2, "Y": 4}, ("X", "Y"), 8, {"X": 2, "Y": 4}, ("X", "Y")),
    "other devices": ({"X": 2, "Y": 4}, ("X", "Y"), 8, {"X": 2, "Y": 4}, ("Y", "X")),
    "8 to 4 devices": ({"X": 2, "Y": 4}, ("X", "Y"), 0, {"X": 2, "Y": 2}, ("Y", "X")),
    "8 to 16 devices": ({"X": 2, "Y": 4}, ("X", "Y"), 0, {"X": 4, "Y": 4}, ("X", "Y")),
    "a source of two replicas": ({"X": 4, "Y": 2}, ("X", None), 8, {"X": 2, "Y": 4}, ("X", "Y")),
    "a target of three replicas": ({"X": 2, "Y": 4}, ("X", "Y"), 10, {"X": 2, "Y": 3}, ("X", None)),
    "the same devices turned": ({"X": 2, "Y": 4}, ("X", "Y"), None, {"X": 2, "Y": 4}, ("X", "Y")),
}
"""Eager reshards: axes and dims of the source on the first devices; the first device, axes and dims of the target."""
COMPILES = 5
"""Of each program of a case, ours and JAX's in turn; the median counts."""
DRAWS = 40
"""Random problems for the ratio of compile times."""
DRAWN_MESHES = ((2, 4), (2, 2, 2), (4, 4), (2, 4, 4), (2, 3))
CALLS = 5
"""Timed calls of a block; one call before each block is not counted."""
MANY_ROUNDS = {"x": 2, "y": 4, "z": 8}, ((), ("z",), ("y", "x")), (("y", "z"), (), ("x",))
"""No collective of groups does it; one `ppermute` follows another."""
BLOCKS, BUDGET_S = (2, 8), 8
"""Blocks of each way, shuffled in pairs: the fewest, and the most, between them as many as fit into so many seconds."""
WAYS = ("reshard", "jax")


def rows() -> Iterator[Row]:
    """Every case compiled, the smaller ones run; and the compile times of random problems."""
    if not importlib.util.find_spec("jax"):
        return
    compiled, ran = measured("compile", 256), measured("run", 16)
    for case in CASES:
        yield from rows_of(case, compiled[case.name], ran.get(case.name))
    for name, times in ran["across"].items():
        medians = {way: statistics.median(times[way]) for way in WAYS}
        yield Row(
            f"eager, {name}, {SIDE} x {SIDE}",
            f"{medians['reshard'] / medians['jax']:.2f} times device_put: {1e3 * medians['reshard']:.1f} ms "
            f"(least {1e3 * min(times['reshard']):.1f}), {1e3 * medians['jax']:.1f} ms "
            f"(least {1e3 * min(times['jax']):.1f})",
            "",
            None,
        )
    ratios = compiled["random"]
    median = statistics.median(ratios)
    yield Row(
        f"trace, lower and compile, {len(ratios)} random problems of rank 3 on up to 32 devices",
        f"{median:.2f} times JAX's in the median ({min(ratios):.2f} to {max(ratios):.2f})",
        "at most 2 times",
        median <= 2,
    )
    many = compiled["many rounds"]
    yield Row(
        f"trace, lower and compile, a plan of {many['rounds']} permutations",
        f"{many['ratio']:.2f} times JAX's",
        "at most 5 times",
        many["ratio"] <= 5,
    )


def rows_of(case: Case, compiled: dict[str, Any], times: dict[str, list[float]] | None) -> Iterator[Row]:
    """What a case moves, needs and takes."""
    ours, theirs = (compiled[way] for way in WAYS)
    bound = compiled["bound"]
    shape = " x ".join(map(str, case.shape))
    what = f"{case.name}, {shape} on {' x '.join(map(str, case.axes.values()))}"

    def over_bound(one: dict[str, Any]) -> str:
        return f"{one['received']} B ({one['received'] / bound:.2f} of the bound)"

    yield Row(
        f"{what}: received by the busiest device",
        f"{over_bound(ours)}, JAX {over_bound(theirs)}",
        "the bound",
        ours["received"] == bound,
    )
    yield Row(
        f"{what}: temporaries and output per target tile",
        f"{ours['memory'] / compiled['tile']:.2f}, JAX {theirs['memory'] / compiled['tile']:.2f}",
        "",
        None,
    )
    yield Row(
        f"{what}: trace, lower and compile",
        f"{1e3 * ours['compile']:.0f} ms, JAX {1e3 * theirs['compile']:.0f} ms "
        f"({ours['compile'] / theirs['compile']:.2f} times)",
        "",
        None,
    )
    if times is None:
        return
    medians = {way: statistics.median(times[way]) for way in WAYS}
    ratio = medians["reshard"] / medians["jax"]
    aim = f"at least {case.faster:g} times as fast" if case.faster > 1 else "at most 1.1 times"
    said = f"{1 / ratio:.1f} times as fast" if case.faster > 1 else f"{ratio:.2f} times"
    lows = {way: min(times[way]) for way in WAYS}
    yield Row(
        f"{case.name}, run, {' x '.join(map(str, case.run_shape or ()))}",
        f"{said}: {1e3 * medians['reshard']:.1f} ms (least {1e3 * lows['reshard']:.1f}), "
        f"JAX {1e3 * medians['jax']:.1f} ms (least {1e3 * lows['jax']:.1f})",
        aim,
        ratio * case.faster <= 1,
    )


def measured(
    task: str, devices: int, module: str = "bench.resharding_jax", timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """What a process with so many devices finds, in which a module does a task.

    Raises:
        RuntimeError: where it fails; with what it said.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", module, task]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=timeout_s)
    if process.returncode:
        raise RuntimeError(f"{task} failed:\n{process.stderr[-2000:]}")
    return json.loads(process.stdout)  # type: ignore[no-any-return]


# In the process with many devices


def programs(axes: dict[str, int], source: Spec, target: Spec) -> tuple[dict[str, Any], Any]:
    """Both ways from source to target, and the sharding that they start from; axes are Explicit."""
    import jax  # noqa: PLC0415  # starts with the number of devices of this process
    import numpy as np  # noqa: PLC0415

    import reshard as rs  # noqa: PLC0415

    devices = np.array(jax.devices()[: prod(axes.values())]).reshape(tuple(axes.values()))
    kinds = (jax.sharding.AxisType.Explicit,) * len(axes)
    mesh = jax.sharding.Mesh(devices, tuple(axes), axis_types=kinds)
    start, end = (jax.NamedSharding(mesh, jax.P(*spec)) for spec in (source, target))
    ways = {"reshard": lambda x: rs.jax.reshard(x, end), "jax": lambda x: jax.sharding.reshard(x, end)}
    return ways, (start, end)


def compiled_program(function: Callable[..., Any], shape: tuple[int, ...], start: Any) -> Any:
    """Traced, lowered and compiled from a shape, with every cache empty."""
    import jax  # noqa: PLC0415

    from reshard.planner import cache_clear  # noqa: PLC0415

    jax.clear_caches()
    cache_clear()
    return jax.jit(function).lower(jax.ShapeDtypeStruct(shape, "float32", sharding=start)).compile()


def compile_seconds(ways: dict[str, Any], shape: tuple[int, ...], start: Any, runs: int) -> dict[str, float]:
    """The median per way, ways in turn."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(runs):
        for way, function in ways.items():
            times[way].append(seconds(lambda function=function: compiled_program(function, shape, start)))
    return {way: statistics.median(found) for way, found in times.items()}


def received_bytes(text: str, devices: int) -> list[int]:
    """Per device what it takes from others, by the collectives of an optimised program."""
    from reshard.xla.read.collectives import find_collectives  # noqa: PLC0415
    from reshard.xla.read.reading import read_text  # noqa: PLC0415
    from reshard.xla.read.replica_groups import parse_pairs  # noqa: PLC0415

    (module,) = read_text(text).modules
    found = {(one.computation, one.name): one for one in find_collectives(module)}
    total = [0] * devices
    for computation, instruction in module.instructions():
        one = found.get((computation.name, instruction.name))
        if one is None:
            continue
        if one.kind == "collective-permute":
            pairs = parse_pairs(instruction.attributes["source_target_pairs"]) or ()
            for sender, receiver in pairs:
                total[receiver] += one.result_bytes * (sender != receiver)
        else:
            total = [count + (one.received_bytes or 0) for count in total]
    return total


def compile_all() -> dict[str, Any]:
    """Bytes, memory and compile time of every case; compile times of random problems."""
    import reshard as rs  # noqa: PLC0415

    result: dict[str, Any] = {}
    for case in CASES:
        ways, (start, end) = programs(case.axes, case.source, case.target)
        mesh = rs.Mesh.of(case.axes)
        plan = rs.plan(rs.Sharding.of(mesh, *case.source), rs.Sharding.of(mesh, *case.target), case.shape, "float32")
        tile = prod(end.shard_shape(case.shape)) * 4
        result[case.name] = {"bound": plan.lower_bound_bytes, "tile": tile}
        times = compile_seconds(ways, case.shape, start, COMPILES)
        for way, function in ways.items():
            program = compiled_program(function, case.shape, start)
            memory = program.memory_analysis()
            result[case.name][way] = {
                "received": max(received_bytes(program.as_text(), mesh.size)),
                "memory": memory.temp_size_in_bytes + memory.output_size_in_bytes,
                "compile": times[way],
            }
    rng = random.Random(0)
    result["random"] = [compile_ratio(*drawn_ends(rng), runs=2)["ratio"] for _ in range(DRAWS)]
    result["many rounds"] = compile_ratio(*MANY_ROUNDS, runs=COMPILES)
    return result


def compile_ratio(axes: dict[str, int], source: Spec, target: Spec, *, runs: int) -> dict[str, float]:
    """Ours over JAX's, from trace to program, and the number of permutations in ours."""
    parts = [[prod(axes[name] for name in end[dim]) for end in (source, target)] for dim in range(3)]
    shape = tuple(4 * lcm(*counts) for counts in parts)
    ways, (start, _) = programs(axes, source, target)
    times = compile_seconds(ways, shape, start, runs)
    text = compiled_program(ways["reshard"], shape, start).as_text()
    rounds = sum(" collective-permute(" in line for line in text.splitlines())
    return {"ratio": times["reshard"] / times["jax"], "rounds": rounds}


def drawn_ends(rng: random.Random) -> tuple[dict[str, int], Spec, Spec]:
    """A mesh and two different ends on it."""
    while True:
        axes = dict(zip("xyz", rng.choice(DRAWN_MESHES), strict=False))
        source, target = (drawn(rng, axes) for _ in range(2))
        if source != target:
            return axes, source, target


def drawn(rng: random.Random, axes: dict[str, int]) -> Spec:
    """Each axis on one of three dims or on none, in random order."""
    homes: list[list[str]] = [[], [], [], []]
    for name in rng.sample(list(axes), len(axes)):
        rng.choice(homes).append(name)
    return tuple(map(tuple, homes[:3]))


def run_all() -> dict[str, Any]:
    """Seconds of calls of every case that is run; what both give is compared on every device."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    result = {}
    rng = random.Random(0)
    for case in CASES:
        if case.run_shape is None:
            continue
        ways, (start, end) = programs(case.axes, case.source, case.target)
        array = np.arange(prod(case.run_shape), dtype=np.float32).reshape(case.run_shape)
        x = jax.device_put(array, start)
        functions = {way: jax.jit(function, out_shardings=end) for way, function in ways.items()}
        for way, function in functions.items():
            for shard in function(x).addressable_shards:
                if not np.array_equal(np.asarray(shard.data), array[shard.index]):
                    raise RuntimeError(f"{case.name}: {way} gives wrong values on {shard.device}")
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        end_s = time.perf_counter() + BUDGET_S
        for block in range(BLOCKS[1]):
            if block >= BLOCKS[0] and time.perf_counter() > end_s:
                break
            for way in rng.sample(WAYS, len(WAYS)):
                call = functions[way]
                jax.block_until_ready(call(x))
                times[way] += [seconds(lambda call=call, x=x: jax.block_until_ready(call(x))) for _ in range(CALLS)]
        result[case.name] = times
    return {**result, "across": run_across()}


def run_across() -> dict[str, dict[str, list[float]]]:
    """Seconds of eager calls between meshes, ours and `device_put`; every call has an array of its own."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    import reshard as rs  # noqa: PLC0415

    def sharding(devices: list[Any], axes: dict[str, int], dims: Spec) -> Any:
        mesh = jax.sharding.Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))
        return jax.NamedSharding(mesh, jax.P(*dims))

    result = {}
    everything = jax.devices()
    array = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    ways = {"reshard": rs.jax.reshard, "jax": jax.device_put}
    for name, (axes, dims, first, other_axes, other_dims) in OTHERS.items():
        source = sharding(everything[: prod(axes.values())], axes, dims)
        turned = np.array(everything[:8]).reshape(2, 2, 2).T.ravel().tolist()
        there = turned if first is None else everything[first : first + prod(other_axes.values())]
        target = sharding(there, other_axes, other_dims)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for call in range(1 + 2 * CALLS):
            for way, function in ways.items():
                x = jax.block_until_ready(jax.jit(lambda x: x + 0)(jax.device_put(array, source)))
                taken = seconds(
                    lambda function=function, x=x, target=target: jax.block_until_ready(function(x, target))
                )
                times[way] += [taken] if call else []
            if call == 0 and not np.array_equal(np.asarray(rs.jax.reshard(x, target)), array):
                raise RuntimeError(f"{name}: wrong values")
        result[name] = times
    return result


if __name__ == "__main__":
    print(json.dumps({"compile": compile_all, "run": run_all}[sys.argv[1]]()))
