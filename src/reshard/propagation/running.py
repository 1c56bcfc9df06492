"""A placed program, run: the one way through its blocks, for every engine.

An engine says what becomes of the tiles of an operation, and how it runs a loop and a choice; what stands inside is
handed to it as functions of tiles.
Operations that an engine does better together, such as moves between the same devices, wait for each other as long as
none of them is read: then those go together that have what they need, so that nothing waits for more than it would.
A tile is whatever the engine takes for the value of a program: the tiles of all devices, that of one, or what stands
for it while a function is traced.

By hand, an engine whose tiles are numbers runs x -> 2x + 1 three times from 1: 3, 7, 15.

>>> from reshard.propagation.program import Program
>>> program = Program.parse('''
... sdy.mesh @mesh = <["x"=1]>
... start = input : float32[]
... loop 3 {
...   x = carry (start)
...   next = affine "->" (x) {opaque}
...   out = last (next, x)
... }
... end = output (out)
... ''')
>>> class Numbers(Engine):
...     def compute(self, operation, tiles):
...         return 2 * tiles[0] + 1 if operation.name == "affine" else tiles[0]
>>> run(program.propagate(), Numbers(), [1])
{'end': 15}
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

from reshard.operations.blocks import Block, Branch, Choice, Loop, around
from reshard.operations.kinds import ENTERING, LEAVING
from reshard.operations.operation import Operation, Value
from reshard.propagation.graph import bodies
from reshard.propagation.placement import Placement

EngineTile = Any


class Turned(NamedTuple):
    """What a turn of a loop makes."""

    carried: list[EngineTile]
    """What the next turn begins with."""
    stacked: list[EngineTile]
    """What is put together with what the other turns make."""


Turn = Callable[[list[EngineTile], list[EngineTile]], Turned]
"""A turn of a loop, of what is carried into it and of the parts that it takes of the elements."""
Test = Callable[[list[EngineTile]], EngineTile]
"""Whether there is a turn, of what would be carried into it."""


class Engine:
    """What runs programs: operations, and loops and choices in Python, for which it must be able to look at tiles."""

    def compute(self, operation: Operation, tiles: Sequence[EngineTile]) -> EngineTile:
        """The tile of a result from those of the operands; also of a constant, a reshard and an output."""
        raise NotImplementedError

    def joins(self, operation: Operation) -> Hashable | None:
        """What operations have alike that are done together where they can be; None of one that is done by itself."""
        return None

    def is_light(self, operation: Operation) -> bool:
        """Whether an operation may be done before its turn, so that what joins others has what it needs."""
        return False

    def compute_together(
        self, operations: Sequence[Operation], tiles: Sequence[Sequence[EngineTile]]
    ) -> list[EngineTile]:
        """The tiles of the results of operations that join."""
        return [self.compute(*pair) for pair in zip(operations, tiles, strict=True)]

    def number(self, tile: EngineTile) -> int:
        """The one number of a tile."""
        raise NotImplementedError

    def part(self, tile: EngineTile, turn: int) -> EngineTile:
        """A part of dim 0."""
        raise NotImplementedError

    def stacked(self, stack: Operation, tiles: list[EngineTile]) -> EngineTile:
        """Tiles one after another in a new dim 0; there may be none."""
        raise NotImplementedError

    def awaited(self, test: Test, turn: Turn, carried: list[EngineTile]) -> list[EngineTile]:
        """What a loop without a trip count makes of what is carried into it, turn after turn while the test holds."""
        while self.number(test(carried)):
            carried = turn(carried, []).carried
        return carried

    def loop(
        self, loop: Loop, turn: Turn, carried: list[EngineTile], elements: list[EngineTile], stacks: Sequence[Operation]
    ) -> Turned:
        """What a loop with a trip count makes.

        Args:
            loop: how often it runs, and in which order.
            turn: what a turn makes.
            carried: what the first turn begins with.
            elements: the values of which every turn takes its part.
            stacks: the operations that put together what the turns make.
        """
        assert loop.trip_count is not None
        rows: dict[int, list[EngineTile]] = {}
        for number in sorted(range(loop.trip_count), reverse=loop.reverse):
            carried, rows[number] = turn(carried, [self.part(tile, number) for tile in elements])
        in_order = [rows[number] for number in range(loop.trip_count)]
        columns = [[row[place] for row in in_order] for place in range(len(stacks))]
        return Turned(carried, [self.stacked(*pair) for pair in zip(stacks, columns, strict=True)])

    def choice(self, number: EngineTile, branches: Sequence[Callable[[], list[EngineTile]]]) -> list[EngineTile]:
        """What the branch of a number makes."""
        return branches[min(max(self.number(number), 0), len(branches) - 1)]()


def run(placed: Placement, engine: Engine, inputs: Sequence[EngineTile]) -> dict[str, EngineTile]:
    """What a placed program makes of the tiles of its inputs, by name.

    Raises:
        ReshardError: as the engine.
    """
    tiles: dict[Value, EngineTile] = dict(zip(placed.inputs, inputs, strict=True))
    _Run(placed, engine).block(None, tiles)
    return {value.name: tiles[value] for value in placed.outputs}


class _Run:
    """A program and the engine that runs it."""

    def __init__(self, placed: Placement, engine: Engine) -> None:
        self.engine = engine
        self.bodies = bodies(placed.operations)
        self.within: dict[Block, list[Operation]] = {}
        """Per block all operations in it, and in those within."""
        for operation in placed.operations:
            for block in around(operation.block):
                self.within.setdefault(block, []).append(operation)

    def block(
        self, block: Block | None, tiles: dict[Value, EngineTile], body: Sequence[Operation | Block] | None = None
    ) -> None:
        """All that stands in a block, or some of it, but its ends, and outputs last; what is made joins the tiles."""
        body = self.bodies.get(block, ()) if body is None else body
        waiting = _Waiting(self.engine, tiles, [item for item in body if isinstance(item, Operation)])
        for item in body:
            if isinstance(item, Loop | Choice):
                waiting.end(item)
                self.loop(item, tiles) if isinstance(item, Loop) else self.choice(item, tiles)
            elif isinstance(item, Operation) and item.name not in ENTERING | LEAVING | {"input", "output"}:
                if item.result in waiting.operations or item.result in tiles:
                    continue
                for operand in item.operands:
                    waiting.make(operand)
                tiles[item.result] = self.engine.compute(item, _tiles_of(item, tiles))
        waiting.end()
        for output in self.ends(block, "output") if block is None else ():
            tiles[output.result] = self.engine.compute(output, _tiles_of(output, tiles))

    def leading_to(self, loop: Loop, ends: Sequence[Operation], *, is_test: bool) -> list[Operation | Block]:
        """What stands in a loop and is read for some of its ends, or has an effect, before its test or behind it."""
        read, body, is_behind = {operand for end in ends for operand in end.operands}, list[Operation | Block](), True
        for item in reversed(self.bodies.get(loop, ())):
            operations = [item] if isinstance(item, Operation) else self.within.get(item, ())
            is_behind &= all(operation.name != "test" for operation in operations if operation.block == loop)
            acts = is_behind != is_test and any(operation.attribute("effect") for operation in operations)
            if acts or not read.isdisjoint(operation.result for operation in operations):
                read.update(operand for operation in operations for operand in operation.operands)
                body.append(item)
        return body[::-1]

    def ends(self, block: Block | None, name: str) -> list[Operation]:
        """The ends of a block that have a name."""
        return [item for item in self.bodies.get(block, ()) if isinstance(item, Operation) and item.name == name]

    def loop(self, loop: Loop, tiles: dict[Value, EngineTile]) -> None:
        """A loop; what it gives back joins the tiles."""
        carries, elements, lasts, stacks = (self.ends(loop, name) for name in ("carry", "element", "last", "stack"))
        lasts.sort(key=lambda last: last.operands[1].number)
        working = None if loop.trip_count is not None else self.leading_to(loop, lasts, is_test=False)

        def entered(
            carried: list[EngineTile], parts: list[EngineTile], body: Sequence[Operation | Block] | None
        ) -> dict[Value, EngineTile]:
            inside = dict(tiles)
            entering = zip([*carries, *elements], [*carried, *parts], strict=True)
            inside.update((end.result, tile) for end, tile in entering)
            self.block(loop, inside, body)
            return inside

        def turn(carried: list[EngineTile], parts: list[EngineTile]) -> Turned:
            inside = entered(carried, parts, working)
            return Turned(_operands(lasts, inside), _operands(stacks, inside))

        starts = _operands(carries, tiles)
        if loop.trip_count is None:
            (end,) = self.ends(loop, "test")
            asking = self.leading_to(loop, [end], is_test=True)

            def test(carried: list[EngineTile]) -> EngineTile:
                return entered(carried, [], asking)[end.operands[0]]

            turned = Turned(self.engine.awaited(test, turn, starts), [])
        else:
            turned = self.engine.loop(loop, turn, starts, _operands(elements, tiles), stacks)
        leaving = zip([*lasts, *stacks], [*turned.carried, *turned.stacked], strict=True)
        tiles.update((end.result, tile) for end, tile in leaving)

    def choice(self, choice: Choice, tiles: dict[Value, EngineTile]) -> None:
        """A choice; what it gives back joins the tiles."""
        ends = self.ends(choice, "chosen")

        def branch(place: int) -> list[EngineTile]:
            inside = dict(tiles)
            self.block(Branch(choice, place), inside)
            return _operands(ends, inside, 1 + place)

        places = range(len(ends[0].operands) - 1) if ends else ()
        if places:
            chosen = self.engine.choice(tiles[ends[0].operands[0]], [partial(branch, place) for place in places])
            tiles.update((end.result, tile) for end, tile in zip(ends, chosen, strict=True))


class _Waiting:
    """The operations of a block that join others: they are done when the first of them is read, or the block ends.

    A reshard is done with those that have their operands by then, or would have them after light operations, wherever
    they stand; anything else with all that join it, for which reshards that wait are done.
    """

    def __init__(self, engine: Engine, tiles: dict[Value, EngineTile], operations: Sequence[Operation]) -> None:
        self.engine, self.tiles = engine, tiles
        keys = ((operation, engine.joins(operation)) for operation in operations)
        self.operations = {operation.result: (operation, key) for operation, key in keys if key is not None}
        acting = ENTERING | LEAVING | {"input", "output"}
        own = (each for each in operations if each.name not in acting and not each.attribute("effect"))
        self.makers = {operation.result: operation for operation in own}

    def make(self, value: Value) -> None:
        """Do the operation that makes a value, if it waits, with those that join it."""
        if value not in self.operations:
            return
        operation, key = self.operations[value]
        for operand in operation.operands:
            self.make(operand)
        others = [other for other, its_key in self.operations.values() if its_key == key]
        if operation.name != "reshard":
            for operand in [other.operands[0] for other in others if not self._lacks(other, value)]:
                self.make(operand)
        together = [other for other in others if self._has_at_hand(other)]
        operands = [_tiles_of(other, self.tiles) for other in together]
        for other, tile in zip(together, self.engine.compute_together(together, operands), strict=True):
            self.tiles[other.result] = tile
            del self.operations[other.result]

    def _has_at_hand(self, operation: Operation) -> bool:
        """Whether an operation has its operands; those that light operations make of what is there are made for it."""
        ahead = dict[Value, Operation]()
        lacking = [operand for operand in operation.operands if operand not in self.tiles]
        while lacking:
            value = lacking.pop()
            if value not in self.makers or value in self.operations or not self.engine.is_light(self.makers[value]):
                return False
            if value not in ahead:
                ahead[value] = self.makers[value]
                lacking += [operand for operand in ahead[value].operands if operand not in self.tiles]
        for value in sorted(ahead, key=lambda value: value.number):
            self.tiles[value] = self.engine.compute(ahead[value], _tiles_of(ahead[value], self.tiles))
        return True

    def _lacks(self, operation: Operation, value: Value) -> bool:
        """Whether an operation is of what is not there yet, or of what a value leads to that is not."""
        (operand,) = operation.operands
        while operand in self.operations and operand != value:
            (operand,) = self.operations[operand][0].operands
        return operand not in self.tiles

    def end(self, before: Block | None = None) -> None:
        """Do all that wait; those of which there is nothing yet only at the end of the block."""
        for value in [*self.operations]:
            if value in self.operations and (before is None or not self._lacks(self.operations[value][0], value)):
                self.make(value)


def _tiles_of(operation: Operation, tiles: dict[Value, EngineTile]) -> list[EngineTile]:
    """The tiles of the operands of an operation."""
    return [tiles[operand] for operand in operation.operands]


def _operands(ends: Sequence[Operation], tiles: dict[Value, EngineTile], place: int = 0) -> list[EngineTile]:
    """The tiles of one of the operands of every end."""
    return [tiles[end.operands[place]] for end in ends]
