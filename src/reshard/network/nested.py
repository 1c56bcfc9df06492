"""A network as the axes of a mesh divide it, where they do not nest in its levels.

An axis of 16 on hosts of 72 devices joins devices of one host here and of two there, so no digit of its positions says
what a host is.
Groups of 8 lie inside hosts all the same, and axes nest in these: with groups in the place of hosts, ways are found in
which what goes between groups goes apart from what goes inside.
What such ways take is not what this network says, for some groups are of one host.

>>> from reshard.mesh import Mesh
>>> network = Network.preset("gb200-nvl72-4x72")
>>> print(nested(network, Mesh.of(data=18, model=16)))
gb200-nvl72-4x72: 288 devices
level 0  switch of 8, 900 GB/s, 0.6 us
level 1  switch of 36, 50 GB/s, 2.7 us
>>> nested(network, Mesh.of(data=36, model=8)) is network
True
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd

from reshard.axis import Axis
from reshard.mesh import Mesh
from reshard.network.networks import Network


@lru_cache(64)
def nested(network: Network, mesh: Mesh) -> Network:
    """The network with groups of a host, the largest in which axes of the mesh nest, in the place of its hosts.

    The same where all axes nest, or where what joins the devices of a host is no switch: a part of a ring is none.
    """
    levels = list(network.levels)
    for number, outer in enumerate(network.levels[1:]):
        inner, group = levels[number], _largest_group(mesh, outer.stride)
        if inner.is_switch and inner.stride < group < outer.stride and group % inner.stride == 0:
            levels[number] = replace(inner, size=group // inner.stride)
            levels[number + 1] = replace(outer, stride=group, size=outer.digit.end // group)
    return network if levels == list(network.levels) else replace(network, levels=tuple(levels))


def _largest_group(mesh: Mesh, host: int) -> int:
    """The number of devices of the largest groups of a host in which all axes nest: the host, where they do in it.

    >>> [_largest_group(Mesh.of(a=3, b=96), host) for host in (72, 96)]
    [24, 96]
    """
    if host >= mesh.size:
        return host
    digits = [mesh.digit_of(Axis(name)) for name in mesh.sizes]
    groups = (digit.stride * gcd(digit.size, host // digit.stride) for digit in digits if host % digit.stride == 0)
    return max(groups, default=1)
