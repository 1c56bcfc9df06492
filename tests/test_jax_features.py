"""Features of JAX are traced, with right values, and each is named that no rule knows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax_features import COLUMNS, FEATURES, ROWS  # noqa: E402

import reshard as rs  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.slow]
WITHOUT_RULE = {"callback": {"pure_callback"}}
"""Features with primitives that no rule knows."""
SPECS = {"rows": ("x", None), "both": ("x", "y")}


@pytest.mark.parametrize("lying", SPECS)
@pytest.mark.parametrize("name", FEATURES)
def test_a_feature(name: str, lying: str) -> None:
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("x", "y"), kinds, devices=jax.devices()[:8])
    end = jax.NamedSharding(mesh, jax.P(*SPECS[lying]))
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    program = rs.jax.trace(FEATURES[name], x, in_shardings=end, mesh=mesh)
    assert program.without_rule == Counter(WITHOUT_RULE.get(name, ()))
    placed = program.propagate(goal="bytes")
    for primitive in program.without_rule:
        assert f"{primitive} (" in str(placed)
    found: Any = jax.jit(rs.jax.to_jax(placed))(jax.device_put(x, end))
    expected = jax.jit(FEATURES[name])(x)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)
