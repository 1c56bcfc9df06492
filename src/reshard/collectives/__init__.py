"""Chains in a basis, for those who cannot run a free exchange: a compiler's collectives, or one mesh axis at a time.

    fewest_bytes.py  the cheapest chain of named collectives
    one_axis.py      the basis of one mesh axis at a time

What the two search with:

    cheapest_way.py  the search itself
    frame.py         the digits of the devices that two shardings are searched on
    states.py        shardings as digits, and what a collective makes of them
    weak.py          distances between numbers of parts
    labelled.py      the search from both ends
    meeting.py       two chains put together
    listed.py        the search with every sharding listed

**Why apart from the planner.** The planner compares a few chains whose costs are known; here there are many, and none
is known to be best before all that are cheaper at the outset have been looked at.
**Why two bases.** Portable collectives move several axes at once, and what Shardy or MLIR can say is made of them;
one axis at a time is what the MLIR document states, whose chains are shorter to explain and receive more.
**Why three searches.** With digits of one size a chain needs one Permute at most and may be searched from both ends
among states without names (`labelled`); with several sizes two may be needed, and every sharding is told apart
(`listed`); one axis at a time has few enough states for the plain search.
All three are led by the same distances (`weak`).

By hand, 4 x 4 bytes over x=2, y=2, rows cut by both to columns cut by both: one all-to-all of both axes brings every
device 3/4 of its 4 bytes.
One axis at a time y goes first, and x, which then comes after it, has to change places with it.

>>> from reshard.collectives.fewest_bytes import fewest_bytes_chain
>>> from reshard.collectives.one_axis import one_axis_chain
>>> from reshard.mesh import Mesh
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2, y=2)
>>> reshard = Reshard.of(Sharding.of(mesh, ("x", "y"), None), Sharding.of(mesh, None, ("x", "y")), (4, 4), "int8")
>>> for chain in (fewest_bytes_chain(reshard)[0], one_axis_chain(reshard)):
...     print(*(f"{step.kind} to {step.after.text()}, {step.total_received_bytes} B" for step in chain), sep="; ")
AllToAll to [{}, {"x", "y"}], 12 B
AllToAll to [{"x"}, {"y"}], 8 B; AllToAll to [{}, {"y", "x"}], 8 B; Permute to [{}, {"x", "y"}], 8 B
"""
