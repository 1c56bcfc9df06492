"""A choice made better, one value or one operation at a time, with reshards shared as they are.

What an operation pays for an operand is what it takes to bring that where it wants it from how it is kept, or from
what others want of it.
A value is tried in every option, with the operations around it free to take another layout each; of the best of these
the exact price decides.
Where two choices differ, every part in which they do is taken over from the other if that is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy

import numpy as np

from reshard.propagation.model import Model
from reshard.propagation.nodes import Edge, Node, Sharing, Variable
from reshard.propagation.space import Costs
from reshard.propagation.trees import Table

NEAR = 3
"""How many options of a value are priced exactly at a time."""
SLACK = 1e-9

Wanted = dict[int, dict[Sharing, dict[int, int]]]


class Descent:
    """A choice, and what it costs.

    Args:
        model: the program.
        options: per variable its option, by identity.
        layouts: per operation its layout, by its number.
        before: a choice of the same model that is settled, but for some values; around what differs from it more is
            to be tried.
    """

    def __init__(
        self, model: Model, options: dict[int, int], layouts: dict[int, int], before: Descent | None = None
    ) -> None:
        self.model = model
        self.options, self.layouts = dict(options), dict(layouts)
        self.variables = model.distinct
        self.wanted: Wanted
        """Per variable, and reshards that are shared, how many uses want it in an option."""
        if before is None:
            self.wanted = {id(variable): {} for variable in self.variables}
            for node in model.nodes:
                self.want(node, 1)
            self.unsettled = {id(variable): variable for variable in self.variables}
            """What is to be tried in other options: around it something has changed since it was, by identity."""
        else:
            self.wanted = _copied(before.wanted)
            self.unsettled = dict(before.unsettled)
            for node in model.nodes:
                is_other = layouts[node.number] != before.layouts[node.number]
                for edge in node.uses if is_other else ():
                    self._change(edge, before._want(edge), -1)
                    self._change(edge, self._want(edge), 1)
                edges = node.edges
                if is_other or any(options[id(each.variable)] != before.options[id(each.variable)] for each in edges):
                    self.unsettled.update((id(each.variable), each.variable) for each in edges)
        self.cost = self.total()

    def copied(self) -> Descent:
        """The same choice, to be changed by itself."""
        other = copy(self)
        other.options, other.layouts = dict(self.options), dict(self.layouts)
        other.wanted, other.unsettled = _copied(self.wanted), dict(self.unsettled)
        return other

    def reprice(self) -> None:
        """Say what the choice costs at the prices that are known by now."""
        self.cost = self.total()

    def _want(self, edge: Edge, layout: int | None = None) -> int:
        return edge.picks.listed[self.layouts[edge.node.number] if layout is None else layout]

    def want(self, node: Node, by: int) -> None:
        """So many uses more or less of what an operation wants of its operands."""
        for edge in node.uses:
            self._change(edge, self._want(edge), by)

    def _change(self, edge: Edge, option: int, by: int) -> None:
        """One use more or less that wants its operand in an option."""
        shared = self.wanted[id(edge.variable)]
        counts = shared.get(edge.sharing)
        if counts is None:
            counts = shared[edge.sharing] = {}
        count = counts.get(option, 0) + by
        if count:
            counts[option] = count
        else:
            del counts[option]

    def total(self) -> float:
        """What the choice costs."""
        return sum(map(self.node_cost, self.model.nodes)) + sum(map(self.shared, self.variables))

    def node_cost(self, node: Node) -> float:
        """What an operation costs with the reshard of its result."""
        layout = self.layouts[node.number]
        moved = 0.0
        for edge in node.makes:
            moved += edge.table.price.item(edge.picks.listed[layout], self.options[id(edge.variable)]) * edge.times
        return float(node.cost.item(layout) + moved)

    def leaving(self, node: Node, but: Edge | None = None) -> Costs:
        """Per layout of an operation, what it takes to bring its result to where it is kept, or to keep it as made."""
        costs = []
        for edge in node.makes:
            if edge is not but:
                kept, moved = self.options[id(edge.variable)], edge.moved(self.options[id(edge.variable)])
                if edge.variable.follows:
                    made, rent = edge.picks.numbers, edge.variable.rent
                    instead = 0.0 if rent is None else rent[made] - rent[kept]
                    moved = np.where(edge.may_stay, np.minimum(moved, instead), moved)
                costs.append(moved)
        return costs[0] if len(costs) == 1 else np.asarray(sum(costs, np.zeros(len(node.layouts))))

    def _following(self, nodes: Iterable[Node], layouts: Mapping[int, int]) -> dict[int, int]:
        """The options of results that nothing reads, where they are to be kept as other layouts make them."""
        options = {}
        for node in nodes:
            for edge in node.makes:
                variable, layout = edge.variable, layouts.get(node.number, self.layouts[node.number])
                made, kept = edge.picks.listed[layout], self.options[id(variable)]
                if made != kept and variable.follows and made in variable.domain:
                    instead = 0.0 if variable.rent is None else float(variable.rent[made] - variable.rent[kept])
                    if instead < edge.table.price[made, kept] * edge.times:
                        options[id(variable)] = made
        return options

    def shared(self, variable: Variable) -> float:
        """What the reshards of a value cost, and holding it."""
        kept = self.options[id(variable)]
        cost = 0.0 if variable.rent is None else float(variable.rent[kept])
        for (table, times, _), counts in self.wanted[id(variable)].items():
            if counts:
                cost += table.all_from(kept, frozenset(counts)) * times
        return cost

    def wants(self, variable: Variable) -> dict[Sharing, frozenset[int]]:
        """In which options a value is wanted, by those who share reshards."""
        return {sharing: frozenset(counts) for sharing, counts in self.wanted[id(variable)].items() if counts}

    def there(self, edge: Edge) -> list[int]:
        """The options of an operand that are there without an operation: how it is kept, and what others want."""
        kept, own = self.options[id(edge.variable)], self._want(edge)
        if not edge.table.is_own:
            return [kept]
        counts = self.wanted[id(edge.variable)][edge.sharing]
        return [kept, *(option for option, count in counts.items() if count > (option == own))]

    def marginal(self, edge: Edge) -> Costs:
        """Per layout of an operation, what it takes to bring an operand, besides what others want."""
        return edge.brought(frozenset(self.there(edge)))

    def pay(self, node: Node, but: Edge | None = None) -> Costs:
        """Per layout of an operation its work, and what its operands take."""
        cost = node.cost.copy()
        for edge in node.uses:
            if edge is not but:
                cost += self.marginal(edge)
        return cost

    def paid(self, node: Node) -> float:
        """What an operation costs with those of its operands' reshards that no other shares."""
        variables = {id(edge.variable): edge.variable for edge in node.uses}.values()
        with_it = sum(map(self.shared, variables))
        self.want(node, -1)
        without = sum(map(self.shared, variables))
        self.want(node, 1)
        return self.node_cost(node) + with_it - without

    def improve_node(self, node: Node) -> bool:
        """Give an operation its cheapest layout; whether that is another."""
        cost = self.pay(node) + self.leaving(node)
        best, layout = int(cost.argmin()), self.layouts[node.number]
        if cost[best] >= cost[layout] * (1 - SLACK):
            return False
        return self.try_change({}, {node.number: best}, [node])

    def improve_value(self, variable: Variable) -> bool:
        """Give a value its best option, with the operations around it; whether that is another."""
        if len(variable.domain) < 2:
            return False
        options, around = self.nearest(variable)
        return any(self._try_option(variable, option, around) for option in options)

    def nearest(self, variable: Variable, most: int = NEAR) -> tuple[list[int], list[tuple[Edge, Costs]]]:
        """The other options of a value that cost least, and per edge what else each layout of its operation costs."""
        domain = variable.domain
        estimate = np.zeros(len(domain)) if variable.rent is None else variable.rent[domain]
        around: list[tuple[Edge, Costs]] = []
        for edge in (*variable.makers, *variable.uses):
            costs = self.pay(edge.node, edge) + self.leaving(edge.node, edge)
            least = edge.picks.least(costs)
            estimate += np.minimum.reduce(edge.between(domain) + least, axis=1)
            around.append((edge, costs))
        kept, order = self.options[id(variable)], domain[np.argsort(estimate, kind="stable")].tolist()
        return [option for option in order if option != kept][:most], around

    def _try_option(self, variable: Variable, option: int, around: Sequence[tuple[Edge, Costs]]) -> bool:
        """Keep a value otherwise, with each operation around it in the layout that is best then, if that is cheaper."""
        layouts: dict[int, int] = {}
        nearest = [option]
        for edge, own in around:
            if edge.node.number in layouts:
                continue
            if edge.is_result:
                move = edge.moved(option)
            else:
                move = edge.brought(frozenset(nearest if edge.table.is_own else [option]))
            layout = int((own + move).argmin())
            layouts[edge.node.number] = layout
            if not edge.is_result and edge.table.is_own:
                nearest.append(edge.picks.listed[layout])
        return self.try_change({id(variable): option}, layouts, [edge.node for edge, _ in around])

    def keep(self, variable: Variable, option: int) -> None:
        """Keep a value in an option, whatever that costs."""
        makers = {edge.node.number: edge.node for edge in variable.makers}.values()
        before = sum(map(self.node_cost, makers)) + self.shared(variable)
        self._set([], {id(variable): option}, {})
        self.cost += sum(map(self.node_cost, makers)) + self.shared(variable) - before

    def try_change(self, options: dict[int, int], layouts: dict[int, int], nodes: Iterable[Node]) -> bool:
        """Take other options and layouts if that is cheaper; whether it is.

        Args:
            options: of variables.
            layouts: of operations.
            nodes: all that have one of the variables, or another layout.
        """
        touched = list({node.number: node for node in nodes}.values())
        options = self._following(touched, layouts) | options
        edges = [edge for node in touched for edge in node.edges]
        otherwise = [node for node in touched if layouts.get(node.number, own := self.layouts[node.number]) != own]
        moving = [edge for edge in edges if id(edge.variable) in options]
        priced = {id(e.variable): e.variable for e in (*moving, *(e for node in otherwise for e in node.uses))}.values()
        paying = {node.number: node for node in (*otherwise, *(e.node for e in moving if e.is_result))}.values()
        before = sum(map(self.node_cost, paying)) + sum(map(self.shared, priced))
        old_options = {key: self.options[key] for key in options}
        old_layouts = {number: self.layouts[number] for number in layouts}
        self._set(otherwise, options, layouts)
        after = sum(map(self.node_cost, paying)) + sum(map(self.shared, priced))
        if after < before - SLACK * abs(before):
            self.cost += after - before
            self.unsettled.update((id(edge.variable), edge.variable) for edge in edges)
            return True
        self._set(otherwise, old_options, old_layouts)
        return False

    def _set(self, nodes: Iterable[Node], options: dict[int, int], layouts: dict[int, int]) -> None:
        for node in nodes:
            if node.number in layouts:
                for edge in node.uses:
                    before, after = self._want(edge), self._want(edge, layouts[node.number])
                    if before != after:
                        self._change(edge, before, -1)
                        self._change(edge, after, 1)
        self.options.update(options)
        self.layouts.update(layouts)

    def forced(self, variable: Variable, option: int) -> Descent:
        """What comes of keeping a value otherwise, all that is around it first."""
        other = self.copied()
        other._set([], {id(variable): option}, {})
        other._follow([edge.node for edge in (*variable.makers, *variable.uses)], [variable])
        return other

    def computed(self, node: Node, layout: int) -> Descent:
        """What comes of computing an operation otherwise, its result kept as it comes out if it may be."""
        other = self.copied()
        made = {id(edge.variable): edge.picks.listed[layout] for edge in node.makes}
        kept = {id(e.variable): made[id(e.variable)] for e in node.makes if made[id(e.variable)] in e.variable.domain}
        other._set([node], kept, {node.number: layout})
        variables = [edge.variable for edge in node.edges]
        around = [edge.node for variable in variables for edge in (*variable.makers, *variable.uses)]
        other._follow([each for each in around if each is not node], variables)
        return other

    def _follow(self, nodes: Iterable[Node], changed: Iterable[Variable]) -> None:
        """Compute operations around what has changed as is cheapest then, and improve what is around them first."""
        around = {node.number: node for node in nodes}.values()
        for node in around:
            layout = int((self.pay(node) + self.leaving(node)).argmin())
            self._set([node], {}, {node.number: layout})
        self.cost = self.total()
        last = {id(variable): variable for variable in changed}
        near = {id(e.variable): e.variable for node in around for e in node.edges if id(e.variable) not in last}
        self.run([*near.values(), *last.values()])

    def run(self, variables: Iterable[Variable] | None = None) -> None:
        """Change values and operations until nothing is cheaper, beginning with some values, or with all unsettled."""
        if variables is not None:
            self.unsettled = {id(variable): variable for variable in variables}
        settled = set[int]()  # operations that have been tried since anything has changed
        while self.unsettled:
            variable = self.unsettled.pop(next(iter(self.unsettled)))
            if self.improve_value(variable):
                settled.clear()
            for edge in (*variable.makers, *variable.uses):
                if edge.node.number not in settled:
                    if self.improve_node(edge.node):
                        settled.clear()
                    else:
                        settled.add(edge.node.number)

    def unsettle(self, tables: Collection[Table]) -> None:
        """Have values tried in other options of which anything is moved at the prices of some tables."""
        for variable in self.variables:
            if any(edge.table in tables for edge in (*variable.makers, *variable.uses)):
                self.unsettled[id(variable)] = variable

    def cross(
        self, options: dict[int, int], layouts: dict[int, int], may: Callable[[Descent], bool] = lambda _: True
    ) -> bool:
        """Take over parts in which another choice differs, where that is cheaper; whether any is.

        Args:
            options: of the other, per variable, by identity.
            layouts: of the other, per operation.
            may: whether what comes of a part may be, else it is given back.
        """
        nodes = {node.number: node for node in self.model.nodes}
        left = {number for number in nodes if layouts[number] != self.layouts[number]}
        apart = {id(v): v for v in self.variables if options[id(v)] != self.options[id(v)]}
        changed = False
        seen: set[int] = set()
        for start in [*apart.values()]:
            if id(start) in seen:
                continue
            part, edge_of = [start], [start]
            seen.add(id(start))
            while edge_of:
                variable = edge_of.pop()
                for edge in (*variable.makers, *variable.uses):
                    for other in edge.node.edges:
                        if id(other.variable) in apart and id(other.variable) not in seen:
                            seen.add(id(other.variable))
                            part.append(other.variable)
                            edge_of.append(other.variable)
            around = [edge.node for variable in part for edge in (*variable.makers, *variable.uses)]
            own = {node.number: layouts[node.number] for node in around if node.number in left}
            before = {id(v): self.options[id(v)] for v in part}, {number: self.layouts[number] for number in own}
            cost = self.cost
            if not self.try_change({id(v): options[id(v)] for v in part}, own, around):
                continue
            if may(self):
                changed = True
            else:
                self._set({node.number: node for node in around}.values(), *before)
                self.cost = cost
        return changed


def _copied(wanted: Wanted) -> Wanted:
    return {key: {sharing: {**counts} for sharing, counts in own.items()} for key, own in wanted.items()}
