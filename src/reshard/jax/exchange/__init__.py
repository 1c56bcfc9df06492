"""Arrays of JAX moved by plans, eager and traced.

resharding.py   `reshard`: what is asked for, and on which mesh
primitive.py    the reshard as a linear operation: derivatives, batches, asking XLA for the source
lowering.py     a plan as what one device does: collectives of groups
rounds.py       any other exchange: rounds of permutations
across.py       to other devices, and other orders of devices
"""
