"""What a program asks for, what is sent for it, and what that should have cost.

placing.py      where the values of a text before partitioning lie
reshards.py     which of them are wanted elsewhere: what such a text asks for
flows.py        what a partitioned module sends, from where to where
sums.py         its all-reduces, and what is made of them
figures.py      a reshard with the plan's figures
joining.py      what is asked for, what is sent, and what the log warns about, brought together
report.py       all that is found in texts that belong together
sections.py     a report to read
operation_rows.py  the operations of a module with what was found there
two_reports.py  two reports side by side
findings_page.py  a report as a page
dumps.py        files, dump folders, standard input

Before partitioning a text has shardings and no collectives, after it collectives and no shardings.
So neither tells alone what a reshard costs; they are joined by the sizes of tiles, which both have.

By hand: the result of a program on 4 devices is whole on each, 8 x 8 floats, and its parameter was 2 rows on each, so
every device receives the 3 x 2 x 8 x 4 = 192 bytes that it lacks.

>>> report = inspect_texts([("p", '''HloModule p, num_partitions=4
... ENTRY %e (p: f32[2,8]) -> f32[8,8] {
...   %p = f32[2,8]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}
...   ROOT %g = f32[8,8]{1,0} all-gather(%p), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true
... }''')])
>>> [(each.kind, each.group_size, each.received_bytes) for each in report.collectives]
[('all-gather', 4, 192)]
"""

from __future__ import annotations

from reshard.xla.report.dumps import inspect_dump, inspect_paths
from reshard.xla.report.joining import ProgramEnd, ProgramEnds
from reshard.xla.report.report import Report, inspect_texts

__all__ = ["ProgramEnd", "ProgramEnds", "Report", "inspect_dump", "inspect_paths", "inspect_texts"]
