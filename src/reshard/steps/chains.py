"""The shortest chains of steps between two shardings: none, one, or one that moves and one that makes unreduced.

No step both moves values and makes them unreduced, so where the target is unreduced along axes on which the
source is not, the chain has a middle: the target with those axes whole again.
They are then replicated, or, where the source cuts a dim by them, they go on cutting that dim, since what lies
in parts may become unreduced as it lies.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=2)
>>> source, target = Sharding.of(mesh, "x"), Sharding.of(mesh, None, unreduced="x")
>>> [(step.kind, step.received_bytes) for step in shortest_chain(Reshard.of(source, target, (8,)))]
[('ToUnreduced', 0)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from reshard.axis import Axis, aligned, merged
from reshard.errors import ReshardError
from reshard.problem import Reshard, becomes_unreduced, stays_unreduced
from reshard.sharding import Sharding
from reshard.steps.step import Step, step_of

Chain = tuple[Step, ...]


class Share(NamedTuple):
    """Equal parts of a tensor that go through the same steps, beside others that go through other steps."""

    steps: Chain
    parts: int
    """How many."""


class Route(NamedTuple):
    """One way from source to target."""

    middles: tuple[Sharding, ...] = ()
    """What it passes between the ends."""
    near: int = 0
    """That of `Step`."""
    steps: Chain | None = None
    """The chain itself where no points say it; then nothing else is said."""
    along: bool = False
    """Whether steps go along rings, from neighbour to neighbour, where that loads these less."""
    keeps: bool = False
    """Whether devices keep their first tiles meanwhile, and nothing of these is sent to them along rings again."""

    def chain(self, reshard: Reshard) -> Chain:
        """Its steps.

        Raises:
            ReshardError: as `shortest_chain`.
        """
        return chain_through(reshard, *self.middles, near=self.near) if self.steps is None else self.steps


def shortest_chain(reshard: Reshard, near: int = 0) -> Chain:
    """The chain with the fewest steps, and of these the one that receives least.

    `near` is that of `Step`.

    Raises:
        ReshardError: `no-plan` where parts would become partial under avg; and as `Step`.
    """
    before, after = reshard.source, reshard.target
    staying, becoming = stays_unreduced(before, after), becomes_unreduced(before, after)
    middle = _without_windows(reshard, moves_classes=staying != before.unreduced or bool(becoming))
    if middle is not None:
        legs = replace(reshard, target=middle), replace(reshard, source=middle)
        return tuple(
            step for leg in legs if leg.source != leg.target for step in shortest_chain(leg, near) or (step_of(leg),)
        )
    if not becoming:
        return _single(reshard, near)
    whole = replace(after, unreduced=staying)
    chains = [_by_way_of(whole, reshard, near)]
    middle = _cut_as_before(before, whole, becoming)
    if middle is not None:
        if after.reduction == "avg":
            raise ReshardError(
                "no-plan",
                f"{reshard} would make parts partial under avg; only whole values can be",
            )
        try:
            chains.append(_by_way_of(middle, reshard, near))
        except ReshardError as error:
            if error.code != "bad-step":
                raise
    return min(chains, key=lambda steps: (sum(step.received_bytes for step in steps), len(steps)))


def chain_through(reshard: Reshard, *middles: Sharding, near: int | Sequence[int] = 0) -> Chain:
    """The shortest chains from point to point, joined; points that are one placement with the one before fall out.

    Args:
        reshard: what is to be moved.
        middles: the points between its ends.
        near: that of `Step`, of all legs or of each.

    Raises:
        ReshardError: as `shortest_chain`.
    """
    strides = [near] * (len(middles) + 1) if isinstance(near, int) else near
    if not middles:
        return shortest_chain(reshard, strides[0])
    steps: list[Step] = []
    reached = reshard.source
    for point, stride in zip((*middles, reshard.target), strides, strict=True):
        steps += shortest_chain(replace(reshard, source=reached, target=point), stride)
        reached = steps[-1].after if steps else reshard.source
    if steps and reached != reshard.target:  # one placement under another name: the last step ends in that asked for
        steps[-1:] = shortest_chain(replace(reshard, source=steps[-1].before), steps[-1].near)
    return tuple(steps)


def chains_of(reshard: Reshard, routes: Iterable[Route]) -> list[Chain]:
    """The chains of routes, each once; a detour that cannot be made is none.

    Raises:
        ReshardError: where the first cannot be made.
    """
    chains: dict[Chain, None] = {}
    for route in dict.fromkeys(routes):
        try:
            chains[route.chain(reshard)] = None
        except ReshardError:
            if not chains:
                raise
    return list(chains)


def reshard_of_chain(steps: Chain) -> Reshard:
    """What a chain of at least one step does.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2)
    >>> rows, whole = Sharding.of(mesh, "x"), Sharding.of(mesh, None)
    >>> chain = chain_through(Reshard.of(rows, rows, (8,)), whole)
    >>> [step.kind for step in chain], reshard_of_chain(chain).target == rows
    (['AllGather', 'Slice'], True)
    """
    return replace(steps[0].reshard, target=steps[-1].after)


def _without_windows(reshard: Reshard, *, moves_classes: bool) -> Sharding | None:
    """What windows must be summed into, or filled from, before anything else; None where one step does it all."""
    before, after = reshard.source, reshard.target
    if not (before.has_windows or after.has_windows) or before == after:
        return None
    if before.is_summed:
        same_copies = before.layout.free == after.layout.free and before.mesh.same_order_as(after.mesh)
        return before.owned() if after.has_windows or moves_classes or not same_copies else None
    return after.owned() if after.has_windows and moves_classes else None


def _by_way_of(middle: Sharding, reshard: Reshard, near: int) -> Chain:
    before = reshard.source
    to_middle = replace(reshard, target=middle)
    first = _single(to_middle, near)
    if not first and not to_middle.is_one_placement:
        first = (step_of(to_middle),)  # one placement, but the last step must know its digits
    return (*first, step_of(replace(reshard, source=middle if first else before)))


def _cut_as_before(before: Sharding, whole: Sharding, becoming: tuple[Axis, ...]) -> Sharding | None:
    """`whole`, its dims cut further by the parts of `becoming` that cut them in `before`; None without such."""
    if before.mesh != whole.mesh or before.is_woven or whole.is_woven:
        return None
    sizes = whole.mesh.sizes
    cutting = [axis for dim in before.dims for axis in dim.axes]
    pieces_becoming, pieces_cutting = aligned(becoming, cutting, sizes)
    dims = list(whole.dims)
    for number, dim in enumerate(before.dims):
        ours = [
            piece for axis in dim.axes for piece in pieces_cutting if axis.contains(piece) and piece in pieces_becoming
        ]
        dims[number] = replace(dims[number], axes=merged([*dims[number].axes, *ours], sizes))
    return None if tuple(dims) == whole.dims else replace(whole, dims=tuple(dims), replicated=())


def _single(reshard: Reshard, near: int) -> Chain:
    """The one step, or none where both are one placement."""
    before, after, shape = reshard.source, reshard.target, reshard.shape
    if reshard.is_one_placement:
        return ()
    step = step_of(reshard, near)
    # partial values that stay so may count their classes in another order, and still lie where they are wanted
    unmoved = step.kind == "Slice" or (after.unreduced and before.mesh.device_ids != after.mesh.device_ids)
    return () if unmoved and before.is_equivalent_to(after, shape) else (step,)


def keeping_nothing(step: Step) -> Step:
    """The step without the tiles that devices would have from before: of a way that begins with other tiles."""
    return step if step.kept is None else step_of(step.reshard, step.near, step.ring)
