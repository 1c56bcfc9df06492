"""What a type checker sees of the engines' calls: `make types` reads this, and nothing runs it."""

from __future__ import annotations

from typing import assert_type

import jax
import numpy as np
from torch.distributed.tensor import DTensor

import reshard as rs
import reshard.jax
import reshard.torch


def calls_of_jax(x: jax.Array, spec: jax.P, parameters: dict[str, jax.Array], plan: rs.Plan) -> None:
    assert_type(reshard.jax.reshard(x, spec), jax.Array)
    assert_type(reshard.jax.reshard(np.zeros(4), spec), jax.Array)
    assert_type(reshard.jax.reshard(parameters, {"w": spec}), dict[str, jax.Array])
    assert_type(reshard.jax.run(plan, x), jax.Array)
    assert_type(reshard.jax.einsum("ij,jk->ik", x, x), jax.Array)


def calls_of_torch(x: DTensor, plan: rs.Plan) -> None:
    assert_type(reshard.torch.redistribute(x), DTensor)
    assert_type(reshard.torch.run(plan, x), DTensor)
