"""A program: values, operations on them, and what is known of their shardings.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(data=2, model=4)
>>> program = Program(mesh)
>>> x = program.input("x", (1024, 512), "bf16", Sharding.of(mesh, "data", None))
>>> w = program.input("w", (512, 2048), "bf16", Sharding.of(mesh, None, "model"))
>>> h = program.op("bd,df->bf", x, w, result="h")
>>> out = program.output(program.op("bf->bf", h, name="relu"))
>>> placed = program.propagate()
>>> print(placed.sharding(h).text(), placed.received_bytes)
[{"data"}, {"model"}] 0
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from reshard.checks import checked_shape, expect, integer, listed, shown
from reshard.contraction.goal import Goal
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.operations.attributes import shifted_shape
from reshard.operations.kinds import ENTERING, LEAVING
from reshard.operations.operation import Attribute, Value
from reshard.operations.pattern import Pattern
from reshard.operations.reshapes import reshape_pattern
from reshard.propagation.builder import Builder, NewValue
from reshard.propagation.merging import MERGES, run_in_blocks
from reshard.propagation.open_blocks import OpenChoice, OpenLoop, open_choice, open_loop
from reshard.propagation.placement import Placement
from reshard.propagation.plain_attributes import plain_items, plain_number
from reshard.propagation.search import Limits, Shortlist, place, shortlist
from reshard.propagation.text import read, read_meshes, write


class Program(Builder):
    """A program under construction.

    Args:
        mesh: the devices; or several meshes by name, of which the first is that of values of which nothing tells.
            A mesh that a sharding names joins by itself.
        even_ends: whether dims of inputs and outputs that were left open take only axes that divide them.
    """

    def input(self, name: str, shape: Sequence[int], dtype: Any = "float32", sharding: object = None) -> Value:
        """A value that is given to the program; without a sharding all its dims are open.

        A sharding is said in any form, an engine's too; without a mesh of its own it is on that of the program.

        Raises:
            ReshardError: `bad-program` where the name is taken; `bad-shape`, `unknown-dtype`, `rank-mismatch`.
        """
        return self._annotated(self.add("input", (), NewValue(name, shape, dtype_named(dtype))), sharding)

    def op(
        self,
        pattern: str | Pattern,
        *operands: Value,
        name: str = "einsum",
        result: str | None = None,
        dtype: Any = None,
        shape: Sequence[int] | None = None,
        sizes: Mapping[str, int] | None = None,
        replicated: Iterable[str] = (),
        shifted: Iterable[str] = (),
        selected: Iterable[str] = (),
        attributes: Mapping[str, Attribute] | None = None,
        opaque: bool = False,
    ) -> Value:
        """An operation by its pattern; its result.

        Args:
            pattern: which dims run over the same index.
            operands: in the order of the pattern.
            name: what is done, one of `reshard.operations.kinds.KINDS`: `einsum` multiplies, and sums over the
                labels that the result lacks; `sum`, `max`, `min` and `product` combine one operand otherwise; most
                are done element by element.
            result: the name of the result; one is made up unless given.
            dtype: of the result; that of the first operand unless given.
            shape: of the result, where labels are shifted.
            sizes: of labels that the operands do not determine.
            replicated: labels of which the operation needs all elements at once.
            shifted: labels whose elements change their place.
            selected: labels of the first operand whose elements the second names.
            attributes: what else the operation depends on.
            opaque: whether the name is one of your own, which shardings go through as the pattern says, and which
                no engine runs; devices need all of a label that the result lacks.

        Raises:
            ReshardError: `syntax`, `bad-shape`, `rank-mismatch` where the pattern is none or does not fit the
                shapes; `bad-program` where the operation is not known; `bad-argument`.
        """
        if name in ENTERING | LEAVING:
            raise ReshardError("bad-program", f"{name} is an end of a block, which is added by the verb of the block")
        for mapping, what in ((sizes, "sizes"), (attributes, "attributes")):
            if mapping is not None and not isinstance(mapping, Mapping):
                raise ReshardError("bad-argument", f"{what} must be a mapping, got: {shown(mapping)}")
        return self.add(
            name,
            operands,
            NewValue(result, shape, dtype),
            opaque=opaque,
            pattern=Pattern.of(pattern),
            sizes=tuple((sizes or {}).items()),
            replicated=_labels_with_a_role(replicated, "replicated"),
            shifted=_labels_with_a_role(shifted, "shifted"),
            selected=_labels_with_a_role(selected, "selected"),
            attributes=plain_items(attributes or {}),
        )

    def constant(self, value: float, shape: Sequence[int], dtype: Any = "float32", result: str | None = None) -> Value:
        """A tensor of one number, which every device makes for itself."""
        return self.add(
            "constant", (), NewValue(result, shape, dtype_named(dtype)), attributes=(("value", plain_number(value)),)
        )

    def transpose(self, value: Value, order: Sequence[int], result: str | None = None) -> Value:
        """The dims of a value in another order, given by their numbers."""
        labels = self._labels(value)
        places = [integer(number, "a dim of a transpose") for number in listed(order, "the order of a transpose")]
        if sorted(places) != list(range(len(labels))):
            raise ReshardError("bad-argument", f"the order {places} must have every dim of {value.shape} once")
        moved = tuple(labels[number] for number in places)
        return self.op(Pattern((labels,), moved), value, name="transpose", result=result)

    def reshape(self, value: Value, shape: Sequence[int], result: str | None = None) -> Value:
        """The elements of a value, in their order, in another shape.

        The dims are cut into the factors that both shapes share, so shardings go through wherever they line up.

        Raises:
            ReshardError: `bad-shape` where the shapes hold different numbers of elements.
        """
        self.check_own(value)
        sizes = tuple(integer(size, "a size of a shape", "bad-shape") for size in listed(shape, "a shape", "bad-shape"))
        pattern, label_sizes, replicated = reshape_pattern(value.shape, sizes)
        return self.op(pattern, value, name="reshape", result=result, sizes=label_sizes, replicated=replicated)

    def broadcast(self, value: Value, shape: Sequence[int], dims: Sequence[int], result: str | None = None) -> Value:
        """A value repeated: its dim n becomes dim `dims[n]` of the shape, and a dim of size 1 grows.

        Raises:
            ReshardError: `bad-shape` where a size differs and is not 1.
        """
        self.check_own(value)
        shape = checked_shape(shape)
        places = [integer(at, "a dim of a broadcast") for at in listed(dims, "the dims of a broadcast")]
        if len(places) != len(value.shape) or len({*places}) != len(places):
            raise ReshardError("bad-argument", f"dims {places} must be one for each dim of {value.shape}")
        if any(not 0 <= at < len(shape) for at in places):
            raise ReshardError("bad-argument", f"dims {places} must be dims of shape {tuple(shape)}")
        term = []
        for own, at in enumerate(places):
            if value.shape[own] not in (1, shape[at]):
                raise ReshardError("bad-shape", f"dim {own} of {value.shape} cannot become dim {at} of {shape}")
            term.append(() if value.shape[own] != shape[at] else (f"d{at}",))
        pattern = Pattern((tuple(term),), tuple((f"d{at}",) for at in range(len(shape))))
        sizes = {f"d{at}": size for at, size in enumerate(shape)}
        return self.op(pattern, value, name="broadcast", result=result, sizes=sizes)

    def slice(
        self,
        value: Value,
        start: Sequence[int],
        stop: Sequence[int],
        step: Sequence[int] | None = None,
        result: str | None = None,
    ) -> Value:
        """Per dim the elements from `start` on, every `step`-th, before `stop`.

        Raises:
            ReshardError: `bad-argument` where they are not within the value.
        """
        every = [1] * len(value.shape) if step is None else step
        return self._shift("slice", [value], result, {"start": start, "stop": stop, "step": every})

    def pad(
        self,
        value: Value,
        low: Sequence[int],
        high: Sequence[int],
        fill: float = 0,
        result: str | None = None,
    ) -> Value:
        """A value with `low` elements before it and `high` after it in every dim, all of them `fill`.

        Where a number is below 0 so many elements are left out there.
        """
        return self._shift("pad", [value], result, {"low": low, "high": high, "value": plain_number(fill)})

    def concatenate(self, values: Sequence[Value], dim: int, result: str | None = None) -> Value:
        """Values one after another in one dim.

        Raises:
            ReshardError: `bad-shape` where they differ in another dim.
        """
        operands = [expect(value, Value, "what is concatenated") for value in listed(values, "what is concatenated")]
        if not operands:
            raise ReshardError("bad-argument", "something must be concatenated")
        return self._shift("concatenate", operands, result, {"dim": integer(dim, "the dim of a concatenation")})

    def roll(
        self,
        value: Value,
        shifts: Sequence[int],
        dims: Sequence[int],
        sizes: Sequence[int] | None = None,
        result: str | None = None,
    ) -> Value:
        """Every element so many places further in some dims; what leaves at the end comes in at the front.

        Args:
            value: what is rolled.
            shifts: how many places, per dim that is named.
            dims: their numbers.
            sizes: of these dims in the result, where it goes round more or less than once.

        Raises:
            ReshardError: `bad-argument` where the dims are none of the value, or not as many as the shifts.
        """
        longer = {} if sizes is None else {"sizes": sizes}
        return self._shift("roll", [value], result, {"dims": dims, "shifts": shifts, **longer})

    def reverse(self, value: Value, dims: Sequence[int], result: str | None = None) -> Value:
        """The elements of some dims from the last to the first.

        Raises:
            ReshardError: `bad-argument` where the dims are none of the value.
        """
        return self._shift("reverse", [value], result, {"dims": dims})

    def running(
        self,
        name: str,
        value: Value,
        dim: int,
        *,
        reverse: bool = False,
        before: bool = False,
        result: str | None = None,
    ) -> Value:
        """What runs along a dim: `cumsum`, `cumprod`, `cummax`, `cummin` or `cumlogsumexp`, in blocks of the dim.

        A device that has a part of the dim receives one element a line, handed on from device to device among up to 33;
        among more, or where a network says that seconds count, less than two, in two exchanges.

        Args:
            name: what is done.
            value: to whose elements.
            dim: along which.
            reverse: whether from the last element to the first.
            before: whether of what comes before each element, without that; of nothing it is the identity.
            result: the name of the result; one is made up unless given.

        Raises:
            ReshardError: `bad-argument` where it is none of these, or the dim none of the value.
        """
        self.check_own(value)
        if expect(name, str, "what runs along a dim") not in MERGES:
            raise ReshardError("bad-argument", f"what runs along a dim is one of {', '.join(MERGES)}, got: {name}")
        if not 0 <= integer(dim, "the dim of what runs along it") < len(value.shape):
            raise ReshardError("bad-argument", f"dim {dim} is no dim of {value.shape}")
        ran = run_in_blocks(self, name, value, dim, is_reversed=reverse, is_before=before)
        labels = self._labels(ran)
        return ran if result is None else self.op(Pattern((labels,), labels), ran, name="copy", result=result)

    def take(self, table: Value, rows: Value, result: str | None = None) -> Value:
        """Rows of a table by their numbers, as an embedding has them: table `[v, ...]`, rows of any shape.

        Where the table is sharded by rows, each device gives the rows that it has and zeros for the others.

        Raises:
            ReshardError: `bad-argument` where the table has no dims or the rows are no integers.
        """
        self.check_own(table)
        self.check_own(rows)
        if not table.shape:
            raise ReshardError("bad-argument", f"{table.name} must have rows")
        features = tuple((f"d{dim}",) for dim in range(1, len(table.shape)))
        places = tuple((f"r{dim}",) for dim in range(len(rows.shape)))
        pattern = Pattern(((("v",), *features), places), (*places, *features))
        return self.op(pattern, table, rows, name="take", result=result, selected=("v",))

    def reshard(self, value: Value, sharding: object, result: str | None = None) -> Value:
        """A value in another sharding, which may be on another mesh."""
        self.check_own(value)
        if sharding is None:
            raise ReshardError("bad-argument", "a reshard needs the sharding that it leads to, got: None")
        return self._annotated(self.add("reshard", (value,), NewValue(result, value.shape)), sharding)

    def loop(
        self, trip_count: int | None = None, *, reverse: bool = False, unroll: int = 1
    ) -> AbstractContextManager[OpenLoop]:
        """A loop: `with program.loop(12) as loop` what is added stands in it; see `OpenLoop`.

        Args:
            trip_count: how often it runs; without it, as long as its test is not zero.
            reverse: whether it takes elements from the last to the first.
            unroll: how many turns a compiler is to write one after another.

        Raises:
            ReshardError: `bad-argument`, `bad-program`.
        """
        return open_loop(self, trip_count, reverse, unroll)

    def choice(self) -> AbstractContextManager[OpenChoice]:
        """A choice: `with program.choice() as choice`, in which stand its branches; see `OpenChoice`."""
        return open_choice(self)

    def constrain(self, value: Value, sharding: object) -> Value:
        """Say how a value is sharded, wherever it stands in the program; the value.

        Raises:
            ReshardError: `bad-program` where this contradicts what was said before; `rank-mismatch`.
        """
        self.annotate(value, sharding)
        return value

    def output(self, value: Value, sharding: object = None, result: str | None = None) -> Value:
        """A value that the program gives back; without a sharding, in that which propagation finds."""
        self.check_own(value)
        return self._annotated(self.add("output", (value,), NewValue(result, value.shape)), sharding)

    def propagate(
        self,
        network: Network | str | None = None,
        until_priority: int | None = None,
        *,
        goal: str | None = None,
        seconds: float | None = None,
        memory_limit: int | None = None,
        work_limit: int | None = None,
    ) -> Placement:
        """The program with every sharding filled in and every reshard explicit.

        Args:
            network: what the devices are connected by, or the name of a preset: choices go by time, or, where the goal
                is `balanced`, weigh work as its devices compute.
            until_priority: stop after the dims of this priority, with values cut as propagation alone has them.
            goal: `balanced` unless given: bytes received and the work of a device, weighed as
                `reshard.contraction.goal` says; `bytes`; on a network `seconds`, unless given.
            seconds: of search, after which the best so far counts; its distance from the bound says how good it is.
                Unless given, messages that bound it end after about a minute, on meshes of four axes and more.
            memory_limit: bytes that a device may hold at once, counted as `reshard.propagation.memory` says.
            work_limit: operations of a device at most, as `Placement.flops` counts them.

        Raises:
            ReshardError: `bad-program` while a block stands open; `bad-network`, `bad-argument`; `no-plan` where no
                placement is found that keeps the limits, with the least that one needs; and as `plan`.
        """
        if until_priority is not None and integer(until_priority, "until_priority") < 0:
            raise ReshardError("bad-argument", f"until_priority must be at least 0, got: {until_priority}")
        limits = Limits(memory_limit, work_limit)
        aim, deadline = self._aim(network, goal, seconds, limits)
        return place(self, aim, until_priority, deadline, limits)

    def search(
        self,
        memory_limit: int | None = None,
        network: Network | str | None = None,
        *,
        goal: str | None = None,
        seconds: float | None = None,
        count: int = 3,
    ) -> Shortlist:
        """The best few placements where the inputs may be sharded in any way, as far as nothing is said of them.

        An output that is made element by element of an input, as a weight after a step, is sharded as that is, unless
        something was said of both; what else is to be alike says `tie`.

        Args:
            memory_limit: bytes that a device may hold at once, counted as `reshard.propagation.memory` says.
            network: what the devices are connected by, or the name of a preset: choices go by time.
            goal: as `propagate` has it.
            seconds: of search, after which the best so far counts.
            count: how many placements at most: the cheapest, then the cheapest found that take less memory.

        Raises:
            ReshardError: as `propagate`.
        """
        if integer(count, "the count of placements") < 1:
            raise ReshardError("bad-argument", f"the count of placements must be at least 1, got: {count}")
        aim, deadline = self._aim(network, goal, seconds, Limits(memory_limit))
        return shortlist(self, aim, memory_limit, count, deadline)

    @classmethod
    def parse(cls, text: str) -> Program:
        """The program of a text, as `str` writes it.

        Raises:
            ReshardError: `syntax`, `bad-program`, and what the shardings and operations themselves raise, with the
                line and the value.
        """
        program = cls(read_meshes(text)[0])
        read(text, program)
        return program

    @staticmethod
    def from_stablehlo(text: str) -> Program:
        """The program of a module of StableHLO with annotations of the sdy dialect, as `lowered.as_text()` gives it.

        HLO's own shardings are read too, and HLO's text from before partitioning, as XLA dumps it.
        Calls stand where they are called, loops and branches are blocks, and a custom call or a manual computation
        is one operation with the shardings that it states.

        Raises:
            ReshardError: `missing-extra` without JAX, whose parser reads it; `syntax`; `unknown-mesh` where the
                module defines none; `cannot-express` where no program can hold an operation; `unknown-dtype`,
                `bad-program`; each names the operation and its line.
        """
        read_stablehlo = importlib.import_module("reshard").jax.program_of  # an engine, which its first use loads
        program: Program = read_stablehlo(text)
        return program

    def __repr__(self) -> str:
        meshes = ", ".join(map(str, self.meshes.values()))
        return f"<Program of {len(self.operations)} operations on {meshes}>"

    def __str__(self) -> str:
        return write(self, self.annotations)

    def _aim(
        self, network: Network | str | None, goal: str | None, seconds: float | None, limits: Limits
    ) -> tuple[Goal, float | None]:
        """The goal of a placement, and when its search is to end.

        Raises:
            ReshardError: `bad-program`, `bad-network`, `bad-argument`.
        """
        if self.block is not None:
            raise ReshardError("bad-program", "a program in which a loop or a choice stands open cannot be placed")
        if seconds is not None and not plain_number(seconds, "the seconds of a search") > 0:
            raise ReshardError("bad-argument", f"the seconds of a search must be above 0, got: {shown(seconds)}")
        for name, limit in (("memory_limit", limits.memory), ("work_limit", limits.work)):
            if limit is not None and integer(limit, name) < 0:
                raise ReshardError("bad-argument", f"{name} must be at least 0, got: {limit}")
        described = Network.named(network, "the network of a program")
        if described is not None and described.call_s:  # a program starts once, whatever plans it is made of
            described = replace(described, call_s=0.0)
        return Goal.of(goal, described, "balanced"), None if seconds is None else time.monotonic() + seconds

    def _annotated(self, value: Value, sharding: object) -> Value:
        """A value just made, with what is said about it; where that is refused, nothing is made."""
        try:
            return value if sharding is None else self.constrain(value, sharding)
        except ReshardError:
            self.take_back(value.number)
            raise

    def _labels(self, value: Value) -> tuple[tuple[str, ...], ...]:
        self.check_own(value)
        return tuple((f"d{dim}",) for dim in range(len(value.shape)))

    def _shift(self, name: str, operands: Sequence[Value], result: str | None, attributes: Mapping[str, Any]) -> Value:
        """What shifts elements as its attributes say."""
        terms = [self._labels(operand) for operand in operands]
        plain = dict(plain_items(attributes))
        shape = shifted_shape(name, [operand.shape for operand in operands], plain)
        named = {plain.get("dim"), *_integers_of(plain.get("dims"))}
        named |= {dim for key in ("low", "high") for dim, width in enumerate(_integers_of(plain.get(key))) if width}
        shifted = {
            label
            for operand in operands
            for dim, ((label,), before, after) in enumerate(zip(terms[0], operand.shape, shape, strict=True))
            if before != after or dim in named
        }
        pattern = Pattern((terms[0],) * len(operands), terms[0])
        return self.op(
            pattern, *operands, name=name, result=result, shape=shape, shifted=sorted(shifted), attributes=plain
        )


def _integers_of(attribute: Attribute | None) -> tuple[int, ...]:
    return attribute if isinstance(attribute, tuple) else ()


def _labels_with_a_role(labels: Iterable[str], role: str) -> tuple[str, ...]:
    """Labels from a list, or letters from a text."""
    return tuple(labels) if isinstance(labels, str) else tuple(listed(labels, f"the {role} labels"))
