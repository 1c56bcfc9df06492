"""What the script of a plan's page reads: every piece of every round, in a form that stays small.

A box is a tuple of numbers of intervals, for a dim has few of them; pieces are rows of round, sender, receiver and
box, packed as columns.
Where pieces are too many, they are sent for some devices and of the others only how many bytes each receives.

By hand, x=2, y=4, 8 x 8 from `[{"y"}, {}]` to `[{"x"}, {"y"}]`: 8 devices times 2 rounds.

>>> from reshard.mesh import Mesh
>>> from reshard.planner import plan
>>> mesh = Mesh.of(x=2, y=4)
>>> data = player_data(plan(Sharding.of(mesh, "y", None), Sharding.of(mesh, "x", "y"), (8, 8)))
>>> data["count"], data["moves"][0]["pieces"]["count"], data["intervals"][0][:3]
(8, 16, [(0, 2), (2, 4), (4, 6)])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reshard.box import Box
from reshard.digits import Positions
from reshard.drawing.held_tiles import columns_for, inner_cuts
from reshard.drawing.packing import pack
from reshard.drawing.tensor_frame import GAP, TensorFrame, content_cells, content_colours
from reshard.errors import ReshardError
from reshard.exchange import Exchange, Piece, schedule
from reshard.mesh import ENUMERABLE, Mesh
from reshard.network import Network
from reshard.sharding import Sharding
from reshard.steps import Step

if TYPE_CHECKING:
    from reshard.plans.plan import Plan

MOST_PIECES = 2**18
"""Of more, only those of some devices are sent."""
SAMPLE = 32
"""How many devices."""
MOST_COLOURED = 2**17
"""The most pieces that are put into rounds where their exchange has none."""

DevicesByTile = Mapping[tuple[Box, ...], Sequence[int]]


class PieceRows(NamedTuple):
    """The pieces of an exchange, in columns."""

    rounds: Positions
    senders: Positions
    """Places among the devices of the plan."""
    receivers: Positions
    starts: Positions
    """Per dim and piece."""
    stops: Positions


class _Intervals:
    """The intervals of every dim, numbered as they come."""

    def __init__(self, ndim: int) -> None:
        self.numbers: list[dict[tuple[int, int], int]] = [{} for _ in range(ndim)]

    def of(self, dim: int, interval: tuple[int, int]) -> int:
        return self.numbers[dim].setdefault(interval, len(self.numbers[dim]))

    def columns(self, rows: PieceRows) -> list[Positions]:
        columns = []
        for dim in range(len(self.numbers)):
            pairs, which = np.unique(np.stack([rows.starts[dim], rows.stops[dim]]), axis=1, return_inverse=True)
            ids = np.array([self.of(dim, (start, stop)) for start, stop in pairs.T.tolist()], dtype=np.int64)
            columns.append(ids[which.reshape(-1)] if len(ids) else which.reshape(-1))
        return columns


def player_data(plan: Plan) -> dict[str, Any]:
    """The data of a plan's page."""
    devices = np.array(plan.devices, dtype=np.int64)
    moves = [(number, step, move) for number, step in enumerate(plan.steps) for move in step.moves]
    sampled = None
    if sum(_pieces(move.exchange) for _, _, move in moves) > MOST_PIECES:
        sampled = np.unique(np.linspace(0, len(devices) - 1, SAMPLE).astype(np.int64))
    ends = [plan.source.tiles(plan.shape), *(step.after.tiles(plan.shape) for step in plan.steps)]
    intervals = _Intervals(len(plan.shape))
    boxes = [box for tiles in ends for held in tiles for box in held]
    tiles_by_number = [
        [[[intervals.of(dim, ends) for dim, ends in enumerate(box)] for box in held] for held in tiles]
        for tiles in ends
    ]
    pieces = []
    for number, step, move in moves:
        rows = _rows(move.exchange, devices, sampled)
        columns = intervals.columns(rows)
        record = {
            "step": number, "kind": step.kind, "reduction": move.reduction, "classes": move.classes,
            "hops": move.exchange.hops,
        }  # fmt: skip
        pieces.append(record | {"pieces": pack([rows.rounds, rows.senders, rows.receivers, *columns])})
    drawn = [[*numbers] for numbers in intervals.numbers]
    cuts = [sorted({end for pair in pairs for end in pair}) for pairs in drawn]
    frame = TensorFrame.of(plan.shape, cuts)
    contents = content_cells(plan.shape, inner_cuts((box for held in ends[0] for box in held), plan.shape))
    received, unit = _received(plan.steps, devices)
    return {
        "devices": None if np.array_equal(devices, np.arange(len(devices))) else devices.tolist(),
        "count": len(devices),
        "itemsize": plan.dtype.itemsize,
        "steps": [step.kind for step in plan.steps],
        "frame": {
            "shape": plan.shape, "across": frame.across, "down": frame.down, "layers": frame.layers,
            "aspect": frame.aspect(),
        },
        "gap": GAP,
        "contents": contents,
        "colours": content_colours(contents),
        "intervals": drawn,
        "tiles": tiles_by_number,
        "tileOf": pack([_tile_numbers(tiles, devices) for tiles in ends]),
        "moves": pieces,
        "received": pack(received),
        "unit": unit,
        "sampled": None if sampled is None else sampled.tolist(),
        "blocks": _blocks(plan, devices),
        "hosts": hosts_of(plan.options.network, devices),
        "ends": len(boxes),
    }  # fmt: skip


def _pieces(exchange: Exchange) -> int:
    """About how many pieces there are, without listing them."""
    try:
        return exchange.target.mesh.size * max(exchange.rounds, 1)
    except ReshardError:
        return ENUMERABLE


def _rows(exchange: Exchange, devices: Positions, sampled: Positions | None) -> PieceRows:
    """The pieces of an exchange: of all devices, or of some."""
    if sampled is not None:
        return _rows_of(exchange, devices, devices[sampled].tolist())
    table = exchange.table()
    senders = np.searchsorted(devices, exchange.source.mesh.device_array[table.senders])
    receivers = np.searchsorted(devices, exchange.target.mesh.device_array[table.receivers])
    rows = PieceRows(table.rounds, senders, receivers, table.starts, table.stops)
    if len(senders) and not table.rounds.any():
        rows = rows._replace(rounds=_coloured(rows))
    order = np.lexsort((rows.receivers, rows.rounds))
    return PieceRows(
        rows.rounds[order], senders[order], receivers[order], table.starts[:, order], table.stops[:, order]
    )


def _coloured(rows: PieceRows) -> Positions:
    """Rounds for pieces that have none: no device sends or receives two pieces in one."""
    travels = np.flatnonzero(rows.senders != rows.receivers)
    rounds = np.zeros_like(rows.senders)
    if not 0 < len(travels) <= MOST_COLOURED:
        return rounds
    row_of = {}
    pieces = []
    for row in travels.tolist():
        ends = zip(rows.starts[:, row].tolist(), rows.stops[:, row].tolist(), strict=True)
        piece = Piece(int(rows.senders[row]), int(rows.receivers[row]), Box(list(ends)), 0)
        row_of[piece] = row
        pieces.append(piece)
    for number, together in enumerate(schedule(pieces)):
        for piece in together:
            rounds[row_of[piece]] = number
    return rounds


def _rows_of(exchange: Exchange, devices: Positions, chosen: Sequence[int]) -> PieceRows:
    """The pieces that some devices receive and send."""
    pieces: set[Piece] = set()
    for device in chosen:
        try:
            if device in exchange.source.mesh or device in exchange.target.mesh:
                pieces.update(exchange.taken(device), exchange.outgoing(device))
        except ReshardError:  # too many even of one device
            continue
    listed = sorted(pieces, key=lambda piece: (piece.round, piece.receiver, piece.sender, piece.box))
    ends = np.array([piece.box for piece in listed], dtype=np.int64).reshape(len(listed), -1, 2)
    columns = np.array([[piece.round, piece.sender, piece.receiver] for piece in listed], dtype=np.int64).reshape(-1, 3)
    rounds, senders, receivers = columns.T
    starts, stops = ends.transpose(2, 1, 0)
    return PieceRows(rounds, np.searchsorted(devices, senders), np.searchsorted(devices, receivers), starts, stops)


def _tile_numbers(tiles: DevicesByTile, devices: Positions) -> Positions:
    """Per device the number of its tile, or -1."""
    numbers = np.full(len(devices), -1, dtype=np.int64)
    for number, holders in enumerate(tiles.values()):
        numbers[np.searchsorted(devices, np.array(holders, dtype=np.int64))] = number
    return numbers


def received_by_step(steps: Sequence[Step], devices: Positions) -> list[Positions]:
    """Per step, the bytes that each device receives."""
    columns = []
    for step in steps:
        column = np.zeros(len(devices), dtype=np.int64)
        column[np.searchsorted(devices, step.after.mesh.device_array)] = step.all_received_bytes()
        columns.append(column)
    return columns


def _received(steps: Sequence[Step], devices: Positions) -> tuple[list[Positions], int]:
    """The same in units that fit into 31 bits, exact where one unit divides all."""
    columns = received_by_step(steps, devices)
    if not columns:
        return [np.zeros(len(devices), dtype=np.int64)], 1
    unit = max(int(np.gcd.reduce(np.concatenate(columns))), 1)
    while max(int(column.max(initial=0)) for column in columns) // unit >= 2**30:
        unit *= 2
    return [column // unit for column in columns], unit


def _blocks(plan: Plan, devices: Positions) -> list[dict[str, Any]]:
    """The meshes as they are drawn: that of the source, and of the target's the devices that are not in it."""
    blocks = [_block(plan.source, "the mesh", devices, set())]
    known = set(plan.source.mesh.device_array.tolist())
    if not known.issuperset(plan.target.mesh.device_array.tolist()):
        blocks[0]["title"] = f"devices of the source, {_axes_text(plan.source.mesh)}"
        blocks.append(_block(plan.target, "devices of the target", devices, known))
    return blocks


def _block(sharding: Sharding, title: str, devices: Positions, known: set[int]) -> dict[str, Any]:
    mesh = sharding.mesh
    held = mesh.device_array
    places = [
        -1 if device in known else place
        for device, place in zip(held.tolist(), np.searchsorted(devices, held).tolist(), strict=True)
    ]
    columns = columns_for([size for _, size in mesh.axes], mesh.size)
    return {"title": f"{title}, {_axes_text(mesh)}", "columns": columns, "places": places}


def _axes_text(mesh: Mesh) -> str:
    return " x ".join(f"{name}={size}" for name, size in mesh.axes) or "one device"


def host_level(network: Network | None) -> int | None:
    """The level at which links change for the first time, beyond which is another host; None where they do not."""
    if network is None:
        return None
    first, *others = network.levels or (None,)
    changes = (
        n
        for n, level in enumerate(others, 1)
        if first and (level.link, level.bandwidth) != (first.link, first.bandwidth)
    )
    return next(changes, None)


def hosts_of(network: Network | None, devices: Positions) -> list[int] | None:
    """Per device the number of its host; None where a network does not tell hosts apart."""
    level = host_level(network)
    if network is None or level is None:
        return None
    hosts: list[int] = network.hosts_of(level, devices).tolist()
    return hosts
