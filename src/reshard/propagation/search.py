"""The search for a placement: the cheapest, the cheapest that keeps limits of a device, or the best few.

What a program costs is made least by `optimum.py`; where a device would hold more than it may, holding is made to cost
something (`rents.py`), where it would compute more, computing is, and the choice is improved under that until it fits.
A limit is kept or refused; the refusal names the least that was found, and of memory what fills it.

A `Shortlist` answers in which layout a program is to run: inputs of which nothing is said, or whose dims are open, are
chosen like any other value; an output that is made element by element of an input is sharded as that is, since it
takes its place; and of equally cheap inputs those that take less memory are chosen.
Its placements are the cheapest that is found, then the cheapest that take less and less memory.

By hand, on two devices: nothing is said of a product, so every device computes half of it, of halves of one operand
that it has, and of the other whole.

>>> from reshard.propagation.program import Program
>>> program = Program.parse('''
... sdy.mesh @mesh = <["x"=2]>
... a = input : bf16[1024, 1024]
... b = input : bf16[1024, 1024]
... c = einsum "ij,jk->ik" (a, b)
... d = output (c)
... ''')
>>> best = program.search(network="h100-2").best
>>> best.sharding("a").text(), best.sharding("b").text(), best.received_bytes
('[{"x"}, {}]', '[{}, {}]', 0)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import prod

from reshard.contraction.chooser import Chooser
from reshard.contraction.goal import Goal
from reshard.errors import ReshardError
from reshard.garbage import uncollected
from reshard.network import check_reach
from reshard.propagation.builder import Builder
from reshard.propagation.explicit import explicit
from reshard.propagation.fixpoint import Flow, Net
from reshard.propagation.lower_bound import LowerBound
from reshard.propagation.memory import Life, lives
from reshard.propagation.model import SAME, Model
from reshard.propagation.nodes import Besides, Rent
from reshard.propagation.optimum import changed, crossed, optimum
from reshard.propagation.orders import in_pairs, long_einsums
from reshard.propagation.placement import NOTHING, Placement
from reshard.propagation.reasons import reason
from reshard.propagation.recipes import recipes, taking_over
from reshard.propagation.rents import halfway, raised, rents
from reshard.propagation.settling import settled
from reshard.propagation.solution import Optimum
from reshard.sharding import Sharding
from reshard.tables import Table, bytes_text, plain

MOST_DEVICES = 2**20
"""On up to how many devices programs are placed."""
MOST_RAISES = 12
"""How often holding is made to cost more, at most."""
FIRST_PER_FLOP, RAISED_PER_FLOP = 1 / 20000, 3.0
"""What an operation costs besides where too much is computed, in received bytes, and by how much that rises."""
REFINED = 5
"""How often prices are tried between the last under which too much is computed and the first other."""
EASED = 3
"""The same where too much was held alone."""
MOST_LOWERED = 8
"""How often less memory is tried than what would do, at most, before that is named."""
MOST_TAKEN_BACK = 40
"""How many parts of a choice are tried that had to be given up, at most."""
LESS = 0.5
"""Of the peak of a placement, what the next of a shortlist may take."""
TIE = 1e-6
"""What a byte of an input costs in a search, in received bytes: little, so that of equals the smaller is chosen."""
LARGE = 0.01
"""As a part of a limit, from which size on a whole value matters."""
NAMED = 4
"""How many of the values that make a peak a refusal names."""


@dataclass(frozen=True)
class Limits:
    """What a device may hold and compute at most; anything where None."""

    memory: int | None = None
    """Bytes at once, as `Placement.peak_bytes` counts them."""
    work: int | None = None
    """Operations in all, as `Placement.flops` counts them."""

    def let_hold(self, placed: Placement) -> bool:
        """Whether a placement holds no more."""
        return self.memory is None or placed.peak_bytes <= self.memory

    def let_compute(self, placed: Placement) -> bool:
        """Whether a placement computes no more."""
        return self.work is None or placed.flops <= self.work

    def are_kept(self, placed: Placement) -> bool:
        """Both."""
        return self.let_hold(placed) and self.let_compute(placed)


NO_LIMITS = Limits()


class LayoutSearch:
    """A program and a goal.

    Args:
        program: to be placed.
        goal: what is made least.
        until_priority: the last priority of dims that counts; all where None.
        is_free: whether what is open of inputs is chosen too.
        deadline: when to end with the best so far, by `time.monotonic`.

    Raises:
        ReshardError: `bad-network` where a mesh has devices beyond the network; `too-large`; `no-plan` where an
            operation can be computed in no layout.
    """

    def __init__(
        self,
        program: Builder,
        goal: Goal,
        until_priority: int | None = None,
        *,
        is_free: bool = False,
        deadline: float | None = None,
    ) -> None:
        for mesh in program.meshes.values() if goal.network is not None else ():
            check_reach(goal.network, mesh)
        for mesh in program.meshes.values():
            if mesh.size > MOST_DEVICES:
                raise ReshardError("too-large", f"a program is placed on up to {MOST_DEVICES} devices, got {mesh.size}")
        self.program, self.deadline = program, deadline
        self.net, self.chooser = Net(program), Chooser(goal, is_for_many=True)
        self.beginnings: Sequence[Flow] = ()
        """Where people begin: what keeps limits is looked for from there too."""
        self.flows = self.net.runs(until_priority)
        self._reasons: dict[tuple[int, Sharding], str] = {}
        self.model = Model(self.net, self.flows, self.chooser, is_pinned=until_priority is not None, is_free=is_free)

    def best(self, flow: Flow | None = None) -> Optimum:
        """The cheapest choice that is found, from an outcome of propagation or from its own."""
        return optimum(self.model, [flow or self.flows[0], *self.flows[1:]], self.deadline)

    def placed(self, best: Optimum, limits: Limits = NO_LIMITS) -> Placement:
        """What comes of a choice; single operations are looked at again where that leaves work below a limit.

        Not where they shared reshards, so that each by itself costs less and the program more.
        """
        again = settled(self.model, self.chooser, best)
        placed = self._explicit(again)
        if again is best:
            return placed
        if not limits.let_compute(placed):
            return self._explicit(best)
        return placed if placed.cost <= best.cost * (1 + SAME) else min(self._explicit(best), placed, key=_cost)

    def _explicit(self, best: Optimum) -> Placement:
        """A choice as a program, with its reasons."""
        for number, sharding in enumerate(best.shardings):
            if (number, sharding) not in self._reasons:
                self._reasons[number, sharding] = reason(self.net, self.flows, number, sharding)
        reasons = [self._reasons[pair] for pair in enumerate(best.shardings)]
        return explicit(self.program, self.net, self.chooser, best, reasons)

    def smaller(self, best: Optimum, placed: Placement, limits: Limits) -> Iterator[tuple[Optimum, Placement]]:
        """Choices where what is too much costs more and more, as long as it is, and the first where it is not.

        Where all that is held or computed costs alike, much is given up at once; so parts of the choice to begin with
        come last, taken back one by one as far as the limits let them.
        """
        first, costs, per_flop, besides = best, dict[int, float](), 0.0, Besides()
        if limits.are_kept(placed):
            return
        for _ in range(MOST_RAISES):
            before = besides
            spans = lives(self.program.operations, dict(zip(self.net.values, best.shardings, strict=True)))
            if limits.memory is not None and not limits.let_hold(placed):
                costs = self._raised(costs, spans, placed, limits.memory)
            if not limits.let_compute(placed):
                per_flop = max(RAISED_PER_FLOP * per_flop, FIRST_PER_FLOP * self.model.goal.per_byte)
            besides = Besides(rents(spans, costs), per_flop)
            best = changed(self.model, best, besides, self.deadline)
            placed = self.placed(best, limits)
            yield best, placed
            if limits.are_kept(placed) or self._is_late():
                break
        if limits.are_kept(placed):
            yield from self._refined(first, best, (before, besides), limits)

    def _refined(
        self, first: Optimum, best: Optimum, prices: tuple[Besides, Besides], limits: Limits
    ) -> Iterator[tuple[Optimum, Placement]]:
        """Choices that keep limits, at lower prices, or begun elsewhere, and the cheapest with parts of the first.

        Prices are between the last at which too much is held or computed, and the first at which it is not.
        """
        low, high = prices
        for _ in range((REFINED if high.per_flop else EASED) if not self._is_late() else 0):
            middle = halfway(low, high)
            other = changed(self.model, best, middle, self.deadline)
            placed = self.placed(other, limits)
            if limits.are_kept(placed):
                high, best = middle, min(best, other, key=lambda each: each.cost)
                yield other, placed
            else:
                low = middle
        for flow in self.beginnings if not self._is_late() else ():
            other = changed(self.model, best, high, self.deadline, flow)
            placed = self.placed(other, limits)
            if limits.are_kept(placed):
                best = min(best, other, key=lambda each: each.cost)
                yield other, placed
        left = itertools.count(MOST_TAKEN_BACK, -1)
        best = crossed(
            self.model,
            best,
            first,
            lambda each: next(left) > 0 and not self._is_late() and limits.are_kept(self.placed(each, limits)),
        )
        yield best, self.placed(best, limits)

    def from_recipes(self, best: Optimum, limits: Limits) -> Iterator[tuple[Optimum, Placement]]:
        """Choices held to limits where inputs are as people would begin: so few are left that prices lead far."""
        for flow in self.beginnings if not self._is_late() else ():
            narrow = copy(self)
            narrow.model, narrow.beginnings = self.model.keeping(flow), ()
            start = narrow.best(flow)._replace(least=best.least)
            placed = narrow.placed(start, limits)
            yield start, placed
            yield from narrow.smaller(start, placed, limits)

    def _raised(
        self, costs: Mapping[int, float], spans: Sequence[Life], placed: Placement, limit: int
    ) -> dict[int, float]:
        """What a byte costs per moment, raised where a placement holds too much."""
        large = {
            value.number: spans[value.number]
            for value in self.net.values
            if prod(value.shape) * value.dtype.itemsize >= LARGE * limit
        }
        return raised(costs, self._during(placed), large, limit, self.model.goal.per_byte)

    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _during(self, placed: Placement) -> dict[int, int]:
        """Per operation of the program the bytes that a device holds while it runs, or what is moved for it."""
        numbers = {value.name: value.number for value in self.net.values}
        during: dict[int, int] = {}
        number = len(numbers) - 1
        for operation in reversed(placed.operations):
            number = numbers.get(operation.result.name, number)
            during[number] = max(during.get(number, 0), placed.held.during[operation.result.number])
        return during

    def within(self, best: Optimum, placed: Placement, limits: Limits) -> list[tuple[Optimum, Placement]]:
        """Choices that keep limits.

        Raises:
            ReshardError: `no-plan` where none is found, with a limit with which one is.
        """
        tried = self._tried(best, placed, limits)
        fitting = [pair for pair in tried if limits.are_kept(pair[1])]
        if fitting:
            return fitting
        working = [pair for pair in tried if limits.let_compute(pair[1])]
        if not working:
            least = min(each.flops for _, each in tried)
            text = f"no placement is found in which a device computes less than {least} operations"
            raise ReshardError("no-plan", f"{text}; work_limit is {limits.work}")
        for small in sorted(working, key=_peak):
            larger = replace(limits, memory=small[1].peak_bytes)
            again = [(best, placed), *self.smaller(best, placed, larger)]
            if any(larger.are_kept(each) for _, each in again):
                break
        for _ in range(MOST_LOWERED):  # prices that lead to a far limit lead past what a near one finds
            lower = replace(limits, memory=small[1].peak_bytes - 1)
            below = [] if self._is_late() else self._tried(best, placed, lower)
            fitting = [pair for pair in below if lower.are_kept(pair[1])]
            if not fitting:
                break
            small = min(fitting, key=_peak)
            if limits.are_kept(small[1]):
                return [small]
        raise _refused(small[1], limits.memory or 0)

    def _tried(self, best: Optimum, placed: Placement, limits: Limits) -> list[tuple[Optimum, Placement]]:
        """A choice, and all to which limits lead."""
        return [(best, placed), *self.smaller(best, placed, limits), *self.from_recipes(best, limits)]


def _cost(placed: Placement) -> float:
    """What the goal adds up."""
    return placed.cost


def _peak(pair: tuple[Optimum, Placement]) -> int:
    """What a choice needs on a device."""
    return pair[1].peak_bytes


@uncollected()
def place(
    program: Builder,
    goal: Goal,
    until_priority: int | None,
    deadline: float | None = None,
    limits: Limits = NO_LIMITS,
) -> Placement:
    """Carry the shardings of a program through and place it, long einsums as they stand or two operands at a time.

    Raises:
        ReshardError: as `LayoutSearch`; `no-plan` where no placement is found that keeps the limits.
    """
    if not long_einsums(program):
        return _placed(program, goal, until_priority, deadline, limits)
    orders = in_pairs(program)
    tried: list[Placement] = []
    refusals: list[ReshardError] = []
    for each in (program, *orders.programs):
        if tried and deadline is not None and time.monotonic() > deadline:
            break
        try:
            tried.append(_placed(each, goal, until_priority, deadline, limits))
        except ReshardError as error:
            refusals.append(error)
    if not tried:
        raise refusals[0]
    are_all = orders.are_all and len(tried) > len(orders.programs)
    least = LowerBound(lambda: min(each.least.cost for each in tried)) if are_all else NOTHING
    return replace(tried[0] if orders.is_alone else min(tried, key=_cost), least=least)


def _placed(
    program: Builder, goal: Goal, until_priority: int | None, deadline: float | None, limits: Limits
) -> Placement:
    """A program as it stands."""
    search = LayoutSearch(program, goal, until_priority, deadline=deadline)
    best = search.best()
    fitting = search.within(best, search.placed(best, limits), limits)
    placed = min((placed for _, placed in fitting), key=_cost)
    search.model.dissolve()
    search.model.forget()
    search.net.forget()
    return replace(placed, memory_limit=limits.memory, work_limit=limits.work)


def _refused(least: Placement, limit: int) -> ReshardError:
    """Why a limit is not kept."""
    largest = [
        f"{name} {value.dtype.name}{list(least.sharding(value).local_shape(value.shape))} {bytes_text(size)}"
        for name, size in least.peak_values[:NAMED]
        for value in [least.value(name)]
    ]
    return ReshardError(
        "no-plan",
        f"no placement is found that needs less than {least.peak_bytes} bytes on a device, for {', '.join(largest)}; "
        f"memory_limit is {limit}",
    )


@dataclass(frozen=True)
class Shortlist:
    """The best few placements of a program."""

    placements: tuple[Placement, ...]
    """The cheapest first, then cheaper in memory, not in the goal."""
    memory_limit: int | None = None
    """Bytes that a device may hold."""

    @property
    def best(self) -> Placement:
        """The cheapest that was found."""
        return self.placements[0]

    def table(self) -> str:
        """What each costs, and how its inputs are sharded."""
        numbers = [str(number) for number in range(1, len(self.placements) + 1)]
        rows = [("layout", "received", "work", "peak", "seconds", f"least {self.best.goal.title}")]
        for number, placed in zip(numbers, self.placements, strict=True):
            rows.append(
                (
                    number,
                    bytes_text(placed.received_bytes),
                    f"{placed.flops:.4g}",
                    bytes_text(placed.peak_bytes),
                    "" if placed.seconds is None else f"{placed.seconds:.4g}",
                    "proved" if placed.is_proved else f"not below {placed.bound / placed.cost:.1%} of it",
                )
            )
        inputs: list[tuple[str, ...]] = [("input", "shape", *numbers)]
        for value in self.best.inputs:
            shape = f"{value.dtype.name}[{', '.join(map(str, value.shape))}]"
            inputs.append((value.name, shape, *(placed.sharding(value.name).text() for placed in self.placements)))
        limit = [] if self.memory_limit is None else [f"memory limit {bytes_text(self.memory_limit)}", ""]
        return plain([*limit, Table(rows, {*rows[0][1:5]}), "", Table(inputs)])

    def __str__(self) -> str:
        return self.table()


def shortlist(
    program: Builder, goal: Goal, memory_limit: int | None, count: int, deadline: float | None = None
) -> Shortlist:
    """The best few placements of a program whose inputs are open where nothing is said of them.

    Raises:
        ReshardError: as `place`.
    """
    tied, state = copy(program), taking_over(program)
    tied.ties = [*program.ties, *state]
    search = LayoutSearch(tied, goal, is_free=True, deadline=deadline)
    inputs = {value.number: Rent(kept=TIE * search.model.goal.per_byte) for value in program.inputs}
    search.beginnings = [Net(recipe).runs(None)[0] for recipe in recipes(program, [value for value, _ in state])]
    *flows, tensor = search.beginnings
    best = search.best(tensor)
    for flow in (None, *flows):
        best = min(changed(search.model, best, Besides(inputs), deadline, flow), best, key=lambda each: each.cost)
    fitting = search.within(best, search.placed(best), Limits(memory_limit))
    while True:
        front = _front([placed for _, placed in fitting])
        least = min(fitting, key=lambda pair: pair[1].peak_bytes)
        fitting += search.smaller(*least, Limits(int(LESS * least[1].peak_bytes))) if len(front) < count else ()
        if min(placed.peak_bytes for _, placed in fitting) == least[1].peak_bytes:
            best_few = (replace(each, memory_limit=memory_limit) for each in front[:count])
            if long_einsums(program):  # other orders might cost less
                best_few = (replace(each, least=NOTHING) for each in best_few)
            return Shortlist(tuple(best_few), memory_limit)


def _front(found: Sequence[Placement]) -> list[Placement]:
    """Those than which none is cheaper with as little memory, the cheapest first."""
    front: list[Placement] = []
    for placed in sorted(found, key=lambda each: (each.cost, each.peak_bytes)):
        if not front or placed.peak_bytes < front[-1].peak_bytes:
            front.append(placed)
    return front
