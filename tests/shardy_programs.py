"""Programs carried through by Shardy's own pipeline, the copy inside jaxlib."""

from __future__ import annotations

from shardy import _loaded

from reshard import Sharding, parse_sharding
from reshard.propagation import Operation, Program, Value

PIPELINE = "builtin.module(sdy-propagation-pipeline)"


def _tensor(value: Value) -> str:
    return f"tensor<{''.join(f'{size}x' for size in value.shape)}f32>"


def _sharding(program: Program, value: Value) -> str | None:
    given = program.annotations.get(value)
    return None if given is None else f"<@mesh, {given.text()}>"


def to_stablehlo(program: Program) -> str:
    """The program as MLIR text; every operation has the name of its value as its attribute `value_name`."""
    inputs = [operation.result for operation in program.operations if operation.name == "input"]
    args = []
    for value in inputs:
        given = _sharding(program, value)
        args.append(f"%{value.name}: {_tensor(value)}" + (f" {{sdy.sharding = #sdy.sharding{given}}}" if given else ""))
    outputs = [operation for operation in program.operations if operation.name == "output"]
    results = []
    for operation in outputs:
        given = _sharding(program, operation.result)
        results.append(_tensor(operation.result) + (f" {{sdy.sharding = #sdy.sharding{given}}}" if given else ""))
    lines = [
        f"sdy.mesh @mesh = {program.mesh}",
        f"func.func @main({', '.join(args)}) -> ({', '.join(results)}) {{",
        "  %zero = stablehlo.constant dense<0.0> : tensor<f32>",
    ]
    for operation in program.operations:
        if operation.name not in ("input", "output"):
            given = _sharding(program, operation.result)
            mark = f'value_name = "{operation.result.name}"'
            mark += f", sdy.sharding = #sdy.sharding_per_value<[{given}]>" if given else ""
            lines.append(f"  %{operation.result.name} = {_line(operation, mark)}")
    returned = ", ".join(f"%{operation.operands[0].name}" for operation in outputs)
    types = ", ".join(_tensor(operation.result) for operation in outputs)
    return "\n".join([*lines, f"  return {returned} : {types}" if outputs else "  return", "}"])


def _line(operation: Operation, mark: str) -> str:
    names = [f"%{operand.name}" for operand in operation.operands]
    types = [_tensor(operand) for operand in operation.operands]
    result = _tensor(operation.result)
    kind = f" : ({', '.join(types)}) -> {result}"
    pattern = operation.pattern
    assert pattern is not None
    if operation.name in ("tanh", "add"):
        return f"stablehlo.{operation.name} {', '.join(names)} {{{mark}}} : {result}"
    if operation.name == "reshape":
        return f"stablehlo.reshape {names[0]} {{{mark}}}{kind}"
    if operation.name == "transpose":
        order = [pattern.operands[0].index(group) for group in pattern.output]
        return f"stablehlo.transpose {names[0]}, dims = {order} {{{mark}}}{kind}"
    if operation.name == "broadcast":
        dims = [pattern.output.index(group) for group in pattern.operands[0]]
        return f"stablehlo.broadcast_in_dim {names[0]}, dims = {dims} {{{mark}}}{kind}"
    if operation.name == "sum":
        gone = [dim for dim, group in enumerate(pattern.operands[0]) if group not in pattern.output]
        return (
            f"stablehlo.reduce({names[0]} init: %zero) applies stablehlo.add across dimensions = {gone} {{{mark}}}"
            f" : ({types[0]}, tensor<f32>) -> {result}"
        )
    assert operation.name == "einsum", operation.name
    left, right = pattern.operands
    shared = [group for group in left if group in right]
    batch = [group for group in shared if group in pattern.output]
    summed = [group for group in shared if group not in pattern.output]
    text = ""
    for title, some in (("batching_dims", batch), ("contracting_dims", summed)):
        if some:
            text += f", {title} = {[left.index(g) for g in some]} x {[right.index(g) for g in some]}"
    return f"stablehlo.dot_general {names[0]}, {names[1]}{text} {{{mark}}}{kind}"


def propagated(program: Program) -> dict[str, Sharding]:
    """Per value that Shardy keeps, inputs and outputs among them, its sharding."""
    from jaxlib.mlir import passmanager
    from jaxlib.mlir.dialects import stablehlo

    ir, _, context = _loaded()
    stablehlo.register_dialect(context)
    meshes = {"mesh": program.mesh}
    with context:
        module = ir.Module.parse(to_stablehlo(program))
        passmanager.PassManager.parse(PIPELINE).run(module.operation)
        [function] = [op for op in module.body.operations if op.operation.name == "func.func"]
        found: dict[str, Sharding] = {}

        def note(name: str, attributes: object) -> None:
            text = str(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else None  # type: ignore[operator, index]
            if text is None:
                found[name] = Sharding.of(program.mesh, *[None] * len(program.value(name).shape))
            else:
                text = (
                    text.replace("#sdy.sharding_per_value<[", "#sdy.sharding").removesuffix("]>")
                    if "per_value" in text
                    else text
                )
                found[name] = parse_sharding(text, meshes)

        arguments = list(function.arg_attrs) if "arg_attrs" in function.attributes else [{}] * len(program.inputs)
        for value, attributes in zip(program.inputs, arguments, strict=True):
            note(value.name, attributes)
        results = (
            list(function.attributes["res_attrs"])
            if "res_attrs" in function.attributes
            else [{}] * len(program.outputs)
        )
        for value, attributes in zip(program.outputs, results, strict=True):
            note(value.name, attributes)
        for op in function.regions[0].blocks[0].operations:
            if "value_name" in op.operation.attributes:
                note(ir.StringAttr(op.operation.attributes["value_name"]).value, op.operation.attributes)
        return found
