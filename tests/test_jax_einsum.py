"""`reshard.jax.einsum`: values on every device, and bytes counted from the compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax._src.core import ShardingTypeError  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_einsums import (  # noqa: E402
    COLUMNS,
    KINDS,
    MATMUL,
    PLACES,
    ROWS,
    WHOLE,
    A,
    Array,
    B,
    assert_there,
    check,
    counted,
    drawn_values,
    found,
    loss,
    mesh_of,
    network_of,
    placed,
    plan_of,
    whole_einsum,
)
from jax_hlo import collectives, received_bytes  # noqa: E402
from jax_problems import draw_spec, shards  # noqa: E402

from reshard.jax import einsum  # noqa: E402
from reshard.jax.contraction.overlap import Ring, overlapped_seconds  # noqa: E402
from reshard.network import Level, Network  # noqa: E402

pytestmark = pytest.mark.engine


# Products of two matrices


@pytest.mark.parametrize(("first", "second"), list(product(PLACES, repeat=2)))
def test_every_product_on_one_axis(first: str, second: str) -> None:
    mesh, rng = mesh_of((4,)), np.random.default_rng(0)
    arrays = [drawn_values(rng, shape, "int32") for shape in ((8, 12), (12, 16))]
    given = [
        placed(array, NamedSharding(mesh, PLACES[place]), rng)
        for array, place in zip(arrays, (first, second), strict=True)
    ]
    for place in PLACES.values():
        check(MATMUL, given, arrays, NamedSharding(mesh, place))
    free = check(MATMUL, given, arrays, None)
    assert free <= plan_of(MATMUL, given, NamedSharding(mesh, PLACES["R"])).received_bytes


def xla_bytes(given: Sequence[Any], target: NamedSharding) -> int | None:
    """What XLA's own product needs on the busiest device; None where JAX cannot say it.

    JAX multiplies no partial operands, so these are first made whole or cut, whatever needs the fewest bytes.
    """
    best: list[int] = []
    ways = [PLACES.values() if x.sharding.spec.unreduced else [x.sharding.spec] for x in given]
    for specs in product(*ways):
        if any(spec.unreduced for spec in specs):
            continue
        ends = [NamedSharding(target.mesh, spec) for spec in specs]

        def run(*xs: Any, ends: Sequence[NamedSharding] = ends) -> Any:
            here = [jax.sharding.reshard(x, end) for x, end in zip(xs, ends, strict=True)]
            return jnp.einsum(MATMUL, *here, out_sharding=target)

        try:
            best.append(max(counted(run, *given)))
        except ShardingTypeError:
            continue  # JAX gives no product that is partial where it makes whole ones
    return min(best, default=None)


def beside_xla(mesh: Any, specs: dict[str, P], cases: Sequence[tuple[str, str, str]]) -> dict[str, list[str]]:
    """Products for which ours needs fewer bytes than XLA's, and as many; never more."""
    rng = np.random.default_rng(0)
    arrays = [drawn_values(rng, (24, 24), "int32") for _ in range(2)]
    table: dict[str, list[str]] = {"fewer": [], "as many": []}
    for first, second, place in cases:
        ends = [NamedSharding(mesh, specs[name]) for name in (first, second, place)]
        given = [placed(array, end, rng) for array, end in zip(arrays, ends, strict=False)]
        ours, theirs = plan_of(MATMUL, given, ends[2]).received_bytes, xla_bytes(given, ends[2])
        if theirs is not None:
            assert ours <= theirs, (first, second, place, ours, theirs)
            table["fewer" if ours < theirs else "as many"].append(f"{first} {second} -> {place}")
    return table


def test_never_more_bytes_than_xla_on_one_axis() -> None:
    cases = [case for case in product(PLACES, repeat=3) if "P" not in case[:2]]
    table = beside_xla(mesh_of((4,)), PLACES, cases)
    assert {key: len(found) for key, found in table.items()} == {"fewer": 11, "as many": 17}
    assert {"S1 R -> S1", "S0 S0 -> R", "S1 S0 -> S1"} <= set(table["fewer"])


@pytest.mark.slow
def test_never_more_bytes_than_xla_with_partial_operands() -> None:
    cases = [case for case in product(PLACES, repeat=3) if "P" in case[:2]]
    table = beside_xla(mesh_of((4,)), PLACES, cases)
    assert len(table["fewer"]) > len(table["as many"]) > 0


MATRICES = {
    f"{first},{second}": P(*dims)
    for first, second, dims in (
        ("R", "R", (None, None)), ("S0", "R", ("x", None)), ("R", "S1", (None, "y")), ("S0", "S1", ("x", "y")),
        ("S1", "S0", ("y", "x")), ("S0", "S0", (("x", "y"), None)), ("S1", "S1", (None, ("y", "x"))),
    )
}  # fmt: skip
"""Where axes x and y may cut a matrix."""


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)], ids=str)
def test_never_more_bytes_than_xla_on_two_axes(sizes: tuple[int, int]) -> None:
    cases = Random(0).sample(list(product(MATRICES, repeat=3)), 12)
    table = beside_xla(mesh_of(sizes), MATRICES, cases)
    assert len(table["fewer"]) > len(table["as many"])


# Any expression


LETTERS = (
    "ij,jk->ik", "bij,bjk->bik", "ij,ij->ij", "ij->ji", "ij->", "ii->i", "ij,j->i", "i,j->ij", ",ij->ij",
    "iij,jk->ik", "ij,jk,kl->il", "bthd,bshd->bhts",
)  # fmt: skip


def drawn_operand(rng: Random, mesh: Any, sizes: dict[str, int], term: str, dtype: str) -> tuple[Array, NamedSharding]:
    spec = draw_spec(rng, mesh.axis_names, len(term))
    fits = [
        entry if sizes[label] % shards(spec, dim, mesh) == 0 else None
        for dim, (label, entry) in enumerate(zip(term, spec.partitions, strict=True))
    ]
    whole = drawn_values(np.random.default_rng(rng.randrange(2**32)), [sizes[label] for label in term], dtype)
    used = {name for entry in fits for name in (entry if isinstance(entry, tuple) else (entry,))}
    free = [name for name in mesh.axis_names if name not in used and rng.random() < 0.2]
    return whole, NamedSharding(mesh, P(*fits, unreduced=frozenset(free)))


@pytest.mark.parametrize("text", LETTERS)
def test_any_expression_from_anywhere_to_anywhere(text: str) -> None:
    rng = Random(text)
    operands, output = text.split("->")
    for number in range(2 if operands.count(",") == 2 else 4):
        sizes = rng.choice(((4,), (2, 2), (2, 3), (1, 3), (2, 2, 2)))
        devices = rng.sample(jax.devices(), int(np.prod(sizes)))
        mesh = mesh_of(sizes, KINDS[0], devices if number % 2 else None)
        labels = {label: rng.choice((1, 2, 4, 6, 6, 12)) for label in text if label.isalpha()}
        drawn = [drawn_operand(rng, mesh, labels, term, "int32") for term in operands.split(",")]
        _, target = drawn_operand(rng, mesh, labels, output, "int32")
        given = [placed(whole, sharding, np.random.default_rng(number)) for whole, sharding in drawn]
        check(text, given, [whole for whole, _ in drawn], rng.choice((None, target)))


def test_what_is_filled_up_is_not_summed() -> None:
    mesh, rng = mesh_of((4,)), np.random.default_rng(0)
    array = drawn_values(rng, (12, 6), "float32")
    array[:, 3] = np.inf
    given = [placed(array, NamedSharding(mesh, WHOLE), rng)]
    target = NamedSharding(mesh, P(None, unreduced={"x"}))
    assert plan_of("ij->i", given, target).layout.shards("j") == 4
    check("ij->i", given, [array], target)
    mesh = mesh_of((2, 3))
    arrays = [drawn_values(rng, (3, 3), "int32") for _ in range(2)]
    ends = [NamedSharding(mesh, P(None, None, unreduced=axes)) for axes in ({"y"}, set())]
    given = [placed(array, end, rng) for array, end in zip(arrays, ends, strict=True)]
    target = NamedSharding(mesh, P("y", None, unreduced={"x"}))
    assert plan_of(MATMUL, given, target).layout.shards("j") == 2
    check(MATMUL, given, arrays, target)


def test_groups_of_labels() -> None:
    mesh = mesh_of((2, 4))
    array = np.arange(64, dtype=np.int32)
    x = jax.device_put(array, NamedSharding(mesh, P(("x", "y"))))
    cut = NamedSharding(mesh, P("x", "y"))
    split = lambda x: einsum("(a b) -> a b", x, sizes={"a": 2}, target=cut)  # noqa: E731
    assert_there(split(x), cut, array.reshape(2, 32))
    assert found(split, x) == []
    joined = lambda x: einsum("a b c -> (a b) c", x.reshape(2, 8, 4), target=NamedSharding(mesh, P("y", None)))  # noqa: E731
    whole = jax.device_put(array, NamedSharding(mesh, P(None)))
    assert_there(jax.jit(joined)(whole), NamedSharding(mesh, P("y", None)), array.reshape(16, 4))


def test_without_a_target_the_result_lies_where_jax_can_say_it() -> None:
    mesh = mesh_of((4, 2))
    x = jax.device_put(np.arange(48, dtype=np.int32).reshape(8, 6), NamedSharding(mesh, P("x", None)))
    result = einsum("(a b) c -> a b c", x, sizes={"a": 2})
    assert np.array_equal(result, np.asarray(x).reshape(2, 4, 6))
    assert np.array_equal(einsum("ij->ji", x), np.asarray(x).T)
    assert einsum("ij->ji", x).sharding.spec == P(None, "x")


# Collective matmul


RINGS = {
    "a contracted dim is gathered": ((4,), MATMUL, [COLUMNS, WHOLE], WHOLE, "bfloat16"),
    "a free dim is gathered": ((4,), MATMUL, [ROWS, WHOLE], WHOLE, "int32"),
    "a batch dim is gathered": ((4,), "bij,bjk->bik", [P("x", None, None), P()], P(), "int32"),
    "gathered on an inner axis": ((2, 2), MATMUL, [P(("x", "y"), None), WHOLE], ROWS, "int32"),
    "gathered on an outer and an inner axis": ((2, 3), MATMUL, [P(None, ("y", "x")), WHOLE], WHOLE, "int32"),
    "the result is scattered": ((4,), MATMUL, [COLUMNS, ROWS], ROWS, "bfloat16"),
    "by columns": ((6,), MATMUL, [COLUMNS, ROWS], COLUMNS, "int32"),
    "two devices": ((2,), MATMUL, [COLUMNS, ROWS], COLUMNS, "int32"),
    "three devices": ((3,), MATMUL, [COLUMNS, ROWS], ROWS, "float32"),
    "an inner axis": ((2, 4), MATMUL, [P("x", "y"), P("y", None)], P(("x", "y"), None), "int32"),
    "two axes at once": ((2, 3), MATMUL, [P(None, ("y", "x")), P(("y", "x"), None)], P(("x", "y"), None), "int32"),
}
"""Per case the mesh, the expression, where operands and result are, and the dtype."""


@pytest.mark.parametrize("name", RINGS)
def test_rounds_beside_the_product_move_the_same_bytes(name: str) -> None:
    sizes, text, specs, last, dtype = RINGS[name]
    rng = np.random.default_rng(0)
    devices = Random(name).sample(jax.devices(), int(np.prod(sizes)))
    mesh = mesh_of(sizes, devices=devices)
    labels = {"b": 8, "i": 24, "j": 24, "k": 96} if "gathered" in name else {"i": 24, "j": 96, "k": 24}
    shapes = [[labels[label] for label in term] for term in text.partition("->")[0].split(",")]
    arrays = [drawn_values(rng, shape, dtype) % 2 for shape in shapes]
    given = [placed(array, NamedSharding(mesh, spec), rng) for array, spec in zip(arrays, specs, strict=True)]
    target = NamedSharding(mesh, last)
    programs = {
        overlap: jax.jit(lambda *xs, on=overlap: einsum(text, *xs, target=target, overlap=on)).lower(*given).compile()
        for overlap in (True, False, None)
    }
    moved = {overlap: collectives(program.as_text(), mesh.size) for overlap, program in programs.items()}
    right = whole_einsum(text, *(array.astype("float32") for array in arrays)).astype(dtype)
    for program in programs.values():
        assert_there(program(*given), target, right)
    assert {one.kind for one in moved[True]} == {"collective-permute"}
    assert "collective-permute" not in {one.kind for one in moved[False]}
    assert [one.kind for one in moved[None]] == [one.kind for one in moved[False]], "without a network nothing says so"
    sums = 2 if dtype == "bfloat16" and moved[False][0].kind != "all-gather" else 1  # a CPU adds these up in float32
    once = received_bytes(moved[False], mesh.size)
    assert [sums * count for count in received_bytes(moved[True], mesh.size)] == once


@pytest.mark.parametrize(
    ("network", "in_rounds"),
    [
        (network_of(1e9, 1e9), True),
        (network_of(1e9, None), False),
        (replace(network_of(1e9, 1e9), launch_s=1e-3), False),
        (network_of(1e9, 1e9, 1e-3), True),  # a sum passes as many hops along the ring as the rounds do
        (network_of(1e9, 1e15), False),  # a ring gathers by both links at once, in three halves of a round
    ],
    ids=["both take time", "arithmetic takes none", "every round is launched", "hops take long", "little to hide"],
)
def test_the_price_says_whether_rounds_pay(network: Network, in_rounds: bool) -> None:
    mesh = mesh_of((4,))
    a = jax.device_put(A, NamedSharding(mesh, P(None, "x")))
    b = jax.device_put(B, NamedSharding(mesh, P("x", None)))
    run = lambda a, b, **options: einsum(MATMUL, a, b, target=P("x", None), network=network, **options)  # noqa: E731
    kinds = {one.kind for one in found(run, a, b)}
    assert kinds == ({"collective-permute"} if in_rounds else {"reduce-scatter"})
    assert {one.kind for one in found(lambda a, b: run(a, b, overlap=False), a, b)} == {"reduce-scatter"}
    assert np.array_equal(jax.jit(run)(a, b), A @ B)
    gradient = jax.jit(jax.grad(lambda a: (run(a, b) ** 2).sum()))(a)
    assert np.array_equal(gradient, jax.grad(loss)(A, B))


def test_what_rounds_take_by_hand() -> None:
    ring, devices = Ring(0, "j", ((0, 1, 2, 3, 4),)), np.arange(5)
    five = Network((Level(1, 5, "ring", 10.0, 0.0),), flops=1.0)
    assert overlapped_seconds(ring, devices, 10, 0.0, five) == 2  # two rounds of messages of 1 s, both ways at once
    assert overlapped_seconds(ring, devices, 0, 5.0, five) == 5  # five products
    assert overlapped_seconds(ring, devices, 10, 5.0, five) == 1 + 2 + 2  # one, two and two products, the first beside
    one_way = Network((Level(1, 5, "one-way-ring", 10.0, 0.0),), flops=1.0)
    assert overlapped_seconds(ring, devices, 10, 0.0, one_way) > 2
