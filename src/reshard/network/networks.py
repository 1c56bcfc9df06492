"""A network: levels of the device number, innermost first, and what a device does by itself.

Each level is a digit of the device number, so a host boundary may lie inside an axis of a mesh, and all meshes
over the same devices share one network.
What goes from device to device takes the levels in which their numbers differ, from the outermost inwards:

    a switch       takes it all the way, whatever differs inside it
    a ring, line   takes it hop by hop to the right place along itself; what differs inside is still to come

>>> network = Network.preset("h100-2x8")
>>> print(network)
h100-2x8: 16 devices
level 0  switch of 8, 450 GB/s, 0.6 us
level 1  switch of 2, 50 GB/s, 2.7 us
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from reshard.axis import Axis
from reshard.checks import expect, shown
from reshard.digits import Digit, Digits, Positions
from reshard.dtypes import DType
from reshard.errors import ReshardError, refusing
from reshard.mesh import Mesh
from reshard.network.calibration import SIZES, Calibration, Timer, fitted
from reshard.network.level import Level, is_integer, is_number
from reshard.network.numbers import device_digits
from reshard.network.presets import describe

LevelLike = Level | tuple[str, float, float]
"""A level, or its link, bandwidth and latency."""


@dataclass(frozen=True)
class Network:
    """Levels from the innermost to the outermost.

    Rules, in the order checked; each is refused as `bad-network`:
        the digits of the levels, in any order, are those of the device number: 1 and the ends of digits are where
            the next begin
        memory_bandwidth, copy_bandwidth and flops are above 0, those by dtype too; launch_s, call_s and meet_s are at
            least 0
    """

    levels: tuple[Level, ...]
    """Innermost first; none for one device alone."""
    memory_bandwidth: float | None = None
    """Bytes/s between a device and its memory, reads and writes together; None where it does not count."""
    flops: float | None = None
    """Operations/s of a device; None where they do not count."""
    name: str = ""
    source: str = ""
    """Where the figures are from."""
    launch_s: float = 0.0
    """Seconds to start a step that communicates."""
    flops_by_dtype: tuple[tuple[str, float], ...] = ()
    """Operations/s on values of other dtypes: NumPy's name, or its beginning such as `float8`, with the figure."""
    copy_bandwidth: float | None = None
    """Bytes/s at which a device copies what it keeps, packs, slices or puts in order in a step, twice what it takes out
    of strips; None where that does not count, as where it goes on while data are under way."""
    call_s: float = 0.0
    """Seconds to start a plan that communicates, whatever its steps."""
    meet_s: float = 0.0
    """Seconds for each doubling of the devices that begin a collective together, where none begins before all are
    there, as in one process: log2 of a group, or of all devices in each round of an exchange that is not in groups."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        object.__setattr__(self, "flops_by_dtype", tuple(map(tuple, self.flops_by_dtype)))
        if not all(isinstance(level, Level) for level in self.levels):
            raise ReshardError("bad-network", f"levels must be of type Level, got: {self.levels!r}")
        stride = 1
        for level in sorted(self.levels, key=lambda level: level.stride):
            if level.stride != stride:
                raise ReshardError(
                    "bad-network",
                    f"a level has stride {level.stride}; after digits up to {stride} it must have stride {stride}",
                )
            stride *= level.size
        for name, text in (("name", self.name), ("source", self.source)):
            expect(text, str, f"the {name} of a network", "bad-network")
        for name in ("memory_bandwidth", "copy_bandwidth", "flops"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or value <= 0):
                raise ReshardError("bad-network", f"a network has {name} {value!r}; it must be above 0")
        for name, value in self.flops_by_dtype:
            expect(name, str, "a dtype of flops_by_dtype", "bad-network")
            if not is_number(value) or value <= 0:
                raise ReshardError("bad-network", f"a network has {value!r} flops for {name!r}; they must be above 0")
        for name in ("launch_s", "call_s", "meet_s"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise ReshardError("bad-network", f"a network has {name} {value!r}; it must be at least 0")

    def __repr__(self) -> str:
        sizes = " x ".join(str(level.size) for level in reversed(self.levels)) or "1"
        return f"<Network {self.name + ' ' if self.name else ''}of {sizes} devices>"

    def __str__(self) -> str:
        title = f"{self.name}: {self.size} devices" if self.name else f"{self.size} devices"
        return "\n".join([title, *(f"level {number}  {level}" for number, level in enumerate(self.levels))])

    @cached_property
    def _hash(self) -> int:
        own = self.launch_s, self.copy_bandwidth, self.call_s, self.meet_s
        return hash((self.levels, self.name, self.source, self.memory_bandwidth, self.flops, self.flops_by_dtype, *own))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def size(self) -> int:
        """The number of devices."""
        return prod(level.size for level in self.levels)

    @cached_property
    def places(self) -> int:
        """How many links are told apart in what is busy, of all levels together."""
        return sum(level.places for level in self.levels)

    @cached_property
    def has_switches(self) -> bool:
        """Whether there are levels where messages wait for one another."""
        return any(level.is_switch for level in self.levels)

    def flops_of(self, dtype: DType) -> float | None:
        """Operations/s of a device on values of a dtype; None where they do not count.

        A complex type is as fast as the floats that it is made of.

        >>> from reshard.dtypes import dtype_named
        >>> network = Network.preset("h100-8")
        >>> [network.flops_of(dtype_named(name)) for name in ("bf16", "f32", "f8e4m3fn")]
        [990000000000000.0, 67000000000000.0, 1979000000000000.0]
        """
        part = f"float{4 * dtype.itemsize}" if dtype.kind == "c" else dtype.name
        by_name = dict(self.flops_by_dtype)
        return by_name.get(part) or by_name.get(part.partition("_")[0]) or self.flops

    @classmethod
    def of(
        cls,
        mesh: Mesh,
        axes: Mapping[str, LevelLike] | None = None,
        /,
        *,
        memory_bandwidth: float | None = None,
        flops: float | None = None,
        name: str = "",
        source: str = "",
        **more: LevelLike,
    ) -> Network:
        """A network whose levels are the axes of a mesh, the last axis innermost.

        Args:
            mesh: names and sizes; its device ids may be any transposition of digits.
            axes: per axis of more than one device (link, bandwidth, latency_s); as a mapping where names are no
                identifiers, and with sub-axes such as `"y:(1)2"` where a boundary lies inside an axis.
            memory_bandwidth: as the field.
            flops: as the field.
            name: as the field.
            source: as the field.
            more: axes by keyword.

        Raises:
            ReshardError: `bad-network` where axes are missing, or the device ids are no such order; `unknown-axis`.

        >>> network = Network.of(Mesh.of(x=2, y=4), x=("ring", 9e10, 1e-6), y=("switch", 4.5e11, 0))
        >>> [(level.stride, level.size, level.link) for level in network.levels]
        [(1, 4, 'switch'), (4, 2, 'ring')]
        """
        placed: list[tuple[int, Level]] = []
        for key, links in {**(axes or {}), **more}.items():
            axis = Axis.of(key)
            if axis.name not in mesh.sizes:
                raise ReshardError("unknown-axis", f"axis {axis} is not in mesh {mesh}")
            position = mesh.digit_of(axis)
            if position.size == 1:
                continue
            digits = device_digits(mesh, Digits((position,)))
            if digits is None or len(digits) != 1:
                raise ReshardError("bad-network", f"axis {axis} of mesh {mesh} is no digit of the device number")
            placed.append((position.stride, _level(axis, digits[0], links)))
        levels = tuple(level for _, level in sorted(placed, key=lambda pair: pair[0]))
        if mesh.device_ids is not None and max(mesh.device_ids) >= mesh.size:
            raise ReshardError("bad-network", f"the devices of mesh {mesh} are not 0 to {mesh.size - 1}")
        network = cls(levels, memory_bandwidth, flops, name, source)
        if network.size != mesh.size:
            raise ReshardError(
                "bad-network", f"the axes given make {network.size} devices; mesh {mesh} has {mesh.size}"
            )
        return network

    @classmethod
    def preset(cls, name: str, *, achieved: bool = False) -> Network:
        """A network by name, such as `h100-2x8`, `tpu-v5e-4x4`, `gb200-nvl72-4x72-achieved`.

        Args:
            name: a family and its sizes, as in `reshard.network.presets`.
            achieved: whether to take measured figures; the same as `-achieved` at the end of the name.

        Raises:
            ReshardError: `bad-network` with the families there are.

        >>> Network.preset("tpu-v4p-4x4x4", achieved=True).levels[0].bandwidth
        42750000000.0
        """
        if achieved and not str(name).endswith(("-achieved", "-spec")):
            name = f"{name}-achieved"
        return cls(*describe(name))

    @classmethod
    def named(cls, network: Network | str | PathLike[str] | None, what: str = "a network") -> Network | None:
        """The network itself, the preset of that name, or that of a JSON file; None where there is none.

        A name with a slash in it, or that ends in `.json`, is that of a file.

        Raises:
            ReshardError: `bad-network` where no preset has the name, or the file describes none; `bad-file` where it
                cannot be read; `bad-argument` for anything else.

        >>> Network.named("h100-2x8") == Network.preset("h100-2x8")
        True
        """
        if isinstance(network, PathLike) or (isinstance(network, str) and re.search(r"[/\\]|\.json$", network)):
            return cls.read(network)
        if isinstance(network, str):
            return cls.preset(network)
        return None if network is None else expect(network, Network, what)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Network:
        """The network that a JSON file describes: what `as_dict` gives; all but `levels` may be left out.

        Raises:
            ReshardError: `bad-file` where it cannot be read or is no JSON, `bad-network`.
        """
        with refusing("bad-file", f"network {fspath(path)} cannot be read"):
            data = Path(path).read_bytes()
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            raise ReshardError("bad-file", f"network {fspath(path)} is no JSON") from None
        return cls.from_dict(fields)

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON keeps them."""
        return asdict(self) | {"levels": list(map(asdict, self.levels)), "flops_by_dtype": dict(self.flops_by_dtype)}

    @classmethod
    def from_dict(cls, fields: Any) -> Network:
        """The network whose `as_dict` this is.

        Raises:
            ReshardError: `bad-network`.
        """
        if not isinstance(fields, dict) or not isinstance(fields.get("levels"), list):
            problem = f"a network must be an object with a list of levels, got: {shown(fields)}"
            raise ReshardError("bad-network", problem)
        try:
            levels = tuple(Level(**level) for level in fields["levels"])
            by_dtype = tuple(fields.get("flops_by_dtype", {}).items())
            return cls(**fields | {"levels": levels, "flops_by_dtype": by_dtype})
        except (TypeError, AttributeError, OverflowError) as error:
            reason = str(error).replace("Network.__init__()", "a network").replace("Level.__init__()", "a level")
            raise ReshardError("bad-network", f"a network is described wrongly: {reason}") from None

    def hosts_of(self, level: int, devices: Positions) -> Positions:
        """The number of the host of each device: what levels from `level` on say of it, the outermost slowest.

        >>> import numpy as np
        >>> Network.preset("h100-2x4").hosts_of(1, np.arange(8))
        array([0, 0, 0, 0, 1, 1, 1, 1])
        """
        return self._outside(level).index_of(devices)

    def hosts(self, level: int) -> int:
        """How many hosts there are: groups of devices that levels below `level` join."""
        return self._outside(level).size

    def _outside(self, level: int) -> Digits:
        if not is_integer(level) or not 0 <= level <= len(self.levels):
            raise ReshardError("bad-argument", f"level {level!r} must be a number from 0 to {len(self.levels)}")
        return Digits(outer.digit for outer in reversed(self.levels[level:]))

    def calibrate(
        self, time_exchange: Timer, *, sizes: Sequence[int] = SIZES, repeats: int = 3
    ) -> tuple[Network, Calibration]:
        """The network with bandwidths and latencies as measured, and how well they predict.

        Args:
            time_exchange: `(level, n_bytes, pairs) -> seconds`: how long it takes until every sender of `pairs` has
                sent n_bytes to its receiver, all at once; the pairs are neighbours along the level of that number.
            sizes: bytes to send, at least six sizes; every third is held out of the fit, to judge it.
            repeats: how often each is measured; the median counts.

        Raises:
            ReshardError: `bad-argument` for too few sizes or a time that is not above 0; `bad-network` where larger
                messages do not take longer.

        >>> network = Network((Level(1, 4, "switch", 1e9, 0.0),))
        >>> measured, report = network.calibrate(lambda level, n_bytes, pairs: 2e-5 + n_bytes / 3e9)
        >>> print(measured.levels[0])
        switch of 4, 3 GB/s, 20 us
        """
        fits = fitted(self.levels, time_exchange, sizes, repeats)
        levels = tuple(
            replace(level, bandwidth=fit.bandwidth, latency_s=fit.latency_s)
            for level, fit in zip(self.levels, fits.levels, strict=True)
        )
        title = f"{self.name}-calibrated" if self.name else ""
        source = f"measured: {len(sizes)} sizes from {min(sizes)} to {max(sizes)} bytes per level"
        return replace(self, levels=levels, name=title, source=source), fits


@lru_cache(256)
def check_reach(network: Network, mesh: Mesh) -> None:
    """Refuse a mesh that has devices beyond a network, as `bad-network`."""
    last = mesh.size - 1 if mesh.device_ids is None else max(mesh.device_ids)
    if last >= network.size:
        name = network.name or "network"
        raise ReshardError("bad-network", f"device {last} is beyond the {network.size} devices of {name}")


def _level(axis: Axis, digit: Digit, links: LevelLike) -> Level:
    if isinstance(links, Level):
        links = (links.link, links.bandwidth, links.latency_s)
    try:
        link, bandwidth, latency_s = links
    except (TypeError, ValueError):
        raise ReshardError(
            "bad-network", f"axis {axis} must be given as (link, bandwidth, latency_s), got: {links!r}"
        ) from None
    return Level(digit.stride, digit.size, link, bandwidth, latency_s)
