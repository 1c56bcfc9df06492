"""Ways along lines on which tiles change places one digit of every line at a time, the outermost first.

Tiles that change places along two lines at once meet where the lines do: what goes along one and then the other passes
few devices, and the links there carry most.
Halves of lines change places first, by links around the middle, and then what lies in each half, by the others; in
parts, one behind the other, both go on at once.

By hand, 4 x 4 devices on lines, where `x` and `y` change places: at once the fullest link carries 1.5 tiles; of the two
steps the first puts a tile on the links in the middle and half of one on those beside it, and the second half of one on
these.

>>> from reshard.mesh import Mesh
>>> from reshard.network import Level
>>> mesh, network = Mesh.of(x=4, y=4), Network((Level(1, 4, "line", 1, 0), Level(4, 4, "line", 1, 0)))
>>> ends = Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "y", "x")
>>> [middle.text() for middle in digit_by_digit(Reshard.of(*ends, (16, 16)), network)]
['[{"y":(1)2, "x":(2)2}, {"x":(1)2, "y":(2)2}]']
"""

from __future__ import annotations

from reshard.digits import Digits
from reshard.network import Network
from reshard.planner.tensor_digits import common_digits
from reshard.problem import Reshard
from reshard.sharding import Sharding


def digit_by_digit(reshard: Reshard, network: Network) -> list[Sharding]:
    """What such a way passes; nothing where no tiles change places along several lines.

    Args:
        reshard: on all devices of the network.
        network: of any levels.

    Raises:
        ReshardError: where digits have no names, or dims no such deal.
    """
    lines = [level for level in network.levels if level.link == "line"]
    if len(lines) < 2 or reshard.source.mesh.size != network.size:
        return []
    if any(tiling.layout.free for tiling in reshard.tilings):  # some tiles stand several times
        return []
    ranks = {part: rank for level in network.levels for rank, part in enumerate(Digits((level.digit,)).primes())}
    common = common_digits(reshard, [part.stride for part in ranks])
    if common is None or not ranks.keys() >= set(common.of_positions):
        return []
    before, after = (list(map(common.numbers(side).get, common.of_positions)) for side in ("source", "target"))
    if before == after:
        return []
    middles = []
    for count in range(1, max(ranks.values()) + 1):
        changed = [ranks[digit] < count for digit in common.of_positions]
        roles = [new if is_new else old for is_new, new, old in zip(changed, after, before, strict=True)]
        if len(set(roles)) < len(roles):
            return []
        cutting = {digit: role for digit, role in zip(common.of_positions, roles, strict=True) if role is not None}
        middles.append(common.sharding(reshard.source.mesh, cutting))
    return middles
