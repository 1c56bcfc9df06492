"""An einsum and the program of that one operation: one layout, the same bytes, the same work, the same time.

The program has the operands' shardings on its inputs and the target on its output.
Where no target is given, the einsum is asked for the place in which the program leaves the result: a program says of
an open result what propagation says, an einsum where it is cheapest, which may be elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

import pytest

import reshard as rs
from reshard import Mesh, Sharding
from reshard.operations.pattern import Pattern
from reshard.propagation import Placement, Program

PATTERNS = (
    "ij,jk->ik", "bij,bjk->bik", "bij,jk->bik", "ij,ij->ij", "ij->ji", "ij->i", "ij->", "i,j->ij", "ij,j->i",
    "(a b) c -> a (b c)", "a b -> (a b)", "ij,jk,kl->il",
)  # fmt: skip
SETTINGS: dict[str | None, list[dict[str, int]]] = {
    None: [{"x": 2, "y": 2}, {"x": 2, "y": 4}, {"x": 2, "y": 3}, {"x": 2, "y": 2, "z": 2}, {"x": 8}],
    "h100-8": [{"x": 2, "y": 4}, {"x": 2, "y": 2}, {"x": 8}],
    "h100-2x8": [{"x": 2, "y": 8}, {"x": 4, "y": 4}, {"x": 2, "y": 2, "z": 4}],
    "tpu-v5e-2x4": [{"x": 2, "y": 4}, {"x": 8}, {"x": 2, "y": 2, "z": 2}],
}
GOALS = [(None, "bytes"), (None, "balanced"), *((network, None) for network in SETTINGS if network)]
DRAWN = 250
"""Cases of each setting."""
SAMPLE, SAMPLE_ON_NETWORK = 8, 4


class Case(NamedTuple):
    """An einsum of sharded operands."""

    pattern: Pattern
    sizes: dict[str, int]
    sources: list[Sharding]
    target: Sharding | None

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [self.pattern.shape_of(term, self.sizes) for term in self.pattern.operands]

    @property
    def unknown_sizes(self) -> dict[str, int] | None:
        return self.sizes if "(" in str(self.pattern) else None

    def einsum(self, target: Sharding | None, network: str | None, goal: str | None = None) -> rs.EinsumPlan:
        return rs.einsum(
            self.pattern,
            *self.sources,
            shapes=self.shapes,
            target=target,
            network=network,
            goal=goal,
            sizes=self.unknown_sizes,
        )

    def program(self, network: str | None, goal: str | None = None) -> Placement:
        program = Program(self.sources[0].mesh)
        ends = enumerate(zip(self.shapes, self.sources, strict=True))
        inputs = [program.input(f"operand{number}", shape, "float32", source) for number, (shape, source) in ends]
        result = program.op(self.pattern, *inputs, sizes=self.unknown_sizes, result="result")
        program.output(result, self.target)
        return program.propagate(network, goal=goal)


def drawn(seed: int, network: str | None) -> Case:
    rng = random.Random(f"{seed} {network}")
    mesh = Mesh.of(rng.choice(SETTINGS[network]))
    pattern = Pattern.of(rng.choice(PATTERNS))
    choices = (16, 32, 48, 64, 256) if rng.random() < 0.8 else (3, 5, 6, 10, 12)
    sizes = {label: rng.choice(choices) for label in pattern.labels}
    sources = [drawn_sharding(rng, mesh, len(term), is_partial=rng.random() < 0.3) for term in pattern.operands]
    target = drawn_sharding(rng, mesh, len(pattern.output), is_partial=rng.random() < 0.15)
    return Case(pattern, sizes, sources, target if rng.random() < 0.8 else None)


def drawn_sharding(rng: random.Random, mesh: Mesh, ndim: int, *, is_partial: bool) -> Sharding:
    """Every axis on any dim, on none, or unreduced."""
    dims: list[list[str]] = [[] for _ in range(ndim)]
    unreduced = []
    for axis in rng.sample(list(mesh.sizes), len(mesh.sizes)):
        place = rng.random()
        if is_partial and place < 0.12:
            unreduced.append(axis)
        elif place < 0.75 and ndim:
            dims[rng.randrange(ndim)].append(axis)
    return Sharding.of(mesh, *dims, unreduced=unreduced)


def check(case: Case, network: str | None, goal: str | None) -> None:
    placed = case.program(network, goal)
    target = case.target or placed.sharding("result")
    plan = case.einsum(target, network, goal)
    computed = [operation for operation in placed.operations if operation.name == "einsum"]
    layouts = [tuple(placed.sharding(value) for value in operation.values) for operation in computed]
    assert layouts == [part.layout.shardings for part in plan.parts()]
    assert placed.sharding("result") == target
    assert placed.received_bytes == plan.received_bytes
    assert sum(placed.work.values()) == plan.flops
    assert placed.seconds == (None if plan.seconds is None else pytest.approx(plan.seconds, rel=1e-12))
    if case.target is None and (free := case.einsum(None, network, goal)).is_proved:
        assert free.price[:2] <= (plan.price.cost * (1 + 1e-12), plan.price.received_bytes)


def check_all(seeds: Iterable[int], network: str | None, goal: str | None) -> None:
    for seed in seeds:
        case = drawn(seed, network)
        try:
            check(case, network, goal)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {case.pattern} on {network or goal}") from error


@pytest.mark.parametrize(("network", "goal"), GOALS)
def test_an_einsum_and_its_program_are_alike(network: str | None, goal: str | None) -> None:
    check_all(random.Random(0).sample(range(DRAWN), SAMPLE if network is None else SAMPLE_ON_NETWORK), network, goal)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "goal"), GOALS)
def test_a_thousand_einsums_and_their_programs_are_alike(network: str | None, goal: str | None) -> None:
    check_all(range(DRAWN), network, goal)


def test_work_is_counted_along_the_path() -> None:
    """Two products of 64 x 64 matrices on 8 devices, which each have an eighth of the rows, not of all four labels."""
    mesh = Mesh.of(x=8)
    rows, whole = Sharding.of(mesh, "x", None), Sharding.of(mesh, None, None)
    case = Case(Pattern.of("ij,jk,kl->il"), dict.fromkeys("ijkl", 64), [rows, whole, whole], rows)
    placed, plan = case.program("h100-8"), case.einsum(rows, "h100-8")
    assert sum(placed.work.values()) == plan.flops == 2 * 2 * 64**3 // 8


def test_element_by_element_a_device_computes_once_per_element_of_the_result() -> None:
    mesh = Mesh.of(x=4)
    program = Program(mesh)
    a = program.input("a", (64, 32), "float32", Sharding.of(mesh, "x", None))
    b = program.op("ij->ij", a, name="tanh", result="b")
    c = program.op("ij,ij->ij", a, b, name="add", result="c")
    placed = program.propagate()
    assert [placed.work[placed.value(value)] for value in (b, c)] == [64 * 32 // 4] * 2
