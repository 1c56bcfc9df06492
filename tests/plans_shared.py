"""Plans that ranks share: what all of them would plan alike, one makes and the others read.

A plan is a value of its question, so ranks that ask the same get the same; that each finds it by itself, in a process
with another seed of hashes, is what examples under `torchrun` show.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from reshard import contraction
from reshard.errors import ReshardError
from reshard.planner import planning

PATIENCE_S = 20
"""After so long a rank plans by itself: the one that began may have died."""
POLL_S = 0.002


def share_plans(folder: Path) -> None:
    """Have this process plan einsums and reshards together with all others that share the folder."""
    store = _Store(folder)
    contraction._planned = store.shared(contraction._planned)
    planning._planned = store.shared(planning._planned)


class _Store:
    """Answers in files, named by their questions."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.is_planning = False
        """Whether a question was asked in answering another, which is then not worth a file."""

    def shared(self, kept: Any) -> Any:
        """A cached function whose answers lie in the folder."""
        function = kept.__wrapped__

        def ask(*question: Any) -> Any:
            if self.is_planning:
                return function(*question)
            self.is_planning = True
            try:
                plan, refusal = self._answer(function, question)
            finally:
                self.is_planning = False
            if refusal is not None:
                raise refusal
            return plan

        return lru_cache(kept.cache_parameters()["maxsize"])(ask)

    def _answer(self, function: Callable[..., Any], question: tuple[Any, ...]) -> tuple[Any, ReshardError | None]:
        name = hashlib.sha256(pickle.dumps((function.__module__, question))).hexdigest()
        path = self.folder / name
        try:
            os.close(os.open(self.folder / f"{name}.begun", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end:
                if path.exists():
                    answer: tuple[Any, ReshardError | None] = pickle.loads(path.read_bytes())
                    return answer
                time.sleep(POLL_S)
        answer = _answered(function, question)
        part = self.folder / f"{name}.{os.getpid()}"
        part.write_bytes(pickle.dumps(answer))
        part.rename(path)
        return answer


def _answered(function: Callable[..., Any], question: tuple[Any, ...]) -> tuple[Any, ReshardError | None]:
    try:
        return function(*question), None
    except ReshardError as refusal:
        return None, refusal
