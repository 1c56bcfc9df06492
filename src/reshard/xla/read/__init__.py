"""What XLA prints, taken apart: modules and their collectives, and the warnings of a log.

scan.py             brackets and commas
ir.py               modules, computations, instructions: what both readers make
hlo.py              HLO
stablehlo.py        lowered modules
logs.py             warnings of the partitioner
reading.py          a text that may hold any of them, whole or cut
replica_groups.py   the spellings of `replica_groups`
loops.py            how often a computation runs
collectives.py      every collective, and totals
shardings.py        the shardings that a text names, two of them on one mesh

Both forms go line by line and not through a grammar: a printer puts one instruction on a line, so a line that is
damaged or cut costs itself alone, and a text of a million lines is read in one pass.

By hand: 4 devices hold 2 rows each of 8 x 8 floats, and a loop of 7 trips gathers them, so each device receives
3 x 2 x 8 x 4 = 192 bytes, 7 times.

>>> from reshard.xla.read.collectives import find_collectives, totals
>>> from reshard.xla.read.reading import read_text
>>> module, = read_text('''HloModule m, num_partitions=4
... %body (p: f32[2,8]) -> f32[2,8] {
...   %p = f32[2,8] parameter(0)
...   %g = f32[8,8] all-gather(%p), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true
...   ROOT %s = f32[2,8] slice(%g), slice={[0:2], [0:8]}
... }
... ENTRY %e (x: f32[2,8]) -> f32[2,8] {
...   %x = f32[2,8] parameter(0)
...   ROOT %w = f32[2,8] while(%x), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"7"}}
... }''').modules
>>> gather, = find_collectives(module)
>>> gather.name, gather.group_size, gather.received_bytes, gather.executions
('g', 4, 192, 7)
>>> [(total.kind, total.received_bytes) for total in totals([gather])]
[('all-gather', 1344)]
"""
