"""Einsums of JAX's arrays by plans.

einsum.py             `einsum`: what is asked for, and on which mesh
einsum_primitive.py   the einsum as an operation: derivatives, batches
local.py              the plan of an einsum as what one device does
overlap.py            a gather or a reduce-scatter in rounds beside parts of the product
"""
