"""The plan of a contraction: operands to the compute layout, local contraction, result to where it is wanted.

>>> from reshard.contraction import einsum
>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(X=4)
>>> a, b = Sharding.of(mesh, None, "X"), Sharding.of(mesh, "X", None)
>>> print(einsum("ij,jk->ik", a, b, shapes=[(8, 64), (64, 8)], target=Sharding.of(mesh, None, None)))
ij,jk->ik float32 on <["X"=4]>
A[I, J_X] · B[J_X, K] → C[I, K]{U_X} → C[I, K]
case 3 on X: both contracted dims are cut alike
<BLANKLINE>
   tensor  step       received  result
C  8 x 8   AllReduce     384 B  C[I, K]
<BLANKLINE>
received 384 B on the busiest device, 1536 B in all; 2048 operations on a device
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reshard.checks import all_of, expect
from reshard.contraction.cases import cases_of
from reshard.contraction.compute_layout import ComputeLayout
from reshard.contraction.einsum_page import einsum_drawing, einsum_page
from reshard.contraction.formula import table
from reshard.contraction.goal import Goal
from reshard.contraction.paths import Path, paths_of
from reshard.contraction.prices import BY_BYTES, Price, busiest, local_flops, moved_by
from reshard.contraction.tasks import Calculation, stages_of
from reshard.drawing.notebooks import mimebundle
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.operations.pattern import Pattern, Term
from reshard.plans import Plan
from reshard.sharding import Sharding
from reshard.tables import bytes_text

SCHEMA = "reshard.einsum/1"
"""Names the form of the JSON text."""


@dataclass(frozen=True)
class EinsumPlan:
    """Reshards of the operands, a contraction on every device, and a reshard of the result.

    Rules, in the order checked:
        broken-chain: every operand's plan ends in its part of the compute layout, and the result's starts there
        not-divisible, bad-argument: those of `ComputeLayout.check`
    """

    pattern: Pattern
    label_sizes: tuple[int, ...]
    """Per label of the pattern, its size."""
    layout: ComputeLayout
    """Which axes cut which label while it is computed."""
    operands: tuple[Plan, ...]
    """Per operand, from where it is to where it is used."""
    output: Plan
    """From the result as it comes out to where it is wanted."""
    inputs: tuple[int | EinsumPlan, ...]
    """Per operand, the number of the tensor that is handed in, or the plan whose result it is."""
    goal: Goal = BY_BYTES
    """What it was made least by."""
    is_proved: bool = True
    """Whether no compute layout that was searched can be cheaper; a search in haste may end before it knows."""

    def __post_init__(self) -> None:
        expect(self.pattern, Pattern, "the pattern of a plan")
        all_of(self.operands, Plan, "the plans of the operands")
        expect(self.output, Plan, "the plan of the result")
        ends = [*(plan.target for plan in self.operands), self.output.source]
        if len(ends) != len(self.pattern.terms) or tuple(ends) != self.layout.shardings:
            raise ReshardError("broken-chain", f"the plans of {self.pattern} do not meet in its compute layout")
        self.layout.check(self.sizes)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def network(self) -> Network | None:
        """On which seconds count."""
        return self.goal.network

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of every label."""
        return dict(zip(self.pattern.labels, self.label_sizes, strict=True))

    @cached_property
    def given(self) -> int:
        """The number of tensors that are handed in."""
        return sum(isinstance(origin, int) for part in self.parts() for origin in part.inputs)

    @cached_property
    def expression(self) -> Pattern:
        """The pattern of the whole, of the tensors that are handed in; `pattern` is that of the last contraction."""
        terms: dict[int, Term] = {}
        for part in self.parts():
            terms |= {
                origin: term
                for origin, term in zip(part.inputs, part.pattern.operands, strict=True)
                if isinstance(origin, int)
            }
        return Pattern(tuple(terms[number] for number in sorted(terms)), self.pattern.output)

    @cached_property
    def expression_sizes(self) -> dict[str, int]:
        """The size of every label of the whole."""
        sizes = {label: size for part in self.parts() for label, size in part.sizes.items()}
        return {label: sizes[label] for label in self.expression.labels}

    @property
    def local_path(self) -> Path:
        """In which order a device contracts its tiles, as pairs of places; see `reshard.contraction.paths`."""
        return paths_of(self.pattern, self.sizes)[0]

    def local_sizes(self, device: int) -> dict[str, int]:
        """Per label, how many of its indices a device has while it computes.

        Raises:
            ReshardError: `unknown-device`.
        """
        sizes = {}
        for label, size in self.sizes.items():
            start, stop = self.layout.interval(label, size, device)
            sizes[label] = stop - start
        return sizes

    @property
    def dtype(self) -> DType:
        """Of the operands and the result."""
        return self.output.dtype

    @property
    def sources(self) -> tuple[Sharding, ...]:
        """Where the operands of this contraction are."""
        return tuple(plan.source for plan in self.operands)

    @property
    def layouts(self) -> tuple[Sharding, ...]:
        """Where the operands are used."""
        return tuple(plan.target for plan in self.operands)

    @property
    def target(self) -> Sharding:
        """Where the result is in the end."""
        return self.output.target

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the operands, and last of the result."""
        return (*(plan.shape for plan in self.operands), self.output.shape)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The reshards of this contraction, the result's last."""
        return (*self.operands, self.output)

    def parts(self) -> Iterator[EinsumPlan]:
        """The contractions in the order in which they are done, this one last."""
        for source in self.inputs:
            if isinstance(source, EinsumPlan):
                yield from source.parts()
        yield self

    @cached_property
    def _all_plans(self) -> tuple[Plan, ...]:
        return tuple(plan for part in self.parts() for plan in part.plans)

    @cached_property
    def received_bytes(self) -> int:
        """Bytes that the busiest device receives from others, over all reshards."""
        return busiest((moved_by(plan), 1) for plan in self._all_plans)

    @cached_property
    def total_received_bytes(self) -> int:
        """Bytes that all devices together receive from others."""
        return sum(plan.total_received_bytes for plan in self._all_plans)

    def received_bytes_on(self, device: int) -> int:
        """Bytes that one device receives from others.

        Raises:
            ReshardError: `unknown-device` where it takes no part.
        """
        plans = [plan for plan in self._all_plans if device in plan.source.mesh or device in plan.target.mesh]
        if not plans:
            self.output.received_bytes_on(device)
        return sum(plan.received_bytes_on(device) for plan in plans)

    @cached_property
    def flops(self) -> int:
        """Operations of the busiest device: a multiplication per further operand and element, and an addition."""
        return sum(part.local_flops for part in self.parts())

    @property
    def local_flops(self) -> int:
        """Operations of the busiest device in this contraction alone."""
        return local_flops(stages_of(self.pattern, self.sizes), self.layout.largest_parts(self.sizes))

    @property
    def communication_seconds(self) -> float | None:
        """What the reshards take on the network, one after the other; None without one."""
        return None if self.network is None else sum(plan.seconds or 0.0 for plan in self._all_plans)

    @property
    def local_work(self) -> float:
        """What the operations of this contraction alone cost a device."""
        calculation = Calculation.of_einsum(self.pattern, self.sizes, self.dtype)
        touched_bytes = local_flops(calculation.touched, self.layout.largest_parts(self.sizes))
        return self.goal.of_work(self.local_flops, touched_bytes, self.dtype)

    @property
    def arithmetic_seconds(self) -> float | None:
        """What the arithmetic takes, or reading and writing memory where that takes longer; None without a network.

        It is 0 on one that says neither how fast devices are nor their memory.
        """
        return None if self.network is None else sum(part.local_work for part in self.parts())

    @property
    def seconds(self) -> float | None:
        """Communication and arithmetic one after the other: the price; None without a network."""
        if self.network is None:
            return None
        return (self.communication_seconds or 0.0) + (self.arithmetic_seconds or 0.0)

    @property
    def lower_bound_seconds(self) -> float | None:
        """What no schedule of these reshards and contractions goes below; None without a network.

        The operands of a contraction may come at once, so the slowest counts; then its arithmetic, then the result.
        """
        if self.network is None:
            return None
        before = [
            (plan.lower_bound_seconds or 0.0) + (0.0 if isinstance(given, int) else given.lower_bound_seconds or 0.0)
            for plan, given in zip(self.operands, self.inputs, strict=True)
        ]
        return max(before, default=0.0) + self.local_work + (self.output.lower_bound_seconds or 0.0)

    @property
    def overlapped_seconds(self) -> float | None:
        """The larger of the two: what no overlap can go below; None without a network."""
        if self.network is None:
            return None
        return max(self.communication_seconds or 0.0, self.arithmetic_seconds or 0.0)

    @property
    def bound(self) -> str | None:
        """Which of the two is the larger, `communication` or `arithmetic`; None without a network."""
        if self.network is None:
            return None
        is_slow = (self.communication_seconds or 0.0) > (self.arithmetic_seconds or 0.0)
        return "communication" if is_slow else "arithmetic"

    @property
    def price(self) -> Price:
        """What plans are compared by."""
        steps = sum(len(plan.steps) for plan in self._all_plans)
        costs = [self.goal.cost(plan.seconds, plan.received_bytes) for plan in self._all_plans]
        cost = sum(costs, sum(part.local_work for part in self.parts()))
        return Price(cost, self.received_bytes, self.total_received_bytes, steps, self.flops)

    @cached_property
    def cases(self) -> dict[str, str]:
        """Per axis that cuts an operand, which case of a product of two sharded matrices it is.

        >>> from reshard.contraction import einsum
        >>> from reshard.mesh import Mesh
        >>> mesh = Mesh.of(X=2, Y=2)
        >>> a, b = Sharding.of(mesh, "X", "Y"), Sharding.of(mesh, None, "X")
        >>> einsum("ij,jk->ik", a, b, shapes=[(4, 4), (4, 4)]).cases
        {'X': 'case 4', 'Y': 'case 2'}
        """
        return cases_of(self.pattern, self.sources)

    @property
    def case(self) -> str:
        """The cases in one line, such as `case 2` or `case 4 on X, case 2 on Y`; case 1 where no axis is in the way."""
        cases = {axis: case for axis, case in self.cases.items() if case != "case 1"}
        if len(set(cases.values())) <= 1:
            return next(iter(cases.values()), "case 1")
        return ", ".join(f"{case} on {axis}" for axis, case in cases.items())

    def to_html(self) -> str:
        """The plan as a page: one file that opens from disk and needs no network.

        Raises:
            ReshardError: `too-large` where devices or tiles are too many to list.
        """
        root = importlib.import_module("reshard")  # what else would do is found above this module
        return einsum_page(self, root.alternatives(self))

    def to_json(self) -> str:
        """The plan as JSON text, with its figures."""
        return json.dumps(self.as_dict(), indent=1)

    def as_dict(self) -> dict[str, Any]:
        """What `to_json` writes."""
        return {
            "schema": SCHEMA,
            "expression": str(self.expression),
            "pattern": str(self.pattern),
            "label_sizes": self.sizes,
            "case": self.case,
            "cases": self.cases,
            "layout": {
                label: list(map(str, axes)) for label, axes in zip(self.pattern.labels, self.layout.axes, strict=True)
            },
            "inputs": [given if isinstance(given, int) else given.as_dict() for given in self.inputs],
            "operands": [plan.as_dict() for plan in self.operands],
            "output": self.output.as_dict(),
            "received_bytes": self.received_bytes,
            "total_received_bytes": self.total_received_bytes,
            "flops": self.flops,
            "communication_seconds": self.communication_seconds,
            "arithmetic_seconds": self.arithmetic_seconds,
            "seconds": self.seconds,
            "overlapped_seconds": self.overlapped_seconds,
            "lower_bound_seconds": self.lower_bound_seconds,
            "bound": self.bound,
            "goal": self.goal.name,
            "is_proved": self.is_proved,
        }

    def __repr__(self) -> str:
        moved = f"{bytes_text(self.received_bytes)} received, {self.flops} operations on a device"
        return f"<EinsumPlan {self.expression} on {self.layout.mesh}: {moved}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows."""
        return mimebundle(str(self), einsum_drawing(self))

    def __str__(self) -> str:
        return table(self)
