"""Networks as they are described: measured, named, refused, printed."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import FAMILIES, Level, Network, seconds_of
from reshard.network.calibration import Pairs
from reshard.network.engine_fit import fitted_to_engine
from reshard.planner import plan
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Step

# calibration


def noisy(network: Network, rng: Random, *, spread: float, stalls: float = 0.0):  # type: ignore[no-untyped-def]
    def time_exchange(level: int, n_bytes: int, pairs: tuple[tuple[int, int], ...]) -> float:
        found = network.levels[level]
        for ends in zip(*pairs, strict=True):  # every device sends once and receives once
            assert sorted(ends) == list(range(network.size))
        across = [other.digit for place, other in enumerate(network.levels) if place != level]
        for here, there in pairs:
            assert all(digit.value(here) == digit.value(there) for digit in across)
            assert (found.digit.value(there) - found.digit.value(here)) % found.size == 1
        seconds = found.latency_s + n_bytes / found.bandwidth
        return seconds * rng.lognormvariate(0, spread) * (8 if rng.random() < stalls else 1)

    return time_exchange


@pytest.mark.parametrize(("spread", "stalls", "within"), [(0.0, 0.0, 1e-6), (0.05, 0.0, 0.08), (0.05, 0.15, 0.15)])
def test_calibration_finds_the_network_that_was_timed(spread: float, stalls: float, within: float) -> None:
    true = Network(
        (Level(1, 8, "switch", 3e11, 4e-6), Level(8, 4, "ring", 4e10, 2e-5)), memory_bandwidth=1e12, name="true"
    )
    guess = Network(
        (Level(1, 8, "switch", 1e9, 0.0), Level(8, 4, "ring", 1e9, 0.0)), memory_bandwidth=1e12, name="guess"
    )
    found, report = guess.calibrate(noisy(true, Random(3), spread=spread, stalls=stalls), repeats=5)
    for level, fit, wanted in zip(found.levels, report.levels, true.levels, strict=True):
        assert level.bandwidth == fit.bandwidth == pytest.approx(wanted.bandwidth, rel=within)
        assert level.latency_s == fit.latency_s == pytest.approx(wanted.latency_s, rel=within)
        assert (level.stride, level.size, level.link) == (wanted.stride, wanted.size, wanted.link)
        assert fit.r2 > 0.99
        assert fit.median_relative_error <= max(within, 1e-6)
        assert [size for size, *_ in fit.held_out] == [2**12, 2**18, 2**24]
    assert (found.memory_bandwidth, found.name) == (1e12, "guess-calibrated")
    assert len(str(report).splitlines()) == 3


def test_calibration_refuses_what_it_cannot_fit() -> None:
    network = Network((Level(1, 2, "switch", 1e9, 0.0),))
    with pytest.raises(ReshardError, match="do not grow") as error:
        network.calibrate(lambda level, n_bytes, pairs: 1 / n_bytes)
    assert error.value.code == "bad-network"
    for options, timer in (({"sizes": (1, 2, 3)}, lambda *_: 1.0), ({}, lambda *_: 0.0), ({}, lambda *_: float("nan"))):
        with pytest.raises(ReshardError) as error:
            network.calibrate(timer, **options)
        assert error.value.code == "bad-argument"


def test_an_engine_is_fitted_with_what_its_plans_take_besides() -> None:
    """Whatever a message takes, ranks of one machine get bytes along two axes one after the other; hosts at once."""
    mesh = Mesh.of(a=2, b=2)
    guess = Network.of(mesh, a=("switch", 1e9, 1e-6), b=("switch", 1e9, 1e-6))
    machine = Network((Level(1, 4, "switch", 2e9, 3e-5),), launch_s=1e-4, copy_bandwidth=1.5e9, call_s=4e-4)
    rng = Random(2)

    def time_chain(steps: tuple[Step, ...]) -> float:
        taken = sum(seconds_of(step, machine) for step in steps) + machine.call_s
        return taken * rng.lognormvariate(0, 0.05) * (4 if rng.random() < 0.1 else 1)

    for is_shared in (True, False):

        def time_exchange(_: int, n_bytes: int, pairs: Pairs, is_shared: bool = is_shared) -> float:
            return 3e-5 + n_bytes / 4e9 * (len(pairs) / mesh.size if is_shared else 1)

        sizes = [2**power for power in range(10, 25, 2)]
        found, report = fitted_to_engine(guess, mesh, time_exchange, time_chain, sizes=sizes, repeats=1)
        assert [level.size for level in found.levels] == ([4] if is_shared else [2, 2])
        assert len(report.levels) == len(found.levels)
        if is_shared:
            asked = Reshard.of(Sharding.of(mesh, ("b", "a"), None), Sharding.of(mesh, None, "a"), (640, 640), "float32")
            step = Step(asked)
            assert seconds_of(step, found) == pytest.approx(seconds_of(step, machine), rel=0.15)
            assert found.launch_s + found.call_s == pytest.approx(machine.launch_s + machine.call_s, rel=0.15)


def test_where_devices_wait_for_one_another_a_gather_in_groups_may_be_cheaper_than_rounds_of_all() -> None:
    """By hand, 4 devices in pairs: a gather of a pair is one doubling, a permutation of all four two."""
    mesh = Mesh.of(a=2, b=2)
    process = Network((Level(1, 4, "switch", 4e9, 0.0),), meet_s=1e-4, call_s=5e-5, copy_bandwidth=6e9)
    rng = Random(4)

    def time_chain(steps: tuple[Step, ...]) -> float:
        return (sum(seconds_of(step, process) for step in steps) + process.call_s) * rng.lognormvariate(0, 0.05)

    guess = Network((Level(1, 4, "switch", 1e9, 1e-6),))
    sizes = [2**power for power in range(10, 25, 2)]
    found, _ = fitted_to_engine(guess, mesh, lambda *ends: 2e-4 + ends[1] / 4e9, time_chain, sizes=sizes, repeats=1)
    assert found.meet_s == pytest.approx(1e-4, rel=0.15)
    ends = Sharding.of(mesh, None, "b"), Sharding.of(mesh, None, "a")
    kinds = [[step.kind for step in plan(*ends, (side, side), network=found).steps] for side in (16, 2048)]
    assert kinds == [["AllGather", "Slice"], ["Permute"]]


# presets and refusals

NAMES = ("a100-2x8", "h100-16x8", "gb200-nvl72-2x36", "gb200-4x72", "tpu-v3-8x8", "tpu-v4p-4x4x4", "tpu-v5p-2x8x4x4")


@pytest.mark.parametrize("name", [*NAMES, "tpu-v5e-16x16", "tpu-v6e-4x8", "h100-8", "gb200-nvl72"])
def test_every_preset_has_both_flavours_and_says_where_they_are_from(name: str) -> None:
    spec, achieved = Network.preset(name), Network.preset(f"{name}-achieved")
    assert Network.preset(name, achieved=True) == achieved
    assert Network.preset(f"{name}-spec").levels == spec.levels
    assert all(a.bandwidth <= b.bandwidth for a, b in zip(achieved.levels, spec.levels, strict=True))
    assert achieved.levels[0].bandwidth < spec.levels[0].bandwidth
    assert spec.source
    assert achieved.source != spec.source
    assert spec.flops
    assert spec.memory_bandwidth


def test_presets_by_hand() -> None:
    assert Network.preset("h100-2x8").levels == (
        Level(1, 8, "switch", 450e9, 0.6e-6),
        Level(8, 2, "switch", 50e9, 2.7e-6),
    )
    # sizes are major to minor, so the last is level 0; on v5e only an axis of 16 is closed
    assert [(level.size, level.link) for level in Network.preset("tpu-v5e-16x8").levels] == [(8, "line"), (16, "ring")]
    slices = Network.preset("tpu-v5p-2x4x4x8")
    assert [(level.size, level.link) for level in slices.levels] == [
        (8, "ring"),
        (4, "ring"),
        (4, "ring"),
        (2, "switch"),
    ]
    assert slices.levels[-1].bandwidth == 6.25e9
    assert [level.link for level in Network.preset("tpu-v4p-2x2x4").levels] == ["line"] * 3
    assert Network.preset("h100-1x1").size == 1


@pytest.mark.parametrize(
    "name",
    ["", "h100", "h100-2x16", "h100-2x2x2", "b300-2x8", "h100-0x8", "tpu-v5e-4", "tpu-v5e-32x4", "h100-2x8-real"],
)
def test_unknown_presets_are_refused(name: str) -> None:
    with pytest.raises(ReshardError) as error:
        Network.preset(name)
    assert error.value.code == "bad-network"


def test_an_unknown_family_is_told_the_families() -> None:
    with pytest.raises(ReshardError) as error:
        Network.preset("b300-2x8")
    assert all(family in str(error.value) for family in FAMILIES)


SOUND = Level(1, 4, "ring", 1e9, 1e-6)
BAD = {
    "a level has stride 0; it must be an integer from 1 on": lambda: Level(0, 4, "ring", 1e9, 0),
    "a level has size 1; it must be an integer from 2 on": lambda: Level(1, 1, "ring", 1e9, 0),
    "link 'tree' must be one of switch, ring, one-way-ring, line": lambda: Level(1, 4, "tree", 1e9, 0),
    "a level has bandwidth 0; it must be above 0 bytes/s": lambda: Level(1, 4, "ring", 0, 0),
    "a level has bandwidth nan; it must be above 0 bytes/s": lambda: Level(1, 4, "ring", float("nan"), 0),
    "a level has latency -1 s; it must be at least 0": lambda: Level(1, 4, "ring", 1e9, -1),
    "a level has stride 8; after digits up to 4 it must have stride 4": lambda: Network(
        (SOUND, Level(8, 2, "ring", 1, 0))
    ),
    "a level has stride 2; after digits up to 4 it must have stride 4": lambda: Network(
        (SOUND, Level(2, 4, "ring", 1, 0))
    ),
    "a network has flops -1; it must be above 0": lambda: Network((SOUND,), flops=-1),
    "a network has launch_s nan; it must be at least 0": lambda: Network((SOUND,), launch_s=float("nan")),
    "a network has call_s -1; it must be at least 0": lambda: Network((SOUND,), call_s=-1),
    "a network has meet_s -1; it must be at least 0": lambda: Network((SOUND,), meet_s=-1),
    "a network has copy_bandwidth 0; it must be above 0": lambda: Network((SOUND,), copy_bandwidth=0),
    'the axes given make 2 devices; mesh <["x"=2, "y"=4]> has 8': lambda: Network.of(
        Mesh.of(x=2, y=4), {"y:(2)2": ("ring", 1, 0)}
    ),
    'axis "x" must be given as (link, bandwidth, latency_s), got: 5': lambda: Network.of(Mesh.of(x=2), x=5),  # type: ignore[arg-type]
    'axis "x" of mesh <["x"=4], device_ids=[0, 1, 3, 2]> is no digit of the device number': lambda: Network.of(
        Mesh.of(x=4, device_ids=(0, 1, 3, 2)), x=("ring", 1, 0)
    ),
    'the devices of mesh <["x"=2], devices=[2, 3]> are not 0 to 1': lambda: Network.of(
        Mesh.of(x=2, device_ids=(2, 3)), x=("ring", 1, 0)
    ),
    "device 7 is beyond the 4 devices of network": lambda: seconds_of(
        Step(Reshard.of(Sharding.of(Mesh.of(x=8), "x"), Sharding.of(Mesh.of(x=8), None), (8,), dtype_named("int8"))),
        Network((SOUND,)),
    ),
}


@pytest.mark.parametrize("sentence", BAD)
def test_refusals(sentence: str) -> None:
    with pytest.raises(ReshardError) as error:
        BAD[sentence]()
    assert (error.value.code, str(error.value)) == ("bad-network", sentence)


def test_a_network_is_a_value() -> None:
    network = Network.preset("tpu-v5e-4x4")
    assert repr(network) == "<Network tpu-v5e-4x4 of 4 x 4 devices>"
    assert pickle.loads(pickle.dumps(network)) == network
    assert hash(network) == hash(Network.preset("tpu-v5e-4x4"))
