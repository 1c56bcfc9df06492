"""A plan: a checked chain of steps from one sharding to another.

Each step starts where the one before it ended, the first at the source, the last at the target; a plan that is
not so cannot be built, so to hold one is to hold a proof.
A plan without steps says that source and target are one placement.

The figures are bytes that devices receive from others; a device's own data, moved within its memory, is none.
The lower bound of a device is what it needs and does not hold.
Where partial values are combined no bound per device is exact, and `bound_kind` says so: a device needs at
least its tile, and all together need at least `total_lower_bound_bytes`.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4)
>>> reshard = Reshard.of(Sharding.of(mesh, "y", None), Sharding.of(mesh, "x", "y"), (8, 8))
>>> print(Plan(reshard, (Step(reshard),)))
8 x 8 float32 on 8 devices
from  [{"y"}, {}]
to    [{"x"}, {"y"}]
<BLANKLINE>
   step      axes  rounds  received   peak  sharding
1  Exchange  x, y       2      32 B  112 B  [{"x"}, {"y"}]
<BLANKLINE>
received 32 B on the busiest device, 192 B in all; lower bound 32 B: exact
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from reshard.checks import all_of, expect, shown
from reshard.drawing.notebooks import mimebundle
from reshard.errors import ReshardError
from reshard.network import (
    Cut,
    Transfers,
    best_cut,
    least_seconds,
    least_transfers,
    seconds_of,
)
from reshard.plans import in_parts, timeline
from reshard.plans.chain_checks import check_chain, check_whole, checked_whole
from reshard.plans.least_bytes import LeastBytes
from reshard.plans.mlir import write_sdy, write_shard
from reshard.plans.moved_bytes import MovedBytes
from reshard.plans.options import Options
from reshard.plans.parts import Parting
from reshard.plans.plan_page import plan_drawing, plan_page
from reshard.plans.plan_record import differences, plan_fields, plan_record, reading_record, record_read
from reshard.plans.reason import why_more
from reshard.plans.table import blocks
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import ReshardWork, Share, Step, chain_through
from reshard.tables import bytes_text, plain

CODE_ENGINES = ("jax", "torch")
"""The engines that write plans as code."""


@dataclass(frozen=True)
class Plan(ReshardWork):
    """Steps that lead from a source to a target.

    Rules, in the order checked:
        bad-argument: every field is of its kind
        broken-chain: each step starts where the one before ended, from source to target, for this shape and dtype
        bad-argument: the parts are at least one, fewer go through other steps, and every tile on the way can be cut in
            so many, but for what the whole tensor does first and last, the same in all shares
        bad-network, too-large: the network has all devices, and every step a price on it
    """

    reshard: Reshard
    """What is to be moved."""
    steps: tuple[Step, ...]
    """None where source and target are one placement."""
    options: Options = field(default_factory=Options)
    """What the plan was made for: with a network it has prices."""
    remark: str = field(default="", compare=False)
    """What the search says of the plan besides: where it was cut short."""
    parts: int = 1
    """In how many equal parts the tensor goes through the steps, one behind the other, so that steps overlap."""
    beside: tuple[Share, ...] = ()
    """Those of the parts that go through other steps, at the same time."""
    whole: tuple[int, int] = (0, 0)
    """How many of the first and of the last steps the whole tensor takes, before it goes in parts and after."""
    step_seconds: tuple[float, ...] | None = field(init=False, repr=False, compare=False)
    """What each step takes on the network, of the whole tensor and by itself; None without a network."""

    def __post_init__(self) -> None:
        expect(self.reshard, Reshard, "what a plan does")
        all_of(self.steps, Step, "the steps of a plan")
        expect(self.options, Options, "the options of a plan")
        led, _ = checked_whole(self.whole)  # parts may use what these steps led to
        check_chain(self.reshard, self.steps, led)
        for share in all_of(self.beside, Share, "the shares beside the steps of a plan"):
            all_of(share.steps, Step, "the steps of a share")
            check_chain(self.reshard, share.steps, led)
        if expect(self.parts, int, "the parts of a plan") < 1:
            raise ReshardError("bad-argument", f"{self.reshard} cannot be cut in {shown(self.parts)} parts")
        beside = [expect(share.parts, int, "the parts of a share") for share in self.beside]
        if min(beside, default=1) < 1 or sum(beside) >= self.parts:
            raise ReshardError("bad-argument", f"of {self.parts} parts {sum(beside)} cannot go through other steps")
        if self.whole != (0, 0):
            check_whole(self.reshard, self.whole, self.shares)
            _ = self.stretches
        elif self.parts != 1 and self.parting.unit % self.parts:
            runs = f"runs are of {self.parting.unit} elements"
            raise ReshardError("bad-argument", f"{self.reshard} cannot be cut in {self.parts} parts; {runs}")
        network = self.options.network
        seconds = None if network is None else tuple(seconds_of(step, network) for step in self.steps)
        object.__setattr__(self, "step_seconds", seconds)

    @cached_property
    def reason(self) -> str:
        """Why the plan moves more than the bound, where a network made it so, or a search was cut short."""
        return self.remark or why_more(self)

    @property
    def source(self) -> Sharding:
        """Where the tensor is."""
        return self.reshard.source

    @property
    def target(self) -> Sharding:
        """Where it is wanted."""
        return self.reshard.target

    @cached_property
    def parting(self) -> Parting:
        """Where tiles are cut in parts."""
        points = [self.source, *(step.after for share in self.shares for step in share.steps)]
        return Parting.of(self.shape, points, self.parts)

    @cached_property
    def stretches(self) -> tuple[Plan, ...]:
        """The plan as plans one after another: what the whole tensor does first, what goes in parts, what is last."""
        return in_parts.stretches(self)

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """The parts, by the steps that they go through; those of `steps` first."""
        others = sum(share.parts for share in self.beside)
        return (Share(self.steps, self.parts - others), *self.beside)

    @cached_property
    def plans_by_share(self) -> tuple[Plan, ...]:
        """What the largest part of each share goes through: the same steps, on a tensor of its size."""
        return tuple(in_parts.plan_of_part(self, number) for number in range(len(self.shares)))

    @cached_property
    def plans_of_parts(self) -> tuple[Plan, ...]:
        """What every part goes through, those of all shares in turn; equal ones are one."""
        return in_parts.plans_of_parts(self)

    @cached_property
    def seconds(self) -> float | None:
        """What the plan takes on the network that it was made for, its steps overlapped; None without a network."""
        if self.step_seconds is None or self.options.network is None:
            return None
        call_s = self.options.network.call_s if any(step.moves for step in self.steps) else 0.0
        return call_s + max((spans[-1][1] for spans in self.spans if spans), default=0.0)

    @cached_property
    def spans(self) -> list[list[tuple[float, float]]]:
        """Per share and step, when the first part begins it and the last has done it, in seconds; on a network."""
        return timeline.spans(self)

    @cached_property
    def time_cut(self) -> Cut | None:
        """The cut that takes longest; None without a network, or where nothing must cross that is known."""
        network = self.options.network
        return None if network is None or not self.steps else best_cut(self.reshard, network)

    @cached_property
    def time_transfers(self) -> Transfers | None:
        """Transfers without which values are not combined, where they take longer than the cut; else None."""
        if self.options.network is None or self.time_cut is None:
            return None
        transfers = least_transfers(self.reshard, self.options.network)
        return transfers if transfers is not None and transfers.seconds > self.time_cut.seconds else None

    @property
    def lower_bound_seconds(self) -> float | None:
        """Seconds that no plan goes below on the network as described, latencies left out; None without one.

        `time_cut` proves it, or `time_transfers` where there are any.
        0 where nothing must move, and where no bound is known: where values are partial in the end, and windows are
        summed.

        >>> from reshard.mesh import Mesh
        >>> from reshard.network import Network
        >>> mesh = Mesh.of(x=2, y=2)
        >>> reshard = Reshard.of(Sharding.of(mesh, ("x", "y")), Sharding.of(mesh, None), (3_600_000,), "int8")
        >>> plan = Plan(reshard, (Step(reshard),), Options(Network.preset("tpu-v5e-2x2")))
        >>> print(plan.time_cut, "is", plan.lower_bound_seconds, "s")
        2637 KiB into one device at 90 GB/s is 3e-05 s
        """
        if self.options.network is None:
            return None
        return least_seconds(self.reshard, self.options.network) if self.steps else 0.0

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices of source and target, and of the steps between, in ascending order."""
        steps = [step for share in self.shares for step in share.steps]
        meshes = {self.source.mesh, self.target.mesh, *(step.after.mesh for step in steps)}
        return tuple(np.unique(np.concatenate([mesh.device_array for mesh in meshes])).tolist())

    @cached_property
    def rounds(self) -> int:
        """Rounds of all steps, in each of which a device sends and receives at most one piece.

        Raises:
            ReshardError: `too-large` where the pieces are too many to list.
        """
        return sum(share.parts * step.rounds for share in self.shares for step in share.steps)

    @cached_property
    def moved_bytes(self) -> MovedBytes:
        """What all steps move."""
        return MovedBytes(self._steps_with_times, self.dtype.itemsize)

    @property
    def received_bytes(self) -> int:
        """Bytes that the busiest device receives from others over all steps."""
        return self.moved_bytes.largest

    @property
    def _steps_with_times(self) -> list[tuple[Step, int]]:
        """The steps with how often each is taken: those of the whole tensor, or of parts where these part ways.

        Along a ring a share of a part has whole elements, and so has what each device combines of it, so that parts
        together may differ from the whole.
        """
        is_whole = self.parts == 1 or not any(step.ring or step.before.unreduced for step in self.steps)
        if not self.beside and is_whole:
            return [(step, 1) for step in self.steps]
        plans = [plan for stretch in self.stretches for plan in stretch.plans_of_parts]
        counts = Counter(map(id, plans))
        return [(step, counts[key]) for key, plan in {id(plan): plan for plan in plans}.items() for step in plan.steps]

    @cached_property
    def total_received_bytes(self) -> int:
        """Bytes that all devices together receive from others over all steps."""
        return self.moved_bytes.total

    @property
    def relayed_bytes(self) -> int:
        """Of what the busiest device receives, that beyond what any must: to be passed on, or held already.

        0 without a network, and where values are combined.
        """
        if self.options.network is None or self.bound_kind != "exact":
            return 0
        return self.received_bytes - self.lower_bound_bytes

    @cached_property
    def sent_bytes(self) -> int | None:
        """Bytes that the busiest device sends to others over all steps; None where the messages are too many to list.

        It is what the busiest device receives unless tiles differ in size, or devices hold what others send too.
        """
        return self.moved_bytes.sent

    def received_bytes_on(self, device: int) -> int:
        """Bytes that one device receives from others over all steps.

        Raises:
            ReshardError: `unknown-device` where the device is neither in the source nor in the target.
        """
        self._check_device(device)
        return self.moved_bytes.on(device)

    def _check_device(self, device: int) -> None:
        ends = (self.source, self.target, *(step.after for step in self.steps))
        if not any(device in end.mesh for end in ends):
            raise ReshardError("unknown-device", f"device {shown(device)} is neither in the source nor in the target")

    @cached_property
    def least_bytes(self) -> LeastBytes:
        """What every plan must move; nothing where source and target are one placement."""
        beside = [step for share in self.beside for step in share.steps]
        return LeastBytes(self.reshard, (*self.steps, *beside))

    @property
    def bound_kind(self) -> str:
        """What the lower bound is: `exact`, `reduction` or `unreduced`, as of `LeastBytes.kind`."""
        return self.least_bytes.kind

    def lower_bound_bytes_on(self, device: int) -> int:
        """Bytes that one device must receive whatever the plan: those of its target tile that it does not hold.

        Where partial values are combined, those of its target tile; where values become partial, 0.

        Raises:
            ReshardError: `unknown-device` where the device is neither in the source nor in the target.
        """
        self._check_device(device)
        return self.least_bytes.on(device)

    @property
    def lower_bound_bytes(self) -> int:
        """The largest bound of a device; with partial values also at least the even share of the total bound."""
        return self.least_bytes.largest

    @property
    def total_lower_bound_bytes(self) -> int:
        """Bytes that all devices together must receive whatever the plan."""
        return self.least_bytes.total

    @cached_property
    def peak_bytes(self) -> int:
        """Bytes that a device needs at most, its source tile kept: the largest step, and the source beside it.

        In parts, which may be anywhere on the way at once, all tiles, and those of both ends once more.
        """
        source = self.reshard.tilings[0].largest_tile * self.dtype.itemsize
        if len(self.stretches) > 1:
            return max(stretch.peak_bytes + (source if number else 0) for number, stretch in enumerate(self.stretches))
        if self.parts > 1:
            under_way = sum(step.peak_bytes * times for step, times in self._steps_with_times)
            return 2 * source + self.steps[-1].peak_bytes + under_way
        return max([source, *(step.peak_bytes + (source if number else 0) for number, step in enumerate(self.steps))])

    def transpose(self) -> Plan:
        """The plan of the gradient: from the dual of the target to the dual of the source, step by step.

        An AllGather becomes a ReduceScatter and the reverse, a Slice a ToUnreduced, an AllReduce and an AllToAll
        their own kind, and so does a Permute where nothing is replicated; an Exchange moves the other way.

        Raises:
            ReshardError: `bad-argument` where a reduction is no sum.

        >>> from reshard.mesh import Mesh
        >>> mesh = Mesh.of(x=4)
        >>> reshard = Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (8,))
        >>> plan = Plan(reshard, (Step(reshard),))
        >>> [step.kind for step in plan.steps], [step.kind for step in plan.transpose().steps]
        (['AllGather'], ['ReduceScatter'])
        """
        back = replace(self.reshard, source=self.target.dual(), target=self.source.dual())
        return Plan(back, chain_through(back, *(step.before.dual() for step in reversed(self.steps[1:]))))

    def to_mlir(self, dialect: str = "sdy") -> str:
        """The plan as an MLIR module: collectives of the sdy dialect, or of the shard dialect.

        The module takes the whole tensor through `steps`, one after the other; where the plan takes it in parts, or
        some of these other ways, its first line says so.

        Args:
            dialect: sdy or shard; neither has an Exchange, which a plan in the basis of collectives does without.

        Raises:
            ReshardError: `bad-argument`; `no-plan` where the dialect cannot hold a step; `not-divisible` where the
                shard dialect's local types need even tiles.
        """
        writers = {"sdy": write_sdy, "shard": write_shard}
        if dialect not in writers:
            raise ReshardError("bad-argument", f"dialect must be sdy or shard, got: {shown(dialect)}")
        text = writers[dialect](self.reshard, self.steps)
        if self.parts == 1:
            return text
        others = f", {self.parts - self.shares[0].parts} of them by other steps" if self.beside else ""
        said = f"the whole tensor, step by step; the plan takes it in {self.parts} parts, whose steps overlap{others}"
        return f"// {said}\n{text}"

    def to_code(self, engine: str) -> str:
        """The source of a function that does the plan with an engine's own library, and needs nothing of this one.

        Args:
            engine: jax or torch.

        Raises:
            ReshardError: `bad-argument`; `missing-extra` where the engine is not installed; what `code_of` of the
                engine raises for a plan that it does not run.
        """
        if engine not in CODE_ENGINES:
            raise ReshardError("bad-argument", f"code is written for {' or '.join(CODE_ENGINES)}, got: {shown(engine)}")
        text: str = getattr(importlib.import_module("reshard"), engine).code_of(self)  # an engine is the root's to load
        return text

    def to_trace(self) -> str:
        """The priced plan as a Chrome trace in JSON, which Perfetto opens: a row of steps and one per busy device.

        Raises:
            ReshardError: `bad-argument` where the plan was made without a network.
        """
        return timeline.trace(self)

    def to_html(self) -> str:
        """The plan as a page: one file that opens from disk, needs no network, and moves.

        It shows the tensor before and after, the mesh frame by frame, who sends to whom, bytes and memory against
        their bounds, the alternatives, the table, and text forms to copy.
        The same plan gives the same bytes.

        Raises:
            ReshardError: `too-large` where devices or tiles are too many to list.

        >>> from reshard.mesh import Mesh
        >>> reshard = Reshard.of(Sharding.of(Mesh.of(x=2), "x"), Sharding.of(Mesh.of(x=2), None), (8,))
        >>> page = Plan(reshard, (Step(reshard),)).to_html()
        >>> page.startswith("<!doctype html>"), "default-src &#x27;none&#x27;" in page
        (True, True)
        """
        root = importlib.import_module("reshard")  # what else would do is found above this room
        return plan_page(self, root.alternatives(self))

    def to_json(self) -> str:
        """The plan as JSON text, with its figures; `from_json` reads it back.

        The form is that of `SCHEMA`: shardings in Shardy's notation, bytes as integers.
        """
        return json.dumps(self.as_dict(), indent=1)

    def as_dict(self) -> dict[str, Any]:
        """What `to_json` writes."""
        return plan_record(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote, built and checked anew.

        Raises:
            ReshardError: `bad-plan-text` where the text is no such JSON or a figure in it is not the plan's;
                and what the shardings and steps themselves raise.
        """
        record = record_read(text)
        with reading_record():
            plan = cls(**plan_fields(record))
        wrong = differences(record, plan.as_dict())
        if wrong:
            raise ReshardError("bad-plan-text", f"{wrong[0]} in the text is not what the plan gives")
        return plan

    def __repr__(self) -> str:
        of = f"{self.dtype.name}{list(self.shape)} on {self.source.mesh}"
        steps = ", ".join(step.kind for step in self.steps) or "no step"
        return f"<Plan {self.reshard} of {of}: {steps}, {bytes_text(self.received_bytes)} received>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows."""
        return mimebundle(str(self), plan_drawing(self))

    def __str__(self) -> str:
        return plain(blocks(self))
