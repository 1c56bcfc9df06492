"""What a plan for a whole model takes on a network, and what no plan goes below.

The tensors travel side by side and without waiting for one another, so the busiest link or port counts, of the sum of
all; the least is that of a cut that all of them cross, see `network.least_time`.
Elements that are cast cross as the smaller of their two dtypes.

By hand, two tensors of 4 rows on 2 hosts of 2 devices become columns: each host has half of the rows, needs half of
the columns, and lacks 4 of its 8 elements of each, for which it has two ports of 1 byte/s.

>>> from reshard.dtypes import dtype_named
>>> from reshard.mesh import Mesh
>>> from reshard.models.model_planner import plan_model
>>> from reshard.models.ruleset import Rules
>>> from reshard.network.level import Level
>>> rows, columns = (Rules.of(Mesh.of(x=4), {}, spec) for spec in (("x",), (None, "x")))
>>> network = Network((Level(1, 2, "switch", 9.0, 0.0), Level(2, 2, "switch", 1.0, 0.0)))
>>> plan = plan_model({"a": ((4, 4), "i8"), "b": ((4, 4), "i8")}, rows, columns, network=network)
>>> print(time_cut_of(plan), "is", seconds_of_model(plan), "s")
8 B into 2 devices at 2 bytes/s is 4.0 s
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reshard.digits import Positions
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.models.sites import Site
from reshard.network import Cut, Network, best_common_cut
from reshard.network.crossing import Sides
from reshard.network.traffic import loads

if TYPE_CHECKING:
    from reshard.models.model_plan import ModelPlan
    from reshard.models.templates import TensorGroup


def network_of(plan: ModelPlan) -> Network | None:
    """The plan's network, if it reaches all devices.

    Raises:
        ReshardError: `bad-network`.
    """
    network = plan.network
    if network is not None and plan.world > network.size:
        raise ReshardError("bad-network", f"device {plan.world - 1} is beyond the {network.size} of the network")
    return network


def seconds_of_model(plan: ModelPlan) -> float | None:
    """What the busiest link or port of the network takes for all bytes, and one message's latency; None without one."""
    network = network_of(plan)
    if network is None:
        return None
    loaded, levels = loads(network.levels, *plan.traffic), network.levels
    busiest = max((load / level.bandwidth for load, level in zip(loaded.carried, levels, strict=True)), default=0.0)
    # messages follow one another without waiting, so one latency counts, of the slowest level that is used
    used = [level.latency_s for load, level in zip(loaded.carried, levels, strict=True) if load]
    return float(busiest + max(used, default=0.0) + (network.launch_s if used else 0.0))


def time_cut_of(plan: ModelPlan) -> Cut | None:
    """The cut that takes longest, of those tried; None without a network, and where nothing must cross."""
    network = network_of(plan)
    if network is None or not network.levels:
        return None
    nbytes: dict[Any, int] = {}
    ends: dict[Any, tuple[Site, Site]] = {}
    for group in plan.groups:
        key = id(group.moves), group.source.devices.tobytes(), group.target.devices.tobytes()
        nbytes[key] = nbytes.get(key, 0) + len(group.members) * group.wire.itemsize
        ends[key] = group.source, group.target
    sides = []
    for key, sites in ends.items():
        source, target = (
            site.tiling(Mesh((("a", len(site.devices)),), tuple(site.devices.tolist()))) for site in sites
        )
        sides.append(Sides(source, target, nbytes[key]))
    busiest: list[int] = []
    for amounts in (plan.all_lower_bound_bytes, plan.all_sent_bytes):
        for level in range(len(network.levels)):
            hosts = network.hosts_of(level, np.arange(plan.world))
            in_host = np.bincount(hosts, amounts)[hosts]
            busiest.append(int(np.lexsort((amounts, in_host))[-1]))
        busiest.append(int(amounts.argmax()))
    return best_common_cut(sides, network, tuple(dict.fromkeys(busiest)))


def host_bytes_of(plan: ModelPlan) -> tuple[int, int] | None:
    """What the busiest host receives from other hosts, and the most that one lacks, each byte once; None without.

    A host is all that the levels below the outermost join.
    """
    network = network_of(plan)
    if network is None or not network.levels:
        return None
    level = len(network.levels) - 1
    hosts = network.hosts_of(level, np.arange(plan.world))
    received, lacking = np.zeros((2, network.hosts(level)), dtype=np.int64)
    senders, receivers, amounts = plan.traffic
    crosses = hosts[senders] != hosts[receivers]
    np.add.at(received, hosts[receivers[crosses]], amounts[crosses])
    for group in plan.groups:
        _add_lacking(lacking, hosts, group)
    return int(received.max(initial=0)), int(lacking.max(initial=0))


def _add_lacking(lacking: Positions, hosts: Positions, group: TensorGroup) -> None:
    """Add what hosts lack of the tensors of a group."""
    moves, size = group.moves, len(group.members) * group.wire.itemsize
    holding = {
        (base, host) for base, host in zip(moves.base.tolist(), hosts[group.source.devices].tolist(), strict=True)
    }
    rows = np.flatnonzero(~moves.stays)
    table = moves.table
    bases = moves.base[table.senders[rows]]
    places = hosts[group.target.devices[table.receivers[rows]]]
    keys = np.concatenate([[bases, places], table.starts[:, rows], table.stops[:, rows]])
    _, once = np.unique(keys, axis=1, return_index=True)
    for row in once.tolist():
        if (int(bases[row]), int(places[row])) not in holding:
            lacking[places[row]] += int(table.elements[rows[row]]) * size
