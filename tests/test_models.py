"""A whole model arrives where its rules want it, bit for bit, with no byte that a device does not lack."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from model_layouts import SMALL, SYSTEMS, WITH_EXPERTS, whole_arrays

import reshard as rs
from reshard.models import MODELS, ModelPlan

PUBLISHED = {  # parameters, tensors without scales, bytes
    "llama-3-8b": (8_030_261_248, 291, 16_060_522_496),
    "llama-3-70b": (70_553_706_496, 723, 141_107_412_992),
    "qwen3-30b-a3b": (30_532_122_624, 18_867, 61_064_245_248),
    "qwen3-235b-a22b": (235_093_634_560, 36_945, 470_187_269_120),
    "mixtral-8x7b": (46_702_792_704, 995, 93_405_585_408),
    "deepseek-v3": (671_026_419_200, 45_395, 673_150_611_808),
}


def plan_between(family: str, source: str, target: str, first: int, **options: Any) -> ModelPlan:
    model = SMALL[family]
    ends = rs.Rules.preset(source, model), rs.Rules.preset(target, model, first_device=first)
    return rs.plan_model(model.tensors(), *ends, **options)


def check_moved(plan: ModelPlan, held: dict[int, Any], wanted: dict[int, Any], first: int) -> None:
    counts: dict[int, int] = {}
    result = rs.numpy.transfer(held, plan, received_bytes=counts)
    assert sorted(result) == [first + device for device in sorted(wanted)]
    for device, buffers in wanted.items():
        got = result[first + device]
        assert sorted(got) == sorted(buffers), device
        for name, array in buffers.items():
            assert got[name].dtype == array.dtype
            assert np.array_equal(got[name], array), (device, name)
    for device in plan.devices:
        received = counts.get(device, 0)
        assert received == plan.received_bytes_on(device) == plan.lower_bound_bytes_on(device), device


def systems_of(family: str) -> dict[str, Any]:
    """Those that take the small model: three ranks do not share eight heads."""
    model = SMALL[family]
    systems = SYSTEMS | (WITH_EXPERTS if model.experts else {})
    return {system: cut for system, cut in systems.items() if "tp=3" not in system or model.heads % 3 == 0}


def check_pairs(family: str, pairs: list[tuple[str, str]]) -> None:
    """On other devices, on the same and on some of the same; in buckets that cut tensors too."""
    model, systems = SMALL[family], systems_of(family)
    whole = whole_arrays(model)
    held = {system: cut(model, whole) for system, cut in systems.items()}
    for number, (source, target) in enumerate(pairs):
        first = (0, 100, 3)[number % 3]
        in_flight = (256 << 20, 1 << 15, 3000)[number // 3 % 3]
        plan = plan_between(family, source, target, first, in_flight=in_flight)
        check_moved(plan, held[source], held[target], first)


@pytest.mark.parametrize("family", SMALL)
def test_every_system_to_another(family: str) -> None:
    systems = list(systems_of(family))
    check_pairs(family, [(system, systems[(place * 3 + 2) % len(systems)]) for place, system in enumerate(systems)])


@pytest.mark.slow
@pytest.mark.parametrize("family", SMALL)
def test_every_system_to_every_other(family: str) -> None:
    check_pairs(family, list(itertools.product(systems_of(family), repeat=2)))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_published_parameters(name: str) -> None:
    tensors = MODELS[name].tensors()
    plain = [tensor for key, tensor in tensors.items() if not key.endswith("_scale_inv")]
    figures = sum(tensor.size for tensor in plain), len(plain), sum(tensor.nbytes for tensor in tensors.values())
    assert figures == PUBLISHED[name]
