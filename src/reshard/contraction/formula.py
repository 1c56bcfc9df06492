"""A plan of a contraction as text, in the notation of sharded matrices: `A[I, J_X] · B[J_X, K] → C[I, K]{U_X}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reshard.axis import Axis
from reshard.contraction.cases import TEXTS
from reshard.mesh import Mesh
from reshard.operations.pattern import Term
from reshard.plans.table import seconds_text
from reshard.sharding import Sharding
from reshard.tables import Passage, Table, bytes_text, plain

if TYPE_CHECKING:
    from reshard.contraction.einsum_plan import EinsumPlan


FIGURES = ("received", "in all", "time", "communication", "arithmetic", "operations")
"""The columns that hold figures."""


def tensor_text(name: str, term: Term, sharding: Sharding) -> str:
    """A tensor in the notation.

    >>> from reshard.mesh import Mesh
    >>> tensor_text("A", (("i",), ("j", "k"), ()), Sharding.of(Mesh.of(X=2, Y=4), None, "X", None, unreduced="Y"))
    'A[I, (J K)_X, 1]{U_Y}'
    """
    dims = [
        _dim_text(group) + _subscript(dim.axes, sharding.mesh) for group, dim in zip(term, sharding.dims, strict=True)
    ]
    unreduced = f"{{U{_subscript(sharding.unreduced, sharding.mesh)}}}" if sharding.unreduced else ""
    return f"{name}[{', '.join(dims)}]{unreduced}"


def _dim_text(group: Sequence[str]) -> str:
    names = [label.upper() if len(label) == 1 else label for label in group]
    return "1" if not names else names[0] if len(names) == 1 else f"({' '.join(names)})"


def _subscript(axes: Sequence[Axis], mesh: Mesh) -> str:
    if not axes:
        return ""
    names = [axis.name if axis.is_whole else f"{axis.name}:({axis.pre_size}){axis.size}" for axis in axes]
    plain = all(axis.is_whole for axis in axes) and (len(axes) == 1 or all(len(name) == 1 for name in mesh.sizes))
    return f"_{''.join(names)}" if plain else f"_{{{','.join(names)}}}"


def table(plan: EinsumPlan) -> str:
    """The plan as text that a person can read aloud."""
    lines = [f"{plan.expression} {plan.dtype} on {plan.layout.mesh}"]
    rows: list[list[str]] = []
    parts = _named_parts(plan)
    for part, names in parts:
        lines += [*([str(part.pattern)] if len(parts) > 1 else []), " → ".join(_chain(part, names)), *_cases(part)]
        rows += _rows(part, names)
    head = ["", "tensor", "step", "received", *([] if plan.network is None else ["time"]), "result"]
    table: list[Passage] = [Table([head, *rows], FIGURES), ""] if rows else []
    return plain([*lines, "", *table, *_verdict(plan)])


def comparison(plans: Sequence[EinsumPlan]) -> str:
    """Plans of one contraction, a line each: what they cost, and where they compute."""
    return plain([comparison_table(plans)])


def comparison_table(plans: Sequence[EinsumPlan]) -> Table:
    """The same as a table."""
    timed = plans[0].network is not None
    head = ["", "received", "in all", *(["communication", "arithmetic"] if timed else ["operations"]), "computed"]
    rows = []
    for number, plan in enumerate(plans, 1):
        times = [seconds_text(seconds or 0.0) for seconds in (plan.communication_seconds, plan.arithmetic_seconds)]
        chains = [" → ".join(_chain(part, names)[1:]) for part, names in _named_parts(plan)]
        figures = [bytes_text(plan.received_bytes), bytes_text(plan.total_received_bytes)]
        rows.append([str(number), *figures, *(times if timed else [str(plan.flops)]), "; ".join(chains)])
    return Table([head, *rows], FIGURES)


def _named_parts(plan: EinsumPlan) -> list[tuple[EinsumPlan, list[str]]]:
    """The contractions that a plan consists of, each with the names of its operands and of its result."""
    parts = list(plan.parts())
    names = {id(part): f"T{number}" for number, part in enumerate(parts, 1)} | {id(plan): _letter(plan.given)}
    return [
        (
            part,
            [
                *(_letter(origin) if isinstance(origin, int) else names[id(origin)] for origin in part.inputs),
                names[id(part)],
            ],
        )
        for part in parts
    ]


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 19 else f"A{number}"


def _chain(part: EinsumPlan, names: Sequence[str]) -> list[str]:
    """The operands as they are given and as they are used, and the result as it is made and as it is wanted."""
    *operands, result = names
    terms = part.pattern.terms
    sources = [tensor_text(*tensor) for tensor in zip(operands, part.pattern.operands, part.sources, strict=True)]
    layouts = [tensor_text(*tensor) for tensor in zip(operands, part.pattern.operands, part.layouts, strict=True)]
    output, target = (tensor_text(result, terms[-1], end) for end in (part.output.source, part.target))
    return [
        " · ".join(sources),
        *([] if layouts == sources else [" · ".join(layouts)]),
        output,
        *([] if target == output else [target]),
    ]


def _cases(part: EinsumPlan) -> list[str]:
    """Which of the four cases a product of two is, axis by axis."""
    if len(part.operands) != 2:
        return []
    by_case: dict[str, list[str]] = {}
    for axis, case in part.cases.items():
        by_case.setdefault(case, []).append(axis)
    lines = [f"{case} on {', '.join(axes)}: {TEXTS[case]}" for case, axes in sorted(by_case.items())]
    return lines or ["case 1: no axis cuts an operand"]


def _rows(part: EinsumPlan, names: Sequence[str]) -> list[list[str]]:
    """Per step of every reshard, what it costs."""
    rows = []
    for name, term, plan in zip(names, part.pattern.terms, part.plans, strict=True):
        shape = " x ".join(map(str, plan.shape)) or "scalar"
        for step, seconds in zip(plan.steps, plan.step_seconds or [None] * len(plan.steps), strict=True):
            time = [] if part.network is None else [seconds_text(seconds or 0.0)]
            rows.append(
                [name, shape, step.kind, bytes_text(step.received_bytes), *time, tensor_text(name, term, step.after)]
            )
    return rows


def _verdict(plan: EinsumPlan) -> list[str]:
    received, total = bytes_text(plan.received_bytes), bytes_text(plan.total_received_bytes)
    lines = [f"received {received} on the busiest device, {total} in all; {plan.flops} operations on a device"]
    if plan.goal.balance is not None:
        weight = plan.goal.flops_per_byte(plan.dtype)
        lines.append(f"goal {plan.goal.name}: a byte received weighs as much as {weight:.4g} operations")
    if not plan.is_proved:
        lines.append("not proved to be the cheapest: the search was cut short")
    if plan.network is not None:
        times = [plan.communication_seconds, plan.arithmetic_seconds, plan.overlapped_seconds, plan.seconds]
        moving, computing, least, most = (seconds_text(time or 0.0) for time in times)
        lines.append(f"communication {moving}, arithmetic {computing}: {least} overlapped, {most} one after the other")
        lines.append(f"no schedule of these goes below {seconds_text(plan.lower_bound_seconds or 0.0)}")
        unknown = "" if plan.network.flops else "; the network does not say how fast a device computes"
        lines.append(f"bound by {plan.bound}{unknown}")
    return lines
