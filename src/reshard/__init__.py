"""Move a tensor from any sharding to any other, each device receiving exactly the bytes that it lacks.

>>> import numpy as np
>>> import reshard as rs
>>> mesh = rs.Mesh.of(x=2, y=4)
>>> source = rs.Sharding.of(mesh, "y", None)
>>> target = rs.Sharding.of(mesh, "x", "y")
>>> plan = rs.plan(source, target, shape=(8, 8), dtype="float32")
>>> plan.received_bytes, plan.lower_bound_bytes
(32, 32)
>>> array = np.arange(64, dtype="float32").reshape(8, 8)
>>> tiles = rs.numpy.run(plan, rs.numpy.scatter(array, source))
>>> bool((rs.numpy.gather(tiles, target, array.shape) == array).all())
True
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from reshard import numpy
from reshard.axis import Axis
from reshard.box import Box
from reshard.contraction import EinsumPlan, alternatives, einsum
from reshard.deal import Deal, Window
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.notation import parse_mesh, parse_sharding
from reshard.planner import plan
from reshard.plans import Plan
from reshard.propagation import Program
from reshard.reach import Reach, window_for
from reshard.sharding import DimSharding, Sharding
from reshard.steps import Step

__version__ = "0.1.0"

__all__ = [
    "Axis",
    "Box",
    "Deal",
    "DimSharding",
    "EinsumPlan",
    "Mesh",
    "Network",
    "Plan",
    "Program",
    "Reach",
    "ReshardError",
    "Sharding",
    "Step",
    "Window",
    "alternatives",
    "einsum",
    "numpy",
    "parse_mesh",
    "parse_sharding",
    "plan",
    "window_for",
]

ENGINES = ("jax", "torch")
"""The engines that load on first use, each the name of its module here, its package and its extra."""


def __getattr__(name: str) -> Any:
    if name not in ENGINES:
        raise AttributeError(f"module 'reshard' has no attribute {name!r}")
    try:
        return importlib.import_module(f"reshard.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name:
            raise
        raise ReshardError("missing-extra", f"{name} is not installed: pip install 'reshard[{name}]'") from None


logging.getLogger("reshard").addHandler(logging.NullHandler())
