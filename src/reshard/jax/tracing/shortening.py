"""Slices that are put together again, as what they are: a roll, or a pad that leaves out what it does not keep.

JAX writes a roll as two slices and what joins them, and its gradient as a split, two pads and a sum.
Taken one by one each of these moves what the next moves back; as one roll a device receives what it lacks of the end.
What is looked at is where the elements come from, whatever the function was called that wrote it.

    concatenate (x[6:8], x[0:6])         roll of x by 2: runs of one tensor that follow each other, round its end
    concatenate (x[7:8], x, x[0:1])      the same, of 10 elements: a border that goes round
    pad (x[2:8]) with 2 behind           pad of x by -2 before and 2 behind
    (pad x by 1 before)[0:8]             pad of x by 1 before and -1 behind
    concatenate (zeros, x[0:6])          pad of x by 2 before and -2 behind
    pad (x[2:8]) + pad (x[0:2])          roll of x by -2, where the one is zero in all places that the other fills
    convolution of (x in zeros)          convolution of x with so much more padding
    cumsum (pad x by 2 and -2)           pad of what comes before each element by 1 and -1: a row less than x itself
    pad (cumsum x) by 2 and -2           the same
    x + zeros                            x
    pad (x[2:5]) by 2 and 3              x, chosen there

By hand, of 8 elements:

>>> import jax
>>> def shifted(x):
...     return jax.numpy.roll(x, 2)
>>> inner = jax.make_jaxpr(shifted)(jax.numpy.zeros(8)).jaxpr.eqns[0].params["jaxpr"].jaxpr
>>> [(str(equation.primitive), equation.params) for equation in shortened(inner.eqns, inner.outvars)]
[('roll', {'dims': (0,), 'shifts': (2,), 'sizes': (8,)})]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Literal, Primitive

from reshard.dtypes import identity
from reshard.jax.tracing.evaluation import in_place_of, literal_array, results_of
from reshard.jax.tracing.joined_parts import alike
from reshard.jax.tracing.known_places import KnownPlaces, Lattice
from reshard.jax.tracing.known_rows import ROLL
from reshard.jax.tracing.turning import RUNNING
from reshard.propagation.merging import MERGES

RUNNING_BEFORE = Primitive("running_before")
"""What comes before each element of a tensor: `name`, `axis` and `reverse` say what runs along it."""

SAME = Primitive("same")
"""A value again."""
FILLED = ("broadcast_in_dim", "reshape", "squeeze", "transpose", "reduce_sum", "copy")
"""Primitives that make what is one scalar everywhere of what is, a sum only of zeros."""


class View(NamedTuple):
    """A part of a tensor."""

    source: Any
    start: tuple[int, ...]
    stop: tuple[int, ...]

    def within(self, start: Sequence[int], stop: Sequence[int]) -> View:
        """A part of it."""
        ends = [tuple(base + end for base, end in zip(self.start, ends, strict=True)) for ends in (start, stop)]
        return View(self.source, *ends)


class Padded(NamedTuple):
    """A tensor within elements of one value, or without its ends, in one dim."""

    source: Any
    dim: int
    low: int
    high: int
    fill: Any


def shortened(given: Sequence[Any], results: Sequence[Any], constants: Mapping[Any, Any] | None = None) -> list[Any]:
    """The equations of a jaxpr with some results, with rolls and pads for what is taken apart to be put together.

    Args:
        given: the equations.
        results: what is read of what they make.
        constants: the variables that are known, with their arrays.
    """
    known = KnownPlaces(constants=constants)
    shortening = _Shortening(known.makers)
    equations = [shortening.of(known.of(part)) for equation in given for part in known.in_slices(equation)]
    if not shortening.has_found and equations == [*given]:
        return equations
    read = {var for var in results if not isinstance(var, Literal)}
    kept = []
    for equation in reversed(equations):
        if not equation.effects and not read & {*equation.outvars}:
            continue
        read.update(var for var in equation.invars if not isinstance(var, Literal))
        kept.append(equation)
    return kept[::-1]


class _Shortening:
    """What is known of the values of a jaxpr.

    Args:
        makers: per variable the equation that makes it.
    """

    def __init__(self, makers: dict[Any, Any]) -> None:
        self.makers = makers
        self.views: dict[Any, View] = {}
        self.pads: dict[Any, Padded] = {}
        self.padded: dict[Any, Any] = {}
        """Per pad without gaps the equation that makes it."""
        self.numbers: dict[Any, Any] = {}
        """Scalars that are known."""
        self.filled: dict[Any, Any] = {}
        """Per value that is one scalar everywhere that scalar."""
        self.runs: dict[Any, Any] = {}
        """Per value the equation that runs along a dim to make it."""
        self.has_found = False

    def view(self, atom: Any) -> View | None:
        """What a value is a part of: all of itself, if nothing else."""
        return None if isinstance(atom, Literal) else self._viewed(atom)

    def _viewed(self, var: Any) -> View:
        var = alike(self.makers, var)
        return self.views.get(var) or View(var, (0,) * var.aval.ndim, var.aval.shape)

    def of(self, equation: Any) -> Any:
        """An equation, or a shorter one."""
        name, params = str(equation.primitive), equation.params
        for var in equation.outvars:
            is_plain = isinstance(getattr(var.aval, "dtype", None), np.dtype)
            if is_plain and 0 in var.aval.shape:  # whose elements may be any
                self.filled[var] = Literal(np.zeros((), var.aval.dtype), ShapedArray((), var.aval.dtype))
        if name == "slice" and set(params["strides"] or (1,)) == {1}:
            padded = self._slice_of_pad(equation)
            if padded is not None:
                return padded
            view = self.view(equation.invars[0])
            if view is not None:
                self.views[equation.outvars[0]] = view.within(params["start_indices"], params["limit_indices"])
        elif name == "convert_element_type":
            self._convert(equation)
        elif name in FILLED:
            self._fill(equation)
        elif name == "split":
            self._split(equation)
        elif name == "concatenate":
            return self._concatenate(equation)
        elif name == "pad":
            self._fill(equation)
            return self._pad(equation)
        elif name in ("add", "add_any"):
            return self._add(equation)
        elif name == "conv_general_dilated":
            return self._convolution(equation)
        elif name in RUNNING:
            return self._run(equation)
        return equation

    def _fill(self, equation: Any) -> None:
        """What is one scalar everywhere, of a scalar or of what is so already; of sums only zero."""
        atom = equation.invars[0]
        fill = atom if not atom.aval.shape else None if isinstance(atom, Literal) else self.filled.get(atom)
        is_same = str(equation.primitive) not in ("reduce_sum", "pad")
        if fill is not None and (is_same or all(map(self._is_zero, (fill, *equation.invars[1:])))):
            self.filled[equation.outvars[0]] = fill

    def _convolution(self, equation: Any) -> Any:
        """A convolution of what lies in zeros, as one that pads it itself."""
        image, params = equation.invars[0], equation.params
        maker = None if isinstance(image, Literal) else self.padded.get(image)
        if maker is None:
            return equation
        source, fill = maker.invars
        places, config = params["dimension_numbers"].lhs_spec[2:], maker.params["padding_config"]
        spread = dict(zip(places, params["lhs_dilation"], strict=True))
        if not self._is_zero(fill) or any(any(ends) and spread.get(dim) != 1 for dim, ends in enumerate(config)):
            return equation
        sides = [
            [(int(first), own) for first, own in zip(config[dim], ends, strict=False)]
            for dim, ends in zip(places, params["padding"], strict=True)
        ]
        if any(first < 0 < own for side in sides for first, own in side):
            return equation  # what is left out is not what is filled
        self.has_found = True
        padding = tuple(tuple(first + own for first, own in side) for side in sides)
        return equation.replace(invars=[source, equation.invars[1]], params={**params, "padding": padding})

    def _convert(self, equation: Any) -> None:
        """A known number in another dtype, alone or everywhere."""
        (atom,), (result,) = equation.invars, equation.outvars
        fill = None if isinstance(atom, Literal) else self.filled.get(atom)
        number = self._number(atom if fill is None else fill)
        if number is None:
            return
        if fill is None:
            self.numbers[result] = number
        elif np.dtype(result.aval.dtype).kind == "f":
            self.filled[result] = Literal(np.asarray(number, result.aval.dtype), result.aval.update(shape=()))

    def _number(self, atom: Any) -> Any:
        """A scalar, if it is known."""
        if isinstance(atom, Literal):
            return None if np.ndim(atom.val) else np.asarray(atom.val).item()
        return self.numbers.get(atom)

    def _is_zero(self, atom: Any) -> bool:
        return bool(self._number(atom) == 0)

    def _run(self, equation: Any) -> Any:
        """What runs along a tensor that is shifted, as what comes before the elements of the tensor."""
        atom, axis = equation.invars[0], equation.params["axis"]
        pad = None if isinstance(atom, Literal) else self.pads.get(atom)
        self.runs[equation.outvars[0]] = equation
        if pad is None or pad.dim != axis:
            return equation
        return self._before(equation, equation, pad.source, (pad.low, pad.high), pad.fill) or equation

    def _shifted_run(self, equation: Any, view: View, widths: Sequence[tuple[int, int]]) -> Any:
        """A shift of what runs along a tensor, or along all of it but the end; None of anything else."""
        run = self.runs.get(view.source)
        inner = None if run is None else self.view(run.invars[0])
        if run is None or inner is None or any(any(width) for d, width in enumerate(widths) if d != run.params["axis"]):
            return None
        axis, is_reversed, whole = run.params["axis"], run.params["reverse"], inner.source.aval.shape
        cut = [(start, size - stop) for start, stop, size in zip(inner.start, inner.stop, whole, strict=True)]
        if any(any(ends) for dim, ends in enumerate(cut) if dim != axis) or cut[axis][is_reversed]:
            return None
        (low, high), far = widths[axis], cut[axis][not is_reversed]
        if far and (low if is_reversed else high) > 0:
            return None
        shift = (low - far, high) if is_reversed else (low, high - far)
        return self._before(equation, run, inner.source, shift, equation.invars[1])

    def _before(self, equation: Any, run: Any, source: Any, widths: tuple[int, int], fill: Any) -> Any:
        """What comes before the elements of a tensor, in place of a shift of what runs along it; None of other pads."""
        name, axis, is_reversed = str(run.primitive), run.params["axis"], run.params["reverse"]
        by, number = widths[is_reversed], self._number(fill)
        blank = identity(MERGES[name].reduction, np.dtype(source.aval.dtype))
        if sum(widths) or by < 1 or number is None or number != blank:
            return None
        self.has_found = True
        params = {"name": name, "axis": axis, "reverse": is_reversed}
        if by == 1:
            return equation.replace(primitive=RUNNING_BEFORE, invars=[source], params=params)
        return in_place_of(
            equation,
            [source],
            lambda x: _by(results_of(run, [_by(x, axis, 1, blank, is_reversed)])[0], axis, by - 1, blank, is_reversed),
        )

    def _split(self, equation: Any) -> None:
        view, axis = self.view(equation.invars[0]), equation.params["axis"]
        if view is None:
            return
        whole = equation.invars[0].aval.shape
        for var, stop, size in zip(
            equation.outvars, accumulate(equation.params["sizes"]), equation.params["sizes"], strict=True
        ):
            ends = [
                tuple(end if dim == axis else full * is_stop for dim, full in enumerate(whole))
                for end, is_stop in ((stop - size, 0), (stop, 1))
            ]
            self.views[var] = view.within(*ends)

    def _concatenate(self, equation: Any) -> Any:
        """Runs of one tensor that follow each other, round its end, as a roll."""
        dim, views = int(equation.params["dimension"]), [self.view(atom) for atom in equation.invars]
        padded = self._filled_ends(equation, dim)
        if padded is not None:
            return self._pad(padded)
        parts = [view for view in views if view is not None and view.start[dim] < view.stop[dim]]
        if len(parts) < max(len(views), 2):
            return equation
        source, size = parts[0].source, parts[0].source.aval.shape[dim]
        for view in parts:
            others = [n for n in range(len(view.start)) if n != dim]
            if view.source is not source or any(view.start[n] or view.stop[n] != source.aval.shape[n] for n in others):
                return equation
        if any((one.stop[dim] - other.start[dim]) % size for one, other in pairwise(parts)):
            return equation
        return self._roll(equation, source, dim, -parts[0].start[dim] % size)

    def _filled_ends(self, equation: Any, dim: int) -> Any:
        """The pad that is a tensor between elements of one known value; None of anything else."""
        fills = [None if isinstance(atom, Literal) else self.filled.get(atom) for atom in equation.invars]
        inner = [number for number, fill in enumerate(fills) if fill is None]
        numbers = {self._number(fill) for fill in fills if fill is not None}
        if len(inner) != 1 or len(numbers) != 1 or None in numbers:
            return None
        sizes = [atom.aval.shape[dim] for atom in equation.invars]
        config = [(0, 0, 0)] * equation.outvars[0].aval.ndim
        config[dim] = (sum(sizes[: inner[0]]), sum(sizes[inner[0] + 1 :]), 0)
        fill = next(fill for fill in fills if fill is not None)
        self.has_found = True
        return equation.replace(
            primitive=lax.pad_p, invars=[equation.invars[inner[0]], fill], params={"padding_config": tuple(config)}
        )

    def _pad(self, equation: Any) -> Any:
        """A pad of a part, as one of the whole where what is left out is not filled again on the same side."""
        view, config = self.view(equation.invars[0]), equation.params["padding_config"]
        if view is None or any(gap for _, _, gap in config):
            return equation
        if all(max(low, high) <= 0 for low, high, _ in config):  # a slice
            sizes = equation.invars[0].aval.shape
            ends = [(-int(low), size + int(high)) for (low, high, _), size in zip(config, sizes, strict=True)]
            self.views[equation.outvars[0]] = view.within(*zip(*ends, strict=True))
        self.padded[equation.outvars[0]] = equation
        whole = view.source.aval.shape
        cut = [(start, size - stop) for start, stop, size in zip(view.start, view.stop, whole, strict=True)]
        if any(map(any, config)) and any(any(ends) and not any(entry) for ends, entry in zip(cut, config, strict=True)):
            return equation  # of which less goes elsewhere than of the whole
        if any(
            left and width > 0
            for lefts, entry in zip(cut, config, strict=True)
            for left, width in zip(lefts, entry, strict=False)
        ):
            return self._put_back(equation, view)
        widths = [
            (int(low) - first, int(high) - last) for (low, high, _), (first, last) in zip(config, cut, strict=True)
        ]
        shifted = [dim for dim, width in enumerate(widths) if any(width)]
        fill = equation.invars[1]
        if len(shifted) == 1:
            self.pads[equation.outvars[0]] = Padded(view.source, shifted[0], *widths[shifted[0]], fill)
        before = self._shifted_run(equation, view, widths)
        if before is not None:
            return before
        if view.source is equation.invars[0]:
            return equation
        self.has_found = True
        return equation.replace(
            invars=[view.source, fill], params={"padding_config": tuple((*width, 0) for width in widths)}
        )

    def _put_back(self, equation: Any, view: View) -> Any:
        """A part of a tensor put where it was in one of its shape, as the tensor itself, chosen there."""
        source, number, first = view.source, equation.invars[1], view.start
        is_there = all(
            int(low) == start for (low, _, _), start in zip(equation.params["padding_config"], first, strict=True)
        )
        if not is_there or equation.outvars[0].aval.shape != source.aval.shape:
            return equation
        self.has_found = True
        inside = tuple(stop - start for start, stop in zip(first, view.stop, strict=True))

        def put(x: Any, *fill: Any) -> Any:
            (value,) = fill or (literal_array(number),)
            return Lattice.beside(first, inside).chosen(lax.full_like(x, value), x)

        return in_place_of(equation, [source, *([] if isinstance(number, Literal) else [number])], put)

    def _slice_of_pad(self, equation: Any) -> Any:
        """What is left of a pad, as a pad that is not as wide; None of anything else."""
        maker = None if isinstance(equation.invars[0], Literal) else self.padded.get(equation.invars[0])
        if maker is None:
            return None
        ends = zip(equation.params["start_indices"], equation.params["limit_indices"], strict=True)
        sizes = maker.outvars[0].aval.shape
        config = tuple(
            (int(low) - start, int(high) - (size - stop), 0)
            for (low, high, _), (start, stop), size in zip(maker.params["padding_config"], ends, sizes, strict=True)
        )
        self.has_found = True
        return self._pad(maker.replace(outvars=equation.outvars, params={"padding_config": config}))

    def _add(self, equation: Any) -> Any:
        """Two pads of one tensor, each zero where the other is not, as a roll; what has zeros added as itself."""
        for atom, beside in zip(equation.invars, equation.invars[::-1], strict=True):
            fill = None if isinstance(atom, Literal) else self.filled.get(atom)
            is_tensor = not isinstance(beside, Literal) and beside.aval.shape == equation.outvars[0].aval.shape
            if fill is not None and self._is_zero(fill) and is_tensor and atom is not beside:
                self.has_found = True
                self.views[equation.outvars[0]] = self._viewed(beside)
                equation = equation.replace(primitive=SAME, invars=[beside], params={})
                self.makers[equation.outvars[0]] = equation
                return equation
        pads = [None if isinstance(atom, Literal) else self.pads.get(atom) for atom in equation.invars]
        first, second = pads
        if first is None or second is None or (first.source, first.dim) != (second.source, second.dim):
            return equation
        size = first.source.aval.shape[first.dim]
        if not (self._is_zero(first.fill) and self._is_zero(second.fill)):
            return equation
        rolls = first.low + first.high == second.low + second.high == 0 and abs(first.low - second.low) == size
        return self._roll(equation, first.source, first.dim, first.low % size) if rolls else equation

    def _roll(self, equation: Any, source: Any, dim: int, shift: int) -> Any:
        self.has_found = True
        sizes = (equation.outvars[0].aval.shape[dim],)
        params = {"dims": (dim,), "shifts": (shift,), "sizes": sizes}
        return equation.replace(primitive=ROLL, invars=[source], params=params)


def _by(x: Any, axis: int, by: int, blank: Any, is_reversed: bool) -> Any:
    """A tensor so many places on, or back."""
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (-by, by, 0) if is_reversed else (by, -by, 0)
    return lax.pad(x, np.asarray(blank, x.dtype), config)
