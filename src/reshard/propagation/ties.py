"""Operations that are alike: a hundred equal layers are placed as one.

Two operations are of one class if they, what they read and what reads them, so many operations away, are equal but for
names.
Layers of a stack are, but for those next to its ends.
To keep the values of a class alike is a choice, not a proof: the bound is that of the whole program.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(x=2))
>>> value = program.input("x", (4,), "float32")
>>> for _ in range(100):
...     value = program.op("i->i", value, name="exp")
>>> len(set(classes_of(Net(program))))
18
"""

from __future__ import annotations

from reshard.propagation.fixpoint import Net

REACH = 8
"""How many operations away are looked at."""


def classes_of(net: Net) -> list[int]:
    """Per operation the number of the first one that is like it."""
    operations = net.graph.operations
    numbers: dict[object, int] = {}

    def number_of(key: object) -> int:
        return numbers.setdefault(key, len(numbers))

    colors = [
        number_of(
            (
                operation.name,
                rule,
                tuple(value.dtype for value in operation.values),
                operation.reduction,
                operation.attributes,
                net.graph.annotations.get(operation.result),
                net.trip_counts(operation.result.number),
                mesh,
            )
        )
        for operation, rule, mesh in zip(operations, net.rules, net.meshes, strict=True)
    ]
    for _ in range(REACH):
        reading: list[list[tuple[int, int]]] = [[] for _ in operations]
        for operation in operations:
            for place, operand in enumerate(operation.operands):
                reading[operand.number].append((colors[operation.result.number], place))
        colors = [
            number_of(
                (
                    color,
                    tuple(colors[operand.number] for operand in operation.operands),
                    tuple(sorted(readers)),
                )
            )
            for color, operation, readers in zip(colors, operations, reading, strict=True)
        ]
    first: dict[int, int] = {}
    return [first.setdefault(color, number) for number, color in enumerate(colors)]
