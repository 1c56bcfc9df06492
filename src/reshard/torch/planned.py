"""`run`: a plan that was made before, on a DTensor.

The plan says which steps there are, and in how many chunks its pieces go; here nothing is chosen anew.
A plan under a memory limit goes turn by turn, see `turns`, so that a rank needs no more than the plan says:

    plan = reshard.plan(x, target, memory_limit=64 << 20)
    y = reshard.torch.run(plan, x)

Any other plan has all messages of a step under way at once, and its buffers beside the tiles are as large as they.
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from reshard.checks import check_mode, expect, shown
from reshard.errors import ReshardError
from reshard.plans import Plan
from reshard.torch.graph_operator import is_traced, refuse_traced, run_traced
from reshard.torch.redistribute import NEVER_TRACED, EagerCall, Memory
from reshard.torch.redistribution import redistribution_of_plan
from reshard.torch.world import current_world


def run(
    plan: Plan,
    x: DTensor,
    device_mesh: DeviceMesh | None = None,
    *,
    check: str = "first",
    out: torch.Tensor | None = None,
) -> DTensor:
    """The DTensor that a plan leads to: its steps, its chunks and no others.

    All ranks of the plan must call it, as `redistribute`, eagerly or in a graph that is traced.
    The gradient is planned back on the network and in the basis of the plan, without its memory limit, for it comes
    however what follows has left it.

    Args:
        plan: from where `x` is, whose devices are global ranks.
        x: of the plan's shape and dtype.
        device_mesh: what the result is on, where not on the mesh of `x`.
        check: when ranks compare what they are about to do, as `redistribute` has it.
        out: memory for the tile of the result, as `redistribute` has it; it breaks graphs as there.

    Raises:
        ReshardError: `bad-argument` where the plan is for another shape, dtype or source; `cannot-express` and
            `different-meshes` where no placements on the mesh are its target; and all of `redistribute`.
    """
    expect(plan, Plan, "what is run")
    if not isinstance(x, DTensor):
        raise ReshardError("bad-argument", f"a plan is run on a DTensor, got: {shown(x)}")
    check_mode(check)
    if out is not None:
        result: DTensor = _run_outside(plan, x, device_mesh, check, out)
        return result
    if is_traced(x._local_tensor):
        return run_traced(plan, x, device_mesh, check)
    return _run(plan, x, device_mesh, check)


@torch.compiler.disable(reason=NEVER_TRACED)  # type: ignore[no-untyped-call, untyped-decorator]
def _run_outside(plan: Plan, x: DTensor, device_mesh: DeviceMesh | None, check: str, out: torch.Tensor) -> DTensor:
    """Into memory.

    Raises:
        ReshardError: `bad-argument` where something traces.
    """
    refuse_traced("a plan into memory", x._local_tensor)
    return _run(plan, x, device_mesh, check, out)


def _run(
    plan: Plan, x: DTensor, device_mesh: DeviceMesh | None, check: str, out: torch.Tensor | None = None
) -> DTensor:
    world = current_world()
    with world.telling(lambda: sorted({*plan.source.mesh.devices, *plan.target.mesh.devices}), check):
        if device_mesh is not None:
            expect(device_mesh, DeviceMesh, "device_mesh")
        redistribution = redistribution_of_plan(world, x._spec, plan, device_mesh)
        call = EagerCall(redistribution, world, check, Memory(out=out), x.dtype, x.dtype)
        call.check_memory(x)
    return call.differentiable(x)
