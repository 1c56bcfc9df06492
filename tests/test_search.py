"""In which layout is a program to run, and does a device have the memory for it.

What is found is held against every sharding of the inputs placed one by one, and limits against the peak that is
counted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from tilefiles import command

import reshard as rs
from reshard.propagation import Program
from reshard.propagation.leaders import kinds_of_dims
from reshard.propagation.recipes import recipes, taking_over

PRODUCT = """
sdy.mesh @mesh = <["x"=8]>
a = input : bf16[8192, 8192]
b = input : bf16[8192, 8192]
c = einsum "ij,jk->ik" (a, b)
d = output (c)
"""
LAYERS = """
sdy.mesh @mesh = <["x"=2, "y"=2]>
x = input : float32[64, 16]
w = input : float32[16, 32]
v = input : float32[32, 16]
h = einsum "bd,df->bf" (x, w)
r = tanh "bf->bf" (h)
y = einsum "bf,fd->bd" (r, v)
s = add "bd,bd->bd" (y, x)
out = output (s)
"""
STEP = """
sdy.mesh @mesh = <["data"=2, "model"=2]>
x = input : float32[64, 16]
w = input : float32[16, 32]
m = input : float32[16, 32]
h = einsum "bd,df->bf" (x, w)
g = einsum "bd,bf->df" (x, h)
n = add "df,df->df" (m, g)
u = sub "df,df->df" (w, n)
w2 = output (u)
m2 = output (n)
"""


def closed(mesh: rs.Mesh, shape: tuple[int, ...]) -> list[rs.Sharding]:
    """Every sharding by whole axes, in the order of the mesh."""
    choices = itertools.product(range(len(shape) + 1), repeat=len(mesh.sizes))
    return [
        rs.Sharding.of(
            mesh,
            *([name for name, at in zip(mesh.sizes, places, strict=True) if at == dim] for dim in range(len(shape))),
        )
        for places in choices
    ]


# open inputs


@pytest.mark.parametrize("network", ["h100-8", None])
def test_a_product_of_which_nothing_is_said_is_cut_over_all_devices(network: str | None) -> None:
    best = Program.parse(PRODUCT).search(network=network).best
    assert best.flops == 2 * 8192**3 // 8
    assert best.received_bytes == 0
    assert best.is_proved
    if network:
        assert best.seconds == pytest.approx(2 * 8192**3 / 8 / 990e12)


def test_no_sharding_of_the_inputs_is_cheaper() -> None:
    best = Program.parse(LAYERS).search().best
    program = Program.parse(LAYERS)
    mesh, inputs = program.mesh, program.inputs
    costs = []
    drawn = random.Random(5)
    ways = list(itertools.product(*(closed(mesh, value.shape) for value in inputs)))
    for shardings in drawn.sample(ways, 12):
        one = Program.parse(LAYERS)
        for value, sharding in zip(one.inputs, shardings, strict=True):
            one.constrain(value, sharding)
        placed = one.propagate()
        assert placed.cost >= best.bound * (1 - 1e-9)
        costs.append(placed.cost)
    assert best.cost <= min(costs) * (1 + 1e-9)


def test_what_is_said_of_an_input_is_kept() -> None:
    program = Program.parse(PRODUCT)
    whole = rs.Sharding.of(program.mesh, None, None)
    program.constrain(program.value("a"), whole)
    best = program.search(network="h100-8").best
    assert best.sharding("a") == whole
    assert best.flops == 2 * 8192**3 // 8


def test_of_equally_cheap_inputs_those_that_take_less_memory_are_chosen() -> None:
    best = Program.parse(PRODUCT).search(network="h100-8").best
    sides = sorted(best.sharding(name).local_shape((8192, 8192)) for name in "ab")
    assert sides[0] == (1024, 8192) or sides[0] == (8192, 1024)


def test_an_output_is_sharded_as_the_input_whose_place_it_takes() -> None:
    program = Program.parse(STEP)
    assert {(one.name, other.name) for one, other in taking_over(program)} == {("w", "w2"), ("m", "m2")}
    for placed in program.search(network="h100-4").placements:
        assert placed.sharding("w2") == placed.sharding("w")
        assert placed.sharding("m2") == placed.sharding("m")
    assert not program.ties


def test_tied_inputs_are_sharded_alike() -> None:
    program = Program.parse(PRODUCT)
    program.tie(program.value("a"), program.value("b"))
    for placed in program.search(network="h100-8").placements:
        assert placed.sharding("a") == placed.sharding("b")


@pytest.mark.parametrize("mesh", ['<["x"=1]>', "<[], device_ids=[0]>"])
def test_one_device_has_one_layout(mesh: str) -> None:
    text = PRODUCT.replace('<["x"=8]>', mesh)
    (placed,) = Program.parse(text).search(network="h100-8").placements
    assert placed.received_bytes == 0
    assert placed.peak_bytes == 3 * 2 * 8192**2


# a limit on memory


EXPERTS = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
tokens = input : float32[128, 8] <@mesh, [{}, {"y"}]>
gates = input : float32[128, 4, 64] <@mesh, [{}, {}, {}]>
sent = einsum "tec,tm->ecm" (gates, tokens)
up = input : float32[4, 8, 12] <@mesh, [{}, {}, {"x"}]>
hidden = einsum "ecm,emf->ecf" (sent, up)
down = input : float32[4, 12, 8] <@mesh, [{"y"}, {}, {}]>
back = einsum "ecf,efm->ecm" (hidden, down)
result = einsum "ecm,tec->tm" (back, gates)
after = output (result) : float32[128, 8] <@mesh, [{"x", "y"}, {}]>
"""


@pytest.mark.parametrize("text", [LAYERS, EXPERTS], ids=["layers", "experts"])
def test_a_limit_is_kept_or_refused_with_the_least_that_is(text: str) -> None:
    program = Program.parse(text)
    free = program.propagate()
    kept = refused = 0
    for limit in (free.peak_bytes, free.peak_bytes * 3 // 4, free.peak_bytes // 2, 100):
        try:
            placed = program.propagate(memory_limit=limit)
        except rs.ReshardError as error:
            least = int(str(error).split("less than ")[1].split()[0])
            assert least > limit
            assert program.propagate(memory_limit=least).peak_bytes <= least
            with pytest.raises(rs.ReshardError, match=f"less than {least} bytes"):
                program.propagate(memory_limit=least - 1)
            refused += 1
            continue
        assert placed.peak_bytes <= limit == placed.memory_limit
        assert placed.bound <= placed.cost
        assert placed.cost >= free.cost * (1 - 1e-9)
        kept += 1
    assert kept
    assert refused


def trained(mesh: rs.Mesh, layers: int) -> Program:
    """A step of blocks that add what two products make of a stream, with gradients."""
    program = Program(mesh)
    stream = program.input("x", (64, 32), "float32")
    weights = [
        (program.input(f"up{n}", (32, 128), "float32"), program.input(f"down{n}", (128, 32), "float32"))
        for n in range(layers)
    ]
    read = []
    for up, down in weights:
        hidden = program.op("bd,df->bf", stream, up)
        read.append((stream, hidden))
        stream = program.op("bd,bd->bd", stream, program.op("bf,fd->bd", hidden, down), name="add")
    slope = stream
    for (up, down), (before, hidden) in zip(reversed(weights), reversed(read), strict=True):
        inner = program.op("bd,fd->bf", slope, down)
        for weight, change in (down, ("bf,bd->fd", hidden, slope)), (up, ("bd,bf->df", before, inner)):
            program.output(program.op("ij,ij->ij", weight, program.op(*change), name="sub"))
        slope = program.op("bd,bd->bd", slope, program.op("bf,df->bd", inner, up), name="add")
    return program


def test_under_a_limit_no_recipe_is_cheaper() -> None:
    program = trained(rs.Mesh.of(data=2, model=4), 2)
    state = [before for before, _ in taking_over(program)]
    kinds = kinds_of_dims(program)
    assert {kinds[value.number][value.name.startswith("down")] for value in state} == {kinds[state[1].number][0]}
    peak = program.search().best.peak_bytes
    for limit in (int(peak * part) for part in (1.0, 0.75)):
        best = program.search(memory_limit=limit).best
        assert best.peak_bytes <= limit
        for recipe in recipes(program, state):
            with contextlib.suppress(rs.ReshardError):  # where it needs more
                assert best.cost <= recipe.propagate(memory_limit=limit).cost * 1.001


def test_a_limit_changes_the_layout_and_no_value() -> None:
    program = Program.parse(LAYERS)
    limit = min(placed.peak_bytes for placed in program.search(count=4).placements)
    placements = [program.search().best, program.search(memory_limit=limit).best]
    assert placements[0].peak_bytes > placements[1].peak_bytes
    rng = np.random.default_rng(0)
    tensors = {value.name: rng.standard_normal(value.shape).astype("float32") for value in program.inputs}
    expected = np.tanh(tensors["x"] @ tensors["w"]) @ tensors["v"] + tensors["x"]
    for placed in placements:
        out = rs.numpy.run_program(placed, tensors)["out"]
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


# a limit on work


def whole_ends(text: str) -> Program:
    """A program of which every device has all inputs and all outputs."""
    program = Program.parse(text)
    for value in (*program.inputs, *program.outputs):
        program.constrain(value, rs.Sharding.of(program.mesh, None, None))
    return program


@pytest.mark.parametrize("text", [LAYERS, STEP])
def test_work_is_kept_below_a_limit_at_more_bytes(text: str) -> None:
    """The fewest bytes are none at all, where all inputs are whole; an even share of the work takes some."""
    program = whole_ends(text)
    free = program.propagate(goal="bytes")
    alone = Program.parse(re.sub(r"=\d", "=1", text)).propagate().flops
    assert (free.received_bytes, free.flops) == (0, alone)
    bounds = [free.received_bytes]
    for limit in (alone // 2, alone // 4):
        placed = program.propagate(goal="bytes", work_limit=limit)
        assert placed.flops <= limit == placed.work_limit
        assert placed.bound <= placed.cost
        bounds.append(placed.received_bytes)
    assert 0 < bounds[1] <= bounds[2]
    with pytest.raises(rs.ReshardError, match=f"computes less than {alone // 4} operations; work_limit is 100$"):
        program.propagate(goal="bytes", work_limit=100)


def test_both_limits_are_kept_together() -> None:
    program = whole_ends(LAYERS)
    free = program.propagate(goal="bytes")
    memory, work = free.peak_bytes * 9 // 10, free.flops // 2
    both = program.propagate(goal="bytes", memory_limit=memory, work_limit=work)
    assert both.peak_bytes <= memory
    assert both.flops <= work


def test_placements_of_a_list_go_from_cheap_to_small() -> None:
    found = Program.parse(LAYERS).search(count=4)
    assert 1 < len(found.placements) <= 4
    for one, other in itertools.pairwise(found.placements):
        assert one.cost <= other.cost
        assert one.peak_bytes > other.peak_bytes


def test_a_refusal_names_what_fills_the_memory() -> None:
    with pytest.raises(rs.ReshardError, match=r"c\S* bfloat16\[\d+, \d+\] \d+ MiB.*; memory_limit is 1000$"):
        Program.parse(PRODUCT).propagate(memory_limit=1000)


@pytest.mark.parametrize(("argument", "sentence"), [
    ({"memory_limit": -1}, "memory_limit must be at least 0, got: -1"),
    ({"count": 0}, "the count of placements must be at least 1, got: 0"),
    ({"seconds": 0.0}, "the seconds of a search must be above 0, got: 0.0"),
])  # fmt: skip
def test_what_is_no_search_is_refused(argument: dict[str, float], sentence: str) -> None:
    with pytest.raises(rs.ReshardError, match=sentence) as refusal:
        Program.parse(PRODUCT).search(**argument)  # type: ignore[arg-type]
    assert refusal.value.code == "bad-argument"


# the command


def test_the_command_prints_a_table_or_the_program_or_json(tmp_path: Path) -> None:
    file = tmp_path / "product.txt"
    file.write_text(PRODUCT)
    done = command("search", file, "--network", "h100-8", "--count", "2", "--memory-limit", "200000000")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "memory limit 190.7 MiB"
    assert lines[2].split() == ["layout", "received", "work", "peak", "seconds", "least", "seconds"]
    assert lines[3].split() == ["1", "0", "B", "1.374e+11", "160", "MiB", "0.0001388", "proved"]
    record = json.loads(command("search", file, "--json", "--network", "h100-8").out)
    assert record["layouts"][0]["peak_bytes"] == 160 << 20
    assert sorted(record["layouts"][0]["inputs"]) == ["a", "b"]
    text = command("search", file, "--text", "--network", "h100-8").out
    assert Program.parse(text).propagate("h100-8").received_bytes == 0


def test_the_command_refuses_what_does_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "product.txt"
    file.write_text(PRODUCT)
    for name in ("search", "propagate"):
        done = command(name, file, "--memory-limit", "1000")
        assert done.status == 1
        assert done.err.startswith("reshard: no placement is found that needs less than ")
