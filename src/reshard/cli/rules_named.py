"""Rules as options name them; they load with the first that is named."""

from __future__ import annotations

from pathlib import Path

from reshard import models


def rules_named(text: str, model: str | None, first_device: int) -> models.Rules:
    """The rules of a system, or of a file.

    Raises:
        ReshardError: `bad-argument`, `bad-file`, `syntax`.
    """
    if text.endswith((".yaml", ".yml")) or Path(text).is_file():
        return models.Rules.load(text)
    return models.Rules.preset(text, model, first_device=first_device)
