"""Einsums of JAX's arrays by plans.

einsum.py             `einsum`: what is asked for, and on which mesh
einsum_primitive.py   the einsum as an operation: derivatives, batches
local.py              the plan of an einsum as what one device does
overlap.py            a gather or a reduce-scatter in rounds beside parts of the product

An einsum is one operation and not reshards around JAX's own, for its plan chooses what moves together with where it
is computed; and its gradient is again an einsum, planned anew, where the gradient of reshards would lead back the
same way.

By hand, on y=4: `ij,jk->ik` of 8 x 8 matrices that are both cut along j is a product of 8 x 2 by 2 x 8 on each
device, whose sums of 8 x 8 are scattered along i: 3 x 2 x 8 x 4 = 192 bytes are received, in one collective, or in
two rounds beside the product.

>>> from reshard.contraction import einsum
>>> from reshard.jax.contraction.overlap import ring_of
>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(y=4)
>>> ends = Sharding.of(mesh, None, "y"), Sharding.of(mesh, "y", None)
>>> plan = einsum("ij,jk->ik", *ends, shapes=[(8, 8), (8, 8)], dtype="f32", target=Sharding.of(mesh, "y", None))
>>> plan.received_bytes, [step.kind for step in plan.output.steps]
(192, ['ReduceScatter'])
>>> ring = ring_of(plan, plan.plans, overlap=True)
>>> ring.label, ring.size, ring.rounds
('i', 4, 2)
"""
