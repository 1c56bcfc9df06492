"""Loops and choices of a jaxpr, as blocks of the program.

What a branch gives is copied there, so that what it costs to bring it where the other branches have it is paid only
where the branch is picked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from reshard.propagation import Value
from reshard.propagation.open_blocks import OpenLoop

if TYPE_CHECKING:
    from reshard.jax.tracing.functions import Tracing


def scan(tracing: Tracing, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A loop whose length is known."""
    params = equation.params
    first, stop = params["num_consts"], params["num_consts"] + params["num_carry"]
    with tracing.program.loop(params["length"], reverse=params["reverse"], unroll=params["unroll"]) as loop:
        carries = [tracing.like(start, loop.carry(start)) for start in operands[first:stop]]
        elements = [tracing.like(stacked, loop.element(stacked)) for stacked in operands[stop:]]
        results = tracing.closed(params["jaxpr"], [*operands[:first], *carries, *elements])
        if not results:  # it calls alone
            carry = loop.carry(tracing.literal(np.int32(0)))
            loop.last(carry, carry)
        stacks = [tracing.like(value, loop.stack(value)) for value in results[len(carries) :]]
        return _last(tracing, loop, carries, results[: len(carries)]) + stacks


def while_loop(tracing: Tracing, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A loop that goes on as long as a function of its carry says so."""
    params = equation.params
    first, stop = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    if params["cond_jaxpr"].out_avals[0].shape:
        return tracing.closed(_as_one(params, [tracing.aval(value) for value in operands]), operands)

    with tracing.program.loop() as loop:
        carries = [tracing.like(start, loop.carry(start)) for start in operands[stop:]]
        (more,) = tracing.closed(params["cond_jaxpr"], [*operands[:first], *carries])
        loop.test(more)
        after = tracing.closed(params["body_jaxpr"], [*operands[first:stop], *carries])
        return _last(tracing, loop, carries, after)


def _as_one(params: Mapping[str, Any], avals: Sequence[Any]) -> Any:
    """The jaxpr of a batch of loops as one, which goes on as long as any does and leaves alone those that do not."""
    first, stop = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    go_on, turn = (jaxpr_as_fun(params[key]) for key in ("cond_jaxpr", "body_jaxpr"))

    def run(*operands: Any) -> Any:
        def tests(state: Sequence[Any]) -> Any:
            (test,) = go_on(*operands[:first], *state)
            return test

        def body(state: Sequence[Any]) -> list[Any]:
            test, after = tests(state), turn(*operands[first:stop], *state)
            return [
                jax.lax.select(jax.lax.broadcast_in_dim(test, new.shape, range(test.ndim)), new, old)
                for new, old in zip(after, state, strict=True)
            ]

        return jax.lax.while_loop(lambda state: tests(state).any(), body, list(operands[stop:]))

    return jax.make_jaxpr(run)(*avals)


def _last(tracing: Tracing, loop: OpenLoop, carries: Sequence[Value], after: Sequence[Value]) -> list[Value]:
    return [tracing.like(carry, loop.last(carry, value)) for carry, value in zip(carries, after, strict=True)]


def cond(tracing: Tracing, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """One of several branches; where the platform decides, the one of the platform that is here."""
    branches = equation.params["branches"]
    platforms = equation.params.get("branches_platforms")
    if platforms is not None:
        present = {"gpu": {"cuda", "rocm"}}.get(jax.default_backend(), {jax.default_backend()})
        fitting = (place for place, names in enumerate(platforms) if names is None or present & {*names})
        return tracing.closed(branches[next(fitting, -1)], operands[1:])
    with tracing.program.choice() as choice:
        results = []
        for branch in branches:
            with choice.branch():
                values = tracing.closed(branch, operands[1:]) or [tracing.literal(np.int32(0))]  # that calls alone
                results.append([tracing.copy(value) for value in values])
        chosen = [tracing.like(of[0], choice.chosen(operands[0], *of)) for of in zip(*results, strict=True)]
        return chosen[: len(equation.outvars)]
