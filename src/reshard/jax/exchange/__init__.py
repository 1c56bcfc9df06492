"""Arrays of JAX moved by plans, eager and traced.

resharding.py   `reshard`: what is asked for; arrays that are there
traced.py       arrays of programs: on which mesh, from where, to where
whole_plans.py  `run`: a plan that was made before
primitive.py    the reshard as a linear operation: derivatives, batches, asking XLA for the source
lowering.py     a plan as what one device does
in_groups.py    moves in which every device keeps its place: collectives of groups
permutations.py  any other exchange: which boxes go in which round
rounds.py       rounds of permutations: cut, sent, put
chunked.py      any exchange under a memory limit: loops of chunks
device.py       the device that runs a program, and what it looks up by its place
joint.py        the collectives of several plans at once, which go as one where they are alike
across.py       to other devices, and other orders of devices

Why three ways: a collective of groups is one message for a compiler to schedule, but every device must be its own
sender; rounds do any exchange between the devices of one program, a launch each; and no program of XLA holds the
devices of two meshes, so between those the pieces are cut, sent and joined one by one.
All three send the pieces of the plan and nothing else.

By hand, on y=4: of an 8 x 8 tensor cut along dim 0 every device holds 2 x 8, and along dim 1 it needs 8 x 2.
The devices that differ in y, all four, send each other 2 x 2: an all-to-all of one group.
Where x=2, y=3 change places no device keeps its own part of the axes, and there are rounds.

>>> from reshard.mesh import Mesh
>>> from reshard.planner import plan
>>> from reshard.sharding import Sharding
>>> from reshard.jax.exchange.permutations import rounds_of
>>> line, grid = Mesh.of(y=4), Mesh.of(x=2, y=3)
>>> [step.kind for step in plan(Sharding.of(line, "y", None), Sharding.of(line, None, "y"), (8, 8), "f32").steps]
['AllToAll']
>>> exchange, = plan(Sharding.of(grid, "x", "y"), Sharding.of(grid, "y", "x"), (6, 6), "f32").steps
>>> [each.shape for each in rounds_of(exchange.moves[0].exchange) if not each.is_local]
[(1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1)]
"""
