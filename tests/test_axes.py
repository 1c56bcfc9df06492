"""The algebra of axes and sub-axes, against digit functions on range(n) and against lists of atoms.

An atom is a part of an axis that nothing cuts further; a list of axes is a list of runs of atoms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from math import prod

import hypothesis.strategies as st
import oracle
import problems
import pytest
from hypothesis import given

from reshard.axis import (
    Axis,
    aligned,
    common_prefix,
    difference,
    is_prefix,
    merged,
    mesh_order,
    pieces,
    refined_mesh,
    sorted_and_merged,
    truncated,
)
from reshard.errors import ReshardError
from reshard.mesh import Mesh

LARGEST_AXIS = 24


# The algebra of axes, two by two, on every axis of up to 24.


@cache
def sub_axes(n: int) -> tuple[Axis, ...]:
    """The whole axis of size n and all of its sub-axes."""
    ends = [
        (start, stop) for start, stop in product(problems.divisors(n), repeat=2) if start < stop and stop % start == 0
    ]
    return (Axis("y"), *(Axis("y", start, stop // start) for start, stop in ends if (start, stop) != (1, n)))


@cache
def digit(axis: Axis, n: int) -> tuple[int, ...]:
    """The value of an axis at each of its n places: it sees y as pre-size, size and a rest."""
    pre_size, size = axis.pre_size or 1, axis.size or n
    return tuple(place // (n // (pre_size * size)) % size for place in range(n))


@cache
def knows(axis: Axis, other: Axis, n: int) -> bool:
    """Whether the value of `axis` tells that of `other`."""
    return len(set(zip(digit(axis, n), digit(other, n), strict=True))) == len(set(digit(axis, n)))


@cache
def splits_with(axis: Axis, n: int) -> frozenset[tuple[int, ...]]:
    """The factorisations of n in which an axis is a product of neighbours."""
    found = []
    for factors in problems.factorisations(n):
        edges = {prod(factors[:count]) for count in range(len(factors) + 1)}
        pre_size, size = axis.pre_size or 1, axis.size or n
        if {pre_size, pre_size * size} <= edges:
            found.append(factors)
    return frozenset(found)


def parts_of_both(axis: Axis, other: Axis, n: int) -> list[Axis]:
    return [part for part in sub_axes(n) if knows(axis, part, n) and knows(other, part, n)]


def largest(parts: Iterable[Axis], n: int) -> Axis | None:
    return max(parts, key=lambda part: part.size or n, default=None)


@pytest.mark.parametrize("n", range(2, LARGEST_AXIS + 1))
def test_two_axes_against_their_digits(n: int) -> None:
    for axis, other in product(sub_axes(n), repeat=2):
        coexist = bool(splits_with(axis, n) & splits_with(other, n))
        assert axis.can_coexist(other) is coexist, (axis, other)
        assert axis.overlaps(other) is axis_overlaps(axis, other, n), (axis, other)
        if not coexist:
            assert axis.overlap(other, n) is None
            assert axis.prefix_without_overlap(other, n) is None
            assert axis.suffix_without_overlap(other, n) is None
            continue
        shared = parts_of_both(axis, other, n)
        assert axis.contains(other) is knows(axis, other, n), (axis, other)
        assert axis.overlap(other, n) == largest(shared, n), (axis, other)
        clear = [part for part in sub_axes(n) if not axis_overlaps(part, other, n)]
        majors = [part for part in clear if is_major(part, axis, n)]
        minors = [part for part in clear if is_minor(part, axis, n)]
        assert axis.prefix_without_overlap(other, n) == largest(majors, n), (axis, other)
        assert axis.suffix_without_overlap(other, n) == largest(minors, n), (axis, other)
        assert axis.is_prefix_of(other) is is_major(axis, other, n)
        first = [one for one, two in ((axis, other), (other, axis)) if is_major(one, two, n)]
        assert axis.common_prefix(other) == (first[0] if first else None)


def axis_overlaps(axis: Axis, other: Axis, n: int) -> bool:
    """Whether the intervals of two axes on the divisors of n meet: for those that cannot coexist too."""
    ends = [((one.pre_size or 1), (one.pre_size or 1) * (one.size or n)) for one in (axis, other)]
    return max(start for start, _ in ends) < min(stop for _, stop in ends)


def is_major(part: Axis, axis: Axis, n: int) -> bool:
    """Whether a part is the leading digit of an axis: equal values of it stand side by side."""
    size, whole = part.size or n, axis.size or n
    return whole % size == 0 and digit(part, n) == tuple(value // (whole // size) for value in digit(axis, n))


def is_minor(part: Axis, axis: Axis, n: int) -> bool:
    size, whole = part.size or n, axis.size or n
    return whole % size == 0 and digit(part, n) == tuple(value % size for value in digit(axis, n))


@pytest.mark.parametrize("n", range(2, LARGEST_AXIS + 1))
def test_merging_against_digits(n: int) -> None:
    for major, minor in product(sub_axes(n), repeat=2):
        joint = tuple(a * (minor.size or n) + b for a, b in zip(digit(major, n), digit(minor, n), strict=True))
        found = [axis for axis in sub_axes(n) if digit(axis, n) == joint]
        assert major.can_merge(minor) is bool(found), (major, minor)
        if found:
            assert major.merge(minor, n) == found[0]
            assert merged([major, minor], {"y": n}) == (found[0],)
        else:
            assert merged([major, minor], {"y": n}) == (major, minor)
            with pytest.raises(ReshardError) as refusal:
                major.merge(minor, n)
            assert (refusal.value.code, str(refusal.value)) == ("bad-argument", f"{minor} does not continue {major}")


def test_axes_of_two_names_have_nothing_in_common() -> None:
    y, z = Axis("y", 1, 2), Axis("z", 1, 2)
    assert y.can_coexist(z)
    assert not any([y.overlaps(z), y.contains(z), y.is_prefix_of(z), y.can_merge(z)])
    assert (y.overlap(z, 4), y.common_prefix(z)) == (None, None)
    assert (y.prefix_without_overlap(z, 4), y.suffix_without_overlap(z, 4)) == (y, y)


@pytest.mark.parametrize("n", range(2, LARGEST_AXIS + 1))
def test_an_axis_from_its_text_and_on_a_mesh(n: int) -> None:
    mesh = Mesh.of(x=2, y=n, z=3)
    for axis in sub_axes(n):
        assert Axis.of(str(axis).replace('"', "")) == axis == Axis.of(axis)
        assert Axis.between("y", axis.start, axis.stop_in(n), n) == axis
        stride, size = mesh.digit_of(axis)
        values = [place["y"] for place in oracle.coordinates(mesh).values()]
        assert [position // stride % size for position in range(6 * n)] == [digit(axis, n)[value] for value in values]


# Lists of axes, as lists of atoms.

SIZES = {"x": 6, "y": 8, "z": 12}


@st.composite
def atom_lists(draw: st.DrawFn, count: int = 2) -> tuple[list[Axis], list[list[list[Axis]]]]:
    """Atoms of three axes, and lists of axes: a list of axes is a list of runs of atoms that continue one another.

    An atom is in one run of a list at most; two lists may share atoms.
    """
    cuts = {name: [1] for name in SIZES}
    for name, size in SIZES.items():
        while cuts[name][-1] < size:
            cuts[name].append(cuts[name][-1] * draw(st.sampled_from(problems.divisors(size // cuts[name][-1])[1:])))
    atoms = [atom for name in SIZES for atom in pieces(Axis(name), cuts[name], SIZES)]
    lists = []
    for _ in range(count):
        order = draw(st.permutations(atoms)) if draw(st.booleans()) else list(atoms)
        order = order[: draw(st.integers(0, len(order)))]
        runs: list[list[Axis]] = []
        for atom in order:
            if runs and continues(runs[-1][-1], atom):
                runs[-1].append(atom)
            else:
                runs.append([atom])
        lists.append(runs)
    if draw(st.booleans()):  # the second begins as the first does
        head = [atom for run in lists[0] for atom in run][: draw(st.integers(0, len(atoms)))]
        lists[1] = runs_of([*head, *(atom for run in lists[1] for atom in run if atom not in head)])
    return atoms, lists


def continues(major: Axis, minor: Axis) -> bool:
    return major.name == minor.name and major.start * major.size_in(SIZES[major.name]) == minor.start > 1


def runs_of(order: Iterable[Axis]) -> list[list[Axis]]:
    runs: list[list[Axis]] = []
    for atom in order:
        if runs and continues(runs[-1][-1], atom):
            runs[-1].append(atom)
        else:
            runs.append([atom])
    return runs


def axis_of(run: list[Axis]) -> Axis:
    last = run[-1]
    return Axis.between(run[0].name, run[0].start, last.stop_in(SIZES[last.name]), SIZES[last.name])


def atoms_of(axes: Iterable[Axis], atoms: Sequence[Axis]) -> list[Axis]:
    """Axes as atoms, by the intervals of the divisors that they are."""

    def ends(axis: Axis) -> tuple[int, int]:
        size = SIZES[axis.name]
        return (axis.pre_size or 1, (axis.pre_size or 1) * (axis.size or size))

    found = []
    for axis in axes:
        start, stop = ends(axis)
        inside = [a for a in atoms if a.name == axis.name and start <= ends(a)[0] and ends(a)[1] <= stop]
        assert prod(a.size_in(SIZES[a.name]) for a in inside) == stop // start, "an axis is cut inside an atom"
        found += inside
    return found


@given(atom_lists())
def test_lists_of_axes_against_atoms(drawn: tuple[list[Axis], list[list[list[Axis]]]]) -> None:
    atoms, lists = drawn
    ours, theirs = ([atom for run in runs for atom in run] for runs in lists)
    axes, others = ([axis_of(run) for run in runs] for runs in lists)
    assert (atoms_of(axes, atoms), atoms_of(others, atoms)) == (ours, theirs)
    assert merged(ours, SIZES) == tuple(axes)
    assert merged(axes, SIZES) == tuple(axes)
    assert atoms_of(difference(axes, others, SIZES), atoms) == [atom for atom in ours if atom not in theirs]
    assert is_prefix(axes, others) is (ours == theirs[: len(ours)])
    pairs = list(zip(ours, theirs, strict=False))
    shared = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    assert atoms_of(common_prefix(axes, others), atoms) == ours[:shared]
    clean = next((i for i, atom in enumerate(ours) if atom in theirs), len(ours))
    assert atoms_of(truncated(axes, others, SIZES), atoms) == ours[:clean]
    ordered = sorted(ours, key=atoms.index)
    assert mesh_order(ours, SIZES) == ordered
    assert sorted_and_merged(ours, SIZES) == tuple(axis_of(run) for run in runs_of(ordered))


@given(atom_lists())
def test_lists_that_are_aligned(drawn: tuple[list[Axis], list[list[list[Axis]]]]) -> None:
    atoms, lists = drawn
    axes, others = ([axis_of(run) for run in runs] for runs in lists)
    left, right = aligned(axes, others, SIZES)
    assert atoms_of(left, atoms) == atoms_of(axes, atoms)
    assert atoms_of(right, atoms) == atoms_of(others, atoms)
    for one, two in product(left, right):
        assert one == two or not set(atoms_of([one], atoms)) & set(atoms_of([two], atoms))
    for axis in axes:  # what meets nothing stays whole
        assert axis in left or any(axis.overlaps(other) for other in others)


@given(atom_lists())
def test_the_refined_mesh(drawn: tuple[list[Axis], list[list[list[Axis]]]]) -> None:
    """The coarsest split with every part: its edges are theirs, and those of the axes."""
    atoms, lists = drawn
    axes = [axis_of(run) for runs in lists for run in runs]
    split = refined_mesh(axes, SIZES)
    assert atoms_of(split, atoms) == atoms
    for axis in axes:
        mine = atoms_of([axis], atoms)
        inside = [part for part in split if set(atoms_of([part], atoms)) & set(mine)]
        assert atoms_of(inside, atoms) == sorted(mine, key=atoms.index)
    edges = {(axis.name, end) for axis in axes for end in (axis.start, axis.stop_in(SIZES[axis.name]))}
    inner = {(axis.name, axis.start) for axis in split if axis.start > 1}
    assert inner == {(name, end) for name, end in edges if 1 < end < SIZES[name]}


def test_a_refined_mesh_that_is_none() -> None:
    with pytest.raises(ReshardError, match='no split of axis "z" has parts that end at') as refusal:
        refined_mesh([Axis("z", 1, 4), Axis("z", 6, 2)], SIZES)
    assert refusal.value.code == "sub-axes-cannot-coexist"
