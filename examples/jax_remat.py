# %% [markdown]
# # A warning of XLA, and the call that answers it
#
# A log says "Involuntary full rematerialization": XLA gathers a whole tensor to change its sharding.
# Which reshard is it, what would it have to cost, and what does one call in its place cost?

# %%
import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np

import reshard as rs

# %%
devices = jax.make_mesh((4, 2), ("x", "y"), devices=jax.devices()[:8])
x = jax.device_put(np.ones((16, 16, 16), "float32"), jax.NamedSharding(devices, jax.P("y", None, "x")))
wanted = jax.P(None, ("x", "y"), None)

# %% [markdown]
# What the change must cost, before anything runs: the bytes that a device lacks.

# %%
plan = rs.plan(x, wanted)
print(plan)

# %% [markdown]
# What the compiled program receives with the call in place of `with_sharding_constraint`.


# %%
@jax.jit
def step(x: jax.Array) -> jax.Array:
    """Use the array in its new sharding."""
    return rs.jax.reshard(x, wanted) * 2


report = rs.jax.inspect(step.lower(x).compile())
for collective in report.collectives:
    print(collective.kind, collective.received_bytes, "bytes")
assert sum(collective.received_bytes for collective in report.collectives) == plan.lower_bound_bytes
assert step(x).sharding.spec == wanted
