"""Conversions that are killed, each in a process of its own; a program, for a process with threads must not be forked.

python killed_conversions.py rounds 10 FOLDER      kill and go on, so many times over; ends with 0 where all is right
python killed_conversions.py at 40 convert A B …   kill one command before its fortieth write
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from checkpoints import save_safetensors

from reshard.cli import main
from reshard.models.checkpoints.files import TileWriter
from reshard.models.checkpoints.opening import open_checkpoint


def killed_at(moment: int, arguments: list[str]) -> int:
    """Run a command in a process that kills itself before its write of a number, or in the midst of it; its status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count, write_at, copy_file_range = 0, TileWriter.write_at, os.copy_file_range

    def dying(function: Any) -> Any:
        def called(*values: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == moment:
                if function is write_at:
                    writer, path, offset, data = values
                    write_at(writer, path, offset, data[: len(data) // 2])
                elif function is copy_file_range:
                    source, target, size, *offsets = values
                    copy_file_range(source, target, size // 2, *offsets)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*values, **options)

        return called

    with ExitStack() as stack:
        system = ((os, name) for name in ("copy_file_range", "write", "fsync"))
        for owner, name in ((TileWriter, "write_at"), *system, (Path, "rename")):
            stack.enter_context(mock.patch.object(owner, name, dying(getattr(owner, name))))
        stack.enter_context(mock.patch.object(shutil, "rmtree", dying(shutil.rmtree)))
        os._exit(main(["checkpoint", *arguments]))
    raise AssertionError


def check_rounds(count: int, folder: Path) -> None:
    """Nothing has the output's name before it is whole, and it is right then."""
    source, rules, out = folder / "m.safetensors", folder / "rules.yaml", folder / "out"
    arrays = {f"{size}.w": np.arange(40 * size, dtype=np.int16).reshape(size, 40) for size in range(8)}
    save_safetensors(source, arrays | {"norm": np.arange(3)})
    rules.write_text("mesh: {x: 2}\nrules:\n  - {match: '.*w', spec: \"P(None, 'x')\"}\ndefault: replicated\n")
    draw, deaths = random.Random(count), 0
    for _ in range(count):
        options = draw.choice([[], ["--no-sync"]]) + draw.choice([["--to", "dcp"], ["--memory", "200B"]])
        options += draw.choice([[], ["--rules", str(rules)]])
        arguments = ["convert", str(source), str(out), "--resume", *options]
        for moment in (*(draw.randint(1, 50) for _ in range(draw.randint(1, 3))), 10**9):
            if not out.exists():
                deaths += killed_at(moment, arguments) == -signal.SIGKILL
        assert set(open_checkpoint(out).tensors) == {*arrays, "norm"}
        assert main(["checkpoint", "diff", str(source), str(out)]) == 0
        assert main(["checkpoint", *arguments]) in (0, 1)
        assert not (folder / ".out.partial").exists()
        shutil.rmtree(out)
    assert deaths > count / 2, deaths


if __name__ == "__main__":
    if sys.argv[1] == "rounds":
        check_rounds(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(killed_at(int(sys.argv[2]), sys.argv[3:]) != -signal.SIGKILL)
