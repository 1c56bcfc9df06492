"""What torch traces, under real gloo processes: one exchange in the graph, the same on all ranks, or a refusal."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch_ranks import wrong_features

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

ON_FOUR = [
    "a_graph_has_one_exchange",
    "a_graph_of_lazy_tiles",
    "a_graph_of_uneven_tiles",
    "a_graph_of_ordered_shards",
    "the_compiler_sees_the_order_of_shards",
    "einsums_in_graphs",
    "a_graph_has_the_gradient",
    "shapes_alone",
    "an_exported_module",
    "what_cannot_be_traced_is_refused",
]


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """What four ranks find wrong with each feature."""
    return wrong_features("torch_traces", ON_FOUR, 4, timeout_s=20)


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[name], "\n".join(wrong[name][:5])
