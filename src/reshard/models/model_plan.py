"""A plan for a whole model: who sends which bytes of which tensor to whom.

A model has thousands of tensors and a few dozen groups of them that agree in all that matters, so all figures are
products of a group's by its count, and a device's schedule is looked up in the tables of the groups that it is in.
One description serves whoever moves the bytes: `part_of(device)` lists a device's messages in the global order, with
the boxes that they consist of, and `slots` say where the boxes lie in its buffers.

>>> from reshard.mesh import Mesh
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
received 144 B on the busiest device, 0, the lower bound; 576 B in all; 1 bucket, at most 268435456 B in flight
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from reshard.box import Box
from reshard.checks import checked_shape, expect, integer, listed, shown
from reshard.digits import Positions
from reshard.drawing.notebooks import mimebundle
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.mesh import ENUMERABLE
from reshard.models.buckets import Buckets, Load, buckets_of
from reshard.models.catalogue import TensorType
from reshard.models.device_part import DevicePart, Pieces
from reshard.models.model_page import model_drawing, model_page
from reshard.models.names import nearest, pattern_of, skeleton
from reshard.models.ruleset import Ruled, Rules
from reshard.models.stores import Buffer, HeldTensor, Slot, slots_of
from reshard.models.templates import Moves, TensorGroup, moves_between
from reshard.network import Network
from reshard.network.traffic import loads
from reshard.plans.table import seconds_text
from reshard.tables import Passage, Table, bytes_text, plain

VERSION = 1
"""Of what a digest and the JSON say."""
IN_FLIGHT = 256 << 20
NO_ROWS: Positions = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Template:
    """Tensors that are called alike and go the same way."""

    name: str
    """With a star for every number."""
    count: int
    shape: tuple[int, ...]
    dtype: str
    """Of the source, and after an arrow of the target where that is another."""
    source: str
    """The sharding's text."""
    target: str
    received_bytes: int
    """By the device that receives most of them."""
    busiest: int
    """That device."""


@dataclass(frozen=True, eq=False, repr=False)
class ModelPlan:
    """What is moved, and how; made by `plan_model`."""

    names: tuple[str, ...]
    types: tuple[TensorType, ...]
    """Of the source."""
    dtypes: tuple[DType, ...]
    """Of the target."""
    rules: tuple[Rules, Rules]
    """Of the source, and of the target."""
    ruled: tuple[tuple[Ruled, ...], tuple[Ruled, ...]]
    """Per tensor what the rules say of it: of the source, and of the target."""
    groups: tuple[TensorGroup, ...]
    in_flight: int
    """Bytes that a device may have under way, sent and received together."""
    network: Network | None = None

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
        """What the busiest link or port of the network takes for all bytes, and one message's latency; None without."""
        if self.network is None:
            return None
        if self.world > self.network.size:
            raise ReshardError(
                "bad-network", f"device {self.world - 1} is beyond the {self.network.size} of the network"
            )
        loaded = loads(self.network.levels, *self.traffic)
        levels = self.network.levels
        busiest = max((load / level.bandwidth for load, level in zip(loaded.carried, levels, strict=True)), default=0.0)
        # messages follow one another without waiting, so one latency counts, of the slowest level that is used
        used = [level.latency_s for load, level in zip(loaded.carried, levels, strict=True) if load]
        return float(busiest + max(used, default=0.0) + (self.network.launch_s if used else 0.0))

    @cached_property
    def host_bytes(self) -> tuple[int, int] | None:
        """What the busiest host receives from other hosts, and the most that one lacks, each byte once; None without.

        A host is all that the levels below the outermost join.
        """
        if self.network is None or not self.network.levels:
            return None
        level = len(self.network.levels) - 1
        hosts = self.network.hosts_of(level, np.arange(self.world))
        received, lacking = np.zeros((2, self.network.hosts(level)), dtype=np.int64)
        senders, receivers, amounts = self.traffic
        crosses = hosts[senders] != hosts[receivers]
        np.add.at(received, hosts[receivers[crosses]], amounts[crosses])
        for group in self.groups:
            moves, size = group.moves, len(group.members) * group.wire.itemsize
            holding = {
                (base, host)
                for base, host in zip(moves.base.tolist(), hosts[group.source.devices].tolist(), strict=True)
            }
            rows = np.flatnonzero(~moves.stays)
            table = moves.table
            bases = moves.base[table.senders[rows]]
            places = hosts[group.target.devices[table.receivers[rows]]]
            keys = np.concatenate([[bases, places], table.starts[:, rows], table.stops[:, rows]])
            _, once = np.unique(keys, axis=1, return_index=True)
            for row in once.tolist():
                if (int(bases[row]), int(places[row])) not in holding:
                    lacking[places[row]] += int(table.elements[rows[row]]) * size
        return int(received.max(initial=0)), int(lacking.max(initial=0))

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """The tensors by name without numbers, largest first."""
        kinds: dict[Any, list[tuple[TensorGroup, int]]] = {}
        for group in self.groups:
            types = "/".join(dict.fromkeys(map(str, group.dtypes)))
            texts = group.source.cuts.text(), group.target.cuts.text()
            counts: dict[str, int] = {}
            for member in group.members:
                name = skeleton(self.names[member])
                counts[name] = counts.get(name, 0) + 1
            for name, count in counts.items():
                key = name, group.source.shape, types.replace("/", " -> "), *texts
                kinds.setdefault(key, []).append((group, count))
        result = []
        for (name, shape, types, source, target), parts in kinds.items():
            received = np.zeros(self.world, dtype=np.int64)
            for group, count in parts:
                received[group.target.devices] += group.moves.received * (count * group.wire.itemsize)
            count, most = sum(count for _, count in parts), int(received.max(initial=0))
            result.append(Template(name, count, shape, types, source, target, most, int(received.argmax())))
        return tuple(sorted(result, key=lambda template: -template.received_bytes))

    @cached_property
    def digest(self) -> str:
        """A short name for all that ranks must agree on, the same in every process."""
        state = hashlib.blake2b(digest_size=16)
        state.update(repr((VERSION, self.in_flight, self.names)).encode())
        numbers: dict[int, int] = {}
        for group in self.groups:
            if id(group.moves) not in numbers:
                numbers[id(group.moves)] = len(numbers)
                tilings = group.moves.exchange.source, group.moves.exchange.target
                state.update(repr([(tiling.layout, tiling.shape) for tiling in tilings]).encode())
            said = numbers[id(group.moves)], group.first, group.dtypes[0].name, group.dtypes[1].name
            state.update(repr(said).encode())
            for numbers_of in (group.source.devices, group.target.devices, np.array(group.members)):
                state.update(np.ascontiguousarray(numbers_of, dtype="<i8").tobytes())
        return state.hexdigest()

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
                for turn, chosen in _by_turn(group, members):
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
                yield name, HeldTensor(ruled.store(), site.box(device), site.memory_shape(device), site.shape, dtype)

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

    def __repr__(self) -> str:
        return f"<ModelPlan of {len(self.names)} tensors, {self.digest}>"  # what it is made of fills pages

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows."""
        return mimebundle(str(self), model_drawing(self))

    def __str__(self) -> str:
        return plain(self.blocks())

    def blocks(self) -> list[Passage]:
        """What is shown of it: its templates, and what it receives against the bound."""
        ends = [set(rules.mesh.devices) for rules in self.rules]
        shared = len(ends[0] & ends[1])
        relation = (
            "all of them the same" if ends[0] == ends[1] else f"{shared} of them the same" if shared else "others"
        )
        total = sum(tensor.nbytes for tensor in self.types)
        title = (
            f"{len(self.names)} tensors, {bytes_text(total)}, from {len(ends[0])} devices to {len(ends[1])}, {relation}"
        )
        rows = [
            (
                template.name,
                str(template.count),
                " x ".join(map(str, template.shape)) or "scalar",
                template.dtype,
                template.source,
                template.target,
                bytes_text(template.received_bytes),
                str(template.busiest) if template.received_bytes else "",
            )
            for template in self.templates
        ]
        titles = ("tensors", "count", "shape", "dtype", "from", "to", "received", "busiest")
        return [
            (title, "bold"),
            "",
            Table([titles, *rows], {"count", "received", "busiest"}),
            "",
            (self._verdict(), "green" if self.received_bytes == self.lower_bound_bytes else ""),
            *self._timing(),
        ]

    def _verdict(self) -> str:
        received, busiest = self.received_bytes, int(self.all_received_bytes.argmax())
        if received == self.lower_bound_bytes:
            against = "the lower bound"
        else:
            against = f"the lower bound is {bytes_text(self.lower_bound_bytes)}"
        count = self.buckets.total
        return (
            f"received {bytes_text(received)} on the busiest device, {busiest}, {against}; "
            f"{bytes_text(int(self.all_received_bytes.sum()))} in all; {count} bucket{'s' if count != 1 else ''}, "
            f"at most {self.in_flight} B in flight"
        )

    def _timing(self) -> list[Passage]:
        if self.network is None or self.seconds is None:
            return []
        lines: list[Passage] = [f"{seconds_text(self.seconds)} on {self.network.name or 'the network'}"]
        if self.host_bytes is not None:
            received, lacking = map(bytes_text, self.host_bytes)
            lines.append(f"into the busiest host {received}; {lacking} if each byte came in once")
        return lines

    def to_html(self) -> str:
        """It as a page: tensors by bytes, templates, what devices and hosts receive."""
        return model_page(self)

    def as_dict(self) -> dict[str, Any]:
        """The plan's figures, for JSON."""
        return {
            "version": VERSION,
            "digest": self.digest,
            "tensors": len(self.names),
            "in_flight": self.in_flight,
            "buckets": self.buckets.total,
            "network": None if self.network is None else self.network.name,
            "seconds": self.seconds,
            "host_bytes": self.host_bytes,
            "received_bytes": self.received_bytes,
            "lower_bound_bytes": self.lower_bound_bytes,
            "total_received_bytes": int(self.all_received_bytes.sum()),
            "templates": [asdict(template) for template in self.templates],
            "devices": [
                {
                    "device": device,
                    "received_bytes": int(self.all_received_bytes[device]),
                    "lower_bound_bytes": int(self.all_lower_bound_bytes[device]),
                    "sent_bytes": int(self.all_sent_bytes[device]),
                }
                for device in self.devices
            ],
        }

    def to_json(self) -> str:
        """The same as a text."""
        return json.dumps(self.as_dict(), indent=1)


def _by_turn(group: TensorGroup, members: Positions) -> list[tuple[int, Positions]]:
    """The members by the turn that they have."""
    turns = group.turns()
    return [(int(turn), members[turns == turn]) for turn in np.unique(turns)]


def _pieces(moves: Moves, rows: Positions, members: Positions, peers: Positions, itemsize: int) -> Pieces:
    """The pieces of some rows of a table, of some tensors, each to or from a peer."""
    shape = len(members), len(rows)
    return Pieces(
        np.broadcast_to(members[:, None], shape).ravel(),
        np.broadcast_to(rows, shape).ravel(),
        np.asarray(peers).ravel(),
        np.broadcast_to(moves.table.elements[rows] * itemsize, shape).ravel(),
    )


def plan_model(
    tensors: Mapping[str, Any],
    source: Rules,
    target: Rules | None = None,
    *,
    network: Network | str | None = None,
    in_flight: int = IN_FLIGHT,
    cast: Mapping[str, Any] | None = None,
) -> ModelPlan:
    """A plan that moves a model from where some rules put it to where others do.

    Args:
        tensors: by name its shape and dtype, as a pair or as what has both.
        source: where the tensors are; left out where they are live and say it themselves, as DTensors do.
        target: where they go.
        network: the devices' network, or a preset's name, to tell what it takes.
        in_flight: bytes that a device may have under way, sent and received together.
        cast: by name or pattern, the dtype at the target; the first that matches counts, and the end where the
            elements are larger casts.

    Raises:
        ReshardError: `bad-argument` where a name has no rule, `bad-shape`, `unknown-dtype`, `bad-network`, `too-large`,
            and what a rule that does not fit its tensor raises.

    >>> from reshard.mesh import Mesh
    >>> rules = Rules.of(Mesh.of(x=2), {}, "replicated")
    >>> plan_model({"w": ((4, 4), "f32")}, Rules.of(Mesh.of(x=2), {}, ("x",)), rules, cast={"w": "bf16"}).received_bytes
    16
    """
    if target is None:
        source, target = Rules.held_by(expect(tensors, Mapping, "tensors")), source  # type: ignore[type-abstract]
    ends = (expect(source, Rules, "the source of a model"), expect(target, Rules, "the target of a model"))
    in_flight = integer(in_flight, "in_flight")
    if in_flight < 2:
        raise ReshardError("bad-argument", f"in_flight is {in_flight}; it must be at least 2")
    if not all(isinstance(name, str) for name in expect(tensors, Mapping, "tensors")):  # type: ignore[type-abstract]
        raise ReshardError("bad-argument", f"tensors must be shapes and dtypes by name, got: {shown(tensors)}")
    types = tuple(_tensor_type(name, value) for name, value in tensors.items())
    if isinstance(network, str):
        network = Network.preset(network)
    ruled = tuple(
        tuple(rules.ruled(name, tensor.shape) for name, tensor in zip(tensors, types, strict=True)) for rules in ends
    )
    dtypes = _cast(tensors, types, cast)
    if max(max(rules.mesh.devices) for rules in ends) >= ENUMERABLE:
        raise ReshardError("too-large", f"a model's devices must be below {ENUMERABLE}")
    groups = _grouped(types, dtypes, ruled[0], ruled[1])
    return ModelPlan(tuple(tensors), types, dtypes, ends, (ruled[0], ruled[1]), groups, in_flight, network)


def _tensor_type(name: str, value: Any) -> TensorType:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape, dtype = value.shape, value.dtype
    else:
        pair = listed(value, f"the shape and dtype of {name!r}")
        if len(pair) != 2:
            raise ReshardError("bad-argument", f"{name!r} must have a shape and a dtype, got: {shown(value)}")
        shape, dtype = pair
    return TensorType(checked_shape(shape), dtype_named(dtype))


def _cast(names: Mapping[str, Any], types: tuple[TensorType, ...], cast: Mapping[str, Any] | None) -> tuple[DType, ...]:
    """The dtypes at the target."""
    if not cast:
        return tuple(tensor.dtype for tensor in types)
    patterns = [(key, pattern_of(key), dtype_named(value)) for key, value in cast.items()]
    result, used = [], set()
    for name, tensor in zip(names, types, strict=True):
        key, dtype = next(
            ((key, dtype) for key, pattern, dtype in patterns if key == name or pattern.fullmatch(name)),
            ("", tensor.dtype),
        )
        used.add(key)
        result.append(dtype)
    unused = [key for key in cast if key not in used]
    if unused:
        raise ReshardError(
            "bad-argument", f"cast names {unused[0]!r}, no tensor; the nearest are {nearest(unused[0], names)}"
        )
    return tuple(result)


def _grouped(
    types: tuple[TensorType, ...],
    dtypes: tuple[DType, ...],
    sources: tuple[Ruled, ...],
    targets: tuple[Ruled, ...],
) -> tuple[TensorGroup, ...]:
    """The groups, with the holders that their repetitions take balanced over all of them."""
    groups: dict[Any, TensorGroup] = {}
    known: dict[Any, Moves] = {}
    places: dict[tuple[bytes, bytes], Positions | None] = {}
    for number, (tensor, dtype, source, target) in enumerate(zip(types, dtypes, sources, targets, strict=True)):
        key = id(source.site), id(target.site), tensor.dtype.name, dtype.name
        group = groups.get(key)
        if group is None:
            ends = source.site, target.site
            between = ends[0].devices.tobytes(), ends[1].devices.tobytes()
            if between not in places:
                found = np.array([ends[0].position_of.get(device, -1) for device in ends[1].devices.tolist()])
                places[between] = found if (found >= 0).any() else None
            shared = places[between]
            cut = tensor.shape, ends[0].layout, ends[1].layout, None if shared is None else shared.tobytes()
            if cut not in known:
                known[cut] = moves_between(*ends, shared)
            group = groups[key] = TensorGroup(*ends, (tensor.dtype, dtype), known[cut])
        group.members.append(number)
    _balance(list(groups.values()), 1 + max((int(group.source.devices.max()) for group in groups.values()), default=0))
    return tuple(groups.values())


def _balance(groups: list[TensorGroup], world: int) -> None:
    """Let each group begin with the holders that have the least to send so far; large tensors go first."""
    sent = np.zeros(world, dtype=np.int64)
    for group in sorted(groups, key=lambda group: -group.moves.most[1] * group.wire.itemsize):
        moves = group.moves
        rest = len(group.members) % moves.replicas
        if rest:
            by_holder = np.bincount(moves.number, sent[group.source.devices], moves.replicas)
            sums = np.concatenate([[0], by_holder, by_holder]).cumsum()
            group.first = int(np.argmin(sums[rest : rest + moves.replicas] - sums[: moves.replicas]))
        sent[group.source.devices] += moves.sent_in(group.first, len(group.members)) * group.wire.itemsize
