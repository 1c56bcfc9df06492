"""What the plain text forms have in common: whole axes, blocks of the ceiling, no single-device meshes."""

from __future__ import annotations

from dataclasses import replace

from reshard.errors import ReshardError
from reshard.sharding import Sharding


def check_blocks(sharding: Sharding, form: str) -> None:
    """Refuse a sharding whose tiles are not one box each, or whose uneven dims a form would cut at other places.

    Args:
        sharding: to be written.
        form: what to call the form in the sentence.

    Raises:
        ReshardError: `cannot-express`.

    >>> from reshard.mesh import Mesh
    >>> check_blocks(Sharding.of(Mesh.of(x=2, y=2), "x", "y", uneven="chunk"), "the form")  # one axis: the same cuts
    >>> check_blocks(Sharding.of(Mesh.of(x=2, y=2), ("x", "y"), uneven="chunk"), "the form")
    Traceback (most recent call last):
        ...
    reshard.errors.ReshardError: the form has no chunks of chunks, as [{"x", "y"}], uneven=chunk cuts a dim
    """
    sharding.check_plain(form)
    if replace(sharding, uneven="ceil").layout != sharding.layout:
        raise ReshardError("cannot-express", f"{form} has no chunks of chunks, as {sharding.text()} cuts a dim")


def check_plain(sharding: Sharding, form: str) -> None:
    """Refuse a sharding that a form of whole axes cannot hold.

    Args:
        sharding: to be written.
        form: what to call the form in the sentence.

    Raises:
        ReshardError: `cannot-express`.

    >>> from reshard.mesh import Mesh
    >>> check_plain(Sharding(Mesh.of(device_ids=[3]), ()), "the form")
    Traceback (most recent call last):
        ...
    reshard.errors.ReshardError: the form has no mesh of a single device, as <[], device_ids=[3]> is
    """
    if sharding.mesh.is_maximal:
        raise ReshardError("cannot-express", f"{form} has no mesh of a single device, as {sharding.mesh} is")
    for axis in sharding.axes():
        if not axis.is_whole and axis not in sharding.replicated:
            raise ReshardError("cannot-express", f"{form} has no sub-axes, but {sharding.text()} uses {axis}")
    check_blocks(sharding, form)
