"""Colours that are told apart by all who see colours differently.

Up to eight contents have the colours of Okabe and Ito; more have a ramp from dark blue to yellow after cividis, whose
lightness only grows.
A colour never says something alone: numbers stand in or beside what is coloured.

>>> colour(0, 4), colour(1, 4), colour(0, 100), colour(99, 100)
('#e69f00', '#56b4e9', '#00224e', '#fee838')
>>> ink_on("#00224e"), ink_on("#fee838")
('#fff', '#000')
"""

from __future__ import annotations

DISTINCT = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#555555")
"""Okabe and Ito, Color Universal Design, 2008; a dark grey in place of black, for dark pages."""

RAMP = ((0, 34, 78), (66, 78, 108), (124, 123, 120), (187, 175, 113), (254, 232, 56))
"""Points of cividis: Nunez, Anderton and Renslow, PLOS ONE, 2018."""


def colour(number: int, count: int) -> str:
    """The colour of one of so many contents."""
    if count <= len(DISTINCT):
        return DISTINCT[number % len(DISTINCT)]
    place = number * (len(RAMP) - 1) / max(count - 1, 1)
    low = min(int(place), len(RAMP) - 2)
    pairs = zip(RAMP[low], RAMP[low + 1], strict=True)
    return "#" + "".join(f"{round(start + (stop - start) * (place - low)):02x}" for start, stop in pairs)


def ink_on(background: str) -> str:
    """Black or white, whichever is read better on a colour."""
    red, green, blue = (int(background[start : start + 2], 16) for start in (1, 3, 5))
    return "#000" if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else "#fff"
