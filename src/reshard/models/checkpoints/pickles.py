r"""Pickles that may ask for nothing but what a checkpoint is described by.

A pickle names functions and classes, and whoever loads it calls them.
Here every name that is not listed is refused before anything is called, and those listed stand for plain records, made
anew for each file; so nothing that a file says can run or stay.
The machine is Python's own in Python, not the one in C, whose memo is as long as a file says.
What is written names classes in the same way, without having them.

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
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

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


@dataclass(frozen=True, slots=True)
class Global:
    """A name of a module, to be written."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """What a function gives, to be written."""

    function: Global
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class with its state, to be written."""

    kind: Global
    state: Any


@dataclass(frozen=True, slots=True)
class Outside:
    """What lies outside of the pickle, by its key, to be written."""

    key: Any


@dataclass(frozen=True, slots=True)
class AnyKeys:
    """A dictionary with keys of any kind, to be written."""

    pairs: tuple[tuple[Any, Any], ...]


def dump(value: Any) -> bytes:
    """A pickle, of protocol 2, of plain values and of the five above, none of which needs to be here.

    >>> pickle.loads(dump({"a": [1, (2.5, None, True)], "b": FunctionCall(Global("builtins", "complex"), (1, -300))}))
    {'a': [1, (2.5, None, True)], 'b': (1-300j)}
    """
    out = bytearray(pickle.PROTO + b"\2")
    _Emitter(out, {}).write(value)
    return bytes(out + pickle.STOP)


class _Emitter(NamedTuple):
    """Writes opcodes; what is said twice is remembered."""

    out: bytearray
    memo: dict[Any, int]

    def write(self, value: Any) -> None:
        """The opcodes of a value."""
        out = self.out
        if value is None or isinstance(value, bool):
            out += pickle.NONE if value is None else pickle.NEWTRUE if value else pickle.NEWFALSE
        elif isinstance(value, int):
            self._integer(value)
        elif isinstance(value, float):
            out += pickle.BINFLOAT + struct.pack(">d", value)
        elif isinstance(value, str | Global):
            self._remembered(value)
        elif isinstance(value, tuple):
            out += pickle.MARK
            for entry in value:
                self.write(entry)
            out += pickle.TUPLE
        elif isinstance(value, list):
            out += pickle.EMPTY_LIST + pickle.MARK
            for entry in value:
                self.write(entry)
            out += pickle.APPENDS
        elif isinstance(value, dict | AnyKeys):
            out += pickle.EMPTY_DICT + pickle.MARK
            for key, entry in value.items() if isinstance(value, dict) else value.pairs:
                self.write(key)
                self.write(entry)
            out += pickle.SETITEMS
        else:
            self._object(value)

    def _object(self, value: Any) -> None:
        if isinstance(value, FunctionCall):
            self.write(value.function)
            self.write(value.args)
            self.out.extend(pickle.REDUCE)
        elif isinstance(value, Instance):
            self.write(value.kind)
            self.out.extend(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
            self.write(value.state)
            self.out.extend(pickle.BUILD)
        elif isinstance(value, Outside):
            self.write(value.key)
            self.out.extend(pickle.BINPERSID)
        else:
            raise TypeError(f"{type(value).__name__} is not written")

    def _integer(self, value: int) -> None:
        if -(2**31) <= value < 2**31:
            self.out.extend(pickle.BININT + struct.pack("<i", value))
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out.extend(pickle.LONG1 + bytes([len(data)]) + data)

    def _remembered(self, value: str | Global) -> None:
        known = self.memo.get(value)
        if known is not None:
            self.out.extend(pickle.LONG_BINGET + struct.pack("<I", known))
            return
        if isinstance(value, Global):
            self.out.extend(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        else:
            data = value.encode("utf-8", "surrogatepass")
            self.out.extend(pickle.BINUNICODE + struct.pack("<I", len(data)) + data)
        self.memo[value] = len(self.memo)
        self.out.extend(pickle.LONG_BINPUT + struct.pack("<I", self.memo[value]))
