"""Networks that many people have, by name: a family, then how much of it.

    h100-2x8             2 hosts of 8 devices; so too a100 and gb200-nvl72 (hosts are then NVLink domains)
    h100-8               one host
    tpu-v5e-4x4          a slice of a torus, sizes from the major digit of the device number to the minor
    tpu-v5p-2x4x4x4      2 slices, joined by the data centre's network
    h100-2x8-achieved    figures that were measured, where the bare name or `-spec` has those that are printed

Axes of a TPU slice are rings where the hardware closes them and lines elsewhere.

>>> describe("tpu-v5e-16x8").levels[0].link, describe("tpu-v5e-16x8").levels[1].link
('line', 'ring')
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from reshard.errors import ReshardError
from reshard.network.level import Level

BOOK = "How to Scale Your Model (Austin et al. 2025)"


class Preset(NamedTuple):
    """What a name stands for: the fields of a network, in their order."""

    levels: tuple[Level, ...]
    memory_bandwidth: float
    flops: float
    name: str
    source: str
    launch_s: float


class Gpu(NamedTuple):
    """Devices on a switch inside a host, and a port for each to a switch between hosts."""

    most: int
    """Devices of a host."""
    inside: tuple[float, float]
    """Bytes/s per device and direction inside a host: as printed, and achieved."""
    outside: tuple[float, float]
    """The same between hosts."""
    memory_bandwidth: float
    flops: float
    source: str


class Tpu(NamedTuple):
    """A torus of chips, and ports to the data centre's network."""

    pod: tuple[int, ...]
    """The full size of each axis."""
    link: float
    """Bytes/s of a link in one direction."""
    chips: int
    """Chips of a host."""
    cubes: bool
    """Whether a slice closes its axes when all are multiples of 4; if not, an axis is closed at its full size."""
    memory_bandwidth: float
    flops: float


ACHIEVED_OUTSIDE = 0.22 * 87.7 / 25
"""The part of its printed bandwidth that DTensor's model gives a link between A100 hosts: 19.3 of 25 GB/s."""

GPUS: dict[str, Gpu] = {
    "a100": Gpu(
        *(8, (300e9, 87.7e9), (25e9, ACHIEVED_OUTSIDE * 25e9), 2.0e12, 312e12),
        source="DGX A100: NVLink 600 GB/s both ways, InfiniBand HDR 25 GB/s per device",
    ),
    "h100": Gpu(
        *(8, (450e9, 320e9), (50e9, ACHIEVED_OUTSIDE * 50e9), 3.35e12, 990e12),
        source=f"DGX H100: NVLink 900 GB/s both ways, InfiniBand NDR 50 GB/s per device; {BOOK}, GPUs",
    ),
    "gb200-nvl72": Gpu(
        *(72, (900e9, 640e9), (50e9, ACHIEVED_OUTSIDE * 50e9), 8e12, 2250e12),
        source=f"GB200 NVL72: NVLink 1800 GB/s both ways, InfiniBand NDR 50 GB/s per device; {BOOK}, GPUs",
    ),
}
TPUS: dict[str, Tpu] = {
    "tpu-v3": Tpu((32, 32), 100e9, 8, False, 0.9e12, 140e12),
    "tpu-v4p": Tpu((16, 16, 16), 45e9, 4, True, 1.2e12, 275e12),
    "tpu-v5p": Tpu((16, 20, 28), 90e9, 4, True, 2.8e12, 459e12),
    "tpu-v5e": Tpu((16, 16), 45e9, 8, False, 0.81e12, 197e12),
    "tpu-v6e": Tpu((16, 16), 90e9, 8, False, 1.6e12, 920e12),
}

LAUNCH_S, INSIDE_S, OUTSIDE_S = 6.6e-6, 0.6e-6, 2.7e-6
"""Seconds to start a step, per hop on NVLink, and per hop between hosts: NCCL's model for its low-latency rings, as
in torch/distributed/tensor/_collective_utils.py."""
TORUS_HOP_S = 1e-6
"""Seconds per hop of a TPU link: the book's figure."""
HOST_BYTES_S = 25e9
"""Bytes/s of a TPU host to the data centre's network, shared by its chips."""
DATA_CENTRE_S = 10e-6
"""Seconds per message between TPU slices: an order of magnitude, no measured value."""
TORUS_ACHIEVED = 0.95
"""The part of a TPU link's bandwidth that an all-gather of 10 MB and more was measured to achieve."""

FLAVOURS = ("spec", "achieved")
FAMILIES = (*GPUS, *TPUS)
"""Every family of presets."""


def describe(name: str) -> Preset:
    """What a name stands for.

    Raises:
        ReshardError: `bad-network` for a name of no family, or a size that the family does not have.

    >>> print(*describe("h100-16x8").levels, sep="; ")
    switch of 8, 450 GB/s, 0.6 us; switch of 16, 50 GB/s, 2.7 us
    """
    match = re.fullmatch(r"(?P<family>.+?)(-(?P<sizes>\d+(x\d+)*))?(-(?P<flavour>spec|achieved))?", str(name))
    family = match["family"] if match else ""
    if family == "gb200":
        family = "gb200-nvl72"
    if match is None or family not in FAMILIES:
        raise ReshardError(
            "bad-network", f"network {name!r} must be one of {', '.join(FAMILIES)}, then its sizes, as in h100-2x8"
        )
    default = "72" if family == "gb200-nvl72" else ""
    sizes = [int(size) for size in (match["sizes"] or default).split("x") if size]
    achieved = match["flavour"] == "achieved"
    if not sizes or min(sizes) < 1:
        raise ReshardError("bad-network", f"network {name!r} must end in sizes from 1 on, as in {_example(family)}")
    return _gpus(name, family, sizes, achieved) if family in GPUS else _tpus(name, family, sizes, achieved)


def _example(family: str) -> str:
    return (
        f"{family}-2x{GPUS[family].most}" if family in GPUS else f"{family}-{'x'.join(['4'] * len(TPUS[family].pod))}"
    )


def _gpus(name: str, family: str, sizes: list[int], achieved: bool) -> Preset:
    kind = GPUS[family]
    hosts, devices = (1, *sizes)[-2:]
    if len(sizes) > 2 or devices > kind.most:
        raise ReshardError(
            "bad-network",
            f"network {name!r} must be hosts x devices, at most {kind.most} of them, as {_example(family)}",
        )
    levels = [
        ("switch", devices, kind.inside[achieved], INSIDE_S),
        ("switch", hosts, kind.outside[achieved], OUTSIDE_S),
    ]
    source = kind.source
    if achieved:
        source += (
            "; inside a host NCCL's model bandwidth as autoparallel and DTensor use it, between hosts the part of the"
            " printed bandwidth that DTensor's model gives A100 (0.22 x 87.7 of 25 GB/s)"
        )
    source += "; latencies of NCCL's low-latency rings, as in DTensor's model"
    return Preset(_stacked(levels), kind.memory_bandwidth, kind.flops, name, source, LAUNCH_S)


def _tpus(name: str, family: str, sizes: list[int], achieved: bool) -> Preset:
    kind = TPUS[family]
    count = len(kind.pod)
    slices, dims = (sizes[0], sizes[1:]) if len(sizes) == count + 1 else (1, sizes)
    if len(dims) != count or any(size > most for size, most in zip(sorted(dims), sorted(kind.pod), strict=True)):
        raise ReshardError(
            "bad-network",
            f"network {name!r} must have {count} sizes within {'x'.join(map(str, kind.pod))}, as {_example(family)}",
        )
    cubes = all(size % 4 == 0 for size in dims)
    bandwidth = kind.link * (TORUS_ACHIEVED if achieved else 1)
    levels = []
    for size in reversed(dims):
        closed = cubes if kind.cubes else size in kind.pod
        levels.append(("ring" if closed else "line", size, bandwidth, TORUS_HOP_S))
    share = HOST_BYTES_S / min(kind.chips, prod(dims))
    levels.append(("switch", slices, share, DATA_CENTRE_S))
    source = f"{BOOK}, TPUs: links and hosts; 1 us per hop"
    if kind.cubes:
        source += "; axes are closed where all are multiples of 4"
    else:
        source += f"; axes are closed at {kind.pod[0]}"
    if achieved:
        source += f"; {TORUS_ACHIEVED:.0%} of a link, as measured there on v5e for an all-gather of 10 MB over 16"
    if slices > 1:
        source += f"; between slices {HOST_BYTES_S / 1e9:g} GB/s per host of {kind.chips}, 10 us assumed"
    return Preset(_stacked(levels), kind.memory_bandwidth, kind.flops, name, source, 0.0)


def _stacked(levels: list[tuple[str, int, float, float]]) -> tuple[Level, ...]:
    """Levels with their strides, those of one device left out."""
    stacked, stride = [], 1
    for link, size, bandwidth, latency_s in levels:
        if size > 1:
            stacked.append(Level(stride, size, link, bandwidth, latency_s))
            stride *= size
    return tuple(stacked)
