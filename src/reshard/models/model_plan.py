"""A plan for a whole model: who sends which bytes of which tensor to whom.

A model has thousands of tensors and a few dozen groups of them that agree in all that matters, so all figures are
products of a group's by its count, and a device's schedule is looked up in the tables of the groups that it is in.
One description serves whoever moves the bytes: `part_of(device)` lists a device's messages in the global order, with
the boxes that they consist of, and `slots` say where the boxes lie in its buffers.

>>> from reshard.mesh import Mesh
>>> from reshard.models import plan_model
>>> mesh = Mesh.of(x=4)
>>> tensors = {f"layers.{layer}.w": ((8, 8), "f32") for layer in range(3)}
>>> plan = plan_model(tensors, Rules.of(mesh, {}, "[{'x'}, {}]".replace("'", '"')), Rules.of(mesh, {}, (None, "x")))
>>> plan.received_bytes, plan.lower_bound_bytes
(144, 144)
>>> print(plan)
3 tensors, 768 B, from 4 devices to 4, all of them the same
<BLANKLINE>
tensors     count  shape  dtype    from         to           received  busiest
layers.*.w      3  8 x 8  float32  [{"x"}, {}]  [{}, {"x"}]     144 B        0
<BLANKLINE>
received 144 B on the busiest device, 0, the lower bound; 576 B in all; 1 bucket, at most 256 MiB in flight
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from reshard.box import Box
from reshard.checks import shown
from reshard.digits import Positions
from reshard.drawing.notebooks import mimebundle
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.mesh import ENUMERABLE
from reshard.models.block_scales import SCALE, CastEnd, CastTile, ScaledTensor, blocks_in, ruled_scales
from reshard.models.buckets import Buckets, Load, buckets_of
from reshard.models.catalogue import TensorType
from reshard.models.device_part import DevicePart, Pieces
from reshard.models.grouping import groups_of
from reshard.models.model_page import model_drawing, model_page
from reshard.models.model_record import digest_of_model, parts_record, read_parts
from reshard.models.model_table import Template, blocks_of, figures_of, templates_of
from reshard.models.model_time import host_bytes_of, seconds_of_model, time_cut_of
from reshard.models.ruleset import Ruled, Rules
from reshard.models.sites import Site
from reshard.models.stores import Buffer, HeldTensor, Slot, slots_of
from reshard.models.templates import Moves, TensorGroup
from reshard.network import Cut, Network
from reshard.tables import Passage, plain

NO_ROWS: Positions = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, repr=False)
class ModelPlan:
    """What is moved, and how; made by `plan_model`.

    A plan is a value: pickled, copied or read from its JSON it is equal to what it was, and does the same.
    """

    names: tuple[str, ...]
    types: tuple[TensorType, ...]
    """Of the source."""
    dtypes: tuple[DType, ...]
    """Of the target."""
    rules: tuple[Rules, Rules]
    """Of the source, and of the target."""
    in_flight: int
    """Bytes that a device may have under way, sent and received together."""
    network: Network | None = None
    scaled: tuple[ScaledTensor, ...] = ()
    """Tensors that an end casts in blocks; `types` and `dtypes` are those that travel."""

    def __post_init__(self) -> None:
        if self.in_flight < 2:
            raise ReshardError("bad-argument", f"in_flight is {self.in_flight}; it must be at least 2")
        _ = self.groups  # what the rules refuse is refused now

    @cached_property
    def _hash(self) -> int:
        return hash((self.names, self.in_flight, self.rules[0].mesh, self.rules[1].mesh))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, ModelPlan):
            return self is other
        return all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def ruled(self) -> tuple[tuple[Ruled, ...], tuple[Ruled, ...]]:
        """Per tensor what the rules say of it: of the source, and of the target."""
        tensors = list(zip(self.names, (tensor.shape for tensor in self.types), strict=True))
        by_scales = {scaled.scales: scaled for scaled in self.scaled if scaled.at == "source"}
        source: dict[str, Ruled] = {}
        sites: dict[Any, Site] = {}
        for name, shape in tensors:
            if name in by_scales:
                source[name] = ruled_scales(by_scales[name], source[by_scales[name].name], sites)
            else:
                source[name] = self.rules[0].ruled(name, shape)
        return tuple(source.values()), tuple(self.rules[1].ruled(*tensor) for tensor in tensors)

    @cached_property
    def groups(self) -> tuple[TensorGroup, ...]:
        """The tensors that agree in shape, dtypes, source and target."""
        ruled = self.ruled
        if self.world > ENUMERABLE:
            raise ReshardError("too-large", f"a model's devices must be below {ENUMERABLE}")
        return groups_of(self.types, self.dtypes, *ruled)

    @cached_property
    def world(self) -> int:
        """The number above the last device."""
        return 1 + max(max(mesh.devices) for mesh in (rules.mesh for rules in self.rules))

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """All that send or receive, or might."""
        return tuple(sorted({device for rules in self.rules for device in rules.mesh.devices}))

    @cached_property
    def group_of(self) -> list[TensorGroup]:
        """The group of each tensor."""
        result: list[TensorGroup] = [self.groups[0]] * len(self.names) if self.groups else []
        for group in self.groups:
            for member in group.members:
                result[member] = group
        return result

    @cached_property
    def buckets(self) -> Buckets:
        """In which bucket each tensor travels.

        Raises:
            ReshardError: `no-plan` where `in_flight` is too small.
        """
        by_group = {}
        places = np.zeros(len(self.names))
        for group in self.groups:
            received, sent = (amount * group.wire.itemsize for amount in group.moves.most)
            ends = group.target, group.source
            by_group[id(group)] = Load(ends[0].family, ends[0].place, received, ends[1].family, ends[1].place, sent)
            places[group.members] = (np.arange(len(group.members)) + 0.5) / len(group.members)
        # all groups go forward side by side, so that all stages and all holders of experts work at once
        return buckets_of(
            [by_group[id(group)] for group in self.group_of],
            np.argsort(places, kind="stable").tolist(),
            self.in_flight // 2,
            lambda number, parts: (
                sum(self.group_of[number].moves.largest_part(parts)) * self.group_of[number].wire.itemsize
            ),
        )

    def _counted(self, what: str) -> Positions:
        total = np.zeros(self.world, dtype=np.int64)
        for group in self.groups:
            # a site lists a device once
            total[group.target.devices] += getattr(group.moves, what) * (len(group.members) * group.wire.itemsize)
        return total

    @cached_property
    def all_received_bytes(self) -> Positions:
        """Per device number, the bytes that come from others, as the pieces bring them."""
        return self._counted("received")

    @cached_property
    def all_lower_bound_bytes(self) -> Positions:
        """Per device number, the bytes of its target tiles that it does not hold."""
        return self._counted("missing")

    @cached_property
    def all_sent_bytes(self) -> Positions:
        """Per device number, the bytes that go to others."""
        total = np.zeros(self.world, dtype=np.int64)
        for group in self.groups:
            sent = group.moves.sent_in(group.first, len(group.members))
            total[group.source.devices] += sent * group.wire.itemsize
        return total

    @property
    def received_bytes(self) -> int:
        """What the busiest device receives from others."""
        return int(self.all_received_bytes.max(initial=0))

    @property
    def lower_bound_bytes(self) -> int:
        """What the device that lacks most lacks."""
        return int(self.all_lower_bound_bytes.max(initial=0))

    def received_bytes_on(self, device: int) -> int:
        """What a device receives from others.

        Raises:
            ReshardError: `unknown-device`.
        """
        return int(self.all_received_bytes[self._checked(device)])

    def lower_bound_bytes_on(self, device: int) -> int:
        """What a device lacks.

        Raises:
            ReshardError: `unknown-device`.
        """
        return int(self.all_lower_bound_bytes[self._checked(device)])

    def sent_bytes_on(self, device: int) -> int:
        """What a device sends to others.

        Raises:
            ReshardError: `unknown-device`.
        """
        return int(self.all_sent_bytes[self._checked(device)])

    def _checked(self, device: int) -> int:
        if device not in self.rules[0].mesh and device not in self.rules[1].mesh:
            raise ReshardError("unknown-device", f"device {shown(device)} is neither in the source nor in the target")
        return int(device)

    @cached_property
    def traffic(self) -> tuple[Positions, Positions, Positions]:
        """All that goes from one device to another: senders, receivers, bytes; each pair once."""
        amounts = np.zeros((self.world, self.world), dtype=np.int64)
        for group in self.groups:
            moves = group.moves
            rows = np.flatnonzero(~moves.stays)
            sizes = moves.table.elements[rows] * group.wire.itemsize
            receivers = group.target.devices[moves.table.receivers[rows]]
            turns, counts = np.unique(group.turns(), return_counts=True)
            for senders, count in zip(moves.senders(turns, rows), counts.tolist(), strict=True):
                np.add.at(amounts, (group.source.devices[senders], receivers), sizes * count)
        senders, receivers = np.nonzero(amounts)
        return senders, receivers, amounts[senders, receivers]

    @cached_property
    def seconds(self) -> float | None:
        """What the busiest link or port of the network takes for all bytes, and one message's latency; None without.

        Raises:
            ReshardError: `bad-network` where it does not reach all devices.
        """
        return seconds_of_model(self)

    @cached_property
    def time_cut(self) -> Cut | None:
        """What proves `lower_bound_seconds`; None without a network, or where nothing must cross that is known."""
        return time_cut_of(self)

    @property
    def lower_bound_seconds(self) -> float | None:
        """What no plan goes below on the network: the largest over cuts of what must cross over what can; None without.

        What crosses is counted once for every side that lacks it, latency not at all.
        """
        if self.network is None:
            return None
        return 0.0 if self.time_cut is None else self.time_cut.seconds

    @cached_property
    def host_bytes(self) -> tuple[int, int] | None:
        """What the busiest host receives from other hosts, and the most that one lacks, each byte once; None without.

        A host is all that the levels below the outermost join.
        """
        return host_bytes_of(self)

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """The tensors by name without numbers, largest first."""
        return templates_of(self)

    @cached_property
    def digest(self) -> str:
        """A short name for all that ranks must agree on, the same in every process."""
        return digest_of_model(self)

    def part_of(self, device: int) -> DevicePart:
        """What a device sends, receives and keeps, in the global order.

        Raises:
            ReshardError: `unknown-device`, `no-plan` where `in_flight` is too small.
        """
        self._checked(device)
        sends, receives, keeps = [], [], []
        first, parts = (np.array(column, dtype=np.int64) for column in self.buckets[:2])
        for group in self.groups:
            place, moves = group.target.position_of.get(device), group.moves
            members = np.array(group.members, dtype=np.int64)
            itemsize = group.wire.itemsize
            if place is not None and place in moves.rows_into:
                rows = moves.rows_into[place]
                stays = moves.stays[rows]
                keeps += [(members, row) for row in rows[stays].tolist()]
                rows = rows[~stays]
                if len(rows):
                    peers = group.source.devices[moves.senders(group.turns(), rows)]
                    receives.append(_pieces(moves, rows, members, peers, itemsize))
            place = group.source.position_of.get(device)
            if place is not None:
                for turn, chosen in group.by_turn(members):
                    holder = moves.base[place] + moves.offsets[(moves.number[place] - turn) % moves.replicas]
                    rows = moves.rows_from.get(int(holder), NO_ROWS)
                    if len(rows):
                        peers = np.broadcast_to(
                            group.target.devices[moves.table.receivers[rows]], (len(chosen), len(rows))
                        )
                        sends.append(_pieces(moves, rows, chosen, peers, itemsize))
        return DevicePart.of(device, sends, receives, keeps, first, parts, self)

    def piece_box(self, tensor: int, row: int, part: int | None) -> Box:
        """The box of a piece, or of the part of it that travels in one bucket."""
        moves = self.group_of[tensor].moves
        return moves.box(row) if part is None else moves.box(row, part, self.buckets.parts[tensor])

    def _held(self, device: int, end: int) -> Iterator[tuple[str, HeldTensor]]:
        for number, (name, ruled) in enumerate(zip(self.names, self.ruled[end], strict=True)):
            site = ruled.site
            if device in site.position_of:
                dtype = self.types[number].dtype if end == 0 else self.dtypes[number]
                yield name, HeldTensor(ruled.store(), site.tile(device), site.memory_shape(device), site.shape, dtype)

    @cached_property
    def _known_slots(self) -> dict[tuple[int, int], tuple[dict[str, tuple[Slot, ...]], dict[str, Buffer]]]:
        return {}

    def _slots(self, device: int, end: int) -> tuple[dict[str, tuple[Slot, ...]], dict[str, Buffer]]:
        """Where a device has its tiles at one end, kept for the last that was asked: a rank asks for its own again."""
        key = self._checked(device), end
        if key not in self._known_slots:
            for other in [known for known in self._known_slots if known[0] != key[0]]:
                del self._known_slots[other]
            self._known_slots[key] = slots_of(dict(self._held(device, end)))
        return self._known_slots[key]

    def source_slots(self, device: int) -> tuple[dict[str, tuple[Slot, ...]], dict[str, Buffer]]:
        """Where a device has its tiles of the source, and its buffers.

        Raises:
            ReshardError: `unknown-device`; `bad-argument` where stores do not fit together.
        """
        return self._slots(device, 0)

    def target_slots(self, device: int) -> tuple[dict[str, tuple[Slot, ...]], dict[str, Buffer]]:
        """Where a device wants its tiles, and its buffers.

        Raises:
            ReshardError: `unknown-device`; `bad-argument` where stores do not fit together.
        """
        return self._slots(device, 1)

    def handed_slots(self, device: int) -> tuple[dict[str, tuple[Slot, ...]], dict[str, Buffer]]:
        """As `source_slots`, but what is handed in: before the source casts in blocks.

        Raises:
            ReshardError: as `source_slots`.
        """
        if not self.casts_at(device, "source"):
            return self.source_slots(device)
        held = dict(self._held(device, 0))
        for scaled in (tile.scaled for tile in self.casts_at(device, "source")):
            del held[scaled.scales]
            held[scaled.name] = held[scaled.name]._replace(dtype=scaled.dtype)
        return slots_of(held)

    def wanted_slots(self, device: int) -> tuple[dict[str, tuple[Slot, ...]], dict[str, Buffer]]:
        """As `target_slots`, but what comes of it: after the target has cast in blocks.

        Raises:
            ReshardError: as `target_slots`.
        """
        if not self.casts_at(device, "target"):
            return self.target_slots(device)
        held = dict(self._held(device, 1))
        for scaled in (tile.scaled for tile in self.casts_at(device, "target")):
            shape = blocks_in(held[scaled.name].shape, scaled.cast.block)
            ruled = self.rules[1].ruled(scaled.scales, shape)
            site = ruled.site
            held[scaled.scales] = HeldTensor(ruled.store(), site.tile(device), site.memory_shape(device), shape, SCALE)
            held[scaled.name] = held[scaled.name]._replace(dtype=scaled.cast.dtype)
        return slots_of(held)

    def casts_at(self, device: int, end: CastEnd) -> list[CastTile]:
        """What a device casts in blocks, at one end."""
        if not self.scaled:
            return []
        ruled = self.ruled[end == "target"]
        numbers = {name: number for number, name in enumerate(self.names)}
        sites = ((scaled, ruled[numbers[scaled.name]].site) for scaled in self.scaled if scaled.at == end)
        return [CastTile(scaled, site.box(device)) for scaled, site in sites if device in site.position_of]

    def __repr__(self) -> str:
        return f"<ModelPlan of {len(self.names)} tensors, {self.digest}>"  # what it is made of fills pages

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows."""
        return mimebundle(str(self), model_drawing(self))

    def __str__(self) -> str:
        return plain(self.blocks())

    def blocks(self) -> list[Passage]:
        """What is shown of it: its templates, and what it receives against the bound."""
        return blocks_of(self)

    def to_html(self) -> str:
        """It as a page: tensors by bytes, templates, what devices and hosts receive."""
        return model_page(self)

    def as_dict(self) -> dict[str, Any]:
        """What `to_json` writes."""
        return {**figures_of(self), **parts_record(self)}

    def to_json(self) -> str:
        """The plan as JSON text: what it was made of, and its figures; `from_json` reads it back.

        Raises:
            ReshardError: `cannot-express` where a rule's spec holds objects that are no text.
        """
        return json.dumps(self.as_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> ModelPlan:
        """The plan that `to_json` wrote, made anew.

        Raises:
            ReshardError: `bad-plan-text` where the text is no such JSON, or names another plan than the one that comes
                of it; and what rules that do not fit their tensors raise.

        >>> from reshard.dtypes import dtype_named
        >>> from reshard.mesh import Mesh
        >>> rules = [Rules.of(Mesh.of(x=2), {}, spec) for spec in ("replicated", ("x",))]
        >>> plan = ModelPlan(("w",), (TensorType((4,), dtype_named("f32")),), (dtype_named("f32"),), tuple(rules), 64)
        >>> ModelPlan.from_json(plan.to_json()) == plan
        True
        """
        parts, record = read_parts(text)
        plan = cls(*parts)
        for figure in ("digest", "received_bytes", "lower_bound_bytes"):
            if record.get(figure) != getattr(plan, figure):
                raise ReshardError("bad-plan-text", f"{figure} in the text is not what the plan gives")
        return plan


def _pieces(moves: Moves, rows: Positions, members: Positions, peers: Positions, itemsize: int) -> Pieces:
    """The pieces of some rows of a table, of some tensors, each to or from a peer."""
    shape = len(members), len(rows)
    return Pieces(
        np.broadcast_to(members[:, None], shape).ravel(),
        np.broadcast_to(rows, shape).ravel(),
        np.asarray(peers).ravel(),
        np.broadcast_to(moves.table.elements[rows] * itemsize, shape).ravel(),
    )
