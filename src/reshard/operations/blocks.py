"""Blocks of a program: what runs often, or only where a number says so.

    loop     its operations run in every turn: as often as its trip count says, or, without one, as long as its test
             is true
    choice   holds branches, of which a number picks one; all devices have the number, so they meet in the same branch
    branch   its operations run where it is picked

A program is one list of operations, so that whatever goes over all of them needs to know nothing of blocks; each
operation names the block in which it stands, and a block the one around it.
Inside, values from around a block are read as they are.
What changes from turn to turn goes in and out by operations of their own, the *ends* of the block, which stand in it:

    carry (start)               what a turn begins with: at first `start`, then what the turn before gave back
    element (whole)             what a turn takes of a value: its part at the number of the turn, in dim 0
    last (after, carry)         what the loop gives back of a carry: what `after` is in the last turn
    stack (value)               what the turns have made, one after another in a new dim 0
    test (number)               whether there is a turn, asked before each of what it would begin with
    chosen (number, a, b, ...)  what the branch of that number has made: `a` of the first, `b` of the next

By hand, what stands in a loop of 4 turns in a loop of 3 is done 12 times, and what it gives back is made 3 times.

>>> outer = Loop(0, None, 3)
>>> inner = Loop(1, outer, 4)
>>> trip_count(inner), trip_count(inner.parent), inner in around(inner)
(12, 3, True)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Loop:
    """What runs turn after turn."""

    number: int
    """Which of the blocks of its program it is."""
    parent: Loop | Branch | None
    """The block in which it stands."""
    trip_count: int | None
    """How often it runs; None where only a run tells."""
    reverse: bool = False
    """Whether it takes elements from the last to the first, and stacks so."""
    unroll: int = 1
    """How many turns a compiler is to write one after another."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Branches of which a number picks one, and the ends that say what comes out."""

    number: int
    """Which of the blocks of its program it is."""
    parent: Loop | Branch | None
    """The block in which it stands."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What runs where it is picked."""

    parent: Choice
    place: int
    """The number that picks it."""


Block = Loop | Choice | Branch


def around(block: Block | None) -> Iterator[Block]:
    """The block and those around it, innermost first."""
    while block is not None:
        yield block
        block = block.parent


@lru_cache(1024)
def trip_count(block: Block | None) -> int:
    """How often what stands in a block is done; of a loop of unknown length, and of a branch, as if once."""
    if block is None:
        return 1
    times = block.trip_count if isinstance(block, Loop) else None
    return trip_count(block.parent) * (1 if times is None else times)
