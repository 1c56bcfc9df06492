"""The operations of a program on the tiles of one rank.

A tile is seen with one dim per label, so that a pattern says all that is to be done; the names are among those of
`reshard.numpy.operations`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.operations.projection import Axes, labels_of
from reshard.operations.rules import REDUCTIONS, operation_rule
from reshard.propagation import Operation
from reshard.sharding import Sharding

ELEMENTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": torch.pow,
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "equal": torch.eq,
    "less": torch.lt,
    "select": lambda which, a, b: torch.where(which.bool(), a, b),
    **dict.fromkeys(("copy", "convert", "transpose", "reshape", "broadcast"), lambda a: a),
}
"""What is done element by element, by the name of the operation."""
WHOLE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sort": lambda a, dim: a.sort(dim).values,
    "cumsum": lambda a, dim: a.cumsum(dim),
    "softmax": lambda a, dim: a.softmax(dim),
}
"""What needs all elements of one dim, by the name of the operation."""
COMBINE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda a, dim: a.sum(dim),
    "product": lambda a, dim: a.prod(dim),
    "max": lambda a, dim: a.amax(dim),
    "min": lambda a, dim: a.amin(dim),
}
KNOWN = frozenset(["einsum", "slice", "pad", "concatenate", "take", *ELEMENTWISE, *WHOLE, *REDUCTIONS])


class LocalOperation:
    """An operation of a program, as one rank computes it."""

    def __init__(self, operation: Operation, shardings: Sequence[Sharding], rank: int) -> None:
        """Find the shapes of the rank's tiles.

        Args:
            operation: what is computed.
            shardings: of the operands, and last of the result.
            rank: a global rank that all of them are on.

        Raises:
            ReshardError: `bad-program` where the operation is not known here.
        """
        if operation.name not in KNOWN:
            raise _unknown(operation)
        self.operation = operation
        self.rule = operation_rule(operation)
        self.labels = [[label for group in term for label in group] for term in self.rule.terms]
        boxes = [self._by_label(term, sharding).box(rank, self._sizes(term)) for term, sharding in enumerate(shardings)]
        self.shapes = [box.shape for box in boxes]
        """Per tensor, of the rank's tile, with a dim per label."""
        self.start = boxes[0][0][0] if boxes[0] else 0
        """Where the rank's rows of the first operand begin."""
        self.shape = shardings[-1].box(rank, operation.result.shape).shape

    def _sizes(self, term: int) -> tuple[int, ...]:
        """The sizes of the dims of a tensor with one dim per label."""
        groups = zip(self.rule.terms[term], self.rule.shapes[term], strict=True)
        return tuple(
            part
            for group, size in groups
            for part in ([size] if len(group) == 1 else [self.rule.sizes[label] for label in group])
        )

    def _by_label(self, term: int, sharding: Sharding) -> Sharding:
        """A sharding with one dim per label."""
        mesh = sharding.mesh
        if mesh.is_maximal:
            return Sharding(mesh, ())
        axes: list[Axes] = []
        for group, dim in zip(self.rule.terms[term], sharding.dims, strict=True):
            axes += labels_of(group, dim.axes, self.rule.sizes, mesh.sizes).lists
        return Sharding.of(mesh, *axes, uneven=sharding.uneven)

    def __call__(self, tiles: Sequence[torch.Tensor]) -> torch.Tensor:
        """The rank's tile of the result."""
        parts = [tile.reshape(shape) for tile, shape in zip(tiles, self.shapes, strict=False)]
        dtype: torch.dtype = getattr(torch, self.operation.result.dtype.name)
        return self._apply(parts).to(dtype).reshape(self.shape).contiguous()

    def _apply(self, parts: list[torch.Tensor]) -> torch.Tensor:
        name, labels, out = self.operation.name, self.labels, self.labels[-1]
        if name == "einsum":
            kept = [label for label in out if any(label in some for some in labels[:-1])]
            pairs: list[Any] = [one for pair in zip(parts, labels, strict=False) for one in pair]
            return self._spread(torch.einsum(*pairs, kept), kept)
        if name in REDUCTIONS and len(parts) == 1:
            return self._reduced(parts[0])
        if name in ("slice", "pad", "concatenate"):
            return self._shifted(parts)
        if name == "take":
            return self._taken(*parts)
        if name in WHOLE and self.operation.replicated and self.operation.pattern is not None:
            place = self.operation.pattern.labels.index(self.operation.replicated[0])
            return WHOLE[name](parts[0], labels[0].index(place))
        if name == "reshape" and labels[0] != out:
            return self._reshaped(parts[0])
        if name in ELEMENTWISE and all(len({*some}) == len(some) and {*some} <= {*out} for some in labels):
            return ELEMENTWISE[name](*(self._spread(*pair) for pair in zip(parts, labels, strict=False)))
        raise _unknown(self.operation)

    def _spread(self, part: torch.Tensor, labels: Sequence[int]) -> torch.Tensor:
        """A tile with the labels of the result, in its order, repeated along those that it lacks."""
        out, own = self.labels[-1], list(labels)
        turned = part.permute([own.index(label) for label in out if label in own])
        return turned[tuple(slice(None) if label in own else None for label in out)].expand(self.shapes[-1])

    def _reduced(self, part: torch.Tensor) -> torch.Tensor:
        name, own, out = REDUCTIONS[self.operation.name], self.labels[0], self.labels[-1]
        for dim in reversed(range(len(own))):
            if own[dim] not in out:
                if part.shape[dim]:
                    part = COMBINE[name](part, dim)
                else:  # of nothing there is no maximum
                    shape = [*part.shape[:dim], *part.shape[dim + 1 :]]
                    part = part.new_full(shape, dtype_named(str(part.dtype).removeprefix("torch.")).identity(name))
        return self._spread(part, [label for label in own if label in out])

    def _shifted(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """A slice, a pad or a concatenation; a dim that is sharded is one that it does not change."""
        attribute, part = self.operation.attribute, parts[0]
        if self.operation.name == "concatenate":
            return torch.cat(parts, attribute("dim"))
        if self.operation.name == "slice":
            steps = zip(attribute("start"), attribute("stop"), attribute("step"), strict=True)
            shapes = zip(self.operation.operands[0].shape, self.operation.result.shape, strict=True)
            return part[tuple(slice(*s) if a != b else slice(None) for s, (a, b) in zip(steps, shapes, strict=True))]
        width = list(zip(attribute("low"), attribute("high"), strict=True))
        flat = [side for pair in reversed(width) for side in pair]  # torch has the last dim first
        return torch.nn.functional.pad(part, flat, value=attribute("value", 0))

    def _taken(self, table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the part of the table that is here; zeros for rows that are elsewhere."""
        at = rows.long() - self.start
        here = (at >= 0) & (at < len(table))
        if not len(table):
            return table.new_zeros((*rows.shape, *table.shape[1:]))
        found = table[torch.where(here, at, 0)]
        return torch.where(here.reshape(*here.shape, *[1] * (table.dim() - 1)), found, found.new_zeros(()))

    def _reshaped(self, part: torch.Tensor) -> torch.Tensor:
        """A reshape in which labels that the other side lacks are whole, and lie between those that both have."""
        own, out = self.labels
        if sorted(own) == sorted(out):
            return part.permute([own.index(label) for label in out])
        shape = [part.shape[own.index(label)] if label in own else self.rule.sizes[label] for label in out]
        if prod(shape) != part.numel():
            raise ReshardError("bad-program", f"value {self.operation.result.name}: the reshape is not local")
        return part.reshape(shape)


def _unknown(operation: Operation) -> ReshardError:
    return ReshardError("bad-program", f"value {operation.result.name}: operation {operation.name} is not known here")
