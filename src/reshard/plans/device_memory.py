"""What each device needs in each step of a plan, part by part.

`Step.peak_bytes` takes the largest tiles of all devices; here each device counts the tiles that it has itself.

>>> from reshard.mesh import Mesh
>>> from reshard.planner import plan
>>> line = Mesh.of(x=2)
>>> (memory,) = memory_by_step(plan(Sharding.of(line, "x"), Sharding.of(line, None), (3,), "int8"))
>>> {part: column.tolist() for part, column in memory.items()}  # device 0 has 2 of 3 elements, and gets them all
{'tile before': [2, 1], 'tile after': [3, 3], 'pieces on the way': [2, 2]}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reshard.digits import Positions
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from reshard.plans.plan import Plan


def memory_by_step(plan: Plan) -> list[dict[str, Positions]]:
    """Per step and part, the bytes of each device of the plan, in ascending order of devices.

    From the second step on the source tile is kept besides, and once parts begin what they keep of where they do.
    All steps have the same parts, those that are of any.
    """
    devices = np.array(plan.devices, dtype=np.int64)
    source = _tile_bytes(plan, plan.source, devices)
    memories = []
    for number, step in enumerate(plan.steps):
        before, after = (_tile_bytes(plan, end, devices) for end in (step.before, step.after))
        led_to = {later.kept for later in plan.steps[number:]} - {plan.source, step.before}
        kept = [_tile_bytes(plan, end, devices) for end in led_to if end is not None and number > plan.whole[0]]
        takes_part = np.isin(devices, np.union1d(step.before.mesh.device_array, step.after.mesh.device_array))
        parts = {
            "source, kept": source * bool(number),
            "begun with, kept": sum(kept, 0 * source),
            "tile before": before,
            "tile between": takes_part * step.between_bytes,
            "tile after": after,
            "pieces on the way": takes_part * step.buffer_bytes_in(step.chunks),
        }
        memories.append(parts)
    present = [name for name in (memories[0] if memories else ()) if any(memory[name].any() for memory in memories)]
    return [{name: memory[name] for name in present} for memory in memories]


def _tile_bytes(plan: Plan, sharding: Sharding, devices: Positions) -> Positions:
    """The bytes of each device's tile; 0 on devices outside the mesh."""
    column = np.zeros(len(devices), dtype=np.int64)
    for boxes, holders in sharding.tiles(plan.shape).items():
        places = np.searchsorted(devices, np.array(holders, dtype=np.int64))
        column[places] = sum(box.size for box in boxes) * plan.dtype.itemsize
    return column
