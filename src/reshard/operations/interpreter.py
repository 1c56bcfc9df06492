"""What one device computes: the tile of an operation's result from the tiles of its operands, on any engine.

Tiles are seen with one dim per label, and then the pattern says all there is to do: an operand is transposed and
repeated to the labels of the result, or combined over those that the result lacks.
The few operations for which the place of an element counts ask where a tile begins.
An engine brings its arrays with some fifteen verbs on them, and its functions of elements by name: `Verbs`.
It may run one program on every device with a place that is known only then, as JAX does, so places are compared and
subtracted, and never looked at.

By hand, rows 5 and 1 of a table whose rows 4 to 7 a device has: 5 - 4 = 1 is one of its rows, 1 - 4 = -3 is none and
comes out as zeros, so that the sum over devices is the two rows.

>>> from reshard.mesh import Mesh
>>> from reshard.numpy.verbs import VERBS
>>> from reshard.propagation import Program
>>> program = Program(Mesh.of(x=2))
>>> rows = program.take(program.input("table", (8, 1), "int64"), program.input("numbers", (2,), "int64"))
>>> shardings = [Sharding.of(program.mesh, *dims) for dims in (("x", None), (None,), (None, None))]
>>> second = BoxExtents(program.operations[-1], shardings, device=1)
>>> tiles = [np.array([[40], [50], [60], [70]]), np.array([5, 1])]
>>> compute(VERBS, program.operations[-1], second, tiles).tolist()
[[50], [0]]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from operator import and_
from typing import Any, Protocol

import numpy as np

from reshard.axis import shards
from reshard.box import Box
from reshard.dtypes import REDUCTIONS
from reshard.errors import ReshardError
from reshard.operations.kinds import KINDS, KindForm
from reshard.operations.operation import Operation
from reshard.operations.pattern import Shape
from reshard.operations.projection import labels_of
from reshard.operations.rules import operation_rule, reduction_of
from reshard.sharding import Sharding


@dataclass(frozen=True, slots=True)
class Verbs:
    """What an engine does with arrays, which besides have `shape` and the operators `+ - >= < == & *`."""

    reshape: Callable[[Any, Shape], Any]
    transpose: Callable[[Any, Shape], Any]
    """Dims in another order."""
    broadcast: Callable[[Any, Shape], Any]
    """Dims of size 1 repeated."""
    cast: Callable[[Any, str], Any]
    """Elements in the dtype of that name."""
    einsum: Callable[[Sequence[Any], Sequence[Sequence[int]], Sequence[int], str], Any]
    """Arrays with the labels of each, the labels of the product, and the name of the dtype that it has at the end."""
    reduce: Callable[[str, Any, Shape], Any]
    """A reduction by name, of an array, over dims; of no elements it is the identity of the reduction."""
    slice: Callable[[Any, Shape, Shape, Shape], Any]
    """Start, stop and step of every dim."""
    pad: Callable[[Any, Shape, Shape, Any], Any]
    """How many elements before and after in every dim, and of what value."""
    flip: Callable[[Any, Shape], Any]
    """The elements of some dims from the last to the first."""
    concatenate: Callable[[Sequence[Any], int], Any]
    rows: Callable[[Any, Any], Any]
    """The rows of a table that an array of numbers names, all of which it has."""
    element: Callable[[Any, int, Any], Any]
    """Of one dim a single place, which it has; the dim stays, with size 1."""
    where: Callable[[Any, Any, Any], Any]
    """One array where a mask holds, another elsewhere; all three repeated alike."""
    full: Callable[[Any, Shape, Any], Any]
    """One value everywhere, in the dtype of another array and where that is."""
    count: Callable[[Any, Shape, int], Any]
    """The numbers 0, 1, … along a dim, where another array is."""
    number: Callable[[Any], Any]
    """Integers in a dtype with a sign that holds every place of a tensor."""
    elementwise: Mapping[str, Callable[..., Any]]
    """By the name of the operation, of arrays of one shape; attributes have the names of arguments."""
    along: Mapping[str, Callable[[Any, int], Any]]
    """By the name of the operation, of an array along a dim."""


def functions(form: KindForm, namespace: Any, own: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The function of every operation of a form: an engine's own, else what its namespace has after NumPy."""
    kinds = {name: kind for name, kind in KINDS.items() if kind.form is form}
    return {name: own.get(name) or getattr(namespace, kind.function or name) for name, kind in kinds.items()}


class Extents(Protocol):
    """Where the tiles of an operation lie on a device; a term is the number of an operand, or of the result."""

    @property
    def shardings(self) -> Sequence[Sharding]:
        """Of the operands, and last of the result."""

    @property
    def shapes(self) -> Sequence[Shape]:
        """Of the arrays that hold the tiles."""

    def start(self, term: int, dim: int) -> Any:
        """Where the tile begins in its tensor."""

    def length(self, term: int, dim: int) -> Any:
        """How many elements of its tensor it has, which for a tile that is cut short may be less than its array."""

    def reaches_out(self, term: int, dim: int) -> bool:
        """Whether on some device the tile is a window that goes on beyond the ends of its tensor, where nothing is."""


class BoxExtents:
    """The extents of a device where arrays are no larger than the tiles in them."""

    def __init__(self, operation: Operation, shardings: Sequence[Sharding], device: int) -> None:
        """As `shardings` say, which are those of the operands, and last of the result."""
        self.shardings = shardings
        self.whole = [value.shape for value in operation.values]
        pairs = zip(shardings, self.whole, strict=True)
        self.tiles = [
            sharding.layout_for(shape).tile(sharding.mesh.position_of(device), shape) for sharding, shape in pairs
        ]
        self.shapes = [tile.shape for tile in self.tiles]

    def start(self, term: int, dim: int) -> int:
        """Where the tile begins in its tensor; a window may begin before it."""
        tile = self.tiles[term]
        if isinstance(tile, Box):
            return tile[dim][0]
        return tile.spans[dim].stored[0][0] if tile.spans[dim].stored else 0

    def reaches_out(self, term: int, dim: int) -> bool:
        """Whether the tile is a window that goes on beyond the ends of its tensor."""
        return reaches_out(self.shardings[term], dim, self.whole[term][dim])

    def length(self, term: int, dim: int) -> int:
        """How many elements of its tensor it has."""
        return self.shapes[term][dim]


def reaches_out(sharding: Sharding, dim: int, size: int) -> bool:
    """Whether on some device a window goes on beyond the ends of a dim, where nothing is."""
    window = None if sharding.mesh.is_maximal else sharding.dims[dim].window
    return window is not None and window.edge == "pad" and any(low < 0 or high > size for low, high in window.spans)


def filled(verbs: Verbs, extents: Extents, term: int, tile: Any, sizes: Shape, fill: Any) -> Any:
    """A tile with one value in the places that lie in no element of its tensor.

    Args:
        verbs: of the engine.
        extents: where the tiles lie.
        term: of which operand it is.
        tile: that may be a window.
        sizes: of its tensor.
        fill: the value.
    """
    masks = []
    for dim, size in enumerate(sizes):
        if extents.reaches_out(term, dim):
            places = verbs.count(tile, tuple(tile.shape), dim) + extents.start(term, dim)
            masks.append((places >= 0) & (places < size))
    return verbs.where(reduce(and_, masks), tile, verbs.full(tile, (), fill)) if masks else tile


def is_window(extents: Extents, term: int, dim: int) -> bool:
    """Whether a tile has in a dim just what the tile of the result is made of, from its first element on."""
    sharding = extents.shardings[term]
    return not sharding.mesh.is_maximal and bool(sharding.dims[dim].axes)


def check_computable(operation: Operation) -> None:
    """Refuse an operation that no engine knows by its name.

    Raises:
        ReshardError: `bad-program`.
    """
    kind, name = operation.kind, operation.name
    if kind is None or kind.form in (KindForm.END, KindForm.ENTERING, KindForm.LEAVING):
        raise ReshardError("bad-program", f"value {operation.result.name}: operation {name} is not known here")


def compute(verbs: Verbs, operation: Operation, extents: Extents, tiles: Sequence[Any]) -> Any:
    """The device's tile of the result of an operation.

    Args:
        verbs: of the engine.
        operation: what is computed.
        extents: where the tiles lie.
        tiles: of the operands.

    Raises:
        ReshardError: `bad-program` where no engine knows the operation.
    """
    check_computable(operation)
    result = _Computation(verbs, operation, extents, tiles).result()
    return verbs.reshape(verbs.cast(result, operation.result.dtype.name), extents.shapes[-1])


@dataclass
class _Computation:
    """One operation on the tiles of one device."""

    verbs: Verbs
    operation: Operation
    extents: Extents
    tiles: Sequence[Any]

    def result(self) -> Any:
        """The tile of the result, up to its dtype and dims that are groups of labels or have none."""
        name, form = self.operation.name, KINDS[self.operation.name].form
        if form is KindForm.CONTRACTED:
            return self.contracted()
        if form is KindForm.REDUCED:
            return self.reduced()
        if form is KindForm.MOVED:
            return self.moved()
        if form is KindForm.ALONG:
            return self.spread(self.along(), self.labels[0])
        if form is KindForm.ELEMENTWISE:
            kind = KINDS[name]
            known = (*kind.attributes, *kind.options)
            attributes = {key: value for key, value in self.operation.attributes if key in known}
            arrays = (self.spread(*pair) for pair in zip(self.arrays, self.labels, strict=False))
            return self.verbs.elementwise[name](*arrays, **attributes)
        return _BY_NAME[name](self)

    # Tiles with one dim per label

    @cached_property
    def labels(self) -> list[list[int]]:
        """Of the operands, and last of the result."""
        return [[label for group in term for label in group] for term in operation_rule(self.operation).terms]

    @cached_property
    def arrays(self) -> list[Any]:
        """The tiles of the operands."""
        return [self.verbs.reshape(tile, self.label_shape(term)) for term, tile in enumerate(self.tiles)]

    def label_shape(self, term: int) -> Shape:
        """The shape of a tile; an operation is laid out so that shards divide the labels of a group."""
        rule, sharding, sizes = operation_rule(self.operation), self.extents.shardings[term], []
        for dim, (group, size) in enumerate(zip(rule.terms[term], self.extents.shapes[term], strict=True)):
            if len(group) == 1:
                sizes.append(size)
            elif group:
                axes = () if sharding.mesh.is_maximal else sharding.dims[dim].axes
                lists = labels_of(group, axes, rule.sizes, sharding.mesh.sizes).lists
                parts = (shards(cuts, sharding.mesh.sizes) for cuts in lists)
                sizes += [rule.sizes[label] // count for label, count in zip(group, parts, strict=True)]
        return tuple(sizes)

    def spread(self, array: Any, labels: Sequence[int]) -> Any:
        """An array with the labels of the result, in its order, repeated along those that it lacks."""
        result = self.labels[-1]
        turned = self.verbs.transpose(array, tuple(labels.index(label) for label in result if label in labels))
        sizes = iter(turned.shape)
        shape = self.label_shape(len(self.tiles))
        widened = self.verbs.reshape(turned, tuple(next(sizes) if label in labels else 1 for label in result))
        return self.verbs.broadcast(widened, shape)

    def contracted(self) -> Any:
        """The product of the operands, summed over the labels that the result lacks."""
        *operands, result = self.labels
        output = [label for label in result if any(label in labels for labels in operands)]
        return self.spread(self.verbs.einsum(self.arrays, operands, output, self.operation.result.dtype.name), output)

    def along(self) -> Any:
        """What is done along a label, from its other end where that is said, or of what comes before each place."""
        (array,), attribute = self.arrays, self.operation.attribute
        whole = self.operation.pattern.labels.index(self.operation.replicated[0])  # type: ignore[union-attr]
        dim = self.labels[0].index(whole)
        if attribute("reverse", 0):
            array = self.verbs.flip(array, (dim,))
        array = self.verbs.along[self.operation.name](array, dim)
        before, shape = attribute("before"), tuple(array.shape)
        if before is not None and shape[dim]:
            zeros, ones = (0,) * len(shape), (1,) * len(shape)
            longer = self.verbs.pad(array, _with(zeros, dim, 1), zeros, before)
            array = self.verbs.slice(longer, zeros, shape, ones)
        return self.verbs.flip(array, (dim,)) if attribute("reverse", 0) else array

    def reduced(self) -> Any:
        """The labels that the result lacks, combined."""
        (array,), (labels, result) = self.arrays, self.labels
        dims = tuple(dim for dim, label in enumerate(labels) if label not in result)
        reduction = reduction_of(self.operation)
        if self.operation.operands[0].dtype.kind not in REDUCTIONS[reduction]:  # truth values, which are counted
            array = self.verbs.cast(array, self.operation.result.dtype.name)
        combined = self.verbs.reduce(reduction, array, dims) if dims else array
        return self.spread(combined, [label for label in labels if label in result])

    def moved(self) -> Any:
        """The elements as they are; labels that the result lacks are whole, and lie between those that both have."""
        (array,), (labels, result) = self.arrays, self.labels
        if {*labels} <= {*result}:
            return self.spread(array, labels)
        shape = self.label_shape(1)
        if prod(shape) != prod(array.shape):
            raise ReshardError("bad-program", f"value {self.operation.result.name}: the reshape is not local")
        return self.verbs.reshape(array, shape)

    # Places

    def window_of(self, term: int, fill: Any = 0) -> Any:
        """The tile of an operand, with one value where it reaches beyond the tensor."""
        sizes = self.operation.operands[term].shape
        return filled(self.verbs, self.extents, term, self.tiles[term], sizes, fill)

    def sliced(self) -> Any:
        """Some of the elements of dims of which the device has all, or a window that begins with the first of them."""
        (tile,), operation = self.tiles, self.operation
        shapes = zip(operation.operands[0].shape, operation.result.shape, strict=True)
        ends = zip(*(operation.attribute(key) for key in ("start", "stop", "step")), strict=True)
        cuts = [
            (0, size, 1) if before == after else (0, size, end[2]) if is_window(self.extents, 0, dim) else end
            for dim, ((before, after), end, size) in enumerate(zip(shapes, ends, tile.shape, strict=True))
        ]
        return self.verbs.slice(tile, *zip(*cuts, strict=True)) if cuts else tile

    def padded(self) -> Any:
        """More elements, or fewer, in dims of which the device has all; in others the window reaches as far."""
        attribute = self.operation.attribute
        if 0 in self.operation.operands[0].shape:  # of which no device has a window: all is filled
            shape, (tile,) = self.extents.shapes[-1], self.tiles
            none, ones = (0,) * len(shape), (1,) * len(shape)
            return self.verbs.pad(self.verbs.slice(tile, none, none, ones), none, shape, attribute("value", 0))
        tile = self.window_of(0, attribute("value", 0))
        if not tile.shape:
            return tile
        ends = zip(attribute("low"), attribute("high"), strict=True)
        widths = [(0, 0) if is_window(self.extents, 0, dim) else pair for dim, pair in enumerate(ends)]
        if min(min(pair) for pair in widths) < 0:
            cuts = [
                (max(-low, 0), size - max(-high, 0), 1) for (low, high), size in zip(widths, tile.shape, strict=True)
            ]
            tile = self.verbs.slice(tile, *zip(*cuts, strict=True))
            widths = [(max(low, 0), max(high, 0)) for low, high in widths]
        low, high = zip(*widths, strict=True)
        tile = self.verbs.pad(tile, low, high, attribute("value", 0))
        step = attribute("step")
        return tile if step is None else self.verbs.slice(tile, (0,) * len(step), tuple(tile.shape), step)

    def joined(self) -> Any:
        """One after another in a dim of which the device has all, or, of windows, each where it is."""
        verbs, dim = self.verbs, self.operation.attribute("dim")
        if not is_window(self.extents, 0, dim):
            return verbs.concatenate(self.tiles, dim)
        result = None
        for term, tile in enumerate(self.tiles):
            if not self.operation.operands[term].shape[dim]:
                continue  # which has no window
            places = verbs.count(tile, tuple(tile.shape), dim) + self.extents.start(term, dim)
            inside = (places >= 0) & (places < self.operation.operands[term].shape[dim])
            result = tile if result is None else verbs.where(inside, tile, result)
        return result

    def rolled(self) -> Any:
        """What the windows of tiles are, or the parts of a whole dim in the other order."""
        (tile,), attribute = self.tiles, self.operation.attribute
        for dim, shift in zip(attribute("dims"), attribute("shifts"), strict=True):
            size, length = tile.shape[dim], self.operation.result.shape[dim]
            if size and not is_window(self.extents, 0, dim):
                first = -shift % size
                rounds = self.verbs.concatenate([tile] * max(-(-(first + length) // size), 1), dim)
                zeros, ones = (0,) * len(tile.shape), (1,) * len(tile.shape)
                ends = _with(zeros, dim, first), _with(tuple(tile.shape), dim, first + length)
                tile = self.verbs.slice(rounds, *ends, ones)
        return tile

    def reversed(self) -> Any:
        """The mirror image; of a window the first elements, for it may be longer than the tile of the result."""
        tile = self.verbs.flip(self.tiles[0], self.operation.attribute("dims"))
        shape, zeros = self.extents.shapes[-1], (0,) * len(tile.shape)
        return tile if tuple(tile.shape) == shape else self.verbs.slice(tile, zeros, shape, (1,) * len(shape))

    def taken(self) -> Any:
        """The rows that the tile of a table has, zeros for the others."""
        verbs, (table, rows) = self.verbs, self.tiles
        if not table.shape[0]:
            return verbs.full(table, (*rows.shape, *table.shape[1:]), 0)
        places = verbs.number(rows) - self.extents.start(0, 0)
        inside = (places >= 0) & (places < self.extents.length(0, 0))
        elements = verbs.rows(table, verbs.where(inside, places, 0))
        mask = verbs.reshape(inside, (*rows.shape, *[1] * (len(table.shape) - 1)))
        return verbs.where(mask, elements, verbs.full(table, (), 0))

    def picked(self) -> Any:
        """One element of each of some dims, zeros where the tile lacks it."""
        verbs, (array,) = self.verbs, self.tiles
        shape, masks = self.operation.operands[0].shape, []
        for dim, place in zip(self.operation.attribute("dims"), self.operation.attribute("start"), strict=True):
            if array.shape[dim] != shape[dim]:
                place = place - self.extents.start(0, dim)
                inside = (place >= 0) & (place < self.extents.length(0, dim))
                if isinstance(inside, bool | np.bool_) and not inside:
                    return verbs.full(array, self.extents.shapes[-1], 0)
                masks.append(inside)
            array = verbs.element(array, dim, place)
        masks = [mask for mask in masks if not isinstance(mask, bool | np.bool_)]
        return verbs.where(reduce(and_, masks), array, verbs.full(array, (), 0)) if masks else array

    def put(self) -> Any:
        """One element of each of some dims, if the tile has it, among others that are all alike."""
        verbs, (tile,), attribute, term = self.verbs, self.tiles, self.operation.attribute, 1
        shape = self.extents.shapes[term]
        places = zip(attribute("dims"), attribute("start"), strict=True)
        masks = [verbs.count(tile, shape, dim) + self.extents.start(term, dim) == place for dim, place in places]
        fill = verbs.full(tile, (), attribute("value"))
        return verbs.where(reduce(and_, masks), verbs.broadcast(tile, shape), fill)

    def counted(self) -> Any:
        """The places along a dim."""
        dim = self.operation.attribute("dim")
        return self.verbs.count(self.tiles[0], self.extents.shapes[1], dim) + self.extents.start(1, dim)


def _with(numbers: Shape, dim: int, number: int) -> Shape:
    return (*numbers[:dim], number, *numbers[dim + 1 :])


_BY_NAME: dict[str, Callable[[_Computation], Any]] = {
    "slice": _Computation.sliced,
    "pad": _Computation.padded,
    "concatenate": _Computation.joined,
    "roll": _Computation.rolled,
    "reverse": _Computation.reversed,
    "take": _Computation.taken,
    "pick": _Computation.picked,
    "put": _Computation.put,
    "iota": _Computation.counted,
}
"""What is done by dims of the tiles themselves."""
