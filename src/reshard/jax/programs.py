"""A placed program as a function of JAX.

The whole program is one `shard_map`: a value is the device's tile of it, an operation its local computation, a
reshard the plan's collectives.
So nothing is left to XLA's partitioner, and whatever the program says can be: sub-axes, several meshes over the same
devices, dims that the shards do not divide, values that are unreduced under any reduction.

**Gradients.** A reshard is linear, and its transpose goes from the dual of the target to the dual of the source:
what is replicated has a cotangent that is unreduced, and the reverse.
That is how `shard_map` sees the cotangents of tiles too, so the gradient of the function is its own transpose, with
plans for collectives.
A maximum over devices has the gradient of those that hold it, in equal parts.
The derivatives are those of the operations; where a function has a derivative of its own (`custom_vjp`), trace its
gradient.

**Tiles that are cut short** fill a corner of an array as large as the largest tile. What lies beyond it is put at the
identity of a reduction before one, and is dropped elsewhere.

**Loops and choices** are those of JAX over tiles.

**Barriers** are one for all values that meet there: what is made anew for a gradient begins when the gradient has come
so far, and takes nothing from the first time, though it is the same.

**Small reshards** of one kind along the same axes go together, as far as none waits for what it does not need: a
collective costs its start however little it moves, and a model has as many small tensors as large ones.
What is small between them is computed ahead of its turn, and sums are made whole of whose parts little is made and
gathered (`propagation/whole_sums.py`).

**Parts** of which a device reads less than they are, as of ones at the places of tokens, are made where they are read
(`propagation/own_parts.py`), and not cut out of what is held from the beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import linear_call
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec

from reshard.axis import Axes, difference, shards
from reshard.checks import expect, shown
from reshard.digits import Digits, nest
from reshard.dim_sharding import DimSharding
from reshard.dtypes import DType, dtype_named, identity
from reshard.errors import ReshardError
from reshard.garbage import uncollected
from reshard.jax.exchange.device import Device, looks_up_places
from reshard.jax.exchange.joint import run_alone, run_together
from reshard.jax.exchange.lowering import on_device, run_on_device
from reshard.jax.jax_shardings import jax_mesh_like, partition_spec_of
from reshard.jax.tracing.emitter import Signature, is_key
from reshard.jax.verbs import VERBS
from reshard.mesh import Mesh
from reshard.operations.blocks import Loop
from reshard.operations.interpreter import compute, reaches_out
from reshard.operations.reaching import TensorDim
from reshard.operations.rules import LabelRole, operation_rule, reduction_of
from reshard.planner import plan as make_plan
from reshard.plans import Plan
from reshard.problem import stays_unreduced
from reshard.propagation import Operation, Placement, Value
from reshard.propagation.own_parts import with_own_parts
from reshard.propagation.running import Engine, Test, Turn, Turned, run
from reshard.propagation.whole_sums import with_whole_sums
from reshard.reach import Reach
from reshard.sharding import Sharding

SMALL_BYTES = 1 << 14
"""Up to tiles of this size reshards go together: larger ones take longer to be put into a row than a collective does
to start, on 8 devices of a CPU; where it is otherwise XLA joins them itself."""
FEW_PICKS = 2
"""How many elements of a value are picked each by a kernel of its own, which knows the place."""
RANKS_OF_KINDS = {"b": 1, "i": 2, "u": 2, "f": 3, "c": 4}
"""Of letters of dtypes: what is of a kind of a higher rank would lose by becoming one of a lower."""
WORD_BYTES = 4
"""Of the integers that JAX makes of all larger ones by itself."""
MOST_KNOWN = 1024
"""Of how many reshards that are not alike the traces are kept."""


@dataclass(frozen=True, eq=False)
class PlacedFunction:
    """A function of global arrays, to be used in `jit`.

    It takes what the traced function takes, or, of a program that was written by hand, its inputs one after another,
    and gives what that gives, or its output, or a tuple of its outputs.
    """

    placed: Placement
    mesh: JaxMesh
    """On which its shardings are: the devices of the program in its order."""
    in_shardings: Any
    """How the arguments are laid out; what is laid out otherwise XLA brings there."""
    out_shardings: Any
    """How the results are laid out."""
    _run: Callable[..., Any] = field(repr=False)
    _signature: Signature = field(repr=False)

    def __call__(self, *arguments: Any) -> Any:
        """The results.

        Raises:
            ReshardError: `bad-argument` where the arguments are not those of the program, or would lose as values of
                its dtypes; `bad-shape`.
        """
        leaves, tree = jax.tree.flatten(arguments)
        if tree != self._signature.in_tree:
            raise ReshardError("bad-argument", f"the arguments must be those of the program, got: {tree}")
        for value, leaf in zip(self.placed.inputs, leaves, strict=True):
            if jnp.shape(leaf) != value.shape:
                raise ReshardError("bad-shape", f"input {value.name} must have shape {value.shape}")
            if not _becomes(leaf, value.dtype):
                raise ReshardError(
                    "bad-argument", f"input {value.name} must be of {value.dtype.name}, got: {shown(leaf)}"
                )
        arrays = [
            leaf if is_key(getattr(leaf, "dtype", None)) else jnp.asarray(leaf, value.dtype.name)
            for value, leaf in zip(self.placed.inputs, leaves, strict=True)
        ]
        return jax.tree.unflatten(self._signature.out_tree, self._run(*arrays))


def _becomes(given: Any, dtype: DType) -> bool:
    """Whether what is given for an input stays what it is: numbers that its dtype holds, arrays of no larger kind.

    >>> import numpy as np
    >>> [_becomes(given, dtype_named("int8")) for given in (7, 300, np.int8(7), np.zeros(2, bool))]
    [True, False, True, True]
    >>> [_becomes(np.zeros(2, kind), dtype_named("int8")) for kind in ("int32", "float32", object)]
    [False, False, False]
    """
    if isinstance(given, bool | int | float):
        return dtype.holds(given)
    kind = getattr(given, "dtype", None) or np.asarray(given).dtype
    if is_key(kind):
        return True
    try:
        known = dtype_named(kind)
    except ReshardError:
        return False
    is_no_larger = RANKS_OF_KINDS.get(known.kind, 0) <= RANKS_OF_KINDS.get(dtype.kind, 0)
    return is_no_larger and (dtype.kind not in "iu" or dtype.itemsize >= min(known.itemsize, WORD_BYTES))


@uncollected()
def to_jax(placed: Placement) -> PlacedFunction:
    """The function of a placed program: the values of the original, moved by its plans, with gradients.

    Its gradients are those of its operations: a function with derivatives of its own (`custom_jvp`, `custom_vjp`) is
    taken apart when it is traced, so trace the gradient where they count.

    Raises:
        ReshardError: `not-divisible` where an input or an output has a dim that its shards do not divide, which JAX
            cannot hold; `cannot-express` where one is unreduced, where meshes have other devices or another order, or
            where their axes fit into no mesh; `unknown-device`.
    """
    expect(placed, Placement, "what becomes a function of JAX")
    mesh, specs = _mesh_and_specs(placed)
    run_so = with_own_parts(with_whole_sums(placed, SMALL_BYTES))

    @uncollected()
    def body(*tiles: Any) -> tuple[Any, ...]:
        return tuple(run(run_so, _Device(run_so, mesh.axis_names), tiles).values())

    in_specs, out_specs = (tuple(specs[value.name] for value in ends) for ends in (placed.inputs, placed.outputs))
    function = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    signature = placed.signature
    if not isinstance(signature, Signature):
        outputs = (0,) * len(out_specs) if len(out_specs) != 1 else 0
        signature = Signature(jax.tree.structure((0,) * len(in_specs)), jax.tree.structure(outputs))
    in_shardings = jax.tree.unflatten(signature.in_tree, [NamedSharding(mesh, spec) for spec in in_specs])
    out_shardings = jax.tree.unflatten(signature.out_tree, [NamedSharding(mesh, spec) for spec in out_specs])
    return PlacedFunction(placed, mesh, in_shardings, out_shardings, function, signature)


# The mesh


def _mesh_and_specs(placed: Placement) -> tuple[JaxMesh, dict[str, PartitionSpec]]:
    """A mesh of whose axes every input and output has whole ones, and their specs."""
    first = placed.mesh
    for mesh in {sharding.mesh for sharding in placed.shardings.values()}:
        if mesh.is_maximal or not mesh.same_order_as(first):
            raise ReshardError("cannot-express", f"{mesh} has other devices than {first}, or another order of them")
    ends = [*placed.inputs, *placed.outputs]
    stages: dict[str, list[Digits]] = {}
    cuts = {1, first.size}
    for value in ends:
        sharding = placed.sharding(value)
        if sharding.unreduced:
            raise ReshardError("cannot-express", f"value {value.name} is unreduced, {sharding.text()}, and leaves")
        try:
            sharding.check_divisible(value.shape)
        except ReshardError as error:
            raise ReshardError(error.code, f"value {value.name}: {error}") from None
        layout = sharding.layout_for(value.shape)
        stages[value.name] = list(layout.cutting)
        cuts.update(layout.used.cuts)
    if nest(cuts | first.digits.cuts):
        cuts |= first.digits.cuts
    if not nest(cuts):
        raise ReshardError("cannot-express", "the shardings of inputs and outputs fit into no mesh of JAX together")
    mesh = Mesh.of_digits(Digits.between(cuts), first.device_ids, like=first)
    specs = {}
    for name, dims in stages.items():
        entries = [mesh.axes_of(digits) or () for digits in dims]
        specs[name] = partition_spec_of(Sharding.of(mesh, *entries))
    return jax_mesh_like(mesh), specs


# What one device does


class _Device(Engine):
    """One device, on which a function is traced."""

    def __init__(self, placed: Placement, names: tuple[str, ...]) -> None:
        self.placed, self.device = placed, Device.here(names)
        self.barriers = _barriers(placed.operations)
        self.picks = Counter(operation.operands[0] for operation in placed.operations if operation.name == "pick")
        """Per value how often an element of it is picked."""

    def awaited(self, test: Test, turn: Turn, carried: list[Any]) -> list[Any]:
        """A loop of JAX that asks."""
        more: list[Any] = lax.while_loop(lambda tiles: test(tiles) != 0, lambda tiles: turn(tiles, []).carried, carried)
        return more

    def loop(
        self, loop: Loop, turn: Turn, carried: list[Any], elements: list[Any], stacks: Sequence[Operation]
    ) -> Turned:
        """A loop of JAX."""
        scanned = lax.scan(turn, carried, elements, length=loop.trip_count, reverse=loop.reverse, unroll=loop.unroll)
        return Turned(*scanned)

    def choice(self, number: Any, branches: Sequence[Callable[[], list[Any]]]) -> list[Any]:
        """A choice of JAX."""
        return lax.switch(lax.convert_element_type(number, np.int32), branches)

    def joins(self, operation: Operation) -> Hashable | None:
        """Barriers, and reshards of small tiles by what they do."""
        if operation.name == "copy":
            return self.barriers.get(operation.result)
        plan = self.placed.plans.get(operation.result)
        if plan is None or not plan.received_bytes or operation.result.dtype.kind == "b" or _is_extreme(plan):
            return None
        if operation.result.dtype.name == "uint64":  # as which keys of random numbers stand
            return None
        if not self._is_small(operation):
            return None
        return plan.dtype.name, *((step.kind, step.before.mesh, step.axes) for step in plan.steps)

    def is_light(self, operation: Operation) -> bool:
        """Whether it moves nothing and has small tiles, so that it matters little how long they are held."""
        plan = self.placed.plans.get(operation.result)
        return (plan is None or not plan.received_bytes) and self._is_small(operation)

    def _is_small(self, operation: Operation) -> bool:
        sizes = (prod(self.placed.sharding(value).local_shape(value.shape)) for value in operation.values)
        return max(sizes) * operation.result.dtype.itemsize <= SMALL_BYTES

    def compute_together(self, operations: Sequence[Operation], tiles: Sequence[Sequence[Any]]) -> list[Any]:
        """The tiles of barriers, or of reshards."""
        firsts = [operands[0] for operands in tiles]
        if operations[0].name == "copy":
            return list(lax.optimization_barrier(firsts))
        plans = [self.placed.plans[operation.result] for operation in operations]
        return moved_together(plans, self.device, firsts)

    def compute(self, operation: Operation, tiles: Sequence[Any]) -> Any:
        """The tile that an operation makes."""
        if operation.result in self.placed.plans:
            return moved(self.placed.plans[operation.result], self.device, tiles[0])
        if operation.name == "output":
            return tiles[0]
        extents = ArrayExtents(self.placed, operation, self.device)
        if operation.name == "constant":
            number = np.array(operation.attribute("value"), operation.result.dtype.name)
            return extents.filled(lax.full((), number[()], number.dtype))
        tiles = extents.cleared(tiles)
        if operation.payload is not None:
            return operation.payload(extents, tiles)
        if operation.name == "pick" and self.picks[operation.operands[0]] > FEW_PICKS:
            return compute(replace(VERBS, element=self._element), operation, extents, tiles)
        return compute(VERBS, operation, extents, tiles)

    def _element(self, array: Any, dim: int, place: Any) -> Any:
        """A single place of a dim, of one kernel for all such places."""
        if not looks_up_places() or not isinstance(place, int):
            return VERBS.element(array, dim, place)
        starts = [place if each == dim else 0 for each in range(array.ndim)]
        return self.device.part(array, starts, (*array.shape[:dim], 1, *array.shape[dim + 1 :]))


def _barriers(operations: Sequence[Operation]) -> dict[Value, int]:
    """Per value that is held at a barrier the number of that; copies that follow each other meet at one.

    Between them reshards may stand, which bring them where they are copied.
    """
    numbers: dict[Value, int] = {}
    number = 0
    for operation in operations:
        if operation.name == "copy" and operation.attribute("barrier"):
            numbers[operation.result] = number
        elif operation.name != "reshard":
            number += 1
    return numbers


class ArrayExtents:
    """The extents of a device where every array is as large as the largest tile."""

    def __init__(self, placed: Placement, operation: Operation, device: Device) -> None:
        self.operation, self.device = operation, device
        self.values: tuple[Value, ...] = operation.values
        self.shardings: list[Sharding] = [placed.sharding(value) for value in self.values]

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the arrays that hold the tiles: those of the largest."""
        return [s.local_shape(value.shape) for s, value in zip(self.shardings, self.values, strict=True)]

    def _bounds(self, term: int, dim: int) -> tuple[Any, Any]:
        value, sharding = self.values[term], self.shardings[term]
        window = None if sharding.mesh.is_maximal else sharding.dims[dim].window
        layout, positions = sharding.layout_for(value.shape), sharding.mesh.positions
        if window is None:
            return layout.intervals(dim, value.shape[dim], positions)
        start, stop = np.array(window.spans, dtype=np.int64)[layout.cutting[dim].index_of(positions)].T
        return start, stop

    def lead(self, operand: TensorDim, decides: TensorDim, reach: Reach) -> Any:
        """How many places of the frame that is read come before the first element of a window."""
        first, (start, stop) = self._bounds(*operand)[0], self._bounds(*decides)
        lead = first * reach.spread - (start * reach.stride - reach.low)
        known = lead[start < stop]
        if (known == known[0]).all():
            return int(known[0])
        return self.device.row_of(np.where(start < stop, lead, known[0]).astype(np.int32))

    def reaches_out(self, term: int, dim: int) -> bool:
        """Whether on some device the tile is a window that goes on beyond the ends of its tensor."""
        return reaches_out(self.shardings[term], dim, self.values[term].shape[dim])

    def start(self, term: int, dim: int) -> Any:
        """Where a tile begins in its tensor."""
        return self._mine(self._bounds(term, dim)[0])

    def length(self, term: int, dim: int) -> Any:
        """How many elements of its tensor a tile has."""
        start, stop = self._bounds(term, dim)
        return self._mine(stop - start)

    def _mine(self, table: Any) -> Any:
        return np.int32(table[0]) if (table == table[0]).all() else self.device.row_of(table.astype(np.int32))

    def filled(self, number: Any) -> Any:
        """The tile of a result that is one number everywhere; where it is unreduced, the first device has that."""
        sharding = self.shardings[-1]
        if sharding.unreduced and sharding.reduction != "avg":
            places = sharding.layout.unreduced.index_of(sharding.mesh.positions)
            blank = identity(sharding.reduction, number.dtype)
            number = lax.select(self._mine(places) == 0, number, lax.full_like(number, blank))
        return lax.broadcast(number, self.shapes[-1])

    def cleared(self, tiles: Sequence[Any]) -> list[Any]:
        """The tiles, what lies beyond their ends put at the identity of the reduction that would take it in."""
        if self.operation.pattern is None or not self.operation.pattern.reduced:
            return list(tiles)
        rule, cleared = operation_rule(self.operation), list(tiles)
        for term, tile in enumerate(tiles):
            for dim, group in enumerate(rule.terms[term]):
                has_window = self.shardings[term].dims and self.shardings[term].dims[dim].window
                if not group or has_window or rule.roles[group[-1]] is not LabelRole.REDUCED:
                    continue
                start, stop = self._bounds(term, dim)
                if (stop - start != self.shapes[term][dim]).any():
                    blank = identity(reduction_of(self.operation), tile.dtype)
                    cleared[term] = self.device.blanked(cleared[term], dim, stop - start, blank)
        return cleared


# Reshards of tiles


def moved(plan: Plan, device: Device, tile: Any) -> Any:
    """The target tile of a device from its source tile, with its derivative."""
    if not plan.steps:  # tiles of no elements may still differ in shape
        return lax.reshape(tile, plan.target.local_shape(plan.shape))
    if is_key(tile.dtype):  # word by word of what keys are made of
        words = jnp.moveaxis(jax.random.key_data(tile), -1, 0)
        parts = [run_alone(on_device(plan, device, word), device) for word in words]
        return jax.random.wrap_key_data(jnp.stack(parts, -1), impl=jax.random.key_impl(tile))
    if tile.dtype == np.bool_:  # which JAX has no maximum over devices for
        return run_alone(on_device(plan, device, tile.astype(np.uint8)), device).astype(np.bool_)
    if jnp.issubdtype(tile.dtype, np.inexact) and _is_extreme(plan):
        return _extreme(plan, device.names)(tile)
    return moved_together([plan], device, [tile])[0]


def moved_together(plans: Sequence[Plan], device: Device, tiles: Sequence[Any]) -> list[Any]:
    """The target tiles of plans of one kind that have steps, none of truth values or of an extreme; with derivatives.

    Their collectives go as one where they are alike.
    """
    if not jnp.issubdtype(tiles[0].dtype, np.inexact):
        return _moved_alike(plans, device, tiles)
    results: list[Any] = _linear(tuple(plans), device.names)(device.position, list(tiles))
    return results


def _moved_alike(plans: Sequence[Plan], device: Device, tiles: Sequence[Any]) -> list[Any]:
    runs = [on_device(plan, device, tile) for plan, tile in zip(plans, tiles, strict=True)]
    return run_together(runs, device)


@lru_cache(MOST_KNOWN)
def _linear(plans: tuple[Plan, ...], names: tuple[str, ...]) -> Callable[[Any, list[Any]], list[Any]]:
    """The same with derivatives, from the device's position and its tiles; traced once for all reshards alike."""

    def forth(position: Any, tiles: Sequence[Any]) -> list[Any]:
        return _moved_alike(plans, Device(names, position), tiles)

    def back(position: Any, cotangents: Sequence[Any]) -> list[Any]:
        return _moved_alike([plan.transpose() for plan in plans], Device(names, position), cotangents)

    @jax.jit
    def reshard(position: Any, tiles: list[Any]) -> list[Any]:
        moved: list[Any] = linear_call(forth, back, position, tiles)
        return moved

    return reshard


def _is_extreme(plan: Plan) -> bool:
    """Whether values are combined otherwise than by their sum."""
    return bool(plan.source.unreduced) and plan.source.reduction != "sum"


def _extreme(plan: Plan, names: tuple[str, ...]) -> Any:
    """The reshard of what is unreduced under a maximum or a minimum."""
    reduction = plan.source.reduction
    if reduction not in ("max", "min"):
        return lambda tile: run_on_device(plan, names, tile)
    kept = stays_unreduced(plan.source, plan.target)
    classes = shards(kept, plan.source.mesh.sizes)
    shape = (classes, *plan.shape)
    source, target = (_apart(end, kept) for end in (plan.source, plan.target))
    added = make_plan(replace(source, reduction="sum"), replace(target, reduction="sum"), shape, plan.dtype.name)
    everywhere = replace(source, unreduced=())
    best = make_plan(source, everywhere, shape, plan.dtype.name)
    count = make_plan(replace(source, reduction="sum"), everywhere, shape, plan.dtype.name)

    @jax.custom_jvp
    def run(tile: Any) -> Any:
        return run_on_device(plan, names, tile)

    @run.defjvp
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        (tile,), (tangent,) = primals, tangents
        own, change = tile[None], tangent[None]
        holds = (own == run_on_device(best, names, own)).astype(tile.dtype)
        share = lax.stop_gradient(holds / run_on_device(count, names, holds))
        return run(tile), moved(added, Device.here(names), change * share)[0]

    return run


def _apart(end: Sharding, kept: Axes) -> Sharding:
    """A sharding with a dim more, which has apart what stays unreduced: there each class has winners of its own."""
    rest = difference(end.unreduced, kept, end.mesh.sizes)
    return replace(end, dims=(DimSharding(kept), *end.dims), unreduced=rest)
