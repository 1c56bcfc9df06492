# %% [markdown]
# # A plan for a compiler or a runtime
#
# A plan is a value: Python objects, JSON that is checked when it is read, MLIR, and every device's pieces.

# %%
import json

import reshard as rs

mesh = rs.Mesh.of(x=2, y=4)
source, target = rs.parse_sharding('[{"y"}, {}]', mesh), rs.parse_sharding('[{"x"}, {"y"}]', mesh)
plan = rs.plan(source, target, (8, 8), "float32")

# %% [markdown]
# What one device receives: from whom, which box, in which round.

# %%
exchange = plan.steps[0].moves[0].exchange
for piece in exchange.incoming(5):
    print(f"round {piece.round}: {piece.box} from device {piece.sender}")

# %% [markdown]
# The same by every device at once, as a table of columns.

# %%
table = exchange.table()
print(len(table.senders), "pieces in", exchange.rounds, "rounds")

# %% [markdown]
# As JSON, read back and checked; and as collectives of the sdy dialect, for a compiler that has no exchange.

# %%
text = plan.to_json()
assert rs.Plan.from_json(text) == plan
print(sorted(json.loads(text)))
print(rs.plan(source, target, (8, 8), "float32", basis="collectives").to_mlir("sdy"))
