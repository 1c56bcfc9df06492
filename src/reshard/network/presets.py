"""Networks that many people have, by name: a family, then how much of it.

    h100-2x8             2 hosts of 8 devices; so too a100, h200, b200, mi300x, and gb200-nvl72 (hosts are then NVLink
                         domains)
    h100-8               one host
    tpu-v5e-4x4          a slice of a torus, sizes from the major digit of the device number to the minor
    tpu-v5p-2x4x4x4      2 slices, joined by the data centre's network
    trillium-4x4         another name of tpu-v6e; so too ironwood and tpu-v7x of tpu7x
    h100-2x8-achieved    figures that were measured, where the bare name or `-spec` has those that are printed

Operations/s are those of dense products with 16-bit floats, and by dtype where they differ: of NVIDIA's devices float32
means float32 and not the shorter TF32; a TPU multiplies float32, unless asked for more, in one pass of bfloat16.

Axes of a TPU slice are rings where the hardware closes them and lines elsewhere.

>>> describe("tpu-v5e-16x8").levels[0].link, describe("tpu-v5e-16x8").levels[1].link
('line', 'ring')
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from reshard.checks import shown, suggested
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
    flops_by_dtype: tuple[tuple[str, float], ...]


Speeds = dict[str, float]
"""Operations/s by the name of a dtype, or its beginning, where they are not those of 16-bit floats."""


class Gpu(NamedTuple):
    """Devices on a switch inside a host, and a port for each to a switch between hosts."""

    most: int
    """Devices of a host."""
    inside: tuple[float, float | None]
    """Bytes/s per device and direction inside a host: as printed, and achieved, where that is known."""
    outside: tuple[float, float]
    """The same between hosts."""
    memory_bandwidth: float
    flops: float
    by_dtype: Speeds
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
    by_dtype: Speeds
    host_bandwidth: float
    """Bytes/s of a host to the data centre's network, shared by its chips."""
    source: str


ACHIEVED_OUTSIDE = 0.22 * 87.7 / 25
"""The part of its printed bandwidth that DTensor's model gives a link between A100 hosts: 19.3 of 25 GB/s."""


def _hopper(memory_bandwidth: float, source: str) -> Gpu:
    """H100 and H200, which differ in their memory."""
    speeds = {"float64": 67e12, "float32": 67e12, "float8": 1979e12, "int8": 1979e12, "uint8": 1979e12}
    outside = 50e9, ACHIEVED_OUTSIDE * 50e9
    return Gpu(8, (450e9, 320e9), outside, memory_bandwidth, 990e12, speeds, source)


def _blackwell(most: int, source: str) -> Gpu:
    """B200, in hosts or in racks."""
    speeds = {"float64": 40e12, "float32": 80e12, "float8": 4500e12, "int8": 4500e12, "uint8": 4500e12}
    speeds["float4"] = 9000e12
    return Gpu(most, (900e9, 640e9), (50e9, ACHIEVED_OUTSIDE * 50e9), 8e12, 2250e12, speeds, source)


GPUS: dict[str, Gpu] = {
    "a100": Gpu(
        *(8, (300e9, 87.7e9), (25e9, ACHIEVED_OUTSIDE * 25e9), 2.0e12, 312e12),
        by_dtype={"float64": 19.5e12, "float32": 19.5e12, "int8": 624e12, "uint8": 624e12},
        source="DGX A100: NVLink 600 GB/s both ways, InfiniBand HDR 25 GB/s per device",
    ),
    "h100": _hopper(3.35e12, f"DGX H100: NVLink 900 GB/s both ways, InfiniBand NDR 50 GB/s per device; {BOOK}, GPUs"),
    "h200": _hopper(
        4.8e12, "DGX H200: the links and the arithmetic of DGX H100, memory of 4.8 TB/s (NVIDIA's data sheet)"
    ),
    "b200": _blackwell(
        8, "DGX B200: NVLink 1800 GB/s both ways, ConnectX-7 50 GB/s per device, memory of 8 TB/s (NVIDIA's data sheet)"
    ),
    "gb200-nvl72": _blackwell(
        72, f"GB200 NVL72: NVLink 1800 GB/s both ways, InfiniBand NDR 50 GB/s per device; {BOOK}, GPUs"
    ),
    "mi300x": Gpu(
        *(8, (448e9, None), (50e9, ACHIEVED_OUTSIDE * 50e9), 5.3e12, 1307.4e12),
        by_dtype={"float64": 163.4e12, "float32": 163.4e12} | dict.fromkeys(("float8", "int8", "uint8"), 2614.9e12),
        source="AMD's data sheet of the MI300X: 7 links of 64 GB/s each way, one to every other device of the host,"
        " taken as one port of 448 GB/s, so what goes to one device alone takes up to 7 times as long; 400 Gb/s per"
        " device between hosts",
    ),
}
CLOUD = "Google Cloud's documentation of TPUs"
TPUS: dict[str, Tpu] = {
    "tpu-v3": Tpu((32, 32), 100e9, 8, False, 0.9e12, 140e12, {}, 25e9, BOOK),
    "tpu-v4p": Tpu((16, 16, 16), 45e9, 4, True, 1.2e12, 275e12, {}, 25e9, BOOK),
    "tpu-v5p": Tpu((16, 20, 28), 90e9, 4, True, 2.8e12, 459e12, {"int8": 918e12, "uint8": 918e12}, 25e9, BOOK),
    "tpu-v5e": Tpu((16, 16), 45e9, 8, False, 0.81e12, 197e12, {"int8": 393e12, "uint8": 393e12}, 25e9, BOOK),
    "tpu-v6e": Tpu((16, 16), 90e9, 8, False, 1.6e12, 920e12, {"int8": 1836e12, "uint8": 1836e12}, 25e9, BOOK),
    "tpu7x": Tpu((16, 24, 24), 100e9, 4, True, 7.38e12, 2307e12, {"float8": 4614e12}, 50e9, CLOUD),
}
TPU_ALIASES = {"trillium": "tpu-v6e", "ironwood": "tpu7x", "tpu-v7x": "tpu7x", "tpu-v4": "tpu-v4p"}
ALIASES = {"gb200": "gb200-nvl72", **TPU_ALIASES} | {name: f"tpu-{name}" for name in ("v4p", "v5p", "v5e", "v6e")}
"""Other names of families."""

LAUNCH_S, INSIDE_S, OUTSIDE_S = 6.6e-6, 0.6e-6, 2.7e-6
"""Seconds to start a step, per hop on NVLink, and per hop between hosts: NCCL's model for its low-latency rings, as
in torch/distributed/tensor/_collective_utils.py."""
TORUS_HOP_S = 1e-6
"""Seconds per hop of a TPU link: the book's figure."""
DATA_CENTRE_S = 10e-6
"""Seconds per message between TPU slices: an order of magnitude, no measured value."""
TORUS_ACHIEVED = 0.95
"""The part of a TPU link's bandwidth that an all-gather of 10 MB and more was measured to achieve."""

FLAVOURS = ("spec", "achieved")
FAMILIES = (*GPUS, *TPUS)
"""Every family of presets."""


def example_of(family: str) -> str:
    """A name of a family, with sizes.

    >>> example_of("b200"), example_of("tpu7x")
    ('b200-2x8', 'tpu7x-4x4x4')
    """
    if family in GPUS:
        return f"{family}-2x{GPUS[family].most}"
    return f"{family}-{'x'.join(['4'] * len(TPUS[family].pod))}"


def describe(name: str) -> Preset:
    """What a name stands for.

    Raises:
        ReshardError: `bad-network` for a name of no family, or a size that the family does not have.

    >>> print(*describe("h100-16x8").levels, sep="; ")
    switch of 8, 450 GB/s, 0.6 us; switch of 16, 50 GB/s, 2.7 us
    """
    match = re.fullmatch(r"(?P<family>.+?)(-(?P<sizes>\d+(x\d+)*))?(-(?P<flavour>spec|achieved))?", str(name))
    family = match["family"] if match else ""
    family = ALIASES.get(family, family)
    if match is None or family not in FAMILIES:
        close = suggested(family or str(name).partition("-")[0], [*FAMILIES, *ALIASES])
        raise ReshardError(
            "bad-network",
            f"network {shown(name)} must be one of {', '.join(FAMILIES)}, then its sizes, as in h100-2x8{close}",
        )
    default = "72" if family == "gb200-nvl72" else ""
    sizes = [int(size) if len(size) < 10 else 0 for size in (match["sizes"] or default).split("x") if size]
    achieved = match["flavour"] == "achieved"
    if not sizes or min(sizes) < 1:
        raise ReshardError("bad-network", f"network {name!r} must end in sizes from 1 on, as in {example_of(family)}")
    return _gpus(name, family, sizes, achieved) if family in GPUS else _tpus(name, family, sizes, achieved)


def _gpus(name: str, family: str, sizes: list[int], achieved: bool) -> Preset:
    kind = GPUS[family]
    inside = kind.inside[achieved]
    if inside is None:
        raise ReshardError("bad-network", f"no measured figures of {family} are known; {family} has those of -spec")
    hosts, devices = (1, *sizes)[-2:]
    if len(sizes) > 2 or devices > kind.most:
        raise ReshardError(
            "bad-network",
            f"network {name!r} must be hosts x devices, at most {kind.most} of them, as {example_of(family)}",
        )
    levels = [
        ("switch", devices, inside, INSIDE_S),
        ("switch", hosts, kind.outside[achieved], OUTSIDE_S),
    ]
    source = kind.source
    if achieved:
        source += (
            "; inside a host NCCL's model bandwidth as autoparallel and DTensor use it, between hosts the part of the"
            " printed bandwidth that DTensor's model gives A100 (0.22 x 87.7 of 25 GB/s)"
        )
    source += "; latencies of NCCL's low-latency rings, as in DTensor's model"
    return Preset(
        _stacked(levels), kind.memory_bandwidth, kind.flops, name, source, LAUNCH_S, tuple(kind.by_dtype.items())
    )


def _tpus(name: str, family: str, sizes: list[int], achieved: bool) -> Preset:
    kind = TPUS[family]
    count = len(kind.pod)
    slices, dims = (sizes[0], sizes[1:]) if len(sizes) == count + 1 else (1, sizes)
    if len(dims) != count or any(size > most for size, most in zip(sorted(dims), sorted(kind.pod), strict=True)):
        raise ReshardError(
            "bad-network",
            f"network {name!r} must have {count} sizes within {'x'.join(map(str, kind.pod))}, as {example_of(family)}",
        )
    cubes = all(size % 4 == 0 for size in dims)
    bandwidth = kind.link * (TORUS_ACHIEVED if achieved else 1)
    levels = []
    for size in reversed(dims):
        closed = cubes if kind.cubes else size in kind.pod
        levels.append(("ring" if closed else "line", size, bandwidth, TORUS_HOP_S))
    share = kind.host_bandwidth / min(kind.chips, prod(dims))
    levels.append(("switch", slices, share, DATA_CENTRE_S))
    source = f"{kind.source}, TPUs: links and hosts; 1 us per hop"
    if kind.cubes:
        source += "; axes are closed where all are multiples of 4"
    else:
        source += f"; axes are closed at {kind.pod[0]}"
    if achieved:
        source += f"; {TORUS_ACHIEVED:.0%} of a link, as measured there on v5e for an all-gather of 10 MB over 16"
    if slices > 1:
        source += f"; between slices {kind.host_bandwidth / 1e9:g} GB/s per host of {kind.chips}, 10 us assumed"
    return Preset(_stacked(levels), kind.memory_bandwidth, kind.flops, name, source, 0.0, tuple(kind.by_dtype.items()))


def _stacked(levels: list[tuple[str, int, float, float]]) -> tuple[Level, ...]:
    """Levels with their strides, those of one device left out."""
    stacked, stride = [], 1
    for link, size, bandwidth, latency_s in levels:
        if size > 1:
            stacked.append(Level(stride, size, link, bandwidth, latency_s))
            stride *= size
    return tuple(stacked)
