"""The palette: to every kind of eye, what has to be told apart is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from fsdpdoctor.analysis import step_budget
from fsdpdoctor.renderers.palette import EXPOSED, PARTS, series_colours

Matrix = npt.NDArray[np.float64]

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
DEFICIENCIES: dict[str, Matrix] = {
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
NOTICEABLE = 10.0
"""CIE76 distance; about 2.3 is the least that a trained eye sees side by side, and
neighbouring bars of a chart are commonly kept five times further apart."""


def lab(colour: str, seen_by: Matrix | None) -> npt.NDArray[np.float64]:
    """A colour in CIE L*a*b*, as an eye with a deficiency sees it."""
    given = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(given <= 0.04045, given / 12.92, ((given + 0.055) / 1.055) ** 2.4)
    if seen_by is not None:
        linear = np.clip(seen_by @ linear, 0, 1)
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    xyz = (to_xyz @ linear) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    result: npt.NDArray[np.float64] = np.array(
        [116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]
    )
    return result


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eye", [None, *DEFICIENCIES])
def test_exposed_looks_like_nothing_else(theme: str, eye: str | None) -> None:
    """To every kind of eye its colour keeps its distance from all others."""
    colours = series_colours(theme)
    seen_by = DEFICIENCIES.get(eye) if eye else None
    exposed = lab(colours.pop("exposed"), seen_by)
    distances = {
        name: float(np.linalg.norm(lab(colour, seen_by) - exposed))
        for name, colour in colours.items()
    }

    too_close = {n: round(d, 1) for n, d in distances.items() if d < NOTICEABLE}
    assert too_close == {}


@pytest.mark.parametrize("eye", [None, *DEFICIENCIES])
def test_each_part_of_a_budget_has_a_colour(eye: str | None) -> None:
    """No part is left without one, and none looks like exposed time."""
    exposed_kinds = {f"exposed_{k}" for k in ("all_gather", "reduce_scatter")}
    assert set(step_budget.PARTS) - set(PARTS) == exposed_kinds | {"exposed_all_reduce"}
    seen_by = DEFICIENCIES.get(eye) if eye else None
    exposed = lab(EXPOSED, seen_by)
    distances = {
        part: float(np.linalg.norm(lab(colour, seen_by) - exposed))
        for part, colour in PARTS.items()
    }

    assert {n: d for n, d in distances.items() if d < NOTICEABLE} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eye", [None, *DEFICIENCIES])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("forward", "backward"),
        ("backward", "optimizer"),
        ("all_gather", "all_gather_wait"),
        ("reduce_scatter", "reduce_scatter_wait"),
        ("copy_in", "memcpy"),
        ("issue", "hook"),
        ("hook", "sync"),
    ],
)
def test_colours_of_one_row_are_told_apart(
    one: str, other: str, theme: str, eye: str | None
) -> None:
    """Series that stand beside each other in one row differ to every eye."""
    colours = series_colours(theme)
    seen_by = DEFICIENCIES.get(eye) if eye else None
    distance = np.linalg.norm(lab(colours[one], seen_by) - lab(colours[other], seen_by))

    assert float(distance) >= NOTICEABLE
