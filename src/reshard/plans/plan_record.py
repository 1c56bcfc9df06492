"""A plan as the record that its JSON text holds.

Shardings are in Shardy's notation, bytes are integers; figures are written so that other readers need not count them,
and are held against the plan when it is read.

>>> differences({"rounds": 2, "steps": []}, {"rounds": 3, "steps": []})
['rounds']
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reshard.checks import checked_shape, expect, integer
from reshard.digits import Digit
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.notation import parse_sharding
from reshard.plans.options import Options
from reshard.plans.table import counted
from reshard.problem import Reshard
from reshard.steps import Share, Step

if TYPE_CHECKING:
    from reshard.plans.plan import Plan

SCHEMA = "reshard.plan/2"
"""Names the form of the JSON text; it changes when a reader of the old form would be wrong."""


def plan_record(plan: Plan) -> dict[str, Any]:
    """The fields of a plan and of its steps, with their figures."""
    return {
        "schema": SCHEMA,
        "source": str(plan.source),
        "target": str(plan.target),
        "shape": list(plan.shape),
        "dtype": plan.dtype.name,
        "network": None if plan.options.network is None else plan.options.network.as_dict(),
        "basis": plan.options.basis,
        "memory_limit": plan.options.memory_limit,
        "parts": plan.parts,
        "steps": _steps(plan.steps, plan.step_seconds),
        "whole": list(plan.whole),
        "beside": [{"parts": share.parts, "steps": _steps(share.steps, None)} for share in plan.beside],
        "rounds": counted(plan),
        "received_bytes": plan.received_bytes,
        "total_received_bytes": plan.total_received_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "relayed_bytes": plan.relayed_bytes,
        "total_lower_bound_bytes": plan.total_lower_bound_bytes,
        "bound_kind": plan.bound_kind,
        "peak_bytes": plan.peak_bytes,
        "seconds": plan.seconds,
        "lower_bound_seconds": plan.lower_bound_seconds,
        "time_cut": None if plan.time_cut is None else plan.time_cut.as_dict(),
        "time_transfers": None if plan.time_transfers is None else plan.time_transfers.as_dict(),
        "reason": plan.reason,
    }


def _steps(steps: Sequence[Step], seconds: Sequence[float] | None) -> list[dict[str, Any]]:
    """The fields of steps; what each takes by itself where that is known."""
    records: list[dict[str, Any]] = [
        {
            "kind": step.kind,
            "before": str(step.before),
            "after": str(step.after),
            "axes": [str(axis) for axis in step.axes],
            "rounds": counted(step),
            "received_bytes": step.received_bytes,
            "peak_bytes": step.peak_bytes,
            "near": step.near,
            "chunks": step.chunks,
            "ring": None if step.ring is None else list(step.ring),
            "kept": None if step.kept is None else str(step.kept),
            "across": None if step.across is None else list(step.across),
        }
        for step in steps
    ]
    times: list[float | None] = [None] * len(steps) if seconds is None else list(seconds)
    return [record | {"seconds": time} for record, time in zip(records, times, strict=True)]


def record_read(text: str, schema: str = SCHEMA, what: str = "a plan") -> dict[str, Any]:
    """The record in a JSON text.

    Args:
        text: of a plan of any kind.
        schema: that it must name.
        what: the plan is called in refusals.

    Raises:
        ReshardError: `bad-plan-text` where it is no record, or one of another schema.
    """
    try:
        record = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ReshardError("bad-plan-text", f"{what} must be JSON text: {str(error).rstrip('.')}") from None
    said = record.get("schema") if isinstance(record, dict) else None
    if not isinstance(record, dict) or said != schema:
        raise ReshardError("bad-plan-text", f"{what} must have the schema {schema!r}, got: {said!r}")
    return record


@contextmanager
def reading_record(what: str = "a plan") -> Iterator[None]:
    """Refuse a record that lacks a field, or has one of another type, as `bad-plan-text`; `what` says of what."""
    try:
        yield
    except ReshardError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ReshardError("bad-plan-text", f"{what} lacks a field or has one of another type: {error}") from None


def plan_fields(record: dict[str, Any]) -> dict[str, Any]:
    """The fields of the plan that a record says, by their names.

    Raises:
        ReshardError: what the shardings and steps themselves raise.
    """
    shape, dtype = checked_shape(record["shape"]), dtype_named(record["dtype"])
    reshard = Reshard(parse_sharding(record["source"]), parse_sharding(record["target"]), shape, dtype)
    shares = expect(record.get("beside", []), list, "the shares beside the steps of a plan", "bad-plan-text")
    network = None if record["network"] is None else Network.from_dict(record["network"])
    return {
        "reshard": reshard,
        "steps": _steps_read(record["steps"], reshard),
        "options": Options(network, record["basis"], record["memory_limit"]),
        "remark": str(record.get("reason", "")),
        "parts": record.get("parts", 1),
        "whole": tuple(expect(record.get("whole", [0, 0]), list, "the steps of the whole tensor", "bad-plan-text")),
        "beside": tuple(Share(_steps_read(share["steps"], reshard), share["parts"]) for share in shares),
    }


def _steps_read(records: Sequence[dict[str, Any]], reshard: Reshard) -> tuple[Step, ...]:
    """The steps that these records say, built and checked anew."""
    return tuple(
        Step(
            replace(reshard, source=parse_sharding(record["before"]), target=parse_sharding(record["after"])),
            record["kind"],
            record.get("near", 0),
            record.get("chunks", 1),
            _ring_read(record.get("ring")),
            None if record.get("kept") is None else parse_sharding(record["kept"]),
            _ring_read(record.get("across")),
        )
        for record in records
    )


def _ring_read(parts: Sequence[Any] | None) -> Digit | None:
    """The places along a ring, as a record says them."""
    return None if parts is None else Digit(*(integer(part, "a ring") for part in parts))


def differences(record: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Where a record says something else than the plan that was read from it."""

    def differing(fields: dict[str, Any], expected_fields: dict[str, Any]) -> list[str]:
        chains = ("steps", "beside")
        return [key for key, value in expected_fields.items() if key not in chains and fields.get(key, value) != value]

    wrong = differing(record, expected)
    for number, steps in enumerate(zip(record["steps"], expected["steps"], strict=True), 1):
        wrong += [f"{key} of step {number}" for key in differing(*steps)]
    for share, others in enumerate(zip(record.get("beside", []), expected.get("beside", []), strict=True), 1):
        wrong += [f"{key} of share {share}" for key in differences(*others)]
    return wrong
