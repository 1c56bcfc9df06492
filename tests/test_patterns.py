"""Einsum-like patterns: what their texts mean, what sizes follow, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import reshard as rs
from reshard.errors import ReshardError
from reshard.operations.pattern import ROLES, Pattern

MEANINGS = {
    "ij,jk->ik": (((("i",), ("j",)), (("j",), ("k",))), (("i",), ("k",))),
    " ij , jk -> ik ": (((("i",), ("j",)), (("j",), ("k",))), (("i",), ("k",))),
    "i j, j k -> i k": (((("i",), ("j",)), (("j",), ("k",))), (("i",), ("k",))),
    "(a b) c -> a (b c)": (((("a", "b"), ("c",)),), (("a",), ("b", "c"))),
    "batch seq, seq -> batch": (((("batch",), ("seq",)), (("seq",),)), (("batch",),)),
    "(hidden) -> (hidden)": (((("hidden",),),), (("hidden",),)),
    "ii->i": (((("i",), ("i",)),), (("i",),)),
    "ij->": (((("i",), ("j",)),), ()),
    ",i->i": (((), (("i",),)), (("i",),)),
    "->": (((),), ()),
    "i1->i": (((("i",), ()),), (("i",),)),
    "i () -> 1 i": (((("i",), ()),), ((), ("i",))),
    "(a 1) -> a": (((("a",),),), (("a",),)),
}


@pytest.mark.parametrize("text", MEANINGS)
def test_text_means_these_labels(text: str) -> None:
    pattern = Pattern.of(text)
    assert (pattern.operands, pattern.output) == MEANINGS[text]


@pytest.mark.parametrize("text", MEANINGS)
def test_text_of_a_pattern_parses_back(text: str) -> None:
    pattern = Pattern.of(text)
    assert Pattern.of(str(pattern)) == pattern
    assert eval(repr(pattern)) == pattern


def test_a_joined_label_stands_behind_the_result() -> None:
    pattern = Pattern.of("(m i) j -> j ; m")
    assert pattern == Pattern(((("m", "i"), ("j",)),), (("j",),), ("m",))
    assert Pattern.of(str(pattern)) == pattern
    with pytest.raises(ReshardError, match="joins no label"):
        rs.einsum(pattern, rs.Sharding.of(rs.Mesh.of(x=2), "x", None), shapes=[(4, 2)], sizes={"m": 2}, dtype="f32")


@pytest.mark.parametrize("seed", range(50))
def test_any_pattern_parses_back(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.choice([list("abcdef"), ["batch", "seq", "head", "_x", "k2", "d"], ["i", "jj", "k", "l", "m", "n"]])

    def term(labels: list[str]) -> tuple[tuple[str, ...], ...]:
        dims: list[tuple[str, ...]] = []
        for label in labels:
            if dims and rng.random() < 0.3:
                dims[-1] = (*dims[-1], label)
            else:
                dims.append((label,))
        return tuple([*dims, ()] if rng.random() < 0.2 else dims)

    operands = tuple(term(rng.sample(names, rng.randrange(4))) for _ in range(rng.randrange(1, 4)))
    pattern = Pattern(operands, term(rng.sample(names, rng.randrange(4))))
    assert Pattern.of(str(pattern)) == pattern


SYNTAX = {
    "ij,jk": "a pattern must have one ->, as in ij,jk->ik, got: 'ij,jk'",
    "i->j->k": "a pattern must have one ->, as in ij,jk->ik, got: 'i->j->k'",
    "i->j,k": "a pattern must have one result, got: 'i->j,k'",
    "i.j->i": "a label must be a letter, got '.' in 'i.j->i'",
    "i2->i": "a label must be a letter, got '2' in 'i2->i'",
    "...i->i": "a label must be a letter, got '.' in '...i->i'",
    "(a b -> a b": "brackets must be closed and hold no others, in '(a b -> a b'",
    "a b) -> a b": "brackets must be closed and hold no others, in 'a b) -> a b'",
    "((a b) c) -> a b c": "brackets must be closed and hold no others, in '((a b) c) -> a b c'",
    "a 2b -> a": "a label must be letters, digits and underscores, got '2b' in 'a 2b -> a'",
    "a b-c -> a": "a label must be letters, digits and underscores, got 'b-c' in 'a b-c -> a'",
    "ij->ii": "label i stands twice in the result of ij->ii",
    "(a a) -> a": "label a stands twice in one operand of (a a) -> a, in a group",
    "(a b) a -> a": "label a stands twice in one operand of (a b) a -> a, in a group",
    "a b -> a ; a": "label 'a' is joined, so it must be in operands of a b -> a ; a only",
    "a -> a ; b": "label 'b' is joined, so it must be in operands of (a) -> (a) ; b only",
}


@pytest.mark.parametrize("text", SYNTAX)
def test_text_that_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ReshardError) as refusal:
        Pattern.of(text)
    assert (refusal.value.code, str(refusal.value)) == ("syntax", SYNTAX[text])


@pytest.mark.parametrize("wrong", [None, 3, ["ij->i"]])
def test_what_is_no_text_is_refused(wrong: Any) -> None:
    with pytest.raises(ReshardError) as refusal:
        Pattern.of(wrong)
    assert refusal.value.code == "syntax"


def test_a_pattern_has_an_operand() -> None:
    with pytest.raises(ReshardError) as refusal:
        Pattern((), ())
    assert refusal.value.code == "syntax"


SIZES = [
    ("ij,jk->ik", [(2, 3), (3, 5)], {}, {"i": 2, "j": 3, "k": 5}),
    ("(a b) c -> a (b c)", [(6, 5)], {"a": 2}, {"a": 2, "b": 3, "c": 5}),
    ("(a b), a -> b", [(6,), (2,)], {}, {"a": 2, "b": 3}),
    ("(a b), (b c), c -> a", [(6,), (12,), (4,)], {}, {"a": 2, "b": 3, "c": 4}),
    ("i -> i n", [(3,)], {"n": 4}, {"i": 3, "n": 4}),
    ("i -> i n", [(3,), (3, 4)], {}, {"i": 3, "n": 4}),
    ("i 1 -> i", [(3, 1)], {}, {"i": 3}),
    ("(a b) -> a b", [(0,)], {"a": 2}, {"a": 2, "b": 0}),
    ("ii->i", [(4, 4)], {}, {"i": 4}),
    ("->", [()], {}, {}),
]


@pytest.mark.parametrize(("text", "shapes", "known", "sizes"), SIZES, ids=[str(row[:3]) for row in SIZES])
def test_sizes_follow_from_shapes(
    text: str, shapes: list[tuple[int, ...]], known: dict[str, int], sizes: dict[str, int]
) -> None:
    pattern = Pattern.of(text)
    assert pattern.solve_sizes(shapes, known) == sizes
    assert [pattern.shape_of(term, sizes) for term in pattern.operands] == shapes[: len(pattern.operands)]


WRONG_SIZES = [
    ("ij,jk->ik", [(2, 3), (4, 5)], {}, "bad-shape", "dim 0 of operand 1 of ij,jk->ik has size 4, but label j is 3"),
    ("ii->i", [(2, 3)], {}, "bad-shape", "dim 1 of operand 0 of ii->i has size 3, but label i is 2"),
    ("ij->i", [(2, 3, 4)], {}, "rank-mismatch", "operand 0 of ij->i has 2 dims, its shape (2, 3, 4) has 3"),
    ("i->i", [(2,), (2,), (2,)], {}, "bad-argument", "3 shapes are given for the 1 operands of i->i"),
    ("i->ij", [(2,)], {}, "bad-shape", "label j of i->ij stands in no operand, so that its size must be given"),
    (
        "(a b) -> a b", [(6,)], {"a": 4}, "bad-shape",
        "dim 0 of operand 0 of (a b) -> a b has size 6, which 4 does not divide",
    ),
    (
        "(a b) -> a b", [(6,)], {}, "bad-shape",
        "dim 0 of operand 0 of (a b) -> a b has size 6, which leaves a and b open; give the size of a label",
    ),
    (
        "(a b) -> a b", [(6,)], {"a": 2, "b": 2}, "bad-shape",
        "dim 0 of operand 0 of (a b) -> a b has size 6, but a * b is 4",
    ),
    (
        "(a b) -> a b", [(0,)], {"a": 0}, "bad-shape",
        "dim 0 of operand 0 of (a b) -> a b has size 0, which leaves b open; give the size of a label",
    ),
    (
        "i 1 -> i", [(2, 3)], {}, "bad-shape",
        "dim 1 of operand 0 of i1->i has size 3; without a label it must have size 1",
    ),
    ("i->i", [(2,)], {"z": 3}, "bad-argument", "label 'z' is not in i->i"),
    ("i->i", [(2,)], {"i": -2}, "bad-shape", "label i of i->i has size -2; it must be at least 0"),
    ("i->i", [(2,)], {"i": 3}, "bad-shape", "dim 0 of operand 0 of i->i has size 2, but label i is 3"),
    ("i->i", [(-2,)], {}, "bad-shape", "dim 0 has size -2; it must be at least 0"),
    ("i->i", [(2,)], {"i": 2.0}, "bad-shape", "the size of label i must be an integer, got: 2.0"),
    ("i->i", 7, {}, "bad-argument", "the shapes of the operands must be a list, got: 7"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shapes", "known", "code", "sentence"), WRONG_SIZES, ids=[row[4] for row in WRONG_SIZES]
)
def test_sizes_that_contradict_are_refused(text: str, shapes: Any, known: Any, code: str, sentence: str) -> None:
    with pytest.raises(ReshardError) as refusal:
        Pattern.of(text).solve_sizes(shapes, known)
    assert (refusal.value.code, str(refusal.value)) == (code, sentence)


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("ij,jk->ik", "i free, j contracted, k free"),
        ("bij,bjk->bik", "b batch, i free, j contracted, k free"),
        ("ij,ij->ij", "i batch, j batch"),
        ("ij->i", "i free, j summed"),
        ("ij,jk->k", "i summed, j contracted, k free"),
        ("i->in", "i free, n broadcast"),
        ("(m i) j -> j ; m", "m joined, i summed, j free"),
    ],
)
def test_roles(text: str, roles: str) -> None:
    pattern = Pattern.of(text)
    assert ", ".join(f"{label} {pattern.role(label)}" for label in pattern.labels) == roles
    assert {pattern.role(label) for label in pattern.labels} <= set(ROLES)


def test_places_and_holders() -> None:
    pattern = Pattern.of("(a b) c, b -> a (b c)")
    assert list(pattern.places("b")) == [(0, 0, 1), (1, 0, 0), (2, 1, 0)]
    assert [pattern.holders(label) for label in "abc"] == [(0, 2), (0, 1, 2), (0, 2)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ij->ji", True), ("(a b) -> b a", True), ("ii->i", False), ("ij->i", False), ("i,i->i", False), ("i->in", False)],
)
def test_what_only_rearranges(text: str, expected: bool) -> None:
    assert Pattern.of(text).is_rearrangement is expected


def test_the_reading_of_letters_is_numpys() -> None:
    rng = np.random.default_rng(0)
    for text, shapes in (
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(2, 3)]),
    ):
        pattern = Pattern.of(text)
        arrays = [rng.integers(0, 9, shape) for shape in shapes]
        assert np.einsum(text, *arrays).shape == pattern.output_shape(pattern.solve_sizes(shapes))
