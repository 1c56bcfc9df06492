"""Public functions of the engines say what they take and give: a checker sees no `Any` in their place."""

from __future__ import annotations

import inspect

import pytest

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_no_public_function_takes_any(engine: str) -> None:
    room = getattr(__import__(f"reshard.{engine}"), engine)
    loose = [
        f"{name}({parameter.name})"
        for name in room.__all__
        if inspect.isfunction(function := getattr(room, name))
        for parameter in inspect.signature(function).parameters.values()
        if parameter.annotation == "Any" and parameter.kind is not parameter.VAR_KEYWORD
    ]
    assert loose == []
