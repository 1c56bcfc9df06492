# %% [markdown]
# # Choosing a layout on paper
#
# Which layout should weights have, what does it cost to change it, and what does a product cost in it?
# All of it on a described network, before any machine is rented.

# %%
import reshard as rs
from reshard.planner.each_to_each import compare

mesh = rs.Mesh.of(host=2, gpu=8)
layouts = [
    rs.Sharding.of(mesh, ("host", "gpu"), None),
    rs.Sharding.of(mesh, None, ("host", "gpu")),
    rs.Sharding.of(mesh, "host", "gpu"),
    rs.Sharding.of(mesh, None, "gpu"),
]

# %% [markdown]
# Every layout to every other, in bytes and in seconds.

# %%
print(compare(layouts, (8192, 8192), "bfloat16", network="h100-2x8"))

# %% [markdown]
# One change in detail: on a network time decides, and a plan that moves more than it must says so.

# %%
plan = rs.plan(layouts[0], layouts[3], (8192, 8192), "bfloat16", network="h100-2x8")
print(plan)

# %% [markdown]
# A product of activations and weights in these layouts, and the other layouts that it could be computed in.

# %%
activations = rs.Sharding.of(mesh, "host", None)
product = rs.einsum(
    "bd,df->bf", activations, layouts[3], shapes=[(4096, 8192), (8192, 8192)], dtype="bfloat16", network="h100-2x8"
)
print(product)
print(len(rs.alternatives(product)), "other layouts cost more")
