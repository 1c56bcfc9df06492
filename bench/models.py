"""Whole models of a package with its own shardings: plain `jit` with the model's constraints, and the placed program.

`python -m bench.models [model ...]` prints what it finds of models in a process of 8 devices of a CPU.
The models are those of google-tunix, whose modules are loaded by themselves: the package as a whole starts much more.
Where it is not installed, nothing is measured.

| way | what is compiled |
|---|---|
| jax | the step, with the model's `shard` as `with_sharding_constraint` |
| reshard | `to_jax(trace(step).propagate())`, of the step with its inputs' and its outputs' shardings alone |
| seconds | the same, placed for a network: about what devices of a CPU with four cores do, all eight at once |

**From the function to the compiled program** is the median of a few cold compiles, all ways in turn, in one process.
Before all of them each way compiles a small model that is none of those measured, for what a process does once, as to
import modules and to build tables, is no part of any program.
Before each of them what JAX and this library know of earlier programs is let go of: traces, compiled programs, plans,
rules of operations, and all else that either keeps by what it was asked; so none finds anything of the one before it.
It is a clock that is read, on as many cores as compilers find.

Bytes of plain `jit` are read most favourably: an all-reduce of which a device then takes only its part would be a
reduce-scatter on other devices than CPUs, and counts as one, as `reshard inspect` judges it.
Rows say too what it were if every all-reduce counted so, those too whose sums a device needs whole.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import random
import re
import statistics
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from bench.resharding_jax import measured
from bench.timing import Row, seconds

PACKAGE = "tunix"
CACHE = type(lru_cache(len))
"""Of functions whose results are kept."""
DEVICES = 8
TIMEOUT_S = 1800
COMPILES, COMPILING_S = 3, 30
"""How often each way compiles a model, at most; after so many seconds not once more."""
BLOCKS, CALLS = 15, 2
"""Blocks of each way, shuffled in pairs, and timed calls in each; one call before all is not counted."""
SIZES: dict[str, Any] = {
    "num_layers": 2, "vocab_size": 1024, "embed_dim": 256, "hidden_dim": 512, "num_heads": 8, "head_dim": 32,
    "num_kv_heads": 4, "rope_theta": 10000, "norm_eps": 1e-6,
}  # fmt: skip
SEQUENCE = 64


class Case(NamedTuple):
    """A model on a mesh."""

    module: str
    """Of the package's models."""
    name: str
    """Of its class."""
    axes: dict[str, int]
    sizes: tuple[tuple[str, int], ...] = ()
    """Where they differ from those of the others."""
    remat: str = "NONE"
    decodes: bool = False
    """Whether one token is made with a cache, in place of a training step."""


CASES = {
    "Qwen3": Case("qwen3", "Qwen3", {"fsdp": 4, "tp": 2}),
    "Llama3": Case("llama3", "Llama3", {"fsdp": 2, "tp": 4}),
    "mixture of experts": Case(
        "qwen3", "Qwen3", {"fsdp": 4, "tp": 2}, (("num_experts", 8), ("num_experts_per_tok", 2))
    ),
    "rematerialised": Case("llama3", "Llama3", {"fsdp": 2, "tp": 4}, remat="BLOCK"),
    "decode": Case("qwen3", "Qwen3", {"fsdp": 2, "tp": 4}, decodes=True),
}
SMALL = Case("llama3", "Llama3", {"fsdp": 4, "tp": 2}, (("num_layers", 1),), decodes=True)
"""What is compiled before all others."""
OURS = {"reshard": "", "devices": ", as these devices compute", "seconds": ", in seconds"}
"""How rows name the ways that are held against plain `jit`: 2,000 operations weigh as much as a byte, as is so of
accelerators, or as many as one of `SPEEDS` does in the time of a byte of `LINK`, or seconds count."""
WAYS = ("jax", *OURS)
LINK = "switch", 3e9, 20e-6
"""Between all devices: bytes/s and seconds of a message."""
SPEEDS = {"flops": 20e9, "memory_bandwidth": 10e9}
"""Of a device while all work: operations/s, and bytes/s that it reads and writes."""
LIMITS = {"time": 1.1, "processor time": 1.1, "temporaries": 1.1, "bytes": 1.0, "compile": 1.5}
"""By figure, at most how many times plain `jit`'s: milliseconds of a step, as a clock shows and as all threads take,
bytes, bytes, and seconds from the function to the compiled program."""


def rows() -> Iterator[Row]:
    """Every model's figures as parts of plain `jit`'s, and the median of their times."""
    if not (importlib.util.find_spec("jax") and importlib.util.find_spec(PACKAGE)):
        return
    times: dict[str, list[float]] = {way: [] for way in OURS}
    for name in CASES:
        figures = measured(name, DEVICES, "bench.models", TIMEOUT_S)
        theirs = figures["jax"]
        for way, said in OURS.items():
            ours = figures[way]
            for figure, limit in LIMITS.items():
                ratio = ours[figure] / theirs[figure]
                halved = f" ({theirs['halved']:.6g} with every all-reduce halved)" if figure == "bytes" else ""
                yield Row(
                    f"{name}{said}: {figure}",
                    f"{ratio:.2f} times plain jit's: {ours[figure]:.6g}, {theirs[figure]:.6g}{halved}",
                    f"at most {limit:g} times",
                    ratio <= limit,
                )
            collectives = f"{ours['collectives']}, plain jit {theirs['collectives']}"
            yield Row(f"{name}{said}: collectives", collectives, "", None)
            yield Row(
                f"{name}{said}: trace and propagate, per operation",
                f"{ours['per operation']:.2f} ms, {ours['operations']} operations",
                "at most 2 ms",
                ours["per operation"] <= 2,
            )
            times[way].append(ours["time"] / theirs["time"])
    for way, said in OURS.items():
        median = statistics.median(times[way])
        yield Row(f"all{said}: time in the median", f"{median:.2f}", "at most 1", median <= 1)


# In the process with many devices


def module_of_package(name: str) -> Any:
    """A module of the package, without running what its packages say of themselves."""
    full = f"{PACKAGE}.models.{name}.model"
    if full in sys.modules:
        return sys.modules[full]
    root = Path(sys.modules[PACKAGE].__path__[0]) if PACKAGE in sys.modules else package_folder()
    for package in (PACKAGE, *(f"{PACKAGE}.{part}" for part in ("models", "models." + name, "generate", "utils"))):
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(root.joinpath(*package.split(".")[1:]))]
    return importlib.import_module(full)


def package_folder() -> Path:
    """Where the package is installed."""
    spec = importlib.util.find_spec(PACKAGE)
    return Path(next(iter((spec and spec.submodule_search_locations) or ("",))))


class Problem(NamedTuple):
    """A step to be compiled in both ways."""

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Of shapes alone."""
    shardings: tuple[Any, ...]
    asked: Any
    """Of the results."""
    donated: tuple[int, ...]


def problem(case: Case, mesh: Any) -> tuple[Any, Problem]:
    """The model's module, and its step."""
    import jax  # noqa: PLC0415  # starts with the number of devices of this process
    import optax  # noqa: PLC0415
    from flax import nnx  # noqa: PLC0415
    from jax import numpy as jnp  # noqa: PLC0415

    module = module_of_package(case.module)
    model_class, config_class = getattr(module, case.name), module.ModelConfig
    sizes = SIZES | dict(case.sizes)
    config = config_class(
        **sizes,
        remat_config=module.RematConfig[case.remat],
        shd_config=module.ShardingConfig.get_default_sharding(is_sampling=case.decodes),
    )
    made = nnx.eval_shape(lambda: model_class(config, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(made)
    weights = nnx.to_pure_dict(state)
    specs = nnx.to_pure_dict(nnx.get_partition_spec(state))
    on = lambda *dims: jax.NamedSharding(mesh, jax.P(*dims))  # noqa: E731
    weights_in = jax.tree.map(lambda _, spec: on(*spec), weights, specs)

    def apply(weights: Any, *arguments: Any) -> Any:
        filled = nnx.clone(state) if hasattr(nnx, "clone") else state
        nnx.replace_by_pure_dict(filled, weights)
        return nnx.merge(graph, filled)(*arguments)

    batch = 4 * case.axes["fsdp"]
    if case.decodes:
        shape = (batch, SEQUENCE, sizes["num_kv_heads"], sizes["head_dim"])
        layer = {"k": jax.ShapeDtypeStruct(shape, jnp.float32), "v": jax.ShapeDtypeStruct(shape, jnp.float32)}
        layer["end_index"] = jax.ShapeDtypeStruct((batch,), jnp.int32)
        of_layer = {"k": on("fsdp", None, "tp"), "v": on("fsdp", None, "tp"), "end_index": on(None)}
        cache, cache_in = ({f"layer_{n}": each for n in range(sizes["num_layers"])} for each in (layer, of_layer))

        def decode(weights: Any, cache: Any, tokens: Any, at: Any) -> Any:
            mask = jnp.broadcast_to(jnp.arange(SEQUENCE) <= at[:, None, None], (batch, 1, SEQUENCE))
            logits, cache = apply(weights, tokens, at[:, None], cache, mask)
            return logits[:, -1].argmax(-1), cache

        tokens, at = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((batch, 1), (batch,)))
        ins = weights_in, cache_in, on("fsdp", None), on("fsdp")
        return module, Problem(decode, (weights, cache, tokens, at), ins, (on("fsdp"), cache_in), (1,))
    adam = optax.adamw(1e-3)

    def loss(weights: Any, tokens: Any) -> Any:
        positions = jnp.broadcast_to(jnp.arange(SEQUENCE), tokens.shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool)), (batch, SEQUENCE, SEQUENCE))
        logits, _ = apply(weights, tokens, positions, None, mask)
        chosen = jax.nn.one_hot(tokens[:, 1:], logits.shape[-1])
        return -(jax.nn.log_softmax(logits[:, :-1]) * chosen).sum(-1).mean()

    def step(weights: Any, moments: Any, tokens: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, tokens)
        changes, moments = adam.update(slopes, moments, weights)
        return value, optax.apply_updates(weights, changes), moments

    moments = jax.eval_shape(adam.init, weights)
    moments_in = optax.tree.map_params(
        adam, lambda _, spec: spec, moments, weights_in, transform_non_params=lambda _: on()
    )
    tokens = jax.ShapeDtypeStruct((batch, SEQUENCE), jnp.int32)
    ins = weights_in, moments_in, on("fsdp", None)
    return module, Problem(step, (weights, moments, tokens), ins, (on(), weights_in, moments_in), (0, 1))


def network(case: Case) -> Any:
    """What `LINK` and `SPEEDS` say of the devices of a case."""
    import reshard as rs  # noqa: PLC0415
    from reshard.network import Network  # noqa: PLC0415

    return Network.of(rs.Mesh.of(device=prod(case.axes.values())), {"device": LINK}, **SPEEDS)


def forget() -> None:
    """Let go of what JAX and this library know of earlier programs."""
    import jax  # noqa: PLC0415

    jax.clear_caches()
    for kept in gc.get_objects():
        if isinstance(kept, CACHE) and str(kept.__module__).startswith("reshard."):
            kept.cache_clear()
    gc.collect()


def compiled(case: Case, way: str, mesh: Any) -> tuple[Any, Problem, dict[str, float]]:
    """The program of a way, made anew, and what its making took and showed."""
    import jax  # noqa: PLC0415

    import reshard as rs  # noqa: PLC0415

    module, given = problem(case, mesh)
    constrain = lambda x, spec: jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P(*spec)))  # noqa: E731
    module.shard = constrain if way == "jax" else lambda x, _: x
    figures: dict[str, float] = {}
    trace, to_jax = rs.jax.trace, rs.jax.to_jax  # loaded before, as JAX is
    forget()
    start = time.perf_counter()
    function = given.step
    if way != "jax":
        traced = trace(given.step, *given.arguments, in_shardings=given.shardings, out_shardings=given.asked)
        described = None if way == "reshard" else network(case)
        placed = traced.propagate(described, goal="balanced" if way == "devices" else None)
        figures["operations"] = len(traced.operations)
        figures["per operation"] = 1e3 * (time.perf_counter() - start) / len(traced.operations)
        function = to_jax(placed)
    jitted = jax.jit(function, in_shardings=given.shardings, out_shardings=given.asked, donate_argnums=given.donated)
    lowered = jitted.lower(*given.arguments)
    figures["lowered"] = time.perf_counter() - start
    program = lowered.compile()
    figures["compile"] = time.perf_counter() - start
    return program, given, figures


def compiles(case: Case) -> dict[str, tuple[Any, Problem, dict[str, float]]]:
    """Per way the program of a case, with the medians of what its making took, the ways in turn."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    devices = np.array(jax.devices())
    small, mesh = (
        jax.sharding.Mesh(devices.reshape(tuple(each.axes.values())), tuple(each.axes)) for each in (SMALL, case)
    )
    for way in WAYS:
        compiled(SMALL, way, small)
    rounds, start = list[dict[str, tuple[Any, Problem, dict[str, float]]]](), time.perf_counter()
    while not rounds or (len(rounds) < COMPILES and time.perf_counter() - start < COMPILING_S):
        rounds.append({way: compiled(case, way, mesh) for way in WAYS})
    return {
        way: (program, given, {key: statistics.median(each[way][2][key] for each in rounds) for key in figures})
        for way, (program, given, figures) in rounds[-1].items()
    }


KIND = re.compile(r" (all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter)(?:-start)?\(")


class Received(NamedTuple):
    """Bytes that the busiest device receives."""

    as_it_is: int
    judged: int
    """All-reduces of which a device takes only its part count as reduce-scatters."""
    halved: int
    """All of them do."""


def received_in(text: str) -> Received:
    """By the collectives of a compiled program."""
    from reshard.xla.read.collectives import find_collectives  # noqa: PLC0415
    from reshard.xla.read.reading import read_text  # noqa: PLC0415
    from reshard.xla.report.sums import judged  # noqa: PLC0415

    (module,) = read_text(text).modules
    collectives = find_collectives(module)
    moved = {
        each: each.executions * (each.result_bytes if each.kind == "collective-permute" else each.received_bytes or 0)
        for each in collectives
    }
    whole = sum(moved.values())
    saved = sum(each.saved_bytes for each in judged(module, collectives))
    halved = sum(bytes_ // 2 for each, bytes_ in moved.items() if each.kind == "all-reduce")
    return Received(whole, whole - saved, whole - halved)


def drawn(given: Problem) -> Callable[[], tuple[Any, ...]]:
    """What gives new arguments for a call; values are small, and numbers of tokens are in the vocabulary."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    rng = np.random.default_rng(0)

    def array(aval: Any) -> Any:
        if np.issubdtype(aval.dtype, np.integer):
            return rng.integers(0, SEQUENCE, aval.shape).astype(aval.dtype)
        return (rng.random(aval.shape) / 16).astype(aval.dtype)

    whole = jax.tree.map(array, given.arguments)
    return lambda: jax.block_until_ready(jax.device_put(whole, given.shardings))


def figures_of(name: str) -> dict[str, Any]:
    """Bytes, collectives, temporaries, times to compile and to run, of both ways; their results are compared."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    programs, result = {}, {}
    for way, (program, given, figures) in compiles(CASES[name]).items():
        programs[way], result[way] = program, dict[str, Any](figures)
        arguments = drawn(given)
        memory = programs[way].memory_analysis()
        text = programs[way].as_text()
        received, kinds = received_in(text), Counter(KIND.findall(text))
        result[way] |= {"bytes": received.judged if way == "jax" else received.as_it_is, "halved": received.halved}
        result[way] |= {"collectives": sum(kinds.values()), "kinds": kinds}
        result[way]["temporaries"] = memory.temp_size_in_bytes
    theirs, *ends = [jax.tree.leaves(jax.tree.map(np.asarray, programs[way](*arguments()))) for way in WAYS]
    for each in ends:
        for ours, wanted in zip(each, theirs, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=2e-3)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    work: dict[str, list[float]] = {way: [] for way in WAYS}
    rng = random.Random(0)
    for _ in range(BLOCKS):
        for way in rng.sample(WAYS, len(WAYS)):
            for _ in range(CALLS):
                values, before = arguments(), time.process_time()
                times[way].append(seconds(lambda way=way, values=values: jax.block_until_ready(programs[way](*values))))
                work[way].append(time.process_time() - before)
    for way in WAYS:
        result[way] |= {"processor time": 1e3 * statistics.median(work[way])}
        result[way] |= {"time": 1e3 * statistics.median(times[way]), "least time": 1e3 * min(times[way])}
    return result


if __name__ == "__main__":
    found = {name: figures_of(name) for name in sys.argv[1:]}
    print(json.dumps(next(iter(found.values())) if len(found) == 1 else found))
