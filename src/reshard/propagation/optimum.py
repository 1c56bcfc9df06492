"""How a program is placed: the choice that costs least, and how far it may be from the best.

Propagation has choices to begin with, and messages between values and operations give a bound, and a choice
(`dual.py`); under every division of what is shared another.
Of all of them the best of what each does where is taken, exactly (`recombining.py`), then of what whole streams do
(`expanding.py`).
That is improved one axis of the mesh at a time, all others as they are, which is as exact, and one value at a time
(`descent.py`).
Then the planner is asked what the chosen reshards cost; where that is more than was thought, the choice is improved
again, from the best of what was chosen so far, until all that is chosen is known.
What propagation has counts among that, where it may be cheaper at what the planner says: nobody is to end above it.
The bound stands beside it: it holds for every choice of the space (`space.py`), whatever the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from reshard.propagation.copies import CopiedDual
from reshard.propagation.descent import Descent
from reshard.propagation.dual import Dual, Picked, Shares
from reshard.propagation.expanding import cheapest, expand
from reshard.propagation.fixpoint import Flow
from reshard.propagation.known_options import flowing
from reshard.propagation.lower_bound import LowerBound
from reshard.propagation.model import SAME, Model
from reshard.propagation.nodes import Besides
from reshard.propagation.recombining import along, between, recombine
from reshard.propagation.shares import Bounded, even_shares, moved, of_kinds
from reshard.propagation.solution import Optimum, descent_of, explained
from reshard.propagation.ties import classes_of, kinds_of
from reshard.propagation.trees import Table, tree

STEPS = 24
"""How many choices are begun with, at most."""
LEAST_PATIENCE, PATIENCE, FAR = 2, 8, 0.1
"""How many of these in a row may have nothing better: fewer where less than a part of the cost is left to be gained.

Fewer too of a program of more than `MEDIUM` operations that are kept alike, since its bound is found afterwards: in
proportion to `PATIENT` of them.
Where most choices come of likely options, which takes little, it is never fewer.
"""
PATIENT = 64
"""Of how many operations that are kept alike there would be as many as of others."""
CLOSE, CLOSE_OF_EACH = 1e-2, 2e-5
"""How far from the bound, as a part of the cost, a choice is good enough for no further ones: by all operations."""
NEAR = 5e-2
"""How far from the bound, as a part of the cost, a choice of a large program is good enough for no turns along axes."""
HOPED = 2e-3
"""As a part of the cost, what a large program must gain by a choice to be begun with more, and what it must be thought
to gain to be improved at what the planner says."""
MUCH = 0.02
"""As a part of the cost, what a choice must gain along the axes to be expanded again."""
AXIS_TURNS = 6
"""How often along one axis."""
ROUNDS = 12
"""How often an axis is tried, at most."""
WORTH = 1e-3
"""As a part of the cost, by how much a choice must change before the axes are tried again."""
KICKED = 3
"""How often a small choice that is settled is begun anew from others."""
MEDIUM = 128
"""A program of up to so many operations is tried by messages and along its axes again, at what the planner has said."""
SMALL, KICKS = 24, 8
"""Of a program of up to so many operations, values and what shares them are tried in so many other ways each."""
FEW = 0.5
"""Operations are kept alike that are, where so many of all are not."""
MOST_PASSED = 3e10
"""Over how many costs of links messages go at the most where no time is set: about a minute."""
WHOLE_TURNS, WIDE_TURNS, GROWTH = 8, 16, 1e-2
"""How often messages go over a program whose operations are kept alike, to bound it whatever they are, at most.

The second where few went over it before, since values have hundreds of options.
No longer than that lets the bound grow, each time by such a part of it.
"""
FEWEST_LESSONS, MOST_LESSONS, LESSONS = 8, 24, 1600
"""How often the planner is asked about all that is chosen, at most: the last by all operations, within the others."""


def optimum(model: Model, flows: Sequence[Flow], deadline: float | None = None) -> Optimum:
    """The cheapest choice that is found.

    Args:
        model: the program.
        flows: outcomes of propagation, with which to begin besides; the first with all annotations at once.
        deadline: when to end with the best so far, by `time.monotonic`.
    """

    def is_late() -> bool:
        return deadline is not None and time.monotonic() > deadline

    classes = classes_of(model)
    is_tied = len(set(classes)) <= FEW * len(classes)
    small = model.tied(classes) if is_tied else model
    bounded = Bounded(small, MOST_PASSED if deadline is None else inf)
    best = _searched(small, bounded, flows, is_late)
    if not is_tied:
        least = LowerBound(lambda: model.bound_of(bounded.finish(is_late)))
        if deadline is not None or not bounded.is_wide:
            _ = least.cost
        return explained(model, best, least)
    alike = model.tied(classes, kinds_of(model, classes))
    options = {id(own): best.options[id(shared)] for own, shared in zip(alike.variables, small.variables, strict=True)}
    picked, shares, handed = Picked(options, best.layouts), bounded.shares, bounded.handed
    turns = WIDE_TURNS if bounded.is_wide else WHOLE_TURNS  # the bound is found later, and holds none of these tables

    def of_the_whole() -> float:
        whole = CopiedDual(model, alike, classes, moved(alike, of_kinds(alike, shares, classes), picked))
        whole.begin(handed)
        whole.run(turns, is_late, GROWTH)
        return model.bound_of(whole.bound)

    least = LowerBound(of_the_whole, alike.dissolve)
    chosen = explained(alike, Descent(alike, *picked), least, classes)
    if deadline is not None:  # which is for the bound too
        _ = least.cost
    small.dissolve()
    return chosen


def changed(
    model: Model,
    best: Optimum,
    besides: Besides,
    deadline: float | None = None,
    flow: Flow | None = None,
) -> Optimum:
    """A choice improved where holding or computing costs more; its cost is without that, and its bound that of before.

    Args:
        model: the program.
        best: the choice with which to begin.
        besides: what they cost besides.
        deadline: when to end with the best so far, by `time.monotonic`.
        flow: an outcome of propagation with which to begin besides.
    """

    def is_late() -> bool:
        return deadline is not None and time.monotonic() > deadline

    classes = classes_of(model)
    is_tied = len(set(classes)) <= FEW * len(classes)
    charged = model.charging(besides)
    small = charged.tied(classes) if is_tied else charged
    options = best.picked.by_variable(small.variables)
    layouts = {node.number: best.picked.layouts[node.number] for node in small.nodes}
    known = Descent(small, options, layouts)
    if flow is None:
        dual = Dual(small, even_shares(small), exact=True)
        dual.run(AXIS_TURNS, is_late)
        starts = [Picked(options, layouts), dual.choice()]
    else:
        starts = [_flowing(small, flow)]
    descent = min((_descended(small, start) for start in starts), key=lambda each: each.cost)
    for _ in range(FEWEST_LESSONS):
        if recombine(descent, between(descent, Picked(known.options, known.layouts))):
            descent.run()
        was_wrong = bool(_learnt(small, descent))
        descent = Descent(small, descent.options, descent.layouts)
        if descent.cost < known.total():
            known = descent
        if not was_wrong or is_late():
            break
        descent = _descended(small, Picked(descent.options, descent.layouts))
    free = {id(own): known.options[id(kept)] for own, kept in zip(model.variables, small.variables, strict=True)}
    picked = {node.number: known.layouts[classes[node.number] if is_tied else node.number] for node in model.nodes}
    for each in (charged, small):
        each.dissolve()
    return explained(model, Descent(model, free, picked), best.least)


def crossed(model: Model, best: Optimum, other: Optimum, may: Callable[[Optimum], bool]) -> Optimum:
    """A choice with those parts of another that make it cheaper, one after the other, where it may be so then."""
    descent, theirs = descent_of(model, best), other.picked

    def told(now: Descent) -> Optimum:
        return explained(model, Descent(model, now.options, now.layouts), best.least)

    descent.cross(theirs.by_variable(model.variables), dict(theirs.layouts), lambda now: may(told(now)))
    return told(descent)


def _searched(model: Model, bounded: Bounded, flows: Sequence[Flow], is_late: Callable[[], bool]) -> Descent:
    """The best choice that is found."""
    best = _begun(model, bounded, flows, is_late)
    known: Descent | None = None
    settled, is_open, is_large = 0.0, True, len(model.nodes) > MEDIUM
    kicks = KICKED if len(model.nodes) <= SMALL else 0
    for _ in range(max(FEWEST_LESSONS, min(LESSONS // max(len(model.nodes), 1), MOST_LESSONS))):
        has_changed = abs(best.cost - settled) > WORTH * best.cost
        if has_changed and is_open and not _is_proved(best, bounded.bound) and not is_late():
            if not is_large:  # what was learnt may be far from where the search began
                for shares in (bounded.shares, None):
                    best = _with_messages(best, shares)
            if _is_proved(best, bounded.bound, _enough(model)):
                best.run()
            elif not (is_large and _is_proved(best, bounded.bound, NEAR)):
                _axis_by_axis_and_expanded(model, best, is_late, by_pieces=bounded.is_wide)
            if is_large:  # what one value gains, it does along an axis
                best.unsettled.clear()
            settled, is_open = best.cost, not is_large
        learnt = _learnt(model, best)
        known = _with_start(model, best, flows[0]) if known is None else _joined(model, known, best, learnt)
        best = best.copied()
        if learnt:
            if known.cost < best.cost * (1 - SAME):
                best = Descent(model, known.options, known.layouts, before=best)
            best.unsettle(learnt)
            best.run()
            if is_large and known.cost - best.cost <= HOPED * known.cost:
                break
            continue
        if kicks and not _is_proved(known, bounded.bound) and not is_late():
            best, kicks = _kicked(known), kicks - 1
        if best.cost >= known.cost * (1 - SAME):
            break
    return known or best


def _with_start(model: Model, best: Descent, flow: Flow) -> Descent:
    """The best of a choice that is priced and, where that may be cheaper, of what propagation has."""
    best.reprice()
    start = Descent(model, *_flowing(model, flow))
    if start.cost >= best.cost * (1 - SAME):
        return best
    return _joined(model, best, start, _learnt(model, start))


def _joined(model: Model, known: Descent, best: Descent, learnt: set[Table]) -> Descent:
    """The best, at what the planner says, of two choices and of what each of them does where."""
    joined = known.copied()
    joined.reprice()
    if recombine(joined, between(joined, Picked(best.options, best.layouts))):
        learnt |= _learnt(model, joined)
    for each in (known, best, joined):
        each.reprice()
    return min(known, best, joined, key=lambda each: each.cost)


def _begun(model: Model, bounded: Bounded, flows: Sequence[Flow], is_late: Callable[[], bool]) -> Descent:
    """The best of what propagation has and of what messages lead to, and of what each does where."""
    is_small, enough = len(model.nodes) <= SMALL, _enough(model)
    first, *others = _choices_of(model, flows)
    best = Descent(model, *first)
    for choice in others:
        _join(best, choice)
    worth = WORTH if len(model.nodes) <= MEDIUM else HOPED
    begun, since = best.cost, 0
    for _ in range(STEPS):
        _join(best, bounded.step(is_late))
        begun, since = (best.cost, 0) if best.cost < begun * (1 - worth) else (begun, since + 1)
        is_over = since >= _patience(best, bounded) or bounded.is_spent or is_late()
        if is_over or _is_proved(best, bounded.bound, enough):
            break
    if not _is_proved(best, bounded.bound, enough) and not is_late():
        expand(best)
    if is_small and not _is_proved(best, bounded.bound):
        alone = Dual(model, bounded.shares, exact=True)
        alone.run(AXIS_TURNS, is_late)
        _join(best, alone.choice())
    if is_small and not _is_proved(best, bounded.bound):
        best.run()
    return best


def _enough(model: Model) -> float:
    """How far from the bound a choice is good enough, as a part of its cost."""
    return 0.0 if len(model.nodes) <= SMALL else min(CLOSE, CLOSE_OF_EACH * len(model.nodes))


def _patience(best: Descent, bounded: Bounded) -> float:
    """How many choices in a row may have nothing better than the best."""
    if len(best.model.nodes) <= MEDIUM or not best.cost or bounded.is_wide:
        return PATIENCE
    most = PATIENCE * PATIENT / len(best.model.nodes) if best.model.is_tied else PATIENCE
    return max(LEAST_PATIENCE, min((1 - bounded.bound / best.cost) / FAR, 1.0) * most)


def _join(best: Descent, choice: Picked) -> None:
    """Take the best of what a choice and another do where."""
    recombine(best, between(best, choice))


def _descended(model: Model, choice: Picked) -> Descent:
    descent = Descent(model, *choice)
    descent.run()
    return descent


def _kicked(best: Descent) -> Descent:
    """A choice improved by keeping any one value in another way, or computing what shares one, and what comes of it."""
    for variable in best.variables:
        order = best.nearest(variable, len(variable.domain))[0] if len(variable.domain) > 1 else []
        for option in order[:: max(1, len(order) // KICKS)]:
            other = best.forced(variable, option)
            if other.cost < best.cost * (1 - SAME):
                best = other
    for node in best.model.nodes:
        if all(len(edge.variable.uses) < 2 for edge in node.uses):
            continue
        order = np.argsort(best.pay(node) + best.leaving(node), kind="stable").tolist()
        for layout in order[:: max(1, len(order) // KICKS)]:
            other = best.computed(node, layout)
            if other.cost < best.cost * (1 - SAME):
                best = other
    return best


def _is_proved(descent: Descent, bound: float, enough: float = 0.0) -> bool:
    """Whether no choice costs less, by more than a part of the cost."""
    return bound >= descent.cost * (1 - 100 * SAME - enough)


def _flowing(model: Model, flow: Flow) -> Picked:
    """What propagation has, each operation in the layout that is cheapest for it."""
    options: dict[int, int] = {}
    known: dict[tuple[int, int, int], int] = {}
    for number, variable in enumerate(model.variables):
        if id(variable) not in options:
            alike = id(variable.options), id(variable.domain), id(flow.dims[number])
            if alike not in known:
                place = flowing(flow, number, variable)
                known[alike] = int(variable.domain[0]) if place is None else place
            options[id(variable)] = known[alike]
    return cheapest(model, options)


def _choices_of(model: Model, flows: Sequence[Flow]) -> list[Picked]:
    """What outcomes of propagation have, each choice once."""
    choices: list[Picked] = []
    for flow in {tuple(flow.dims): flow for flow in flows}.values():
        choice = _flowing(model, flow)
        if choice not in choices:
            choices.append(choice)
    return choices


def _axis_by_axis_and_expanded(model: Model, best: Descent, is_late: Callable[[], bool], *, by_pieces: bool) -> None:
    """Improve a choice along axes, and expand it where that has gained much, in turns."""
    while True:
        before = best.cost
        _axis_by_axis(model, best, is_late, by_pieces=by_pieces)
        if best.cost >= before * (1 - MUCH) or is_late():
            break
        expand(best)


def _axis_by_axis(model: Model, best: Descent, is_late: Callable[[], bool], *, by_pieces: bool) -> None:
    """Improve a choice along one axis after another, or one piece of them after another, until none gains."""
    axes = []
    for mesh, pieces in model.pieces.items():
        named: dict[object, list[int]] = {}
        for number, piece in enumerate(pieces.all):
            named.setdefault(piece if by_pieces else piece.name, []).append(number)
        axes += [{mesh: numbers} for numbers in named.values()]
    quiet = turn = 0
    most = len(axes) - (len(model.nodes) > MEDIUM)
    while quiet <= most and turn < ROUNDS and not is_late():
        before, is_along = best.cost, quiet < len(axes)
        if is_along:
            recombine(best, along(best, axes[turn % len(axes)]))
            turn += 1
        else:
            best.run()
        quiet = int(is_along) if best.cost < before * (1 - WORTH) else quiet + 1  # along the axis itself it is the best


def _with_messages(best: Descent, shares: Shares | None) -> Descent:
    """A choice with the better parts of what messages at known prices lead to."""
    dual = Dual(best.model, shares, exact=True)
    dual.run(AXIS_TURNS)
    _join(best, dual.choice())
    best.run()
    return best


def _learnt(model: Model, best: Descent) -> set[Table]:
    """Ask the planner about all that is chosen; the tables in which anything costs otherwise than was thought."""
    learnt: set[Table] = set()
    for variable in best.variables:
        kept = best.options[id(variable)]
        for edge in variable.makers:
            if model.learn(edge, edge.picks.listed[best.layouts[edge.node.number]], kept):
                learnt.add(edge.table)
        for (table, *_), wants in best.wants(variable).items():
            for pair in tree(table, kept, sorted(wants)):
                edge = next(edge for edge in variable.uses if edge.table is table)
                if model.learn(edge, *pair):
                    learnt.add(table)
    return learnt
