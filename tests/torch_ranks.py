"""Real processes for the tests of the torch engine: one group of ranks per call, many problems within it."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plans_shared import share_plans

PRELOADED = [
    "torch.distributed.tensor.experimental",
    "torch._dynamo.backends.debugging",  # what a first compilation would load, in every rank anew
    "torch._functorch.aot_autograd",
    "torch._inductor.debug",
    "torch._inductor.pattern_matcher",
    "reshard.torch",
    "torch_ranks",
]
LIMIT_S = 240
COMMUNICATE = (
    "all_",
    "barrier",
    "batch_",
    "broadcast",
    "gather",
    "irecv",
    "isend",
    "new_",
    "recv",
    "reduce_",
    "scatter",
    "send",
)


def run_ranks(
    worker: Callable[..., Any], size: int, *args: Any, timeout_s: float = 60, dying: Collection[int] = ()
) -> list[Any]:
    """What `worker(rank, *args)` gives on every rank of a gloo group of that size.

    Args:
        worker: a function at the top of a module.
        size: the number of processes.
        args: the same for all.
        timeout_s: of the process group.
        dying: ranks that end without a result, which is None; all others must come to their end.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_rank, args=(worker, rank, size, folder, timeout_s, args), daemon=True)
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LIMIT_S)
            if process.is_alive():
                process.kill()
                process.join()
        results: list[Any] = [None] * size
        for rank in range(size):
            path = Path(folder) / f"result{rank}"
            assert path.exists() == (rank not in dying), f"rank {rank} ended with code {processes[rank].exitcode}"
            if path.exists():
                done, value = pickle.loads(path.read_bytes())
                assert done, f"rank {rank}:\n{value}"
                results[rank] = value
        return results


def _rank(worker: Callable[..., Any], rank: int, size: int, folder: str, timeout_s: float, args: Any) -> None:
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.ERROR)  # torch tells of its own slow ways
    share_plans(Path(folder) / "plans")
    try:
        store = dist.FileStore(f"{folder}/store", size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
        result = (True, worker(rank, *args))
    except BaseException:
        result = (False, traceback.format_exc())
    path = Path(folder) / f"part{rank}"
    path.write_bytes(pickle.dumps(result))
    path.rename(Path(folder) / f"result{rank}")


def wrong_features(module: str, names: list[str], size: int, **options: Any) -> dict[str, list[str]]:
    """What is wrong with each feature, on any rank of a gloo group of that size.

    Args:
        module: where the features are: functions of the rank that give what is wrong, "" for what is not.
        names: of the features.
        size: the number of processes.
        options: as for `run_ranks`.
    """
    found = [one for one in run_ranks(_features, size, module, names, **options) if one is not None]
    return {name: [text for one in found for text in one[name]] for name in names}


def _features(rank: int, module: str, names: list[str]) -> dict[str, list[str]]:
    found = {}
    for name in names:
        try:
            found[name] = [text for text in getattr(importlib.import_module(module), name)(rank) if text]
        except Exception:
            found[name] = [traceback.format_exc()]
    return found


def made_once(rank: int, make: Callable[[], Any]) -> Any:
    """What the first rank makes, on every rank, where all would make the same and it takes long."""
    values = [make() if rank == 0 else None]
    dist.broadcast_object_list(values)
    return values[0]


def unless(holds: bool, text: Any) -> str:
    """What is wrong; nothing where it holds."""
    return "" if holds else str(text)


class Traffic:
    """Bytes that a rank hands to the collective calls."""

    sent = 0
    received = 0
    calls = 0


@contextmanager
def counted_traffic(*, all_to_all: bool = False) -> Iterator[Traffic]:
    """Count what goes through sends and receives, and where said so all-to-alls; all else is an error."""
    traffic = Traffic()
    kept = {name: getattr(dist, name) for name in dir(dist) if name.startswith(COMMUNICATE)}

    def counted(name: str, field: str) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, *args: Any) -> Any:
            traffic.calls += 1
            setattr(traffic, field, getattr(traffic, field) + tensor.nbytes)
            return kept[name](tensor, *args)

        return call

    def together(output: torch.Tensor, value: torch.Tensor, *args: Any, **options: Any) -> Any:
        traffic.calls += 1
        traffic.received, traffic.sent = traffic.received + output.nbytes, traffic.sent + value.nbytes
        return kept["all_to_all_single"](output, value, *args, **options)

    for name in kept:
        setattr(dist, name, _refused(name))
    dist.isend, dist.irecv = counted("isend", "sent"), counted("irecv", "received")
    if all_to_all:
        dist.all_to_all_single = together
    try:
        yield traffic
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError(f"torch.distributed.{name} was called")

    return refuse
