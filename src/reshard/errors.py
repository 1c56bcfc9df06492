"""What can be wrong, as a closed set of codes.

Every refusal in this library is one `ReshardError`: a `ValueError` with a `code` that programs test
and one sentence that people read.
The sentence names the thing, says what it is and what it must be, in the notation of the thing itself.

>>> raise_if = ReshardError("axis-size", 'axis "x" has size 0; it must be at least 1')
>>> raise_if.code, str(raise_if)
('axis-size', 'axis "x" has size 0; it must be at least 1')
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

CODES: dict[str, str] = {
    # a mesh
    "axis-name": "an axis name is no string",
    "axis-size": "an axis size is below 1",
    "negative-device-id": "a device id is below 0",
    "maximal-mesh": "a mesh without axes has more than one device id",
    "duplicate-axis": "a mesh has two axes of one name",
    "device-ids-count": "the number of device ids is not the product of the axis sizes",
    "duplicate-device-id": "a mesh lists a device twice",
    "device-ids-not-iota": "the device ids of a Shardy text are not a permutation of 0 to D - 1",
    # a sharding
    "unknown-mesh": "a text refers to a mesh that was not given",
    "maximal-sharding": "a sharding on a maximal mesh has dims or axes",
    "rank-mismatch": "a sharding and a shape, or two shardings, differ in the number of dims",
    "negative-priority": "a priority is below 0",
    "needless-priority": "an empty closed dim has a priority",
    "unknown-axis": "an axis is not in the mesh",
    "duplicate-axis-ref": "an axis or sub-axis is used twice",
    "mergeable-sub-axes": "two sub-axes side by side are one",
    "not-divisible": "a dim is not divisible by its shard count where it must be",
    "unsorted-axes": "replicated or unreduced axes are not in mesh order",
    "axis-and-sub-axis": "an axis is used whole and in part",
    "sub-axis-pre-size": "the pre-size of a sub-axis is below 1",
    "sub-axis-size": "the size of a sub-axis is below 2",
    "sub-axis-divisor": "a sub-axis does not divide its axis",
    "sub-axis-is-axis": "a sub-axis is its whole axis",
    "overlapping-sub-axes": "two sub-axes overlap",
    "sub-axes-cannot-coexist": "no split of the axis holds both sub-axes",
    "unknown-reduction": "a reduction is not in the closed set",
    "bad-deal": "how a dim is dealt to its shards is not said as it must be",
    "bad-window": "what is held around what is owned is not said as it must be, or does not hold it",
    "unknown-rule": "the rule for uneven dims is not in the closed set",
    "different-meshes": "shardings that must share a mesh do not",
    # texts and arguments
    "syntax": "a text does not follow its grammar",
    "bad-argument": "an argument is of the wrong kind",
    "bad-shape": "a shape is no tuple of sizes of at least 0",
    "too-large": "a size is beyond what can be counted or held",
    "cannot-express": "a text form cannot hold the value",
    "unknown-dtype": "a dtype is not known by that name",
    "reduction-dtype": "a reduction has no meaning for a dtype",
    "unknown-device": "a device is not in the mesh",
    # programs
    "bad-program": "a program contradicts itself, or names a value wrongly",
    # plans and engines
    "bad-step": "a step does not lead from its first sharding to its second",
    "broken-chain": "the steps of a plan do not join",
    "no-plan": "no plan satisfies the request",
    "bad-plan-text": "a plan in JSON is malformed, of another version, or contradicts itself",
    "bad-network": "a network is described wrongly, or not by a known name",
    "bad-tiles": "the tiles handed in are not those of the sharding",
    "ranks-disagree": "the processes that must exchange ask for different things",
    "exchange-failed": "an exchange broke off: a process has gone, or did not come in time",
    # files
    "bad-file": "a file cannot be read as what it was said to be",
    "file-exists": "an output is already there",
    "write-failed": "an output could not be written",
    "verify-failed": "what was read back differs from what was written",
    "missing-extra": "an optional package is not installed",
}
"""Every code with what it means."""


MOST = 1200
"""Characters of a sentence; what is longer, such as a mesh of thousands of devices, is cut in its middle."""


def shortened(sentence: str) -> str:
    """A sentence that can be read: its beginning and its end.

    >>> len(shortened("x" * 10**6))
    1200
    """
    if len(sentence) <= MOST:
        return sentence
    tail = MOST // 3
    return f"{sentence[: MOST - tail - 3]} … {sentence[-tail:]}"


class ReshardError(ValueError):
    """A refusal: `code` for programs, the sentence for people.

    Attributes:
        code: one of `CODES`.
    """

    def __init__(self, code: str, message: str) -> None:
        if code not in CODES:
            raise KeyError(f"{code!r} is no code of ReshardError")
        super().__init__(code, shortened(message))
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])


class MissingExtraError(ReshardError, AttributeError):
    """An engine that is not installed: to `hasattr` and to imports it is not there."""

    def __init__(self, message: str) -> None:
        ReshardError.__init__(self, "missing-extra", message)

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str]]:
        return MissingExtraError, (str(self),)


@contextmanager
def refusing(code: str, what: str) -> Iterator[None]:
    """Within it, what the system refuses is refused with a code: `what` went wrong, and the system's reason."""
    try:
        yield
    except OSError as error:
        raise ReshardError(code, f"{what}: {error.strerror or error}") from None
    except UnicodeEncodeError as error:  # of a name that was read from a file
        raise ReshardError(code, f"{what}: no file can be called {error.object!r}") from None
