"""Programs: shardings carried from a few annotations through everything.

graph.py        values and operations, to be read
builder.py      how they are added
open_blocks.py  loops and choices, while they stand open
program.py      a program under construction, with a verb for each operation that needs one
fixpoint.py     the fixed point, priority by priority
conflicts.py    the shardings that a value may have, and the choice among them by price
search.py       which of these are tried, one axis of the mesh at a time
elimination.py  the choice with the least sum of costs
sharing.py      what is saved where several operations share a reshard
placement.py    a program once it is placed: reshards inserted and shared, reductions deferred, figures, table
running.py      the one way through a placed program, for every engine
text.py         the text form
"""

from reshard.operations.operation import Operation, Value
from reshard.propagation.placement import Placement
from reshard.propagation.program import Program

__all__ = ["Operation", "Placement", "Program", "Value"]
