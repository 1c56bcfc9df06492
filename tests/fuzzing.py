"""Mutated texts for everything that reads one: what comes back must be a value or a refusal, soon and in little memory.

`python tests/fuzzing.py 200000 [SEED]` goes through that many texts over all readers and prints what went wrong.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import reshard as rs
from reshard.cli.arguments import shape_of
from reshard.cli.storage.inputs import open_input
from reshard.dtypes import dtype_named
from reshard.models.catalogue import model_named
from reshard.models.checkpoints.opening import open_checkpoint
from reshard.models.documents import parse_rules
from reshard.network import Network
from reshard.notation import parse_module
from reshard.operations.pattern import Pattern
from reshard.xla.report import inspect_texts

MESH = rs.Mesh.of(x=2, y=4)
SECONDS, BYTES = 2.0, 500 * 2**20
"""What one text may take."""
SEEDS: dict[str, list[str]] = json.loads((Path(__file__).parent / "data" / "texts_to_mutate.json").read_text("utf-8"))
"""Per reader, texts that it takes."""
WORDS = (
    *("1" * 5000, str(2**63), str(2**62), "-1", "0", "0x8000000000000000", "99999999", "1e400", "NaN", "²", "٣", "8²"),
    *(
        "\udcff",
        "\x00",
        "\u2028",
        "轴",
        "é",
        '"',
        "'",
        "\\",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "<",
        ">",
        ",",
        "=",
        "@",
        "#",
    ),
    *(
        "//",
        "\n",
        "\t",
        " ",
        "?",
        "p1",
        ":",
        "null",
        "true",
        "None",
        "x",
        '"x"',
        "'x'",
        "[" * 500,
        "(" * 500,
        "{" * 500,
    ),
)


class Reader(NamedTuple):
    """A reader and texts that it takes."""

    read: Callable[[str], Any]
    seeds: list[str]


def readers(folder: Path) -> dict[str, Reader]:
    """Everything that reads texts; files are written into a folder."""
    ends = rs.Sharding.of(MESH, "y", None), rs.Sharding.of(MESH, "x", "y")
    plan = rs.plan(*ends, (8, 8), "float32", network="h100-8").to_json()
    network = json.dumps(Network.preset("h100-2x8").as_dict())

    def file_reader(name: str) -> Callable[[str], Any]:
        def read(text: str) -> Any:
            (folder / name).write_bytes(text.encode("latin-1", "replace"))
            return open_input(folder / name, "a" if name.endswith("safetensors") else None, None, None)

        return read

    def network_file(text: str) -> Any:
        (folder / "network.json").write_text(text, encoding="utf-8", errors="replace")
        return Network.read(folder / "network.json")

    def checkpoint(text: str) -> Any:
        (folder / "model.safetensors").write_bytes(text.encode("latin-1", "replace"))
        return open_checkpoint(folder / "model.safetensors")

    npy = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (8, 8), }"
    header = b'{"a":{"dtype":"F32","shape":[8,8],"data_offsets":[0,256]}}'
    safetensors = len(header).to_bytes(8, "little") + header + bytes(256)
    return {
        "sharding": Reader(lambda text: rs.parse_sharding(text, MESH, 2), SEEDS["sharding"]),
        "sharding alone": Reader(rs.parse_sharding, SEEDS["sharding"]),
        "mesh": Reader(rs.parse_mesh, SEEDS["mesh"]),
        "module": Reader(parse_module, SEEDS["module"]),
        "program": Reader(rs.Program.parse, SEEDS["program"]),
        "dump": Reader(lambda text: str(inspect_texts([("text", text)])), SEEDS["dump"]),
        "plan": Reader(rs.Plan.from_json, [plan]),
        "network": Reader(network_file, [network]),
        "preset": Reader(Network.preset, ["h100-2x8", "tpu-v5p-2x4x4x4-achieved", "trillium-16x16"]),
        "pattern": Reader(Pattern.of, ["ij,jk->ik", "(a b) c -> a (b c)", "b...d,df->b...f"]),
        "shape": Reader(shape_of, ["2048,512", "(8 x 8)", "()"]),
        "dtype": Reader(dtype_named, ["float32", "<f4", "torch.bfloat16", "f8E4M3FN"]),
        "npy": Reader(file_reader("a.npy"), [(npy + b" " * 55 + b"\n" + bytes(256)).decode("latin-1")]),
        "safetensors": Reader(file_reader("a.safetensors"), [safetensors.decode("latin-1")]),
        "rules": Reader(lambda text: parse_rules(text, "rules.yaml"), SEEDS["rules"]),
        "system": Reader(lambda text: rs.Rules.preset(text, model_named("qwen3-235b-a22b")), SEEDS["system"]),
        "checkpoint": Reader(checkpoint, [safetensors.decode("latin-1")]),
        "graph": Reader(rs.Program.from_stablehlo, SEEDS["stablehlo"]),
    }


def mutated(seed: str, others: list[str], rng: random.Random) -> str:
    """A text with a few changes: characters and words put in, left out or doubled, or another text spliced in."""
    text = seed
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        start = rng.randrange(len(text) + 1)
        stop = min(len(text), start + rng.choice((0, 1, 1, 2, 5, 20)))
        number = rng.choice([*re.finditer(r"[0-9]+", text)] or [None])
        match rng.randrange(6):
            case 0:
                text = text[:start] + rng.choice(WORDS) + text[stop:]
            case 1:
                text = text[:start] + text[stop:]
            case 2:
                text = text[:stop] + text[start:stop] * rng.choice((1, 2, 50)) + text[stop:]
            case 3:
                other = rng.choice(others)
                text = text[:start] + other[rng.randrange(len(other) + 1) :]
            case 4 if number is not None:
                text = text[: number.start()] + rng.choice(WORDS[:12]) + text[number.end() :]
            case _:
                text = text[:start] + chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x3000)))) + text[stop:]
    return text[:20_000]


@contextmanager
def stopped_after(seconds: int) -> Iterator[None]:
    """A hang becomes an exception."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def faults(count: int, seed: int = 0) -> list[str]:
    """What goes wrong on so many mutated texts, over all readers in turn: one line for each."""
    rng, wrong = random.Random(seed), []
    with tempfile.TemporaryDirectory() as folder:
        table = readers(Path(folder))
        names = list(table)
        for number in range(count):
            name = names[number % len(names)]
            text = mutated(rng.choice(table[name].seeds), table[name].seeds, rng)
            start, size = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                with stopped_after(60), suppress(rs.ReshardError):
                    table[name].read(text)
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                wrong.append(
                    f"{name}: {type(error).__name__}: {str(error)[:99]} at {place.name}:{place.lineno}: {text[:200]!r}"
                )
            seconds = time.process_time() - start
            grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size)
            if seconds > SECONDS or grown > BYTES:
                wrong.append(f"{name}: {seconds:.1f} s, {grown >> 20} MiB: {text[:200]!r}")
    return wrong


if __name__ == "__main__":
    texts, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    found = faults(texts, seed)
    sys.stdout.write("\n".join([*found[:60], f"{len(found)} of {texts} texts went wrong, seed {seed}"]) + "\n")
