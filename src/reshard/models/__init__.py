"""Whole models: many tensors with names, from where some rules put them to where others do.

names.py        patterns for names
sites.py        where tensors of one shape lie: cuts, and devices
stores.py       how a device keeps its tiles: buffers, stacked, fused, transposed
rule.py, specs.py, documents.py, systems.py, catalogue.py
                one rule; from its spec to a sharding; rules as YAML; systems and models that many people have
ruleset.py      rules, and what they say of a name
templates.py    tensors that agree, and what goes from site to site, found once for them
block_scales.py casts in blocks that share a scale, and which end makes them
buckets.py      what travels together
device_part.py  one device's messages
grouping.py     the groups of a model, and which holders send
model_plan.py, model_planner.py, model_table.py, model_page.py, model_record.py
                the plan; how it is made; what is shown of it, its page and its JSON
published.py    what others have published of such transfers
model_time.py   what it takes on a network, and the least
laid_buckets.py where a device's messages lie in the memory that it packs them into
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` gives, said to type checkers
    from reshard.models.catalogue import MODELS, ModelShape, TensorType, model_named
    from reshard.models.model_plan import ModelPlan
    from reshard.models.model_planner import plan_model
    from reshard.models.rule import Rule
    from reshard.models.ruleset import Rules

__all__ = ["MODELS", "ModelPlan", "ModelShape", "Rule", "Rules", "TensorType", "model_named", "plan_model"]

FILES = {
    **dict.fromkeys(("MODELS", "ModelShape", "TensorType", "model_named"), "catalogue"),
    "ModelPlan": "model_plan",
    "plan_model": "model_planner",
    "Rule": "rule",
    "Rules": "ruleset",
}
"""Where each name is from; it loads with its first use, so that checkpoints are read without planning."""


def __getattr__(name: str) -> Any:
    if name not in FILES:
        raise AttributeError(f"module 'reshard.models' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"reshard.models.{FILES[name]}"), name)
    globals()[name] = value
    return value
