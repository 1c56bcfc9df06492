"""Propagation against itself with names and orders changed, and what decides its choices."""

from __future__ import annotations

import random

import pytest
from programs import conflicting, generate

from reshard import Mesh, Sharding
from reshard.operations.pattern import Pattern
from reshard.propagation import Program, Value
from reshard.propagation.builder import NewValue


def shuffled(program: Program, rng: random.Random) -> tuple[Program, dict[Value, Value]]:
    """The program with its operations in another order and with other names for values and labels."""
    other = Program({"other": program.mesh})
    made: dict[Value, Value] = {}
    left = list(program.operations)
    while left:
        ready = [operation for operation in left if all(operand in made for operand in operation.operands)]
        operation = rng.choice(ready)
        left.remove(operation)
        pattern, roles = operation.pattern, (operation.replicated, operation.shifted, operation.selected)
        if pattern is not None:
            named = {label: f"q{rng.randrange(10**6)}_{n}" for n, label in enumerate(pattern.labels)}
            terms = [tuple(tuple(named[label] for label in group) for group in term) for term in pattern.terms]
            pattern = Pattern(tuple(terms[:-1]), terms[-1])
            roles = tuple(tuple(named[label] for label in role) for role in roles)  # type: ignore[assignment]
        value = other.add(
            operation.name,
            [made[operand] for operand in operation.operands],
            NewValue(f"w{rng.randrange(10**9)}", operation.result.shape, operation.result.dtype),
            pattern=pattern,
            sizes=() if pattern is None else tuple(_sizes(pattern, operation.values).items()),
            replicated=roles[0],
            shifted=roles[1],
            selected=roles[2],
            attributes=operation.attributes,
        )
        made[operation.result] = value
    given = list(program.annotations.items())
    rng.shuffle(given)
    for value, sharding in given:
        other.constrain(made[value], sharding)
    return other, made


def _sizes(pattern: Pattern, values: tuple[Value, ...]) -> dict[str, int]:
    try:
        return pattern.solve_sizes([value.shape for value in values], {})
    except ValueError:
        return {}


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 100), marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("make", [generate, conflicting])
def test_neither_order_nor_names_have_a_say(make: object, seeds: range) -> None:
    for seed in seeds:
        program = make(seed)  # type: ignore[operator]
        rng = random.Random(seed)
        placed = program.propagate()
        for _ in range(2):
            other, made = shuffled(program, rng)
            again = other.propagate()
            for value, renamed in made.items():
                assert again.sharding(renamed) == placed.sharding(value), (seed, value)
            assert again.received_bytes == placed.received_bytes


def test_a_choice_goes_by_price() -> None:
    """The smaller operand moves, whichever comes first."""
    for rows in (True, False):
        program = generate(0)
        mesh = program.mesh
        program = Program(mesh)
        big = program.input("big", (64, 64), sharding=Sharding.of(mesh, *(("x", None) if rows else (None, "x"))))
        small = program.input("small", (64, 64), "float32", Sharding.of(mesh, *((None, "x") if rows else ("x", None))))
        halved = program.op("ij,ij->ij", small, big, name="add", result="sum")
        wide = program.op("ij->ijk", halved, name="broadcast", sizes={"k": 8}, result="wide")
        program.output(wide, Sharding.of(mesh, *(("x", None, None) if rows else (None, "x", None))))
        placed = program.propagate()
        assert placed.sharding("sum").dims == placed.sharding("big").dims
        moved = [operation.operands[0].name for operation in placed.operations if operation.name == "reshard"]
        assert moved == ["small"]


def transformer_block(size: int) -> Program:
    """Sequence parallel on one axis, with every weight also cut by that of the batch and a third."""
    mesh = Mesh.of(data=size, expert=size, model=size)
    both = ("data", "expert")
    program = Program(mesh)

    def weight(name: str, shape: tuple[int, ...], *axes: str | tuple[str, ...] | None) -> Value:
        return program.input(name, shape, "bf16", Sharding.of(mesh, *axes))

    def normalised(h: Value) -> Value:
        return program.op("bsd,bs->bsd", h, program.op("bsd->bs", h, name="sum"), name="sub")

    x = weight("x", (16, 2048, 4096), "data", "model", None)
    up, down = weight("up", (4096, 16384), both, "model"), weight("down", (16384, 4096), "model", both)
    read = [weight(name, (4096, 32, 128), both, "model", None) for name in ("query", "key", "value")]
    mixed = weight("mixed", (32, 128, 4096), "model", None, both)
    n = normalised(x)
    query, key, value = (program.op("bsd,dhn->bshn", n, one) for one in read)
    scores = program.op("bshn,bthn->bhst", query, key)
    scores = program.op("bhst,bhs->bhst", scores, program.op("bhst->bhs", scores, name="max"), name="sub")
    seen = program.op("bshn,hnd->bsd", program.op("bhst,bthn->bshn", scores, value), mixed)
    x = program.op("bsd,bsd->bsd", x, seen, name="add")
    hidden = program.op("bsf->bsf", program.op("bsd,df->bsf", normalised(x), up), name="relu")
    x = program.op("bsd,bsd->bsd", x, program.op("bsf,fd->bsd", hidden, down), name="add")
    program.output(x, Sharding.of(mesh, "data", "model", None))
    return program


@pytest.mark.slow
def test_axes_laid_one_at_a_time() -> None:
    """No run has the right place for every axis: what is chosen costs less, in whatever order and names."""
    program = transformer_block(2)
    placed = program.propagate()
    other, made = shuffled(program, random.Random(0))
    again = other.propagate()
    assert all(again.sharding(renamed) == placed.sharding(value) for value, renamed in made.items())


@pytest.mark.slow
def test_axes_laid_one_at_a_time_on_many_devices() -> None:
    large = transformer_block(8)
    assert large.propagate().received_bytes < large.propagate(until_priority=0).received_bytes


def test_what_a_closed_dim_refuses_is_not_brought_there() -> None:
    """One user needs a whole, the other would take it in parts: it is whole, for parts of it cost nothing."""
    text = """
sdy.mesh @mesh = <["x"=2, "y"=3]>
a = input : float32[48] <@mesh, [{?}]>
whole = input : float32[48, 48] <@mesh, [{}, {}]>
first = einsum "a,az->z" (a, whole)
parts = input : float32[48] <@mesh, [{"x", "y"}]>
second = add "a,a->a" (a, parts) : float32[48] <@mesh, [{}]>
one = output (first)
two = output (second)
"""
    placed = Program.parse(text).propagate(goal="bytes")
    assert placed.sharding("a").text() == "[{}]"
    assert placed.received_bytes == 40 * 4  # only `second` is gathered


def test_two_labels_of_one_dim_do_not_take_one_axis() -> None:
    mesh = Mesh.of(y=8, z=2)
    program = Program(mesh)
    a = program.input("a", (8, 4), sharding=Sharding.of(mesh, "?", ("z", "?")))
    b = program.reshape(a, (32,), result="b")
    program.constrain(b, Sharding.of(mesh, ("y:(1)4", "z", "?")))
    program.output(b)
    assert program.propagate().sharding("b").text() == '[{"y":(1)4, "z"}]'
