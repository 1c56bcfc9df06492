r"""Pickles that may ask for nothing but what a checkpoint is described by.

A pickle names functions and classes, and whoever loads it calls them.
Here every name that is not listed is refused before anything is called, and those listed stand for plain records, made
anew for each file; so nothing that a file says can run or stay.
The machine is Python's own in Python, not the one in C, whose memo is as long as a file says.

>>> import pickle
>>> load(pickle.dumps({"a": [1, (2, 3)]}), {}, "it")
{'a': [1, (2, 3)]}
>>> load(b"cos\nsystem\n(S'echo'\ntR.", {}, "it")
Traceback (most recent call last):
    ...
reshard.errors.ReshardError: it asks for os.system, which no checkpoint needs
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Self

from reshard.errors import ReshardError

Names = Mapping[tuple[str, str], Any]
"""What stands for a name of a module: a class, or a function without effects."""


class Record:
    """Fields by name: what stands for an object of a class that is not here."""

    args: Any
    fields: dict[Any, Any]

    def __new__(cls, *args: Any) -> Self:
        """A record without fields yet: pickles make objects and give them their state later."""
        record = super().__new__(cls)
        record.args, record.fields = args, {}
        return record

    def get(self, name: str) -> Any:
        """A field; None where there is none."""
        return self.fields.get(name)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.fields.update(state)
        else:
            self.args = state


class _Restricted(pickle._Unpickler):
    """Knows the names that it is given, and no others."""

    def __init__(self, data: bytes, names: Names, what: str, persistent: Callable[[Any], Any] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._names, self._what, self._persistent = names, what, persistent

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name."""
        known = self._names.get((module, name))
        if known is None:
            raise ReshardError("bad-file", f"{self._what} asks for {module}.{name}, which no checkpoint needs")
        return known

    def get_extension(self, code: int) -> None:
        """Names by number are refused."""
        raise ReshardError("bad-file", f"{self._what} asks for extension {code}, which no checkpoint needs")

    def persistent_load(self, key: Any) -> Any:
        """What lies outside of the pickle."""
        if self._persistent is None:
            raise ReshardError("bad-file", f"{self._what} refers to what lies outside of it")
        return self._persistent(key)


def load(data: bytes, names: Names, what: str, persistent: Callable[[Any], Any] | None = None) -> Any:
    """The value of a pickle.

    Args:
        data: the pickle.
        names: what it may ask for.
        what: what to call it in a sentence.
        persistent: what stands for something outside of it, by its key; None where there is nothing.

    Raises:
        ReshardError: `bad-file`.
    """
    try:
        return _Restricted(data, names, what, persistent).load()
    except ReshardError:
        raise
    except (Exception, MemoryError, RecursionError) as error:  # whatever a malformed pickle brings about
        raise ReshardError("bad-file", f"{what} is no pickle that can be read: {type(error).__name__}") from None
