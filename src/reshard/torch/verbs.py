"""What torch does with tensors, for the interpreter of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from reshard.errors import ReshardError
from reshard.operations.interpreter import Verbs, functions
from reshard.operations.kinds import KindForm
from reshard.operations.pattern import Shape
from reshard.torch.dtensor_specs import dtype_of

Tensor = torch.Tensor


def _einsum(tensors: Sequence[Tensor], labels: Sequence[Sequence[int]], output: Sequence[int], dtype: str) -> Tensor:
    """An einsum.

    Raises:
        ReshardError: `too-large` where there are more labels than torch has letters.
    """
    count = len({label for term in labels for label in term})
    if count > 52:
        raise ReshardError("too-large", f"torch has no einsum of {count} labels")
    terms: list[Any] = [part for pair in zip(tensors, labels, strict=True) for part in pair]
    return torch.einsum(*terms, output)


def _reduce(reduction: str, x: Tensor, dims: Shape) -> Tensor:
    for dim in sorted(dims, reverse=True):
        if x.shape[dim]:
            x = REDUCE[reduction](x, dim)
        else:  # of nothing there is no maximum
            x = x.new_full((*x.shape[:dim], *x.shape[dim + 1 :]), dtype_of(x.dtype).identity(reduction))
    return x


def _pad(x: Tensor, low: Shape, high: Shape, value: Any) -> Tensor:
    last_first = [side for ends in reversed([*zip(low, high, strict=True)]) for side in ends]
    return torch.nn.functional.pad(x, last_first, value=value)


def _count(like: Tensor, shape: Shape, dim: int) -> Tensor:
    return torch.arange(shape[dim], device=like.device).reshape(-1, *[1] * (len(shape) - dim - 1)).expand(shape)


def _quotient(x: Tensor, y: Tensor) -> Tensor:
    """A quotient; that of integers is cut towards zero."""
    dtype = torch.result_type(x, y)
    return torch.div(x, y, rounding_mode=None if dtype.is_floating_point or dtype.is_complex else "trunc")


def _rounded(x: Tensor, rounding_method: int = 1) -> Tensor:
    """The nearest integer; of two the even one, unless the method is 0."""
    return x.round() if rounding_method else torch.copysign((x.abs() + 0.5).floor(), x)


ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "cbrt": lambda x: x.sign() * x.abs().pow(1 / 3),
    "clamp": lambda low, x, high: torch.minimum(torch.maximum(x, low), high),
    "conj": torch.conj_physical,
    "div": _quotient,
    "equal": torch.eq,
    "imag": lambda x: x.imag if x.is_complex() else torch.zeros_like(x),
    "integer_pow": lambda x, y: x.pow(y) if y >= 0 else 1 / x.pow(-y),
    "not": torch.bitwise_not,
    "pow": torch.pow,
    "round": _rounded,
    "select": lambda which, x, y: torch.where(which.bool(), x, y),
    "select_n": lambda which, *cases: torch.stack(cases).gather(0, which.long()[None])[0],
    "sign": torch.sgn,
    "silu": torch.nn.functional.silu,
    "stop_gradient": Tensor.detach,
}
"""What torch has under no name, or another."""
ALONG: dict[str, Callable[..., Tensor]] = {
    **{name: lambda x, dim, name=name: getattr(x, name)(dim).values for name in ("sort", "cummax", "cummin")},
    "cumlogsumexp": torch.logcumsumexp,
}
"""Of what goes along a dim, that to which torch adds the places, and what it calls otherwise."""
REDUCE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": Tensor.sum,
    "product": Tensor.prod,
    "max": Tensor.amax,
    "min": Tensor.amin,
}

VERBS = Verbs(
    reshape=torch.reshape,
    transpose=torch.permute,
    broadcast=Tensor.expand,
    cast=lambda x, dtype: x.to(getattr(torch, dtype)),
    einsum=_einsum,
    reduce=_reduce,
    slice=lambda x, start, stop, step: x[tuple(map(slice, start, stop, step))],
    pad=_pad,
    flip=Tensor.flip,
    concatenate=lambda tensors, dim: torch.cat(tuple(tensors), dim),
    rows=lambda table, numbers: table[numbers],
    element=lambda x, dim, place: x.narrow(dim, place, 1),
    where=lambda mask, x, y: torch.where(torch.as_tensor(mask, device=x.device), x, y),
    full=lambda like, shape, value: like.new_full(shape, value),
    count=_count,
    number=Tensor.long,
    elementwise=functions(KindForm.ELEMENTWISE, torch, ELEMENTWISE),
    along=functions(KindForm.ALONG, torch, ALONG),
)
