"""Which options every value of a program may have, before any of them is priced.

A value of which something is said has what that leaves open; an input of which nothing is said has what was carried to
it, unless inputs are chosen too; any other value may be cut in every way that divides it, and in those that were
carried to it.
In small programs on few devices what is made between may be cut unevenly too, into no more parts than elements.
It may wait to be combined where those who read it can.

By hand, on two devices: x is cut by rows, as is said; what is made of it may be cut along either dim, or not.

>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(x=2))
>>> after = program.op("ij->ij", program.input("before", (4, 4), "float32", '[{"x"}, {}]'), name="relu")
>>> net = Net(program)
>>> domains = Domains(net, net.runs(None))
>>> [[domains.options[number].all[option].dims for option in domains.of(number).tolist()] for number in range(2)]
[[((0,), ())], [((), ()), ((0,), ()), ((), (0,))]]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from reshard.mesh import Mesh
from reshard.propagation.fixpoint import Flow, Net
from reshard.propagation.known_options import options_of_cuts, pieces_of, said_of
from reshard.propagation.space import Numbers, Option, Options
from reshard.propagation.waiting import can_wait, waiting_of

FEW_OPERATIONS, FEW_DEVICES = 24, 16
"""A program of up to so many operations may be placed in finer pieces; on up to so many devices unevenly too."""
MOST_WAITING = 3
"""Along how many pieces a value that is cut unevenly may wait."""


class Domains:
    """The options of the values of a program.

    Args:
        net: the program.
        flows: runs of propagation, whose options are among those of the values.
        is_pinned: whether values are cut as the first flow has them, and only what may wait is open.
        is_free: whether what is open of inputs is chosen as that of other values is.
        finely: whether a small program is placed in finer pieces, and unevenly: reshards are priced in no time then.
    """

    def __init__(
        self, net: Net, flows: Sequence[Flow], *, is_pinned: bool = False, is_free: bool = False, finely: bool = True
    ) -> None:
        self._net, self._is_pinned, self._is_free = net, is_pinned, is_free
        self._finely = finely and len(net.values) <= FEW_OPERATIONS
        numbers = range(len(net.values))
        self.said = [said_of(net, number, flows[0]) for number in numbers]
        self.pieces = {
            mesh: pieces_of(net, mesh, self.said, flows, finely=self._finely) for mesh in dict.fromkeys(net.meshes)
        }
        self.given = [self._given(number) for number in numbers]
        """Per value what was said of it, as an option."""
        self.waiting = waiting_of(net, self.pieces, flows)
        self._known: dict[tuple[Any, ...], list[Option]] = {}
        self._flowing = [self._options_of(number, flows) for number in numbers]
        self._by_shape = self._all_options()
        self.options = [self.on(mesh, value.shape) for mesh, value in zip(net.meshes, net.values, strict=True)]
        """Per value all options of its shape on its mesh."""
        self._kept: dict[bytes, Numbers] = {}
        self._open: dict[tuple[int, frozenset[int], int, bool], list[int]] = {}

    def on(self, mesh: Mesh, shape: tuple[int, ...]) -> Options:
        """All options of a shape on a mesh."""
        return self._by_shape[mesh, shape]

    def of(self, number: int) -> Numbers:
        """The numbers of the options that a value may have."""
        graph, operation = self._net.graph, self._net.graph.operations[number]
        options, flowing = self.options[number], self._flowing[number]
        given, annotation = self.given[number], graph.annotations.get(operation.result)
        is_end = operation.name in ("input", "output")
        if given is not None and annotation is not None:
            said = self.said[number]
            if given.sharding is not None or not any(is_open for _, is_open in said):
                return np.array([options.numbers[given]])
            barred = {*(options.pieces.of(annotation.replicated) or ())}
            domain = [
                n
                for n, option in enumerate(options.all)
                if option.unreduced == given.unreduced
                and option.sharding is None
                and not any(piece in barred for axes in option.dims for piece in axes)
                and all(
                    axes[: len(own)] == own if is_open else axes == own
                    for axes, own, (_, is_open) in zip(option.dims, given.dims, said, strict=True)
                )
                and (operation.name != "input" or self._is_free or option._replace(unreduced=()) in flowing)
            ]
        elif operation.name == "input" and not self._is_free:
            domain = [options.numbers[option] for option in flowing]
        else:
            users = self._net.users[number]
            waits = not is_end and any(self.waiting[user][0] or can_wait(graph.operations[user]) for user in users)
            along = self.waiting[number][0] if waits else frozenset[int]()
            domain = self._open_domain(options, along, flowing, evenly=is_end or options.evenly)
        if graph.even_ends and is_end:
            domain = [n for n in domain if options.is_even[n] or options.all[n] == given] or domain
        if self._is_pinned and flowing:
            cut = flowing[0].dims
            domain = [n for n in domain if options.all[n].dims == cut] or domain
        numbers = np.array(domain, dtype=np.int64)
        return self._kept.setdefault(numbers.tobytes(), numbers)

    def _options_of(self, number: int, flows: Sequence[Flow]) -> list[Option]:
        """The options of a value that flows have; of an end that must be even, as far as they divide it."""
        mesh, operation = self._net.meshes[number], self._net.graph.operations[number]
        must_divide = self._net.graph.even_ends and operation.name in ("input", "output")
        divided = operation.result.shape if must_divide else None
        cuts = {id(flow.dims[number]): flow.dims[number] for flow in flows}
        alike = id(mesh), *cuts, divided
        if alike not in self._known:
            key = mesh, tuple(dict.fromkeys(cuts.values())), divided, len(flows) > 1
            if key not in self._known:
                self._known[key] = options_of_cuts(self.pieces[mesh], *key[1:])
            self._known[alike] = self._known[key]
        return self._known[alike]

    def _given(self, number: int) -> Option | None:
        """What was said of a value, as an option."""
        value = self._net.values[number]
        annotation = self._net.graph.annotations.get(value)
        if annotation is None:
            return None
        pieces = self.pieces[self._net.meshes[number]]
        option = pieces.option(annotation, len(value.shape))
        if option.sharding is not None:
            return option
        dims = tuple(pieces.of(axes) or () for axes, _ in self.said[number])
        return Option(dims, option.unreduced)

    def _all_options(self) -> dict[tuple[Mesh, tuple[int, ...]], Options]:
        """Per mesh and shape its options."""
        net = self._net
        waiting: dict[tuple[Mesh, tuple[int, ...]], set[int]] = {}
        besides: dict[tuple[Mesh, tuple[int, ...]], dict[Option, None]] = {}
        for number, value in enumerate(net.values):
            mesh, given = net.meshes[number], self.given[number]
            own = [*self._waiting_unevenly(number), *([] if given is None else [given])]
            waiting.setdefault((mesh, value.shape), set()).update(self.waiting[number][0])
            besides.setdefault((mesh, value.shape), {}).update(dict.fromkeys(own))
            for user in {net.meshes[n] for n in self._net.users[number]} - {mesh}:
                waiting.setdefault((user, value.shape), set())
        return {
            (mesh, shape): Options(
                self.pieces[mesh],
                shape,
                along,
                besides.get((mesh, shape), ()),
                evenly=not self._finely or mesh.size > FEW_DEVICES,
            )
            for (mesh, shape), along in waiting.items()
        }

    def _waiting_unevenly(self, number: int) -> list[Option]:
        """The options of a value that flows have, those that cut it unevenly also where it waits besides."""
        flowing, shape, waiting = self._flowing[number], self._net.values[number].shape, self.waiting[number].pieces
        key = id(flowing), shape, waiting
        if key not in self._known:
            pieces, options = self.pieces[self._net.meshes[number]], dict.fromkeys(flowing)
            for option in flowing:
                if any(size % pieces.count(cut) for size, cut in zip(shape, option.dims, strict=True)):
                    free = sorted(waiting - {piece for cut in option.dims for piece in cut})[:MOST_WAITING]
                    subsets = (along for count in range(1, len(free) + 1) for along in combinations(free, count))
                    options.update(dict.fromkeys(Option(option.dims, along) for along in subsets))
            self._known[key] = list(options)
        return self._known[key]

    def _open_domain(
        self, options: Options, along: frozenset[int], flowing: list[Option], *, evenly: bool
    ) -> list[int]:
        """The numbers of the options of a value of which nothing is said, which may wait along some pieces."""
        key = id(options), along, id(flowing), evenly
        if key not in self._open:
            self._open[key] = [
                n
                for n, option in enumerate(options.all)
                if along.issuperset(option.unreduced)
                and option.sharding is None
                and (options.is_even[n] or not evenly or option._replace(unreduced=()) in flowing)
            ]
        return self._open[key]
