"""What pages and notebooks show: markup that is escaped where it is made, charts, a tensor's frame, the page itself.

    markup.py        elements of HTML and SVG; text in them cannot become markup
    palette.py       colours that are told apart by all who see colours differently
    tensor_frame.py  where a box of a tensor of any rank lies in a drawing of two dims
    held_tiles.py    a tensor with the devices that hold its tiles; devices in rows
    charts.py        bars, points, a matrix, a treemap, arcs: static SVG
    operation_graph.py  operations in a table, with curves from who makes a value to who takes it
    packing.py       columns of small integers as text that a browser unpacks
    shell.py         one file with its style, its script and its data, which asks nothing of any network
    notebooks.py     what a notebook shows of a value
    assets/          the style and the scripts; the browser runs them as they stand

Nothing here knows a sharding: the page of a plan lies with plans, that of a placement with programs, and so on.

Charts are drawn here and not by a library of charts, for a notebook on GitHub and a printed page need them as static
SVG in any case, and beside that a library would be a second drawing of the same figures.
Measured with Vega 6.2 as vl-convert 1.9 ships it (a wheel of 34 MB, 84 installed): its bundle adds 898 kB to each page;
under the policy of `shell.py` it draws nothing, since it compiles its specs to code, or, with its interpreter (`ast`),
without `unsafe-eval` and in half a second for one chart of 64 bars; the static SVG that it writes for those is 34 kB
and takes 4 s for the first chart of a process, where the one drawn here is 8 kB.
"""
