"""What is not looked into: custom calls, and computations in which devices move data themselves.

Shardings go through a custom call as its `sdy.sharding_rule` says, its own or that which Shardy knows for its target;
without one every device has all of it.

A manual computation is a region with the shardings that it states, as in `reshard.jax.tracing.regions`.
A result that an axis does not cut while it cuts an operand was brought together inside; that is counted as a sum of
results over that axis, or as a gather of operands, whichever is cheaper.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from reshard.jax.stablehlo.mlir_attributes import type_of, word
from reshard.jax.tracing.emitter import labels
from reshard.jax.tracing.regions import Terms, is_manual
from reshard.operations.pattern import Term
from reshard.propagation import Value

if TYPE_CHECKING:
    from reshard.jax.stablehlo.modules import Reading


def custom_call(reading: Reading, op: ir.Operation, operands: Sequence[Value]) -> list[Value]:
    """The results of a call of something else."""
    name = "custom_call." + re.sub(r"[^A-Za-z0-9_]+", "_", word(op, "call_target_name"))
    if "sdy.sharding_rule" in op.attributes:
        return _by_rule(reading, op, operands, name, sdy.OpShardingRuleAttr(op.attributes["sdy.sharding_rule"]))
    reading.program.without_rule[name] += 1
    sources = list(operands) or [reading.zero()]
    terms = [labels(len(value.shape), f"a{number}_") for number, value in enumerate(sources)]
    return [
        _opaque(reading, name, sources, [*terms, labels(len(type_of(result).shape), "r")], result)
        for result in op.results
    ]


def _opaque(
    reading: Reading, name: str, operands: Sequence[Value], terms: Sequence[Term], result: ir.Value[Any]
) -> Value:
    """One result, of which and of whose operands every device has all."""
    whole = {label for term in terms for group in term for label in group}
    return reading.emit(name, operands, terms, type_of(result), replicated=tuple(sorted(whole)))


def _by_rule(
    reading: Reading, op: ir.Operation, operands: Sequence[Value], name: str, rule: sdy.OpShardingRuleAttr
) -> list[Value]:
    """The results of an operation with a rule of Shardy's: its factors are labels.

    A dim that must be whole, and is of another size than its factors, has a label of its own.
    """
    sizes: dict[str, int] = {}
    whole = {f"f{factor}" for factor in (*rule.need_replication_factors, *rule.permutation_factors)}
    summed = {f"f{factor}" for factor in rule.reduction_factors}

    def term(mapping: ir.Attribute, shape: Sequence[int], number: int) -> Term:
        groups: list[tuple[str, ...]] = []
        for dim, size in zip(sdy.TensorMappingAttr(mapping).dim_mappings, shape, strict=True):
            own = {f"f{factor}": rule.factor_sizes[factor] for factor in sdy.DimMappingAttr(dim).factor_indices}
            if prod(own.values()) != size and not whole.isdisjoint(own):
                own = {f"w{number}_{len(groups)}": size}
                whole.update(own)
            sizes.update(own)
            groups.append(tuple(own))
        return tuple(groups)

    shapes = enumerate(value.shape for value in operands)
    terms = [term(mapping, shape, n) for mapping, (n, shape) in zip(rule.operand_mappings, shapes, strict=True)]
    results = []
    for result, mapping in zip(op.results, rule.result_mappings, strict=True):
        last = term(mapping, result.type.shape, len(terms))
        used = {label for each in (*terms, last) for group in each for label in group}
        lacking = used - {label for group in last for label in group} - summed
        results.append(
            reading.emit(
                name,
                operands,
                [*terms, last],
                type_of(result),
                sizes=tuple((label, size) for label, size in sizes.items() if label in used),
                replicated=tuple(sorted((whole | lacking) & used)),
                reduction="sum" if summed else None,
            )
        )
    return results


def manual_computation(reading: Reading, op: ir.Operation, operands: Sequence[Value]) -> list[Value]:
    """The results of a region that runs on every device by itself along the manual axes."""
    manual = re.findall(r'"((?:[^"\\]|\\.)*)"', str(op.attributes["manual_axes"]))
    ins, outs = (reading.shardings(op.attributes[name]) for name in ("in_shardings", "out_shardings"))
    held = [reading.held(value, sharding) for value, sharding in zip(operands, ins, strict=True)]
    named = Terms(manual)
    terms = [named.of(value.shape, ins[number], f"a{number}_") for number, value in enumerate(held)]
    sources = held or [reading.zero()]
    results = []
    for result, sharding in zip(op.results, outs, strict=True):
        last = named.of(result.type.shape, sharding, "r")
        sizes = named.sizes_in([*terms, last])
        made = reading.emit(
            "manual_computation",
            sources,
            [*(terms or [()]), last],
            type_of(result),
            sizes=tuple(sizes.items()),
            replicated=tuple(sorted(label for label in sizes if not is_manual(label))),
            reduction="sum",
        )
        results.append(reading.held(made, sharding))
    return results
