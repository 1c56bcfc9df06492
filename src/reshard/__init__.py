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

import logging

from reshard import numpy
from reshard.axis import Axis
from reshard.box import Box
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.notation import parse_mesh, parse_sharding
from reshard.planner import plan
from reshard.plans import Plan
from reshard.sharding import DimSharding, Sharding
from reshard.steps import Step

__version__ = "0.1.0"

__all__ = [
    "Axis",
    "Box",
    "DimSharding",
    "Mesh",
    "Network",
    "Plan",
    "ReshardError",
    "Sharding",
    "Step",
    "numpy",
    "parse_mesh",
    "parse_sharding",
    "plan",
]

logging.getLogger("reshard").addHandler(logging.NullHandler())
