"""A placed program, run in one process: every device computes its tiles of every value from its tiles of others.

No device reads what another holds but by the plans of the reshards, so that what comes out shows that the compute
layouts are right.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation import Program
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> program = Program(mesh)
>>> a = program.input("a", (2, 4), "float64", Sharding.of(mesh, None, "x"))
>>> out = program.output(program.op("ij->i", a, name="sum"), Sharding.of(mesh, "x"), result="out")
>>> placed = program.propagate()
>>> run_program(placed, {"a": np.arange(8.0).reshape(2, 4)})
{'out': array([ 6., 22.])}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.checks import expect, shown
from reshard.dtypes import identity
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.numpy.operations import ATTRIBUTED, COMBINE, ELEMENTWISE, OPERANDS, WHOLE, widened
from reshard.numpy.tiles import gather, run, scatter
from reshard.operations.operation import Operation
from reshard.operations.projection import Axes, labels_of
from reshard.operations.rules import REDUCTIONS, Rule, operation_rule
from reshard.propagation import Placement
from reshard.sharding import Sharding

Array = NDArray[Any]
Tiles = dict[int, Array]


def run_program(
    placed: Placement,
    inputs: Mapping[str, Array],
    *,
    received_bytes: dict[str, int] | None = None,
) -> dict[str, Array]:
    """Run a placed program device by device; its outputs, whole, by name.

    Args:
        placed: what to run.
        inputs: whole arrays by the names of the inputs.
        received_bytes: filled, per reshard by the name of what it makes, with the bytes that the busiest device
            received, where given. An operation runs once here, so what has several turns counts as in one of them
            (see `Operation.turns`).

    Raises:
        ReshardError: `bad-tiles` where an input is missing or has another shape; `bad-program` where an operation
            is not known here.
    """
    expect(placed, Placement, "what is run")
    if not isinstance(inputs, Mapping):
        raise ReshardError("bad-tiles", f"inputs must be a mapping from name to array, got: {shown(inputs)}")
    tiles: dict[str, Tiles] = {}
    results: dict[str, Array] = {}
    for operation in placed.operations:
        value, sharding = operation.result, placed.sharding(operation.result)
        if operation.name == "input":
            array = np.asarray(inputs.get(value.name))
            if array.shape != value.shape:
                raise ReshardError("bad-tiles", f"input {value.name} must be given with shape {value.shape}")
            tiles[value.name] = scatter(array, sharding)
        elif operation.name == "constant":
            whole = np.full(value.shape, operation.attribute("value"), dtype=value.dtype.name)
            tiles[value.name] = scatter(whole, sharding)
        elif value in placed.plans:
            counts: dict[int, int] = {}
            tiles[value.name] = run(placed.plans[value], tiles[operation.operands[0].name], received_bytes=counts)
            if received_bytes is not None:
                received_bytes[value.name] = max(counts.values(), default=0)
        elif operation.name == "output":
            tiles[value.name] = tiles[operation.operands[0].name]
            results[value.name] = gather(tiles[value.name], sharding, value.shape)
        else:
            shardings = [placed.sharding(one) for one in operation.values]
            made = _Local(operation, shardings)
            given = [tiles[operand.name] for operand in operation.operands]
            tiles[value.name] = {
                device: made.compute(device, [some[device] for some in given]) for device in sharding.mesh.devices
            }
    return results


class _Local:
    """An operation on the tiles of one device."""

    def __init__(self, operation: Operation, shardings: Sequence[Sharding]) -> None:
        self.operation = operation
        self.rule: Rule = operation_rule(operation)
        self.shardings = shardings
        self.mesh: Mesh = shardings[-1].mesh
        self.by_label = [
            _label_sharding(self.rule, term, sharding, value.shape)
            for term, (sharding, value) in enumerate(zip(shardings, operation.values, strict=True))
        ]
        """Per tensor, its sharding with a dim for every label."""

    def compute(self, device: int, tiles: Sequence[Array]) -> Array:
        """The device's tile of the result from its tiles of the operands."""
        arrays = [tile.reshape(self._label_shape(device, term)) for term, tile in enumerate(tiles)]
        labels = [[label for group in term for label in group] for term in self.rule.terms]
        with np.errstate(all="ignore"):  # infinities are numbers like others
            result = self._apply(device, arrays, labels)
        shape = self.shardings[-1].box(device, self.operation.result.shape).shape
        made: Array = np.ascontiguousarray(
            np.asarray(result).astype(self.operation.result.dtype.name, copy=False)
        ).reshape(shape)
        return made

    def _label_shape(self, device: int, term: int) -> tuple[int, ...]:
        sharding, sizes = self.by_label[term]
        return sharding.box(device, sizes).shape

    def _apply(self, device: int, arrays: list[Array], labels: list[list[int]]) -> Any:
        name, out = self.operation.name, labels[-1]
        if name == "einsum":
            kept = [label for label in out if any(label in some for some in labels[:-1])]
            result = np.dtype(self.operation.result.dtype.name)
            wide = [widened(array, result) for array in arrays]
            pairs = [part for pair in zip(wide, labels, strict=False) for part in pair]
            return self._spread(device, np.einsum(*pairs, kept), kept)
        if name in REDUCTIONS and len(arrays) == 1:
            return self._reduced(device, arrays[0], labels[0])
        if name in ("slice", "pad", "concatenate"):
            return self._shifted(arrays)
        if name == "take":
            return self._taken(device, arrays)
        if name == "pick":
            return self._picked(device, arrays[0])
        if name == "put":
            return self._put(device, arrays[0])
        if name == "iota" and out:
            return self._counted(device, out)
        if name in WHOLE and self.operation.replicated:
            place = self.operation.pattern.labels.index(self.operation.replicated[0])  # type: ignore[union-attr]
            return WHOLE[name](arrays[0], axis=labels[0].index(place))
        if name == "reshape" and labels[0] != out:
            return self._reshaped(arrays[0], labels)
        plain = all(len({*ls}) == len(ls) and {*ls} <= {*out} for ls in labels)
        if plain and name in ELEMENTWISE and len(arrays) == OPERANDS.get(name, 1):
            given = (self._spread(device, array, ls) for array, ls in zip(arrays, labels, strict=False))
            return ELEMENTWISE[name](*given, **dict(self.operation.attributes if name in ATTRIBUTED else ()))
        raise ReshardError("bad-program", f"value {self.operation.result.name}: operation {name} is not known here")

    def _spread(self, device: int, array: Array, labels: list[int]) -> Array:
        """An array with the labels of the result, in its order, those that it lacks repeated."""
        sharding, sizes = self.by_label[-1]
        out = [label for group in self.rule.terms[-1] for label in group]
        here = [label for label in out if label in labels]
        turned = array.transpose([labels.index(label) for label in here])
        index = tuple(slice(None) if label in here else None for label in out)
        return np.broadcast_to(turned[index], sharding.box(device, sizes).shape)

    def _reduced(self, device: int, array: Array, labels: list[int]) -> Array:
        out = {label for group in self.rule.terms[-1] for label in group}
        gone = tuple(place for place, label in enumerate(labels) if label not in out)
        name = REDUCTIONS[self.operation.name]
        whole = {} if name in ("sum", "product") else {"initial": identity(name, array.dtype)}
        reduced = COMBINE[name](array, axis=gone, **whole)
        return self._spread(device, np.asarray(reduced), [label for label in labels if label in out])

    def _shifted(self, arrays: list[Array]) -> Array:
        """A slice, a pad or a concatenation; a dim that is sharded is one that it does not change."""
        attribute = self.operation.attribute
        if self.operation.name == "concatenate":
            return np.concatenate(arrays, attribute("dim"))
        array = arrays[0]
        if self.operation.name == "slice":
            steps = zip(attribute("start"), attribute("stop"), attribute("step"), strict=True)
            shapes = zip(self.operation.operands[0].shape, self.operation.result.shape, strict=True)
            return array[tuple(slice(*s) if a != b else slice(None) for s, (a, b) in zip(steps, shapes, strict=True))]
        width = list(zip(attribute("low"), attribute("high"), strict=True))
        return np.pad(array, width, constant_values=attribute("value", 0))

    def _taken(self, device: int, arrays: list[Array]) -> Array:
        """Rows of the part of the table that is here; zeros for rows that are elsewhere."""
        table, rows = arrays
        sharding, sizes = self.by_label[0]
        start, stop = sharding.box(device, sizes)[0]
        here = (rows >= start) & (rows < stop)
        if stop <= start:
            return np.zeros((*rows.shape, *table.shape[1:]), table.dtype)
        found: Array = np.array(table[np.where(here, rows - start, 0)])
        found[~here] = 0
        return found

    def _picked(self, device: int, array: Array) -> Array:
        """One element of each of some dims where it is here, else zero."""
        box = self.shardings[0].box(device, self.operation.operands[0].shape)
        for dim, at in zip(self.operation.attribute("dims"), self.operation.attribute("start"), strict=True):
            start, stop = box[dim]
            if start <= at < stop:
                array = array.take([at - start], dim)
            else:
                array = np.zeros([1 if other == dim else size for other, size in enumerate(array.shape)], array.dtype)
        return array

    def _put(self, device: int, array: Array) -> Array:
        """One element of each of some dims, where it is here, among others that are all alike."""
        attribute, box = self.operation.attribute, self.shardings[-1].box(device, self.operation.result.shape)
        made = np.full(box.shape, attribute("value"), array.dtype)
        places = list(zip(attribute("dims"), attribute("start"), strict=True))
        if all(box[dim][0] <= at < box[dim][1] for dim, at in places):
            index = [slice(None)] * len(box.shape)
            for dim, at in places:
                index[dim] = slice(at - box[dim][0], at - box[dim][0] + 1)
            part = made[tuple(index)]
            part[...] = array.reshape(part.shape)
        return made

    def _counted(self, device: int, out: list[int]) -> Array:
        """The numbers along a dim of the part that is here."""
        box = self.shardings[-1].box(device, self.operation.result.shape)
        dim = self.operation.attribute("dim")
        numbers = np.arange(*box[dim]).reshape([-1 if other == dim else 1 for other in range(len(out))])
        return np.broadcast_to(numbers, box.shape)

    def _reshaped(self, array: Array, labels: list[list[int]]) -> Array:
        """A reshape in which labels that the other side lacks are whole, and lie between those that both have."""
        if sorted(labels[0]) == sorted(labels[1]):
            return array.transpose([labels[0].index(label) for label in labels[1]])
        shape = [
            array.shape[labels[0].index(label)] if label in labels[0] else self.rule.sizes[label] for label in labels[1]
        ]
        if prod(shape) != array.size:
            raise ReshardError("bad-program", f"value {self.operation.result.name}: the reshape is not local")
        return array.reshape(shape)


def _label_sharding(
    rule: Rule, term: int, sharding: Sharding, shape: tuple[int, ...]
) -> tuple[Sharding, tuple[int, ...]]:
    """A tensor's sharding and shape with a dim for every label."""
    sizes: list[int] = []
    axes: list[Axes] = []
    mesh = sharding.mesh
    dims = [dim.axes for dim in sharding.dims] if not mesh.is_maximal else [()] * len(shape)
    for group, size, own in zip(rule.terms[term], shape, dims, strict=True):
        sizes += [size] if len(group) == 1 else [rule.sizes[label] for label in group]
        axes += labels_of(group, own, rule.sizes, mesh.sizes).lists
    return (Sharding(mesh, ()) if mesh.is_maximal else Sharding.of(mesh, *axes, uneven=sharding.uneven)), tuple(sizes)
