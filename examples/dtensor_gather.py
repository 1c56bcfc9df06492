# %% [markdown]
# # A DTensor that gathers, and the plan that does not
#
# A DTensor goes from `(Shard(0), Shard(1))` to `(Shard(1), Shard(0))` on a mesh of 2 × 4 ranks.
# Going axis by axis, a rank gathers what it then cuts away; a plan moves each rank what it lacks.

# %%
import numpy as np

import reshard as rs

mesh = rs.Mesh.of(dp=2, tp=4)
source = rs.parse_sharding("(Shard(dim=0), Shard(dim=1))", mesh, 2)
target = rs.parse_sharding("(Shard(dim=1), Shard(dim=0))", mesh, 2)

# %%
plan = rs.plan(source, target, (4096, 4096), "bfloat16")
print(plan)

# %% [markdown]
# What else would do, and what each receives on the busiest rank.

# %%
for way in (plan, *rs.alternatives(plan)):
    print([step.kind for step in way.steps], way.received_bytes)
assert plan.received_bytes == plan.lower_bound_bytes

# %% [markdown]
# In a program of ranks the same is one call, `rs.torch.redistribute(x, [Shard(1), Shard(0)])`, and with
# `rs.torch.install()` DTensor's own redistribution goes so.
# Here the tiles of all ranks lie in one process, to see that each arrives.

# %%
array = np.arange(64, dtype="float32").reshape(8, 8)
small = rs.plan(source, target, (8, 8), "float32")
moved = rs.numpy.run(small, rs.numpy.scatter(array, source))
right = [(moved[rank] == array[tuple(slice(*ends) for ends in target.box(rank, (8, 8)))]).all() for rank in moved]
print(f"{sum(right)} of {len(right)} ranks have their tile, value by value")
assert all(right)
