r"""A plan for a whole model as the record that its JSON text holds: what it was made of, and its figures.

What moves follows from the tensors, the rules of both ends and the bytes in flight, so only these are read back, and
the plan is made anew; the figures are for other readers, and those that name the plan are held against it.

By hand: a rule that puts two kinds of names on one mesh, which is written once.

>>> mesh = Mesh.of(x=2)
>>> rules = Rules.of(mesh, {"*.w": ("x", None), "*": "replicated"})
>>> record = rules_record(rules)
>>> record["meshes"], [rule["spec"] for rule in record["rules"]]
([{'axes': [['x', 2]], 'device_ids': None}], [['x', None], 'replicated'])
>>> rules_of(record) == rules
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reshard.checks import checked_shape, integer
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.models.block_scales import BlockCast, ScaledTensor
from reshard.models.catalogue import TensorType
from reshard.models.rule import Rule, Slice, StoreRule
from reshard.models.ruleset import Rules
from reshard.network import Network
from reshard.notation import parse_sharding
from reshard.plans.plan_record import reading_record, record_read
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from reshard.models.model_plan import ModelPlan

SCHEMA = "reshard.model-plan/1"
"""Names the form of the JSON text; it changes when a reader of the old form would be wrong."""
VERSION = 1
"""Of what a digest says."""


class PlanParts(NamedTuple):
    """What a plan is made of; the fields are those of `ModelPlan`."""

    names: tuple[str, ...]
    types: tuple[TensorType, ...]
    dtypes: tuple[DType, ...]
    rules: tuple[Rules, Rules]
    in_flight: int
    network: Network | None
    scaled: tuple[ScaledTensor, ...]


def parts_record(plan: ModelPlan) -> dict[str, Any]:
    """What a plan was made of; tensors of one shape and dtypes are one kind."""
    kinds: dict[Any, int] = {}
    tensors = {
        name: kinds.setdefault((tensor.shape, tensor.dtype.name, dtype.name), len(kinds))
        for name, tensor, dtype in zip(plan.names, plan.types, plan.dtypes, strict=True)
    }
    return {
        "schema": SCHEMA,
        "in_flight": plan.in_flight,
        "network": None if plan.network is None else plan.network.as_dict(),
        "source": rules_record(plan.rules[0]),
        "target": rules_record(plan.rules[1]),
        "kinds": [{"shape": list(shape), "dtype": dtype, "target_dtype": after} for shape, dtype, after in kinds],
        "kind_of": tensors,
        "scaled": [
            {
                "name": scaled.name,
                "dtype": scaled.dtype.name,
                "cast": scaled.cast.dtype.name,
                "block": list(scaled.cast.block),
                "at": scaled.at,
            }
            for scaled in plan.scaled
        ],
    }


def read_parts(text: str) -> tuple[PlanParts, dict[str, Any]]:
    """What the plan of a text is made of, and the whole record.

    Raises:
        ReshardError: `bad-plan-text`, and what rules and networks raise.
    """
    what = "a model's plan"
    record = record_read(text, SCHEMA, what)
    with reading_record(what):
        kinds = [
            (TensorType(checked_shape(kind["shape"]), dtype_named(kind["dtype"])), dtype_named(kind["target_dtype"]))
            for kind in record["kinds"]
        ]
        chosen = [kinds[integer(number, "the kind of a tensor")] for number in record["kind_of"].values()]
        network = None if record["network"] is None else Network.from_dict(record["network"])
        parts = PlanParts(
            tuple(record["kind_of"]),
            tuple(tensor for tensor, _ in chosen),
            tuple(dtype for _, dtype in chosen),
            (rules_of(record["source"]), rules_of(record["target"])),
            integer(record["in_flight"], "in_flight"),
            network,
            tuple(
                ScaledTensor(
                    fields["name"],
                    dtype_named(fields["dtype"]),
                    BlockCast(dtype_named(fields["cast"]), checked_shape(fields["block"])),
                    fields["at"],
                )
                for fields in record["scaled"]
            ),
        )
    return parts, record


def rules_record(rules: Rules) -> dict[str, Any]:
    """Rules as fields; the first of the meshes is that of all, and rules name theirs by its number.

    Raises:
        ReshardError: `cannot-express` where a spec holds objects that are no text.
    """
    meshes = {rules.mesh: 0}
    records = [_rule_record(rule, meshes) for rule in rules.rules]
    default = None if rules.default is None else _rule_record(rules.default, meshes)
    return {
        "meshes": [
            {"axes": [list(axis) for axis in mesh.axes], "device_ids": mesh.device_ids and list(mesh.device_ids)}
            for mesh in meshes
        ],
        "rules": records,
        "default": default,
        "pads": [list(pad) for pad in rules.pads],
    }


def _rule_record(rule: Rule, meshes: dict[Mesh, int]) -> dict[str, Any]:
    fields: dict[str, Any] = {"match": rule.match, "spec": _spec_record(rule)}
    if rule.mesh is not None:
        fields["mesh"] = meshes.setdefault(rule.mesh, len(meshes))
    if rule.on:
        fields["on"] = [part._asdict() for part in rule.on]
    if rule.heads is not None:
        fields["heads"] = rule.heads
    if rule.pad != 1:
        fields["pad"] = rule.pad
    if rule.store is not None:
        fields["store"] = rule.store._asdict()
    return fields


def _spec_record(rule: Rule) -> Any:
    spec = rule.spec
    if isinstance(spec, str):
        return spec
    if isinstance(spec, Sharding):
        return {"sharding": str(spec)}
    entries = [list(entry) if isinstance(entry, tuple | list) else entry for entry in spec]
    for entry in entries:
        words = entry if isinstance(entry, list) else [entry]
        if not all(word is None or isinstance(word, str) for word in words):
            raise ReshardError(
                "cannot-express", f"JSON cannot hold the spec {spec!r} of {rule.match!r}; say it as text"
            )
    return entries


def rules_of(record: Mapping[str, Any]) -> Rules:
    """Rules from their fields.

    Raises:
        ReshardError: as `Rules`, and as the notation of a spec.
    """
    meshes = []
    for fields in record["meshes"]:
        ids = fields["device_ids"]
        axes = tuple((name, size) for name, size in fields["axes"])
        meshes.append(Mesh(axes, None if ids is None else tuple(ids)))
    default = record["default"]
    return Rules(
        meshes[0],
        tuple(_rule_of(fields, meshes) for fields in record["rules"]),
        None if default is None else _rule_of(default, meshes),
        tuple((pattern, multiple) for pattern, multiple in record["pads"]),
    )


def _rule_of(fields: Mapping[str, Any], meshes: list[Mesh]) -> Rule:
    spec, store = fields["spec"], fields.get("store")
    if isinstance(spec, dict):
        spec = parse_sharding(spec["sharding"])
    elif isinstance(spec, list):
        spec = _tuples(spec)
    return Rule(
        fields["match"],
        spec,
        meshes[fields["mesh"]] if "mesh" in fields else None,
        tuple(Slice(part["axis"], _tuples(part["by"]), _tuples(part["cuts"])) for part in fields.get("on", ())),
        fields.get("heads"),
        fields.get("pad", 1),
        None if store is None else StoreRule(**{name: _tuples(value) for name, value in store.items()}),
    )


def _tuples(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def digest_of_model(plan: ModelPlan) -> str:
    """A short name for all of a plan that ranks must agree on, the same in every process."""
    state = hashlib.blake2b(digest_size=16)
    state.update(repr((VERSION, plan.in_flight, plan.names)).encode())
    for scaled in plan.scaled:
        state.update(repr((scaled.name, scaled.dtype.name, scaled.cast.dtype.name, *scaled[2:])).encode())
    numbers: dict[int, int] = {}
    for group in plan.groups:
        if id(group.moves) not in numbers:
            numbers[id(group.moves)] = len(numbers)
            tilings = group.moves.exchange.source, group.moves.exchange.target
            state.update(repr([(tiling.layout, tiling.shape) for tiling in tilings]).encode())
        said = numbers[id(group.moves)], group.first, group.dtypes[0].name, group.dtypes[1].name
        state.update(repr(said).encode())
        for numbers_of in (group.source.devices, group.target.devices, np.array(group.members)):
            state.update(np.ascontiguousarray(numbers_of, dtype="<i8").tobytes())
    return state.hexdigest()
