r"""A rule: what holds for the names that a pattern matches, before any name is known.

By hand: layers 0 to 2 on stage 0, the others on stage 1.

>>> part = Slice("pp", r"\1", cuts=(3,))
>>> match = pattern_of(r"layers\.(\d+)\..*").fullmatch("layers.3.up.weight")
>>> part.numbers(match, 2)
(1,)
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from reshard.checks import integer
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.models.names import pattern_of
from reshard.models.stores import Store
from reshard.sharding import Sharding


class Slice(NamedTuple):
    """On which part of an axis a tensor lies."""

    axis: str
    by: str | tuple[int, ...]
    """What the pattern captured, as `\\1`, or fixed numbers."""
    cuts: tuple[int, ...] | None = None
    """The first numbers of all slices but the first; None where what is captured is a slice's number itself."""

    def numbers(self, match: re.Match[str], size: int) -> tuple[int, ...]:
        """The numbers along the axis.

        Raises:
            ReshardError: `bad-argument`.
        """
        if isinstance(self.by, str):
            text = match.expand(self.by)
            if not re.fullmatch("[0-9]{1,18}", text):
                raise ReshardError("bad-argument", f"{self.by!r} of {match.string!r} is {text!r}; it must be a number")
            number = int(text)
            numbers: tuple[int, ...] = (number if self.cuts is None else bisect.bisect_right(self.cuts, number),)
        else:
            numbers = self.by
        for number in numbers:
            if not 0 <= number < size:
                raise ReshardError(
                    "bad-argument", f"{match.string!r} is put on number {number} of axis {self.axis}, which has {size}"
                )
        return numbers


class StoreRule(NamedTuple):
    """A store with what the pattern captures still to be put in; the fields are those of `Store`."""

    name: str
    stack: str | None = None
    key: str | None = None
    order: tuple[str, ...] = ()
    dim: int = 0
    groups: int = 1
    dims: tuple[int, ...] = ()

    def of(self, match: re.Match[str]) -> Store:
        """The store of a name.

        Raises:
            ReshardError: `bad-argument`.
        """
        stack = None if self.stack is None else match.expand(self.stack)
        if stack is not None and not re.fullmatch("[0-9]{1,18}", stack):
            raise ReshardError("bad-argument", f"{match.string!r} is stacked by {stack!r}, which must be a number")
        key = None if self.key is None else match.expand(self.key)
        if key is not None and key not in self.order:
            raise ReshardError("bad-argument", f"{match.string!r} is fused as {key!r}, which is none of {self.order}")
        return Store(
            match.expand(self.name),
            None if stack is None else int(stack),
            key,
            self.order,
            self.dim,
            self.groups,
            self.dims,
        )


@dataclass(frozen=True)
class Rule:
    """What holds for the names that a pattern matches."""

    match: str
    spec: str | Sharding | tuple[Any, ...] = "replicated"
    """A text, a sharding, or per dim what `Sharding.of` takes."""
    mesh: Mesh | None = None
    """Where it is another than the rules', over the same devices."""
    on: tuple[Slice, ...] = ()
    heads: int | None = None
    pad: int = 1
    store: StoreRule | None = None

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return pattern_of(self.match)

    @cached_property
    def _captured(self) -> tuple[tuple[int | None, dict[tuple[str, int], tuple[int, ...]]], ...]:
        """Per slice the group that alone says which it is, if one does, and what is known of its texts."""
        alone = [re.fullmatch(r"\\(\d+)", part.by) if isinstance(part.by, str) else None for part in self.on]
        return tuple((int(match[1]) if match else None, {}) for match in alone)

    def numbers(self, match: re.Match[str], sizes: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
        """Per slice, the numbers along its axis.

        Args:
            match: of a name.
            sizes: of the axes of the mesh.

        Raises:
            ReshardError: `bad-argument`.
        """
        result = []
        for part, (group, known) in zip(self.on, self._captured, strict=True):
            if group is None:
                result.append(part.numbers(match, sizes[part.axis]))
                continue
            key = match[group], sizes[part.axis]
            numbers = known.get(key)
            if numbers is None:
                numbers = known[key] = part.numbers(match, key[1])
            result.append(numbers)
        return tuple(result)

    def __post_init__(self) -> None:
        groups, names = self.pattern.groups, self.pattern.groupindex
        store = self.store or StoreRule("")
        for template in (store.name, store.stack, store.key, *(part.by for part in self.on)):
            for number, name in re.findall(r"\\(\d+)|\\g<(\w+)>", template) if isinstance(template, str) else ():
                if (number and int(number[:9]) > groups) or (name and not name.isdigit() and name not in names):
                    raise ReshardError(
                        "bad-argument", f"{template!r} asks for a group that {self.match!r} does not capture"
                    )
        if integer(self.pad, f"the pad of {self.match!r}") < 1:
            raise ReshardError("bad-argument", f"the pad of {self.match!r} is {self.pad}; it must be at least 1")
        if self.heads is not None and integer(self.heads, f"the heads of {self.match!r}") < 1:
            raise ReshardError("bad-argument", f"the heads of {self.match!r} are {self.heads}; there must be one")


class RuleList(NamedTuple):
    """What `Rules` are made of."""

    mesh: Mesh
    rules: tuple[Rule, ...]
    default: Rule | None = None
    pads: tuple[tuple[str, int], ...] = ()
