"""What an operation is: its pattern, what the pattern says about shardings, and what it computes.

pattern.py      einsum-like patterns with grouped labels
projection.py   from the axes of a dim to those of its labels, and back
reshapes.py     the pattern of a reshape
"""
