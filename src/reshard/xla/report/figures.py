"""What a reshard costs by the plan, beside what XLA's collectives were seen to move."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.notation import to_partition_spec
from reshard.planner import plan
from reshard.plans import Plan
from reshard.sharding import Sharding, with_mesh
from reshard.xla.partitioner import explain

COUNTED, WARNED, PREDICTED = "collectives", "warning", "branch"
"""How the bytes that XLA moves are known: counted from its collectives; its warning says that it gathers the whole;
its partitioner's rules say so."""


WORTH = 1.05
"""More than so many times its bound a reshard must receive to be told of."""
BACKWARD = "transpose("
"""What the names of operations hold that a derivative has made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSite:
    """Where a text tells of something that moves data, and what is seen of it there."""

    origin: str
    """`warning`, `run` or `chain` of collectives, `constraint`, `operand` or `result`."""
    text: str
    """The file where it stands."""
    module: str = ""
    line: int
    name: str
    """Of the instruction."""
    place: str = ""
    """`file:line` in the program; nothing where the text does not tell."""
    op_name: str = ""
    executions: int = 1
    unknown: str = ""
    """Why it may run more often or not at all; nothing where it does not."""
    collectives: tuple[str, ...] = ()
    """The instructions that were counted."""
    received_bytes: int | None = None
    """By the busiest device in one execution, through what XLA does; None where that is not known."""
    why: str = ""
    """Why it cannot be said from where to where it moves data; nothing where it can."""

    def as_dict(self) -> dict[str, Any]:
        """It for programs."""
        names = ("origin", "text", "module", "line", "name", "place", "executions", "received_bytes")
        record = {name: getattr(self, name) for name in names} | {"collectives": list(self.collectives)}
        return record | ({"why": self.why} if self.why else {})

    def reshard(
        self, source: Sharding, target: Sharding, shape: tuple[int, ...] | None, dtype: DType | None, **more: Any
    ) -> ReportedReshard:
        """A reshard that is there."""
        more |= {"source": source, "target": target, "shape": shape, "dtype": dtype}
        return ReportedReshard(**{field.name: getattr(self, field.name) for field in fields(OpSite)}, **more)

    def unrecognised(self, why: str) -> OpSite:
        """That it cannot be said what is there."""
        return OpSite(**{field.name: getattr(self, field.name) for field in fields(OpSite)} | {"why": why})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedReshard(OpSite):
    """One reshard, as a warning, a chain of collectives or a text before partitioning tells it."""

    source: Sharding
    target: Sharding
    shape: tuple[int, ...] | None
    """Of the whole tensor; None where the text does not tell."""
    dtype: DType | None
    is_rounded: bool = False
    """Whether the shape was found from a tile, so that a dim may be rounded up to whole tiles."""
    known_by: str = ""
    """One of `COUNTED`, `WARNED`, `PREDICTED`; nothing where it is not known what is received."""
    warned: bool = False
    """Whether a warning is about it."""
    times: int = 1
    """How many equal warnings there are."""

    def planned(self) -> Plan | None:
        """The plan for it; None where the shape or the dtype is not told."""
        if self.shape is None or self.dtype is None:
            return None
        return plan(self.source, self.target, self.shape, self.dtype)

    @property
    def lower_bound_bytes(self) -> int | None:
        """The least that the busiest device must receive."""
        plan = self.planned()
        return None if plan is None else plan.lower_bound_bytes

    @property
    def ratio(self) -> float | None:
        """What is received, against the bound; None where one is not known or the bound is 0.

        Where a warning gives no shape, it is that of a shape that all shards divide.
        """
        if self.warned and self.shape is None:
            dividing = replace(self, shape=divisible_shape(self.source, self.target), dtype=DType("byte", 1, "V"))
            bound = dividing.lower_bound_bytes
            return (dividing.full_gather_bytes or 0) / bound if bound else None
        bound = self.lower_bound_bytes
        return self.received_bytes / bound if bound and self.received_bytes is not None else None

    @property
    def is_finding(self) -> bool:
        """Whether something is to be saved: more than a twentieth of what must be received."""
        return self.ratio is not None and self.ratio > WORTH

    @property
    def saved_bytes(self) -> int:
        """What the call saves on the busiest device in all executions; 0 where that is not known."""
        bound = self.lower_bound_bytes
        if bound is None or self.received_bytes is None or not self.is_finding:
            return 0
        return (self.received_bytes - bound) * self.executions

    @property
    def stands(self) -> str:
        """Where the call can stand, or why it cannot."""
        if BACKWARD in self.op_name:
            return "nowhere: it is made by the derivative; reshard what it is the derivative of, or place the program"
        if self.origin == "operand":
            return f"{self.place}, on the operand" if self.place else "on the operand; its line is not told"
        return self.place or "its line is not told"

    @property
    def full_gather_bytes(self) -> int | None:
        """What a device receives that gathers the whole tensor: all but its own tile; None where that is not told."""
        if self.shape is None or self.dtype is None:
            return None
        return (prod(self.shape) - prod(self.source.local_shape(self.shape))) * self.dtype.itemsize

    @property
    def call(self) -> str:
        """The call that does it."""
        return call_text(self.source, self.target)

    def branch(self) -> str:
        """The branch of XLA's partitioner that it falls into; nothing where that cannot be said."""
        try:
            sizes = self.shape or divisible_shape(self.source, self.target)
            return explain(with_mesh(self.source, self.target.mesh), self.target, sizes).branch.name
        except ReshardError:
            return ""

    def as_dict(self) -> dict[str, Any]:
        """It for programs."""
        return OpSite.as_dict(self) | {
            "source": str(self.source),
            "target": str(self.target),
            "shape": None if self.shape is None else list(self.shape),
            "dtype": None if self.dtype is None else self.dtype.name,
            "shape_may_be_rounded_up": self.is_rounded,
            "executions_unknown": self.unknown,
            "op_name": self.op_name,
            "received_bytes_known_by": self.known_by,
            "lower_bound_bytes": self.lower_bound_bytes,
            "ratio": self.ratio,
            "saved_bytes": self.saved_bytes,
            "stands": self.stands,
            "xla_branch": self.branch(),
            "warned": self.warned,
            "warnings": self.times if self.origin == "warning" else 0,
            "call": self.call,
        }


def divisible_shape(source: Sharding, target: Sharding) -> tuple[int, ...]:
    """Sizes that both shardings divide, where the text gives none."""
    return tuple(source.layout.shards(dim) * target.layout.shards(dim) for dim in range(len(source.dims)))


def dtype_of(name: str) -> DType | None:
    """The dtype; None where plans do not know it."""
    try:
        return dtype_named(name)
    except ReshardError:
        return None


def checked(reshard: ReportedReshard) -> OpSite:
    """The reshard itself, or why no plan is to be had for it."""
    try:
        reshard.planned()
        _ = reshard.ratio
    except ReshardError as error:
        return reshard.unrecognised(f"from {reshard.source} to {reshard.target}: {error}")
    return reshard


def first_line(error: ReshardError) -> str:
    """Of what an error says."""
    return str(error).partition("\n")[0]


def call_text(source: Sharding, target: Sharding) -> str:
    """The call that does the reshard inside `jit`.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(a=2, b=4)
    >>> call_text(Sharding.of(mesh, "a", "b"), Sharding.of(mesh, ("a", "b"), None))
    "rs.jax.reshard(x, P(('a', 'b'), None), source=P('a', 'b'))"
    """
    specs = [spec_text(sharding) for sharding in (target, source)]
    if None in specs or source.mesh != target.mesh:
        specs = [f"rs.parse_sharding('{sharding}')" for sharding in (target, source)]
    return f"rs.jax.reshard(x, {specs[0]}, source={specs[1]})"


def spec_text(sharding: Sharding) -> str | None:
    """It as a `PartitionSpec`; None where it has sub-axes or lies on one device.

    >>> from reshard.mesh import Mesh
    >>> spec_text(Sharding.of(Mesh.of(x=2, y=2), ("x", "y"), None))
    "P(('x', 'y'), None)"
    """
    try:
        return to_partition_spec(sharding)
    except ReshardError:
        return None
