"""Programs of Shardy's own tests: what placing them receives, beside what its passes make of them.

`python -m bench.shardy CHECKOUT [file ...]`, of the repository openxla/shardy; no devices are needed, minutes are.
Every function of a test that nothing calls is a program.
Of the tests of propagation, ours is what is written, placed; theirs is what Shardy's passes make of it, with every
value pinned where they put it, and none left open.
Of the tests of explicit reshards every value is pinned in both, and theirs has the reshards that the pass inserts.
Both are priced alike, received bytes reshard by reshard, so halos and sums count in both.
Ends are cut evenly in both, as the whole pipeline has it: what is given of inputs and outputs is first cut back to what
divides.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax._src.interpreters import mlir
from jaxlib.mlir import ir, passmanager

import reshard as rs

TESTS = "shardy/dialect/sdy/transforms"
PROPAGATION, RESHARDS = "propagation/test", "export/test/insert_explicit_reshards"
ON_FUNCTIONS = ("explicit-reshards", "sink-data-flow-edges", "populate-op")
"""Passes over functions, by a part of their names; others are over modules."""
EVEN_ENDS, CLOSED = "sdy-update-non-divisible-input-output-shardings", "sdy-close-shardings"
PINNED = re.compile(r"(?!sdy\.|func\.|stablehlo\.(constant|custom_call|while|case|if)$)")
"""The operations whose results are pinned."""


class Told(NamedTuple):
    """What is known of a function."""

    name: str
    received: tuple[int, int] | None
    """Bytes: ours, theirs."""
    work: tuple[int, int] | None
    reason: str
    """Why it is not compared."""

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.received is None:
            return self.reason.partition(":")[0]
        ours, theirs = self.received
        return "fewer" if ours < theirs else "more" if ours > theirs else "equal"


def run(module: Any, *passes: str) -> None:
    """Run passes of Shardy."""
    nested = [f"func.func({each})" if any(part in each for part in ON_FUNCTIONS) else each for each in passes]
    passmanager.PassManager.parse(f"builtin.module({','.join(nested)})").run(module.operation)


def functions(module: Any) -> dict[str, str]:
    """Per function that no other calls, a module in which it is the main one."""
    tops = [op.operation for op in module.body.operations]
    named = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in tops if op.name == "func.func"}
    meshes = [str(op) for op in tops if op.name != "func.func"]
    calls = {name: set(re.findall(r"call @\"?([\w.$-]+)", str(op))) for name, op in named.items()}
    found = {}
    for name, op in named.items():
        if not op.regions[0].blocks or any(name in called for called in calls.values()):
            continue
        needed, rest = {name}, [name]
        while rest:
            rest += sorted(calls.get(rest[0], set()) - needed)
            needed.update(calls.get(rest.pop(0), ()))
        head = rf"func\.func (public |private )?@\"?{re.escape(name)}\"?\("
        main = re.sub(head, "func.func @main(", str(op), count=1)
        found[name] = "\n".join([*meshes, *(str(named[each]) for each in needed & {*named} - {name}), main])
    return found


def parsed(text: str) -> dict[str, str]:
    """The functions of a text, without those that MLIR cannot read, as in the notation of a later version.

    Raises:
        ir.MLIRError: where what is left is no module either.
    """
    try:
        return functions(ir.Module.parse(text))
    except ir.MLIRError:
        for part in re.findall(r"^func\.func.*?^}", text, flags=re.MULTILINE | re.DOTALL):
            try:
                ir.Module.parse("\n".join([*re.findall(r"^sdy\.mesh.*$", text, flags=re.MULTILINE), part]))
            except ir.MLIRError as error:
                if "expected" in str(error):
                    text = text.replace(part, "")
        return functions(ir.Module.parse(text))


def pinned(text: str) -> str:
    """A module in which whatever says nothing of its sharding is whole on every device."""
    module = ir.Module.parse(text)
    tops = [op.operation for op in module.body.operations]
    names = [
        ir.StringAttr(op.attributes["sym_name"]).value for op in tops if op.name == "sdy.mesh" and "<[]" not in str(op)
    ]
    (main,) = [op for op in tops if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main"]

    def whole(kind: Any) -> str:
        return f"<@{names[0]}, [{', '.join(['{}'] * ir.RankedTensorType(kind).rank)}]>"

    def pin(block: Any) -> None:
        for op in (each.operation for each in block.operations):
            if op.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
                for inner in (inner for region in op.regions for inner in region.blocks):
                    pin(inner)
            kinds = [result.type for result in op.results]
            is_known = all(isinstance(kind, ir.RankedTensorType) for kind in kinds)
            if kinds and is_known and "sdy.sharding" not in op.attributes and PINNED.match(op.name):
                each = ", ".join(map(whole, kinds))
                op.attributes["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding_per_value<[{each}]>")

    if names:
        pin(main.regions[0].blocks[0])
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        for key, kinds in (("arg_attrs", kind.inputs), ("res_attrs", kind.results)):
            given = list(main.attributes[key]) if key in main.attributes else [ir.DictAttr.get({})] * len(kinds)
            for number, end in enumerate(kinds):
                if "sdy.sharding" not in given[number] and isinstance(end, ir.RankedTensorType):
                    said = {name.name: name.attr for name in given[number]}
                    sharding = ir.Attribute.parse(f"#sdy.sharding{whole(end)}")
                    given[number] = ir.DictAttr.get(said | {"sdy.sharding": sharding})
            if kinds:
                main.attributes[key] = ir.ArrayAttr.get(given)
    return str(module)


def both(text: str, passes: list[str]) -> tuple[str, str]:
    """A function as it is to be placed, and as Shardy has it."""
    is_pinned = any("explicit-reshards" in each for each in passes)
    with mlir.make_ir_context(), jax.enable_x64(True):
        module = ir.Module.parse(text)
        if not is_pinned:
            run(module, EVEN_ENDS)
        ours = str(module)
        run(module, *passes, *([] if is_pinned else [EVEN_ENDS]), CLOSED)
        return (pinned(ours) if is_pinned else ours), pinned(str(module))


def cost(text: str) -> tuple[int, int]:
    """Received bytes, reshard by reshard, and the work of a device, of fewest bytes."""
    placed = rs.Program.from_stablehlo(text).propagate(goal="bytes")
    received = sum(plan.received_bytes * placed.trip_count(value) for value, plan in placed.plans.items())
    return received, placed.flops


class Apart:
    """A process in which Shardy's passes run, and another once it has ended: they crash on some tests."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))

    def both(self, text: str, passes: list[str]) -> tuple[str, str]:
        """As the function of that name.

        Raises:
            BrokenProcessPool: where the process crashes.
        """
        try:
            return self._pool.submit(both, text, passes).result()
        except BrokenProcessPool:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
            raise


def told(name: str, text: str, passes: list[str], apart: Apart) -> Told:
    """Compare one function."""
    try:
        ours, theirs = apart.both(text, passes)
    except Exception as error:  # what MLIR raises is of many kinds
        return Told(name, None, None, f"not run: {error}")
    try:
        received, work = zip(cost(ours), cost(theirs), strict=True)
    except rs.ReshardError as error:
        return Told(name, None, None, f"{error.code}: {error}")
    return Told(name, received, work, "")


def compared(file: Path, apart: Apart) -> Iterator[Told]:
    """All functions of a test."""
    text = file.read_text()
    line = re.search(r"// RUN: sdy_opt (.*)", text)
    if line is None:
        return
    asked = re.sub(r"2>&1.*|\|.*", "", line[1])
    options = re.findall(r"-(sdy-[\w-]+)(?:=(?:'([^']*)'|\"([^\"]*)\"))?", asked)
    passes = [name + (f"{{{one or other}}}" if one or other else "") for name, one, other in options]
    for part in re.split(r"^// -----.*$", text, flags=re.MULTILINE) if "-split-input-file" in asked else [text]:
        with mlir.make_ir_context(), jax.enable_x64(True):
            try:
                found = parsed(part)
            except ir.MLIRError as error:
                yield Told(file.stem, None, None, f"not parsed: {error}")
                continue
        for name, module in found.items():
            yield told(f"{file.stem}: {name}", module, passes, apart)


def main(arguments: list[str]) -> int:
    """Print what is dearer or not compared, and how many are what; 2 where there is no checkout."""
    if not arguments or not (Path(arguments[0]) / TESTS).is_dir():
        print(f"give a checkout of openxla/shardy, which has {TESTS}", file=sys.stderr)
        return 2
    checkout, *stems = arguments
    apart = Apart()
    for folder in (PROPAGATION, RESHARDS):
        counts: Counter[str] = Counter()
        for file in sorted((Path(checkout) / TESTS / folder).glob("*.mlir")):
            if "registry" in file.stem or (stems and file.stem not in stems):  # of rules alone; not asked for
                continue
            for each in compared(file, apart):
                counts[each.verdict] += 1
                if each.verdict not in ("fewer", "equal"):
                    print(f"{each.name}: {each.reason or f'{each.received} B, work {each.work}'}", flush=True)
        print(f"{folder}: {dict(counts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
