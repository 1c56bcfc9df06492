"""Convolutions and what else goes over a tensor with a window: `reduce_window`, pooling and its gradient, spaced pads.

Batch and feature dims are those of a contraction; a dim over which a window moves is one label of the operand and of
the result, along which a device reads a window of the operand (`reshard.operations.reaching`).
By hand, a convolution of `[n, h, w, c]` with `[k, l, c, o]`: the pattern is `n s0 s1 c, k0 k1 c o -> n s0 s1 o`,
partial where c is sharded; with k = 3 and a stride of 1 a device reads its rows and one on each side.
In groups, features are `(g c)` and `(g o)`, and a device that has some of the groups convolves those.

The gradient of a kernel is a convolution too, in which the image meets a kernel nearly as large as itself.
There the places over which it sums are the label: of both operands, so that the result is partial.

What a window lacks beyond the ends of the tensor is filled by the device, so that on tiles nothing is padded.
Where elements are spread, by `lhs_dilation` or a pad between them, the first of a window may come some places after the
first of the frame that the kernel goes over, on each device other ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from reshard.dtypes import identity
from reshard.jax.tracing.emitter import Emitter, TileFunction, evaluated, labels
from reshard.jax.verbs import VERBS
from reshard.operations.interpreter import Extents, filled, is_window
from reshard.operations.pattern import Group, Shape, Term
from reshard.operations.reaching import TensorDim, attribute_of
from reshard.propagation import Value
from reshard.reach import Reach


class Slide(NamedTuple):
    """A dim of an operand over which a window moves."""

    place: TensorDim
    label: str
    decides: TensorDim
    """The dim whose tile says what is read."""
    reach: Reach

    def frame(self, extents: Extents) -> int:
        """How many places the window goes over for the largest tile, those between spread elements too."""
        count = extents.shapes[self.decides.term][self.decides.dim]
        return max((count - 1) * self.reach.stride + (self.reach.kernel - 1) * self.reach.dilation + 1, 0)

    @property
    def attribute(self) -> tuple[str, tuple[int, ...]]:
        """What says so with the operation."""
        return attribute_of(self.place.term, self.label, self.reach)


class Framed(NamedTuple):
    """A tile over which a window moves, and what is still to be put around and between its elements."""

    tile: Any
    padding: dict[int, tuple[int, int]]
    """Per dim of the tile, where it is cut."""
    spread: dict[int, int]
    """Likewise, how far apart elements stand, where that is left to the operation."""


def framed(extents: Extents, term: int, tile: Any, sizes: Shape, moves: Sequence[Slide], fill: Any) -> Framed:
    """The window of an operand, as what is done with it on a device finds it."""
    tile = filled(VERBS, extents, term, tile, sizes, fill)
    padding: dict[int, tuple[int, int]] = {}
    spread: dict[int, int] = {}
    for move in moves:
        dim = move.place.dim
        if move.place.term != term or not is_window(extents, term, dim):
            continue
        first = extents.lead(move.place, move.decides, move.reach)  # type: ignore[attr-defined]  # of JAX, which alone runs it
        frame, apart = move.frame(extents), move.reach.spread
        padding[dim], spread[dim] = (0, 0), 1
        if isinstance(first, int):
            padding[dim] = (first, frame - first - ((tile.shape[dim] - 1) * apart + 1))
            spread[dim] = apart
        else:
            tile = _spread_out(tile, dim, apart, first, frame, fill)
    return Framed(tile, padding, spread)


def _spread_out(tile: Any, dim: int, apart: int, first: Any, length: int, fill: Any) -> Any:
    """So many places of a dim with the elements of a tile so far apart, of which the first stands at a place."""
    blank, zeros = VERBS.full(tile, (), fill), [(0, 0, 0)] * tile.ndim
    zeros[dim] = (apart - 1, length, apart - 1)
    return lax.dynamic_slice_in_dim(lax.pad(tile, blank, zeros), apart - 1 - first, length, dim)


def convolution(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A convolution; a dim whose window is one element and moves by one is as in a contraction."""
    params, out = equation.params, equation.outvars[0].aval
    left, right, result = params["dimension_numbers"]
    features, batches = params["feature_group_count"], params["batch_group_count"]
    group = ("g",) if features * batches > 1 else ()
    ends: list[dict[int, Group]] = [
        {left[0]: (*(group if batches > 1 else ()), "n"), left[1]: (*(group if features > 1 else ()), "c")},
        {right[0]: (*group, "o"), right[1]: ("c",)},
        {result[0]: ("n",), result[1]: (*group, "o")},
    ]
    whole, moves = [], []
    fields = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    for place, (stride, padding, spread, dilation) in enumerate(zip(*(params[name] for name in fields), strict=True)):
        dims = left[2 + place], right[2 + place], result[2 + place]
        kernel, length = operands[1].shape[dims[1]], out.shape[dims[2]]
        still = kernel == 1 and (stride, padding, spread) == (1, (0, 0), 1)
        sums, sliding = kernel > length and not still, f"s{place}"
        across, within = (1, 2) if sums else (2, 1)
        ends[0][dims[0]] = ends[across][dims[across]] = (sliding,)
        ends[within][dims[within]] = () if still else (f"k{place}",)
        if not still:
            low = padding[0]
            reach = Reach(length, dilation, stride, low) if sums else Reach(kernel, stride, dilation, low)
            moves.append(
                Slide(TensorDim(0, dims[0]), sliding, TensorDim(across, dims[across]), replace(reach, spread=spread))
            )
            whole.append(f"k{place}")
    terms: list[Term] = [tuple(groups[dim] for dim in range(len(groups))) for groups in ends]
    sizes = {"n": out.shape[result[0]], "c": operands[1].shape[right[1]]}
    if group:
        sizes["g"] = features * batches
    return [
        emitter.emit(
            "convolution",
            operands,
            terms,
            out,
            _convolved(equation, operands[0].shape, moves),
            sizes=sizes,
            replicated=tuple(whole),
            shifted=tuple(move.label for move in moves),
            attributes=tuple(sorted(move.attribute for move in moves)),
            reduction="sum",
        )
    ]


def _convolved(equation: Any, sizes: Shape, moves: Sequence[Slide]) -> TileFunction:
    """A convolution of tiles, which may have some of the groups."""
    params = equation.params
    left, right, result = params["dimension_numbers"]

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        image, padding, spread = framed(extents, 0, tiles[0], sizes, moves, 0)
        changed = {
            "feature_group_count": image.shape[left[1]] // tiles[1].shape[right[1]],
            "batch_group_count": image.shape[left[0]] // extents.shapes[-1][result[0]],
            "padding": _changed(params["padding"], left[2:], padding),
            "lhs_dilation": _changed(params["lhs_dilation"], left[2:], spread),
        }
        return evaluated(equation, **changed)(extents, (image, tiles[1]))

    return run


def _changed(numbers: Sequence[Any], dims: Sequence[int], changed: dict[int, Any]) -> tuple[Any, ...]:
    """Numbers of some dims, where they are others on tiles."""
    return tuple(changed.get(dim, number) for dim, number in zip(dims, numbers, strict=True))


FILLED = {
    "reduce_window_max": ("max",),
    "reduce_window_min": ("min",),
    "reduce_window_sum": ("sum",),
}
"""By the name of the primitive, of what identity each operand is filled beyond its ends."""


def windows(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Tensors of the same dims, over which a window moves; a dim in which it is one element and stays is left alone.

    Where a gradient goes back to windows that lie side by side, each device has whole ones.
    """
    params, out = equation.params, equation.outvars[0].aval
    name, terms = str(equation.primitive), [labels(len(value.shape)) for value in (*operands, out)]
    fields = ("window_dimensions", "window_strides", "padding")
    ones = (1,) * out.ndim
    spreads, dilations = (params.get(key, ones) for key in ("base_dilation", "window_dilation"))
    moves, blocks, scattered = [], {}, name == "select_and_scatter_add"
    for dim, (kernel, stride, room) in enumerate(zip(*(params[key] for key in fields), strict=True)):
        if (kernel, stride, tuple(room), spreads[dim]) == (1, 1, (0, 0), 1):
            continue
        count = operands[0].shape[dim]
        if scattered and kernel == stride and out.shape[dim] == count * kernel and _is_even(emitter, count):
            blocks[f"w{dim}"] = kernel
            terms[1:] = [(*term[:dim], (*term[dim], f"w{dim}"), *term[dim + 1 :]) for term in terms[1:]]
            continue
        sliding = Reach(kernel, stride, dilations[dim], room[0], spread=spreads[dim])
        around = Reach(2 * kernel - 1, low=kernel - 1), Reach(kernel, low=kernel - 1 - room[0], spread=stride)
        for term, value in enumerate(operands):
            if value.shape:
                reach = around[1 - term] if scattered else sliding
                moves.append(Slide(TensorDim(term, dim), f"d{dim}", TensorDim(len(operands), dim), reach))
    run = _selected(equation, operands, moves) if scattered else None
    results = []
    for number, var in enumerate(equation.outvars):
        function = run or _slid(equation, number, operands, moves)
        shifted = tuple(dict.fromkeys(move.label for move in moves))
        attributes = tuple(sorted(move.attribute for move in moves))
        how: dict[str, Any] = {"shifted": shifted, "attributes": attributes}
        if blocks:
            how |= {"sizes": blocks, "replicated": tuple(blocks)}
        results.append(emitter.emit(name, operands, terms, var.aval, function, **how))
    return results


def _is_even(emitter: Emitter, count: int) -> bool:
    """Whether every axis cuts so many blocks evenly."""
    return all(count % size == 0 for size in emitter.program.mesh.sizes.values())


def _fills(equation: Any, operands: Sequence[Value], tiles: Sequence[Any]) -> list[Any]:
    """Per operand what is beyond its ends."""
    name, dtypes = str(equation.primitive), [np.dtype(value.dtype.name) for value in operands]
    selecting = "select_prim" in equation.params
    if selecting:
        worst = "min" if str(equation.params["select_prim"]) in ("le", "lt") else "max"
        return [0, identity(worst, dtypes[1])]
    if name == "reduce_window":
        return [*tiles[len(tiles) // 2 :], *[0] * (len(tiles) // 2)]
    return [identity(reduction, dtype) for reduction, dtype in zip(FILLED[name], dtypes, strict=True)]


def _slid(equation: Any, number: int, operands: Sequence[Value], moves: Sequence[Slide]) -> TileFunction:
    """What a window that goes over tiles makes."""
    params, ndim = equation.params, len(operands[0].shape)

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        fills = _fills(equation, operands, tiles)
        parts = [
            framed(extents, term, tile, operands[term].shape, moves, fills[term]) for term, tile in enumerate(tiles)
        ]
        changed = {"padding": _changed(params["padding"], range(ndim), parts[0].padding)}
        if "base_dilation" in params:
            changed["base_dilation"] = _changed(params["base_dilation"], range(ndim), parts[0].spread)
        return evaluated(equation, number, **changed)(extents, [part.tile for part in parts])

    return run


def _selected(equation: Any, operands: Sequence[Value], moves: Sequence[Slide]) -> TileFunction:
    """The gradient of a pooling: the windows that touch a tile, each with all its elements, then the tile of that."""
    params = equation.params

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        fills = _fills(equation, operands, tiles)
        source, operand = (
            filled(VERBS, extents, term, tile, operands[term].shape, fills[term]) for term, tile in enumerate(tiles)
        )
        cut = [move for move in moves if move.place.term == 0 and is_window(extents, 0, move.place.dim)]
        padding, starts = list(params["padding"]), {}
        for move in cut:
            dim = move.place.dim
            kernel, stride = params["window_dimensions"][dim], params["window_strides"][dim]
            first = extents.lead(move.place, move.decides, move.reach)  # type: ignore[attr-defined]  # of JAX
            length = (source.shape[dim] - 1) * stride + kernel
            # the first window ends `first` places after the first one that touches the tile could
            operand = _part(operand, dim, first, length, fills[1])
            padding[dim], starts[dim] = (0, 0), kernel - 1 - first
        result = evaluated(equation, padding=tuple(padding))(extents, (source, operand))
        for dim, start in starts.items():
            result = _part(result, dim, start, extents.shapes[-1][dim], 0)
        return result

    return run


def _part(tile: Any, dim: int, start: Any, length: int, fill: Any) -> Any:
    """A run of a dim, which may begin before the tile and end after it."""
    room = [(0, 0, 0)] * tile.ndim
    if isinstance(start, int):
        room[dim] = (-start, start + length - tile.shape[dim], 0)
        return lax.pad(tile, VERBS.full(tile, (), fill), room)
    size = tile.shape[dim]
    room[dim] = (size + length, size + length, 0)
    return lax.dynamic_slice_in_dim(lax.pad(tile, VERBS.full(tile, (), fill), room), start + size + length, length, dim)


def spaced(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> Value:
    """A pad with room between elements, or filled with what only a run tells."""
    out, config = equation.outvars[0].aval, equation.params["padding_config"]
    moves = [
        Slide(TensorDim(0, dim), f"d{dim}", TensorDim(2, dim), Reach(low=int(low), spread=int(gap) + 1))
        for dim, (low, high, gap) in enumerate(config)
        if low or high or gap
    ]

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        tile, fill = tiles
        tile, padding, spread = framed(extents, 0, tile, operands[0].shape, moves, fill)
        room = [(*padding[dim], spread[dim] - 1) if dim in padding else entry for dim, entry in enumerate(config)]
        return lax.pad(tile, fill, room)

    terms = [labels(out.ndim), (), labels(out.ndim)]
    shifted, attributes = tuple(move.label for move in moves), tuple(sorted(move.attribute for move in moves))
    return emitter.emit("pad_with", operands, terms, out, run, shifted=shifted, attributes=attributes)
