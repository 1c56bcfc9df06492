"""A doctor for what XLA prints: the collectives of a program, the reshards that they are for, and what those need.

Texts in, a `Report` out; no compiler and no engine is needed to read them.

    scan.py         brackets and commas
    ir.py           modules, computations, instructions: what both readers make
    text.py         HLO
    stablehlo.py    lowered modules
    logs.py         warnings of the partitioner
    reading.py      a text that may hold any of them, whole or cut
    groups.py       the spellings of `replica_groups`
    loops.py        how often a computation runs
    collectives.py  every collective, and totals
    shardings.py    both ends of a reshard on one mesh, and the call that does it
    placing.py      where the values of a text before partitioning lie
    reshards.py     what a text before partitioning asks for
    flows.py        what a partitioned module sends, from where to where
    figures.py      a reshard with the plan's figures
    joining.py      reshards with what is sent for them
    report.py       all that is found
    table.py        a report to read
    inputs.py       files, dump folders, standard input

>>> report = inspect_texts([("p", '''HloModule p, num_partitions=4
... ENTRY %e (p: f32[2,8]) -> f32[8,8] {
...   %p = f32[2,8]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}
...   ROOT %g = f32[8,8]{1,0} all-gather(%p), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true
... }''')])
>>> [(one.kind, one.group_size, one.received_bytes) for one in report.collectives]
[('all-gather', 4, 192)]
"""

from __future__ import annotations

from reshard.hlo.inputs import inspect_paths
from reshard.hlo.joining import End, Ends
from reshard.hlo.report import Report, inspect_texts

__all__ = ["End", "Ends", "Report", "inspect_paths", "inspect_texts"]
