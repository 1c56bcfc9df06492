"""Networks that devices are on, and what steps cost there.

level.py        a digit of the device number and the links along it
formulas.py     collectives on levels, in closed form
presets.py      networks by name
calibration.py  latency and bandwidth from timings
numbers.py      digits of positions as digits of device numbers
networks.py     `Network`
nested.py       a network as axes divide it that do not nest in its levels
half_round.py   how what goes half round rings parts
traffic.py      what an exchange puts on every level
digit_loads.py  the same from digits alone
patterns.py     exchanges by digits without names and sizes
link_use.py     how long what is sent in them keeps links busy
pricing.py      seconds of steps
inflow.py       how fast data come into groups of devices
crossing.py     bytes that must come into some devices, or leave them
dim_crossing.py  the same dim by dim
products.py     products of tables, for both and for pieces that differ in size
least_time.py   the least time of any plan, and the cut that proves it
combining.py    and where values are combined, the transfers that do
hosts.py        bytes that come into hosts, and must

>>> print(Network.preset("tpu-v5e-4x4"))
tpu-v5e-4x4: 16 devices
level 0  line of 4, 45 GB/s, 1 us
level 1  line of 4, 45 GB/s, 1 us
"""

from __future__ import annotations

from reshard.network.calibration import Calibration, LevelFit
from reshard.network.combining import Transfers, least_seconds, least_transfers
from reshard.network.hosts import host_bound, host_bytes
from reshard.network.least_time import Cut, best_common_cut, best_cut
from reshard.network.level import LINKS, Level
from reshard.network.link_use import busy_along, least_busy, unnamed, use_of_pattern, use_of_rings
from reshard.network.nested import nested
from reshard.network.networks import Network, check_reach
from reshard.network.parts_under_way import FOLLOWED, spans_of_uses
from reshard.network.presets import FAMILIES
from reshard.network.pricing import (
    busy_seconds,
    exchange_seconds,
    forget_steps,
    listed_pieces,
    overlapped_seconds,
    overlapped_spans,
    seconds_of,
    use_at_most,
    uses_of,
)
from reshard.network.use import Use

__all__ = [
    "FAMILIES",
    "FOLLOWED",
    "LINKS",
    "Calibration",
    "Cut",
    "Level",
    "LevelFit",
    "Network",
    "Transfers",
    "Use",
    "best_common_cut",
    "best_cut",
    "busy_along",
    "busy_seconds",
    "check_reach",
    "exchange_seconds",
    "forget_steps",
    "host_bound",
    "host_bytes",
    "least_busy",
    "least_seconds",
    "least_transfers",
    "listed_pieces",
    "nested",
    "overlapped_seconds",
    "overlapped_spans",
    "seconds_of",
    "spans_of_uses",
    "unnamed",
    "use_at_most",
    "use_of_pattern",
    "use_of_rings",
    "uses_of",
]
