"""`reshard checkpoint`: what a checkpoint holds, what reading it costs, writing it anew, comparing two."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from threading import Lock

from reshard.cli import output
from reshard.cli.arguments import Commands, add_command
from reshard.cli.model_command import rules_named
from reshard.cli.progress import phase
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.models.checkpoints.comparing import differences
from reshard.models.checkpoints.converting import CAP, Converting, convert
from reshard.models.checkpoints.layouts import Files, check_dtype, device_files, read_costs, whole_files
from reshard.models.checkpoints.opening import open_checkpoint
from reshard.models.checkpoints.stored import Checkpoint
from reshard.models.names import skeleton
from reshard.plans import bytes_text
from reshard.tables import Table

EXAMPLES = """\
examples:
  reshard checkpoint show llama-3-8b/
  reshard checkpoint cost dcp/ --rules rules.yaml
  reshard checkpoint convert dcp/ llama-safetensors --memory 256MiB --check
  reshard checkpoint convert llama-3-8b/ served --rules vllm:tp=8 --model llama-3-8b
  reshard checkpoint diff llama-3-8b/ llama-safetensors/

a checkpoint is a folder of .safetensors files, one such file, or a folder of torch's distributed checkpoint
diff ends with 1 where the two differ
"""
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "checkpoint", run, "read, convert and compare checkpoints on disk", EXAMPLES)
    parser.add_argument("action", choices=("show", "cost", "convert", "diff"), help="what to do")
    parser.add_argument("source", metavar="SRC", help="a checkpoint")
    parser.add_argument("other", metavar="DST", nargs="?", help="the new folder of convert; the second of diff")
    parser.add_argument("--to", default="safetensors", choices=("safetensors",), help="the form that is written")
    parser.add_argument("--rules", metavar="RULES", help="a file of rules or a system, as vllm:tp=8: one file a device")
    parser.add_argument("--model", metavar="NAME", help="the model that the rules of a system are for")
    parser.add_argument("--dtype", metavar="NAME", help="what floats of two bytes and more are written as")
    parser.add_argument("--memory", metavar="SIZE", help="what may be held of tensors at once, as 256MiB")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="files that are written at a time")
    parser.add_argument("--resume", action="store_true", help="go on with what was stopped")
    parser.add_argument("--check", action="store_true", help="read back what is written and compare it")


def run(args: argparse.Namespace) -> None:
    """Do what is asked for."""
    if (args.other is None) == (args.action in ("convert", "diff")):
        raise ReshardError(
            "bad-argument", f"checkpoint {args.action} takes {'two paths' if args.other is None else 'one path'}"
        )
    memory = 2 * CAP if args.memory is None else size_of(args.memory)
    if not 1 <= args.workers <= 256:
        raise ReshardError("bad-argument", f"there are {args.workers} workers; there must be 1 to 256")
    checkpoint = open_checkpoint(args.source)
    if args.action == "show":
        _show(checkpoint, args.json)
    elif args.action == "diff":
        _diff(checkpoint, open_checkpoint(args.other), memory, args.json)
    elif args.action == "cost":
        _cost(checkpoint, _files(checkpoint, args), args.json)
    else:
        _convert(checkpoint, _files(checkpoint, args), args, memory)


def size_of(text: str) -> int:
    """A number of bytes from its text.

    >>> size_of("256MiB"), size_of("1.5 GB")
    (268435456, 1500000000)
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2] not in UNITS or float(match[1]) <= 0:
        raise ReshardError("bad-argument", f"a size must be a number with a unit, such as 256MiB, got: {text!r}")
    return max(1, int(float(match[1]) * UNITS[match[2]]))


def _files(checkpoint: Checkpoint, args: argparse.Namespace) -> Files:
    """What would be written."""
    dtype = None if args.dtype is None else dtype_named(args.dtype)
    if args.rules is None:
        files = whole_files(checkpoint, dtype)
    else:
        files = device_files(checkpoint, rules_named(args.rules, args.model, 0), dtype)
    check_dtype(files)
    return files


def _show(checkpoint: Checkpoint, as_json: bool) -> None:
    chunks = {chunk.path for tensor in checkpoint.tensors.values() for chunk in tensor.chunks}
    if as_json:
        tensors = {
            name: {"dtype": tensor.dtype.name, "shape": tensor.shape, "chunks": len(tensor.chunks)}
            for name, tensor in checkpoint.tensors.items()
        }
        output.write_json(
            {"form": checkpoint.form, "bytes": checkpoint.nbytes, "others": checkpoint.others, "tensors": tensors}
        )
        return
    kinds: dict[tuple[str, str, str, int], int] = {}
    for name, tensor in checkpoint.tensors.items():
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        key = skeleton(name), shape, tensor.dtype.name, len(tensor.chunks)
        kinds[key] = kinds.get(key, 0) + 1
    rows = [(name, str(count), shape, dtype, str(parts)) for (name, shape, dtype, parts), count in kinds.items()]
    print("\n".join(Table([("tensors", "count", "shape", "dtype", "chunks"), *rows], {"count", "chunks"}).lines()))
    beside = f"; beside them {len(checkpoint.others)} values that are no tensors" if checkpoint.others else ""
    print(
        f"\n{len(checkpoint.tensors)} tensors of {bytes_text(checkpoint.nbytes)} in {len(chunks)} files, "
        f"{checkpoint.form}{beside}"
    )


def _cost(checkpoint: Checkpoint, files: Files, as_json: bool) -> None:
    rows = read_costs(files)
    total, requests = sum(size for _, size, _ in rows), sum(count for _, _, count in rows)
    if as_json:
        listing = [{"file": file, "read_bytes": size, "requests": count} for file, size, count in rows]
        totals = {"bytes": checkpoint.nbytes, "read_bytes": total, "requests": requests}
        output.write_json({"files": listing, **totals})
        return
    lines = [(file, bytes_text(size), str(count)) for file, size, count in rows]
    print("\n".join(Table([("file", "read", "requests"), *lines], {"read", "requests"}).lines()))
    times = total / checkpoint.nbytes if checkpoint.nbytes else 0.0
    print(
        f"\n{bytes_text(total)} in {requests} requests, each byte of {bytes_text(checkpoint.nbytes)} {times:.2f} times"
    )


def _convert(checkpoint: Checkpoint, files: Files, args: argparse.Namespace, memory: int) -> None:
    total = sum(buffer.nbytes for buffers in files.values() for buffer in buffers.values())
    work = Converting(checkpoint, files, Path(args.other), memory, args.workers, args.resume, args.check)
    lock = Lock()
    with phase("converting", total) as advance:

        def told(count: int) -> None:
            with lock:
                advance(count)

        convert(work, told)
    if args.json:
        output.write_json({"out": args.other, "files": list(files), "bytes": total, "checked": args.check})
    else:
        left = f"; {len(checkpoint.others)} values that are no tensors are left out" if checkpoint.others else ""
        print(f"{len(files)} files of {bytes_text(total)} in {args.other}{'; checked' if args.check else ''}{left}")


def _diff(first: Checkpoint, second: Checkpoint, memory: int, as_json: bool) -> None:
    rows = differences(first, second, memory)
    if as_json:
        output.write_json([difference._asdict() for difference in rows])
    for name, what in () if as_json else rows:
        print(f"{name}: {what}")
    if rows:
        raise SystemExit(1)
    if not as_json:
        print(f"{len(first.tensors)} tensors are the same")
