"""Plans of single tensors, shared by all searches of one einsum, and how many elements a move takes at the least.

Planning a move on a large mesh takes milliseconds, what each device lacks microseconds; so orders are compared by
the latter, and only those that are left are planned.
The number of plans is counted: all who plan the same einsum must come to the same end, which a clock would not give.

>>> from reshard.dtypes import dtype_named
>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2)
>>> moves = Moves(dtype_named("float32"))
>>> moves.missing(Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"), (4, 6)).tolist()
[6, 6]
"""

from __future__ import annotations

from reshard.digits import Positions
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.exchange.pieces import Tiling, overlap_elements
from reshard.network import Network
from reshard.planner import plan
from reshard.plans import Plan
from reshard.sharding import Sharding

Move = tuple[Sharding, Sharding, tuple[int, ...]]

ON_NETWORK = 8
"""How many plans without a network take about as long as one on it."""
WITH_SUMS = 3
"""How many plans that only move data take about as long as one that makes sums, on a network."""


class Moves:
    """The planner's plans for one element type on one network, each made once."""

    def __init__(self, dtype: DType, network: Network | None = None) -> None:
        self.dtype = dtype
        self.network = network
        self.refusal: ReshardError | None = None
        """The last one of the planner."""
        self._plans: dict[Move, Plan | None] = {}
        self.work = 0
        """What was done so far, see `_work_of`."""
        self._most: int | None = None
        self._missing: dict[Move, Positions] = {}
        self._tilings: dict[tuple[Sharding, tuple[int, ...]], Tiling] = {}

    def allow(self, budget: int | None) -> None:
        """From now on so much work may be done before the budget is spent; any where it is None."""
        self._most = None if budget is None else self.work + budget

    @property
    def is_spent(self) -> bool:
        """Whether a search should end with what it has."""
        return self._most is not None and self.work >= self._most

    def plan(self, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> Plan | None:
        """The planner's plan; None where it refuses."""
        key = (source, target, shape)
        if key not in self._plans:
            self.work += self._work_of(source, target, shape)
            try:
                self._plans[key] = plan(*key, self.dtype, network=self.network)
            except ReshardError as error:
                self.refusal, self._plans[key] = error, None
        return self._plans[key]

    def _work_of(self, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> int:
        """About how much work a plan is: the dims of its tensor, as each may be cut in more ways, times other ways."""
        work = max(len(shape), 1)
        if self.network is not None:
            work *= ON_NETWORK * (WITH_SUMS if source.unreduced != target.unreduced else 1)
        return work

    def has(self, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> bool:
        """Whether this plan is made."""
        return (source, target, shape) in self._plans

    def missing(self, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> Positions:
        """Per position of the target, the elements of its tile that lie elsewhere; partial values count as values."""
        key = (source, target, shape)
        if key not in self._missing:
            before, after = self._tiling(source, shape), self._tiling(target, shape)
            self._missing[key] = after.all_elements - overlap_elements(before, after)
        return self._missing[key]

    def _tiling(self, sharding: Sharding, shape: tuple[int, ...]) -> Tiling:
        key = (sharding, shape)
        if key not in self._tilings:
            self._tilings[key] = Tiling.of(sharding, shape)
        return self._tilings[key]
