"""Going through what values are made of, however deep a program is.

A function that asks for what is known of a value's sources, and so on, goes as deep as the program has layers, and
Python does not.
So the values are visited one by one, each after its sources.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)


def sources_first(item: Item, known: Container[Item], sources_of: Callable[[Item], Iterable[Item]]) -> Iterator[Item]:
    """What an item is made of and then it itself, each after its sources, but for what is known by then.

    Args:
        item: which is asked for.
        known: what needs no visit; an item must be in it before the next is asked for.
        sources_of: the items of which one is made; none is made of itself.

    >>> sources, known = {"sum": ["x", "square"], "square": ["x"], "x": []}, []
    >>> for name in sources_first("sum", known, sources.__getitem__):
    ...     known.append(name)
    >>> known
    ['x', 'square', 'sum']
    """
    waiting = [item]
    while waiting:
        lacking = [] if waiting[-1] in known else [each for each in sources_of(waiting[-1]) if each not in known]
        if lacking:
            waiting += lacking
        elif waiting[-1] in known:
            waiting.pop()
        else:
            yield waiting.pop()
