"""Programs against the optimum, which a solver finds that shares no code with the planner (`milp.py`)."""

from __future__ import annotations

import gc
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from drawn_programs import CLOSE, compare

from reshard import Mesh, Program, ReshardError, Sharding, plan
from reshard.contraction.chooser import Chooser
from reshard.contraction.goal import Goal
from reshard.contraction.prices import Ends, Prices
from reshard.dtypes import dtype_named
from reshard.network import Network
from reshard.numpy import run_program
from reshard.propagation import shares
from reshard.propagation.copies import CopiedDual
from reshard.propagation.descent import Descent
from reshard.propagation.dual import Dual
from reshard.propagation.elimination import End, Link, eliminate
from reshard.propagation.fixpoint import Net
from reshard.propagation.message_waits import waits
from reshard.propagation.messages import Messages
from reshard.propagation.model import Model
from reshard.propagation.optimum import MOST_PASSED, optimum
from reshard.propagation.shares import even_shares
from reshard.propagation.space import MOST_ROWS, Options, Pieces
from reshard.propagation.ties import classes_of, kinds_of
from reshard.propagation.trees import arborescence
from reshard.propagation.two_steps import in_steps
from reshard.propagation.ways import Picks


def check(count: int, at_optimum: float) -> None:
    cases = [compare(seed) for seed in range(count)]
    solved = [case for case in cases if case.is_optimal]
    assert len(solved) > 0.9 * count
    assert sum(case.costs[0] for case in solved) <= 1.02 * sum(case.costs[1] for case in solved)
    assert sum(case.ratio <= CLOSE for case in solved) >= at_optimum * len(solved)
    assert max(case.ratio for case in solved) <= 1.3
    assert [case.seed for case in solved if case.is_wrong] == []


def test_small_programs_are_at_the_optimum() -> None:
    check(14, at_optimum=1.0)


def braided(mesh: Mesh, layers: int) -> Program:
    """Two streams, each layer of which multiplies both and adds what comes of it to each: nothing of it is a chain."""
    program = Program(mesh)
    left = program.input("left", (64, 48), "float32", Sharding.of(mesh, "x", None))
    right = program.input("right", (48, 64), "float32", Sharding.of(mesh, None, "y"))
    for _ in range(layers):
        square = program.op("ij,jk->ik", left, right)
        left, right = (
            program.op("ij,ij->ij", left, program.op("ik,kj->ij", square, left), name="add"),
            program.op("jk,jk->jk", right, program.op("ji,ik->jk", right, square), name="add"),
        )
    program.output(left)
    program.output(right)
    return program


def test_likely_choices_lead_as_far_and_bound_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As programs of hundreds of options a value are placed: of each value few are looked at after the first step."""
    program = braided(Mesh.of(x=2, y=2, z=2), 3)
    placed = program.propagate()
    net = Net(program)
    model = Model(net, net.runs(None), Chooser(Goal.of("balanced")))
    whole = Dual(model, even_shares(model))
    whole.run(2)
    likely = whole.likeliest(4)
    assert max(map(len, likely.values())) == 4
    assert Dual(model, even_shares(model), likely=likely).swept < whole.swept / 20
    monkeypatch.setattr(shares, "WIDE", 0)
    monkeypatch.setattr(shares, "LIKELY", 4)
    by_likely = program.propagate()
    assert by_likely.cost <= 1.02 * placed.cost
    assert by_likely.bound <= min(placed.cost, by_likely.cost)


@pytest.mark.slow
def test_five_hundred_small_programs_are_at_the_optimum() -> None:
    check(500, at_optimum=0.9)


@pytest.mark.slow
def test_two_hundred_small_programs_have_few_bytes_at_an_even_share_of_the_work() -> None:
    cases = [case for case in (compare(seed, "bytes") for seed in range(200)) if case.is_optimal]
    assert len(cases) > 180
    assert sum(case.costs[0] for case in cases) <= 1.05 * sum(case.costs[1] for case in cases)
    assert [case.seed for case in cases if case.is_wrong] == []


def test_a_value_goes_to_another_order_of_the_devices_at_its_price() -> None:
    """Where a mesh has as many options as another, one of the same number there is no place to stay at."""
    mesh = Mesh.of(x=3, y=2)
    left, right = Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "y")
    ways = (("x", "y"), ("y", "x"), ("x", None), (None, "y"), (("x", "y"), None), (None, None))
    for order, dims in product(((5, 4, 3, 2, 1, 0), (0, 3, 1, 4, 2, 5), (2, 0, 1, 5, 3, 4)), ways):
        target = Sharding.of(Mesh.of(x=3, y=2, device_ids=order), *dims)
        program = Program(mesh)
        ends = program.input("l", (6, 24), "float32", left), program.input("r", (24, 12), "float32", right)
        copy = program.op("ij->ij", program.op("ij,jk->ik", *ends))
        program.annotate(copy, target)
        program.output(copy, target)
        placed = program.propagate(goal="bytes")
        direct = plan(Sharding.of(mesh, "x", "y"), target, (6, 12), "float32")
        assert (placed.lower_bound_bytes or 0) <= placed.received_bytes <= direct.received_bytes
        assert placed.received_bytes <= placed.cost


def test_no_plan_takes_less_than_a_search_counts_on_between_meshes() -> None:
    mesh = Mesh.of(x=2, y=3)
    others = [
        Mesh.of(x=2, y=3, device_ids=order) for order in ((5, 4, 3, 2, 1, 0), (0, 2, 4, 1, 3, 5), (3, 4, 5, 6, 7, 8))
    ]
    sources = [Sharding.of(mesh, *dims, unreduced=axis) for axis, dims in (("x", ("y", None)), ("y", (None, None)))]
    prices, dtype = Prices(Goal()), dtype_named("float32")
    for source, other in product(sources, [mesh, *others]):
        for dims in product((None, "x", "y"), repeat=2):
            if dims[0] is None or dims[0] != dims[1]:
                target = Sharding.of(other, *dims)
                needed = plan(source, target, (12, 6), dtype).received_bytes
                assert 0 < prices.least_bytes(Ends(source, target, (12, 6), dtype)) <= needed


# What a program may say besides


def test_tied_values_are_sharded_alike() -> None:
    text = """
sdy.mesh @mesh = <["data"=4, "model"=2]>
w = input : float32[64, 64] <@mesh, [{"model"}, {}]>
g = input : float32[64, 64] <@mesh, [{}, {"data"}]>
n = sub "ij,ij->ij" (w, g) : float32[64, 64] {tied="w"}
out = output (n) : float32[64, 64]
"""
    program = Program.parse(text)
    assert [(one.name, other.name) for one, other in program.ties] == [("n", "w")]
    assert str(Program.parse(str(program))) == str(program)
    assert program.propagate().sharding("n") == program.propagate().sharding("w")
    program.tie(program.value("g"), program.value("n"))
    with pytest.raises(ReshardError, match="are tied, and cannot be sharded alike") as refusal:
        program.propagate()
    assert refusal.value.code == "bad-program"
    row = program.op("ij->j", program.value("w"), name="sum")
    with pytest.raises(ReshardError, match="must have one shape and dtype to be tied"):
        program.tie(row, program.value("w"))


def test_a_mesh_of_millions_is_refused() -> None:
    program = Program.parse('sdy.mesh @mesh = <["model"=1000003]>\na = input : float32[1000003] <@mesh, [{"model"}]>\n')
    program.output(program.value("a"))
    assert program.propagate().received_bytes == 0
    wider = Program.parse(
        'sdy.mesh @mesh = <["data"=8, "model"=1000003]>\na = input : float32[8] <@mesh, [{"data"}]>\n'
    )
    with pytest.raises(ReshardError) as refusal:
        wider.propagate()
    assert refusal.value.code == "too-large"


@pytest.mark.parametrize("name", ["sort", "cumsum"])
def test_a_dim_needed_whole_goes_to_another_and_back(name: str) -> None:
    """A tile has 1024 x 1024 elements; of those it sends 7 of 8 away, and takes 7 of 8 back."""
    mesh = Mesh.of(x=8)
    program = Program(mesh)
    cut = Sharding.of(mesh, None, "x")
    x = program.input("x", (1024, 8192), "float32", cut)
    program.output(program.op("ij->ij", x, name=name, replicated="j"), cut)
    placed = program.propagate()
    assert placed.received_bytes == 2 * 1024 * 1024 * 4 * 7 // 8
    assert placed.is_proved


def test_axes_of_one_device_lose_nothing_at_a_reshape() -> None:
    mesh = Mesh.of(data=1, model=8)
    program = Program(mesh)
    x = program.input("x", (64, 4096), "bf16", Sharding.of(mesh, None, ("data", "model")))
    program.output(program.reshape(x, (64, 32, 128)))
    assert program.propagate().received_bytes == 0


def test_an_axis_of_one_device_makes_no_second_reshard() -> None:
    """What is gathered for one output, 80 of 96 numbers, is sliced for the others, however their axes are called."""
    program = Program(Mesh.of(x=3, y=1, z=2))
    value = program.op("ab->ab", program.input("a", (12, 8), "float32", '[{"x"}, {"z"}]'), name="exp")
    for wanted in ("[{}, {}]", '[{}, {"y", "z"}]', '[{}, {"z"}]'):
        program.output(value, wanted)
    placed = program.propagate(goal="bytes")
    assert placed.received_bytes == placed.cost == 80 * 4


def test_sub_axes_that_do_not_nest_are_placed() -> None:
    text = """
sdy.mesh @mesh = <["x"=6]>
a = input : float32[36, 36] <@mesh, [{"x":(1)2}, {}]>
b = exp "ij->ij" (a)
out = output (b) <@mesh, [{"x":(3)2}, {}]>
"""
    placed = Program.parse(text).propagate()
    array = np.linspace(-1, 1, 36 * 36, dtype="float32").reshape(36, 36)
    assert np.allclose(run_program(placed, {"a": array})["out"], np.exp(array))


def test_the_goal_decides() -> None:
    """Bytes alone let every device do everything, which moves nothing; balanced, work is shared and gathered."""
    mesh = Mesh.of(x=8)
    program = Program(mesh)
    a, b = (program.input(name, (512, 512), "float32", Sharding.of(mesh, None, None)) for name in "ab")
    program.output(program.op("ij,jk->ik", a, b), Sharding.of(mesh, None, None))
    few, balanced = program.propagate(goal="bytes"), program.propagate()
    assert (few.received_bytes, few.flops) == (0, 2 * 512**3)
    assert balanced.received_bytes + balanced.flops // 2000 <= few.flops // 2000
    with pytest.raises(ReshardError, match="the goal must be bytes or balanced"):
        program.propagate(goal="speed")
    with pytest.raises(ReshardError, match="the goal must be seconds or balanced"):
        program.propagate("h100-8", goal="bytes")
    for seconds in (0, float("nan"), "1"):
        with pytest.raises(ReshardError, match="the seconds of a search must be"):
            program.propagate(seconds=seconds)  # type: ignore[arg-type]


def test_work_weighs_as_the_devices_of_a_network_compute() -> None:
    """At 2,000 operations a byte every device makes all of a product of 64 x 8 x 64; at 2 its part, and is sent 7/8."""
    mesh = Mesh.of(x=8)
    program = Program(mesh)
    a, b = (
        program.input(name, shape, "float32", Sharding.of(mesh, None, None))
        for name, shape in (("a", (64, 8)), ("b", (8, 64)))
    )
    program.output(program.op("ij,jk->ik", a, b), Sharding.of(mesh, None, None))
    network = Network.of(mesh, {"x": ("switch", 1e9, 0.0)}, flops=2e9)
    whole, shared = program.propagate(), program.propagate(network, goal="balanced")
    assert (whole.received_bytes, whole.flops) == (0, 2 * 64 * 64 * 8)
    assert (shared.received_bytes, shared.flops) == (64 * 64 * 4 * 7 // 8, 2 * 64 * 64)
    assert shared.goal.name == "balanced"
    assert "least balanced on cluster: proved" in str(
        program.propagate(replace(network, name="cluster"), goal="balanced")
    )
    assert shared.cost == shared.received_bytes + shared.flops / 2
    assert program.propagate(replace(network, flops=None), goal="balanced").cost == whole.cost


def test_messages_end_once_they_have_gone_over_enough_unless_a_time_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    go = Messages.go

    def counted(messages: Messages) -> None:
        nonlocal turns
        turns += 1
        go(messages)

    monkeypatch.setattr(Messages, "go", counted)
    mesh = Mesh.of(data=8, model=8)
    program = Program(mesh)
    value = program.input("x", (8192, 4096), "bf16", Sharding.of(mesh, "data", None))
    for number in range(20):
        up = program.input(
            f"up{number}", (4096, 16384), "bf16", Sharding.of(mesh, *(("model", None)[:: number % 2 * 2 - 1]))
        )
        down = program.input(f"down{number}", (16384, 4096), "bf16", Sharding.of(mesh, "model", None))
        value = program.op("bf,fd->bd", program.op("bd,df->bf", value, up), down)
    program.output(value)
    costs, counts = list[float](), list[int]()
    for most, seconds in ((MOST_PASSED, None), (0.0, None), (0.0, 600.0)):
        monkeypatch.setattr("reshard.propagation.optimum.MOST_PASSED", most)
        turns = 0
        placed = program.propagate(seconds=seconds)
        assert placed.bound <= placed.cost * (1 + 1e-9)
        costs.append(placed.cost)
        counts.append(turns)
    assert counts[1] < counts[0] == counts[2]
    assert costs[0] == costs[2] <= costs[1]


def test_memory_is_read_and_written_once_for_what_is_computed_element_by_element() -> None:
    """By hand: 16 of 64 rows of 256 floats are read, 16 sums written; what lies between is in no memory."""
    network = Network.of(Mesh.of(x=4), x=("switch", 1e9, 0.0), flops=1e15, memory_bandwidth=1e9)
    program = Program.parse("""
        sdy.mesh @mesh = <["x"=4]>
        a = input : float32[64, 256] <@mesh, [{"x"}, {}]>
        b = tanh "ij->ij" (a)
        c = add "ij,ij->ij" (b, a)
        d = exp "ij->ij" (c)
        e = sum "ij->i" (d)
        f = output (e) <@mesh, [{"x"}]>
    """)
    placed = program.propagate(network=network)
    read = 16 * 256 * 4 / 1e9
    assert placed.received_bytes == 0
    assert placed.is_proved
    assert placed.seconds == pytest.approx(read + 16 * 4 / 1e9, rel=1e-4)
    assert placed.cost == pytest.approx(placed.seconds)


@pytest.mark.parametrize(("memory_bandwidth", "received"), [(1e9, 3 * 2**20), (None, 0)])
def test_what_all_devices_have_is_computed_in_parts_where_memory_is_slow(
    memory_bandwidth: float | None, received: int
) -> None:
    """By hand: 4 MiB are read and written in 8.4 ms by every device, a quarter in 2.1 and 0.03 for the others."""
    network = Network.of(Mesh.of(x=4), x=("switch", 1e11, 0.0), flops=1e12, memory_bandwidth=memory_bandwidth)
    program = Program.parse("""
        sdy.mesh @mesh = <["x"=4]>
        a = input : float32[1024, 1024] <@mesh, [{}, {}]>
        b = tanh "ij->ij" (a)
        c = output (b) <@mesh, [{}, {}]>
    """)
    placed = program.propagate(network=network)
    assert placed.received_bytes == received
    assert placed.lower_bound_seconds is not None
    assert placed.seconds is not None
    assert placed.lower_bound_seconds <= placed.seconds * (1 + 1e-9)
    plain = 4 * 1024 * 1024 / memory_bandwidth * 2 if memory_bandwidth else 1024 * 1024 / 1e12
    expected = plain / 4 + received / 1e11 if received else plain
    assert placed.seconds == pytest.approx(expected, rel=1e-6)


def test_of_as_few_bytes_the_least_work_is_chosen() -> None:
    """The sum waits along y, so 128 B are received whatever x does: a quarter of the rows, or all on every device."""
    text = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
a = input : float32[8, 32] <@mesh, [{}, {"y"}]>
b = input : float32[32, 16] <@mesh, [{"y"}, {}]>
c = einsum "ij,jk->ik" (a, b)
d = copy "ij->ij" (c) <@mesh, [{"x"}, {}]>
out = output (d) <@mesh, [{"x"}, {}]>
"""
    placed = Program.parse(text).propagate(goal="bytes")
    assert placed.received_bytes == placed.cost == placed.bound == 128
    assert placed.flops == 2 * 2 * 16 * 16 + 1 * 16


def test_what_another_mesh_wants_is_brought_there_at_once() -> None:
    """Five rows of eight and more come from elsewhere, however they are kept before: all of them, and nothing twice."""
    text = """
sdy.mesh @few = <["a"=3]>
sdy.mesh @more = <["a"=6]>
a = input : float32[8, 8] <@few, [{"a"}, {}]>
b = tanh "ij->ij" (a)
out = output (b) <@more, [{}, {}]>
"""
    placed = Program.parse(text).propagate()
    assert sum(plan.received_bytes for plan in placed.plans.values()) == 8 * 8 * 4
    assert placed.is_proved


# Reshards of one value, made of one another


@pytest.mark.parametrize("seed", range(30))
def test_what_is_wanted_of_a_value_is_made_in_the_cheapest_way(seed: int) -> None:
    """Against all ways to make each of up to four of another, of costs with many equals, so that rings come up."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    costs = rng.choice([0, 1, 2, 3, 5, 8], (count, count)).tolist()

    def comes_from_the_first(parents: Sequence[int]) -> bool:
        ends = list(range(count))
        for _ in ends:
            ends = [parents[end] for end in ends]
        return not any(ends)

    def cost(parents: Sequence[int]) -> int:
        return sum(costs[parents[end]][end] for end in range(1, count))

    found = arborescence(costs)
    ways = [(0, *parents) for parents in product(range(count), repeat=count - 1)]
    assert comes_from_the_first(found)
    assert cost(found) == min(cost(parents) for parents in ways if comes_from_the_first(parents))


# What is eliminated exactly


def drawn_ends(rng: np.random.Generator) -> list[End]:
    """Ends of one to four choices, linked at random, some twice, some by way of fewer options than choices."""
    sizes = rng.integers(1, 5, 6)
    ends = [End(None, rng.integers(0, 20, size).astype(float), np.arange(size)) for size in sizes]
    for place, end in enumerate(ends):
        end.place = place
    for _ in range(8):
        first, second = rng.choice(6, 2, replace=False)
        wanted = rng.integers(0, 3, sizes[second]) if rng.random() < 0.5 else np.arange(sizes[second])
        picks = Picks(wanted)
        table = rng.integers(0, 20, (sizes[first], len(picks.options))).astype(float)
        Link(ends[first], ends[second], table, picks)
    return ends


@pytest.mark.parametrize("seed", range(40))
def test_what_is_eliminated_leaves_the_least_as_it_was(seed: int) -> None:
    """Against all choices, of which there are at most 4096."""
    ends = drawn_ends(np.random.default_rng(seed))
    own = [end.cost for end in ends]
    links = {id(link): link for end in ends for link in end.links}.values()
    tables = [(link.first.place, link.second.place, link.seen_from(link.first)) for link in links]

    def cost(choice: Sequence[int]) -> float:
        alone = sum(float(costs[at]) for costs, at in zip(own, choice, strict=True))
        return alone + sum(float(table[choice[a], choice[b]]) for a, b, table in tables)

    gone = eliminate(ends)
    left = [end for end in ends if all(end is not each.end for each in gone)]
    found = []
    for choice in product(*(range(len(end.cost)) for end in left)):  # the best of what is left, and what follows
        picked = {end.place: at for end, at in zip(left, choice, strict=True)}
        for each in reversed(gone):
            picked[each.end.place] = each.best(picked)
        found.append(cost([picked[place] for place in range(len(ends))]))
    assert min(found) == min(map(cost, product(*(range(len(costs)) for costs in own))))
    if not left:
        assert found == [sum(each.settled for each in gone)]


def swept(ends: list[End], turns: int) -> tuple[float, list[int]]:
    """The bound and the choices of messages that are passed in turns, one end and one link after the other."""
    links = list({id(link): link for end in ends for link in end.links}.values())
    tables = {id(link): link.seen_from(link.first) for link in links}
    told = {
        (id(link), end is link.first): np.zeros(len(end.choices)) for link in links for end in (link.first, link.second)
    }
    for link in links:  # what each hears before anything is handed on
        told[id(link), True], told[id(link), False] = tables[id(link)].min(axis=1), tables[id(link)].min(axis=0)
    bound = 0.0
    for turn in range(2 * turns):
        bound = 0.0
        for end in ends if turn % 2 == 0 else reversed(ends):
            total = end.cost + sum(told[id(link), end is link.first] for link in end.links)
            ahead = [link for link in end.links if (link.other(end).place > end.place) == (turn % 2 == 0)]
            part = 1.0 / max(len(ahead), len(end.links) - len(ahead), 1)
            bound += float(total.min()) * (1.0 - part * len(ahead))
            for link in ahead:
                handed = total * part - told[id(link), end is link.first]
                if end is link.first:
                    told[id(link), False] = (tables[id(link)] + handed[:, None]).min(axis=0)
                else:
                    told[id(link), True] = (tables[id(link)] + handed).min(axis=1)
    picked: dict[int, int] = {}
    for end in ends:
        total = end.cost.copy()
        for link in end.links:
            other = picked.get(link.other(end).place)
            table = tables[id(link)] if end is link.first else tables[id(link)].T
            total = total + (told[id(link), end is link.first] if other is None else table[:, other])
        picked[end.place] = int(np.flatnonzero(total <= total.min() + 1e-9)[0])
    return bound, [picked[end.place] for end in ends]


@pytest.mark.parametrize("seed", range(40))
def test_messages_of_levels_are_those_of_one_end_after_the_other(seed: int) -> None:
    ends = drawn_ends(np.random.default_rng(seed))
    for turns in (1, 3):
        messages = Messages(ends)
        for _ in range(turns):
            messages.go()
            bound = messages.come_back()
        assert (pytest.approx(bound), messages.choice()) == swept(ends, turns)


def stack(rng: np.random.Generator) -> Program:
    """Layers one after another, of two products, a scale that all share, and what goes past some of them."""
    mesh = Mesh.of(x=2, y=2)
    program = Program(mesh)
    size = int(rng.choice([4, 8, 16]))
    value = program.input("x", (size, 8), "float32", Sharding.of(mesh, *rng.permutation(["x", None])))
    scale, past = program.input("scale", (8,), "float32"), value
    for layer in range(int(rng.integers(4, 9))):
        cut = ("y", None) if rng.random() < 0.2 else (None, "y")
        up = program.input(f"up{layer}", (8, 16), "float32", Sharding.of(mesh, *cut))
        down = program.input(f"down{layer}", (16, 8), "float32", Sharding.of(mesh, "y", None))
        inner = program.op("bf->bf", program.op("bd,df->bf", value, up), name="tanh")
        value = program.op("bd,d->bd", program.op("bf,fd->bd", inner, down), scale, name="mul")
        if rng.random() < 0.7:
            value, past = program.op("bd,bd->bd", value, past, name="add"), value
    program.output(value)
    return program


@pytest.mark.parametrize("seed", range(3))
def test_copies_are_bounded_as_they_are_one_by_one(seed: int) -> None:
    """Messages of all ends, once what is alike was taken out at once, and once each by itself."""
    net = Net(stack(np.random.default_rng(seed)))
    model = Model(net, net.runs(None), Chooser(Goal.of("balanced")))
    classes = classes_of(model)
    alike = model.tied(classes, kinds_of(model, classes))
    copies, one_by_one = CopiedDual(model, alike, classes, even_shares(alike)), Dual(model, even_shares(model))
    assert len(set(classes)) < len(classes)
    for dual in (copies, one_by_one):
        dual.run(60, tolerance=0.0)
    best = optimum(model, net.runs(None))
    assert copies.bound <= best.cost * (1 + 1e-9)
    assert copies.bound == pytest.approx(one_by_one.bound, rel=2e-2)
    choice = {id(own): option for own, option in zip(model.variables, best.picked.options, strict=True)}
    assert best.cost == pytest.approx(Descent(model, choice, dict(best.picked.layouts)).cost)


def test_the_bound_of_all_copies_is_found_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; within a time limit at once, which is for it too; of a copy it is only the number."""
    found: list[CopiedDual] = []

    class Counted(CopiedDual):
        """Which is counted."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr("reshard.propagation.optimum.CopiedDual", Counted)
    program = stack(np.random.default_rng(0))
    later, at_once = program.propagate(), program.propagate(seconds=60)
    assert len(found) == 1
    assert 0 < later.bound == at_once.bound == pickle.loads(pickle.dumps(later)).bound
    assert (later.is_proved, later.lower_bound_bytes) == (at_once.is_proved, at_once.lower_bound_bytes)
    assert len(found) == 2


def test_a_stream_is_cut_along_features_where_its_scales_are() -> None:
    """By hand: per layer 3/4 of f32[4, 256] for the sum of products, and again to have it whole for the next ones.

    Cut along rows instead, as from value to value it begins, every scale must be brought to all: 768 bytes a layer.
    """
    mesh, layers = Mesh.of(data=2, model=4), 4
    program = Program(mesh)
    x = program.input("x", (8, 256), "float32", Sharding.of(mesh, "data", None))
    for n in range(layers):
        scale = program.input(f"scale{n}", (256,), "float32", Sharding.of(mesh, "model"))
        up = program.input(f"up{n}", (256, 512), "float32", Sharding.of(mesh, None, "model"))
        down = program.input(f"down{n}", (512, 256), "float32", Sharding.of(mesh, "model", None))
        length = program.op("b->b", program.op("bd,bd->b", x, x), name="rsqrt")
        scaled = program.op("bd,d->bd", program.op("bd,b->bd", x, length, name="mul"), scale, name="mul")
        hidden = program.op("bf->bf", program.op("bd,df->bf", scaled, up), name="tanh")
        x = program.op("bd,bd->bd", x, program.op("bf,fd->bd", hidden, down), name="add")
    program.output(x, Sharding.of(mesh, "data", None))
    assert program.propagate().received_bytes < (2 * layers + 0.5) * 3072


def test_what_is_named_is_in_the_space_of_a_mesh_of_many_axes() -> None:
    """Of eight axes `c` and `h` are named: both do what they can, and of the others as many as there is room for."""
    mesh = Mesh.of(dict.fromkeys("abcdefgh", 2))
    named = [dim.axes for dim in Sharding.of(mesh, "c", "h").dims]
    options = Options(Pieces(mesh, named), (64, 64), waiting=range(8))
    assert len(options.all) <= len(Pieces(mesh, named).orders) * MOST_ROWS
    doing = [{row[piece] for row in options.doing.tolist()} for piece in range(8)]
    assert doing == [{0, 1, 2, 3}] * 4 + [{0}] * 3 + [{0, 1, 2, 3}]


@pytest.mark.parametrize(("axes", "most"), [({"x": 8}, 0.0), ({"x": 2, "y": 4}, 0.2)])
def test_guessed_seconds_of_reshards_are_no_more_than_they_take(axes: dict[str, int], most: float) -> None:
    mesh = Mesh.of(**axes)
    network = Network.of(Mesh.of(device=8), {"device": ("switch", 3e9, 20e-6)})
    pieces = Pieces(mesh, [])
    options = Options(pieces, (8, 8), waiting=range(len(pieces.all)))
    bound = options.seconds(network, 4)
    guess = in_steps(options, bound + waits(options, network, 4))
    rng = random.Random(0)
    missed = {"bound": 0.0, "guess": 0.0}
    pairs = [pair for pair in product(range(len(options.all)), repeat=2) if bound[pair] < np.inf]
    for source, target in rng.sample(pairs, min(60, len(pairs))):
        ends = (pieces.sharding(options.all[number], "sum", "ceil") for number in (source, target))
        taken = plan(*ends, (8, 8), "float32", network=network).seconds
        assert taken is not None
        assert guess[source, target] <= taken * (1 + 1e-9)
        missed["bound"] += taken - bound[source, target]
        missed["guess"] += taken - guess[source, target]
    assert missed["guess"] <= (most + 1e-9) * missed["bound"]


@pytest.mark.parametrize("axes", [{"x": 2, "y": 4}, {"a": 2, "b": 2, "c": 2}])
def test_guessed_bytes_of_values_that_are_combined_and_go_from_dim_to_dim(axes: dict[str, int]) -> None:
    pieces = Pieces(Mesh.of(**axes), [])
    options = Options(pieces, (8, 8, 8), waiting=range(len(pieces.all)))
    bound = options.received()
    guess = in_steps(options, bound + options.carried_besides())
    waits = [{*option.unreduced} for option in options.all]
    pairs = [pair for pair in product(range(len(waits)), repeat=2) if waits[pair[1]] < waits[pair[0]]]
    sums = {"taken": 0.0, "bound": 0.0, "guess": 0.0}
    for source, target in random.Random(0).sample(pairs, 100):
        ends = (pieces.sharding(options.all[number], "sum", "ceil") for number in (source, target))
        taken = plan(*ends, (8, 8, 8), "int8").received_bytes
        assert bound[source, target] <= guess[source, target] <= taken
        for name, count in (("taken", taken), ("bound", bound[source, target]), ("guess", guess[source, target])):
            sums[name] += count
    assert sums["bound"] >= 0.9 * sums["taken"]
    assert sums["guess"] >= 0.998 * sums["taken"]


def test_gates_on_many_qubits_are_proved() -> None:
    """Pairs of dims of a state of eight are changed in turn: many reshards are alike, of which none is thought less."""
    program = Program(Mesh.of(a=2, b=2, c=2))
    labels = [f"d{dim}" for dim in range(8)]
    x = program.input("x", (2,) * 8, "float32", Sharding.of(program.mesh, "a", "b", "c", *[None] * 5))
    for first in range(7):
        gate = program.input(f"gate{first}", (2,) * 4, "float32", Sharding.of(program.mesh, "b", "c", None, None))
        changed = [*labels[:first], "p", "q", *labels[first + 2 :]]
        ends = " ".join(("p", "q", *labels[first : first + 2]))
        x = program.op(f"{' '.join(labels)}, {ends} -> {' '.join(changed)}", x, gate)
    program.output(x)
    assert program.propagate().is_proved


def test_a_placement_holds_no_messages() -> None:
    """Its bound is found when somebody asks, of what was handed on, not of the tables over which that went."""
    program = Program(Mesh.of(x=2, y=2))
    value = program.input("x", (64, 64), "float32", Sharding.of(program.mesh, "x", "y"))
    for _ in range(40):
        value = program.op("ij,jk->ik", value, value)
    program.output(value, Sharding.of(program.mesh, "y", "x"))
    placed = program.propagate()
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, shares.Bounded)]
    assert placed.bound <= placed.cost
