"""What XLA prints and does, read without XLA.

read/           text to modules, collectives and shardings
report/         what was found, and what it should have cost
partitioner/    the branches of XLA's own partitioner
"""
