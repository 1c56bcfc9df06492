"""Convolutions and what else goes over a tensor with a window: `reduce_window`, pooling and its gradient.

A dim over which a window moves is needed whole; batch and feature dims are those of a contraction.
By hand, a convolution of `[n, h, w, c]` with `[k, l, c, o]`: the pattern is `n s0 s1 c, k0 k1 c o -> n s0 s1 o`,
partial where c is sharded.
In groups, features are `(g c)` and `(g o)`, and a device that has some of the groups convolves those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reshard.jax.tracing.emitter import Emitter, evaluated, labels
from reshard.operations.interpreter import Extents
from reshard.operations.pattern import Group, Term
from reshard.propagation import Value


def convolution(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A convolution; a dim whose window is one element and moves by one is as in a contraction."""
    params, out = equation.params, equation.outvars[0].aval
    left, right, result = params["dimension_numbers"]
    features, batches = params["feature_group_count"], params["batch_group_count"]
    group = ("g",) if features * batches > 1 else ()
    ends: list[dict[int, Group]] = [
        {left[0]: (*(group if batches > 1 else ()), "n"), left[1]: (*(group if features > 1 else ()), "c")},
        {right[0]: (*group, "o"), right[1]: ("c",)},
        {result[0]: ("n",), result[1]: (*group, "o")},
    ]
    whole, shifted = [], []
    fields = ("window_strides", "padding", "lhs_dilation")
    for place, moves in enumerate(zip(*(params[name] for name in fields), strict=True)):
        window_dim = right[2 + place]
        still = operands[1].shape[window_dim] == 1 and moves == (1, (0, 0), 1)
        ends[0][left[2 + place]] = ends[2][result[2 + place]] = (f"s{place}",)
        ends[1][window_dim] = () if still else (f"k{place}",)
        if not still:
            shifted.append(f"s{place}")
            whole.append(f"k{place}")
    terms: list[Term] = [tuple(groups[dim] for dim in range(len(groups))) for groups in ends]
    sizes = {"n": out.shape[result[0]], "c": operands[1].shape[right[1]]}
    if group:
        sizes["g"] = features * batches

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        counts = {
            "feature_group_count": tiles[0].shape[left[1]] // tiles[1].shape[right[1]],
            "batch_group_count": tiles[0].shape[left[0]] // extents.shapes[-1][result[0]],
        }
        return evaluated(equation, **counts)(extents, tiles)

    return [
        emitter.emit(
            "convolution",
            operands,
            terms,
            out,
            run,
            sizes=sizes,
            replicated=tuple(whole),
            shifted=tuple(shifted),
            reduction="sum",
        )
    ]


def windows(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Tensors of the same dims, over which a window moves; a dim in which it is one element and stays is left alone."""
    params = equation.params
    moves = [
        dim
        for dim, (size, stride, room) in enumerate(
            zip(params["window_dimensions"], params["window_strides"], params["padding"], strict=True)
        )
        if (size, stride, tuple(room)) != (1, 1, (0, 0)) or params.get("base_dilation", (1,) * (dim + 1))[dim] != 1
    ]
    name, out = str(equation.primitive), equation.outvars[0].aval
    terms = [labels(len(value.shape)) for value in (*operands, out)]
    return emitter.emit_results(name, equation, operands, terms, shifted=tuple(f"d{dim}" for dim in moves))
