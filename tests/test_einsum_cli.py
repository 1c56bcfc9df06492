"""What `reshard einsum` prints, and how it ends."""

from __future__ import annotations

import json

import pytest
from tilefiles import command, refused

MATMUL = ("einsum", "ij,jk->ik", "--mesh", "X=4,Y=2", "--shape", "2048,8192", "--shape", "8192,28672")
ENDS = ("--operand", '[{"Y"}, {"X"}]', "--operand", "B[J_X, K]")
PRINTED = """\
ij,jk->ik bfloat16 on <["X"=4, "Y"=2]>
A[I_Y, J_X] · B[J_X, K] → C[I_Y, K]{U_X} → C[I_Y, K_X]
case 1 on Y: in nobody's way
case 3 on X: both contracted dims are cut alike

   tensor        step           received  result
C  2048 x 28672  ReduceScatter    42 MiB  C[I_Y, K_X]

received 42 MiB on the busiest device, 336 MiB in all; 120259084288 operations on a device
"""


def printed(*args: object) -> str:
    done = command(*args)
    assert (done.status, done.err) == (0, ""), done
    return done.out


def test_it_prints_the_plan() -> None:
    assert printed(*MATMUL, *ENDS, "--target", '[{"Y"}, {"X"}]', "--dtype", "bf16") == PRINTED


def test_operands_without_shardings_are_whole() -> None:
    assert "A[I, J] · B[J, K] → C[I, K]" in printed(*MATMUL)


def test_a_network_adds_times_and_alternatives_follow() -> None:
    text = printed(*MATMUL, *ENDS, "--network", "h100-1x8", "--alternatives")
    assert "bound by " in text
    table = text.split("\nall layouts, best first\n")[1].splitlines()
    assert table[0].split() == ["received", "in", "all", "communication", "arithmetic", "computed"]
    chain = next(line for line in text.splitlines() if line.startswith("A[")).partition(" → ")[2]
    assert table[1].startswith("1 ")
    assert table[1].endswith(chain)  # the plan itself comes first
    assert len({line.split("  ")[-1] for line in table[1:]}) == len(table) - 1 > 1


def test_json_has_the_figures() -> None:
    found = json.loads(printed(*MATMUL, *ENDS, "--target", '[{"Y"}, {"X"}]', "--json", "--alternatives"))
    assert found["cases"] == {"X": "case 3", "Y": "case 1"}
    prices = [other["received_bytes"] for other in found["alternatives"]]
    assert found["received_bytes"] <= min(prices)
    assert "alternatives" not in json.loads(printed(*MATMUL, "--json"))


def test_work_may_weigh_too() -> None:
    """To compute all of C everywhere moves nothing, to share the work moves three quarters of its 4 MiB."""
    args = ("einsum", "ij,jk->ik", "--mesh", "X=4", "--shape", "1024,16384", "--shape", "16384,1024")
    args += ("--target", "C[I, K]")
    assert "\nreceived 0 B on the busiest device, 0 B in all; 34359738368 operations" in printed(*args)
    assert "goal" not in printed(*args, "--goal", "bytes")
    text = printed(*args, "--goal", "balanced")
    assert "\nreceived 3 MiB on the busiest device, 12 MiB in all; 8589934592 operations" in text
    assert text.endswith("\ngoal balanced: a byte received weighs as much as 2000 operations\n")
    found = json.loads(printed(*args, "--goal", "balanced", "--json"))
    assert (found["goal"], found["received_bytes"]) == ("balanced", 3 * 2**20)


def test_sizes_of_labels() -> None:
    text = printed("einsum", "(a b) -> a b", "--mesh", "x=4", "--shape", "8", "--size", "a=2", "--operand", '[{"x"}]')
    assert "A[(A B)_x] → B[A_{x:(1)2}, B_{x:(2)2}]" in text


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--shape", "4,4", "--shape", "5,4"), "dim 0 of operand 1 of ij,jk->ik has size 5, but label j is 4"),
        (("--shape", "4,4"), "ij,jk->ik has 2 operands, got 1 shapes"),
        (("--shape", "4,4", "--shape", "4,4", "--operand", "[{}, {}]"), "ij,jk->ik has 2 operands, got 1 shardings"),
        (("--shape", "4,4", "--shape", "4,4", "--size", "i"), "--size must be a label and its size, as a=2, got: 'i'"),
        (("--shape", "4,4", "--shape", "4,4", "--network", "moon"), "network 'moon'"),
        (("--shape", "4,4", "--shape", "4,4", "--network", "h100-8", "--goal", "bytes"), "the goal must be seconds"),
        (("--shape", "4,4", "--shape", "4,4", "--target", "[{}]"), "the sharding has 1 dims, the tensor 2"),
    ],
)
def test_refusals(args: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused("einsum", "ij,jk->ik", "--mesh", "x=2", *args)
