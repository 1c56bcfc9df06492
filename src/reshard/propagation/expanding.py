"""A choice made better by what a whole stream does: all dims over which one index runs are cut, or none is.

Layers hand on the batch and the features; to cut them otherwise in one layer alone costs a reshard before it and one
after it, so no value by itself leaves what the others do.
So for the kinds of dims of which a program has most (`leaders.py`), and every piece of an axis, all values that have
such a dim are cut by the piece there, or none is; the operations around them are computed as is cheapest then; and of
that and the choice the best of what each does where is taken, exactly (`recombining.py`).

By hand, a hundred operations in a row, on what is whole on both devices: no value alone is halved for nothing, but all
together are.

>>> from reshard.contraction.chooser import Chooser
>>> from reshard.contraction.goal import Goal
>>> from reshard.mesh import Mesh
>>> from reshard.propagation.fixpoint import Net
>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(x=2))
>>> value = program.input("x", (4096,), "float32", '[{}]')
>>> for _ in range(100):
...     value = program.op("i->i", value, name="exp")
>>> net = Net(program)
>>> model = Model(net, net.runs(None), Chooser(Goal.of("balanced")))
>>> chosen = Descent(model, *cheapest(model, {id(variable): 0 for variable in model.variables}))
>>> before = chosen.cost
>>> expand(chosen)
>>> round(before, 1), round(chosen.cost, 1)
(204.8, 102.4)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from reshard.propagation.descent import Descent
from reshard.propagation.dual import Picked
from reshard.propagation.model import Model
from reshard.propagation.nodes import Node
from reshard.propagation.recombining import between, recombine
from reshard.propagation.space import Options, Pieces

MOST_KINDS = 3
"""Of how many kinds of dims all are cut, or none, at most."""

OtherOptions = dict[tuple[int, int, int, tuple[int, ...], int, bool], int | None]
"""By the options and the domain of a variable, its option, dims, a piece, whether that is to cut them: the other."""


def expand(best: Descent) -> None:
    """Take the better parts of what comes of cutting all dims of a kind by a piece, or none."""
    known: OtherOptions = {}
    for kind in best.model.net.kinds.largest[:MOST_KINDS]:
        for pieces in best.model.pieces.values():
            for piece, is_cut in product(range(len(pieces.all)), (False, True)):
                options = _otherwise(best, kind, pieces, piece, is_cut=is_cut, known=known)
                if options:
                    recombine(best, between(best, _around(best, options)))


def cheapest(model: Model, options: Mapping[int, int], nodes: Iterable[Node] | None = None) -> Picked:
    """A choice where values are kept in some options, with each operation in the layout that is cheapest for it.

    Args:
        model: the program.
        options: per variable, by identity.
        nodes: the operations; all unless given.
    """
    layouts: dict[int, int] = {}
    for node in model.nodes if nodes is None else nodes:
        cost = node.cost.copy()
        for edge in node.edges:
            kept = options[id(edge.variable)]
            cost += edge.moved(kept) if edge.is_result else edge.brought(frozenset((kept,)))
        layouts[node.number] = int(cost.argmin())
    return Picked(dict(options), layouts)


def _otherwise(
    best: Descent,
    kind: int,
    pieces: Pieces,
    piece: int,
    *,
    is_cut: bool,
    known: OtherOptions,
) -> dict[int, int]:
    """The options of variables that a piece is to cut in their dims of a kind, or is not, and now does otherwise."""
    kinds, options = best.model.net.kinds.of, dict[int, int]()
    for variable in best.variables:
        if kind in kinds[variable.number] and variable.options.pieces is pieces:
            dims = tuple([dim for dim, own in enumerate(kinds[variable.number]) if own == kind])
            now = best.options[id(variable)]
            key = id(variable.options), id(variable.domain), now, dims, piece, is_cut
            if key not in known:
                option = _cut(variable.options, now, dims, piece, is_cut=is_cut)
                known[key] = None if option == now or option not in variable.domain else option
            option = known[key]
            if option is not None:
                options[id(variable)] = option
    return options


def _cut(options: Options, now: int, dims: tuple[int, ...], piece: int, *, is_cut: bool) -> int | None:
    """The option that a piece cuts in the first of some dims, or in none, and that else is as another."""
    option = options.all[now]
    if option.sharding is not None or any(piece in option.dims[dim] for dim in dims) == is_cut:
        return now
    cuts = [tuple(each for each in cut if each != piece) for cut in option.dims]
    if is_cut:
        cuts[dims[0]] = tuple(sorted((*cuts[dims[0]], piece)))
    unreduced = tuple(each for each in option.unreduced if each != piece or not is_cut)
    return options.numbers.get(option._replace(dims=tuple(cuts), unreduced=unreduced))


def _around(best: Descent, options: dict[int, int]) -> Picked:
    """A choice where some values are kept otherwise, and the operations around them computed as is cheapest then."""
    changed = (variable for variable in best.variables if id(variable) in options)
    nodes = {edge.node.number: edge.node for each in changed for edge in (*each.makers, *each.uses)}
    picked = cheapest(best.model, best.options | options, nodes.values())
    return Picked(picked.options, best.layouts | picked.layouts)
