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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` gives, said to type checkers
    from reshard import jax as jax  # the alias makes it public, where `import *` must not load it
    from reshard import mpi as mpi
    from reshard import numpy
    from reshard import torch as torch
    from reshard.axis import Axis
    from reshard.box import Box
    from reshard.contraction import EinsumPlan, alternatives, einsum
    from reshard.deal import Deal, Window
    from reshard.dim_sharding import DimSharding
    from reshard.errors import ReshardError
    from reshard.mesh import Mesh
    from reshard.models import Rules, plan_model
    from reshard.network import Network
    from reshard.notation import parse_mesh, parse_sharding
    from reshard.planner import plan
    from reshard.plans import Plan
    from reshard.propagation import Program
    from reshard.reach import Reach, window_for
    from reshard.sharding import Sharding
    from reshard.steps import Step
    from reshard.view import show

__version__ = "0.2.0"

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
    "Rules",
    "Sharding",
    "Step",
    "Window",
    "alternatives",
    "einsum",
    "numpy",
    "parse_mesh",
    "parse_sharding",
    "plan",
    "plan_model",
    "show",
    "window_for",
]

ROOMS = {
    "Axis": "axis",
    "Box": "box",
    "Deal": "deal",
    "DimSharding": "sharding",
    "EinsumPlan": "contraction",
    "Mesh": "mesh",
    "Network": "network",
    "Plan": "plans",
    "Program": "propagation",
    "Reach": "reach",
    "ReshardError": "errors",
    "Rules": "models",
    "Sharding": "sharding",
    "Step": "steps",
    "Window": "deal",
    "alternatives": "contraction",
    "einsum": "contraction",
    "parse_mesh": "notation",
    "parse_sharding": "notation",
    "plan": "planner",
    "plan_model": "models",
    "show": "view",
    "window_for": "reach",
}
"""Where each name is from; its room loads with its first use, and so does a room that is asked for by its own name."""
ENGINES = {"jax": "jax", "mpi": "mpi4py", "torch": "torch"}
"""The engines that need a package of their own: the module's name here, which is that of its extra, and the package."""


def __getattr__(name: str) -> Any:
    if name in ROOMS:
        value = getattr(importlib.import_module(f"reshard.{ROOMS[name]}"), name)
        globals()[name] = value
        return value
    if name.startswith("_"):
        raise AttributeError(f"module 'reshard' has no attribute {name!r}")
    try:
        return importlib.import_module(f"reshard.{name}")
    except ModuleNotFoundError as error:
        if name in ENGINES and error.name is not None and error.name.partition(".")[0] == ENGINES[name]:
            from reshard.errors import MissingExtraError  # noqa: PLC0415  # loads with the first use, as all rooms do

            raise MissingExtraError(f"{ENGINES[name]} is not installed: pip install 'reshard[{name}]'") from None
        if error.name != f"reshard.{name}":
            raise
        raise AttributeError(f"module 'reshard' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


logging.getLogger("reshard").addHandler(logging.NullHandler())
