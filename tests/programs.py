"""Random programs whose annotations come from one hidden assignment of axes to indices, so that nothing conflicts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from reshard import DimSharding, Mesh, Sharding
from reshard.contraction.chooser import Chooser
from reshard.contraction.goal import Goal
from reshard.operations.pattern import Pattern
from reshard.propagation import Placement, Program, Value
from reshard.propagation.explicit import explicit
from reshard.propagation.fixpoint import Flow, Net
from reshard.propagation.model import Model
from reshard.propagation.optimum import optimum

MESHES = ({"x": 2, "y": 2}, {"x": 2, "y": 4}, {"x": 2, "y": 3})
SIZES = (2, 3, 4, 5, 6, 8, 12)
EVEN = (24, 48, 96)
"""Sizes that every mesh divides."""
Group = tuple[int, ...]


@dataclass
class Generated:
    """A program under construction, with the hidden indices of every value."""

    program: Program
    rng: random.Random
    sizes: list[int]
    groups: dict[Value, tuple[Group, ...]]
    choices: tuple[int, ...] = SIZES

    def index(self) -> int:
        self.sizes.append(self.rng.choice(self.choices))
        return len(self.sizes) - 1

    def shape(self, groups: tuple[Group, ...]) -> tuple[int, ...]:
        return tuple(prod(self.sizes[i] for i in group) for group in groups)

    def input(self, groups: tuple[Group, ...]) -> Value:
        value = self.program.input(f"in{len(self.groups)}", self.shape(groups))
        self.groups[value] = groups
        return value

    def step(self) -> None:
        a = self.rng.choice(list(self.groups)[-6:])
        groups = self.groups[a]
        kind = self.rng.choice(["unary", "binary", "dot", "transpose", "reduce", "merge", "split", "broadcast", "add"])
        p, name = self.program, f"v{len(self.groups)}"
        letters = "abcdefgh"[: len(groups)]
        made: Value | None = None
        after = groups
        if kind == "unary":
            made = p.op(f"{letters}->{letters}", a, name="tanh", result=name)
        elif kind in ("binary", "add"):
            same = [v for v in self.groups if self.groups[v] == groups]
            b = self.rng.choice(same) if kind == "binary" else self.input(groups)
            made = p.op(f"{letters},{letters}->{letters}", a, b, name="add", result=name)
        elif kind == "dot" and groups:
            kept = self.rng.randrange(len(groups))  # one dim is contracted; some others are batch dims
            batch = [d for d in range(len(groups)) if d != kept and self.rng.random() < 0.3]
            right = [groups[d] for d in batch] + [groups[kept], (self.index(),)]
            b = self.input(tuple(right))
            term = [letters[d] for d in batch] + [letters[kept], "z"]
            out = (
                [letters[d] for d in batch]
                + [one for d, one in enumerate(letters) if d != kept and d not in batch]
                + ["z"]
            )
            made = p.op(f"{letters},{''.join(term)}->{''.join(out)}", a, b, result=name)
            by = dict(zip(letters, groups, strict=True)) | {"z": right[-1]}
            after = tuple(by[label] for label in out)
        elif kind == "transpose" and len(groups) > 1:
            order = list(range(len(groups)))
            self.rng.shuffle(order)
            made = p.transpose(a, order, result=name)
            after = tuple(groups[d] for d in order)
        elif kind == "reduce" and len(groups) > 1:
            gone = self.rng.randrange(len(groups))
            made = p.op(f"{letters}->{letters[:gone] + letters[gone + 1 :]}", a, name="sum", result=name)
            after = groups[:gone] + groups[gone + 1 :]
        elif kind == "merge" and len(groups) > 1:
            place = self.rng.randrange(len(groups) - 1)
            after = (*groups[:place], groups[place] + groups[place + 1], *groups[place + 2 :])
            made = p.reshape(a, self.shape(after), result=name)
        elif kind == "split" and any(len(group) > 1 for group in groups):
            place = self.rng.choice([d for d, group in enumerate(groups) if len(group) > 1])
            cut = self.rng.randrange(1, len(groups[place]))
            after = (*groups[:place], groups[place][:cut], groups[place][cut:], *groups[place + 1 :])
            made = p.reshape(a, self.shape(after), result=name)
        elif kind == "broadcast" and len(groups) < 4:
            place = self.rng.randrange(len(groups) + 1)
            after = (*groups[:place], (self.index(),), *groups[place:])
            dims = [d for d in range(len(after)) if d != place]
            made = p.broadcast(a, self.shape(after), dims, result=name)
        if made is not None:
            self.groups[made] = after


def projected(groups: tuple[Group, ...], sizes: list[int], axes: dict[int, list[str]], mesh: Mesh) -> list[list[str]]:
    """The axes of every dim: those of its indices, major to minor, as long as each before is cut to single elements."""
    dims = []
    for group in groups:
        found: list[str] = []
        for index in group:
            mine = axes.get(index, [])
            found += mine
            if prod(mesh.sizes[axis] for axis in mine) != sizes[index]:
                break
        dims.append(found)
    return dims


def generate(seed: int, steps: int | None = None) -> Program:
    """A program without conflicts."""
    rng = random.Random(seed)
    mesh = Mesh.of(rng.choice(MESHES))
    made = Generated(Program(mesh), rng, [], {})
    made.input(tuple((made.index(),) for _ in range(rng.randint(1, 3))))
    for _ in range(rng.randint(2, 9) if steps is None else steps):
        made.step()
    used = {operand for operation in made.program.operations for operand in operation.operands}
    last = [value for value in made.groups if value not in used]
    names = list(mesh.sizes)
    rng.shuffle(names)
    axes: dict[int, list[str]] = {}
    in_front = {i for groups in made.groups.values() for group in groups for i in group[:-1]}
    for axis in names:
        fitting = []
        for index, size in enumerate(made.sizes):
            parts = prod(mesh.sizes[a] for a in axes.get(index, [])) * mesh.sizes[axis]
            if size % parts == 0 or (index not in in_front and size > parts):
                fitting.append(index)
        if fitting:
            axes.setdefault(rng.choice(fitting), []).append(axis)
    values = [*made.groups]
    for value in values:
        is_input = value in made.program.inputs
        if rng.random() < (0.5 if is_input else 0.15):
            made.program.constrain(value, annotation(value, made, axes, mesh))
    for value in last:
        made.program.output(
            value, annotation(value, made, axes, mesh) if rng.random() < 0.3 else None, f"o_{value.name}"
        )
    return made.program


def conflicting(seed: int) -> Program:
    """A program whose annotations know nothing of each other."""
    rng = random.Random(seed)
    mesh = Mesh.of(rng.choice(MESHES))
    return annotated_anyhow(Generated(Program(mesh), rng, [], {}, EVEN), rng, mesh)


def odd(seed: int) -> Program:
    """As `conflicting`, on meshes of mixed radices, of one device, in odd orders, with uneven and empty dims."""
    rng = random.Random(seed)
    axes = rng.choice([{"x": 2, "y": 3}, {"x": 4}, {"x": 1}, {"x": 2, "y": 2, "z": 2}, {"x": 6}, {"a": 2, "b": 1}])
    devices = list(range(prod(axes.values())))
    rng.shuffle(devices)
    mesh = Mesh.of(axes, device_ids=devices if rng.random() < 0.5 else None)
    made = Generated(Program(mesh), rng, [], {}, (0, 1, 2, 3, 5, 7) if rng.random() < 0.2 else (1, 2, 3, 4, 6, 7))
    return annotated_anyhow(made, rng, mesh)


def annotated_anyhow(made: Generated, rng: random.Random, mesh: Mesh) -> Program:
    made.input(tuple((made.index(),) for _ in range(rng.randint(1, 3))))
    for _ in range(rng.randint(2, 9)):
        made.step()
    used = {operand for operation in made.program.operations for operand in operation.operands}
    last = [value for value in made.groups if value not in used]
    for value in made.groups:
        if rng.random() < (0.7 if value in made.program.inputs else 0.1):
            made.program.constrain(value, anything(value, rng, mesh))
    for value in last:
        given = anything(value, rng, mesh) if rng.random() < 0.5 else None
        made.program.output(value, given, f"o_{value.name}")
    return made.program


def anything(value: Value, rng: random.Random, mesh: Mesh) -> Sharding:
    """A sharding of a value with every axis on any dim or on none."""
    dims: list[list[str]] = [[] for _ in value.shape]
    for axis in rng.sample(list(mesh.sizes), len(mesh.sizes)):
        place = rng.randrange(len(dims) + 1) if dims else 0
        if place < len(dims):
            dims[place].append(axis)
    return Sharding.of(mesh, *([*axes, "?"] if rng.random() < 0.5 else axes for axes in dims))


def annotation(value: Value, made: Generated, axes: dict[int, list[str]], mesh: Mesh) -> Sharding:
    rng = made.rng
    dims = []
    listed = projected(made.groups[value], made.sizes, axes, mesh)
    for found in listed:
        is_open = rng.random() < 0.6
        dim = DimSharding.of(*found, *(["?"] if is_open else []))
        if (found or is_open) and rng.random() < 0.3:
            dim = replace(dim, priority=rng.randint(0, 2))
        dims.append(dim)
    used = {axis for found in listed for axis in found}
    free = [axis for axis in mesh.sizes if axis not in used and rng.random() < 0.2]
    return Sharding.of(mesh, *dims, replicated=free)


def subscripts(pattern: Pattern) -> str:
    """A pattern without groups as `einsum` of NumPy and of torch read it."""
    letter = dict(zip(pattern.labels, "abcdefghijklmnopqrstuvwxyz", strict=False))
    terms = ["".join(letter[group[0]] for group in term) for term in pattern.terms]
    return f"{','.join(terms[:-1])}->{terms[-1]}"


def reference(program: Program, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a program whose operations the generator makes, by plain NumPy."""
    values: dict[Value, np.ndarray] = {}
    outputs = {}
    for operation in program.operations:
        given = [values[operand] for operand in operation.operands]
        value, pattern = operation.result, operation.pattern
        if operation.name == "input":
            made = arrays[value.name]
        elif operation.name == "output":
            made = outputs[value.name] = given[0]
        elif operation.name == "reshape":
            made = given[0].reshape(value.shape)
        elif operation.name == "broadcast":
            kept = [pattern.output.index(group) for group in pattern.operands[0]]
            new = tuple(dim for dim in range(len(value.shape)) if dim not in kept)
            made = np.broadcast_to(np.expand_dims(given[0], new), value.shape)
        elif operation.name in ("einsum", "sum", "transpose"):
            made = np.einsum(subscripts(pattern), *given)
        else:
            made = {"add": np.add, "tanh": np.tanh}[operation.name](*given)
        values[value] = made
    return outputs


def place_as(program: Program, shardings: Mapping[str, Sharding]) -> Placement:
    """The placement of a program whose shardings come from elsewhere, by the names of the values.

    Unreduced results may still wait where that is cheaper.
    """
    net, chooser = Net(program), Chooser(Goal(), is_for_many=True)
    dims = [tuple(dim.axes for dim in shardings[value.name].dims) for value in program.values]
    flow = Flow(dims, [{} for _ in dims])
    best = optimum(Model(net, [flow], chooser, is_pinned=True), [flow])
    return explicit(program, net, chooser, best, ["from elsewhere"] * len(dims))
