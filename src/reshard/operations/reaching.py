"""Which labels of an operation a device can have a part of though its operands reach over the edge of it.

A label of a slice, a pad, a convolution is the same dim of an operand and of the result, and yet an element of the one
is made of elements at other places of the other.
Such a label may be cut all the same: each device makes its tile of the result out of a *window* of the operand, which
arithmetic tells (`reshard.reach`), and a reshard to that window brings what the device lacks of it.
The tile that decides is that of the result; where the result lacks the label, as the gradient of a kernel lacks the
places over which it is summed, it is that of another operand.

What the operations of the table reach follows from their attributes.
Another says it in attributes of its own: `reach_0_s1` of five integers, kernel, stride, dilation, low and spread, is
what operand 0 is read for along the label s1; after these may stand places, one per element of the result.

By hand, 8 rows on 2 devices, of which rows 1 to 6 are taken: the result has 6 rows, 3 on each device, so the second
makes its own of rows 4 to 6 and the first of rows 1 to 3.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation import Program
>>> program = Program(Mesh.of(x=2))
>>> inner = program.slice(program.input("rows", (8,), "float32"), (1,), (7,))
>>> operation = program.operations[-1]
>>> operation.reaches
(Reached(label='d0', operand=0, reach=Reach(kernel=1, stride=1, dilation=1, low=-1, edge='pad', spread=1, places=())),)
>>> rows = Sharding.of(program.mesh, "x")
>>> windowed(operation.pattern, operation.reaches, [rows, rows], [(8,), (6,)])[0].text()
'[{"x", window(1:4, 4:7, pad)}]'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from reshard.checks import shown
from reshard.deal import Window
from reshard.errors import ReshardError
from reshard.operations.pattern import Pattern, Shape
from reshard.reach import Reach
from reshard.sharding import Sharding

PREFIX = "reach_"
NUMBERS = ("kernel", "stride", "dilation", "low", "spread")
"""What the integers of such an attribute are."""


class Reached(NamedTuple):
    """What an operand is read for along a label."""

    label: str
    operand: int
    reach: Reach


class TensorDim(NamedTuple):
    """A dim of a tensor of an operation."""

    term: int
    """The number of the operand, or of the result."""
    dim: int


def attribute_of(operand: int, label: str, reach: Reach) -> tuple[str, tuple[int, ...]]:
    """The attribute that says what an operand is read for.

    >>> attribute_of(0, "s1", Reach(kernel=3, low=1))
    ('reach_0_s1', (3, 1, 1, 1, 1))
    """
    return f"{PREFIX}{operand}_{label}", (*(getattr(reach, name) for name in NUMBERS), *reach.places)


def reaches_of(
    name: str, pattern: Pattern, shapes: Sequence[Shape], attributes: Mapping[str, Any], shifted: Sequence[str]
) -> tuple[Reached, ...]:
    """What the operands of an operation are read for along its shifted labels, as far as that is known.

    Args:
        name: of the operation.
        pattern: of the same.
        shapes: of the operands.
        attributes: of the operation.
        shifted: labels whose elements change their place.
    """
    alone = {group[0] for term in pattern.terms for group in term if len(group) == 1}
    alone -= {label for term in pattern.terms for group in term if len(group) > 1 for label in group}
    if name in _OF_ATTRIBUTES:
        dims = [(dim, group[0]) for dim, group in enumerate(pattern.output) if group and group[0] in alone & {*shifted}]
        return tuple(
            Reached(label, operand, reach)
            for dim, label in dims
            for operand, reach in enumerate(_OF_ATTRIBUTES[name](attributes, shapes, dim))
        )
    return tuple(
        Reached(label, int(operand), _reach(key, numbers))
        for key, numbers in sorted(attributes.items())
        if key.startswith(PREFIX)
        for operand, _, label in [key.removeprefix(PREFIX).partition("_")]
        if label in alone & {*shifted} and operand.isdigit() and int(operand) < len(shapes)
    )


def _reach(key: str, numbers: Any) -> Reach:
    """A reach from an attribute.

    Raises:
        ReshardError: `bad-argument`.
    """
    if not isinstance(numbers, tuple) or len(numbers) < len(NUMBERS):
        raise ReshardError("bad-argument", f"{key} must be {', '.join(NUMBERS)}, got: {shown(numbers)}")
    return Reach(**dict(zip(NUMBERS, numbers, strict=False)), places=numbers[len(NUMBERS) :])


def _of_slice(attributes: Mapping[str, Any], shapes: Sequence[Shape], dim: int) -> list[Reach]:
    return [Reach(stride=attributes["step"][dim], low=-attributes["start"][dim])]


def _of_pad(attributes: Mapping[str, Any], shapes: Sequence[Shape], dim: int) -> list[Reach]:
    return [Reach(stride=attributes.get("step", (1,) * (dim + 1))[dim], low=attributes["low"][dim])]


def _of_concatenate(attributes: Mapping[str, Any], shapes: Sequence[Shape], dim: int) -> list[Reach]:
    lengths = [shape[dim] for shape in shapes]
    return [Reach(low=sum(lengths[:operand])) for operand in range(len(lengths))]


def _of_roll(attributes: Mapping[str, Any], shapes: Sequence[Shape], dim: int) -> list[Reach]:
    size = shapes[0][dim]
    shift = dict(zip(attributes["dims"], attributes["shifts"], strict=True)).get(dim, 0)
    return [Reach(low=shift % size if size else 0, edge="wrap")]


def _of_reverse(attributes: Mapping[str, Any], shapes: Sequence[Shape], dim: int) -> list[Reach]:
    return [Reach(stride=-1, low=1 - shapes[0][dim])]


_OF_ATTRIBUTES: dict[str, Callable[[Mapping[str, Any], Sequence[Shape], int], list[Reach]]] = {
    "slice": _of_slice,
    "pad": _of_pad,
    "concatenate": _of_concatenate,
    "roll": _of_roll,
    "reverse": _of_reverse,
}
"""Per operation, what each operand is read for along a dim."""


def place_of(pattern: Pattern, label: str, term: int) -> TensorDim:
    """The dim of a tensor that a label is."""
    return TensorDim(term, next(dim for dim, group in enumerate(pattern.terms[term]) if label in group))


def deciding(pattern: Pattern, label: str, reached: Iterable[int]) -> TensorDim:
    """The dim whose tiles decide what is read along a label: of the result, or of an operand that is read in place."""
    holders, skipped = pattern.holders(label), {*reached}
    return place_of(pattern, label, next(term for term in reversed(holders) if term not in skipped))


def windowed(
    pattern: Pattern,
    reaches: Sequence[Reached],
    shardings: Sequence[Sharding],
    shapes: Sequence[Shape],
    known: dict[object, Window | None] | None = None,
) -> list[Sharding]:
    """Where the tensors of an operation must be: the operands with the windows that their tiles are read through.

    Args:
        pattern: of the operation.
        reaches: what its operands are read for.
        shardings: as the labels are cut, of the operands and last of the result.
        shapes: of the same.
        known: the windows that were found under other shardings of the same operation on these meshes; it grows.
    """
    ends, known = list(shardings), {} if known is None else known
    for number, (label, operand, reach) in enumerate(reaches):
        place = place_of(pattern, label, operand)
        decides = deciding(pattern, label, [each.operand for each in reaches if each.label == label])
        dim = shardings[decides.term].dims[decides.dim] if not shardings[decides.term].mesh.is_maximal else None
        if dim is None or not dim.axes:
            continue
        both = shardings[decides.term], shardings[operand]
        key = number, dim, both[1].dims[place.dim], *(each.uneven for each in both)
        if key not in known:
            layouts = [each.layout_for(shapes[n]) for each, n in zip(both, (decides.term, operand), strict=True)]
            window = reach.window(layouts[0], decides.dim, shapes[decides.term][decides.dim])
            own = zip(*map(list, layouts[1].blocks(place.dim, shapes[operand][place.dim])), strict=True)
            is_held = window.spans == tuple((low, high) if low < high else (0, 0) for low, high in own)
            known[key] = None if is_held else window
        if known[key] is not None:
            dims = list(ends[operand].dims)
            dims[place.dim] = replace(dims[place.dim], window=known[key])
            ends[operand] = replace(ends[operand], dims=tuple(dims))
    return ends
