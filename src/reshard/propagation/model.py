"""A program as one optimisation: variables with options, nodes with layouts, and what each pair of them costs.

A *variable* is a value, or several that must be kept alike, as what goes round a loop; a *node* is an operation.
Cost = for every node its work, and the reshard of its result from how it comes out to how it is kept; for every
variable and every option in which some node wants it one reshard, shared by all who do.
What is wanted may also be made of what another wants, so the reshards of a value are a tree.

Prices are known in two ways.
A *bound* is what a reshard costs at the least, in closed form, for all pairs at once; for what only moves, and for sums
that stay in place, it is what the planner's plan costs.
A *price* is the bound, on a network with messages that wait for each other, until the planner is asked, which is done
for the reshards that are chosen (`Model.learn`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import ceil, prod

import numpy as np

from reshard.contraction.chooser import Chooser
from reshard.contraction.prices import Ends
from reshard.contraction.tasks import Calculation
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.network.inflow import groups_of
from reshard.operations.operation import Operation
from reshard.propagation.borders import with_windows
from reshard.propagation.domains import Domains
from reshard.propagation.fixpoint import Flow, Net
from reshard.propagation.graph import first_alike
from reshard.propagation.handing_on import handed_label, with_handing_on
from reshard.propagation.known_options import flowing
from reshard.propagation.lacking import lacked_of_windows, lacked_unevenly
from reshard.propagation.message_waits import waits
from reshard.propagation.nodes import Besides, Edge, Node, Rent, Variable
from reshard.propagation.space import Costs, Options
from reshard.propagation.trees import BARRED, Table
from reshard.propagation.two_steps import in_steps
from reshard.propagation.waiting import IDENTICAL
from reshard.propagation.ways import Along, Layouts, layouts_of
from reshard.sharding import Sharding

BYTE = dtype_named("uint8")
SAME = 1e-9
"""As a part of them, by how much two numbers for one cost may differ."""
TIE_BREAK = 1e-10
"""What an operation costs at the least where work only decides between equals."""
LESS_THAN_A_BYTE = 0.5
"""What all operations of one device together cost then, as long as that is more for each: so bytes go first."""
TAKEN_APART = 5e-8
"""By how much, as a part of it, moving what a loop takes apart costs less in parts, since no whole must be held.

So little that it proves what it would without it.
"""


class Model:
    """A program as variables and nodes.

    Args:
        net: the program.
        flows: runs of propagation, whose options are among those of the values.
        chooser: what prices it.
        is_pinned: whether values are cut as the first flow has them, and only what may wait is open.
        is_free: whether what is open of inputs is chosen as that of other values is.
    """

    def __init__(
        self, net: Net, flows: Sequence[Flow], chooser: Chooser, *, is_pinned: bool = False, is_free: bool = False
    ) -> None:
        self.net, self.chooser, self.goal = net, chooser, chooser.goal
        self.domains = Domains(net, flows, is_pinned=is_pinned, is_free=is_free, finely=self.goal.network is None)
        self.pieces, self.waiting = self.domains.pieces, self.domains.waiting
        self._tables: dict[tuple[object, ...], Table] = {}
        self._of_bytes: dict[tuple[int, int, str], tuple[Costs, Costs]] = {}
        self.besides = Besides()
        alone = self._work_alone()
        self.tie_break = TIE_BREAK if self.goal.is_sum else max(TIE_BREAK, LESS_THAN_A_BYTE / max(alone, 1))
        """What an operation costs where work only decides between equals."""
        self.has_exact_ties = not self.goal.is_sum and self.tie_break * alone <= LESS_THAN_A_BYTE
        """Whether all work together costs less than a byte."""
        self._layouts: dict[tuple[object, ...], Layouts] = {}
        self._layouts_at: dict[int, Layouts] = {}
        self._shardings: dict[tuple[int, int, str, str], Sharding] = {}
        self._costs: dict[tuple[object, ...], Costs] = {}
        for operation in net.graph.operations:
            if net.calculations[
                operation.result.number
            ].reaches:  # what it reaches is among the options of its operands
                self.layouts_of(operation)
        self.variables = self._variables()
        self.is_tied = False
        """Whether values that are of one class are kept alike."""
        self.read_as: Sequence[int] = range(len(self.variables))
        """Per value the number by which it is read: that of the first one of its class where these are kept alike."""
        self._distinct: tuple[list[Variable], list[Variable]] | None = None
        """All variables, and each once."""

    @property
    def distinct(self) -> list[Variable]:
        """The variables, each once, in an order in which no name has a say."""
        if self._distinct is None or self._distinct[0] is not self.variables:
            in_order = (self.variables[number] for number in self.net.order)
            self._distinct = self.variables, list({id(variable): variable for variable in in_order}.values())
        return self._distinct[1]

    @cached_property
    def nodes(self) -> list[Node]:
        """The operations that have operands."""
        operations = self.net.graph.operations
        nodes = [self._node([operations[number]]) for number in self.net.order if operations[number].operands]
        self._of_bytes.clear()  # all dtypes have their tables
        return nodes

    def tied(self, classes: Sequence[int], kinds: Sequence[int] | None = None) -> Model:
        """The program with values kept alike, and operations computed alike, that are of one class.

        Args:
            classes: per operation the number of the first one of its class.
            kinds: per value the number of the first one of those that are kept alike; its class unless given.
        """
        tied = copy(self)
        tied.is_tied, tied.read_as = True, classes
        tied.variables = self._tied_variables(classes if kinds is None else kinds)
        members: dict[int, list[int]] = {}
        for number in self.net.order:
            members.setdefault(classes[number], []).append(number)
        in_order = ([self.net.graph.operations[number] for number in sorted(alike)] for alike in members.values())
        tied.nodes = [tied._node(alike) for alike in in_order if alike[0].operands]
        return tied

    def dissolve(self) -> None:
        """Let go of the edges, by which variables and nodes hold one another, so that nothing of it is garbage."""
        for variable in self.variables:
            for edge in (*variable.makers, *variable.uses):
                edge.node.uses.clear()
                edge.node.makes.clear()
            variable.makers.clear()
            variable.uses.clear()

    def forget(self) -> None:
        """Let go of what a search has read out of prices, and of layouts; they stay."""
        for table in self._tables.values():
            table.known.clear()
            table.trees.clear()
        for layouts in self._layouts.values():
            for picks in layouts.picks:
                picks.forget()

    def _tied_variables(self, kinds: Sequence[int]) -> list[Variable]:
        """Per value the variable of all that are of its kind."""
        members: dict[int, list[int]] = {}
        for number, first in enumerate(kinds):
            members.setdefault(first, []).append(number)
        firsts = {
            first: replace(
                self.variables[first],
                count=len(alike),
                copies=tuple(alike),
                uses=[],
                makers=[],
                rent=_sum(self.variables[number].rent for number in alike),
            )
            for first, alike in members.items()
        }
        return [firsts[kinds[variable.number]] for variable in self.variables]

    def charging(self, besides: Besides) -> Model:
        """The program where it costs so much besides to hold values and to compute."""
        rented = copy(self)
        rented.besides, rented._tables = besides, dict(self._tables)
        variables: dict[int, Variable] = {}
        for number, variable in enumerate(self.variables):
            own = variables.setdefault(id(variable), replace(variable, uses=[], makers=[], rent=None))
            kept = besides.rents.get(number, Rent()).kept
            if kept:
                tiles = variable.options.tiles * (kept * self.net.values[number].dtype.itemsize)
                own.rent = tiles if own.rent is None else own.rent + tiles
        rented.variables = [variables[id(variable)] for variable in self.variables]
        rented.nodes = [rented._node([self.net.graph.operations[node.number]]) for node in self.nodes]
        return rented

    def keeping(self, flow: Flow) -> Model:
        """The program where inputs are kept as an outcome of propagation has them, as far as they may be."""
        kept = copy(self)
        kept._layouts_at = {}
        variables: dict[int, Variable] = {}
        for number, variable in enumerate(self.variables):
            own = variables.setdefault(id(variable), replace(variable, uses=[], makers=[]))
            if self.net.graph.operations[number].name == "input":
                option = flowing(flow, number, variable)
                own.domain = own.domain if option is None else np.array([option])
        kept.variables = [variables[id(variable)] for variable in self.variables]
        kept.nodes = [kept._node([self.net.graph.operations[node.number]]) for node in self.nodes]
        return kept

    def _work_alone(self) -> int:
        """The operations of a device that does all of the program."""
        often: dict[Calculation, int] = {}
        for number in self.net.computed:
            calculation = self.net.calculations[number]
            often[calculation] = often.get(calculation, 0) + self.net.trip_counts(number)[-1]
        return sum(
            stage.operations * prod(map(calculation.label_sizes.__getitem__, stage.labels)) * count
            for calculation, count in often.items()
            for stage in calculation.stages
        )

    def bound_of(self, bound: float) -> float:
        """A bound without what decides between equals: of whole bytes."""
        return float(ceil(bound * (1 - SAME) - LESS_THAN_A_BYTE)) if self.has_exact_ties else bound

    def _variables(self) -> list[Variable]:
        """Per value its variable."""
        graph = self.net.graph
        variables: list[Variable] = []
        lasts = [operation for operation in graph.operations if operation.name == "last"]
        carried = [(operation.result.number, operation.operands[1].number) for operation in lasts]
        ties = [(one.number, other.number) for one, other in graph.ties]
        tied = first_alike(len(graph.operations), [*ties, *carried])
        for number, operation in enumerate(graph.operations):
            value = operation.result
            domain = self.domains.of(number)
            if tied[number] != number:
                first = variables[tied[number]]
                is_same = first.options is self.domains.options[number]
                both = np.intersect1d(first.domain, domain)
                if is_same and len(both):
                    first.domain = both
                    variables.append(first)
                    continue
                names = f"{self.net.values[tied[number]].name} and {value.name}"
                raise ReshardError("bad-program", f"{names} are tied, and cannot be sharded alike")
            options = self.domains.options[number]
            variables.append(Variable(number, options, domain, self._table(number, options)))
        return variables

    def _node(self, alike: Sequence[Operation]) -> Node:
        """Operations that are computed alike, with their layouts."""
        operation = alike[0]
        number = operation.result.number
        net, tensors = self.net, self._tensors(operation)
        trips, layouts = net.trip_counts(number), self.layouts_of(operation)
        per_flop = self.goal.per_flop(operation.arithmetic)
        besides = self.besides.per_flop or (0.0 if per_flop else self.tie_break)
        touched = net.fusion.touched(operation) if self.goal.per_touched_byte else ()
        dtypes = tuple(operation.values[place].dtype for place in touched)
        rents = self.besides.rents
        key = id(layouts), trips[-1] * len(alike), per_flop, besides, touched, dtypes
        if key not in self._costs:
            work = layouts.flops * per_flop
            if touched:
                work = np.maximum(work, _touched_bytes(layouts, tensors, touched, dtypes) * self.goal.per_touched_byte)
            self._costs[key] = (work + layouts.flops * besides) * key[1]
            if layouts.received is not None:
                self._costs[key] += layouts.received * (key[1] * self.goal.per_byte)
        node = Node(number, layouts, self._costs[key])
        read_by_all = list(zip(*(each.values for each in alike), strict=True))
        for place, (options, values) in enumerate(zip(tensors, read_by_all, strict=True)):
            is_result = place == len(tensors) - 1
            maker = net.graph.operations[values[0].number]
            often = trips[place] * (1 - TAKEN_APART if maker.name == "element" else 1)
            read: dict[Variable, int] = {}
            for each in values:
                read.setdefault(self.variables[each.number], each.number)
            for variable, value in read.items():
                rent = 0.0
                if rents:
                    numbers = {each.number for each in values}
                    own = [rents[n] for n in numbers if n in rents and self.variables[n] is variable]
                    rent = sum(rent.made if is_result else rent.wanted for rent in own)
                    rent /= max(often * variable.count, 1.0)  # a loop may have no turns
                is_one = is_result and operation.name in IDENTICAL  # what is wanted and what is kept are one
                table = variable.table
                if rent or is_one or options is not variable.options:
                    table = self._table(variable.number, options, rent, is_result=is_result, is_one=is_one)
                edge = Edge(
                    node,
                    place,
                    variable,
                    options,
                    table,
                    layouts.picks[place],
                    often,
                    self.read_as[value],
                    is_result=is_result,
                )
                (node.makes if is_result else node.uses).append(edge)
                (variable.makers if is_result else variable.uses).append(edge)
        return node

    def _tensors(self, operation: Operation) -> list[Options]:
        """The options of the values of an operation on the mesh of its result."""
        mesh = self.net.meshes[operation.result.number]
        return [
            self.domains.options[value.number]
            if self.net.meshes[value.number] is mesh
            else self.domains.on(mesh, value.shape)
            for value in operation.values
        ]

    def layouts_of(self, operation: Operation) -> Layouts:
        """How an operation may be computed."""
        number = operation.result.number
        if number not in self._layouts_at:
            self._layouts_at[number] = self._layouts_for(operation)
        return self._layouts_at[number]

    def _layouts_for(self, operation: Operation) -> Layouts:
        """The same, one object for all operations that are alike."""
        number = operation.result.number
        net, mesh = self.net, self.net.meshes[number]
        key: tuple[object, ...]
        if operation.name in IDENTICAL:
            domain = self.variables[number].domain
            key = len(operation.operands), domain.tobytes()
            if key not in self._layouts:
                used = (domain,) * len(operation.operands)
                self._layouts[key] = Layouts(used, domain, np.zeros(len(domain)), domain, domain)
            return self._layouts[key]
        tensors, along = self._tensors(operation), self.along(operation)
        handed = handed_label(operation) if self.goal.network is None else None
        key = id(net.calculations[number]), tuple(map(id, tensors)), along, handed
        if key not in self._layouts:
            calculation, pieces = net.calculations[number], self.pieces[mesh]
            if handed is not None:
                calculation = replace(calculation, whole=calculation.whole - {handed})
            layouts = layouts_of(calculation, pieces, tensors, along)
            if handed is not None:
                layouts = with_handing_on(layouts, calculation, pieces, handed)
            if calculation.reaches:
                layouts = with_windows(layouts, calculation, tensors, net.uneven)
            self._layouts[key] = layouts
        return self._layouts[key]

    def along(self, operation: Operation) -> tuple[Along, ...]:
        """Per tensor of an operation the pieces along which it may be unreduced, where that is on the same mesh."""
        meshes, mesh = self.net.meshes, self.net.meshes[operation.result.number]
        return tuple(
            self.waiting[value.number] if meshes[value.number] is mesh else Along(frozenset(), "sum")
            for value in operation.values
        )

    def _table(
        self, number: int, wanted: Options, rent: float = 0.0, *, is_result: bool = False, is_one: bool = False
    ) -> Table:
        """What reshards of a value cost, to options on a mesh, where it costs so much to hold a byte besides."""
        if rent or is_one:
            free = self._table(number, wanted)
            if is_one:
                if (id(free), is_one) not in self._tables:
                    self._tables[id(free), is_one] = free.barred()
                return self._tables[id(free), is_one]
            if (id(free), rent, is_result) not in self._tables:
                held = wanted.tiles * (rent * self.net.values[number].dtype.itemsize)
                besides = np.broadcast_to(held[:, None] if is_result else held[None, :], free.bound.shape)
                is_there = np.eye(*free.bound.shape, dtype=np.bool_) & free.is_own
                self._tables[id(free), rent, is_result] = free.rented(np.where(is_there, 0.0, besides))
            return self._tables[id(free), rent, is_result]
        value = self.net.values[number]
        own = self.domains.options[number]
        reduction = self.waiting[number][1]
        key = id(own), id(wanted), value.dtype, reduction
        if key not in self._tables:
            if self.goal.network is None:  # so many times what the elements of a byte cost
                alike = id(own), id(wanted), reduction
                if alike not in self._of_bytes:
                    self._of_bytes[alike] = self._least(own, wanted, reduction, BYTE)
                bound, price = (costs * value.dtype.itemsize for costs in self._of_bytes[alike])
            else:
                bound, price = self._least(own, wanted, reduction, value.dtype)
            self._tables[key] = Table(bound, price, is_own=own is wanted)
        return self._tables[key]

    def _least(self, own: Options, wanted: Options, reduction: str, dtype: DType) -> tuple[Costs, Costs]:
        """What reshards between options of a value cost at the least, and as far as is known before any is planned."""
        if own is wanted:
            bound = self._bound(own, dtype.itemsize)
            windows = [n for n, option in enumerate(own.all) if option.has_windows]
            odd = set(np.flatnonzero(~own.is_of_pieces).tolist()).difference(windows)
            every = range(len(own.all))
            pairs = [*product(sorted(odd), every), *product([n for n in every if n not in odd], sorted(odd))]
            for window, lacking in lacked_of_windows(own, self.net.uneven).items():
                bound[:, window] = self._taken_for(lacking * dtype.itemsize, own)
            bound[windows, :] = np.inf  # no value is kept so
            bound[windows, windows] = 0.0
        else:
            bound = np.zeros((len(own.all), len(wanted.all)))
            pairs = list(product(range(len(own.all)), range(len(wanted.all))))
        for a, b in pairs:
            if own.all[a].has_windows:
                bound[a, b] = np.inf
                continue
            before = own.pieces.sharding(own.all[a], reduction, self.net.uneven)
            after = wanted.pieces.sharding(wanted.all[b], reduction, self.net.uneven)
            bound[a, b] = self.chooser.prices.least_bytes(Ends(before, after, own.shape, dtype)) * self.goal.per_byte
        return bound, self._guessed(bound, own, dtype.itemsize) if own is wanted else bound

    def _guessed(self, bound: Costs, options: Options, itemsize: int) -> Costs:
        """What reshards between options cost as far as is known before the planner is asked.

        Where tiles are uneven each reshard has its own busiest device; bounds, which are added up, do not count it.
        """
        known = bound
        if len(self.net.rules_of_uneven) < 2:
            lacking = lacked_unevenly(options, self.net.uneven)
            known = np.maximum(bound, self._taken_for(lacking * itemsize, options)) if lacking.any() else bound
        return in_steps(options, known + self._waits(options, itemsize))

    def _taken_for(self, received: Costs, options: Options) -> Costs:
        """What it costs at the least that a device receives so many bytes, of values with some options."""
        network = self.goal.network
        if network is None:
            return received * self.goal.per_byte
        return groups_of(network, options.pieces.mesh)[0].seconds(received, network.launch_s)

    def _bound(self, options: Options, itemsize: int) -> Costs:
        """What reshards between options cost at the least."""
        network = self.goal.network
        return options.received() * itemsize if network is None else options.seconds(network, itemsize)

    def _waits(self, options: Options, itemsize: int) -> Costs:
        """What reshards between options cost besides the least, as far as is known before the planner is asked."""
        if self.goal.network is None:
            return options.carried_besides() * itemsize
        return waits(options, self.goal.network, itemsize)

    def sharding(self, number: int, option: int, wanted: Options | None = None) -> Sharding:
        """An option as the sharding of a value, as it was given where it was."""
        value = self.net.values[number]
        said = self.net.graph.annotations.get(value)
        options = wanted or self.variables[number].options
        chosen = options.all[option]
        if said is not None and options.pieces.mesh == said.mesh and self.domains.given[number] == chosen:
            return self.net.sharding(number, [axes for axes, _ in self.domains.said[number]], said)
        uneven = self.net.uneven if said is None else said.uneven
        key = id(options), option, self.waiting[number].reduction, uneven
        if key not in self._shardings:
            self._shardings[key] = options.pieces.sharding(chosen, self.waiting[number].reduction, uneven)
        return self._shardings[key]

    def learn(self, edge: Edge, source: int, target: int) -> bool:
        """Ask the planner what a reshard costs; whether that is not what was thought."""
        table = edge.table
        if (table.is_own and source == target) or table.is_known or (source, target) in table.asked:
            return False
        table.asked.add((source, target))
        value = self.net.values[edge.variable.number]
        ends = (
            self.sharding(edge.variable.number, source, edge.variable.options if table.is_own else None),
            self.sharding(edge.variable.number, target, edge.wanted),
        )
        moved = self.chooser.prices.moved(*ends, value.shape, value.dtype)
        cost = moved.price.cost if self.goal.is_sum else float(moved.share)
        cost = min(cost, BARRED * max(1.0, float(table.free.price.max())))
        paid = cost if table.free is table else cost + float(table.rent[source, target])
        if abs(paid - table.price[source, target]) <= SAME * paid:
            return False
        for each, known in ((table, paid), (table.free, cost)):
            each.learn(source, target, known)
        return True


def _touched_bytes(
    layouts: Layouts, tensors: Sequence[Options], touched: Sequence[int], dtypes: Sequence[DType]
) -> Costs:
    """Per layout the bytes that a device reads from its memory and writes there."""
    numbers = (*layouts.used, layouts.made)
    each = (tensors[n].tiles[numbers[n]] * dtype.itemsize for n, dtype in zip(touched, dtypes, strict=True))
    return np.asarray(sum(each))


def _sum(parts: Iterable[Costs | None]) -> Costs | None:
    """The sum of what is not None."""
    known = [part for part in parts if part is not None]
    return np.asarray(sum(known)) if known else None
