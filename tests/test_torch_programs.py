"""Placed programs on DTensors, under real gloo processes."""

from __future__ import annotations

import traceback

import pytest

pytest.importorskip("torch")

import torch_programs
from torch_ranks import run_ranks

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

ON_FOUR = ["random_programs", "operations_of_all_kinds", "programs_on_two_meshes", "what_cannot_be_is_refused"]


def features(rank: int) -> dict[str, list[str]]:
    """What is wrong with each feature, on this rank."""
    found = {}
    for name in ON_FOUR:
        try:
            found[name] = [text for text in getattr(torch_programs, name)(rank) if text]
        except Exception:
            found[name] = [traceback.format_exc()]
    return found


@pytest.fixture(scope="module")
def on_four() -> list[dict[str, list[str]]]:
    """What four ranks find wrong with each feature."""
    return run_ranks(features, 4)


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, on_four: list[dict[str, list[str]]]) -> None:
    wrong = [text for found in on_four for text in found[name]]
    assert not wrong, "\n".join(wrong[:5])
