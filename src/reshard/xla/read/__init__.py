"""What XLA prints, taken apart: modules, collectives, warnings, and where values lie.

scan.py             brackets and commas
ir.py               modules, computations, instructions: what both readers make
hlo.py              HLO
stablehlo.py        lowered modules
logs.py             warnings of the partitioner
reading.py          a text that may hold any of them, whole or cut
replica_groups.py   the spellings of `replica_groups`
loops.py            how often a computation runs
collectives.py      every collective, and totals
shardings.py        both ends of a reshard on one mesh, and the call that does it
placing.py          where the values of a text before partitioning lie
flows.py            what a partitioned module sends, from where to where
"""
