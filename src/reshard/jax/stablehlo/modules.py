"""A program from StableHLO: its main function, with calls taken apart where they stand.

Shardings of arguments, of results, of constraints and of single operations are annotations of the program; open dims
and priorities stay.
The values of a sharding group are tied.

>>> program = program_of('''
... sdy.mesh @mesh = <["x"=2]>
... func.func @main(%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}, %w: tensor<4x4xf32>)
...     -> tensor<4x4xf32> {
...   %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
...     : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
...   return %0 : tensor<4x4xf32>
... }''')
>>> print(program)
sdy.mesh @mesh = <["x"=2]>
arg0 = input : float32[4, 4] <@mesh, [{"x"}, {?}]>
arg1 = input : float32[4, 4]
einsum_2 = einsum "l0 c0, c0 r1 -> l0 r1" (arg0, arg1) : float32[4, 4]
result = output (einsum_2) : float32[4, 4]
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.interpreters.partial_eval import dce_jaxpr
from jax.extend.core import ClosedJaxpr
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy

from reshard.checks import expect
from reshard.errors import ReshardError
from reshard.jax.stablehlo.loops_and_choices import CountedLoop, choice, sliced, while_loop
from reshard.jax.stablehlo.lowered_functions import jaxpr_of
from reshard.jax.stablehlo.mlir_attributes import integer, line_of, said, type_of, word
from reshard.jax.stablehlo.opaque_calls import custom_call, manual_computation
from reshard.jax.stablehlo.translated_hlo import (
    hlo_sharding,
    mesh_of_texts,
    named_meshes,
    said_beside,
    stablehlo_of,
)
from reshard.jax.tracing.emitter import known_number
from reshard.jax.tracing.functions import Tracing, free_name
from reshard.mesh import Mesh
from reshard.notation.shardy import read_mesh, read_sharding
from reshard.propagation import Program, Value
from reshard.sharding import Sharding
from reshard.xla.read.shardings import HLO, parts_of

Known = dict[Any, Any]
"""The values of the program by those of the text."""
CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition", "sdy.named_computation": ""}
"""Operations that stand for a function, and the attribute that names it; without a name it is their region."""
BLOCKS = {"stablehlo.while": while_loop, "stablehlo.case": choice, "stablehlo.if": choice}
REGIONS = {"stablehlo.custom_call": custom_call, "sdy.manual_computation": manual_computation}
COPIES = ("stablehlo.optimization_barrier", "sdy.propagation_barrier", "sdy.data_flow_edge", "sdy.func_data_flow_edge")
"""Operations whose results are their operands, under names of their own."""
MARKS = ("Sharding", "annotate_device_placement", "xla.sdy.FuncResultSharding")
"""Custom calls that only say something of their operand."""
RULES = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
"""The pass that writes its sharding rule on every operation."""
LIFTED = "builtin.module(sdy-lift-inlined-meshes)"
"""The pass that gives a name to every mesh that stands within a sharding."""
PLACED = ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice")
"""Operations that a loop may know better."""

logger = logging.getLogger("reshard")

_ENDLESS = re.compile(r"(?<!\w)\d{1000,}")
"""A number that MLIR would take its time to read; contents of constants are words that begin with 0x."""


def program_of(text: str) -> Program:
    """The program of a module of StableHLO.

    Args:
        text: MLIR, with the meshes and shardings of the sdy dialect or those of HLO; or HLO before partitioning.

    Raises:
        ReshardError: `syntax` where MLIR refuses the text, `unknown-mesh` where it defines no mesh, `cannot-express`
            where no program can hold an operation, `unknown-dtype`; and as `Program.constrain`. Each names the
            operation and its line.
    """
    expect(text, str, "a module of StableHLO")
    endless = _ENDLESS.search(text)
    if endless:
        line = text.count("\n", 0, endless.start()) + 1
        raise ReshardError("syntax", f"line {line}: a number of {len(endless.group())} digits")
    with mlir.make_ir_context(), jax.enable_x64(True):
        try:
            module = ir.Module.parse(stablehlo_of(text) if HLO.search(text) else text.encode("utf-8", "replace"))
        except ir.MLIRError as error:
            reasons = [f"{line_of(each.location)}: {each.message}" for each in error.error_diagnostics]
            raise ReshardError("syntax", "; ".join(reasons) or "the text is no module of MLIR") from None
        if "custom_call" in text or HLO.search(text):  # Shardy knows the rules of those that XLA knows
            passmanager.PassManager.parse(RULES).run(module.operation)
        if "mesh<" in text:
            passmanager.PassManager.parse(LIFTED).run(module.operation)
        reading = Reading(module)
        reading.main()
        return reading.program


class Reading(Tracing):
    """Goes through a module."""

    def __init__(self, module: ir.Module) -> None:
        tops = [op.operation for op in module.body.operations]
        meshes: dict[str, Mesh] = {}
        for op in tops:
            if op.name == "sdy.mesh":
                with located(op):
                    meshes[word(op, "sym_name")] = read_mesh(str(op.attributes["mesh"]))[1]
        meshes = meshes or named_meshes(module)
        named = {name: mesh for name, mesh in meshes.items() if mesh.axes}
        if not named:
            shared = mesh_of_texts(_hlo_texts(module))
            if shared is None:
                raise ReshardError("unknown-mesh", "the module defines no mesh with axes: sdy.mesh @mesh = <[...]>")
            named = meshes = {"mesh": shared}
        super().__init__(Program(next(iter(named.values())), even_ends=True))
        self.meshes: dict[str, Mesh] = {
            name: self.program.mesh if mesh.is_empty else mesh for name, mesh in meshes.items()
        }
        """What shardings name; one without axes says nothing of its own."""
        self.functions = {word(op, "sym_name"): op for op in tops if op.name == "func.func"}
        self.loops: list[CountedLoop] = []
        """Those that are being read, outermost first."""
        self._called: list[str] = []
        self._groups: dict[int, Value] = {}
        """The first value of every sharding group, to which the others are tied."""

    def main(self) -> None:
        """The inputs, the operations and the outputs of the main function.

        Raises:
            ReshardError: `bad-program` where none is called `main` and there is no other choice.
        """
        name = "main" if "main" in self.functions or len(self.functions) != 1 else next(iter(self.functions))
        function = self.function(name)
        (block,) = function.regions[0].blocks
        arguments = []
        with located(function):
            for number, argument in enumerate(block.arguments):
                aval, sharding = type_of(argument), self._said(function, "arg_attrs", number)
                arguments.append(self.program.input(f"arg{number}", aval.shape, aval.dtype, sharding))
        results = self.block(block, arguments, {})
        with located(function):
            for number, value in enumerate(results):
                self.program.output(
                    value, self._said(function, "res_attrs", number), self._output_name(function, number, len(results))
                )
        if self.program.without_rule:
            logger.warning("calls without a rule, whole on every device: %s", ", ".join(self.program.without_rule))

    def function(self, name: str) -> ir.Operation:
        """A function of the module that has a body."""
        if name not in self.functions or not self.functions[name].regions[0].blocks:
            raise ReshardError("bad-program", f"the module defines no function @{name}")
        return self.functions[name]

    def block(self, block: ir.Block, arguments: Sequence[Any], known: Known) -> list[Any]:
        """What a region gives back; it reads values from around it."""
        inside: Known = known | dict(zip(block.arguments, arguments, strict=True))
        *body, end = (each.operation for each in block.operations)
        for op in body:
            operands = [inside[operand] for operand in op.operands]
            if op.name in BLOCKS:
                results = BLOCKS[op.name](self, op, operands, inside)
            elif op.name in CALLS:
                results = self.called(op, operands, inside)
            else:
                with located(op):
                    results = self.simple(op, operands)
            with located(op):
                results = self._annotated(op, results)
            inside.update(zip(op.results, results, strict=True))
        return [inside[operand] for operand in end.operands]

    def called(self, op: ir.Operation, operands: Sequence[Any], known: Known) -> list[Any]:
        """The results of a function, in the place of a call."""
        if op.name == "sdy.named_computation":
            ins = self._optional(op, "in_shardings", len(operands))
            outs = self._optional(op, "out_shardings", len(op.results))
            operands = [self.held(*pair) for pair in zip(operands, ins, strict=True)]
            results = self.block(op.regions[0].blocks[0], operands, known)
            return [self.held(*pair) for pair in zip(results, outs, strict=True)]
        name = word(op, CALLS[op.name])
        with located(op):
            if name in self._called:
                raise ReshardError("cannot-express", f"@{name} calls itself")
            function = self.function(name)
            operands = [self.held(value, self._said(function, "arg_attrs", n)) for n, value in enumerate(operands)]
        self._called.append(name)
        results = self.block(function.regions[0].blocks[0], operands, {})
        self._called.pop()
        with located(op):
            return [self.held(value, self._said(function, "res_attrs", n)) for n, value in enumerate(results)]

    def simple(self, op: ir.Operation, operands: list[Any]) -> list[Any]:
        """The results of an operation without blocks."""
        if op.name == "sdy.sharding_group":
            first = self._groups.setdefault(integer(op, "group_id"), operands[0])
            if first != operands[0]:
                self.program.tie(operands[0], first)
            return []
        if op.name in COPIES:
            copies = [self.barrier(value) for value in operands]
            if "sharding" in op.attributes:  # what an edge says of itself
                copies = [self.program.constrain(copy, self.sharding(op.attributes["sharding"])) for copy in copies]
            return copies
        if op.name.startswith("sdy.") and op.name not in REGIONS:
            if "out_sharding" in op.attributes:  # a collective, which says where it leads
                return [self.program.reshard(operands[0], self.sharding(op.attributes["out_sharding"]))]
            if "sharding" in op.attributes:  # a constraint
                return [self.held(operands[0], self.sharding(op.attributes["sharding"]))]
        if op.name == "stablehlo.custom_call" and word(op, "call_target_name") in MARKS:
            return operands
        if op.name in REGIONS:
            return REGIONS[op.name](self, op, operands)
        in_loop: list[Any] | None = sliced(self, op, operands) if op.name in PLACED else None
        if in_loop is not None:
            return in_loop
        used = [next(iter(result.uses), None) is not None for result in op.results]
        if used and not any(used):
            return [None for _ in used]
        return self._by_jaxpr(op, operands, used)

    def _by_jaxpr(self, op: ir.Operation, operands: Sequence[Value], used: Sequence[bool]) -> list[Value | None]:
        """The results of an operation that is a function of JAX, as far as something asks for them."""
        numbers = [None if value.shape else known_number(self.program, value) for value in operands]
        arguments = [
            self.aval(value) if number is None else np.asarray(number, jax.numpy.dtype(value.dtype.name))
            for value, number in zip(operands, numbers, strict=True)
        ]
        closed = jaxpr_of(op, arguments)
        jaxpr, _ = dce_jaxpr(closed.jaxpr, used, instantiate=True)
        traced = [value for value, number in zip(operands, numbers, strict=True) if number is None]
        results = iter(self.closed(ClosedJaxpr(jaxpr, closed.consts), traced))
        return [next(results) if asked else None for asked in used]

    # Shardings

    def sharding(self, attribute: Any) -> Sharding:
        """A sharding of the sdy dialect."""
        return read_sharding(str(attribute), self.meshes)

    def shardings(self, attribute: Any) -> list[Sharding]:
        """One sharding per value."""
        return [self.sharding(each) for each in sdy.TensorShardingPerValueAttr(attribute).shardings]

    def held(self, value: Any, sharding: Sharding | None) -> Any:
        """The value, from here on in a sharding, where one is said."""
        return value if sharding is None else self.program.constrain(self.copy(value), sharding)

    def _annotated(self, op: ir.Operation, results: list[Any]) -> list[Any]:
        """What an operation gives, as it says itself."""
        said: Sequence[Sharding | None]
        if not results:  # what only has an effect may say where
            return results
        if "sdy.sharding" in op.attributes:
            said = self.shardings(op.attributes["sdy.sharding"])
        elif (beside := said_beside(op.attributes)) is not None:
            said = self.shardings(beside)
        elif "mhlo.sharding" in op.attributes:
            config = word(op, "backend_config") if "backend_config" in op.attributes else ""
            texts = parts_of(word(op, "mhlo.sharding"))
            texts = texts if len(texts) == len(results) else texts * len(results)
            said = [
                hlo_sharding(text, self.meshes, len(type_of(result).shape), config)
                for text, result in zip(texts, op.results, strict=True)
            ]
        else:
            return results
        pairs = zip(results, said, strict=True)
        return [value if value is None else self.held(value, sharding) for value, sharding in pairs]

    def _optional(self, op: ir.Operation, name: str, count: int) -> list[Sharding | None]:
        return [*self.shardings(op.attributes[name])] if name in op.attributes else [None] * count

    def _said(self, function: ir.Operation, name: str, number: int) -> Sharding | None:
        """What a function says of an argument or a result."""
        each = said(function, name)
        words = {} if each is None else each[number]
        if "sdy.sharding" in words:
            return self.sharding(words["sdy.sharding"])
        if (beside := said_beside(words)) is not None:
            return self.sharding(beside)
        if "mhlo.sharding" not in words:
            return None
        types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        ends = types.inputs if name == "arg_attrs" else types.results
        return hlo_sharding(words["mhlo.sharding"].value, self.meshes, ir.RankedTensorType(ends[number]).rank)

    def _output_name(self, function: ir.Operation, number: int, count: int) -> str:
        each, name = said(function, "res_attrs"), "result" if count == 1 else f"result.{number}"
        if each is not None and "jax.result_info" in each[number]:
            name = each[number]["jax.result_info"].value
        return free_name(name or "result", self.program)

    # A loop that is read again

    def zero(self) -> Value:
        """A number, for operations without operands."""
        return self.literal(np.int32(0))

    def state(self) -> Any:
        """What is remembered of the program so far."""
        return dict(self._scalars), self.program.without_rule.copy(), dict(self._groups)

    def restore(self, state: Any) -> None:
        """Forget what was read since."""
        scalars, without_rule, groups = state
        self._scalars, self.program.without_rule = dict(scalars), without_rule.copy()
        self._groups = dict(groups)


def _hlo_texts(module: ir.Module) -> list[str]:
    """All shardings of HLO in a module."""
    return re.findall(r'mhlo\.sharding = "([^"]*)"', str(module))


@contextmanager
def located(op: ir.Operation) -> Iterator[None]:
    """Within it, what is refused is refused with the operation and its line."""
    try:
        yield
    except ReshardError as error:
        raise ReshardError(error.code, f"{line_of(op.location)}: {op.name}: {error}") from None
