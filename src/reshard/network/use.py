"""What something takes on a network: how long, and what of it holds links.

A step takes turns, one after the other, each a chain of flows: messages that are under way at once.
What a flow waits, and what its hops take beside its bytes, leaves links to others.

By hand, of two turns the second is two flows of 1 + 2 s:

>>> flow = LinkFlow(wait_s=1.0, least_s=0.5, busy=(2.0, 0.0), messages=(1.0, 0.0))
>>> [seconds_of_turn(turn) for turn in ((flow,), (flow, flow))]
[3.0, 6.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from reshard.network.networks import Network


class LinkFlow(NamedTuple):
    """Messages that are under way at once."""

    wait_s: float
    """Seconds until bytes flow: the start of a step, and latencies of messages through switches."""
    least_s: float
    """Seconds that it takes at the least from then on: the hops of what goes farthest, or bytes on links that others
    leave idle."""
    busy: tuple[float, ...]
    """Per level the seconds that bytes take on its busiest link or port, of each that is told apart."""
    messages: tuple[float, ...]
    """How many share that link or port, each with as much of it as any other; larger ones are counted, smaller ones
    for the part that they are of these."""

    @property
    def seconds(self) -> float:
        """What it takes by itself."""
        return self.wait_s + max(self.least_s, *self.busy)


LinkTurn = tuple[LinkFlow, ...]
"""Flows one after the other; a part waits for the one before it to be through with all of them."""


def seconds_of_turn(turn: LinkTurn) -> float:
    """What a turn takes by itself."""
    return sum([flow.seconds for flow in turn])


def turns_of_hops(hops: Sequence[LinkFlow], together: Sequence[float]) -> list[LinkTurn]:
    """A turn for each hop, which leaves its links idle where that of all hops together is not the fullest of its own.

    Args:
        hops: what each does by itself.
        together: per place, the seconds of the link or port that is busiest in all hops.

    By hand, two hops of 2 s, each on links of its own but for a second:

    >>> turns_of_hops([LinkFlow(0.0, 1.0, (2.0,), (4.0,))] * 2, [3.0])[0]
    (LinkFlow(wait_s=0.0, least_s=2.0, busy=(1.5,), messages=(3.0,)),)
    """
    in_all = map(sum, zip(*(hop.busy for hop in hops), strict=True))
    parts = [busiest / added if added else 0.0 for busiest, added in zip(together, in_all, strict=True)]
    return [
        (
            LinkFlow(
                hop.wait_s,
                hop.seconds - hop.wait_s,
                tuple(map(mul, hop.busy, parts)),
                tuple(map(mul, hop.messages, parts)),
            ),
        )
        for hop in hops
    ]


class Use(NamedTuple):
    """How long something takes, and for how much of it each level is busy, or each link of a line."""

    seconds: float
    busy: tuple[float, ...]
    """Per level the seconds of its busiest link or port, of each that is told apart (`Level.places`), with the
    latencies; last those in which steps start. In all of them those in which a device copies, and neither sends nor
    starts anything."""
    turns: tuple[LinkTurn, ...]
    """What it does one after the other, latencies told apart."""

    @classmethod
    def of_nothing(cls, network: Network) -> Use:
        """That of what sends nothing."""
        return cls(0.0, (0.0,) * (network.places + 1), ())

    @classmethod
    def started(cls, seconds: float, busy: Sequence[float], turns: Sequence[LinkTurn], network: Network) -> Use:
        """That of a step of these turns, once it has started.

        Args:
            seconds: of all turns.
            busy: as the field, without starts.
            turns: at least one.
            network: that says what starts take.
        """
        launch_s = network.launch_s
        if launch_s:
            first, *flows = turns[0]
            begun = LinkFlow(first.wait_s + launch_s, first.least_s, first.busy, first.messages)
            turns = [(begun, *flows), *turns[1:]]
        return cls(seconds + launch_s, (*busy, launch_s), tuple(turns))

    def after_alone(self, alone_s: float) -> Use:
        """That of it after so many seconds in which a device does nothing else.

        By hand, 1 s, then 3 s of which a link is busy for 2:

        >>> Use(3.0, (2.0, 0.0), ((LinkFlow(1.0, 0.0, (2.0,), (1.0,)),),)).after_alone(1.0)[:2]
        (4.0, (3.0, 1.0))
        """
        places = len(self.busy) - 1
        alone = LinkFlow(0.0, 0.0, (alone_s,) * places, (1.0,) * places)
        first, *others = self.turns or ((),)
        return Use(self.seconds + alone_s, tuple([busy + alone_s for busy in self.busy]), ((alone, *first), *others))

    def times(self, count: int) -> Use:
        """So many of it, one after another."""
        return Use(self.seconds * count, tuple([busy * count for busy in self.busy]), self.turns * count)

    @classmethod
    def together(cls, uses: Sequence[Use], network: Network) -> Use:
        """One after another."""
        if len(uses) == 1:
            return uses[0]
        if not uses:
            return cls.of_nothing(network)
        busy = map(sum, zip(*[use.busy for use in uses], strict=True))
        turns = tuple([turn for use in uses for turn in use.turns])
        return cls(sum([use.seconds for use in uses]), tuple(busy), turns)
