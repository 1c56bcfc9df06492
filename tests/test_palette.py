"""Are the colours told apart by all who see colours differently? By distances that are computed."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from reshard.drawing.palette import DISTINCT, colour

# Machado, Oliveira and Fernandes, A Physiologically-based Model for Simulation of Color Vision Deficiency, 2009:
# what is seen of linear red, green and blue where one kind of cone is absent.
SEEN = {
    "all cones": np.eye(3),
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no middle": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.119192, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(text: str, kind: str) -> np.ndarray:
    """A colour as someone of this kind sees it: lightness, and two differences, of which 2.3 is just noticed."""
    parts = np.array([int(text[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    ratios = TO_XYZ @ np.clip(np.array(SEEN[kind]) @ linear, 0, 1) / WHITE
    x, y, z = np.where(ratios > 216 / 24389, np.cbrt(ratios), (24389 / 27 * ratios + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", SEEN)
def test_few_contents_have_colours_far_apart(kind: str) -> None:
    near = min(np.linalg.norm(lab(first, kind) - lab(second, kind)) for first, second in combinations(DISTINCT, 2))
    assert near > 15


@pytest.mark.parametrize("kind", SEEN)
def test_many_contents_grow_lighter_and_lighter(kind: str) -> None:
    lightness = [lab(colour(number, 32), kind)[0] for number in range(32)]
    assert min(later - earlier for earlier, later in pairwise(lightness)) > 1


def test_two_colours_that_are_one_to_some_are_too_near() -> None:
    red, green = "#b26500", "#7a7a00"
    assert np.linalg.norm(lab(red, "all cones") - lab(green, "all cones")) > 2 * np.linalg.norm(
        lab(red, "no middle") - lab(green, "no middle")
    )
