"""Einsum-like patterns: which dims of an operation's operands and of its result run over the same index.

    ij,jk->ik             a label per letter, as NumPy's einsum has them
    (a b) c -> a (b c)    labels with blanks between them, as einops has them; a group is one dim, major to minor
    i 1 -> i              a dim of size 1 without a label
    (m a) b -> c ; m      m is joined: the operation brings together itself what its devices hold along it

One pattern says what a contraction, an elementwise operation, a transpose, a reduction, a broadcast or a reshape
does to indices; what it does to values is the same everywhere: operands are multiplied, and labels that the result
lacks are summed.
A pattern in which blanks or brackets stand inside a term has words for labels, any other has letters.

By hand, `(a b) c -> a (b c)` on shape (6, 5) with a = 2: the group of size 6 leaves b = 3, and the result is (2, 15).

>>> pattern = Pattern.of("(a b) c -> a (b c)")
>>> pattern.operands
((('a', 'b'), ('c',)),)
>>> sizes = pattern.solve_sizes([(6, 5)], {"a": 2})
>>> sizes, pattern.output_shape(sizes)
({'a': 2, 'b': 3, 'c': 5}, (2, 15))
>>> matmul = Pattern.of("ij,jk->ik")
>>> {label: matmul.role(label) for label in matmul.labels}
{'i': 'free', 'j': 'contracted', 'k': 'free'}
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from reshard.checks import LIMIT, checked_shape, expect, integer, listed, shown
from reshard.errors import ReshardError

Shape = tuple[int, ...]
Group = tuple[str, ...]
"""The labels of one dim, major to minor; none for a dim of size 1."""
Term = tuple[Group, ...]
"""The dims of one tensor."""

ROLES = ("batch", "free", "contracted", "summed", "broadcast", "joined")
"""What a label may be: in the result and several operands, or one; in several operands only, or one; in the result
only; in operands only, with a result that is the same on all devices that have parts of it."""
SUMMED = ("contracted", "summed")
"""Roles of labels along which devices that have parts of them make results that are to be combined."""

_LETTERS = re.compile(r"[A-Za-z1]*")
_WORD_DIM = re.compile(r"\s*(?:\(([^()]*)\)|([^\s()]+))")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Pattern:
    """Per operand and for the result, the labels of every dim.

    Rules, in the order checked; each is refused as `syntax`:
        there is an operand at least
        a label is a word of letters, digits and underscores that no digit begins
        a label stands once in the result
        a label that stands twice in an operand is each time a dim by itself
        a label that is joined stands in an operand, and not in the result
    """

    operands: tuple[Term, ...]
    output: Term
    joined: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.operands:
            raise ReshardError("syntax", "a pattern must have an operand at least")
        for label in (label for term in self.terms for group in term for label in group):
            if not _WORD.fullmatch(expect(label, str, "a label of a pattern", "syntax")):
                raise ReshardError("syntax", f"a label must be letters, digits and underscores, got: {shown(label)}")
        for label, count in Counter(_flat(self.output)).items():
            if count > 1:
                raise ReshardError("syntax", f"label {label} stands twice in the result of {self}")
        for term in self.operands:
            for label, count in Counter(_flat(term)).items():
                if count > 1 and any(label in group and len(group) > 1 for group in term):
                    raise ReshardError("syntax", f"label {label} stands twice in one operand of {self}, in a group")
        for label in self.joined:
            if label not in self.labels or label in _flat(self.output):
                raise ReshardError(
                    "syntax", f"label {shown(label)} is joined, so it must be in operands of {self} only"
                )

    @cached_property
    def _hash(self) -> int:
        return hash((self.operands, self.output, self.joined))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, text: str | Pattern) -> Pattern:
        """A pattern from its text.

        Raises:
            ReshardError: `syntax` where the text is no pattern.

        >>> str(Pattern.of("ij , jk -> ik")), str(Pattern.of("batch seq, seq -> batch"))
        ('ij,jk->ik', 'batch seq, seq -> batch')
        """
        if isinstance(text, Pattern):
            return text
        return _parsed(expect(text, str, "a pattern", "syntax"))

    @classmethod
    def of_operands(cls, text: str | Pattern, ranks: Sequence[int]) -> Pattern:
        """A pattern for operands of so many dims, in single letters also with `...` for dims and without a result.

        As in NumPy: what `...` stands for is counted from the right, and where no result is given it has these dims,
        then in the order of the alphabet what stands once.
        A dim of size 1 is not stretched.

        Raises:
            ReshardError: `syntax` where the text is no pattern, `rank-mismatch` where an operand has too few dims.

        >>> str(Pattern.of_operands("...ij,jk", [4, 2])), str(Pattern.of_operands("ba", [2]))
        ('ABij,jk->ABik', 'ba->ab')
        """
        if not isinstance(text, str) or ("..." not in text and "->" in text) or re.search(r"\w\s+\w|[()]", text):
            return cls.of(text)  # without `->` words are refused
        return cls.of(_spelled_out(text.replace(" ", ""), tuple(ranks)))

    @property
    def terms(self) -> tuple[Term, ...]:
        """The operands, and last the result."""
        return (*self.operands, self.output)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Every label, in the order in which they first stand."""
        return tuple(dict.fromkeys(label for labels in self.term_labels for label in labels))

    @cached_property
    def term_labels(self) -> tuple[tuple[str, ...], ...]:
        """The labels of every term, one after the other."""
        return tuple(tuple(_flat(term)) for term in self.terms)

    @cached_property
    def ungrouped(self) -> Pattern:
        """The same with a dim per label, and no dim of the result along which it only repeats itself.

        >>> str(Pattern.of("(a b) c -> c 1 n a").ungrouped)
        'abc->ca'
        """
        *operands, output = (tuple((label,) for label in labels) for labels in self.term_labels)
        return Pattern(tuple(operands), tuple(group for group in output if self.role(group[0]) != "broadcast"))

    @cached_property
    def _holders(self) -> dict[str, tuple[int, ...]]:
        terms = self.term_labels
        return {label: tuple(n for n, labels in enumerate(terms) if label in labels) for label in self.labels}

    def holders(self, label: str) -> tuple[int, ...]:
        """The numbers of the terms in which a label stands; the result's is the number of operands."""
        return self._holders[label]

    def role(self, label: str) -> str:
        """What a label is: one of `ROLES`."""
        operands = [number for number in self.holders(label) if number < len(self.operands)]
        if len(self.operands) in self.holders(label):
            return "broadcast" if not operands else "free" if len(operands) == 1 else "batch"
        if label in self.joined:
            return "joined"
        return "summed" if len(operands) == 1 else "contracted"

    @cached_property
    def reduced(self) -> frozenset[str]:
        """Labels over which the elements of the result are sums, or what else combines them."""
        return frozenset([label for label in self.labels if self.role(label) in SUMMED])

    @cached_property
    def repeated(self) -> frozenset[str]:
        """Labels that stand twice in one operand: of these it is the diagonal."""
        return frozenset(label for term in self.operands for label, count in Counter(_flat(term)).items() if count > 1)

    @property
    def is_rearrangement(self) -> bool:
        """Whether the result has exactly the elements of its one operand: a transpose, a reshape, or as it was."""
        return len(self.operands) == 1 and not self.repeated and set(_flat(self.operands[0])) == set(_flat(self.output))

    def places(self, label: str) -> Iterator[tuple[int, int, int]]:
        """Where a label stands: (term, dim, place in the group)."""
        for number, term in enumerate(self.terms):
            for dim, group in enumerate(term):
                yield from ((number, dim, place) for place, member in enumerate(group) if member == label)

    def check_count(self, count: int, what: str = "") -> None:
        """Refuse so many tensors, or so much that is said of them, where it is not one per operand.

        Raises:
            ReshardError: `bad-argument`.
        """
        if count != len(self.operands):
            raise ReshardError("bad-argument", f"{self} has {len(self.operands)} operands, got {count}{what}")

    def solve_sizes(
        self,
        shapes: Sequence[Sequence[int]],
        known: Mapping[str, int] | None = None,
        shifted: Collection[str] = (),
    ) -> dict[str, int]:
        """The size of every label.

        Args:
            shapes: of the operands, and of the result too where that is known.
            known: the sizes of labels that the shapes do not determine.
            shifted: labels that have a size of their own in every tensor; the largest counts.

        Raises:
            ReshardError: `rank-mismatch` where a shape has not as many dims as its term; `bad-shape` where sizes
                contradict one another, do not divide or are not determined; `bad-argument`, `too-large`.
        """
        if known is not None and not isinstance(known, Mapping):
            raise ReshardError("bad-argument", f"sizes must be a mapping from label to size, got: {shown(known)}")
        checked = [checked_shape(shape) for shape in listed(shapes, "the shapes of the operands")]
        if len(checked) not in (len(self.operands), len(self.terms)):
            raise ReshardError(
                "bad-argument", f"{len(checked)} shapes are given for the {len(self.operands)} operands of {self}"
            )
        sizes = {
            label: integer(size, f"the size of label {label}", "bad-shape") for label, size in (known or {}).items()
        }
        for label, size in sizes.items():
            if label not in self.labels:
                raise ReshardError("bad-argument", f"label {shown(label)} is not in {self}")
            if not 0 <= size < LIMIT:
                raise ReshardError("bad-shape", f"label {label} of {self} has size {size}; it must be at least 0")
        dims: list[tuple[int, int, Group, int]] = []
        for number, (term, shape) in enumerate(zip(self.terms, checked, strict=False)):
            if len(term) != len(shape):
                raise ReshardError(
                    "rank-mismatch",
                    f"{self._name(number)} of {self} has {len(term)} dims, its shape {shape} has {len(shape)}",
                )
            for dim, (group, size) in enumerate(zip(term, shape, strict=True)):
                if len(group) == 1 and group[0] in shifted:
                    sizes[group[0]] = max(sizes.get(group[0], 0), size)
                else:
                    dims.append((number, dim, group, size))
        while dims:
            unsettled = [entry for entry in dims if not self._settled(entry, sizes)]
            if len(unsettled) == len(dims):
                number, dim, group, size = dims[0]
                unknown = " and ".join(label for label in group if label not in sizes)
                raise ReshardError(
                    "bad-shape",
                    f"dim {dim} of {self._name(number)} of {self} has size {size}, which leaves {unknown} open; "
                    "give the size of a label",
                )
            dims = unsettled
        for label in self.labels:
            if label not in sizes:
                raise ReshardError(
                    "bad-shape", f"label {label} of {self} stands in no operand, so that its size must be given"
                )
        return {label: sizes[label] for label in self.labels}

    def _settled(self, entry: tuple[int, int, Group, int], sizes: dict[str, int]) -> bool:
        """Whether all labels of a dim are known, now that its last unknown one is worked out."""
        number, dim, group, size = entry
        unknown = [label for label in group if label not in sizes]
        rest = prod(sizes[label] for label in group if label in sizes)
        if len(unknown) > 1 or (unknown and rest == 0):
            return False
        if unknown and size % rest == 0:
            sizes[unknown[0]] = size // rest
            return True
        if rest == size:
            return True
        where = f"dim {dim} of {self._name(number)} of {self} has size {size}"
        if unknown:
            raise ReshardError("bad-shape", f"{where}, which {rest} does not divide")
        if not group:
            raise ReshardError("bad-shape", f"{where}; without a label it must have size 1")
        text = f"label {group[0]}" if len(group) == 1 else " * ".join(group)
        raise ReshardError("bad-shape", f"{where}, but {text} is {rest}")

    def _name(self, number: int) -> str:
        return f"operand {number}" if number < len(self.operands) else "the result"

    def shape_of(self, term: Term, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a tensor of these dims."""
        return tuple(prod(sizes[label] for label in group) for group in term)

    def output_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of the result."""
        return self.shape_of(self.output, sizes)

    def __str__(self) -> str:
        groups = [group for term in self.terms for group in term]
        joined = f" ; {' '.join(self.joined)}" if self.joined else ""
        letters = all(len(label) == 1 and label.isalpha() for label in self.labels)
        if letters and not joined and all(len(group) < 2 for group in groups):
            terms = ["".join(group[0] if group else "1" for group in term) for term in self.terms]
            return f"{','.join(terms[:-1])}->{terms[-1]}"
        texts = [" ".join(map(_dim_text, term)) for term in self.terms]
        if not any(" " in text or "(" in text for text in texts):  # words, each alone in its term
            texts = [f"({text})" if text and text != "1" else text for text in texts]
        return f"{', '.join(texts[:-1])} -> {texts[-1]}{joined}"


def _flat(term: Term) -> list[Any]:
    return [label for group in term for label in group]


def _dim_text(group: Group) -> str:
    return "1" if not group else group[0] if len(group) == 1 else f"({' '.join(group)})"


@lru_cache(1024)
def _spelled_out(text: str, ranks: tuple[int, ...]) -> str:
    """A pattern of letters with a letter for each dim that `...` stands for, and with its result."""
    before, arrow, after = text.partition("->")
    terms = before.split(",")
    free = [letter for letter in string.ascii_uppercase + string.ascii_lowercase if letter not in text]
    counts = [0]
    for number, (term, rank) in enumerate(zip(terms, ranks, strict=False)):
        if term.count("...") > 1:
            raise ReshardError("syntax", f"... stands twice in one operand of {shown(text)}")
        if "..." in term:
            counts.append(rank - len(term) + 3)
            if counts[-1] < 0:
                raise ReshardError(
                    "rank-mismatch", f"operand {number} of {shown(text)} has {rank} dims; {shown(term)} names more"
                )
    if max(counts) > len(free):
        raise ReshardError("syntax", f"{shown(text)} needs more letters than there are")
    dims = "".join(free[: max(counts)])
    spelled = []
    for term, rank in zip(terms, [*ranks, *[0] * len(terms)], strict=False):
        count = rank - len(term) + 3 if "..." in term else 0
        spelled.append(term.replace("...", dims[len(dims) - count :]))
    letters = Counter(letter for term in terms for letter in term if letter not in ".1")
    once = "".join(sorted(letter for letter, count in letters.items() if count == 1))
    return f"{','.join(spelled)}->{after.replace('...', dims) if arrow else dims + once}"


@lru_cache(1024)
def _parsed(text: str) -> Pattern:
    before, arrow, after = text.partition("->")
    if not arrow or "->" in after:
        raise ReshardError("syntax", f"a pattern must have one ->, as in ij,jk->ik, got: {shown(text)}")
    after, _, joined = after.partition(";")
    if "," in after:
        raise ReshardError("syntax", f"a pattern must have one result, got: {shown(text)}")
    terms = [term.strip() for term in [*before.split(","), after]]
    in_words = bool(joined) or any(re.search(r"[\s()]", term) for term in terms)
    *operands, output = [_words(term, text) if in_words else _letters(term, text) for term in terms]
    return Pattern(tuple(operands), output, tuple(joined.split()))


def _letters(term: str, text: str) -> Term:
    if not _LETTERS.fullmatch(term):
        wrong = next(character for character in term if not _LETTERS.fullmatch(character))
        raise ReshardError("syntax", f"a label must be a letter, got {shown(wrong)} in {shown(text)}")
    return tuple(() if letter == "1" else (letter,) for letter in term)


def _words(term: str, text: str) -> Term:
    dims: list[Group] = []
    place = 0
    while place < len(term):
        dim = _WORD_DIM.match(term, place)
        if dim is None:
            raise ReshardError("syntax", f"brackets must be closed and hold no others, in {shown(text)}")
        labels = [word for word in (dim[2] if dim[1] is None else dim[1]).split() if word != "1"]
        for label in labels:
            if not _WORD.fullmatch(label):
                raise ReshardError(
                    "syntax", f"a label must be letters, digits and underscores, got {shown(label)} in {shown(text)}"
                )
        dims.append(tuple(labels))
        place = dim.end()
    return tuple(dims)
