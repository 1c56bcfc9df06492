"""Steps beside the tiles that devices have from before, where they take less time then.

What a step need not send a device, as it has it still, makes the step sooner in most cases: not where a collective
hands on along a ring what each of its members lacks another part of.

>>> from reshard.mesh import Mesh
>>> from reshard.problem import Reshard
>>> mesh, network = Mesh.of(h=2, g=2), Network.preset("h100-2x2")
>>> rows, columns, whole = (Sharding.of(mesh, *dims) for dims in (("h", None), (None, "g"), (None, None)))
>>> gather = step_of(Reshard.of(columns, whole, (4096, 2), "int8"))
>>> gather.received_bytes, keeping(gather, rows, network).received_bytes, keeping(gather, columns, network) is gather
(4096, 2048, True)
"""

from __future__ import annotations

from reshard.errors import ReshardError
from reshard.network import Network, seconds_of
from reshard.sharding import Sharding
from reshard.steps import Chain, Step, keeping_nothing, step_of


def keeping(step: Step, kept: Sharding, network: Network) -> Step:
    """The step beside other tiles that devices kept, where it takes less time then; else as it is."""
    if kept == step.before or kept.unreduced or step.kind in ("Slice", "ToUnreduced") or step.ring is not None:
        return step
    try:
        beside = step_of(step.reshard, step.near, kept=kept)
        is_less = beside.total_received_bytes < step.total_received_bytes
        return beside if is_less and seconds_of(beside, network) < seconds_of(step, network) else step
    except ReshardError:  # of partial values, on another mesh, or of pieces too many to be priced
        return step


def beside_source(steps: Chain, network: Network | None) -> Chain:
    """The chain, every step beside the tiles that it begins with where it is sooner then, and beside no others."""
    if network is None or len(steps) < 2:
        return steps
    source = steps[0].before
    return tuple([step if step.kept == source else keeping(keeping_nothing(step), source, network) for step in steps])
