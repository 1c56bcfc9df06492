"""Sorts of StableHLO as sorts of JAX: by which operands a comparator goes, one after the other, and which way.

A comparator of JAX puts all zeros in one place and all that is no number in one before it compares; of several keys it
asks whether the first is less, or as large and the next less.

By hand, `or(LT(a0, b0), and(EQ(a0, b0), GT(a1, b1)))` goes by the first operand upwards, then by the second downwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from jax import lax
from jaxlib.mlir import ir

from reshard.errors import ReshardError
from reshard.jax.stablehlo.mlir_attributes import ArrayFunction, integer, maker, type_of, word

_BESIDES = {"stablehlo.compare", "stablehlo.select", "stablehlo.constant", "stablehlo.and", "stablehlo.or"}
"""Of what a comparator is made."""


class SortKey(NamedTuple):
    """Which two elements one comparison of a comparator compares, and how."""

    operand: int
    direction: str


def sort(op: ir.Operation) -> ArrayFunction:
    """Tensors in the order of some of them: smallest first, or largest first, which is that of the complement.

    Raises:
        ReshardError: `cannot-express` where the comparator asks anything else.
    """
    (block,) = op.regions[0].blocks
    *body, end = (each.operation for each in block.operations)
    known = all(each.name in _BESIDES for each in body)
    keys = _keys(end.operands[0], [*block.arguments]) if known else None
    if keys is None or [key.operand for key in keys] != list(range(len(keys))):
        raise ReshardError("cannot-express", "a sort must go by the size of the elements of its first operands")
    dim, stable = integer(op, "dimension", -1), bool(integer(op, "is_stable"))
    turns = [_turned(key, type_of(op.operands[key.operand]).dtype.kind) for key in keys]

    def turned(arrays: Iterable[Any]) -> list[Any]:
        listed = list(arrays)
        return [turn(array) for turn, array in zip(turns, listed, strict=False)] + listed[len(turns) :]

    return lambda *arrays: tuple(
        turned(lax.sort(tuple(turned(arrays)), dimension=dim, is_stable=stable, num_keys=len(turns)))
    )


def _turned(key: SortKey, kind: str) -> ArrayFunction:
    """What makes the order of a key one from the smallest to the largest, and of that the key again."""
    if key.direction in ("LT", "LE"):
        return lambda array: array
    return lax.bitwise_not if kind in "iub" else lax.neg


def _keys(value: Any, arguments: list[Any]) -> list[SortKey] | None:
    """By which operands a comparator goes that gives a value; None where it asks anything else."""
    op = maker(value)
    if op is None:
        return None
    if op.name == "stablehlo.compare":
        last = _comparison(op, arguments)
        return [last] if last is not None and last.direction in ("LT", "LE", "GT", "GE") else None
    if op.name != "stablehlo.or":
        return None
    first, both = map(maker, op.operands)
    if first is None or both is None or (first.name, both.name) != ("stablehlo.compare", "stablehlo.and"):
        return None
    same, key = maker(both.operands[0]), _comparison(first, arguments)
    if same is None or key is None or same.name != "stablehlo.compare" or key.direction not in ("LT", "GT"):
        return None
    rest = _keys(both.operands[1], arguments)
    is_same = _comparison(same, arguments) == key._replace(direction="EQ")
    return [key, *rest] if is_same and rest is not None else None


def _comparison(op: ir.Operation, arguments: list[Any]) -> SortKey | None:
    """What is compared; None where that is not the two elements of one operand, or complex numbers downwards."""
    sides = [_arguments(side) for side in op.operands]
    direction, kind = word(op, "comparison_direction"), type_of(op.operands[0]).dtype.kind
    for operand in range(len(arguments) // 2):
        if sides == [{arguments[2 * operand]}, {arguments[2 * operand + 1]}]:
            return None if kind == "c" and direction in ("GT", "GE") else SortKey(operand, direction)
    return None


def _arguments(value: Any) -> set[Any]:
    """The arguments of a region that a value depends on."""
    op = maker(value)
    return {value} if op is None else {found for operand in op.operands for found in _arguments(operand)}
