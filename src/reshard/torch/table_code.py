"""`code_of`: a plan as a function of torch alone, to paste where this library is not.

The text is a table of what every rank copies, sends and receives, and the few lines that go through it.
A plan under a memory limit has its messages turn by turn, any other all messages of an exchange in one turn.

By hand, 4 elements from halves to whole on 2 ranks: rank 0 copies its part to [0, 2) and sends it to rank 1, from which
it receives what goes to [2, 4).

>>> from reshard.mesh import Mesh
>>> from reshard.planner import plan
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> text = code_of(plan(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (4,)))
>>> for line in text.splitlines():
...     if line.startswith("    0:"):
...         print(line)
    0: ((2,), (4,), [([(0, 2)], [(0, 2)])], [([(1, [(0, 2)])], [(1, [(2, 4)])])], 0),
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from reshard.checks import expect
from reshard.errors import ReshardError
from reshard.plans import Plan
from reshard.plans.in_parts import taken_whole
from reshard.steps import Move, Step
from reshard.torch.exchange import COMBINE, LocalExchange, local_exchange
from reshard.torch.rank_messages import Message, TilePart
from reshard.torch.turns import check_limit, turnwise

MOST = 100_000
"""Messages and copies of all ranks together that are written out."""

Corner = list[tuple[int, int]]
"""Where something lies in a tile, an interval per dim."""
Source = Corner | tuple[tuple[int, int], ...]
"""Where something lies in the tile before; as a tuple in the first tile."""
PeerParts = list[tuple[int, Source | int | tuple[int, ...]]]
"""Peers, with what goes to them or comes from them: a part of a tile; or what only passes, of which the shape is said
where it comes, and where anything is handed on which of what came in the turn before it is."""


class Row(NamedTuple):
    """What a rank does in an exchange."""

    before: tuple[int, ...]
    """The shape of its tile."""
    after: tuple[int, ...]
    copies: list[tuple[Corner, Source]]
    """To where, and from where."""
    turns: list[tuple[PeerParts, PeerParts]]
    """What it sends and what it receives, one turn after the other."""
    copied_after: int
    """After how many of what it receives in the first turn it copies what it has itself."""

    @property
    def text(self) -> str:
        """As it stands in the table."""
        return repr(tuple(self))

    @property
    def size(self) -> int:
        """The number of copies and messages."""
        return len(self.copies) + sum(len(side) for turn in self.turns for side in turn)


HEAD = '''"""{what}, as a function of torch alone.

Every rank calls `reshard` with its tile and gets its new one; ranks without a tile hand in an empty one of the dtype.
"""

import torch
import torch.distributed as dist

# Ways from the old tiles to the new, each of exchanges: by rank the shape before and after, copies (to, from), turns
# (sends, receives by peer), after how many of the first receives it copies; how what arrives in one place is combined;
# by what the sum is divided; what stands where nothing arrives. A number is sent for what came so in the turn before;
# what is only handed on comes with its shape. Where a list says a place in the tile before, a tuple says one in the
# first.
WAYS = [
'''

WHOLE = """

def reshard(tile):
    (tile,) = together([moved(tile, WAYS[0])])
    return tile.reshape(SHAPES.get(dist.get_rank(), (0,)))
"""

IN_PARTS = """
# Which way each part of the tensor goes; along this dim every so many elements give each part its share.
WAY_OF_PART, DIM, UNIT = {ways}, {parting.dim}, {parting.unit}
SHARE = UNIT // len(WAY_OF_PART)


def reshard(tile):
    parts = together([moved(cut(tile, part), WAYS[way]) for part, way in enumerate(WAY_OF_PART)])
    shape = SHAPES.get(dist.get_rank(), (0,))
    if 0 in shape:
        return tile.new_empty(shape)
    before, units, after = shape[:DIM], shape[DIM] // UNIT, shape[DIM + 1 :]
    rows = [part.narrow(DIM, 0, units * SHARE).reshape(*before, units, SHARE, *after) for part in parts]
    whole = torch.cat(rows, DIM + 1).reshape(*before, units * UNIT, *after)
    lasts = [part.narrow(DIM, units * SHARE, part.shape[DIM] - units * SHARE) for part in parts]
    return torch.cat([whole, *lasts], DIM)


def cut(tile, part):
    if not tile.numel():
        return tile
    before, (units, rest), after = tile.shape[:DIM], divmod(tile.shape[DIM], UNIT), tile.shape[DIM + 1 :]
    rows = tile.narrow(DIM, 0, units * UNIT).reshape(*before, units, len(WAY_OF_PART), SHARE, *after)
    rows = rows.select(DIM + 1, part).reshape(*before, units * SHARE, *after)
    start, stop = (min(place * SHARE, rest) for place in (part, part + 1))
    return torch.cat([rows, tile.narrow(DIM, units * UNIT + start, stop - start)], DIM)
"""

BODY = """

def together(runs):
    ended = {}
    while len(ended) < len(runs):  # all messages of a turn are under way before any is waited for
        for number, run in enumerate(runs):
            try:
                number in ended or next(run)
            except StopIteration as end:
                ended[number] = end.value
    return [ended[number] for number in range(len(runs))]


def moved(tile, exchanges):
    rank, first = dist.get_rank(), tile
    for rows, combine, divisor, fill in exchanges:
        if rank not in rows:
            yield
            continue
        before, after, copies, turns, copied_after = rows[rank]
        tile = tile.reshape(before)
        out = tile.new_empty(after) if fill is None else tile.new_full(after, fill)
        copied = [(to, read(tile, first, source)) for to, source in copies]
        written = [] if copied_after else put(out, copied, combine, [])
        arrived = []
        for sends, receives in turns:
            sent = [arrived[place] if isinstance(place, int) else packed(tile, first, place) for _, place in sends]
            arrived = [
                out.new_empty(place if isinstance(place, tuple) else at(out, place).shape) for _, place in receives
            ]
            works = [dist.irecv(as_bytes(part), peer) for part, (peer, _) in zip(arrived, receives)]
            works += [dist.isend(as_bytes(part), peer) for part, (peer, _) in zip(sent, sends)]
            yield
            for work in works:
                work.wait()
            came = [(place, part) for part, (_, place) in zip(arrived, receives) if not isinstance(place, tuple)]
            came[copied_after:copied_after] = copied if copied_after else []
            copied_after = 0
            put(out, came, combine, written)
        tile = out if divisor == 1 else out.div_(divisor)
    return tile


def put(out, parts, combine, written):
    for place, part in parts:
        room = at(out, place)
        if combine is None or not any(covers(done, place) for done in written):
            room.copy_(part)
        else:
            combine(room, part, out=room)
        if combine is not None:
            written.append(place)
    return written


def at(tile, place):
    return tile[tuple(slice(start, stop) for start, stop in place)]


def read(tile, first, place):
    return at(first if isinstance(place, tuple) else tile, place)


def packed(tile, first, place):
    return read(tile, first, place).clone(memory_format=torch.contiguous_format)


def covers(done, place):
    return all(low <= start and stop <= high for (low, high), (start, stop) in zip(done, place))


def as_bytes(part):
    return part.reshape(-1).view(torch.uint8)
"""


def code_of(plan: Plan) -> str:
    """The text of a module with a function `reshard(tile)`: what a plan does on every rank, with torch alone.

    It sends and receives in the default process group, eagerly, and checks nothing.
    Parts of the tensor go at once, all shares of the plan among them; where an end goes whole, so does all.

    Args:
        plan: whose devices are global ranks.

    Raises:
        ReshardError: `bad-argument`; `no-plan` where a plan with a memory limit goes along rings; `too-large` where the
            messages are too many to write out.
    """
    check_limit(expect(plan, Plan, "what becomes code"))
    if len(plan.stretches) > 1:
        plan = taken_whole(plan)
    ways, count = [], 0
    distinct = list({id(of_part): of_part for of_part in plan.plans_of_parts}.values())
    for of_part in distinct:
        exchanges = []
        for step in of_part.steps:
            for move in step.transfers:
                rows = _rows(move, step, is_limited=plan.options.memory_limit is not None)
                count += sum(row.size for row in rows.values())
                if count > MOST:
                    raise ReshardError(
                        "too-large", f"{plan.reshard} has more than {MOST} messages and copies to write out"
                    )
                exchanges.append(_exchange_text(move, step, rows))
        ways.append("[\n" + "".join(exchanges) + "],\n")
    shapes = {rank: plan.target.box(rank, plan.shape).shape for rank in plan.target.mesh.devices}
    size = "x".join(map(str, plan.shape)) or "a scalar"
    body = WHOLE
    if plan.parts > 1:
        numbers = {id(of_part): way for way, of_part in enumerate(distinct)}
        way_of_part = [numbers[id(of_part)] for of_part in plan.plans_of_parts]
        body = IN_PARTS.format(ways=way_of_part, parting=plan.parting)
    head = HEAD.format(what=f"{size} of {plan.dtype} from {plan.source.text()} to {plan.target.text()}")
    return "".join([head, *ways, f"]\nSHAPES = {shapes}\n", body, BODY])


def _exchange_text(move: Move, step: Step, rows: dict[int, Row]) -> str:
    """The exchange as it stands in the table."""
    combine = f"torch.{COMBINE[move.reduction].__name__}" if move.reduction else None
    divisor = move.classes if move.reduction == "avg" else 1
    fill = None if move.fill is None else step.dtype.identity(move.fill)
    literal = f"float({str(fill)!r})" if isinstance(fill, float) else repr(fill)
    table = "".join(f"    {rank}: {row.text},\n" for rank, row in rows.items())
    return f"    ({{\n{table}    }}, {combine}, {divisor}, {literal}),\n"


def _rows(move: Move, step: Step, *, is_limited: bool) -> dict[int, Row]:
    """What each rank of a move does."""
    ranks = sorted({*move.exchange.source.mesh.devices, *move.exchange.target.mesh.devices})
    rows: dict[int, Row] = {}
    for rank in ranks:
        exchange = local_exchange(move, rank, step.dtype)
        if is_limited:
            ends = [(turn.send, turn.receive) for turn in turnwise(exchange, move, rank, step.chunks).turns]
            turns = [(_side([send] if send else []), _side([receive] if receive else [])) for send, receive in ends]
        else:
            first = _side(_with_peers(exchange.sends)), _side(_with_peers(exchange.receives))
            turns = [first, *_later_turns(exchange)]
        rows[rank] = Row(
            (0,) if exchange.source_shape is None else exchange.source_shape,
            (0,) if exchange.target_shape is None else exchange.target_shape,
            [(_place(target), _source(source)) for target, source in exchange.copies],
            turns,
            0 if is_limited else sum(len(message.parts) for message in exchange.receives[: exchange.copied_after]),
        )
    return rows


def _later_turns(exchange: LocalExchange) -> Iterator[tuple[PeerParts, PeerParts]]:
    """What is handed on, hop by hop."""
    before = exchange.receives
    for hop in exchange.later:
        firsts = list(accumulate((len(message.parts) for message in before), initial=0))
        sends: PeerParts = [
            (handed.peer, firsts[run.number] + part)
            for handed in hop.sends
            for run in handed.runs
            for part in run.parts
        ]
        yield sends, _side(_with_peers(hop.receives))
        before = hop.receives


def _with_peers(messages: Iterable[Message]) -> list[tuple[int, TilePart]]:
    """The parts of messages."""
    return [(message.peer, part) for message in messages for part in message.parts]


def _side(parts: list[tuple[int, TilePart]]) -> PeerParts:
    return [(peer, part.shape if part.passes else _source(part)) for peer, part in parts]


def _source(part: TilePart) -> Source:
    """Where a part lies, in the tile before or the first one."""
    return tuple(_place(part)) if part.is_kept else _place(part)


def _place(part: TilePart) -> Corner:
    """Where a part lies in its tile; of the whole of it, all."""
    if not part.index:
        return [(0, length) for length in part.shape]
    return [(interval.start, interval.stop) for interval in part.index]
