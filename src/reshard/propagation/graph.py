"""A program to be read: its values, the operations that make them, and what stands in which block.

Operations stand in one list, since propagation, placement and prices go over all of them and ask of a block only how
often it runs; what goes by blocks, the text and the engines, reads the list as `bodies`.

By hand, of three operations of which the second stands in a loop, the outermost body has the first, the loop and the
third.

>>> from reshard.propagation.program import Program
>>> program = Program.parse('''
... sdy.mesh @mesh = <["x"=2]>
... a = input : float32[4]
... loop 3 {
...   b = exp "i->i" (a)
... }
... c = output (a)
... ''')
>>> [type(item).__name__ for item in bodies(program.operations)[None]]
['Operation', 'Loop', 'Operation']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reshard.checks import expect, shown
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.operations.blocks import Block, Branch, Choice, around
from reshard.operations.operation import Operation, Value


class Graph:
    """Values and operations, to be read."""

    meshes: Mapping[str, Mesh]
    operations: Sequence[Operation]
    """In the order in which they run: the operation at place n makes the value with number n."""
    without_rule: Counter[str]
    """How often each primitive stands in it that no rule knows; its operands are whole on every device."""
    ties: Sequence[tuple[Value, Value]] = ()
    """Values that are sharded alike."""
    signature: Any
    """What the engine that it came from knows of its arguments and its results; None for one after another."""

    @property
    def mesh(self) -> Mesh:
        """The first mesh: that of values of which nothing else tells."""
        return next(iter(self.meshes.values()))

    @property
    def values(self) -> list[Value]:
        """All values, in the order in which they are made."""
        return [operation.result for operation in self.operations]

    @property
    def inputs(self) -> list[Value]:
        """The values that are given to the program."""
        return [operation.result for operation in self.operations if operation.name == "input"]

    @property
    def outputs(self) -> list[Value]:
        """The values that it gives back."""
        return [operation.result for operation in self.operations if operation.name == "output"]

    @staticmethod
    def named(name: str, values: Mapping[str, Value]) -> Value:
        """The value of a name.

        Raises:
            ReshardError: `bad-program` where there is none.
        """
        if expect(name, str, "the name of a value") not in values:
            raise ReshardError("bad-program", f"there is no value {shown(name)} in the program")
        return values[name]


def bodies(operations: Sequence[Operation]) -> dict[Block | None, list[Operation | Block]]:
    """Per block what stands in it, in the order in which it runs; a block within stands where it is whole."""
    whole_with = {block: operation for operation in operations for block in around(operation.block)}
    inside: dict[Block | None, list[Operation | Block]] = {None: []}
    branches: dict[Choice, int] = {}
    for operation in operations:
        inside.setdefault(operation.block, []).append(operation)
        if isinstance(operation.block, Choice):
            branches[operation.block] = len(operation.operands) - 1
        for block in around(operation.block):
            if whole_with[block] is operation and not isinstance(block, Branch):
                inside.setdefault(block.parent, []).append(block)
    for choice, count in branches.items():  # of which some may be empty
        inside[choice] = [*(Branch(choice, place) for place in range(count)), *inside[choice]]
    return inside


def first_alike(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Per number the first of those that it is alike with, by way of others too.

    >>> first_alike(5, [(3, 1), (4, 3)])
    [0, 1, 2, 1, 1]
    """
    firsts = list(range(count))

    def first_of(number: int) -> int:
        while firsts[number] != number:
            firsts[number] = number = firsts[firsts[number]]
        return number

    for one, other in pairs:
        first, second = first_of(one), first_of(other)
        firsts[max(first, second)] = min(first, second)
    return [first_of(number) for number in range(count)]
