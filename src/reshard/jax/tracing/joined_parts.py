"""Parts of tensors one after another, through whatever they were joined, cut and joined of again.

`jnp.pad(x, 1, mode="edge")` joins the first row, x and the last row, and a stencil takes three slices of that.
Each slice is joined of parts of x itself: `(pad x)[2:]` of x[1:] and its last row.
So it is read from x, and nothing is joined that is taken apart again.

By hand, of 8 elements between their first and their last:

>>> import jax
>>> def edged(x):
...     return jax.numpy.concatenate([x[:1], x, x[7:]])
>>> traced = jax.make_jaxpr(edged)(jax.numpy.zeros(8)).jaxpr
>>> makers = {var: equation for equation in traced.eqns for var in equation.outvars}
>>> [(piece.start, piece.stop) for piece in pieces_of(makers, traced.outvars[0], 0, 2, 10)]
[(1, 8), (7, 8)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from jax import lax
from jax.extend.core import Literal

from reshard.jax.tracing.evaluation import literal_array
from reshard.operations.pattern import Shape

MOST_PIECES = 5
"""Of so many pieces at most a value is joined."""
MOST_TURNED = 4
"""Of what is turned round so many elements at most are pieces of their own."""
RESHAPED = ("broadcast_in_dim", "expand_dims", "reshape", "squeeze")
"""Primitives that leave elements in their order, where they do not repeat them."""


class Piece(NamedTuple):
    """A part of a tensor in a dim, or a number as often."""

    atom: Any
    start: int
    stop: int


def pieces_of(makers: Mapping[Any, Any], atom: Any, dim: int, first: int, last: int) -> list[Piece] | None:
    """What a part of a tensor is joined of in a dim: parts of others, or numbers; None where these are too many.

    Args:
        makers: per variable the equation that makes it.
        atom: the tensor.
        dim: in which a part of it is taken.
        first: where the part begins.
        last: where it ends.
    """
    pieces: list[Piece] = []
    pending = [Piece(atom, first, last)]
    while pending:
        if len(pieces) + len(pending) > MOST_PIECES:
            return None
        whole, start, stop = pending.pop()
        whole = alike(makers, whole)
        inner = _inner(makers.get(whole), Piece(whole, start, stop), dim)
        if inner is None:
            pieces.append(Piece(whole, start, stop))
        else:
            pending.extend(reversed([piece for piece in inner if piece.start < piece.stop]))
    scalars = [makers[piece.atom] if _is_filled(makers, piece.atom) else None for piece in pieces]
    return [
        piece if maker is None else piece._replace(atom=maker.invars[0])
        for piece, maker in zip(pieces, scalars, strict=True)
    ]


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
    is_reshaped = (name in RESHAPED and params.get("dimensions") is None) or name == "squeeze"
    return parts[0] if is_turned or is_reshaped or name == "slice" else None


def _inner(maker: Any, piece: Piece, dim: int) -> list[Piece] | None:
    """Of what parts of others a part of a value is joined; None where it is itself one."""
    if maker is None:
        return None
    name, params, (atom, start, stop) = str(maker.primitive), maker.params, piece
    if name == "concatenate" and params["dimension"] == dim:
        ends = [0, *accumulate(part.aval.shape[dim] for part in maker.invars)]
        pairs = zip(maker.invars, pairwise(ends), strict=True)
        return [Piece(part, max(start - low, 0), min(stop, high) - low) for part, (low, high) in pairs]
    if name == "slice" and is_along(maker, dim):
        low = int(params["start_indices"][dim])
        return [Piece(maker.invars[0], low + start, low + stop)]
    if name == "rev" and tuple(params["dimensions"]) == (dim,) and stop - start <= MOST_TURNED:
        size = atom.aval.shape[dim]
        return [Piece(maker.invars[0], size - 1 - place, size - place) for place in range(start, stop)]
    return None


def is_along(maker: Any, dim: int) -> bool:
    """Whether an equation that slices takes elements side by side, and all of every other dim."""
    params, whole = maker.params, maker.invars[0].aval.shape
    sizes = [stop - start for start, stop in zip(params["start_indices"], params["limit_indices"], strict=True)]
    is_whole = sizes[:dim] + sizes[dim + 1 :] == [*whole[:dim], *whole[dim + 1 :]]
    return is_whole and {*(params["strides"] or (1,))} == {1}


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


def joining(pieces: Sequence[Piece], shape: Shape, dim: int) -> tuple[list[Any], Callable[..., Any]]:
    """The values of which pieces are, and the function of these that joins them to a tensor of a shape."""
    atoms = [piece.atom for piece in pieces if not isinstance(piece.atom, Literal)]

    def joined(*arrays: Any) -> Any:
        known, parts = dict(zip(atoms, arrays, strict=True)), []
        for atom, start, stop in pieces:
            value = literal_array(atom) if isinstance(atom, Literal) else known[atom]
            if atom.aval.shape == ():
                parts.append(lax.full((*shape[:dim], stop - start, *shape[dim + 1 :]), value))
            else:
                parts.append(lax.slice_in_dim(value, start, stop, axis=dim))
        return lax.concatenate(parts, dim) if len(parts) > 1 else parts[0]

    return atoms, joined
