"""What is known of values before anything is chosen, as options: what was said of them, and what flows have.

The model prices options and never asks where one comes from; here axes that were said, or carried through a program,
become pieces of a mesh and options made of these.
Said is, per dim, the axes of the annotation as far as propagation could keep them, and whether more may follow.

By hand, where x is said to be cut by a and then by anything, that is all that is known of it:

>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(a=2, b=2))
>>> x = program.input("x", (8, 8), "float32", '[{"a", ?}, {}]')
>>> net = Net(program)
>>> flow = net.runs(None)[0]
>>> [([axis.name for axis in axes], is_open) for axes, is_open in said_of(net, x.number, flow)]
[(['a'], True), ([], False)]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from reshard.axis import Axes, is_prefix
from reshard.mesh import Mesh
from reshard.propagation.fixpoint import Flow, Net
from reshard.propagation.nodes import Variable
from reshard.propagation.space import Option, Pieces

FINE = 16
"""Finely axes are cut at their divisors below that."""

Said = list[tuple[Axes, bool]]
"""Per dim the axes that were said and kept, and whether it is open."""


def said_of(net: Net, number: int, flow: Flow) -> Said:
    """Per dim of a value the axes that were given and seen, and whether it is open."""
    annotation, dims = net.graph.annotations.get(net.values[number]), flow.dims[number]
    if annotation is None or annotation.mesh.is_maximal:
        return [((), True)] * len(dims)
    seen = [is_prefix(dim.axes, axes) for dim, axes in zip(annotation.dims, dims, strict=True)]
    return [
        (dim.axes if is_seen else (), dim.is_open and is_seen)
        for dim, is_seen in zip(annotation.dims, seen, strict=True)
    ]


def pieces_of(net: Net, mesh: Mesh, said: Sequence[Said], flows: Sequence[Flow], *, finely: bool) -> Pieces:
    """The pieces of a mesh that what is said and what flows have is made of.

    Finely axes are cut at the lengths of labels too, and at their small divisors.
    """
    lists: set[Axes] = set()
    numbers = [] if mesh.is_maximal else [number for number, own in enumerate(net.meshes) if own is mesh]
    for dims in {id(dims): dims for flow in flows for dims in map(flow.dims.__getitem__, numbers)}.values():
        lists.update(dims)
    for number in numbers:
        annotation = net.graph.annotations.get(net.values[number])
        if annotation is not None:
            lists.update((annotation.unreduced, annotation.replicated, *(axes for axes, _ in said[number])))
    lengths: list[int] = []
    if finely:
        lengths = sorted({size for number in net.computed for size in net.calculations[number].sizes}, reverse=True)
        lengths += range(2, min(mesh.size, FINE))
    return Pieces(mesh, sorted(lists, key=lambda axes: list(map(str, axes))), lengths)


def options_of_cuts(
    pieces: Pieces, cuts: Sequence[tuple[Axes, ...]], divided: tuple[int, ...] | None, may_be_less: bool
) -> list[Option]:
    """The options that cut a value as flows do.

    Args:
        pieces: of the mesh of the value.
        cuts: per flow the axes of every dim.
        divided: the shape that pieces must divide, in options besides; None where they need not.
        may_be_less: whether the first of the axes of a dim may be all that cut it.
    """
    options: dict[Option, None] = {}
    for axes_of_dims in cuts:
        dims = [pieces.of(axes) for axes in axes_of_dims]
        if any(axes is None for axes in dims):
            continue
        cut = tuple(axes for axes in dims if axes is not None)
        options[Option(cut)] = None
        if divided is not None:
            options[Option(tuple(map(pieces.dividing, cut, divided)))] = None
    if may_be_less:  # what was refused or disputed may also be less
        for option in list(options):
            begun = [[axes[:stop] for stop in range(len(axes) + 1)] for axes in option.dims]
            options.update(dict.fromkeys(map(Option, product(*begun))))
    return list(options)


def flowing(flow: Flow, number: int, variable: Variable) -> int | None:
    """The option that an outcome of propagation has of a value; None where its variable may not have that."""
    dims = [variable.options.pieces.of(axes) for axes in flow.dims[number]]
    option = Option(tuple(axes for axes in dims if axes is not None))
    place = variable.options.numbers.get(option) if len(option.dims) == len(dims) else None
    return place if place is not None and place in variable.domain else None
