r"""Rules: which sharding a tensor has by its name, on which part of the mesh, and how devices keep it.

The first rule whose pattern matches a name decides; a name that none matches takes the default, or is refused.
A rule's spec is of the tensor as it is called and shaped by itself, whatever it is fused or stacked with in memory.

    spec      a sharding in any text form, a PartitionSpec, or a style: colwise, rowwise, replicated, …
    on        the slice of an axis that a name lies on: a fixed number, numbers, or what the pattern captured, and cuts
              where the numbers are more than the slices: [24, 47, 70] puts 0-23 on slice 0, 24-46 on slice 1, …
    heads     how many heads the dim that is cut consists of: a cut goes between heads, and where there are fewer heads
              than devices, neighbours hold the same one
    pad       the multiple that dim 0 is padded to before it is cut
    store     the buffer, stacking, fusing and order of dims (see `stores`)

>>> mesh = Mesh.of(data=2, model=4)
>>> rules = Rules.of(mesh, {r".*\.(q|k|v)_proj\.weight": '[{"model"}, {}]', "*norm*": "replicated"})
>>> print(rules.sharding("layers.3.q_proj.weight", (8, 4)).text(), rules.sharding("norm.weight", (4,)).text())
[{"model"}, {}] [{}]
>>> rules.sharding("o_proj", (8, 4))
Traceback (most recent call last):
    ...
reshard.errors.ReshardError: no rule matches 'o_proj'; the nearest patterns are '.*\\.(q|k|v)_proj\\.weight', '*norm*'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reshard.checks import checked_shape, expect, integer, listed, shown
from reshard.errors import ReshardError
from reshard.foreign import whole_mesh_record
from reshard.mesh import Mesh
from reshard.models.documents import load, rule_of
from reshard.models.names import nearest, pattern_of
from reshard.models.rule import Rule
from reshard.models.sites import Site
from reshard.models.specs import cuts_of
from reshard.models.stores import Store
from reshard.models.systems import system_rules
from reshard.notation import as_mesh
from reshard.notation.described import described
from reshard.notation.grammar import mentioning
from reshard.sharding import Sharding

LITERAL = re.compile(r"(?:\w|\\\W)+")
"""A pattern that matches one name alone."""


class Ruled(NamedTuple):
    """What the rules say of one name."""

    site: Site
    rule: Rule
    match: re.Match[str]

    def store(self) -> Store:
        """How devices keep it: by its own name where nothing else is said."""
        return Store(self.match.string) if self.rule.store is None else self.rule.store.of(self.match)


@dataclass(frozen=True)
class Rules:
    """Rules in their order, over the devices of a mesh."""

    mesh: Mesh
    rules: tuple[Rule, ...]
    default: Rule | None = None
    """For names that no rule matches; None where these are refused."""
    pads: tuple[tuple[str, int], ...] = ()
    """By pattern, the multiple that dim 0 is padded to; the first that matches, for rules that say none themselves."""
    _sites: dict[Any, Site] = field(default_factory=dict, init=False, repr=False, compare=False)
    _cuts: dict[Any, tuple[Sharding, tuple[int, ...] | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for rule in self.rules:
            mesh = rule.mesh or self.mesh
            if mesh is not self.mesh and not mesh.is_part_of(self.mesh):
                raise ReshardError(
                    "different-meshes", f"rule {rule.match!r} is on mesh {mesh}, not on the devices of all"
                )
            for part in rule.on:
                if part.axis not in mesh.sizes:
                    raise ReshardError(
                        "unknown-axis", f"rule {rule.match!r} is on axis {part.axis!r}, not in mesh {mesh}"
                    )
                cuts = part.cuts or ()
                if len(cuts) >= mesh.sizes[part.axis] or list(cuts) != sorted(set(cuts)):
                    raise ReshardError(
                        "bad-argument",
                        f"the cuts {list(cuts)} must grow and be fewer than the {mesh.sizes[part.axis]} of {part.axis}",
                    )
        for pattern, _ in self.pads:
            pattern_of(pattern)

    @classmethod
    def of(
        cls,
        mesh: Any,
        rules: Mapping[str, Any] | Iterable[Rule],
        default: Any = None,
        pads: Mapping[str, int] | None = None,
    ) -> Rules:
        """Rules from loose input.

        Args:
            mesh: the devices: ours, a text, or JAX's or torch's.
            rules: by pattern a spec or the fields of a rule, in order; or rules.
            default: the same for names that no pattern matches; None refuses them.
            pads: by pattern, the multiple that dim 0 is padded to.

        Raises:
            ReshardError: `bad-argument`, `syntax`, `unknown-axis`, `different-meshes`.
        """
        mesh = as_mesh(mesh)
        if isinstance(rules, Mapping):
            checked = [rule_of(pattern, value) for pattern, value in rules.items()]
        else:
            checked = [expect(rule, Rule, "each of the rules") for rule in listed(rules, "rules")]
        padding = tuple((key, integer(value, f"the pad of {key!r}")) for key, value in (pads or {}).items())
        return cls(mesh, tuple(checked), None if default is None else rule_of(".*", default), padding)

    @classmethod
    def load(cls, path: str | Path, mesh: Mesh | None = None) -> Rules:
        """Rules from a YAML file, on its mesh or on the one given.

        Raises:
            ReshardError: `bad-file` where the file cannot be read, `syntax` where it says something else than rules.
        """
        return cls(*load(path, mesh))

    @classmethod
    def preset(cls, system: str, model: Any = None, *, first_device: int = 0) -> Rules:
        """The rules of a system that many people have, as `vllm:tp=8` or `fsdp:8`.

        Args:
            system: its name and its sizes.
            model: a model's name, as `qwen3-30b-a3b`, or its description.
            first_device: the number of the first device; the others follow.

        Raises:
            ReshardError: `bad-argument`.

        >>> print(Rules.preset("fsdp:4").sharding("model.norm.weight", (8,)).text())
        [{"dp"}]
        """
        return cls(*system_rules(system, model, first_device))

    @classmethod
    def held_by(cls, tensors: Mapping[str, Any]) -> Rules:
        """The rules that live tensors follow: each by its name, where it lies.

        A DTensor on a slice of a mesh is taken as replicated over the rest of it, for each rank has its own slice.

        Args:
            tensors: by name DTensors, arrays of JAX, or whatever else says its sharding, shape and dtype.

        Raises:
            ReshardError: `unknown-mesh` where one does not say where it lies; `bad-argument`.
        """
        rules = []
        for name, tensor in tensors.items():
            with mentioning(f"tensor {name!r}"):
                sharding = _on_whole_mesh(described([tensor], [None])[0].sharding, tensor)
            rules.append(Rule(re.escape(name), sharding, sharding.mesh))
        devices = sorted({device for rule in rules if rule.mesh for device in rule.mesh.devices})
        return cls(Mesh.of(devices=len(devices), device_ids=devices), tuple(rules))

    def __getstate__(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("mesh", "rules", "default", "pads")}
        return fields | {"_sites": {}, "_cuts": {}}  # keyed by what is in this process

    @cached_property
    def _mesh_numbers(self) -> dict[int, int]:
        """By the identity of every mesh a number, the same for equal meshes, and in every process."""
        numbers: dict[Mesh, int] = {}
        owners = [rule for rule in (*self.rules, self.default) if rule is not None]
        meshes = [self.mesh, *(rule.mesh for rule in owners if rule.mesh is not None)]
        return {id(mesh): numbers.setdefault(mesh, len(numbers)) for mesh in meshes}

    @cached_property
    def _by_name(self) -> dict[str, Rule]:
        """Rules by the one name that each matches, where all are so."""
        literals = {re.sub(r"\\(\W)", r"\1", rule.match): rule for rule in self.rules if LITERAL.fullmatch(rule.match)}
        return literals if len(literals) == len(self.rules) else {}

    @cached_property
    def _matchers(self) -> list[tuple[Rule, Callable[[str], re.Match[str] | None]]]:
        return [(rule, rule.pattern.fullmatch) for rule in self.rules]

    def ruled(self, name: str, shape: Sequence[int]) -> Ruled:
        """What the rules say of a tensor.

        Raises:
            ReshardError: `bad-argument` where no rule matches; `rank-mismatch` and others where a rule does not fit.
        """
        literal = self._by_name.get(name)
        for rule, fullmatch in self._matchers if literal is None else [(literal, literal.pattern.fullmatch)]:
            match = fullmatch(name)
            if match is not None:
                return Ruled(self._site(rule, match, tuple(shape)), rule, match)
        if self.default is None:
            patterns = nearest(name, (rule.match for rule in self.rules))
            raise ReshardError("bad-argument", f"no rule matches {name!r}; the nearest patterns are {patterns}")
        match = self.default.pattern.fullmatch(name)
        if match is None:
            raise ReshardError("bad-argument", f"no rule matches {shown(name)}")
        return Ruled(self._site(self.default, match, tuple(shape)), self.default, match)

    def sharding(self, name: str, shape: Sequence[int]) -> Sharding:
        """The sharding of a tensor, on a mesh of the devices that hold it.

        Raises:
            ReshardError: as `ruled`.
        """
        return self.ruled(expect(name, str, "a name"), checked_shape(shape)).site.sharding

    def store(self, name: str, shape: Sequence[int]) -> Store:
        """How devices keep a tensor.

        Raises:
            ReshardError: as `ruled`.
        """
        return self.ruled(name, checked_shape(shape)).store()

    def _site(self, rule: Rule, match: re.Match[str], shape: tuple[int, ...]) -> Site:
        mesh = rule.mesh or self.mesh
        numbers = rule.numbers(match, mesh.sizes) if rule.on else ()
        pad = rule.pad
        if pad == 1 and self.pads:
            pad = next((value for text, value in self.pads if pattern_of(text).fullmatch(match.string)), 1)
        key = (id(rule), numbers, shape, pad)
        site = self._sites.get(key)
        if site is None:
            counts = tuple(map(len, numbers))
            if (id(rule), counts, shape, pad) not in self._cuts:
                with mentioning(f"tensor {match.string!r}"):
                    self._cuts[id(rule), counts, shape, pad] = cuts_of(rule, mesh, counts, shape, pad)
            cuts, padded = self._cuts[id(rule), counts, shape, pad]
            places = mesh.device_array.reshape([size for _, size in mesh.axes])
            for part, chosen in zip(rule.on, numbers, strict=True):
                places = np.take(places, chosen, axis=list(mesh.sizes).index(part.axis))
            is_single = all(count == 1 for count in counts)
            family = (self._mesh_numbers[id(mesh)], tuple(part.axis for part in rule.on), () if is_single else numbers)
            site = self._sites[key] = Site(shape, cuts, padded, places.ravel(), family, (family, numbers))
        return site


def _on_whole_mesh(sharding: Sharding, tensor: Any) -> Sharding:
    """The sharding on the mesh that a live tensor's is a slice of."""
    record = whole_mesh_record(tensor)
    whole = None if record is None else Mesh.of_record(record)
    if whole is None or any(whole.sizes.get(name) != size for name, size in sharding.mesh.axes):
        return sharding
    return replace(sharding, mesh=whole) if set(sharding.mesh.devices) <= set(whole.devices) else sharding
