"""Loops and choices of a jaxpr: what stands in them is in the program once, in a region of its own.

**Loops.** What the body reads of the carry and of the stacked inputs are values of their own, and what it gives back
is tied to what it reads by an operation of two operands that must be alike, so shardings go around the loop until
nothing changes.
Then the carry is held: before the loop, around it and after it one sharding, and the rest is placed around that.
A loop of unknown length asks at the end of each turn whether there is another, and its first carry is the answer.

**Choices.** Every branch is a region; what comes out is an operation of a number and of one result of each branch.
All devices have the number, so all take the same branch and meet in its collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from reshard.errors import ReshardError
from reshard.jax.tracing.emitter import Choice, Loop, Way, labels
from reshard.propagation import Value
from reshard.propagation.graph import Carry

if TYPE_CHECKING:
    from reshard.jax.tracing.trace import Tracing


def scan(tracing: Tracing, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A loop whose length is known."""
    params = equation.params
    first, stop = params["num_consts"], params["num_consts"] + params["num_carry"]
    loop = Loop(params["length"], params["reverse"], params["unroll"])

    def body(carries: list[Value]) -> list[Value]:
        elements = [_element(tracing, value, loop) for value in operands[stop:]]
        return tracing.closed(params["jaxpr"], [*operands[:first], *carries, *elements])

    last, made = _loop(tracing, loop, operands[first:stop], body)
    return last + [_stacked(tracing, value, loop) for value in made]


def while_loop(tracing: Tracing, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A loop that goes on as long as a function of its carry says so."""
    params = equation.params
    first, stop = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def test(state: Sequence[Value]) -> Value:
        (more,) = tracing.closed(params["cond_jaxpr"], [*operands[:first], *state])
        return more

    def body(carries: list[Value]) -> list[Value]:
        state = tracing.closed(params["body_jaxpr"], [*operands[first:stop], *carries[1:]])
        return [test(state), *state]

    starts = operands[stop:]
    return _loop(tracing, Loop(None), [test(starts), *starts], body)[0][1:]


def cond(tracing: Tracing, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """One of several branches; where the platform decides, the one of the platform that is here."""
    branches = equation.params["branches"]
    platforms = equation.params.get("branches_platforms")
    if platforms is not None:
        here = {"gpu": {"cuda", "rocm"}}.get(jax.default_backend(), {jax.default_backend()})
        fits = (n for n, names in enumerate(platforms) if names is None or here & {*names})
        return tracing.closed(branches[next(fits, -1)], operands[1:])
    choice = Choice(tuple(Way() for _ in branches))
    around = tracing.regions
    made: list[list[Value]] = []
    for way, branch in zip(choice.ways, branches, strict=True):
        tracing.regions = (*around, way)
        made.append([tracing.copy("branch", value) for value in tracing.closed(branch, operands[1:])])
    tracing.regions = around
    local = {"part": "chosen", "whole": choice}
    found = []
    for results in zip(*made, strict=True):
        term = labels(len(results[0].shape))
        terms = [(), *[term] * (len(results) + 1)]
        given = [operands[0], *results]
        found.append(tracing.emit("chosen", given, terms, tracing.aval(results[0]), _never, local=local))
    return found


def _loop(tracing: Tracing, loop: Loop, starts: Sequence[Value], body: Any) -> tuple[list[Value], list[Value]]:
    """A loop's carry after its last turn, and what else the body makes in every turn."""
    program = tracing.program
    around = tracing.regions
    before = [program.add("reshard", (value,), None, value.shape) for value in starts]
    tracing.regions = (*around, loop)
    carries = [
        tracing.copy("carry", value, tracing.aval(start), part="carry", whole=loop)
        for value, start in zip(before, starts, strict=True)
    ]
    results = body(carries)
    after = [program.add("reshard", (value,), None, value.shape) for value in results[: len(carries)]]
    tracing.regions = around
    last = []
    for value, inside in zip(after, carries, strict=True):
        terms = [labels(len(value.shape))] * 3
        local = {"part": "last", "whole": loop}
        last.append(tracing.emit("last", [value, inside], terms, tracing.aval(inside), _never, local=local))
    program.carries += [Carry(*values) for values in zip(before, carries, after, last, strict=True)]
    return last, results[len(carries) :]


def _element(tracing: Tracing, value: Value, loop: Loop) -> Value:
    """What a turn of the loop reads of a stacked value."""
    term = (("turn",), *labels(len(value.shape) - 1))
    aval = jax.ShapeDtypeStruct(value.shape[1:], tracing.aval(value).dtype)
    local = {"part": "element", "whole": loop}
    return tracing.emit("element", [value], [term, term[1:]], aval, _never, local=local, replicated=("turn",))


def _stacked(tracing: Tracing, value: Value, loop: Loop) -> Value:
    """What the turns of the loop have made, one after another."""
    term = (("turn",), *labels(len(value.shape)))
    aval = jax.ShapeDtypeStruct((loop.length or 0, *value.shape), tracing.aval(value).dtype)
    local = {"part": "stack", "whole": loop}
    return tracing.emit("stack", [value], [term[1:], term], aval, _never, local=local, replicated=("turn",))


def _never(extents: Any, tiles: Any) -> Any:
    """What leads into a region or out of it is no operation by itself."""
    raise ReshardError("bad-program", "a loop or a choice runs as a whole")
