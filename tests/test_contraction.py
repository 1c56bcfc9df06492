"""What an einsum's plan chooses and says: the cases of sharded products, alternatives, text, refusals."""

from __future__ import annotations

import copy
import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
from test_einsum_optimal import layouts, matrix_shardings

import reshard as rs
from reshard.contraction import EinsumPlan, alternatives, cache_clear
from reshard.contraction.best_first import Search
from reshard.contraction.bounds import Bounds
from reshard.contraction.chooser import Chooser, Chosen
from reshard.contraction.compute_layout import ComputeLayout
from reshard.contraction.goal import Goal
from reshard.contraction.pairwise import BUDGET, Contracted
from reshard.contraction.prices import Effort, Prices
from reshard.contraction.ranking import SLACK, Ranking
from reshard.contraction.rows import Table
from reshard.contraction.tasks import Calculation, Task
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding

PAIR = Mesh.of(x=2)
SQUARE = Mesh.of(x=2, y=2)


def placed(text: str, mesh: Mesh) -> Sharding:
    """A matrix by what each axis of the mesh does: R, S0, S1 or P."""
    dims: list[list[str]] = [[], []]
    unreduced = []
    for (name, _), word in zip(mesh.axes, text.split(), strict=True):
        if word == "P":
            unreduced.append(name)
        elif word != "R":
            dims[int(word[1])].append(name)
    return Sharding.of(mesh, *dims, unreduced=unreduced)


def matmul(first: str, second: str, target: str | None, mesh: Mesh, sizes: tuple[int, int, int]) -> EinsumPlan:
    i, j, k = sizes
    wanted = None if target is None else placed(target, mesh)
    return rs.einsum("ij,jk->ik", placed(first, mesh), placed(second, mesh), shapes=[(i, j), (j, k)], target=wanted)


# What DTensor does with a product of a 4 x 6 and a 6 x 4 matrix of float32 on 2 devices: where the result is left, and
# which collectives it takes, each on 96 bytes of one operand: a gather or a reduce-scatter receives 48, both make 96.
DTENSOR = """
R  R  R  0
R  S0 P  0
R  S1 S1 0
R  P  P  0
S0 R  S0 0
S0 S0 S0 48
S0 S1 S0 48
S0 P  P  48
S1 R  P  0
S1 S0 P  0
S1 S1 S1 48
S1 P  P  48
P  R  P  0
P  S0 P  48
P  S1 P  48
P  P  P  96
"""


@pytest.mark.parametrize("row", DTENSOR.strip().splitlines())
def test_never_more_bytes_than_dtensor_on_one_axis(row: str) -> None:
    first, second, target, theirs = row.split()
    assert matmul(first, second, target, PAIR, (4, 6, 4)).received_bytes <= int(theirs)


# The same of 8 x 12 and 12 x 8 on 2 x 2, 384 bytes each: a gather along one axis of a matrix cut by it alone receives
# 192, of one cut by both 96, and both gathers, each of another operand, add up.
DTENSOR_SQUARE = [
    ("S0 R", "R S1", "S0 S1", 0),
    ("S0 S1", "S0 S1", "S0 S1", 192),
    ("S0 S1", "R S0", "S0 P", 0),
    ("S0 S1", "S0 R", "S0 P", 192),
    ("S0 S1", "R R", "S0 P", 0),
    ("R S1", "R S0", "R P", 0),
    ("S1 S1", "S0 S0", "P P", 0),
    ("S0 S0", "R R", "S0 S0", 0),
    ("S0 S0", "R S1", "S0 S1", 96),
    ("S0 R", "S0 R", "S0 S1", 192),
    ("S0 P", "R R", "S0 P", 0),
    ("P S0", "R S1", "P S0", 192),
    ("P P", "R R", "P P", 0),
    ("P P", "P R", "P P", 384),
    ("S1 S0", "S1 S0", "S1 S0", 192),
]


@pytest.mark.parametrize(("first", "second", "target", "theirs"), DTENSOR_SQUARE, ids=str)
def test_never_more_bytes_than_dtensor_on_two_axes(first: str, second: str, target: str, theirs: int) -> None:
    assert matmul(first, second, target, SQUARE, (8, 12, 8)).received_bytes <= theirs


CASES = [
    ("S0", "R", "case 1"),
    ("R", "S1", "case 1"),
    ("R", "R", "case 1"),
    ("S1", "R", "case 2"),
    ("R", "S0", "case 2"),
    ("S1", "S0", "case 3"),
    ("S0", "S1", "case 4"),
    ("S0", "S0", "case 4"),
    ("P", "R", "partial"),
]


@pytest.mark.parametrize(("first", "second", "case"), CASES)
def test_which_case_it_is(first: str, second: str, case: str) -> None:
    assert matmul(first, second, None, PAIR, (4, 4, 4)).case == case


def test_each_axis_has_its_own_case() -> None:
    plan = matmul("S0 S1", "S1 R", None, SQUARE, (4, 4, 4))
    assert plan.cases == {"x": "case 4", "y": "case 2"}
    assert plan.case == "case 4 on x, case 2 on y"


STEPS = [
    # case 1 needs nothing; case 2 gathers the operand, where it is small beside the result
    ("S0", "R", "S0", (64, 64, 64), [[], [], []]),
    ("S1", "R", "R", (64, 8, 64), [["AllGather"], [], []]),
    # or it slices the other operand and sums the result, where that is small
    ("S1", "R", "R", (8, 64, 8), [[], ["Slice"], ["AllReduce"]]),
    # case 3 sums the result, for all to have or in parts, or leaves that to others
    ("S1", "S0", "R", (8, 64, 8), [[], [], ["AllReduce"]]),
    ("S1", "S0", "S0", (8, 64, 8), [[], [], ["ReduceScatter"]]),
    ("S1", "S0", "P", (8, 64, 8), [[], [], []]),
    # case 4 gathers the smaller operand
    ("S0", "S1", "S1", (8, 8, 64), [["AllGather"], [], []]),
    ("S0", "S1", "S0", (64, 8, 8), [[], ["AllGather"], []]),
]


@pytest.mark.parametrize(("first", "second", "target", "sizes", "kinds"), STEPS, ids=[str(row[:4]) for row in STEPS])
def test_steps_of_the_four_cases(first: str, second: str, target: str, sizes: Any, kinds: list[list[str]]) -> None:
    plan = matmul(first, second, target, PAIR, sizes)
    assert [[step.kind for step in one.steps] for one in plan.plans] == kinds


def test_a_result_without_target_is_whole_unless_its_sums_may_wait() -> None:
    ends = placed("S1", PAIR), placed("S0", PAIR)
    shapes = [(8, 64), (64, 8)]
    assert rs.einsum("ij,jk->ik", *ends, shapes=shapes).target.unreduced == ()
    plan = rs.einsum("ij,jk->ik", *ends, shapes=shapes, leave_partial=True)
    assert (plan.target.text(), plan.received_bytes) == ('[{}, {}], unreduced={"x"}', 0)


def test_an_all_gather_can_be_put_off() -> None:
    plan = matmul("S1", "S0", None, PAIR, (8, 64, 8))
    assert [step.kind for step in plan.output.steps] == ["ReduceScatter"]


RESHAPES = [
    # an axis larger than the major label goes on into the minor one, and back
    ("(a b) -> a b", {"x": 4}, "x", (8,), {"a": 2}, '[{"x":(1)2}, {"x":(2)2}]'),
    ("a b -> (a b)", {"x": 4}, ("x:(1)2", "x:(2)2"), (2, 4), {}, '[{"x"}]'),
    ("(a b) -> a b", {"x": 2, "y": 2}, (("x", "y"),), (8,), {"a": 4}, '[{"x", "y"}, {}]'),
    ("(a b) c -> a (b c)", {"x": 2, "y": 4}, ("x", None), (6, 4), {"a": 2}, '[{"x"}, {}]'),
]


@pytest.mark.parametrize(("text", "axes", "dims", "shape", "sizes", "target"), RESHAPES)
def test_a_reshape_keeps_data_where_it_is(text: str, axes: Any, dims: Any, shape: Any, sizes: Any, target: str) -> None:
    mesh = Mesh.of(axes)
    source = Sharding.of(mesh, *([dims] if isinstance(dims, str) else dims))
    plan = rs.einsum(text, source, shapes=[shape], sizes=sizes)
    assert (plan.target.text(), plan.received_bytes, plan.output.steps) == (target, 0, ())
    asked = rs.einsum(text, source, shapes=[shape], sizes=sizes, target=plan.target)
    assert asked.price == plan.price


def test_sub_axes_receive_less_than_whole_axes() -> None:
    """8 devices in a line: rows by 2 and columns by 4 need half a matrix, one operand whole seven eighths."""
    mesh = Mesh.of(x=8)
    plan = rs.einsum("ij,jk->ik", placed("S0", mesh), placed("S1", mesh), shapes=[(64, 64), (64, 64)], dtype="int8")
    assert plan.received_bytes < 64 * 64 * 7 // 8


def test_alternatives_are_other_layouts_and_not_better() -> None:
    for network in (None, "h100-1x4"):
        ends = placed("S0 S1", SQUARE), placed("S1 R", SQUARE)
        plan = rs.einsum(
            "ij,jk->ik", *ends, shapes=[(16, 16), (16, 16)], target=placed("R S0", SQUARE), network=network
        )
        prices = [other.price for other in alternatives(plan)]
        assert 1 <= len(prices) <= 8
        assert prices == sorted(prices)
        assert prices[0] >= plan.price
        assert len({other.layout for other in (plan, *alternatives(plan))}) == len(prices) + 1


def test_several_operands_may_be_contracted_two_at_a_time() -> None:
    """The product of the first two is small, and cheap to sum for all."""
    mesh = Mesh.of(x=4)
    rows, columns = Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x")
    shapes = [(8, 1024), (1024, 8), (8, 64)]
    plan = rs.einsum("ij,jk,kl->il", columns, rows, columns, shapes=shapes, target=columns)
    assert str(plan.expression) == "ij,jk,kl->il"
    assert [str(part.pattern) for part in plan.parts()] == ["ij,jk->ik", "kl,ik->il"]
    assert plan.received_bytes == 2 * 8 * 8 * 4 * 3 // 4
    at_once = [other for other in alternatives(plan) if len(list(other.parts())) == 1]
    assert at_once
    assert min(other.received_bytes for other in at_once) > plan.received_bytes


def test_text_says_case_notation_and_time() -> None:
    mesh = Mesh.of(X=4, Y=2)
    ends = Sharding.of(mesh, "Y", "X"), Sharding.of(mesh, "X", None)
    plan = rs.einsum(
        "ij,jk->ik",
        *ends,
        shapes=[(1024, 8192), (8192, 1024)],
        dtype="bf16",
        target=Sharding.of(mesh, ("Y", "X"), None),
        network="h100-1x8",
    )
    text = str(plan)
    assert "A[I_Y, J_X] · B[J_X, K] → C[I_Y, K]{U_X} → C[I_YX, K]" in text
    assert "case 1 on Y" in text
    assert "case 3 on X" in text
    assert text.splitlines()[-1] == "bound by communication"
    assert plan.communication_seconds is not None
    network = Network.preset("h100-1x8")
    touched = 2 * (512 * 2048 + 2048 * 1024 + 512 * 1024)  # of bf16, and more seconds than its operations
    assert network.memory_bandwidth is not None
    assert network.flops is not None
    assert plan.arithmetic_seconds == touched / network.memory_bandwidth > 2 * 1024 * 8192 * 1024 / 8 / network.flops
    assert plan.seconds == plan.communication_seconds + plan.arithmetic_seconds
    assert plan.overlapped_seconds == max(plan.communication_seconds, plan.arithmetic_seconds)
    assert rs.einsum("ij,jk->ik", *ends, shapes=[(8, 8), (8, 8)]).seconds is None


def test_json_and_pickle_keep_the_figures() -> None:
    plan = matmul("S1", "S0", "R", PAIR, (8, 8, 8))
    found = json.loads(plan.to_json())
    assert (found["received_bytes"], found["case"], found["layout"]) == (
        plan.received_bytes,
        "case 3",
        {"i": [], "j": ['"x"'], "k": []},
    )
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert rs.Plan.from_json(json.dumps(found["output"])).received_bytes == plan.received_bytes


def test_equal_plans_behave_alike() -> None:
    """A plan holds nothing but its fields: what else would do is asked of the planner."""
    plan = matmul("S1", "S0", "R", PAIR, (8, 8, 8))
    others = alternatives(plan)
    assert others
    for twin in (pickle.loads(pickle.dumps(plan)), copy.copy(plan), copy.deepcopy(plan)):
        assert (twin, twin.price, twin.to_json(), str(twin)) == (plan, plan.price, plan.to_json(), str(plan))
        assert alternatives(twin) == others
        assert {*vars(twin)} - {*plan.__dataclass_fields__} <= {*vars(type(plan))}


def test_plans_are_cached() -> None:
    cache_clear()
    assert matmul("S1", "S0", "R", PAIR, (8, 8, 8)) is matmul("S1", "S0", "R", PAIR, (8, 8, 8))


@pytest.mark.parametrize("count", [4, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("network", ["h100-2x2", "tpu-v5e-2x2"])
def test_what_is_proved_on_a_network_is_the_cheapest(network: str, count: int) -> None:
    rng = random.Random(0)
    described = Network.preset(network)
    flops, bandwidth = described.flops_of(dtype_named("float32")), described.memory_bandwidth
    assert flops is not None
    assert bandwidth is not None
    every = matrix_shardings(SQUARE, partial=False)
    shapes = ((512, 1024), (1024, 2048), (512, 2048))
    for _ in range(count):
        *ends, target = rng.choices(every, k=3)
        plan = rs.einsum("ij,jk->ik", *ends, shapes=shapes[:2], target=target, network=network, prove=True)
        prices = []
        for *used, made in layouts(SQUARE, (ends[0], ends[1])):
            pairs = [*zip(ends, used, strict=True), (made, target)]
            moved = [rs.plan(*pair, shape, network=network) for pair, shape in zip(pairs, shapes, strict=True)]
            i, j, k = (
                size // 2 ** len(dim.axes)
                for size, dim in zip((512, 1024, 2048), (*used[0].dims, used[1].dims[1]), strict=True)
            )
            work = max(2 * i * j * k / flops, 4 * (i * j + j * k + i * k) / bandwidth)
            prices.append(sum(one.seconds or 0.0 for one in moved) + work)
        assert plan.is_proved
        assert plan.seconds == pytest.approx(min(prices), rel=1e-9)


def plans_of(search: Search, row: int) -> list[EinsumPlan]:
    """The plan of a row in every order of its pieces."""
    found = []
    for _, layout, target in search._candidates(row):
        flops = search.chooser.flops(search.task, layout)
        price = search.chooser.price(search.task, layout, flops, target)
        assert price is not None
        plan = Contracted(search.task, Chosen(layout, target, price), (0, 1)).plan(search.chooser)
        assert plan.price == price
        found.append(plan)
    return found


def product(
    mesh: Mesh, sources: tuple[Sharding, ...], target: Sharding | None, sizes: dict[str, int], dtype: str = "float32"
) -> Task:
    """The task of a matrix product."""
    return Task(Calculation.of_einsum(Pattern.of("ij,jk->ik"), sizes, dtype_named(dtype)), mesh, sources, target)


PAIRS = Mesh.of(x=2, y=4)
FOURS = Mesh.of(x=4, y=2)
LINE = Mesh.of(x=8)
HAND_MADE = {
    "ring and line": Network.of(PAIRS, x=("line", 3e9, 2e-6), y=("ring", 1e9, 1e-6)),
    "line and ring": Network.of(FOURS, x=("ring", 1e9, 0.0), y=("line", 1e9, 0.0)),
    "line of 8": Network.of(LINE, x=("line", 1e9, 1e-7)),
    "one way": Network.of(LINE, x=("one-way-ring", 1e9, 1e-7)),
    "switch of lines": Network.of(PAIRS, x=("switch", 2e8, 1e-6), y=("line", 1e9, 1e-7)),
    "ring of switches": Network.of(FOURS, x=("ring", 1e9, 1e-6), y=("switch", 5e9, 1e-7)),
}


@pytest.mark.parametrize("network", [None, "h100-2x4", "tpu-v5e-2x4", "tpu-v4p-2x2x2", *HAND_MADE])
def test_no_price_is_below_its_bound(network: str | None) -> None:
    rng = random.Random(str(network))
    mesh = rng.choice([PAIRS, FOURS])
    found = None if network is None else HAND_MADE.get(network) or Network.preset(network)
    roles = ["R", "S0", "S1", "P"]
    for _ in range(3):
        sources = tuple(placed(f"{rng.choice(roles)} {rng.choice(roles)}", mesh) for _ in range(2))
        sizes = rng.choice(
            [{"i": 64, "j": 128, "k": 256}, {"i": 9, "j": 30, "k": 7}, {"i": 4096, "j": 4096, "k": 8192}]
        )
        target = rng.choice([None, placed("S0 S1", mesh), placed("P R", mesh), placed("R S1", mesh)])
        search = Search(product(mesh, sources, target, sizes), Chooser(Goal(found)), Effort(found))
        for row in rng.sample(range(len(search.table.rows)), 12):
            for made in plans_of(search, row):
                for bound, price in zip((bound[row] for bound in search._lowest), made.price, strict=True):
                    assert bound <= price, (made, row)


def test_bounds_are_exact_where_nothing_is_in_another_order() -> None:
    sizes = {"i": 8, "j": 8, "k": 8}
    search = Search(
        product(PAIR, (placed("S0", PAIR), placed("S1", PAIR)), None, sizes, "int8"), Chooser(Goal()), Effort(None)
    )
    assert isinstance(search.bounds, Bounds)
    prices = [plans_of(search, row)[0].received_bytes for row in range(len(search.table.rows))]
    assert search.bounds.received.sum(axis=0).tolist() == prices


def test_many_axes_are_searched_in_a_table_of_bounded_length() -> None:
    mesh = Mesh.of({f"a{number}": 2 for number in range(10)})
    names = [name for name, _ in mesh.axes]
    sources = Sharding.of(mesh, names[:5], names[5:]), Sharding.of(mesh, names[5:], names[:5])
    task = product(mesh, sources, None, {"i": 1024, "j": 1024, "k": 1024})
    assert len(Table(task).rows) <= 2**14
    plan = rs.einsum("ij,jk->ik", *sources, shapes=[(1024, 1024)] * 2)
    assert plan.received_bytes < 1024 * 1024 * 4 * 31 // 32


R = Sharding.of(PAIR, None, None)
ALIKE = [(4, 4), (4, 4)]
REFUSED = [
    (
        lambda: rs.einsum("ij,jk->ik", R, R, shapes=[(4, 4), (6, 4)]),
        "bad-shape",
        "dim 0 of operand 1 of ij,jk->ik has size 6, but label j is 4",
    ),
    (
        lambda: rs.einsum("ij,jk->iz", R, R, shapes=ALIKE),
        "bad-shape",
        "label z of ij,jk->iz stands in no operand, so that its size must be given",
    ),
    (
        lambda: rs.einsum("(a b) c -> a (b c)", R, shapes=[(6, 4)]),
        "bad-shape",
        "dim 0 of operand 0 of (a b) c -> a (b c) has size 6, which leaves a and b open; give the size of a label",
    ),
    (
        lambda: rs.einsum("(a b) -> a b", Sharding.of(PAIR, "x"), shapes=[(6,)], sizes={"a": 4}),
        "bad-shape",
        "dim 0 of operand 0 of (a b) -> a b has size 6, which 4 does not divide",
    ),
    (
        lambda: rs.einsum("ij,jk->ik", R, R, shapes=ALIKE, target=Sharding.of(PAIR, "x", None, unreduced="x")),
        "duplicate-axis-ref",
        'axis "x" is used twice',
    ),
    (
        lambda: rs.einsum("ij->ii", R, shapes=[(4, 4)]),
        "syntax",
        "label i stands twice in the result of ij->ii",
    ),
    (
        lambda: rs.einsum("ij,jk->ik", R, R, shapes=ALIKE, network="h100-1x1"),
        "bad-network",
        "device 1 is beyond the 1 devices of h100-1x1",
    ),
    (
        lambda: rs.einsum("ij,jk->ik", Sharding.of(PAIR, "x"), R, shapes=ALIKE),
        "rank-mismatch",
        'sharding [{"x"}] has 1 dims, shape (4, 4) has 2',
    ),
    (
        lambda: rs.einsum("ij,jk->ik", R, R, shapes=ALIKE, target=Sharding.of(PAIR, "x")),
        "rank-mismatch",
        'sharding [{"x"}] has 1 dims, shape (4, 4) has 2',
    ),
    (lambda: rs.einsum("ij,jk->ik", R, shapes=ALIKE), "bad-argument", "ij,jk->ik has 2 operands, got 1 shardings"),
    (lambda: rs.einsum("ij,jk->ik", R, R, shapes=[(4, 4)]), "bad-argument", "ij,jk->ik has 2 operands, got 1 shapes"),
    (
        lambda: rs.einsum("ij,jk->ik", R, 3, shapes=ALIKE),
        "bad-argument",
        "a sharding must be a Sharding, a text, or a sharding, a spec or placements of JAX or torch, got: 3",
    ),
    (
        lambda: rs.einsum("ij,jk->ik", R, R, shapes=ALIKE, target=3),
        "bad-argument",
        "a sharding must be a Sharding, a text, or a sharding, a spec or placements of JAX or torch, got: 3",
    ),
    (
        lambda: rs.einsum("ij,jk->ik", R, R, shapes=ALIKE, network=3),
        "bad-argument",
        "the network of an einsum must be a Network, got: 3",
    ),
    (
        lambda: rs.einsum("ij,jk->ik", R, R, shapes=ALIKE, sizes=[3]),
        "bad-argument",
        "sizes must be a mapping from label to size, got: [3]",
    ),
    (
        lambda: rs.einsum("ij,jk", R, R, shapes=ALIKE),
        "syntax",
        "a pattern must have one ->, as in ij,jk->ik, got: 'ij,jk'",
    ),
    (lambda: rs.einsum("ij,ij->ij", R, R, shapes=ALIKE, dtype="int3"), "unknown-dtype", None),
    (
        lambda: rs.einsum("ij,ij->ij", R, R, shapes=ALIKE, dtype="bool", target=placed("P", PAIR)),
        "reduction-dtype",
        "sum is not defined for values of dtype bool",
    ),
    (lambda: rs.einsum("ij->ij", Sharding.of(Mesh.of(device_ids=[3])), shapes=[(4, 4)]), "different-meshes", None),
    (
        lambda: rs.numpy.einsum(matmul("R", "R", "R", PAIR, (4, 4, 4)), {}),
        "bad-argument",
        "the plan has 2 operands, got 1",
    ),
    (
        lambda: rs.numpy.einsum(matmul("R", "R", "R", PAIR, (4, 4, 4)), {}, [1]),
        "bad-tiles",
        "tiles must be a mapping from device to array, got: list",
    ),
    (
        lambda: rs.numpy.einsum(
            matmul("R", "R", "R", PAIR, (1, 1, 1)),
            {0: np.ones((1, 1), "float32"), 1: np.ones((1, 1), "float32")},
            {0: np.ones((1, 1), "int32"), 1: np.ones((1, 1), "int32")},
        ),
        "bad-tiles",
        "the tiles of all operands must be of one dtype, got: float32, int32",
    ),
    (lambda: rs.numpy.einsum("plan"), "bad-argument", "the plan of an einsum must be an EinsumPlan, got: 'plan'"),
    (
        lambda: rs.numpy.einsum(matmul("R", "R", "R", PAIR, (4, 4, 4)), {}, {}),
        "bad-tiles",
        "the tile of device 0 is missing",
    ),
]


@pytest.mark.parametrize(("call", "code", "sentence"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_refusals(call: Any, code: str, sentence: str | None) -> None:
    with pytest.raises(ReshardError) as refusal:
        call()
    assert refusal.value.code == code
    assert sentence is None or str(refusal.value) == sentence


def test_a_plan_whose_parts_do_not_meet_cannot_be_built() -> None:
    plan = matmul("S1", "S0", "R", PAIR, (8, 8, 8))
    other = ComputeLayout(PAIR, plan.pattern, ((), (), ()), ((), ()))
    with pytest.raises(ReshardError) as refusal:
        EinsumPlan(plan.pattern, plan.label_sizes, other, plan.operands, plan.output, plan.inputs)
    assert refusal.value.code == "broken-chain"
    torn = ComputeLayout(PAIR, Pattern.of("(a b) -> a b"), ((), (rs.Axis("x"),)), ((),))
    with pytest.raises(ReshardError) as refusal:
        torn.check({"a": 2, "b": 2})
    assert refusal.value.code == "not-divisible"
    twice = ComputeLayout(PAIR, Pattern.of("ii->i"), ((rs.Axis("x"),),), ((),))
    with pytest.raises(ReshardError) as refusal:
        twice.check({"i": 2})
    assert refusal.value.code == "bad-argument"


@pytest.mark.parametrize("network", [None, "h100-1x8"])
@pytest.mark.parametrize("sizes", [(0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("mesh", [SQUARE, Mesh.of(x=1), Mesh.of()], ids=["2x2", "one device", "no axes"])
def test_nothing_and_no_one_to_send_to(mesh: Mesh, sizes: tuple[int, int, int], network: str | None) -> None:
    i, j, k = sizes
    dims = [("x", None), (None, "x")] if mesh.axes else [(None, None)] * 2
    ends = [Sharding.of(mesh, *one) for one in dims]
    target = Sharding.of(mesh, None, None)
    plan = rs.einsum("ij,jk->ik", *ends, shapes=[(i, j), (j, k)], dtype="float64", target=target, network=network)
    tiles = [rs.numpy.scatter(np.ones(shape), end) for shape, end in zip(plan.shapes, ends, strict=False)]
    made = rs.numpy.einsum(plan, *tiles)
    assert all(np.array_equal(tile, np.zeros((i, k))) for tile in made.values())
    assert plan.received_bytes == 0


def test_a_contracted_dim_that_does_not_divide_is_right() -> None:
    mesh = Mesh.of(x=4)
    plan = rs.einsum(
        "ij,jk->ik",
        placed("S1", mesh),
        placed("S0", mesh),
        shapes=[(2, 5), (5, 3)],
        dtype="int64",
        target=placed("R", mesh),
    )
    a, b = np.arange(10).reshape(2, 5), np.arange(15).reshape(5, 3)
    made = rs.numpy.einsum(plan, rs.numpy.scatter(a, plan.sources[0]), rs.numpy.scatter(b, plan.sources[1]))
    assert all(np.array_equal(tile, a @ b) for tile in made.values())


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("shapes", [((5, 6), (6, 7)), ((5, 4), (4, 5)), ((3, 2), (2, 1)), ((9, 3), (3, 11))], ids=str)
@pytest.mark.parametrize("places", ["R P", "P R", "S1 S0", "S0 P", "P S1"])
def test_an_open_target_is_no_dearer_than_any_cut_of_the_result(
    places: str, shapes: tuple[tuple[int, int], tuple[int, int]], dtype: str
) -> None:
    mesh = Mesh.of(x=2)
    sources = [placed(one, mesh) for one in places.split()]

    def received(target: Sharding | None) -> int:
        return rs.einsum("ij,jk->ik", *sources, shapes=shapes, dtype=dtype, target=target).received_bytes

    assert received(None) <= min(received(placed(one, mesh)) for one in ("R", "S0", "S1"))


def test_sums_of_an_uneven_result_are_scattered_where_the_tile_is_smallest() -> None:
    plan = rs.einsum("ij,jk->ik", placed("R", PAIR), placed("P", PAIR), shapes=[(5, 6), (6, 7)])
    assert (plan.target, plan.received_bytes) == (placed("S1", PAIR), 5 * 4 * 4)


FIVE = Mesh.of(a=2, b=4, c=8, d=2, e=2)


def chain_of_three(*, prove: bool = False, network: str | None = "h100-32x8") -> rs.EinsumPlan:
    sources = (
        Sharding.of(FIVE, ("a", "c"), ("b", "e")),
        Sharding.of(FIVE, ("e", "d"), ("a", "c")),
        Sharding.of(FIVE, "c", ("b", "d")),
    )
    target = Sharding.of(FIVE, ("d", "b"), ("c", "a"))
    shapes = [(256, 512), (512, 1024), (1024, 256)]
    return rs.einsum("ij,jk,kl->il", *sources, shapes=shapes, dtype="bf16", target=target, network=network, prove=prove)


def test_many_operands_on_many_axes_are_planned_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    planned = Prices.plan

    def counted(prices: Prices, *ends: Any) -> rs.Plan | None:
        nonlocal made
        made += ends not in prices._answers
        return planned(prices, *ends)

    monkeypatch.setattr(Prices, "plan", counted)
    cache_clear()
    plan = chain_of_three()
    # four budgets, at once and along three paths, of 8 * 2 for each plan of a matrix, and the chain that goes on alone
    assert made <= 4 * (BUDGET // 16 + 24)
    assert not plan.is_proved
    assert "not proved to be the cheapest: the search was cut short" in str(plan)
    cache_clear()
    assert chain_of_three() == plan


def test_layouts_that_take_as_long_and_are_no_better_besides_wait_no_more() -> None:
    """Three layouts of one second, of which one may receive fewer bytes than the eight that are known to do."""
    seconds, received = np.ones((1, 3)), np.array([8.0, 4.0, 8.0])
    ranking = Ranking([seconds[0] * SLACK, received], seconds, seconds, np.zeros(3))
    ranking.limit_to((1.0, 8))
    assert ranking.next() == (1, np.inf)
    ranking.drop(1)
    assert ranking.next() is None
