"""Which values lie in memory, and what of them an operation reads and writes there, wherever it is computed.

What is computed element by element and read once, by what can compute it as it reads, is in no memory: a chain of such
operations reads what comes in once and writes what goes out once.
The same is said of a program before it is placed; what reshards put between is told by their plans.

By hand: `tanh(x) * s` summed over its rows reads `x` and `s` and writes the sums, and nothing else.

>>> from reshard.propagation.program import Program
>>> program = Program.parse('''
... sdy.mesh @mesh = <["x"=2]>
... x = input : float32[8, 4]
... s = input : float32[4]
... t = tanh "ij->ij" (x)
... u = einsum "ij,j->ij" (t, s)
... v = sum "ij->i" (u)
... w = output (v)
... ''')
>>> fusion = Fusion(program.operations)
>>> [(operation.result.name, fusion.touched(operation)) for operation in program.operations[2:]]
[('t', (0,)), ('u', (1,)), ('v', (1,)), ('w', ())]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from reshard.operations.kinds import KindForm
from reshard.operations.operation import Operation

FUSED = {KindForm.ELEMENTWISE, KindForm.MOVED, KindForm.COUNTED, KindForm.SHIFTED}
"""Of what is computed element by element, so that a reader may do it as it reads."""
READING = {*FUSED, KindForm.REDUCED}
"""Of what may compute its operands as it reads them."""
IN_PLACE = {KindForm.ELEMENTWISE, KindForm.MOVED}
"""Of what may write an element where it has read one."""
REPEATED = ("broadcast", "convert", "cast")
"""What is so little work that each of several readers does it."""
VIEWS = ("reshape", "copy", "stop_gradient")
"""The elements in the same places."""
PLACED = {KindForm.SHIFTED, KindForm.INDEXED}
"""Of what reads as much as it makes, wherever that lies."""
HANDED = {KindForm.END, KindForm.ENTERING, KindForm.LEAVING}
"""Of what computes nothing."""


class Fusion:
    """The operations of a program, in the order in which they run, as far as memory has to do with them."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.readers: list[list[int]] = [[] for _ in operations]
        """Per value the numbers of the operations that read it."""
        for number, operation in enumerate(operations):
            for operand in dict.fromkeys(operation.operands):
                self.readers[operand.number].append(number)
        self.form = [form_of(operation) for operation in operations]
        self.remade = [False] * len(operations)
        for number, operation in enumerate(operations):
            self.remade[number] = self._is_remade(operation)
        self.fused = [self._is_fused(operation) for operation in operations]
        """Per value whether it is in no buffer of its own."""

    def touched(self, operation: Operation) -> tuple[int, ...]:
        """The places among the values of an operation of those that it reads from memory, and of what it writes there.

        A place stands twice of which as many bytes are read as are written.
        """
        number, last = operation.result.number, len(operation.operands)
        form = self.form[number]
        if operation.name == "stack":
            return (0,)
        if form in HANDED or self.is_view(operation):
            return ()
        written = () if self.fused[number] else (last,)
        if form in PLACED:
            return (last, *written)
        read = (
            operation.operands.index(operand)
            for operand in dict.fromkeys(operation.operands)
            if not self.fused[operand.number] and self._first_reads[self._ends[number], operand.number] == number
        )
        return (*read, *written)

    @cached_property
    def _ends(self) -> list[int]:
        """Per operation the one into which it is fused in the end, or itself."""
        ends = list(range(len(self.operations)))
        for number in reversed(range(len(ends))):
            if self.fused[number] and self.readers[number]:
                ends[number] = ends[self.readers[number][0]]
        return ends

    @cached_property
    def _first_reads(self) -> dict[tuple[int, int], int]:
        """Per end and value the first operation that reads it there."""
        first: dict[tuple[int, int], int] = {}
        for operation in self.operations:
            for operand in operation.operands:
                first.setdefault((self._ends[operation.result.number], operand.number), operation.result.number)
        return first

    def _is_remade(self, operation: Operation) -> bool:
        """Whether every device makes it of nothing, wherever it is read."""
        is_made = self.form[operation.result.number] in FUSED
        return operation.name == "constant" or (
            is_made and all(self.remade[operand.number] for operand in operation.operands)
        )

    def _is_fused(self, operation: Operation) -> bool:
        """Whether a value is in no buffer of its own."""
        number = operation.result.number
        readers = [self.operations[reader] for reader in self.readers[number]]
        if self.remade[number]:
            return all(reader.name != "output" for reader in readers)
        is_once = len(readers) == 1 or (operation.name in REPEATED and len(readers) > 0)
        return (
            is_once
            and self.form[number] in FUSED
            and not self.is_view(operation)
            and all(self._is_reading(reader) and reader.block == operation.block for reader in readers)
        )

    def _is_reading(self, operation: Operation) -> bool:
        """Whether an operation may compute its operands as it reads them."""
        return (self.form[operation.result.number] in READING or operation.name == "stack") and not self.is_view(
            operation
        )

    def is_view(self, operation: Operation) -> bool:
        """Whether the elements are read where those of the operand lie."""
        if operation.name != "transpose":
            return operation.name in VIEWS
        return all(self.form[reader] is KindForm.CONTRACTED for reader in self.readers[operation.result.number])

    def is_in_place(self, operation: Operation) -> bool:
        """Whether an operation may write an element where it has read one."""
        is_moved = operation.name == "transpose"
        return operation.name in ("carry", "output") or (
            self.form[operation.result.number] in IN_PLACE and not is_moved
        )


def form_of(operation: Operation) -> KindForm | None:
    """How an operation comes to its result; a product in which nothing is summed is computed element by element."""
    kind, pattern = operation.kind, operation.pattern
    if kind is None or pattern is None or kind.form is not KindForm.CONTRACTED:
        return None if kind is None else kind.form
    return kind.form if pattern.reduced or pattern.repeated else KindForm.ELEMENTWISE
