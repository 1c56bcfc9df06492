"""Which devices take part in a collective together: the spellings of `replica_groups`.

    {{0,1},{2,3}}                                                   a list
    [4,2]<=[2,4]T(1,0)                                              4 groups of 2, from a transposed iota
    {}                                                              all at once
    mesh['a'=2,'b'=4], device_ids=([2,2,2]T(1,0,2)) {'b':(2)2}      along axes of a mesh of devices
    dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>                       StableHLO's list

A sub-axis is (pre-size)size, as in Shardy.

>>> parse_groups("[4,2]<=[2,4]T(1,0)")
((0, 4), (1, 5), (2, 6), (3, 7))
>>> parse_groups("mesh['a'=2,'b'=4], device_ids=([2,2,2]T(1,0,2)) {'b':(2)2}")
((0, 1), (4, 5), (2, 3), (6, 7))
>>> parse_pairs("{{0,1},{1,0}}")
((0, 1), (1, 0))
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from reshard.axis import Axis
from reshard.digits import Digit, Digits
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.xla.read.scan import MOST_DIGITS, natural

ReplicaGroups = tuple[tuple[int, ...], ...]
_Numbers = NDArray[np.int64]

_MOST = 2**22
"""Devices in all groups, at the most."""
_IOTA = re.compile(r"\s*\[([\d,\s]*)\]\s*<=\s*\[([\d,\s]*)\]\s*(?:T\(([\d,\s]*)\))?\s*")
_LISTED = re.compile(r"\s*\{\s*(?:\{[\d,\s]*\}\s*,?\s*)*\}\s*")
_MESH = re.compile(
    r"\s*mesh\[((?:'[^']*'\s*=\s*\d+\s*,?\s*)*)\](?:\s*,\s*device_ids=\(([^()]*(?:\([^()]*\))?)\))?\s*\{([^{}]*)\}\s*"
)
_MESH_AXIS = re.compile(r"'([^']*)'\s*=\s*(\d+)")
_AXIS = re.compile(r"\s*'([^']*)'\s*(?::\s*\((\d+)\)\s*(\d+))?\s*")
_DEVICES = re.compile(r"\s*\[([\d,\s]*)\]\s*(?:T\(([\d,\s]*)\))?\s*")
_DENSE = re.compile(r"\s*dense<(.*?)>\s*:\s*tensor<([\dx]*)x?[a-z]+\d+>\s*", re.DOTALL)


@lru_cache(4096)
def parse_groups(text: str) -> ReplicaGroups | None:
    """The groups; no groups for `{}`, which stands for all devices; None where the text is none of the spellings."""
    if (iota := _IOTA.fullmatch(text)) is not None:
        shape, sizes, order = (_numbers(numbers) for numbers in iota.groups(default=""))
        devices = _iota(sizes, order if iota.group(3) is not None else None)
        if devices is None or len(shape) != 2 or prod(shape) != len(devices):
            return None
        return _rows(devices.reshape(shape))
    if _LISTED.fullmatch(text):
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,\s]*)\}", text.strip()[1:-1]))
    if (mesh := _MESH.fullmatch(text)) is not None:
        return _along(*mesh.groups(default=""))
    if (dense := _DENSE.fullmatch(text)) is not None:
        return _dense(*dense.groups())
    return None


def parse_pairs(text: str) -> tuple[tuple[int, int], ...] | None:
    """Pairs of sender and receiver; None where the text is no list of pairs."""
    groups = parse_groups(text)
    if groups is None or any(len(group) != 2 for group in groups):
        return None
    return tuple((group[0], group[1]) for group in groups)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(_limited, re.findall(r"\d+", text)))


def _limited(digits: str) -> int:
    """A number; one that is too large for any use is as large as can be."""
    number = natural(digits)
    return 10**MOST_DIGITS if number is None else number


def _rows(devices: _Numbers) -> ReplicaGroups:
    return tuple(tuple(row) for row in devices.tolist())


def _iota(sizes: tuple[int, ...], order: tuple[int, ...] | None) -> _Numbers | None:
    if not sizes or prod(sizes) > _MOST or (order is not None and sorted(order) != list(range(len(sizes)))):
        return None
    return np.arange(prod(sizes), dtype=np.int64).reshape(sizes).transpose(order).ravel()


def _along(mesh_text: str, devices_text: str, axes_text: str) -> ReplicaGroups | None:
    """The groups along axes of a mesh: all else is fixed within one."""
    try:
        mesh = Mesh(tuple((name, _limited(size)) for name, size in _MESH_AXIS.findall(mesh_text)))
    except (ReshardError, ValueError):
        return None
    if mesh.size > _MOST:
        return None
    position = np.arange(mesh.size, dtype=np.int64)
    devices: _Numbers | None = position
    if (iota := _DEVICES.fullmatch(devices_text)) is not None:
        devices = _iota(_numbers(iota.group(1)), None if iota.group(2) is None else _numbers(iota.group(2)))
    elif devices_text:
        devices = np.array(_numbers(devices_text), dtype=np.int64)
    if devices is None or len(devices) != mesh.size:
        return None
    digits: list[Digit] = []
    for text in axes_text.split(",") if axes_text.strip() else []:
        match = _AXIS.fullmatch(text)
        if match is None or match.group(1) not in mesh.sizes:
            return None
        whole, (_, pre, size) = Digits([mesh.digit_of(Axis(match.group(1)))]), match.groups()
        before, own = _limited(pre or "1"), _limited(size or "1")
        if pre is not None and (before * own == 0 or whole.size % (before * own)):
            return None
        digits += whole if pre is None else [Digit(whole[0].end // before // own, own)]
    groups = Digits(digits).groups(mesh.size)
    return _rows(devices[groups]) if groups.size == mesh.size and groups.max() < mesh.size else None


def _dense(values: str, sizes: str) -> ReplicaGroups | None:
    shape = _numbers(sizes)
    if len(shape) != 2 or prod(shape) > _MOST:
        return None
    signed = re.findall(r"(-?)(\d+)", values)
    numbers = [-_limited(digits) if sign else _limited(digits) for sign, digits in signed]
    if prod(shape) and len(numbers) == 1:
        numbers *= prod(shape)
    if len(numbers) != prod(shape):
        return None
    rows = np.array(numbers, dtype=np.int64).reshape(shape).tolist()
    return tuple(tuple(number for number in row if number >= 0) for row in rows)
