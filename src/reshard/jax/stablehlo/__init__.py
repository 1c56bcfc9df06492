"""Programs from elsewhere: StableHLO text with the annotations of the sdy dialect.

modules.py            `program_of`: a module, its functions and what it says about shardings
translated_hlo.py     text of HLO as StableHLO, and the shardings that HLO says
loops_and_choices.py  loops and branches
opaque_calls.py       what is not looked into: custom calls, manual computations
lowered_functions.py  an operation of StableHLO as a function of JAX
sorts.py              by which operands a sort goes
mlir_attributes.py    what operations say beside their operands

MLIR's own parser reads and verifies the text.
An operation becomes the function of JAX that lowers to it, and that function's jaxpr goes by the rules of
`reshard.jax.tracing`, so there is one rule for an operation, traced or read.
"""
