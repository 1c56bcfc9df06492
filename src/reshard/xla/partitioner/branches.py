"""The branches of XLA's `ReshardNoCache` as a table."""

from __future__ import annotations

from dataclasses import dataclass

COMMUNICATIONS = ("none", "collective-permute", "all-to-all", "all-gather", "full gather")
"""What a reshard comes to: no communication; whole tiles change places; an all-to-all, with permutes or without;
a gather of what is needed and perhaps more, with anything beside it; a gather that the log warns about."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch of the partitioner."""

    order: int
    """Its place: a branch is asked when all with a lower number have said no."""
    name: str
    """What this project calls it."""
    function: str
    """XLA's function that takes it."""
    condition: str
    """When it says yes."""
    collectives: str
    """What it sends."""
    step: str
    """The kinds of step that do the same here."""


BRANCHES = (
    Branch(0, "same", "ReshardNoCache", "both arrays are equal", "nothing", "none"),
    Branch(
        1,
        "permute",
        "ReshardWithCollectivePermute",
        "both arrays have one shape, in other orders, and both have copies or neither",
        "one collective-permute of whole tiles",
        "Permute",
    ),
    Branch(
        2,
        "all-to-all",
        "ReshardWithAllToAll",
        "both arrays have one rank and as many tiles, the lengths that differ are the same lengths on other dims, and "
        "in each pair that is swapped the smaller divides the larger",
        "an all-to-all per set of pairs, then a collective-permute where the order of devices is not yet right",
        "AllToAll, then Permute; in one Exchange it costs less",
    ),
    Branch(
        3,
        "slice",
        "ReshardFromPartialReplicateWithDynamicSlice",
        "the source has copies, and every length of the source divides that of the target",
        "a collective-permute where the order of devices is not yet right",
        "Slice, then Permute",
    ),
    Branch(
        4,
        "shift then slice",
        "ReshardPartialReplicateWithAllToAll",
        "the source has copies, the target has none, and the source's array is the target's moved on by one dim",
        "an all-to-all",
        "AllToAll, then Slice",
    ),
    Branch(
        5,
        "gather",
        "ReshardToPartialReplicateWithAllGather",
        "the target has copies, and every length of the target divides that of the source",
        "a collective-permute where the order of devices is not yet right, then all-gathers",
        "Permute, then AllGather",
    ),
    Branch(
        6,
        "gather then shift",
        "ReshardPartialReplicateWithAllToAll",
        "the target has copies, the source has none, and the target's array is the source's moved on by one dim",
        "an all-gather, then an all-to-all",
        "AllGather, then AllToAll",
    ),
    Branch(
        7,
        "split a dim",
        "TryComplexReshardHandling",
        "neither is replicated, both have as many copies, and a dim's length in one array divides that in the other, "
        "neither being 1: the dim is taken as two, and the branches are asked again",
        "what the branches that then say yes send",
        "AllToAll, Permute, or one Exchange",
    ),
    Branch(
        8,
        "gather a dim first",
        "TryComplexReshardHandling",
        "the target has as many copies as the source would have with one more dim whole: that dim is gathered, and "
        "the branches are asked again",
        "all-gathers, then what the branches that then say yes send",
        "AllGather and more, or one Exchange",
    ),
    Branch(
        9,
        "spread copies first",
        "TryComplexReshardHandling",
        "the source has copies and the target has none: the copies take over a whole dim, and the branches are asked "
        "again",
        "what the branches that then say yes send",
        "Slice and more, or one Exchange",
    ),
    Branch(
        10,
        "group equal dims",
        "ReshardNoCache",
        "some dims have as many tiles in both: devices that agree on them form groups, and the branches are asked "
        "again within the groups",
        "what the branches that then say yes send, then a collective-permute where the order is not yet right",
        "one Exchange",
    ),
    Branch(
        11,
        "replicate",
        "Replicate",
        "the target is replicated, and the source is not",
        "all-gathers of the whole tensor, which every device needs",
        "AllGather",
    ),
    Branch(
        12,
        "full gather",
        "Replicate",
        "nothing else fits",
        "all-gathers of the whole tensor, of which every device keeps its tile",
        "one Exchange",
    ),
    Branch(
        13,
        "slice the whole",
        "ReshardNoCache",
        "the source is replicated",
        "nothing",
        "Slice",
    ),
)
"""Every branch, in the order in which they are asked; 11 and 12 exclude each other, and 13 is reached directly."""
