"""What an operation is: its pattern, its kind, what both say about shardings, and what one device computes.

An operation is a pattern and a name. The pattern says which dims of the operands and of the result run over the same
index, the name what is done there, by a row in the table of kinds.
Labels in groups are why a reshape needs no rule of its own: a dim of a tensor may be several labels, each of which can
be sharded by itself.

By hand, `(a b) c -> a (b c)` of shape (6, 5) with a = 2, on two devices: a device with a = 1 has rows 3 to 5 of six,
as a tile of 3 by 5; seen by labels that is 1, 3, 5, and in the result it is row 1, of 15. Nothing moves.

To add an operation, give it a row in `kinds.py` and, if it computes with elements, a function in the `verbs.py` of
each engine; `tests/test_operations.py` then asks for what it should make.

kinds.py         every operation by its name
pattern.py       einsum-like patterns with grouped labels
operation.py     a value, and the operation that makes it
blocks.py        loops, choices and branches
attributes.py    what the attributes of an operation must be
rules.py         what an operation says about shardings
projection.py    from the axes of a dim to those of its labels, and back
reshapes.py      the pattern of a reshape
gradient.py      what flows back through an einsum
interpreter.py   the tile of a result from the tiles of its operands, on any engine
"""
