"""Ways on which devices send to few hosts, each much at once.

Where hosts exchange with hosts, a device sends to every host that needs something of what it holds.
So the devices of a host first share out what leaves by where it goes: a digit inside hosts cuts what one between hosts
is to cut, and then what that one did cut, so that these two change places, which takes one message.
What arrives is shared out by where it came from, and put in place inside hosts.

By hand, 4 hosts `h` of 2 devices `g`, rows by `h` and columns wanted by `h`: every device would send to three hosts.
Where each has the columns of two hosts, it sends to these, and there to the device that takes the rows of two hosts.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(h=4, g=2)
>>> reshard = Reshard.of(Sharding.of(mesh, "h", None), Sharding.of(mesh, None, "h"), (8, 8))
>>> [middle.text() for middle in to_few_hosts(reshard, 2)]
['[{"h"}, {"g"}]', '[{"g"}, {"h"}]']
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from reshard.digits import Digit
from reshard.planner.tensor_digits import common_digits, share_out
from reshard.problem import Reshard
from reshard.sharding import Sharding


def to_few_hosts(reshard: Reshard, boundary: int) -> tuple[Sharding, ...]:
    """The middle that hosts leave from and the one that they arrive in, less what is an end; nothing without any.

    Args:
        reshard: on one mesh of consecutive devices, nothing partial.
        boundary: devices per host.

    Raises:
        ReshardError: where digits have no names, or dims no such deal.
    """
    mesh = reshard.source.mesh
    common = common_digits(reshard, [boundary, *(part.stride for part in mesh.digits.primes())])
    if common is None or any(digit.stride < boundary < digit.end for digit in common.of_positions):
        return ()
    inside = [digit for digit in common.of_positions if digit.stride < boundary]
    between = [digit for digit in common.of_positions if digit.stride >= boundary]
    share_out(inside, common.by_dim)
    before, after, shared = map(common.numbers, ("source", "target", "shared"))
    changing = dict(_changing_places(before, after, between, inside))
    if not changing:
        return ()
    leaving, arriving = ({digit: cut for digit, cut in end.items() if digit in between} for end in (before, after))
    leaving |= {inner: after[outer] for inner, outer in changing.items()}
    arriving |= {inner: before[outer] for inner, outer in changing.items()}
    taken = {*leaving.values(), *arriving.values()}
    for inner in inside:  # the others cut what does not cross, all alike
        cuts = [end[inner] for end in (before, after, shared) if inner in end and end[inner] not in taken]
        if inner not in changing and cuts:
            leaving[inner] = arriving[inner] = cuts[0]
            taken.add(cuts[0])
    middles = (common.sharding(mesh, cutting) for cutting in (leaving, arriving))
    return tuple([middle for middle in middles if middle not in (reshard.source, reshard.target)])


def _changing_places(
    before: Mapping[Digit, int], after: Mapping[Digit, int], between: Sequence[Digit], inside: Sequence[Digit]
) -> Iterator[tuple[Digit, Digit]]:
    """Digits inside hosts, each with one between hosts whose place it takes.

    That one cuts at both ends, and none between hosts what it cuts at the other.
    Those come first that cut already what they are to cut.
    """
    held, wanted = ({end.get(digit) for digit in between} for end in (before, after))
    both = [digit for digit in between if digit in before and digit in after]
    exchanged = [digit for digit in both if after[digit] not in held and before[digit] not in wanted]
    alike = [pair for pair in product(inside, exchanged) if pair[0].size == pair[1].size]
    alike.sort(key=lambda pair: (before.get(pair[0]) != after[pair[1]]) + (after.get(pair[0]) != before[pair[1]]))
    settled = set[Digit]()
    for pair in alike:
        if settled.isdisjoint(pair):
            settled.update(pair)
            yield pair
