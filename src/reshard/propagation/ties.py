"""Operations that are alike: a hundred equal layers are placed as one.

Two operations are of one class if they have the same ways to be computed, their results the same ways to be kept, at
the same prices, and if what they read and what reads them is so too, so many operations away.
Layers of a stack are, but for those next to its ends.
To keep the values of a class alike is a choice, not a proof: the bound is that of the whole program.

>>> from reshard.contraction.chooser import Chooser
>>> from reshard.contraction.goal import Goal
>>> from reshard.mesh import Mesh
>>> from reshard.propagation.fixpoint import Net
>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(x=2))
>>> value = program.input("x", (4,), "float32")
>>> for _ in range(100):
...     value = program.op("i->i", value, name="exp")
>>> net = Net(program)
>>> model = Model(net, net.runs(None), Chooser(Goal.of("balanced")))
>>> [len(set(classes_of(model, reach))) for reach in (1, 3)]
[4, 8]
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.propagation.model import Model

REACH = 1
"""How many operations away are looked at, where that makes few classes."""


def classes_of(model: Model, reach: int = REACH) -> list[int]:
    """Per operation the number of the first one that is like it.

    Args:
        model: the program.
        reach: how many operations away are looked at.
    """
    net = model.net
    operations = net.graph.operations
    layouts = {n: id(model.layouts_of(operation)) for n, operation in enumerate(operations) if operation.operands}
    numbers: dict[object, int] = {}

    def number_of(key: object) -> int:
        return numbers.setdefault(key, len(numbers))

    colors = []
    for number, operation in enumerate(operations):
        variable = model.variables[number]
        kept = id(variable.options), variable.domain.tobytes(), id(variable.table)
        what = operation.name, layouts.get(number), operation.attributes, net.trip_counts(number)
        is_first = net.graph.annotations.get(operation.result), variable.number == number
        colors.append(number_of((*what, operation.arithmetic, *kept, *is_first)))
    for _ in range(reach):
        reading: list[list[tuple[int, int]]] = [[] for _ in operations]
        for operation in operations:
            for place, operand in enumerate(operation.operands):
                reading[operand.number].append((colors[operation.result.number], place))
        colors = [
            number_of(
                (
                    color,
                    tuple(colors[operand.number] for operand in operation.operands),
                    tuple(sorted(set(readers))),
                )
            )
            for color, operation, readers in zip(colors, operations, reading, strict=True)
        ]
    first: dict[int, int] = {}
    return [first.setdefault(color, number) for number, color in enumerate(colors)]


def kinds_of(model: Model, classes: Sequence[int]) -> list[int]:
    """Per value the number of the first one that operations of the same classes read and make at the same places.

    Args:
        model: the program.
        classes: per operation the number of the first one of its class.
    """
    places: list[list[tuple[int, int]]] = [[] for _ in model.variables]
    for number, operation in enumerate(model.net.graph.operations):
        for place, value in enumerate(operation.values if operation.operands else ()):
            places[model.variables[value.number].number].append((classes[number], place))
    first: dict[tuple[object, ...], int] = {}
    return [
        first.setdefault((classes[number], *sorted(places[number])), number) if variable.number == number else number
        for number, variable in enumerate(model.variables)
    ]
