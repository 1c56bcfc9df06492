"""The helpers that the tests trust catch plans and engines broken on purpose.

Each row breaks one thing and names the checks that must see it; what is intact must pass them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import checkers
import numpy as np
import oracle
import pytest
from numpy.typing import NDArray
from problems import Problem

from reshard import numpy as engine
from reshard.box import Box
from reshard.exchange import DigitExchange, Exchange, Piece, schedule
from reshard.exchange.by_boxes import by_boxes
from reshard.exchange.by_digits import by_digits
from reshard.mesh import Mesh
from reshard.planner import plan
from reshard.sharding import Sharding
from reshard.tiling import Tiling

Array = NDArray[Any]

XY = Mesh.of(x=2, y=4)
EVEN = Problem(Sharding.of(XY, "y", None), Sharding.of(XY, "x", "y"), (8, 8), "int64")
"""Two rounds by digits, half a tile each; every source tile has two holders."""
COPIES = Problem(Sharding.of(XY, "y"), Sharding.of(Mesh.of(a=8), None), (12,), "int64")
"""Every source tile has two holders, and all want all."""
UNEVEN = Problem(Sharding.of(Mesh.of(m=2, n=3), "m", "n"), Sharding.of(Mesh.of(m=2, n=3), "n", "m"), (7, 11), "int64")
"""By boxes: one holder each, cuts of 2 and of 3, pieces of many shapes."""
PROBLEMS = {"even": EVEN, "copies": COPIES, "uneven": UNEVEN}


def digits_of(problem: Problem) -> DigitExchange:
    found = by_digits(*(Tiling.of(side, problem.shape) for side in (problem.source, problem.target)))
    assert found is not None
    return found


def boxes_of(problem: Problem) -> Exchange:
    return by_boxes(*(Tiling.of(side, problem.shape) for side in (problem.source, problem.target)))


# Exchanges broken on purpose.

Change = Callable[[list[Piece], Exchange], Iterable[Piece]]


class Altered(Exchange):
    """An exchange whose pieces are changed, on both sides alike or on one, and whose figures may be others."""

    def __init__(self, right: Exchange, change: Change, *, one_end: bool = False, **figures: Any) -> None:
        self.source, self.target, self.right, self.figures = right.source, right.target, right, figures
        pieces = [piece for device in right.target.mesh.devices for piece in right.incoming(device)]
        self.arriving = list(change(pieces, right))
        self.leaving = pieces if one_end else self.arriving

    def incoming(self, device: int) -> list[Piece]:
        return [piece for piece in self.arriving if piece.receiver == device]

    def outgoing(self, device: int) -> list[Piece]:
        return [piece for piece in self.leaving if piece.sender == device]

    @property
    def rounds(self) -> int:
        return self.figures.get("rounds", self.right.rounds)

    @property
    def gathered_values(self) -> int:
        return self.right.gathered_values  # type: ignore[attr-defined, no-any-return]

    @property
    def piece_shape(self) -> tuple[int, ...]:
        return self.figures.get("piece_shape", self.right.piece_shape)

    @property
    def received(self) -> int:
        return self.figures.get("received", super().received)

    @property
    def total_missing(self) -> int:
        return self.figures.get("total_missing", super().total_missing)

    def traffic(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        senders, receivers, elements = self.right.traffic()
        turned = self.figures.get("turned", False)
        return (receivers, senders, elements) if turned else (senders, receivers, elements)

    def received_on(self, device: int) -> int:
        return super().received_on(device) + self.figures.get("on_each", 0)

    def all_received(self) -> NDArray[np.int64]:
        return self.right.all_received() + self.figures.get("in_all", 0)

    def all_missing(self) -> NDArray[np.int64]:
        return self.right.all_missing() - self.figures.get("missing", 0)


def intact(pieces: list[Piece], _: Exchange) -> list[Piece]:
    return pieces


def first_travelling(pieces: list[Piece]) -> int:
    return next(number for number, piece in enumerate(pieces) if piece.sender != piece.receiver)


def at_first(change: Callable[[Piece, Exchange], Iterable[Piece]]) -> Change:
    """A change of the first piece that travels."""

    def changed(pieces: list[Piece], exchange: Exchange) -> list[Piece]:
        number = first_travelling(pieces)
        return [*pieces[:number], *change(pieces[number], exchange), *pieces[number + 1 :]]

    return changed


def wrong_owner(piece: Piece, exchange: Exchange) -> list[Piece]:
    """Another device that does not hold the piece."""
    others = [d for d in exchange.source.mesh.devices if not exchange.source.box(d).contains(piece.box)]
    return [piece._replace(sender=next(device for device in others if device != piece.receiver))]


def shifted(piece: Piece, _: Exchange) -> list[Piece]:
    """The same shape, one index further on in the last dim."""
    *dims, (start, stop) = piece.box
    return [piece._replace(box=Box([*dims, (start + 1, stop + 1)]))]


def cut_short(piece: Piece, _: Exchange) -> list[Piece]:
    *dims, (start, stop) = piece.box
    return [piece._replace(box=Box([*dims, (start, stop - 1)]))] if stop - start > 1 else []


def swapped(pieces: list[Piece], _: Exchange) -> list[Piece]:
    """The devices 0 and 1 as receivers, exchanged."""
    turn = {0: 1, 1: 0}
    return [piece._replace(receiver=turn.get(piece.receiver, piece.receiver)) for piece in pieces]


def busiest_gives_all(pieces: list[Piece], exchange: Exchange) -> list[Piece]:
    """All that is asked of a tile comes from the first of its holders."""
    first: dict[Box, int] = {}
    for device in exchange.source.mesh.devices:
        first.setdefault(exchange.source.box(device), device)
    return [
        piece if piece.sender == piece.receiver else piece._replace(sender=first[exchange.source.box(piece.sender)])
        for piece in pieces
    ]


def fetched_though_held(pieces: list[Piece], exchange: Exchange) -> list[Piece]:
    """A device takes what it holds from another holder."""
    found = list(pieces)
    for number, piece in enumerate(pieces):
        box = exchange.source.box(piece.sender)
        others = [d for d in exchange.source.mesh.devices if exchange.source.box(d) == box and d != piece.sender]
        if piece.sender == piece.receiver and others:
            found[number] = piece._replace(sender=others[0])
            return found
    raise AssertionError("no piece stays where another device holds it too")


def one_round(pieces: list[Piece], _: Exchange) -> list[Piece]:
    return [piece._replace(round=0) for piece in pieces]


def late_own(pieces: list[Piece], exchange: Exchange) -> list[Piece]:
    """Rounds counted from the other end: own pieces come last."""
    rounds = max(piece.round for piece in pieces)
    return [piece._replace(round=rounds - piece.round) for piece in pieces]


def too_many_rounds(pieces: list[Piece], _: Exchange) -> list[Piece]:
    return [piece._replace(round=piece.round + 1) for piece in pieces]


class Row(NamedTuple):
    """A break, and the checks that see it."""

    name: str
    problem: str
    change: Change
    caught_by: set[str]
    options: dict[str, Any] = {}  # noqa: RUF012  # read only


CONTENT = {"pieces"}
BOTH_CONTENT = {"pieces", "received"}

BREAKS = [
    Row("a wrong owner", "uneven", at_first(wrong_owner), CONTENT),
    Row("a piece dropped", "uneven", at_first(lambda *_: []), BOTH_CONTENT),
    Row("a piece doubled", "uneven", at_first(lambda piece, _: [piece, piece]), BOTH_CONTENT),
    Row("a box shifted", "uneven", at_first(shifted), CONTENT),
    Row("a box cut short", "uneven", at_first(cut_short), BOTH_CONTENT),
    Row("two devices swapped", "uneven", swapped, BOTH_CONTENT),
    Row("an empty piece", "uneven", at_first(lambda p, _: [p, p._replace(box=Box([(0, 0), (0, 0)]))]), CONTENT),
    Row("a device fetches what it holds", "copies", fetched_though_held, {"received", "dealing"}),
    Row("one holder gives all", "copies", busiest_gives_all, {"dealing", "round count"}),
    Row("sent and not received", "uneven", at_first(lambda *_: []), {"both ends"}, {"one_end": True}),
    Row("received from another than it says", "uneven", at_first(wrong_owner), {"both ends"}, {"one_end": True}),
    Row("a piece cut short on one end", "uneven", at_first(cut_short), {"both ends"}, {"one_end": True}),
    Row("one round too few", "uneven", intact, {"round count"}, {"rounds": 2}),
    Row("the largest piece is larger", "uneven", intact, {"largest piece"}, {"piece_shape": (100, 2)}),
    Row("one more on each device", "uneven", intact, {"received"}, {"on_each": 1}),
    Row("one more in the figure of all", "uneven", intact, {"received", "figures"}, {"in_all": 1}),
    Row("a lower bound", "uneven", intact, {"received", "figures"}, {"missing": 1}),
    Row("a wrong maximum", "uneven", intact, {"received", "figures"}, {"received": 1}),
    Row("a wrong sum", "uneven", intact, {"received", "figures"}, {"total_missing": 1}),
    Row("senders and receivers listed the wrong way round", "copies", intact, {"traffic"}, {"turned": True}),
    Row("a piece less than is listed", "uneven", at_first(lambda *_: []), {"traffic"}),
    Row("all pieces in one round", "even", one_round, {"permutations"}),
    Row("own pieces last", "even", late_own, {"permutations"}),
    Row("rounds that do not exist", "even", too_many_rounds, {"permutations"}),
    Row("a receiver twice in a round", "even", swapped, {"pieces"}),
    Row("a sender twice in a round", "even", at_first(wrong_owner), {"permutations", "pieces"}),
    Row("a device left out of a round", "even", at_first(lambda *_: []), {"permutations", "pieces", "received"}),
    Row("one round too many", "even", intact, {"permutations"}, {"rounds": 3}),
]


def checks(exchange: Exchange, problem: Problem) -> dict[str, Callable[[], None]]:
    """Every check of an exchange, by its name."""
    source, target, shape, _ = problem
    missing = oracle.missing(source, target, shape)
    return {
        "pieces": lambda: checkers.check_pieces(exchange, source, target, shape),
        "both ends": lambda: checkers.check_both_ends(exchange),
        "received": lambda: checkers.check_received(exchange, missing),
        "figures": lambda: checkers.check_received_figures(exchange, missing),
        "largest piece": lambda: checkers.check_largest_piece(exchange),
        "traffic": lambda: checkers.check_traffic(exchange),
        "permutations": lambda: checkers.check_permutations(exchange, shape),  # type: ignore[arg-type]
        "round count": lambda: checkers.check_round_count(exchange),
        "dealing": lambda: checkers.check_dealing(exchange, source, shape),
    }


def exchange_of(name: str) -> Exchange:
    return digits_of(PROBLEMS[name]) if name == "even" else boxes_of(PROBLEMS[name])


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_intact_passes(name: str) -> None:
    for exchange in (exchange_of(name), Altered(exchange_of(name), intact)):
        for title, check in checks(exchange, PROBLEMS[name]).items():
            if title != ("round count" if name == "even" else "permutations"):
                check()


@pytest.mark.parametrize("row", BREAKS, ids=[row.name for row in BREAKS])
def test_an_exchange_broken_on_purpose_is_caught(row: Row) -> None:
    broken = Altered(exchange_of(row.problem), row.change, **row.options)
    for title, check in checks(broken, PROBLEMS[row.problem]).items():
        if title in row.caught_by:
            with pytest.raises(AssertionError):
                check()


@pytest.mark.parametrize("row", BREAKS, ids=[row.name for row in BREAKS])
def test_all_checks_together_catch_it(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    if row.problem == "even":
        monkeypatch.setattr(checkers, "DigitExchange", Altered)
    with pytest.raises(AssertionError):
        checkers.check_move_exchange(
            Altered(exchange_of(row.problem), row.change, **row.options), PROBLEMS[row.problem]
        )


def test_every_check_is_shown_to_catch_something() -> None:
    exchange = exchange_of("even")
    assert set().union(*(row.caught_by for row in BREAKS)) == set(checks(exchange, EVEN))


# Partial values: what is combined once, from every class.

PARTIAL = Problem(Sharding.of(XY, None, unreduced="x"), Sharding.of(XY, "y"), (8,), "int64")


def test_an_exchange_of_partial_values_passes() -> None:
    checkers.check_pieces(digits_of(PARTIAL), *PARTIAL[:3])


@pytest.mark.parametrize("change", [at_first(lambda *_: []), at_first(lambda piece, _: [piece, piece])])
def test_a_class_left_out_or_combined_twice_is_caught(change: Change) -> None:
    with pytest.raises(AssertionError, match="lacks elements or gets some twice"):
        checkers.check_pieces(Altered(digits_of(PARTIAL), change), *PARTIAL[:3])


def test_one_class_in_place_of_another_is_caught() -> None:
    def from_own_class(piece: Piece, _: Exchange) -> list[Piece]:
        return [piece._replace(sender=piece.receiver)]

    with pytest.raises(AssertionError, match="of one class twice"):
        checkers.check_pieces(Altered(digits_of(PARTIAL), at_first(from_own_class)), *PARTIAL[:3])


def test_classes_that_are_mixed_are_caught() -> None:
    """Both classes of the target are made of class 0 of the source: each is complete, together they are not."""
    kept = Problem(Sharding.of(XY, None, unreduced="x"), Sharding.of(XY, "y", unreduced="x"), (8,), "int64")
    right = digits_of(kept)
    checkers.check_pieces(right, *kept[:3])

    def from_the_first_class(pieces: list[Piece], _: Exchange) -> list[Piece]:
        return [piece._replace(sender=piece.sender % 4) for piece in pieces]

    with pytest.raises(AssertionError, match="combined twice"):
        checkers.check_pieces(Altered(right, from_the_first_class), *kept[:3])


# Schedules.


def piece(sender: int, receiver: int, stop: int = 1) -> Piece:
    return Piece(sender, receiver, Box([(0, stop)]), 0)


PIECES = [piece(0, 1), piece(0, 2), piece(1, 2, 2), piece(2, 0, 2), piece(1, 1)]
"""Device 0 sends twice and 2 receives twice: two rounds; by shape it takes 2 for one and 1 for the other."""


def test_right_schedules_pass() -> None:
    checkers.check_schedule([[PIECES[0], PIECES[2]], [PIECES[1], PIECES[3]]], PIECES)
    checkers.check_schedule([[PIECES[2], PIECES[3]], [PIECES[0]], [PIECES[1]]], PIECES, one_shape=True)
    for one_shape in (False, True):
        checkers.check_schedule(schedule(PIECES, one_shape=one_shape), PIECES, one_shape=one_shape)
    checkers.check_schedule([], [])
    checkers.check_schedule([], [piece(1, 1)])


@pytest.mark.parametrize(
    ("rounds", "one_shape", "problem"),
    [
        ([[0, 2], [1]], False, "lost"),
        ([[0, 2], [1, 3, 0]], False, "twice"),
        ([[0, 2], [1, 3, 4]], False, "new"),
        ([[0, 1], [2, 3]], False, "a device is twice in round 0"),
        ([[2, 0], [3], [1]], False, "3 rounds, where 2 are enough"),
        ([[0, 2], [1, 3], []], False, "round 2 is empty"),
        ([[0, 2], [1, 3]], True, "several shapes"),
        ([[0], [1], [2], [3]], True, "4 rounds, where 3 are enough"),
        ([[1, 2], [0, 3]], False, "a device is twice in round 0"),
    ],
)
def test_a_wrong_schedule_is_caught(rounds: list[list[int]], one_shape: bool, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        checkers.check_schedule([[PIECES[i] for i in turn] for turn in rounds], PIECES, one_shape=one_shape)


# Plans. A plan checks itself when it is built, so a broken one is made by hand.

PARTS = Sharding.of(XY, "x", "y"), Sharding.of(XY, "x", None), Sharding.of(XY, None, None)
RIGHT = plan(PARTS[0], PARTS[2], (8, 8), "int64")
FIRST, SECOND = (plan(*ends, (8, 8), "int64").steps[0] for ends in (PARTS[:2], PARTS[1:]))
OTHER = plan(PARTS[1], PARTS[2], (8, 4), "int64").steps[0]


def made(steps: Iterable[Any], source: Sharding = PARTS[0], target: Sharding = PARTS[2]) -> Any:
    return SimpleNamespace(source=source, target=target, shape=RIGHT.shape, dtype=RIGHT.dtype, steps=tuple(steps))


def test_chains_that_join_pass() -> None:
    checkers.check_chain(RIGHT)
    checkers.check_chain(made([FIRST, SECOND]))
    checkers.check_chain(made([], PARTS[0], Sharding.of(Mesh.of(a=4, b=2), "a:(1)2", ("a:(2)2", "b"))))


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (made([FIRST]), "the plan ends at"),
        (made([SECOND]), "step 1 starts at"),
        (made([SECOND, FIRST]), "step 1 starts at"),
        (made([FIRST, SECOND, SECOND]), "step 3 starts at"),
        (made([FIRST, OTHER]), "step 2 is for"),
        (made([]), "two placements"),
        (made([], Sharding.of(XY, "x"), Sharding.of(XY, "x", unreduced="y")), "two placements"),
    ],
)
def test_a_chain_that_does_not_join_is_caught(broken: Any, problem: str) -> None:
    if not broken.steps:
        broken.shape = (8,) * len(broken.source.dims)
    with pytest.raises(AssertionError, match=problem):
        checkers.check_chain(broken)


class Claim:
    """A plan with one of its figures replaced."""

    def __init__(self, **claims: Any) -> None:
        self.claims = claims

    def __getattr__(self, name: str) -> Any:
        return self.claims[name] if name in self.claims else getattr(RIGHT, name)


@pytest.mark.parametrize(
    "claim",
    [
        {"received_bytes": RIGHT.received_bytes - 1},
        {"lower_bound_bytes": RIGHT.lower_bound_bytes + 1},
        {"total_received_bytes": 0},
        {"total_lower_bound_bytes": RIGHT.total_lower_bound_bytes - 8},
        {"received_bytes_on": lambda device: RIGHT.received_bytes_on(device) + (device == 5)},
        {"lower_bound_bytes_on": lambda device: RIGHT.lower_bound_bytes_on(device) - (device == 7)},
        {"bound_kind": "reduction"},
        {"devices": RIGHT.devices[:-1]},
    ],
    ids=lambda claim: next(iter(claim)),
)
def test_a_wrong_figure_is_caught(claim: dict[str, Any]) -> None:
    missing = oracle.missing(RIGHT.source, RIGHT.target, RIGHT.shape)
    checkers.check_move_figures(Claim(), missing)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        checkers.check_move_figures(Claim(**claim), missing)  # type: ignore[arg-type]


def test_a_peak_below_both_tiles_is_caught() -> None:
    tiles = (4 * 2 + 8 * 8) * 8
    checkers.check_peak(Claim(peak_bytes=tiles))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="device 0 needs 576 bytes, the peak is 575"):
        checkers.check_peak(Claim(peak_bytes=tiles - 1))  # type: ignore[arg-type]


# Engines.

Tiles = dict[int, Array]
MOVE = plan(*EVEN)


def right_run(plan_: Any, tiles: Tiles, *, received_bytes: dict[int, int]) -> Tiles:
    return engine.run(plan_, tiles, received_bytes=received_bytes)


def altered(change: Callable[[Tiles, Tiles, dict[int, int]], Any]) -> checkers.Run:
    """An engine that does right and then spoils what it gives back, what it was given, or what it counted."""

    def run(plan_: Any, tiles: Tiles, *, received_bytes: dict[int, int]) -> Tiles:
        found = right_run(plan_, tiles, received_bytes=received_bytes)
        return change(found, tiles, received_bytes) or found

    return run


def spoil(array: Array) -> None:
    array[0, 0] += 1


ENGINES = {
    "two tiles swapped": lambda found, *_: {**found, 2: found[3], 3: found[2]},
    "a tile missing": lambda found, *_: {device: tile for device, tile in found.items() if device},
    "a tile too many": lambda found, *_: {**found, 8: found[0]},
    "one value wrong": lambda found, *_: spoil(found[6]),
    "a tile of another shape": lambda found, *_: {**found, 1: found[1].reshape(2, 4)},
    "a tile of another dtype": lambda found, *_: {**found, 1: found[1].astype(np.int32)},
    "a list for an array": lambda found, *_: {**found, 1: found[1].tolist()},
    "a transposed tile": lambda found, *_: {**found, 1: np.resize(found[1].T, found[1].shape)},
    "what was given is spoilt": lambda _, given, __: spoil(given[4]),
    "a count too high": lambda _, __, counts: counts.update({3: counts[3] + 8}),
    "a count too low": lambda _, __, counts: counts.update({3: counts[3] - 8}),
    "a device not counted": lambda _, __, counts: counts.pop(5) and None,
    "counts of two devices swapped": lambda _, __, counts: counts.update({0: counts[3], 3: counts[0]}),
}


def test_the_right_engine_passes() -> None:
    checkers.check_run(MOVE, right_run)
    checkers.check_move(MOVE)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_broken_on_purpose_is_caught(name: str) -> None:
    with pytest.raises(AssertionError):
        checkers.check_run(MOVE, altered(ENGINES[name]))


def test_an_engine_that_gives_back_a_view_is_caught() -> None:
    halved = plan(Sharding.of(XY, None), Sharding.of(XY, "x"), (8,), "int64")

    def run(_: Any, tiles: Tiles, *, received_bytes: dict[int, int]) -> Tiles:
        received_bytes.update(dict.fromkeys(tiles, 0))
        return {device: tile[device // 4 * 4 :][:4] for device, tile in tiles.items()}

    checkers.check_run(halved, right_run)
    with pytest.raises(AssertionError, match="device 0 was given back the memory"):
        checkers.check_run(halved, run)


def test_an_engine_that_runs_another_plan_is_caught() -> None:
    def run(_: Any, tiles: Tiles, *, received_bytes: dict[int, int]) -> Tiles:
        swapped = replace(EVEN.target, dims=EVEN.target.dims[::-1])
        return engine.run(plan(EVEN.source, swapped, EVEN.shape, "int64"), tiles, received_bytes=received_bytes)

    with pytest.raises(AssertionError, match="has a tile of"):
        checkers.check_run(MOVE, run)


# The oracle itself, against tables by hand.


def test_the_oracle_cuts_as_by_hand() -> None:
    mesh = Mesh.of(x=2, y=4)
    runs = oracle.ranges(Sharding.of(mesh, ("x", "y"), uneven="chunk"), (5,))
    assert [list(run) for (run,) in runs.values()] == [[0], [1], [2], [], [3], [4], [], []]
    runs = oracle.ranges(Sharding.of(mesh, ("x", "y")), (5,))
    assert [list(run) for (run,) in runs.values()] == [[0], [1], [2], [3], [4], [], [], []]
    runs = oracle.ranges(Sharding.of(mesh, ("y:(2)2", "x")), (4,))  # device 4 x + 2 y0 + y1 holds element 2 y1 + x
    assert [list(run) for (run,) in runs.values()] == [[0], [2], [0], [2], [1], [3], [1], [3]]
    ordered = Mesh.of(x=2, y=2, device_ids=(7, 5, 6, 4))
    assert oracle.held_elements(Sharding.of(ordered, "y"), (3,)) == {7: {0, 1}, 5: {2}, 6: {0, 1}, 4: {2}}
    assert oracle.held_elements(Sharding.of(Mesh.of(device_ids=(3,))), (2, 2)) == {3: {0, 1, 2, 3}}


def test_the_oracle_counts_what_is_missing_as_by_hand() -> None:
    mesh = Mesh.of(x=2)
    rows, columns = Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x")
    assert oracle.missing(rows, columns, (2, 2)) == {0: 1, 1: 1}
    assert oracle.missing(rows, columns, (3, 2)) == {0: 1, 1: 2}
    away = Sharding.of(Mesh.of(x=2, device_ids=(1, 2)), "x", None)
    assert oracle.missing(rows, away, (2, 2)) == {0: 0, 1: 2, 2: 2}
    partial = Sharding.of(mesh, None, None, unreduced="x")
    assert oracle.missing(partial, partial, (2, 2)) == {0: 0, 1: 0}
    turned = Sharding.of(Mesh.of(x=2, device_ids=(1, 0)), None, None, unreduced="x")
    assert oracle.missing(partial, turned, (2, 2)) == {0: 4, 1: 4}


def test_the_oracle_reduces_as_by_hand() -> None:
    mesh = Mesh.of(x=2, y=2)
    sharding = Sharding.of(mesh, None, unreduced="y")
    held = {0: np.array([1, 2]), 1: np.array([10, 20]), 2: np.array([1, 2]), 3: np.array([10, 20])}
    assert oracle.values(sharding, (2,), held).tolist() == [11, 22]
    assert oracle.values(replace(sharding, reduction="max"), (2,), held).tolist() == [10, 20]
    assert oracle.values(replace(sharding, reduction="avg"), (2,), held).tolist() == [5.5, 11.0]
    with pytest.raises(AssertionError, match="device 2 differs from another of its class"):
        oracle.values(sharding, (2,), {**held, 2: np.array([1, 3])})
    with pytest.raises(AssertionError, match="device 0 holds"):
        oracle.values(sharding, (2,), {**held, 0: np.array([1])})
