"""The trace: what its format asks for, in order and without overlap, and the right figures."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.plans.chrome_trace import SHOWN_DEVICES, chrome_trace
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import chain_through

MESH = Mesh.of(x=2, y=4)
POINTS = [Sharding.of(MESH, *dims) for dims in (("y", None), ("x", "y"), (None, "y"), ("x", "y"))]
STEPS = chain_through(Reshard.of(POINTS[0], POINTS[-1], (16, 16)), *POINTS[1:-1])
SECONDS = [0.25, 1e-6, 0.0]


def events_of(text: str, kind: str = "X") -> list[dict]:
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == kind]


def test_every_event_has_the_keys_of_its_kind():
    text = chrome_trace(STEPS, SECONDS, MESH.devices)
    assert {event["ph"] for event in json.loads(text)["traceEvents"]} == {"M", "X"}
    for event in events_of(text):
        assert set(event) == {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"}
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    for event in events_of(text, "M"):
        assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
        assert set(event["args"]) <= {"name", "sort_index"}


def test_rows_are_in_order_and_nothing_overlaps():
    by_row: dict[int, list[dict]] = {}
    for event in events_of(chrome_trace(STEPS, SECONDS, MESH.devices)):
        by_row.setdefault(event["tid"], []).append(event)
    assert set(by_row) == set(range(9))
    for events in by_row.values():
        for earlier, later in itertools.pairwise(events):
            assert earlier["ts"] + earlier["dur"] <= later["ts"] + 1e-6


def test_the_first_row_has_the_steps_with_their_figures():
    steps = [event for event in events_of(chrome_trace(STEPS, SECONDS, MESH.devices)) if event["tid"] == 0]
    assert [event["name"] for event in steps] == ["1 Exchange", "2 AllGather", "3 Slice"]
    assert [(event["ts"], event["dur"]) for event in steps] == [(0, 250_000), (250_000, 1), (250_001, 0)]
    assert [event["args"]["received_bytes"] for event in steps] == [step.received_bytes for step in STEPS]
    assert [event["args"]["rounds"] for event in steps] == [2, 1, 0]
    assert steps[0]["args"]["axes"] == '"x", "y"'


def test_a_device_has_its_share_of_a_step():
    """By the exchange two devices keep half their tile: their row is half as long."""
    first = [event for event in events_of(chrome_trace(STEPS, SECONDS, MESH.devices)) if event["name"] == "1 Exchange"]
    received = {event["tid"] - 1: event["args"]["received_bytes"] for event in first if event["tid"]}
    assert received == {device: STEPS[0].received_bytes_on(device) for device in MESH.devices}
    lengths = {event["tid"] - 1: event["dur"] for event in first if event["tid"]}
    assert all(lengths[device] == 250_000 * received[device] / STEPS[0].received_bytes for device in lengths)


def test_of_many_devices_the_busiest_are_shown():
    mesh = Mesh.of(x=40)
    steps = chain_through(Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (81,)))
    text = chrome_trace(steps, [1.0], mesh.devices)
    rows = {event["args"]["name"] for event in events_of(text, "M") if event["name"] == "thread_name"}
    assert len(rows) == SHOWN_DEVICES + 1
    assert "steps, 24 devices not shown" in rows
    taken = sorted(steps[0].received_bytes_on(device) for device in mesh.devices)[-SHOWN_DEVICES:]
    assert sorted(e["args"]["received_bytes"] for e in events_of(text) if e["tid"]) == taken


def test_devices_of_two_meshes():
    here, there = Mesh.of(x=2), Mesh.of(x=2, device_ids=(2, 3))
    steps = chain_through(Reshard.of(Sharding.of(here, "x"), Sharding.of(there, None), (8,)))
    text = chrome_trace(steps, [1.0], (0, 1, 2, 3))
    assert [event["tid"] for event in events_of(text)] == [0, 3, 4]


def test_no_steps():
    assert events_of(chrome_trace([], [], MESH.devices)) == []


@pytest.mark.parametrize("seconds", [[1.0], [1.0, -1.0, 0.0], [1.0, math.nan, 0.0], [1.0, math.inf, 0.0], [1, "2", 3]])
def test_refused_times(seconds):
    with pytest.raises(ReshardError) as caught:
        chrome_trace(STEPS, seconds, MESH.devices)
    assert caught.value.code == "bad-argument"


def test_refused_devices():
    with pytest.raises(ReshardError, match="device 8 is in no step"):
        chrome_trace(STEPS, SECONDS, (8,))
