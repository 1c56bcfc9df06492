"""An operation of a program: its name, its pattern, and what the pattern cannot say.

The name says what is done to the elements, the pattern which dims of the operands and of the result run over the same
index.
What a pattern cannot say is said per label:

    replicated    the operation needs all of the label's elements at once: sort, cumsum
    shifted       an element of the result is another place of an operand: slice, pad, concatenate; a device has a part
                  of the label where it is known what the operation reaches (`reaching`), else all of it
    selected      the elements that another operand names: the rows of a table

Four operations have no pattern of their own: `input`, which has no operand; `reshard`, which moves its operand to
another sharding; `constant`, one number everywhere; and `output`, under which a value leaves the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from reshard.dtypes import DType, widest
from reshard.errors import ReshardError
from reshard.operations.blocks import Block, trip_count
from reshard.operations.kinds import KINDS, LEAVING, Kind, KindForm
from reshard.operations.pattern import Pattern
from reshard.operations.reaching import Reached, reaches_of

Attribute = int | float | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a program."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    number: int
    """Its place among the values of its program, in the order in which they were made."""

    def __hash__(self) -> int:
        """By what tells values apart: they are looked up often."""
        return hash((self.name, self.number))


@dataclass(frozen=True)
class Operation:
    """What makes a value."""

    name: str
    operands: tuple[Value, ...]
    result: Value
    pattern: Pattern | None = None
    """None for the operations without one."""
    replicated: tuple[str, ...] = ()
    """Labels of which every device needs all."""
    shifted: tuple[str, ...] = ()
    """Labels whose elements change their place."""
    selected: tuple[str, ...] = ()
    """Labels of the first operand whose elements the second operand names."""
    attributes: tuple[tuple[str, Attribute], ...] = ()
    """What else the operation depends on, by name."""
    sizes: tuple[tuple[str, int], ...] = ()
    """Of all labels, where the shapes alone do not tell them."""
    reduction: str | None = None
    """How labels that the result lacks are combined, where the name does not say."""
    block: Block | None = None
    """The block in which it stands; a reshard stands where its operand can be read."""
    payload: Any = field(default=None, compare=False, repr=False)
    """What an engine keeps with an operation that came from it."""

    def with_values(self, operands: tuple[Value, ...], result: Value) -> Operation:
        """The same on other operands, with another result: `replace` in a fifth of the time, for all of a program."""
        other = object.__new__(Operation)
        other.__dict__.update(self.__dict__, operands=operands, result=result)
        other.__dict__.pop("reaches", None)
        return other

    @property
    def kind(self) -> Kind | None:
        """What it is; None of an opaque one."""
        return KINDS.get(self.name)

    def attribute(self, name: str, default: Any = None) -> Any:
        """One attribute."""
        return dict(self.attributes).get(name, default)

    @cached_property
    def reaches(self) -> tuple[Reached, ...]:
        """What its operands are read for along shifted labels, as far as that is known."""
        if self.pattern is None or not self.shifted:
            return ()
        shapes = [operand.shape for operand in self.operands]
        return reaches_of(self.name, self.pattern, shapes, dict(self.attributes), self.shifted)

    @property
    def scope(self) -> Block | None:
        """Where its result can be read: in this block, and in those within."""
        return self.block.parent if self.block is not None and self.name in LEAVING else self.block

    @property
    def trip_count(self) -> int:
        """How often its result is made."""
        return 1 if self.block is None else trip_count(self.scope)

    @property
    def arithmetic(self) -> DType:
        """What it computes in: the widest of its operands."""
        return widest(value.dtype for value in self.operands or (self.result,))

    @property
    def values(self) -> tuple[Value, ...]:
        """The operands, and last the result."""
        return (*self.operands, self.result)

    @property
    def nameless(self) -> tuple[object, ...]:
        """All that it says but what its values are called and where it stands: what equal operations share."""
        values = self.values
        shapes, dtypes = tuple([value.shape for value in values]), tuple([value.dtype for value in values])
        labels = self.replicated, self.shifted, self.selected, self.sizes
        return self.name, self.pattern, shapes, dtypes, labels, self.attributes, self.reduction

    def check_kind(self, *, is_opaque: bool) -> None:
        """Refuse what no operation of its kind can be.

        Rules, in the order checked; `bad-argument` for the number of operands, `bad-program` for the others:
            its name is in the table of kinds, or it is opaque, and not both
            it has a pattern, unless it begins or ends the program or moves a value
            it has as many operands as its kind
            it has the attributes of its kind
            a label stands twice in an operand of an einsum only, and is joined by what is opaque only
            what is done along a label names that one as replicated
            what shifts elements has the same dims in every operand and in the result
            what is done element by element, or along a label, drops no label
        """
        kind, pattern, does = self.kind, self.pattern, f"operation {self.name}"
        if kind is None and not is_opaque:
            raise ReshardError("bad-program", f"{does} is not known; one that an engine may lack must be opaque")
        if kind is not None and is_opaque:
            raise ReshardError("bad-program", f"{does} is known, and cannot be opaque")
        is_end = kind is not None and kind.form is KindForm.END
        if (pattern is None) != is_end:
            raise ReshardError("bad-program", f"{does} must have {'no' if is_end else 'a'} pattern")
        if kind is None:
            return
        kind.check_operands(self.name, len(self.operands))
        for attribute in kind.attributes:
            if attribute not in dict(self.attributes):
                raise ReshardError("bad-program", f"{does} must have the attribute {attribute}")
        if pattern is None:
            return
        if pattern.repeated and kind.form is not KindForm.CONTRACTED:
            raise ReshardError("bad-program", f"{does} of {pattern} may have no label twice in an operand")
        if pattern.joined:
            raise ReshardError("bad-program", f"{does} of {pattern} may join no label; one that is opaque may")
        if kind.form is KindForm.ALONG and len(self.replicated) != 1:
            raise ReshardError("bad-program", f"{does} must name the one replicated label that it runs along")
        if kind.form is KindForm.SHIFTED and len({*pattern.terms}) > 1:
            raise ReshardError("bad-program", f"{does} of {pattern} must have the same dims on both sides")
        if kind.form in (KindForm.ELEMENTWISE, KindForm.ALONG):
            for label in pattern.labels if pattern.reduced else ():
                if label in pattern.reduced:
                    raise ReshardError("bad-program", f"{does} of {pattern} drops label {label}")
