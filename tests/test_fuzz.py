"""Every reader of texts gives a value or a refusal, whatever it is handed, soon and in little memory.

Here a sample; `pytest -m slow tests/test_fuzz.py` goes through 200,000 texts.
"""

from __future__ import annotations

import pytest
from fuzzing import faults


def test_a_sample_of_mutated_texts_is_read_or_refused() -> None:
    assert faults(2500, seed=0) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_mutated_texts_are_read_or_refused(seed: int) -> None:
    assert faults(25_000, seed) == []
