"""A doctor for what XLA prints: the collectives of a program, the reshards that they are for, and what those need.

Texts in, a `Report` out; no compiler and no engine is needed to read them.

    reshards.py     what a text before partitioning asks for
    figures.py      a reshard with the plan's figures
    joining.py      reshards with what is sent for them
    report.py       all that is found
    sections.py     a report to read
    dumps.py        files, dump folders, standard input

>>> report = inspect_texts([("p", '''HloModule p, num_partitions=4
... ENTRY %e (p: f32[2,8]) -> f32[8,8] {
...   %p = f32[2,8]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}
...   ROOT %g = f32[8,8]{1,0} all-gather(%p), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true
... }''')])
>>> [(one.kind, one.group_size, one.received_bytes) for one in report.collectives]
[('all-gather', 4, 192)]
"""

from __future__ import annotations

from reshard.xla.report.dumps import inspect_paths
from reshard.xla.report.joining import End, Ends
from reshard.xla.report.report import Report, inspect_texts

__all__ = ["End", "Ends", "Report", "inspect_paths", "inspect_texts"]
