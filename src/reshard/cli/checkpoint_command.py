"""`reshard checkpoint`: what a checkpoint holds, what reading it costs, writing it anew, comparing two."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from threading import Lock

from reshard.cli import output
from reshard.cli.commands import Commands, add_command
from reshard.cli.launch import peers_of_job
from reshard.cli.progress import phase
from reshard.cli.rules_named import rules_named
from reshard.errors import ReshardError
from reshard.models.checkpoints.comparing import differences
from reshard.models.checkpoints.converting import ARRAY_MEMORY, MEMORY, Converting, convert, least_memory, slab_of
from reshard.models.checkpoints.costs import conversion_cost, device_costs
from reshard.models.checkpoints.dcp_writing import dcp_files
from reshard.models.checkpoints.files import Reads
from reshard.models.checkpoints.layouts import WrittenFiles, casts_of, device_files, whole_files
from reshard.models.checkpoints.opening import open_checkpoint
from reshard.models.checkpoints.orbax import give_memory_back
from reshard.models.checkpoints.orbax_layout import orbax_arrays
from reshard.models.checkpoints.peers import Alone, Peers, agreed
from reshard.models.checkpoints.stored import Checkpoint
from reshard.models.names import skeleton
from reshard.tables import Table, bytes_text

EXAMPLES = """\
examples:
  reshard checkpoint show llama-3-8b/
  reshard checkpoint cost dcp/ --rules rules.yaml
  reshard checkpoint convert dcp/ llama-safetensors --memory 256MiB --check
  reshard checkpoint convert llama-3-8b/ served --rules vllm:tp=8 --model llama-3-8b
  reshard checkpoint convert dcp/ orbax --to orbax --rules fsdp:8
  mpiexec -n 8 reshard checkpoint convert dcp/ llama-safetensors
  reshard checkpoint diff llama-3-8b/ llama-safetensors/

a checkpoint is a folder of .safetensors files, one such file, or a folder of torch's distributed checkpoint, of orbax's
or of tiles
what an optimizer keeps of a parameter, as optim.state.NAME.exp_avg, goes where the parameter's rule says
diff ends with 1 where the two differ
"""
FORMS = ("safetensors", "dcp", "orbax", "tiles")
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "checkpoint", run, "read, convert and compare checkpoints on disk", EXAMPLES)
    parser.add_argument("action", choices=("show", "cost", "convert", "diff"), help="what to do")
    parser.add_argument("source", metavar="SRC", help="a checkpoint")
    parser.add_argument("other", metavar="DST", nargs="?", help="the new folder of convert; the second of diff")
    parser.add_argument(
        "--to", choices=FORMS, help="the form that is written; safetensors, or tiles where rules are given"
    )
    parser.add_argument("--rules", metavar="RULES", help="a file of rules or a system, as vllm:tp=8: one file a device")
    parser.add_argument("--model", metavar="NAME", help="the model that the rules of a system are for")
    parser.add_argument(
        "--dtype",
        metavar="[PATTERN=]NAME",
        action="append",
        default=[],
        help="what floats of two bytes and more are written as; for names that match, the first that does",
    )
    parser.add_argument("--memory", metavar="SIZE", help="what may be held of tensors at once, as 256MiB")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="tensors that are moved at a time")
    parser.add_argument("--resume", action="store_true", help="go on with what was stopped")
    parser.add_argument("--no-sync", action="store_true", help="leave it to the system when files reach the disk")
    parser.add_argument("--check", action="store_true", help="read back what is written and compare it")


def run(args: argparse.Namespace) -> None:
    """Do what is asked for."""
    if (args.other is None) == (args.action in ("convert", "diff")):
        raise ReshardError(
            "bad-argument", f"checkpoint {args.action} takes {'two paths' if args.other is None else 'one path'}"
        )
    memory = None if args.memory is None else size_of(args.memory)
    if not 1 <= args.workers <= 256:
        raise ReshardError("bad-argument", f"there are {args.workers} workers; there must be 1 to 256")
    if args.action == "convert":
        _convert(args, memory)
        return
    checkpoint = open_checkpoint(args.source)
    if args.action == "show":
        _show(checkpoint, args.json)
    elif args.action == "diff":
        _diff(checkpoint, open_checkpoint(args.other), memory or MEMORY, args.json)
    else:
        _cost(_work(checkpoint, args, memory, Alone()), args.json)


def size_of(text: str) -> int:
    """A number of bytes from its text.

    >>> size_of("256MiB"), size_of("1.5 GB")
    (268435456, 1500000000)
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2] not in UNITS or float(match[1]) <= 0:
        raise ReshardError("bad-argument", f"a size must be a number with a unit, such as 256MiB, got: {text!r}")
    return max(1, int(float(match[1]) * UNITS[match[2]]))


def _work(checkpoint: Checkpoint, args: argparse.Namespace, memory: int | None, peers: Peers) -> Converting:
    """What would be done."""
    if memory is None:
        memory = ARRAY_MEMORY if "orbax" in (checkpoint.form, args.to) else MEMORY
        memory = max(memory, least_memory(checkpoint, args.workers))
    written = _written(checkpoint, args, slab_of(memory, args.workers))
    out = Path(args.other or "")
    return Converting(checkpoint, written, out, memory, args.workers, args.resume, args.check, not args.no_sync, peers)


def _written(checkpoint: Checkpoint, args: argparse.Namespace, cap: int) -> WrittenFiles:
    """What would be written."""
    casts = casts_of(args.dtype)
    rules = None if args.rules is None else rules_named(args.rules, args.model, 0)
    if args.to == "dcp":
        return dcp_files(checkpoint, rules, casts)
    if args.to == "orbax":
        return orbax_arrays(checkpoint, rules, casts, cap)
    if rules is not None:
        return device_files(checkpoint, rules, casts)
    if args.to == "tiles":
        raise ReshardError("bad-argument", "--rules must say which tiles devices keep")
    return whole_files(checkpoint, casts)


def _printed(name: str) -> str:
    """A name from a file, which may hold anything, as a line shows it."""
    return name if name.isprintable() else repr(name)


def _show(checkpoint: Checkpoint, as_json: bool) -> None:
    if as_json:
        tensors = {
            name: {"dtype": tensor.dtype.name, "shape": tensor.shape, "chunks": tensor.chunk_count}
            for name, tensor in checkpoint.tensors.items()
        }
        output.write_json(
            {"form": checkpoint.form, "bytes": checkpoint.nbytes, "others": list(checkpoint.others), "tensors": tensors}
        )
        return
    kinds: dict[tuple[str, str, str, int], int] = {}
    for name, tensor in checkpoint.tensors.items():
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        key = _printed(skeleton(name)), shape, tensor.dtype.name, tensor.chunk_count
        kinds[key] = kinds.get(key, 0) + 1
    rows = [(name, str(count), shape, dtype, str(parts)) for (name, shape, dtype, parts), count in kinds.items()]
    print("\n".join(Table([("tensors", "count", "shape", "dtype", "chunks"), *rows], {"count", "chunks"}).lines()))
    beside = f"; beside them {len(checkpoint.others)} values that are no tensors" if checkpoint.others else ""
    print(
        f"\n{len(checkpoint.tensors)} tensors of {bytes_text(checkpoint.nbytes)} in {len(checkpoint.files)} files, "
        f"{checkpoint.form}{beside}"
    )


def _cost(work: Converting, as_json: bool) -> None:
    devices, total = device_costs(work), conversion_cost(work)
    size = work.source.nbytes
    if as_json:
        listing = [cost._asdict() for cost in devices]
        output.write_json({"files": listing, "bytes": size, **total._asdict()})
        return
    rows = [
        (cost.file, *map(bytes_text, (cost.written_bytes, cost.needed_bytes, cost.read_bytes)), str(cost.requests))
        for cost in devices
    ]
    heads = ("file", "written", "needs", "reads alone", "requests")
    print("\n".join(Table([heads, *rows], set(heads[1:])).lines()))
    times = total.read_bytes / size if size else 0.0
    print(
        f"\nconvert reads {bytes_text(total.read_bytes)} in {total.requests} requests, "
        f"each byte of {bytes_text(size)} {times:.2f} times, and writes {bytes_text(total.written_bytes)}"
    )


def _convert(args: argparse.Namespace, memory: int | None) -> None:
    """In this process, or in all of a job; the first of them speaks."""
    peers = peers_of_job()
    try:
        with agreed(peers):
            source = open_checkpoint(args.source)
            if "orbax" in (source.form, args.to):
                give_memory_back()
            work = _work(source, args, memory, peers)
        reads = _converted(work)
    except ReshardError:
        if peers.rank:
            raise SystemExit(1) from None
        raise
    if peers.rank == 0:
        _report(work, reads, args)


def _converted(work: Converting) -> Reads:
    lock = Lock()
    with phase("converting", work.written.nbytes) as advance:

        def told(count: int) -> None:
            with lock:
                advance(count)

        return convert(work, told)


def _report(work: Converting, reads: Reads, args: argparse.Namespace) -> None:
    total, others = work.written.nbytes, work.source.others
    files = [*work.written.sizes, *work.written.arrays]
    if args.json:
        read = {"read_bytes": reads.nbytes, "requests": reads.requests}
        output.write_json({"out": args.other, "files": files, "bytes": total, **read, "checked": args.check})
        return
    left = len(others) - len(work.written.others)
    beside = f"; {left} values that are no tensors are left out" if left else ""
    what, checked = "arrays" if work.written.arrays else "files", "; checked" if args.check else ""
    print(f"{len(files)} {what} of {bytes_text(total)} in {args.other}{checked}{beside}")


def _diff(first: Checkpoint, second: Checkpoint, memory: int, as_json: bool) -> None:
    rows = differences(first, second, memory)
    if as_json:
        output.write_json([difference._asdict() for difference in rows])
    for name, what in () if as_json else rows:
        print(f"{_printed(name)}: {what}")
    if rows:
        raise SystemExit(1)
    if not as_json:
        print(f"{len(first.tensors)} tensors are the same")
