"""Along which pieces of axes values may wait: the sums, maxima … that devices have made of their parts.

A result waits along a piece that cuts a label which it lacks, and along what its operands wait, where the operation
lets them.
A piece cuts such a label evenly, or as propagation has it of an operand: an odd number of rows is cut by what cut
the rows of which it was made.

By hand, on x = 4, a sum of 6 elements: nothing cuts 6 evenly, but the input is cut so, and its sum may wait along x.

>>> from reshard.propagation.program import Program
>>> from reshard.sharding import Sharding
>>> program = Program(Mesh.of(x=4))
>>> value = program.input("a", (6,), "float32", Sharding.of(program.mesh, "x"))
>>> total = program.op("i->", value, name="sum")
>>> net = Net(program)
>>> flows = net.runs(None)
>>> waiting_of(net, {program.mesh: Pieces(program.mesh, [])}, flows)[total.number].pieces
frozenset({0})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reshard.axis import Axes
from reshard.contraction.tasks import Calculation
from reshard.mesh import Mesh
from reshard.operations.operation import Operation
from reshard.operations.rules import COMBINED, Rule, waiting_operands
from reshard.propagation.fixpoint import Flow, Net
from reshard.propagation.space import Pieces
from reshard.propagation.ways import Along

IDENTICAL = ("output", "reshard", "carry", "last")
"""Operations that want their operands as their result is kept."""


def waiting_of(net: Net, pieces_on: Mapping[Mesh, Pieces], flows: Sequence[Flow]) -> list[Along]:
    """Per value the pieces along which it may come out unreduced, and of which reduction.

    Args:
        net: the program.
        pieces_on: per mesh its pieces.
        flows: runs of propagation, which say where a label is cut that its pieces do not divide.
    """
    waiting: list[Along] = []
    known: dict[tuple[object, ...], Along] = {}
    kinds: list[int] = []
    """Per value, the number of what is known of it."""
    numbers: dict[tuple[object, ...], int] = {}
    cuts = list(zip(*(flow.dims for flow in flows), strict=True))
    for number, operation in enumerate(net.graph.operations):
        pieces, said = pieces_on[net.meshes[number]], net.graph.annotations.get(operation.result)
        if not operation.operands or operation.name in IDENTICAL:
            named = frozenset(pieces.of(said.unreduced) or ()) if said is not None else frozenset[int]()
            result = Along(named, said.reduction if said is not None else "sum")
        else:
            mesh, calculation = net.meshes[number], net.calculations[number]
            near = [operand.number if net.meshes[operand.number] is mesh else -1 for operand in operation.operands]
            key = id(calculation), id(pieces), *(-1 if n < 0 else kinds[n] for n in near)
            if key not in known:
                operands = [None if n < 0 else (waiting[n], cuts[n]) for n in near]
                known[key] = _result_of(net.rules[number], calculation, pieces, operands)
            result = known[key]
        waiting.append(result)
        kinds.append(numbers.setdefault((result, *map(id, cuts[number])), len(numbers)))
    for number, operation in enumerate(net.graph.operations):
        if operation.name in IDENTICAL and waiting[number].pieces:  # what is wanted unreduced may be kept so
            own, reduction = waiting[operation.operands[0].number]
            if operation.operands[0] not in net.graph.annotations and (
                not own or reduction == waiting[number].reduction
            ):
                waiting[operation.operands[0].number] = Along(own | waiting[number].pieces, waiting[number].reduction)
    return waiting


def _result_of(
    rule: Rule,
    calculation: Calculation,
    pieces: Pieces,
    operands: Sequence[tuple[Along, tuple[tuple[Axes, ...], ...]] | None],
) -> Along:
    """Along which pieces a result may wait.

    Args:
        rule: of the operation.
        calculation: what it computes.
        pieces: of the mesh.
        operands: per operand along what it may wait, and per flow the axes of its dims; None for one on another mesh.
    """
    own = _combined(rule, pieces, [() if operand is None else operand[1] for operand in operands])
    reduction = calculation.reduction if own else ""
    for wait in calculation.waits:
        waits = [operand[0] for operand in (operands[n] for n in wait.operands) if operand is not None]
        along = frozenset(piece for each in waits if each.reduction == wait.reduction for piece in each.pieces)
        if along and reduction in ("", wait.reduction):
            own, reduction = own | along, wait.reduction
    return Along(own, reduction or "sum")


def _combined(rule: Rule, pieces: Pieces, flowing: Sequence[tuple[tuple[Axes, ...], ...]]) -> frozenset[int]:
    """The pieces that may cut a label along which results combine: evenly, or as flows have it of an operand."""
    combined = {label for label, role in enumerate(rule.roles) if role in COMBINED}
    lengths = [rule.sizes[label] for label in combined]
    own = {n for n, size in enumerate(pieces.sizes.tolist()) if any(length % size == 0 for length in lengths)}
    for term, flows in enumerate(flowing):
        alone = [dim for dim, group in enumerate(rule.terms[term]) if len(group) == 1 and group[0] in combined]
        own.update(n for cuts in flows for dim in alone for n in pieces.of(cuts[dim]) or ())
    return frozenset(own)


def can_wait(operation: Operation) -> bool:
    """Whether an operation may leave what it is given unreduced."""
    return operation.name not in ("reshard", "output") and any(
        waiting_operands(operation, reduction) for reduction in ("sum", "max", "min", "product")
    )
