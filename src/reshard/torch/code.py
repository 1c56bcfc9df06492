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
    0: ((2,), (4,), [([(0, 2)], [(0, 2)])], [([(1, [(0, 2)])], [(1, [(2, 4)])])]),
"""

from __future__ import annotations

from typing import NamedTuple

from reshard.checks import expect
from reshard.errors import ReshardError
from reshard.plans import Plan
from reshard.steps import Move, Step
from reshard.torch.exchange import COMBINE, TilePart, local_exchange
from reshard.torch.turns import turnwise

MOST = 100_000
"""Messages and copies of all ranks together that are written out."""

Corner = list[tuple[int, int]]
"""Where something lies in a tile, an interval per dim."""
PeerParts = list[tuple[int, Corner]]
"""Peers, with what goes to them or comes from them."""


class Row(NamedTuple):
    """What a rank does in an exchange."""

    before: tuple[int, ...]
    """The shape of its tile."""
    after: tuple[int, ...]
    copies: list[tuple[Corner, Corner]]
    """To where, and from where."""
    turns: list[tuple[PeerParts, PeerParts]]
    """What it sends and what it receives, one turn after the other."""

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

# Per exchange: by rank the shape before and after, copies (to, from), turns (sends, receives by peer);
# how what arrives in one place is combined; by what the sum is divided; what stands where nothing arrives.
EXCHANGES = [
'''

BODY = """

def reshard(tile):
    rank = dist.get_rank()
    for rows, combine, divisor, fill in EXCHANGES:
        if rank not in rows:
            continue
        before, after, copies, turns = rows[rank]
        tile = tile.reshape(before)
        out = tile.new_empty(after) if fill is None else tile.new_full(after, fill)
        written = []
        for to, source in copies:
            at(out, to).copy_(at(tile, source))
            written.append(to)
        for sends, receives in turns:
            sent = [at(tile, place).clone(memory_format=torch.contiguous_format) for _, place in sends]
            arrived = [out.new_empty(at(out, place).shape) for _, place in receives]
            works = [dist.irecv(as_bytes(part), peer) for part, (peer, _) in zip(arrived, receives)]
            works += [dist.isend(as_bytes(part), peer) for part, (peer, _) in zip(sent, sends)]
            for work in works:
                work.wait()
            for part, (_, place) in zip(arrived, receives):
                room = at(out, place)
                if combine is None or not any(covers(done, place) for done in written):
                    room.copy_(part)
                else:
                    combine(room, part, out=room)
                if combine is not None:
                    written.append(place)
        tile = out if divisor == 1 else out.div_(divisor)
    return tile.reshape(SHAPES.get(rank, (0,)))


def at(tile, place):
    return tile[tuple(slice(start, stop) for start, stop in place)]


def covers(done, place):
    return all(low <= start and stop <= high for (low, high), (start, stop) in zip(done, place))


def as_bytes(part):
    return part.reshape(-1).view(torch.uint8)
"""


def code_of(plan: Plan) -> str:
    """The text of a module with a function `reshard(tile)`: what a plan does on every rank, with torch alone.

    It sends and receives in the default process group, eagerly, and checks nothing.

    Args:
        plan: whose devices are global ranks.

    Raises:
        ReshardError: `bad-argument`; `too-large` where the messages are too many to write out.
    """
    expect(plan, Plan, "what becomes code")
    is_limited, lines, count = plan.options.memory_limit is not None, [], 0
    for step in plan.steps:
        for move in step.transfers:
            rows = _rows(move, step, is_limited=is_limited)
            count += sum(row.size for row in rows.values())
            if count > MOST:
                raise ReshardError("too-large", f"{plan.reshard} has more than {MOST} messages and copies to write out")
            combine = f"torch.{COMBINE[move.reduction].__name__}" if move.reduction else None
            divisor = move.classes if move.reduction == "avg" else 1
            fill = None if move.fill is None else step.dtype.identity(move.fill)
            literal = f"float({str(fill)!r})" if isinstance(fill, float) else repr(fill)
            table = "\n".join(f"    {rank}: {row.text}," for rank, row in rows.items())
            lines.append(f"    ({{\n{table}\n    }}, {combine}, {divisor}, {literal}),")
    shapes = {rank: plan.target.box(rank, plan.shape).shape for rank in plan.target.mesh.devices}
    size = "x".join(map(str, plan.shape)) or "a scalar"
    head = HEAD.format(what=f"{size} of {plan.dtype} from {plan.source.text()} to {plan.target.text()}")
    return head + "\n".join([*lines, "]", f"SHAPES = {shapes}"]) + "\n" + BODY


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
            sends, receives = (
                [(message.peer, part) for message in messages for part in message.parts]
                for messages in (exchange.sends, exchange.receives)
            )
            turns = [(_side(sends), _side(receives))]
        rows[rank] = Row(
            (0,) if exchange.source_shape is None else exchange.source_shape,
            (0,) if exchange.target_shape is None else exchange.target_shape,
            [(_place(target), _place(source)) for target, source in exchange.copies],
            turns,
        )
    return rows


def _side(parts: list[tuple[int, TilePart]]) -> PeerParts:
    return [(peer, _place(part)) for peer, part in parts]


def _place(part: TilePart) -> Corner:
    """Where a part lies in its tile; of the whole of it, all."""
    if not part.index:
        return [(0, length) for length in part.shape]
    return [(interval.start, interval.stop) for interval in part.index]
