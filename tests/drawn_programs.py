"""Random small programs, each as a `Program` and as the description that `milp.py` solves, and how far apart they are.

`python tests/drawn_programs.py 100 --seed 0` draws, propagates and solves, and prints per family and mesh what
propagation costs over what the solver finds.
Where the solver finds nothing as good, propagation has used what the solver's space lacks: parts of axes, or other
orders of them; such a program counts as at its optimum.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import geometric_mean, median

import milp

import reshard as rs

MESHES = ({"x": 2, "y": 2}, {"x": 2, "y": 4}, {"x": 4, "y": 2, "z": 2})
SIZES = (16, 32, 64, 128, 256, 512)
ODD_SIZES = (24, 48, 96, 192)
KINDS = {"product": "einsum", "terms": "add", "sum": "sum", "max": "max", "take": "take"}


class Drawn:
    """A program under construction, twice."""

    def __init__(self, rng: random.Random, axes: dict[str, int]) -> None:
        self.rng = rng
        self.mesh = rs.Mesh.of(axes)
        self.program = rs.Program(self.mesh)
        self.description = milp.Description(tuple(axes.values()))
        self.values: dict[str, rs.Value] = {}
        self.itemsize = rng.choice((2, 4))
        self.family = ""

    def size(self) -> int:
        """Of a dim, mostly a power of two."""
        return self.rng.choice(ODD_SIZES if self.rng.random() < 0.1 else SIZES)

    def state(self, shape: Sequence[int]) -> milp.State:
        """Every axis on any dim that it divides, or on none."""
        parts = [1] * len(shape)
        state = []
        for axis in self.description.axes:
            fitting = [dim for dim, size in enumerate(shape) if size % (parts[dim] * axis) == 0]
            at = self.rng.choice((*fitting, milp.FREE))
            if at != milp.FREE:
                parts[at] *= axis
            state.append(at)
        return tuple(state)

    def sharding(self, state: milp.State, ndim: int) -> rs.Sharding:
        names = list(self.mesh.sizes)
        dims = [[name for name, at in zip(names, state, strict=True) if at == dim] for dim in range(ndim)]
        return rs.Sharding.of(self.mesh, *dims)

    def _added(self, value: rs.Value, itemsize: int) -> str:
        self.values[value.name] = value
        self.description.shapes[value.name], self.description.itemsizes[value.name] = value.shape, itemsize
        return value.name

    def input(self, *shape: int, dtype: str | None = None) -> str:
        """A value that is given, in any state."""
        state, name = self.state(shape), f"in{len(self.values)}"
        itemsize = 4 if dtype else self.itemsize
        dtype = dtype or {2: "bf16", 4: "f32"}[self.itemsize]
        value = self.program.input(name, shape, dtype, self.sharding(state, len(shape)))
        self.description.inputs[name] = state
        return self._added(value, itemsize)

    def op(self, kind: str, pattern: str, *operands: str, name: str | None = None) -> str:
        """An operation of a kind of `milp.Step`; `name` is that of the function of an `each`."""
        given = [self.values[operand] for operand in operands]
        selected = pattern[0] if kind == "take" else ""
        value = self.program.op(pattern, *given, name=name or KINDS[kind], selected=selected)
        made = self._added(value, self.itemsize)
        letters = tuple(pattern.replace("->", ",").split(","))
        self.description.steps.append(milp.Step(kind, letters, operands, made))
        return made

    def output(self, value: str) -> None:
        """A value that is given back, in any state, or in whichever is best."""
        shape = self.description.shapes[value]
        state = self.state(shape) if self.rng.random() < 0.5 else None
        sharding = None if state is None else self.sharding(state, len(shape))
        self.program.output(self.values[value], sharding)
        self.description.outputs.append((value, state))


def chain(drawn: Drawn) -> None:
    """Products, with a function between some of them."""
    length = drawn.rng.randint(2, 5)
    sizes = [drawn.size() for _ in range(length + 2)]
    value = drawn.input(sizes[0], sizes[1])
    for fan_in, fan_out in pairwise(sizes[1:]):
        value = drawn.op("product", "ij,jk->ik", value, drawn.input(fan_in, fan_out))
        if drawn.rng.random() < 0.3:
            value = drawn.op("each", "ij->ij", value, name="tanh")
    drawn.output(value)


def mlp(drawn: Drawn) -> None:
    """Two products and a function, gated or not, residual or not."""
    batch, features, hidden = drawn.size(), drawn.size(), drawn.size()
    x = drawn.input(batch, features)
    value = drawn.op("each", "ij->ij", drawn.op("product", "bd,df->bf", x, drawn.input(features, hidden)), name="silu")
    if drawn.rng.random() < 0.5:
        gate = drawn.op("product", "bd,df->bf", x, drawn.input(features, hidden))
        value = drawn.op("each", "bf,bf->bf", value, gate, name="mul")
    value = drawn.op("product", "bf,fd->bd", value, drawn.input(hidden, features))
    if drawn.rng.random() < 0.5:
        value = drawn.op("terms", "bd,bd->bd", value, x)
    drawn.output(value)


def attention(drawn: Drawn) -> None:
    """Scores, a softmax without its maximum, or with it, and the values weighted by it."""
    batched = "b" if len(drawn.description.axes) == 2 and drawn.rng.random() < 0.7 else ""
    lead = [drawn.size() for _ in batched]
    queries, keys, features = drawn.size(), drawn.size(), drawn.size()
    q, k, v = (drawn.input(*lead, size, features) for size in (queries, keys, keys))
    scores = drawn.op("product", f"{batched}sd,{batched}td->{batched}st", q, k)
    row = f"{batched}st,{batched}s->{batched}st"
    if drawn.rng.random() < 0.4:
        greatest = drawn.op("max", f"{batched}st->{batched}s", scores)
        scores = drawn.op("terms", row, scores, greatest, name="sub")
    scores = drawn.op("each", f"{batched}st->{batched}st", scores, name="exp")
    total = drawn.op("sum", f"{batched}st->{batched}s", scores)
    weights = drawn.op("each", row, scores, total, name="div")
    value = drawn.op("product", f"{batched}st,{batched}td->{batched}sd", weights, v)
    if drawn.rng.random() < 0.3 and not batched:
        value = drawn.op("product", "sd,de->se", value, drawn.input(features, drawn.size()))
    drawn.output(value)


def norm(drawn: Drawn) -> None:
    """Rows scaled to one length between two products."""
    batch, features, hidden = drawn.size(), drawn.size(), drawn.size()
    x = drawn.input(batch, features)
    if drawn.rng.random() < 0.5:
        x = drawn.op("product", "bd,de->be", x, drawn.input(features, features))
    squares = drawn.op("sum", "bd->b", drawn.op("each", "bd->bd", x, name="square"))
    factors = drawn.op("each", "b->b", squares, name="rsqrt")
    value = drawn.op("each", "bd,b->bd", x, factors, name="mul")
    if drawn.rng.random() < 0.5:
        value = drawn.op("each", "bd,d->bd", value, drawn.input(features), name="mul")
    value = drawn.op("product", "bd,df->bf", value, drawn.input(features, hidden))
    drawn.output(value)


def experts(drawn: Drawn) -> None:
    """Tokens dispatched by a one-hot mask of token and expert, a product per expert, and the way back."""
    tokens, count, features, hidden = drawn.size(), drawn.rng.choice((8, 16, 32)), drawn.size(), drawn.size()
    x, mask = drawn.input(tokens, features), drawn.input(tokens, count)
    sent = drawn.op("product", "td,te->etd", x, mask)
    value = drawn.op("product", "etd,edf->etf", sent, drawn.input(count, features, hidden))
    if drawn.rng.random() < 0.5:
        value = drawn.op("each", "etf->etf", value, name="relu")
    if drawn.rng.random() < 0.5:
        value = drawn.op("product", "etf,efd->etd", value, drawn.input(count, hidden, features))
    drawn.output(drawn.op("product", "etf,te->tf", value, mask))


def embedding(drawn: Drawn) -> None:
    """Rows of a table, the logits of a head, and a loss."""
    tokens, vocabulary, features = drawn.size(), drawn.size(), drawn.size()
    numbers = drawn.input(tokens, dtype="int32")
    x = drawn.op("take", "vd,t->td", drawn.input(vocabulary, features), numbers)
    if drawn.rng.random() < 0.5:
        x = drawn.op("product", "td,de->te", x, drawn.input(features, features))
    logits = drawn.op("product", "td,dv->tv", x, drawn.input(features, vocabulary))
    powers = drawn.op("each", "tv->tv", logits, name="exp")
    losses = drawn.op("each", "t->t", drawn.op("sum", "tv->t", powers), name="log")
    if drawn.rng.random() < 0.5:
        right = drawn.op("product", "tv,tv->t", logits, drawn.input(tokens, vocabulary))
        losses = drawn.op("terms", "t,t->t", losses, right, name="sub")
    drawn.output(losses if drawn.rng.random() < 0.4 else drawn.op("sum", "t->", losses))


def gradients(drawn: Drawn) -> None:
    """A product or two, and what they hand back to both operands."""
    batch, features, hidden = drawn.size(), drawn.size(), drawn.size()
    x, w = drawn.input(batch, features), drawn.input(features, hidden)
    value = drawn.op("product", "bd,df->bf", x, w)
    if drawn.rng.random() < 0.5:
        value = drawn.op("each", "bf->bf", value, name="tanh")
        given = drawn.op("each", "bf,bf->bf", value, drawn.input(batch, hidden), name="mul")
    else:
        given = drawn.input(batch, hidden)
    drawn.output(value)
    drawn.output(drawn.op("product", "bf,df->bd", given, w))
    change = drawn.op("product", "bd,bf->df", x, given)
    if drawn.rng.random() < 0.5:
        change = drawn.op("terms", "df,df->df", w, change, name="sub")
    drawn.output(change)


FAMILIES: tuple[Callable[[Drawn], None], ...] = (chain, mlp, attention, norm, experts, embedding, gradients)


def draw(seed: int) -> Drawn:
    """The program of a number: families and meshes take turns, all else is random."""
    rng = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    drawn = Drawn(rng, rng.choice(MESHES))
    drawn.family = family.__name__
    family(drawn)
    return drawn


GOALS = {"balanced": 1 / milp.WORK_PER_BYTE, "bytes": 0.0}
"""What an operation counts, in bytes."""
CLOSE = 1 + 1e-4
"""Bytes are whole, and the solver's fractions are not."""
MOST_WORK = 1.05
"""Of the even share, where work does not count."""


@dataclass(frozen=True)
class Compared:
    """What propagation and the solver say of one program."""

    seed: int
    family: str
    axes: tuple[int, ...]
    costs: tuple[float, float]
    """By the goal: of what propagation chose, and the least that is known."""
    received: tuple[float, float]
    """Bytes of the same two."""
    work: tuple[float, float]
    is_below: bool
    """Whether the solver's space has nothing as good as what propagation chose."""
    is_optimal: bool
    """Whether the solver has proved what it says."""
    seconds: tuple[float, float]
    """Of propagation, and of the solver."""
    bound: float
    """What propagation says that nothing costs less than."""
    is_proved: bool

    @property
    def ratio(self) -> float:
        """What propagation costs over the least."""
        return max(self.costs[0], 1.0) / max(self.costs[1], 1.0)

    @property
    def is_wrong(self) -> bool:
        """Whether its bound is above what the solver reaches, or it is said to be proved and the solver has less."""
        return self.bound > self.costs[1] * CLOSE or (self.is_proved and self.ratio > CLOSE)

    @property
    def mesh(self) -> str:
        """By the sizes of its axes."""
        return "x".join(map(str, self.axes))


def figures(placed: rs.Placement) -> tuple[int, int]:
    """Received bytes, reshard by reshard, and work of a device."""
    received = sum(plan.received_bytes * placed.trip_count(value) for value, plan in placed.plans.items())
    return received, sum(placed.work.values())


def compare(seed: int, goal: str = "balanced", seconds: float = 20.0) -> Compared:
    """Propagate one program and solve it; what propagation costs helps the solver to leave out what costs more."""
    drawn, per_work = draw(seed), GOALS[goal]
    description, cap = drawn.description, MOST_WORK if goal == "bytes" else inf
    limit = None if cap == inf else int(cap * description.even_share)
    start = time.perf_counter()
    placed = drawn.program.propagate(goal=goal, work_limit=limit)
    received, work = figures(placed)
    between = time.perf_counter()
    cost, is_allowed = received + per_work * work, work <= cap * description.even_share
    at_most = cost * (1 + 1e-9) + 0.01 if is_allowed else inf
    answer = milp.best(description, bytes_per_work=per_work, work_cap=cap, seconds=seconds, at_most=at_most)
    times = between - start, time.perf_counter() - between
    is_below = is_allowed and answer.cost > at_most
    least = (cost, received, work) if is_below else (answer.cost, answer.received_bytes, answer.work)
    pairs = list(zip((cost, received, work), least, strict=True))
    return Compared(
        seed, drawn.family, description.axes, *pairs, is_below, answer.is_optimal, times, placed.bound, placed.is_proved
    )


def summaries(cases: Sequence[Compared]) -> Iterator[str]:
    """Lines of figures: per mesh, per family, of all, and the worst."""
    groups: dict[str, list[Compared]] = {}
    for case in cases:
        for name in (case.mesh, case.family):
            groups.setdefault(name, []).append(case)
    names = ("median", "mean", "p90", "max", "sum", "bytes", "work")
    yield f"{'':12}{'n':>5}{'at optimum':>12}" + "".join(f"{name:>8}" for name in names)
    for name, group in [*sorted(groups.items()), ("all", list(cases))]:
        ratios = sorted(case.ratio for case in group)
        share = sum(ratio <= 1 + 1e-6 for ratio in ratios) / len(ratios)
        sums = [
            sum(ours for ours, _ in pairs) / max(sum(least for _, least in pairs), 1)
            for pairs in (
                [case.costs for case in group],
                [case.received for case in group],
                [case.work for case in group],
            )
        ]
        columns = (median(ratios), geometric_mean(ratios), ratios[len(ratios) * 9 // 10], ratios[-1], *sums)
        yield f"{name:12}{len(group):5}{share:12.0%}" + "".join(f"{ratio:8.3f}" for ratio in columns)
    yield f"below all of the solver's space: {[case.seed for case in cases if case.is_below]}"
    yield f"not proved: {[case.seed for case in cases if not case.is_optimal]}"
    yield f"bounds above the least, or wrongly proved: {[case.seed for case in cases if case.is_wrong]}"
    placing, solving = (sum(case.seconds[n] for case in cases) for n in (0, 1))
    yield f"seconds: propagation {placing:.1f}, solver {solving:.1f}"
    yield from (line(case) for case in sorted(cases, key=lambda case: -case.ratio)[:8])


def line(case: Compared) -> str:
    """One program in one line."""
    figures = {"bytes": case.received, "work": case.work}
    told = "  ".join(f"{name} {ours:.0f} / {least:.0f}" for name, (ours, least) in figures.items())
    seconds = f"seconds {case.seconds[0]:.2f} / {case.seconds[1]:.2f}"
    notes = ("  below" if case.is_below else "") + ("" if case.is_optimal else "  not proved")
    return f"seed {case.seed:5} {case.family:10}{case.mesh:6} ratio {case.ratio:7.3f}  {told}  {seconds}{notes}"


def main() -> None:
    """Draw, propagate, solve, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument(
        "--goal", choices=[*GOALS], default="balanced", help="bytes and work, or bytes at an even share"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of the solver for each")
    parser.add_argument("--verbose", action="store_true", help="a line for each program")
    parser.add_argument("--only", choices=[family.__name__ for family in FAMILIES])
    given = parser.parse_args()
    cases, unsolved = [], []
    for seed in range(given.seed, given.seed + given.count):
        if given.only and FAMILIES[seed % len(FAMILIES)].__name__ != given.only:
            continue
        case = compare(seed, given.goal, given.seconds)
        (cases if case.costs[1] < inf else unsolved).append(case)
        if given.verbose:
            print(line(case), flush=True)  # noqa: T201
    for text in summaries(cases):
        print(text)  # noqa: T201
    if unsolved:
        print("without an answer:", [case.seed for case in unsolved])  # noqa: T201


if __name__ == "__main__":
    main()
