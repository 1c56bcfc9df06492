"""Every operation by its name: one row each, and all that the rest of the house asks about an operation.

A pattern says which dims run over the same index; the kind says what is done there: in what form, to how many
operands, with which attributes, how what the result lacks is combined, and for which unreduced operands it may wait.
To add an operation, give it a row here, and a function in the `verbs.py` of any engine that has none of that name.

A name without a row is refused unless the operation is declared opaque: then its pattern carries shardings and its
price is counted as any other's, but only the engine that brought it along can compute it.

By hand: a sum may wait until an `add` is done if all its operands are to be added up, as (a0 + a1) + (b0 + b1) is
(a0 + b0) + (a1 + b1); a product only if one factor is, as (a0 + a1) * b is a0 * b + a1 * b.

>>> KINDS["add"].waiting, KINDS["einsum"].waiting, KINDS["exp"].waiting_for
(<Waiting.ALL: 'all'>, <Waiting.ANY: 'any'>, frozenset())
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from reshard.dtypes import REDUCTIONS
from reshard.errors import ReshardError


class KindForm(Enum):
    """How an operation comes to its result."""

    END = "end"
    """Not at all: it begins or ends the program, or moves a value to another sharding. It has no pattern."""
    ENTERING = "entering"
    """By going into a loop: an end of the block, as those that leave one."""
    LEAVING = "leaving"
    """By going out of a loop or a choice."""
    MOVED = "moved"
    """The elements as they are: in another order of dims or another shape, repeated, in another dtype."""
    SHIFTED = "shifted"
    """The elements at other places of a dim: a slice, a pad, a concatenation, a roll, a reversal."""
    INDEXED = "indexed"
    """The elements at given places, each by the device that has it."""
    COUNTED = "counted"
    """The numbers of the places themselves."""
    ELEMENTWISE = "elementwise"
    """Every element from those at its place in the operands, which are repeated along the labels that they lack."""
    CONTRACTED = "contracted"
    """The operands multiplied, and labels that the result lacks summed."""
    REDUCED = "reduced"
    """Labels that the result lacks combined."""
    ALONG = "along"
    """All elements along one label at once, which is the one that is said to be replicated."""


class Waiting(Enum):
    """Which operands may be unreduced together, so that the result is in their place."""

    ALL = "all"
    ANY = "any"
    """One of them, any one."""
    FIRST = "first"


ALL_REDUCTIONS = frozenset(REDUCTIONS)
SUM = frozenset(["sum"])


@dataclass(frozen=True, slots=True)
class Kind:
    """What an operation is, but for its pattern."""

    form: KindForm
    operands: int | None = 1
    """How many; None for one or more."""
    attributes: tuple[str, ...] = ()
    """Without which it says nothing."""
    options: tuple[str, ...] = ()
    """Attributes that may be left out."""
    reduction: str | None = None
    """How labels that the result lacks are combined, so that devices may each combine a part; None where they are
    not."""
    waiting_for: frozenset[str] = frozenset()
    """The reductions under which operands may be unreduced; of an operation that fills, only if with zeros."""
    waiting: Waiting = Waiting.ALL
    """Which of them."""
    function: str = ""
    """What NumPy calls it, and others after NumPy, if they have it."""

    def check_operands(self, name: str, count: int) -> None:
        """Refuse an operation of another number of operands.

        Raises:
            ReshardError: `bad-argument`.
        """
        if count != self.operands if self.operands is not None else not count:
            counts = {None: "operands", 0: "no operands", 1: "one operand"}
            expected = counts.get(self.operands, f"{self.operands} operands")
            raise ReshardError("bad-argument", f"operation {name} must have {expected}, got {count}")


def _each(names: str, *kind: Any, **fields: Any) -> dict[str, Kind]:
    """A kind under several names, each with that of its function behind it, where that is another."""
    pairs = (text.partition("=") for text in names.split())
    return {name: Kind(*kind, **fields | {"function": function}) for name, _, function in pairs}


KINDS: dict[str, Kind] = {
    "input": Kind(KindForm.END, 0),
    "constant": Kind(KindForm.END, 0, ("value",)),
    "reshard": Kind(KindForm.END, waiting_for=ALL_REDUCTIONS),
    "output": Kind(KindForm.END, waiting_for=ALL_REDUCTIONS),
    **_each("carry element", KindForm.ENTERING),
    "last": Kind(KindForm.LEAVING, 2),
    **_each("stack test", KindForm.LEAVING),
    "chosen": Kind(KindForm.LEAVING, None),
    **_each("transpose reshape broadcast", KindForm.MOVED, waiting_for=ALL_REDUCTIONS),
    "copy": Kind(KindForm.MOVED, 1, (), ("barrier",), waiting_for=ALL_REDUCTIONS),
    "convert": Kind(KindForm.MOVED, waiting_for=SUM),  # from float to float, so that sums of it are sums
    "cast": Kind(KindForm.MOVED),
    "slice": Kind(KindForm.SHIFTED, 1, ("start", "stop", "step"), waiting_for=ALL_REDUCTIONS),
    "pad": Kind(KindForm.SHIFTED, 1, ("low", "high"), ("value", "step"), waiting_for=ALL_REDUCTIONS),
    "concatenate": Kind(KindForm.SHIFTED, None, ("dim",), waiting_for=ALL_REDUCTIONS),
    "roll": Kind(KindForm.SHIFTED, 1, ("dims", "shifts"), ("sizes",), waiting_for=ALL_REDUCTIONS),
    "reverse": Kind(KindForm.SHIFTED, 1, ("dims",), waiting_for=ALL_REDUCTIONS),
    "take": Kind(KindForm.INDEXED, 2, waiting_for=SUM, waiting=Waiting.FIRST),
    "pick": Kind(KindForm.INDEXED, 1, ("dims", "start"), waiting_for=SUM),
    "put": Kind(KindForm.INDEXED, 1, ("dims", "start", "value")),
    "iota": Kind(KindForm.COUNTED, 1, ("dim",)),
    "einsum": Kind(KindForm.CONTRACTED, None, reduction="sum", waiting_for=SUM, waiting=Waiting.ANY),
    **{
        name: Kind(KindForm.REDUCED, reduction=name, waiting_for=frozenset([name]))
        for name in ("sum", "max", "min", "product")
    },
    **_each("sort softmax", KindForm.ALONG),
    # An element is made of those up to its place, or of the number `before` and those before it; `reverse` is 0 or 1.
    **_each("cumsum cumprod cummax cummin cumlogsumexp", KindForm.ALONG, 1, (), ("before", "reverse")),
    **_each(
        "abs cbrt ceil conj cos cosh erf exp exp2 expm1 floor log log1p relu rsqrt sigmoid sign silu sin sinh sqrt "
        "square stop_gradient tan tanh is_finite=isfinite not=invert",
        KindForm.ELEMENTWISE,
    ),
    **_each("neg=negative real imag", KindForm.ELEMENTWISE, waiting_for=SUM),
    "integer_pow": Kind(KindForm.ELEMENTWISE, 1, ("y",)),
    "round": Kind(KindForm.ELEMENTWISE, 1, (), ("rounding_method",)),
    **_each("add sub=subtract", KindForm.ELEMENTWISE, 2, waiting_for=SUM),
    **_each(
        "mul=multiply div rem=fmod pow=power atan2=arctan2 maximum minimum equal ne=not_equal less le=less_equal "
        "gt=greater ge=greater_equal and=bitwise_and or=bitwise_or xor=bitwise_xor complex logaddexp",
        KindForm.ELEMENTWISE,
        2,
    ),
    **_each("select=where clamp", KindForm.ELEMENTWISE, 3),
    "select_n": Kind(KindForm.ELEMENTWISE, None),
}
"""Every operation that the engines know."""
ENTERING = frozenset(name for name, kind in KINDS.items() if kind.form is KindForm.ENTERING)
"""Ends that bring a value into a loop."""
LEAVING = frozenset(name for name, kind in KINDS.items() if kind.form is KindForm.LEAVING)
"""Ends that bring a value out of a block."""
