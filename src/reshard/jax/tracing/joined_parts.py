"""Parts of tensors one after another, through whatever they were joined, padded, added, cut and joined of again.

`jnp.pad(x, 1, mode="edge")` joins the first row, x and the last row, and a stencil takes three slices of that.
Each slice is joined of parts of x itself: `(pad x)[2:]` of x[1:] and its last row.
So it is read from x, and nothing is joined that is taken apart again.
The gradient of a stencil adds up pads of what comes back, of which again a part is taken: it is the sum of these parts.

By hand, of 8 elements between their first and their last:

>>> import jax
>>> def edged(x):
...     return jax.numpy.concatenate([x[:1], x, x[7:]])
>>> traced = jax.make_jaxpr(edged)(jax.numpy.zeros(8)).jaxpr
>>> makers = {var: equation for equation in traced.eqns for var in equation.outvars}
>>> [(piece.start, piece.stop) for piece in part_of(makers, Piece(traced.outvars[0], (2,), (10,))).parts]
[((1,), (8,)), ((7,), (8,))]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from jax import lax
from jax.extend.core import Literal

from reshard.jax.tracing.evaluation import literal_array
from reshard.operations.pattern import Shape

MOST_PIECES = 5
"""Of so many pieces at most a value is joined."""
MOST_ADDED = 32
"""So many sums and pads at most are gone through, as the gradient of a stencil has them."""
MOST_PARTS = 256
"""Of so many parts at most it is asked what they are made of."""
MOST_TURNED = 4
"""Of what is turned round so many elements at most are pieces of their own."""
RESHAPED = ("broadcast_in_dim", "expand_dims", "reshape", "squeeze")
"""Primitives that leave elements in their order, where they do not repeat them."""


class Piece(NamedTuple):
    """A part of a tensor, or a number as often."""

    atom: Any
    start: Shape
    stop: Shape

    @property
    def shape(self) -> Shape:
        """How long it is per dim."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def is_all(self) -> bool:
        """Whether it is all of the tensor."""
        return not any(map(self.is_cut, range(len(self.start))))

    def is_cut(self, dim: int) -> bool:
        """Whether it is not all of the tensor in a dim."""
        return bool(self.stop[dim] - self.start[dim] != self.atom.aval.shape[dim])

    def along(self, dim: int, start: int, stop: int) -> Piece:
        """Other places in one dim."""
        first, last = ((*ends[:dim], end, *ends[dim + 1 :]) for ends, end in ((self.start, start), (self.stop, stop)))
        return self._replace(start=first, stop=last)

    def of(self, atom: Any, offset: Sequence[int]) -> Piece:
        """The same places of another tensor, in which the tensor begins somewhere."""
        start, stop = (
            tuple(end + int(first) for end, first in zip(ends, offset, strict=True)) for ends in (self.start, self.stop)
        )
        return Piece(atom, start, stop)


class Made(NamedTuple):
    """What is made of parts: several one after another in a dim, two added, or one within a number."""

    primitive: Any
    parts: Sequence[Part]
    dim: int = 0
    number: Any = None
    room: Sequence[tuple[int, int, int]] = ()
    """Per dim how often the number stands before and behind, and not between."""


Part: TypeAlias = Piece | Made


def part_of(makers: Mapping[Any, Any], piece: Piece, dims: Sequence[int] | None = None) -> Part | None:
    """What a part of a tensor is made of: parts of others, or numbers; None where these are too many.

    Args:
        makers: per variable the equation that makes it.
        piece: the part.
        dims: in which what is joined is looked at, part by part; those in which a part is taken unless given.
    """
    if dims is None:
        dims = [*filter(piece.is_cut, range(len(piece.start)))]
    try:
        return _Parting(makers, dims).of(piece)
    except _TooManyError:
        return None


class _TooManyError(Exception):
    """More pieces than a value is made of."""


class _Parting:
    """What a part is made of, while pieces are counted."""

    def __init__(self, makers: Mapping[Any, Any], dims: Sequence[int]) -> None:
        self.makers, self.dims = makers, dims
        self.joins, self.sums, self.asked = MOST_PIECES - 1, MOST_ADDED, 0

    def of(self, piece: Piece) -> Part:
        """What a part of a tensor is made of."""
        self.asked += 1
        if self.asked > MOST_PARTS:  # since sums of which no less is made are not counted
            raise _TooManyError
        inner: Part | None = piece
        while isinstance(inner, Piece):
            piece = inner._replace(atom=alike(self.makers, inner.atom))
            inner = _inner(self.makers.get(piece.atom), piece, self.dims) if piece.atom.aval.shape else None
        if inner is None:
            is_filled = _is_filled(self.makers, piece.atom)
            return piece._replace(atom=self.makers[piece.atom].invars[0]) if is_filled else piece
        left = self.joins, self.sums
        if inner.primitive is lax.concatenate_p:
            self.joins -= len(inner.parts) - 1
        else:
            self.sums -= 1
        if min(self.joins, self.sums) < 0:
            raise _TooManyError
        parts = [self.of(part) for part in inner.parts if isinstance(part, Piece)]
        if inner.primitive is lax.add_p and any(part in inner.parts for part in parts):  # of which no less is made
            self.joins, self.sums = left
            return piece
        if inner.primitive is lax.add_p:
            parts = [part for part in parts if not _is_zero(part)] or parts[:1]
        if len(parts) == 1 and inner.primitive is not lax.pad_p:
            return parts[0]
        if inner.primitive is lax.concatenate_p:
            parts = [each for part in parts for each in (part.parts if _joins(part, inner.dim) else [part])]
        return inner._replace(parts=parts)


def _is_zero(part: Part) -> bool:
    return isinstance(part, Piece) and isinstance(part.atom, Literal) and not literal_array(part.atom).any()


def _joins(part: Part, dim: int) -> TypeGuard[Made]:
    """Whether a part is joined of others in a dim."""
    return isinstance(part, Made) and part.primitive is lax.concatenate_p and part.dim == dim


def _inner(maker: Any, piece: Piece, dims: Sequence[int]) -> Part | None:
    """Of what parts of others a part of a value is made, joined in some dims; None where it is itself one."""
    if maker is None:
        return None
    name, params, (atom, start, stop) = str(maker.primitive), maker.params, piece
    if name == "concatenate" and (params["dimension"] in dims or piece.is_cut(params["dimension"])):
        dim = int(params["dimension"])
        ends = [0, *accumulate(part.aval.shape[dim] for part in maker.invars)]
        parts = [
            piece._replace(atom=part).along(dim, max(start[dim] - low, 0), min(stop[dim], high) - low)
            for part, (low, high) in zip(maker.invars, pairwise(ends), strict=True)
        ]
        parts = [part for part in parts if part.start[dim] < part.stop[dim]]
        return parts[0] if len(parts) == 1 else Made(lax.concatenate_p, parts, dim) if parts else None
    if name == "slice" and {*(params["strides"] or (1,))} == {1}:
        return piece.of(maker.invars[0], params["start_indices"])
    if name == "split":
        before = sum(params["sizes"][: maker.outvars.index(atom)])
        return piece.of(maker.invars[0], [before * (dim == params["axis"]) for dim in range(len(start))])
    if name == "rev" and len(params["dimensions"]) == 1 and params["dimensions"][0] in dims:
        (dim,) = params["dimensions"]
        size, places = atom.aval.shape[dim], range(start[dim], stop[dim])
        turned = [piece._replace(atom=maker.invars[0]).along(dim, size - 1 - at, size - at) for at in places]
        return Made(lax.concatenate_p, turned, dim) if 0 < len(turned) <= MOST_TURNED else None
    if name == "pad" and not piece.is_all and not any(gap for _, _, gap in params["padding_config"]):
        return _of_pad(maker, piece)
    if name in ("add", "add_any") and not piece.is_all:
        parts = [piece._replace(atom=part) for part in maker.invars if part.aval.shape == atom.aval.shape]
        return Made(lax.add_p, parts) if len(parts) == 2 else None
    return None


def _of_pad(maker: Any, piece: Piece) -> Part:
    """A part of a pad: of what is padded, with as much of the number around it as is left."""
    source, number = maker.invars
    whole = piece.of(source, [-int(low) for low, _, _ in maker.params["padding_config"]])
    ends = [
        (min(max(start, 0), size), max(min(stop, size), 0))
        for start, stop, size in zip(whole.start, whole.stop, source.aval.shape, strict=True)
    ]
    if any(start >= stop for start, stop in ends):
        return Piece(number, (0,) * len(piece.shape), piece.shape)
    kept = Piece(source, *map(tuple, zip(*ends, strict=True)))
    room = [
        (first - start, stop - last, 0)
        for start, stop, first, last in zip(whole.start, whole.stop, kept.start, kept.stop, strict=True)
    ]
    return Made(lax.pad_p, [kept], 0, number, room) if any(map(any, room)) else kept


def alike(makers: Mapping[Any, Any], atom: Any) -> Any:
    """A value of which another is made that has the same elements in the same shape; the last of such."""
    last = step = atom
    while (step := _in_order(makers, step)) is not None:
        if step.aval.shape == atom.aval.shape:
            last = step
    return last


def _in_order(makers: Mapping[Any, Any], atom: Any) -> Any:
    """What a value is made of, with the same elements in the same order; None where it has others."""
    maker = None if isinstance(atom, Literal) else makers.get(atom)
    if maker is None:
        return None
    name, params, size = str(maker.primitive), maker.params, atom.aval.size
    parts = [part for part in maker.invars if not isinstance(part, Literal) and part.aval.size]
    if name == "concatenate":
        return parts[0] if len(parts) == 1 else None
    if len(parts) != 1 or parts[0].aval.size != size or not size:
        return None
    is_turned = name == "rev" and all(atom.aval.shape[dim] == 1 for dim in params["dimensions"])
    is_reshaped = (name in RESHAPED and params.get("dimensions") is None) or name in ("squeeze", "same", "reduce_sum")
    return parts[0] if is_turned or is_reshaped or name == "slice" else None


def _is_filled(makers: Mapping[Any, Any], atom: Any) -> bool:
    maker = None if isinstance(atom, Literal) else makers.get(atom)
    return maker is not None and str(maker.primitive) == "broadcast_in_dim" and maker.invars[0].aval.shape == ()


def sliced_from(makers: Mapping[Any, Any], atom: Any, shape: Shape) -> tuple[Any, tuple[int, ...]] | None:
    """A tensor of a shape, and where a part of it begins that has the elements of a value; None of other values."""
    while atom is not None and not isinstance(atom, Literal):
        maker = makers.get(atom)
        if maker is not None and str(maker.primitive) == "slice" and {*(maker.params["strides"] or (1,))} == {1}:
            (source,) = maker.invars
            if source.aval.shape == tuple(shape):
                return source, tuple(maker.params["start_indices"])
        atom = _in_order(makers, atom)
    return None


def pieces_in(part: Part) -> Iterator[Piece]:
    """The pieces of which a part is made, in order."""
    if isinstance(part, Piece):
        yield part
        return
    if part.number is not None:
        yield Piece(part.number, (), ())
    for inner in part.parts:
        yield from pieces_in(inner)


def making(part: Part) -> tuple[list[Any], Callable[..., Any]]:
    """The values of which a part is made, and the function of these that makes it."""
    atoms = [piece.atom for piece in pieces_in(part) if not isinstance(piece.atom, Literal)]

    def made(*arrays: Any) -> Any:
        known = dict(zip(atoms, arrays, strict=True))

        def value(atom: Any) -> Any:
            return literal_array(atom) if isinstance(atom, Literal) else known[atom]

        def of(part: Part) -> Any:
            if isinstance(part, Piece):
                is_number = part.atom.aval.shape == () and part.shape
                return lax.full(part.shape, value(part.atom)) if is_number else lax.slice(value(part.atom), *part[1:])
            parts = [of(inner) for inner in part.parts]
            if part.primitive is lax.pad_p:
                return lax.pad(parts[0], value(part.number), part.room)
            return lax.add(*parts) if part.primitive is lax.add_p else lax.concatenate(parts, part.dim)

        return of(part)

    return atoms, made
