"""Where people begin who choose a layout by hand, for a search to begin there too.

The state of a program is what it is given and gives back changed: weights, and what an optimizer keeps of them.
All else that it is given is data, of which the first dim is the batch.
Dims over which the same index runs in some operation are of one kind, and that of which most of the state has a dim is
the stream: the features that go from layer to layer.
The recipes are two: the batch along all axes of the mesh, the state cut along all of them in the stream, as where it is
fully sharded; and the batch along all axes but the last, the state cut along those in the stream and along the last one
in its first dim of another kind, as where layers are tensor parallel besides: heads, hidden features, words.

By hand, of the step below on data = 2, model = 4: x has its rows along both, or along `data`; w its rows along both, or
along `data` and its columns along `model`.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(data=2, model=4))
>>> x, w = program.input("x", (64, 16)), program.input("w", (16, 32))
>>> step = program.op("bd,bf->df", x, program.op("bd,df->bf", x, w))
>>> after = program.output(program.op("df,df->df", w, step, name="sub"), result="after")
>>> state = [before for before, _ in taking_over(program)]
>>> for recipe in recipes(program, state):
...     print(*(recipe.annotations[value].text() for value in (x, w)))
[{"data", "model", ?}, {?}] [{"data", "model", ?}, {?}]
[{"data", ?}, {?}] [{"data", ?}, {"model", ?}]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from math import prod

from reshard.dim_sharding import DimSharding
from reshard.operations.kinds import KindForm
from reshard.operations.operation import Operation, Value
from reshard.propagation.builder import Builder
from reshard.propagation.leaders import kinds_of_dims
from reshard.sharding import Sharding


def recipes(program: Builder, state: Sequence[Value]) -> Iterator[Builder]:
    """Programs in which the inputs of which nothing is said are sharded as people would begin; at least one.

    Args:
        program: whose first mesh counts.
        state: the inputs that outputs take the place of.
    """
    mesh = program.mesh
    names = [] if mesh.is_maximal else [name for name, size in mesh.sizes.items() if size > 1]
    if not names:
        yield program
    kinds = kinds_of_dims(program)
    stream = _stream([kinds[value.number] for value in state])
    for count in dict.fromkeys((len(names), max(len(names) - 1, 1))) if names else ():
        batch, last = names[:count], names[count:]
        recipe = copy(program)
        recipe.annotations = dict(program.annotations)
        for value in program.inputs:
            if value in recipe.annotations or not value.shape:
                continue
            axes: list[list[str]] = [[] for _ in value.shape]
            cuts = {0: batch}
            if value in state:
                own = kinds[value.number]
                inner = [dim for dim, kind in enumerate(own) if kind is not None and kind != stream]
                cuts = {own.index(stream) if stream in own else inner[-1] if inner else 0: batch}
                cuts |= {dim: last for dim in inner[:1] if last and dim not in cuts}
            for dim, cut in cuts.items():
                if value.shape[dim] % prod(mesh.sizes[name] for name in cut) == 0:
                    axes[dim] = cut
            recipe.annotations[value] = Sharding.of(mesh, *(DimSharding.of(*cut, "?") for cut in axes))
        yield recipe


def _stream(state: Sequence[tuple[int | None, ...]]) -> int | None:
    """The kind that most have a dim of, the first of those."""
    counts = Counter(kind for kinds in state for kind in dict.fromkeys(kinds) if kind is not None)
    return max(counts, key=lambda kind: counts[kind], default=None)


def taking_over(program: Builder) -> list[tuple[Value, Value]]:
    """Inputs and the outputs that take their place: made of them element by element, of one shape and dtype.

    >>> from reshard.propagation.program import Program
    >>> program = Program.parse('''
    ... sdy.mesh @mesh = <["x"=2]>
    ... weight = input : f32[4, 4]
    ... step = input : f32[4, 4]
    ... less = sub "ij,ij->ij" (weight, step)
    ... after = output (less)
    ... ''')
    >>> [(before.name, after.name) for before, after in taking_over(program)]
    [('weight', 'after')]
    """
    sources: list[set[int]] = []
    for operation in program.operations:
        own = {operation.result.number} if operation.name == "input" else set[int]()
        sources.append(own.union(*(sources[operand.number] for operand in _written_over(operation))))
    left = {value.number: value for value in program.inputs}
    likes = {
        value: [n for n in sorted(sources[value.number]) if _is_like(program.operations[n].result, value)]
        for value in program.outputs
    }
    pairs = []
    for value, like in sorted(likes.items(), key=lambda wish: len(wish[1])):
        number = next((n for n in like if n in left), None)
        if number is not None:
            before, made = left.pop(number), program.operations[value.number].operands[0]
            if before not in program.annotations or program.annotations.keys().isdisjoint((value, made)):
                pairs.append((before, value))
    return pairs


def _is_like(before: Value, after: Value) -> bool:
    return (before.shape, before.dtype) == (after.shape, after.dtype)


def _written_over(operation: Operation) -> Iterator[Value]:
    """The operands at whose places the result has its elements."""
    form, pattern = None if operation.kind is None else operation.kind.form, operation.pattern
    if form is KindForm.INDEXED:
        yield from (operand for operand in operation.operands[:1] if operand.shape == operation.result.shape)
    elif form in (KindForm.END, KindForm.ENTERING, KindForm.LEAVING) or pattern is None:
        yield from (operand for operand in operation.operands if operand.shape == operation.result.shape)
    elif form in (KindForm.ELEMENTWISE, KindForm.MOVED, KindForm.CONTRACTED):
        yield from (
            operand
            for operand, term in zip(operation.operands, pattern.operands, strict=True)
            if term == pattern.output and operand.shape == operation.result.shape
        )
