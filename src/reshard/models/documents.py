r"""Rules as YAML: read strictly, so that what a file seems to say is what it says.

A key that stands twice, an alias, a key that is no text, and a spec that YAML took for something else than text are
refused; nothing in a file names a Python object.

>>> text = '''
... mesh: {pp: 2, model: 4}
... rules:
...   - {match: 'layers\\.(\\d+)\\..*', spec: colwise, on: {pp: '\\1', cuts: [3]}}
... default: replicated
... '''
>>> parse_rules(text, "rules.yaml").rules[0].on
(Slice(axis='pp', by='\\1', cuts=(3,)),)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reshard.checks import integer, listed, shown
from reshard.errors import ReshardError, refusing
from reshard.mesh import Mesh
from reshard.models.rule import Rule, RuleList, Slice, StoreRule
from reshard.notation import parse_mesh
from reshard.sharding import Sharding

MAX_BYTES = 2**22
"""Of a file that is read at the most."""
FIELDS = {"match", "spec", "mesh", "on", "heads", "pad", "store"}
STORE_FIELDS = {"name", "stack", "concat", "transpose"}
CONCAT_FIELDS = {"key", "order", "dim", "groups"}


def load(path: str | Path, mesh: Mesh | None = None) -> RuleList:
    """Rules from a file.

    Raises:
        ReshardError: `bad-file`, `syntax`, and what `Rules` refuses.
    """
    path = Path(path)
    with refusing("bad-file", f"{path} could not be read"), path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ReshardError("bad-file", f"{path} is longer than the {MAX_BYTES} bytes that rules may have")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ReshardError("bad-file", f"{path} is no text in UTF-8") from None
    return parse_rules(text, str(path), mesh)


def parse_rules(text: str, path: str, mesh: Mesh | None = None) -> RuleList:
    """Rules from the text of a file, on its mesh or on the one given.

    Raises:
        ReshardError: `syntax`, and what `Rules` refuses.
    """
    document = _mapping(_load(text, path), path, {"mesh", "meshes", "rules", "default", "pad"})
    if mesh is None:
        if "mesh" not in document:
            raise ReshardError("syntax", f"{path} must give its mesh, as mesh: {{data: 4, model: 8}}")
        mesh = _mesh(document["mesh"], f"the mesh of {path}")
    meshes = {
        name: _mesh(value, f"mesh {name!r} of {path}", mesh.device_ids)
        for name, value in _mapping(document.get("meshes", {}), f"the meshes of {path}").items()
    }
    entries = document.get("rules", [])
    if not isinstance(entries, list):
        raise ReshardError("syntax", f"the rules of {path} must be a list, got: {shown(entries)}")
    default = document.get("default")
    pads = _mapping(document.get("pad", {}), f"the pads of {path}")
    return RuleList(
        mesh,
        tuple(read_rule(entry, meshes) for entry in entries),
        None if default is None else rule_of(".*", default),
        tuple((key, integer(value, f"the pad of {key!r}")) for key, value in pads.items()),
    )


def rule_of(pattern: str, value: Any) -> Rule:
    """A rule from its pattern and a spec, a PartitionSpec, or a mapping of its fields.

    Raises:
        ReshardError: `bad-argument`, `syntax`.
    """
    if isinstance(value, str | Sharding):
        return Rule(pattern, value)
    if isinstance(value, Mapping):
        return read_rule({"match": pattern, **value}, {})
    return Rule(pattern, tuple(listed(value, f"the spec of {pattern!r}")))  # a PartitionSpec lists its dims


def read_rule(entry: Any, meshes: Mapping[str, Mesh]) -> Rule:
    """A rule from its fields.

    Args:
        entry: the fields by name.
        meshes: those that a rule may name.

    Raises:
        ReshardError: `syntax`, `bad-argument`.
    """
    fields = _mapping(entry, f"a rule, {shown(entry)},", FIELDS)
    match = fields.get("match")
    if not isinstance(match, str):
        raise ReshardError("syntax", f"a rule must have a match, got: {shown(entry)}")
    spec = fields.get("spec", "replicated")
    if not isinstance(spec, str):
        raise ReshardError("syntax", f"the spec of {match!r} is {shown(spec)}; quote it, so that it is a text")
    mesh = fields.get("mesh")
    if mesh is not None and (not isinstance(mesh, str) or mesh not in meshes):
        raise ReshardError(
            "unknown-mesh", f"rule {match!r} is on mesh {shown(mesh)}, none of {', '.join(meshes) or '-'}"
        )
    return Rule(
        match,
        spec,
        None if mesh is None else meshes[mesh],
        _slices(fields.get("on", {}), match),
        fields.get("heads"),
        fields.get("pad", 1),
        _store(fields["store"], match) if "store" in fields else None,
    )


def _slices(value: Any, match: str) -> tuple[Slice, ...]:
    on = dict(_mapping(value, f"the on of {match!r}"))
    cuts = on.pop("cuts", {})
    if isinstance(cuts, list):
        if len(on) != 1:
            raise ReshardError("syntax", f"the cuts of {match!r} must be by axis, as it is on {len(on)} axes")
        cuts = dict.fromkeys(on, cuts)
    by_axis = _mapping(cuts, f"the cuts of {match!r}", set(on))
    slices = []
    for axis, by in on.items():
        numbers = [by] if isinstance(by, int) else by
        if not isinstance(by, str):
            if not isinstance(numbers, list) or not numbers:
                raise ReshardError("syntax", f"{match!r} must be on numbers of {axis} or on what it captures, as '\\1'")
            by = tuple(integer(number, f"where {match!r} is on {axis}") for number in numbers)
        starts = by_axis.get(axis)
        if starts is not None and not isinstance(starts, list):
            raise ReshardError("syntax", f"the cuts of {match!r} must be a list of numbers, got: {shown(starts)}")
        known = None if starts is None else tuple(integer(start, f"a cut of {match!r}") for start in starts)
        slices.append(Slice(axis, by, known))
    return tuple(slices)


def _store(value: Any, match: str) -> StoreRule:
    fields = _mapping(value, f"the store of {match!r}", STORE_FIELDS)
    concat = _mapping(fields.get("concat", {}), f"the concat of {match!r}", CONCAT_FIELDS)
    texts = [fields.get("name", "\\g<0>"), fields.get("stack", ""), concat.get("key", "")]
    order = concat.get("order", [])
    if not all(isinstance(text, str) for text in texts) or not isinstance(order, list):
        raise ReshardError("syntax", f"the store of {match!r} must have texts for name, stack and key; quote them")
    if ("key" in concat) != ("order" in concat) or not all(isinstance(word, str) for word in order):
        raise ReshardError("syntax", f"the concat of {match!r} must have a key and an order of words")
    transpose = fields.get("transpose", [])
    if transpose is True:
        transpose = [1, 0]
    if transpose is False:
        transpose = []
    if not isinstance(transpose, list):
        raise ReshardError("syntax", f"the transpose of {match!r} must be true or a list of dims")
    return StoreRule(
        texts[0],
        texts[1] if "stack" in fields else None,
        texts[2] if concat else None,
        tuple(order),
        integer(concat.get("dim", 0), f"the dim of {match!r}"),
        max(1, integer(concat.get("groups", 1), f"the groups of {match!r}")),
        tuple(integer(dim, f"a dim of {match!r}") for dim in transpose),
    )


def _mesh(value: Any, what: str, device_ids: tuple[int, ...] | None = None) -> Mesh:
    if isinstance(value, str):  # in any of its text forms
        mesh = parse_mesh(value)
        return mesh if device_ids is None or mesh.device_ids is not None else Mesh.of(mesh.sizes, device_ids=device_ids)
    sizes = dict(_mapping(value, what))
    ids = sizes.pop("device_ids", device_ids)
    return Mesh.of(sizes, device_ids=ids)


def _mapping(value: Any, what: str, known: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ReshardError("syntax", f"{what} must be fields by name, got: {shown(value)}")
    unknown = [key for key in value if known is not None and key not in known]
    if unknown:
        raise ReshardError("syntax", f"{what} has a field {unknown[0]!r}, none of {', '.join(sorted(known or ()))}")
    return value


def _load(text: str, path: str) -> Any:
    """What a YAML text says.

    Raises:
        ReshardError: `syntax`, `missing-extra`.
    """
    try:
        import yaml  # noqa: PLC0415  # loads with the first file
    except ImportError:
        raise ReshardError("missing-extra", "to read rules from YAML PyYAML is needed: pip install pyyaml") from None

    class StrictLoader(yaml.SafeLoader):
        """Refuses what reads as one thing and means another."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ReshardError("syntax", f"{path} has an alias, which rules may not have")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if not isinstance(key, str):
                    raise ReshardError("syntax", f"{path} has the key {shown(key)}, which is no text; quote it")
                if keys.count(key) > 1:
                    raise ReshardError("syntax", f"{path} has the key {shown(key)} twice")
            return super().construct_mapping(node, deep)

    # `on` and `no` are words here, as in later versions of YAML
    StrictLoader.yaml_implicit_resolvers = {
        letter: [(tag, words) for tag, words in resolvers if tag != "tag:yaml.org,2002:bool" or letter in "tTfF"]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return yaml.load(text, StrictLoader)  # a SafeLoader, made stricter
    except ReshardError:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "a character that no text has"
        raise ReshardError("syntax", f"{path} is no YAML{place}: {problem}") from None
    except RecursionError:
        raise ReshardError("syntax", f"{path} is nested too deep") from None
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # a scalar that is not what its tag says
        raise ReshardError("syntax", f"{path} has a value that YAML cannot read: {shown(str(error))}") from None
