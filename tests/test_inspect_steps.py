"""Training steps with AdamW: what `inspect` advises is worth it and saves what it says; all of them are slow."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from jax_steps import STEPS, as_advised, by_constraints, report_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ADVISED = {"tensor parallel": 0, "sequence to heads": 8, "experts": 4}
"""How often each has a better way, in its derivative too."""


@pytest.mark.parametrize("name", STEPS)
def test_an_advice_that_is_followed_saves_what_it_said(name: str) -> None:
    before, after = report_of(name, by_constraints), report_of(name, as_advised)
    assert all(finding.ratio > 1.05 and finding.saved_bytes > 0 for finding in before.findings)
    assert str(before).count("instead") == len(before.findings) == ADVISED[name]
    said = sum(finding.saved_bytes for finding in before.findings)
    assert before.received_bytes - after.received_bytes == said
    assert after.findings == []
    assert before.placed_bytes is not None, before.placed_why
    assert before.placed_bytes < after.received_bytes
