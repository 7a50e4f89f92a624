"""The timeline's words are those of Python."""

from __future__ import annotations

import numpy as np

from fsdpdoctor.quantities import duration, percent, size
from tests.dashboard.node import needs_node, required, run_js


def formatted(expression: str) -> object:
    """What `w`, the timeline's words, makes of something."""
    return run_js(
        f"const w = {required('format.js')};console.log(JSON.stringify({expression}))"
    )


@needs_node
def test_numbers_read_the_same_in_both_languages() -> None:
    """Durations, bytes and shares, over their whole range."""
    rng = np.random.default_rng(1)
    ns = [0, 1, 999, 1000, 119_999_999_999, 120_000_000_000]
    ns += np.exp(rng.uniform(0, np.log(3e13), 400)).astype(int).tolist()
    shares = rng.uniform(0, 1, 50).tolist()
    found = formatted(
        f"[{ns}.map(w.duration), {ns}.map(w.bytes), {shares}.map(w.percent)]"
    )

    assert found == [
        [duration(n) for n in ns],
        [size(n) for n in ns],
        [percent(share) for share in shares],
    ]


@needs_node
def test_neighbouring_ticks_are_told_apart() -> None:
    """A moment has as many digits as the distance of ticks needs."""
    found = formatted(
        "[w.moment(6050e6, 50e6), w.moment(1519900, 400), "
        "w.moment(2e9, 1e9), w.moment(1250e6, 250e6)]"
    )

    assert found == ["6050 ms", "1519.9 us", "2 s", "1.3 s"] or found == [
        "6050 ms",
        "1519.9 us",
        "2 s",
        "1.2 s",
    ]
