"""What a device holds at most, worked by hand."""

from __future__ import annotations

import pytest

from reshard.propagation import Placement, Program

MESH = 'sdy.mesh @mesh = <["x"=2]>'
TILE = 64 * 4
"""Bytes of a tile of 16 x 8 floats of which a device has half the rows."""


def placed(*lines: str) -> Placement:
    """A program of rows of 16 x 8 floats: what is called R stands for their sharding."""
    text = "\n".join([MESH, *lines]).replace("<R>", '<@mesh, [{"x"}, {}]>')
    return Program.parse(text).propagate()


@pytest.mark.parametrize(
    ("lines", "tiles"),
    [
        (['o = output (a)'], 1),
        (['b = tanh "ij->ij" (a)', 'c = exp "ij->ij" (b)', 'o = output (c)'], 1),  # where the input lay
        (['b = tanh "ij->ij" (a)', 'c = add "ij,ij->ij" (a, b)', 'o = output (c)'], 1),
        (['b = tanh "ij->ij" (a)', 'c = exp "ij->ij" (a)', 'o = output (b)', 'p = output (c)'], 2),
        (['b = sort "ij->ij" (a) {replicated="j"}', 'o = output (b)'], 2),  # not element by element
        (  # of values that two read, one lies where another lay
            [
                'b = tanh "ij->ij" (a)', 'c = exp "ij->ij" (b)', 'd = add "ij,ij->ij" (b, c)',
                'e = sort "ij->ij" (d) {replicated="j"}', 'f = add "ij,ij->ij" (e, d)',
                's = sum "ij->" (f)', 'o = output (s) <@mesh, []>',
            ],
            3,
        ),
        (  # the ones and their sum are made again wherever they are read
            [
                'k = constant : float32[] {value=1.0}', 'b = broadcast "->ij" (k) {sizes.i=16, sizes.j=8}',
                'c = add "ij,ij->ij" (a, b)', 'd = mul "ij,ij->ij" (c, b)', 'o = output (d)',
            ],
            1,
        ),
        (  # other shapes are views
            [
                'b = reshape "i j->(i j)" (a)', 'c = tanh "i->i" (b)',
                'd = reshape "(i j)->i j" (c) {sizes.i=16, sizes.j=8}', 'o = output (d)',
            ],
            1,
        ),
    ],
)  # fmt: skip
def test_straight_programs(lines: list[str], tiles: int) -> None:
    program = placed("a = input : float32[16, 8] <R>", *lines)
    assert program.peak_bytes // TILE == tiles, program.text()
    assert program.peak_values[0] == ("a", TILE)


def test_a_chain_of_thousands_is_one_tile() -> None:
    lines = [f'b{number + 1} = tanh "ij->ij" (b{number})' for number in range(2000)]
    program = placed("b0 = input : float32[16, 8] <R>", *lines, "o = output (b2000)")
    assert program.peak_bytes == TILE


def loop(*lines: str, turns: int = 5) -> Placement:
    return placed(
        "a = input : float32[16, 8] <R>",
        "k = constant : float32[] {value=1.0}",
        'z = broadcast "->ij" (k) {sizes.i=16, sizes.j=8}',
        f"loop {turns} {{",
        *lines,
        "}",
        "o = output (y)",
    )


def test_a_carry_is_held_once() -> None:
    lines = ["h = carry (z) <R>", 'n = add "ij,ij->ij" (h, a)', "y = last (n, h)"]
    assert loop(*lines).peak_bytes == 2 * TILE  # the input, which every turn reads, and the carry
    lines[1:2] = ['s = sort "ij->ij" (h) {replicated="j"}', 'n = add "ij,ij->ij" (s, a)']
    assert loop(*lines).peak_bytes == 3 * TILE  # and what is sorted


def test_a_stack_is_held_whole_from_the_first_turn() -> None:
    lines = ["h = carry (z) <R>", 'n = add "ij,ij->ij" (h, a)', "l = last (n, h)", "y = stack (n)"]
    assert loop(*lines).peak_bytes == (2 + 5) * TILE
    assert loop(*lines, turns=50).peak_bytes == (2 + 50) * TILE
    assert loop(*lines).peak_values == (("y", 5 * TILE), ("a", TILE), ("h", TILE))


def test_branches_share_their_memory() -> None:
    branch = ["branch {{", 's{0} = sort "ij->ij" (a) {{replicated="j"}}', 'e{0} = add "ij,ij->ij" (s{0}, a)', "}}"]
    lines = [line.format(number) for number in range(3) for line in branch]
    program = placed(
        "a = input : float32[16, 8] <R>",
        "n = input : int32[] <@mesh, []>",
        "choice {",
        *lines,
        "c = chosen (n, e0, e1, e2)",
        "}",
        'd = mul "ij,ij->ij" (c, a)',
        "o = output (d)",
    )
    assert program.peak_bytes == 3 * TILE + 4  # the input, what comes out, and what is sorted


def test_a_reshard_needs_both_ends() -> None:
    program = placed("a = input : float32[16, 8] <R>", "o = output (a) <@mesh, [{}, {}]>")
    assert program.peak_bytes == max(plan.peak_bytes for plan in program.plans.values())
    assert "peak" in program.table()
    assert f"a {TILE} B" in program.table()
