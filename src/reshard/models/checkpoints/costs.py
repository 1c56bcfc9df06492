"""What a conversion reads and writes, told before anything is done.

A device that loads a checkpoint by itself reads the boxes that it keeps, in as many requests as these have runs in the
files; a conversion reads every slab once, for all devices.
Tensors that lie alike and are wanted alike cost the same, and are counted once.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from reshard.models.checkpoints.converting import Converting
from reshard.models.checkpoints.files import Reads


class DeviceCost(NamedTuple):
    """What a file takes, were it made alone."""

    file: str
    written_bytes: int
    """That the file has."""
    needed_bytes: int
    """Of the source, that go into it."""
    read_bytes: int
    """That are read for them: whole chunks, where the source is packed by chunks."""
    requests: int
    """Parts of files that are read."""


class ConversionCost(NamedTuple):
    """What all of it takes."""

    read_bytes: int
    requests: int
    written_bytes: int


def device_costs(work: Converting) -> list[DeviceCost]:
    """Per file that is written, what a device that makes it alone reads."""
    known: dict[Any, Reads] = {}
    sizes = dict(work.written.sizes)
    for name, array in work.written.arrays.items():
        sizes[name] = prod(array.shape) * array.dtype.itemsize
    reads, needed = dict.fromkeys(sizes, Reads()), dict.fromkeys(sizes, 0)
    for copy in work.written.copies(work.source):
        tensor_key = copy.source.key
        for target in copy.targets:
            file, box = str(target.file.path), target.file.box
            if (tensor_key, box) not in known:
                known[tensor_key, box] = copy.source.reads(box)
            reads[file] += known[tensor_key, box]
            needed[file] += box.size * copy.source.dtype.itemsize
    return [
        DeviceCost(file, size, needed[file], reads[file].nbytes, reads[file].requests) for file, size in sizes.items()
    ]


def conversion_cost(work: Converting) -> ConversionCost:
    """What the whole conversion reads, under its cap on memory, and writes."""
    known: dict[Any, Reads] = {}
    total = Reads()
    for copy in work.written.copies(work.source):
        key = copy.key
        if key not in known:
            known[key] = copy.reads(work.slab)
        total += known[key]
    return ConversionCost(total.nbytes, total.requests, work.written.nbytes)
