"""`inspect` of functions and of commands: what is dumped by itself, and whether what is advised saves what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.lax import with_sharding_constraint as constrained  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import inspect, reshard  # noqa: E402

pytestmark = pytest.mark.engine
MESH = jax.make_mesh((2, 3), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:6])


def on(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def floats(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, np.float32)


def descent(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(weights: Any, x: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes)

    return step


def mlp(weights: Any, x: Any) -> Any:
    hidden = constrained(jax.nn.relu(x @ weights["up"]), on("data", "model"))
    return (constrained(hidden @ weights["down"], on("data", None)) ** 2).mean()


def turned(weights: Any, x: Any) -> Any:
    hidden = constrained(jnp.sin(constrained(x @ weights["up"], on("data", "model"))), on("model", "data"))
    return (hidden @ weights["down"]).mean()


def layers(weights: Any, x: Any) -> Any:
    def layer(h: Any, w: Any) -> Any:
        return constrained(jnp.tanh(h @ w), on("data", "model")), None

    return (jax.lax.scan(layer, x, weights["stack"])[0] ** 2).mean()


WEIGHTS = {"up": floats(48, 96), "down": floats(96, 48)}
CUT = {"up": on(None, "model"), "down": on("model", None)}
STEPS: dict[str, tuple[Any, Any, Any, Any]] = {
    "mlp": (mlp, WEIGHTS, CUT, floats(24, 48)),
    "turned": (turned, WEIGHTS, CUT, floats(24, 48)),
    "layers": (layers, {"stack": floats(3, 48, 48)}, {"stack": on(None, None, "model")}, floats(24, 48)),
}


def jitted(loss: Callable[..., Any], shardings: Any) -> Any:
    return jax.jit(descent(loss), in_shardings=(shardings, on("data", None)), out_shardings=(on(), shardings))


@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_has_no_line_with_nothing_to_save(name: str) -> None:
    loss, weights, shardings, x = STEPS[name]
    report = inspect(jitted(loss, shardings), weights, x)
    text = str(report)
    assert report.reshards or report.unchanged, "the dump tells what is asked for"
    assert report.is_recognised
    assert not report.is_compiled_alone
    assert all(finding.ratio > 1.05 and finding.saved_bytes > 0 for finding in report.findings)
    assert text.count("instead") == len(report.findings)
    assert "P(None, None), source=P(None, None)" not in text
    assert "invented" not in text
    assert report.placed_bytes is not None, report.placed_why
    assert 0 < report.placed_bytes <= report.received_bytes
    assert bool(report.findings) == (name == "turned")


def test_an_advice_that_is_followed_saves_what_it_said() -> None:
    loss, weights, shardings, x = STEPS["turned"]
    before = inspect(jitted(loss, shardings), weights, x)
    finding = before.findings[0]
    assert finding.call == "rs.jax.reshard(x, P('model', 'data'), source=P('data', 'model'))"
    assert finding.place.endswith(f":{turned.__code__.co_firstlineno + 1}")

    def followed(weights: Any, x: Any) -> Any:
        hidden = jnp.sin(constrained(x @ weights["up"], on("data", "model")))
        hidden = reshard(hidden, on("model", "data"), source=on("data", "model"))
        return (hidden @ weights["down"]).mean()

    after = inspect(jitted(followed, shardings), weights, x)
    derivative = sum(one.saved_bytes for one in before.findings)
    assert before.received_bytes - after.received_bytes == derivative
    assert not after.findings


def test_what_swallowed_its_pieces_is_joined_by_its_name() -> None:
    """XLA makes the pieces of an all-to-all where it multiplies, so nothing has the sizes of the tile before."""
    source, target = P(None, ("data", "model"), None), P(("model", "data"), None, None)

    def sent(gate: Any, x: Any) -> Any:
        to = constrained(constrained(jnp.einsum("nx,ne->xne", gate, x), on(*source)), on(*target))
        return jnp.sin(to).sum((0, 2))

    report = inspect(jax.jit(sent, in_shardings=(on(("data", "model")),) * 2), floats(48, 6), floats(48, 12))
    (finding,) = report.findings
    assert finding.call == f"rs.jax.reshard(x, {target}, source={source})"
    assert (finding.received_bytes, finding.lower_bound_bytes) == (1920 + 2304, 1920)


def test_arguments_that_are_there_and_a_function_without_jit() -> None:
    x = jax.device_put(np.ones((6, 6), np.float32), on("data", "model"))
    report = inspect(lambda x: constrained(x * 2, on("model", "data")), x)
    (finding,) = report.findings
    assert (finding.received_bytes, finding.lower_bound_bytes) == (120, 24)
    assert finding.call == "rs.jax.reshard(x, P('model', 'data'), source=P('data', 'model'))"


def test_what_it_refuses() -> None:
    for call in (lambda: inspect("text", 3), lambda: inspect(3), lambda: inspect([3])):
        with pytest.raises(rs.ReshardError) as caught:
            call()
        assert caught.value.code == "bad-argument"


SCRIPT = """
import sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2, 3), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:6])
on = lambda *spec: NamedSharding(mesh, P(*spec))
x = jax.device_put(np.ones((6, 6), np.float32), on("data", "model"))
print("epoch 1")
jax.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, on("model", "data")))(x)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("status", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_command_is_run_and_its_dump_read(tmp_path: Path, status: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=6", "JAX_PLATFORMS": "cpu"}
    train = [sys.executable, str(tmp_path / "train.py"), str(status)]
    done = subprocess.run(
        [sys.executable, "-m", "reshard", "inspect", "--json", "--mesh", "data=2,model=3", "--", *train],
        capture_output=True,
        text=True,
        env={**os.environ, **flags},
        check=False,
    )
    record = json.loads(done.stdout)
    assert "epoch 1" in done.stderr
    assert record["findings"][0]["call"] == "rs.jax.reshard(x, P('model', 'data'), source=P('data', 'model'))"
    assert record["findings"][0]["place"].endswith("train.py:9")
    assert done.returncode == (1 if status else 0)
    assert (record["placed_bytes"], record["placed_why"]) == (24, "")
    assert (f"ended with {status}" in done.stderr) == bool(status)


def test_a_command_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from reshard.cli import main

    assert main(["inspect", "--", "no-such-command-anywhere"]) == 1
    assert "cannot be run: No such file or directory" in capsys.readouterr().err
    assert main(["inspect", "--", sys.executable, "-c", "pass"]) == 1
    assert "XLA dumped nothing" in capsys.readouterr().err
    assert main(["inspect", "some.txt", "--", sys.executable]) == 1
    assert "not both" in capsys.readouterr().err
