"""Programs: shardings carried from a few annotations through everything.

graph.py        values and operations, to be read
builder.py      how they are added
open_blocks.py  loops and choices, while they stand open
merging.py      what runs along a dim, in blocks
handing_on.py   what comes before each block, from device to device
program.py      a program under construction, with a verb for each operation that needs one
fixpoint.py     the fixed point, priority by priority
space.py        how every value may be kept, and how every operation may be computed
domains.py      which of these every value may have
borders.py      what is read beyond the edges of tiles, among these
model.py        the program as one optimisation: what each pair of these costs
ties.py         which operations are alike, so that a hundred layers are placed as one
dual.py         what no choice costs less than, and a choice to begin with
lower_bound.py  a bound that is found when somebody asks
descent.py      a choice made better, with reshards shared
solution.py     a choice in shardings and compute layouts, and what it pays for
optimum.py      the choice: begun, improved, and its reshards asked of the planner
orders.py       einsums of many operands, two at a time
settling.py     single operations looked at again among all layouts
explicit.py     the choice made explicit: reshards inserted and shared, reductions deferred
placement.py    a program once it is placed: its figures, its table
memory.py       what a device holds when
rents.py        what it costs to hold values where a device holds too much
recipes.py      where people begin who choose a layout by hand
search.py       placed under a limit on memory; the best few layouts
whole_sums.py   small sums made whole, where collectives are then fewer
own_parts.py    parts of what is made of little, made by themselves
running.py      the one way through a placed program, for every engine
text.py         the text form
"""

from reshard.operations.operation import Operation, Value
from reshard.propagation.placement import Placement
from reshard.propagation.program import Program
from reshard.propagation.search import Shortlist

__all__ = ["Operation", "Placement", "Program", "Shortlist", "Value"]
