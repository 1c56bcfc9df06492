"""Programs from functions of JAX: jaxprs, equation by equation.

functions.py     `trace`: a program from a function, through calls
control_flow.py  loops and choices
effects.py       what happens once for all devices
emitter.py       an operation of it, with what one device does
equations.py     a rule per primitive
evaluation.py    what an equation makes of arrays
indexed.py       gathers and scatters
products.py      products of two tensors
regions.py       what devices do by themselves, in a shard_map
sampling.py      random numbers, each where it is needed
slices.py        slices at a place, single elements
ragged.py        products of rows with operands of their groups
rearranging.py   transposes, reshapes, slices, and what puts tensors together
windows.py       convolutions, and what else goes over a tensor with a window
bands/           attention in a window, by its mask: of scores a band
"""
