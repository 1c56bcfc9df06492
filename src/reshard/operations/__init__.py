"""What an operation is: its pattern, what the pattern says about shardings, and what it computes.

pattern.py      einsum-like patterns with grouped labels
operation.py    a value, and the operation that makes it
rules.py        what a pattern says about shardings
projection.py   from the axes of a dim to those of its labels, and back
reshapes.py     the pattern of a reshape
"""
