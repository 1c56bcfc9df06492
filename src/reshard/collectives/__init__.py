"""Chains in a basis: named collectives alone, or one axis of the mesh at a time.

    named.py        the cheapest chain of named collectives
    one_axis.py     the basis of one mesh axis at a time

What the two search with:

    frame.py        the digits of the devices that two shardings are searched on
    states.py       shardings as digits, and what a collective makes of them
    weak.py         distances between numbers of parts
    labelled.py     the search from both ends
    meeting.py      two chains put together
    listed.py       the search with every sharding listed
"""
