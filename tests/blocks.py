"""Programs with loops and choices, with inputs and what plain NumPy computes of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reshard import Mesh, Sharding
from reshard.propagation import Program, Value

MESH = Mesh.of(x=2, y=2)


def array(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def scanned() -> tuple[Program, dict[str, Any], dict[str, Any]]:
    """A carry that is sharded, elements, a stack, and both orders; dims that the shards do not divide."""
    program = Program(MESH)
    x = program.input("x", (6, 5), "float32", Sharding.of(MESH, "x", "y"))
    w = program.input("w", (3, 5, 5), "float32", Sharding.of(MESH, None, "y", None))
    for order in ("there", "back"):
        with program.loop(3, reverse=order == "back", unroll=2) as loop:
            h, u = loop.carry(x), loop.element(w)
            after = program.op("ij->ij", program.op("ij,jk->ik", h, u), name="neg")
            sums = loop.stack(program.op("ij->j", after, name="sum"))
            last = loop.last(h, after)
        program.output(last, result=f"last_{order}")
        program.output(sums, result=f"sums_{order}")
    arrays = {"x": array(6, 5), "w": array(3, 5, 5, seed=1)}
    wanted = {}
    for order in ("there", "back"):
        state, rows = arrays["x"], {}
        for turn in (range(3), reversed(range(3)))[order == "back"]:
            state = -(state @ arrays["w"][turn])
            rows[turn] = state.sum(0)
        wanted |= {f"last_{order}": state, f"sums_{order}": np.stack([rows[turn] for turn in range(3)])}
    return program, arrays, wanted


def awaited() -> tuple[Program, dict[str, Any], dict[str, Any]]:
    """A loop whose length only a run tells: halve until the sum is small."""
    program = Program(MESH)
    x = program.input("x", (7, 4), "float32", Sharding.of(MESH, "x", None))
    limit = program.constant(1.5, ())

    def more(value: Value) -> Value:
        size = program.op("ij->", program.op("ij->ij", value, name="abs"), name="sum")
        return program.op(",->", limit, size, name="less", dtype="bool")

    with program.loop() as loop:
        h = loop.carry(x)
        loop.test(more(h))
        out = loop.last(h, program.op("ij,->ij", h, program.constant(0.5, ())))
    program.output(out, Sharding.of(MESH, None, "y"), "out")
    arrays = {"x": array(7, 4)}
    state = arrays["x"]
    while np.abs(state).sum() > 1.5:
        state = state * np.float32(0.5)
    return program, arrays, {"out": state}


def branched() -> tuple[Program, dict[str, Any], dict[str, Any]]:
    """A loop in a branch, a choice in the loop; a branch that gives back a value from around it."""
    program = Program(MESH)
    x = program.input("x", (5, 6), "float32", Sharding.of(MESH, "x", None))
    picks = program.input("picks", (4,), "int32")
    with program.loop(4) as outer:
        h, pick = outer.carry(x), outer.element(picks)
        with program.choice() as choice:
            with choice.branch(), program.loop(2) as inner:
                g = inner.carry(h)
                doubled = inner.last(g, program.op("ij,ij->ij", g, x, name="add"))
            with choice.branch():
                turned = program.constrain(program.op("ij->ij", h, name="neg"), Sharding.of(MESH, None, "y"))
            with choice.branch():
                pass
            chosen = choice.chosen(pick, doubled, turned, h)
        last = outer.last(h, chosen)
        stack = outer.stack(chosen)
    program.output(last, result="last")
    program.output(stack, Sharding.of(MESH, None, "y", "x"), "stack")
    arrays = {"x": array(5, 6), "picks": np.array([0, 1, 7, -1], np.int32)}
    state, rows = arrays["x"], []
    for pick in (0, 1, 2, 0):  # what is out of range picks the nearest
        state = (state + 2 * arrays["x"], -state, state)[pick]
        rows.append(state)
    return program, arrays, {"last": state, "stack": np.stack(rows)}


def empty() -> tuple[Program, dict[str, Any], dict[str, Any]]:
    """A loop that does not run."""
    program = Program(MESH)
    x = program.input("x", (4, 4), "float32", Sharding.of(MESH, "x", "y"))
    with program.loop(0) as loop:
        h = loop.carry(x)
        after = program.op("ij->ij", h, name="neg")
        stack, last = loop.stack(after), loop.last(h, after)
    program.output(last, result="last")
    program.output(stack, result="stack")
    return program, {"x": array(4, 4)}, {"last": array(4, 4), "stack": np.empty((0, 4, 4), np.float32)}


TRACED = """\
sdy.mesh @mesh = <["x"=2, "y"=2]>
x = input : float32[4, 4] <@mesh, [{"x"}, {"y"}]>
w = input : float32[3, 4, 4]
constant_7 = constant : float32[] {value=0.0}
constant_12 = constant : float32[] {value=2.0}
loop 3 {
  carry_2 = carry (x) : float32[4, 4]
  element_3 = element (w) : float32[4, 4]
  einsum_4 = einsum "l0 c0, c0 r1 -> l0 r1" (carry_2, element_3) : float32[4, 4]
  tanh_5 = tanh "d0 d1 -> d0 d1" (einsum_4) : float32[4, 4]
  sum_6 = sum "d0 d1 -> " (tanh_5) : float32[]
  gt_8 = gt ",->" (sum_6, constant_7) : bool[]
  cast_9 = cast "->" (gt_8) : int32[]
  choice {
    branch {
      neg_10 = neg "d0 d1 -> d0 d1" (tanh_5) : float32[4, 4]
      copy_11 = copy "d0 d1 -> d0 d1" (neg_10) : float32[4, 4]
    }
    branch {
      einsum_13 = einsum "d0 d1,  -> d0 d1" (tanh_5, constant_12) : float32[4, 4]
      copy_14 = copy "d0 d1 -> d0 d1" (einsum_13) : float32[4, 4]
    }
    chosen_15 = chosen (cast_9, copy_11, copy_14) : float32[4, 4]
  }
  max_16 = max "d0 d1 -> d1" (chosen_15) : float32[4]
  stack_17 = stack (max_16) : float32[3, 4]
  last_18 = last (chosen_15, carry_2) : float32[4, 4]
}
constant_22 = constant : float32[] {value=1.0}
constant_25 = constant : float32[] {value=0.5}
while {
  carry_19 = carry (last_18) : float32[4, 4]
  abs_20 = abs "d0 d1 -> d0 d1" (carry_19) : float32[4, 4]
  sum_21 = sum "d0 d1 -> " (abs_20) : float32[]
  gt_23 = gt ",->" (sum_21, constant_22) : bool[]
  test_24 = test (gt_23) : bool[]
  einsum_26 = einsum "d0 d1,  -> d0 d1" (carry_19, constant_25) : float32[4, 4]
  last_27 = last (einsum_26, carry_19) : float32[4, 4]
}
out.0 = output (last_27) : float32[4, 4]
out.1 = output (stack_17) : float32[3, 4]"""
"""A scan with a choice in it and a while loop."""


def traced() -> tuple[Program, dict[str, Any], dict[str, Any]]:
    """The program of that text."""
    arrays = {"x": array(4, 4) / 2, "w": array(3, 4, 4, seed=1) / 2}
    state, rows = arrays["x"], []
    for turn in range(3):
        state = np.tanh(state @ arrays["w"][turn])
        state = 2 * state if state.sum() > 0 else -state
        rows.append(state.max(0))
    while np.abs(state).sum() > 1:
        state = state * np.float32(0.5)
    return Program.parse(TRACED), arrays, {"out.0": state, "out.1": np.stack(rows)}


CASES: dict[str, Callable[[], tuple[Program, dict[str, Any], dict[str, Any]]]] = {
    function.__name__: function for function in (scanned, awaited, branched, empty, traced)
}
