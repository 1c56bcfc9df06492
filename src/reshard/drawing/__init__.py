"""What pages and notebooks show: markup that is escaped where it is made, charts, a tensor's frame, the page itself.

    markup.py        elements of HTML and SVG; text in them cannot become markup
    palette.py       colours that are told apart by all who see colours differently
    tensor_frame.py  where a box of a tensor of any rank lies in a drawing of two dims
    held_tiles.py    a tensor with the devices that hold its tiles; devices in rows
    charts.py        bars, points, a matrix, a treemap, arcs: static SVG
    graph.py         operations in a table, with curves from who makes a value to who takes it
    packing.py       columns of small integers as text that a browser unpacks
    shell.py         one file with its style, its script and its data, which asks nothing of any network
    notebooks.py     what a notebook shows of a value
    assets/          the style and the scripts; the browser runs them as they stand

Nothing here knows a sharding: the page of a plan lies with plans, that of a placement with programs, and so on.

Charts are drawn here and not by a library of charts.
Such a library compiles its specs in the browser, for which a page must allow `unsafe-eval`; here a page forbids all
but its own script, named by its hash, so that text out of a log can run nothing even if it were not escaped.
And a chart that is SVG already is there without a script: in print, in a notebook on GitHub, in a test.
"""
