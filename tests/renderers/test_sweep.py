"""A sweep's table, JSON and page."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

from rich.console import Console

from fsdpdoctor.renderers.sweep import Sweep, encode_sweep, show_sweep
from fsdpdoctor.renderers.sweep_page import sweep_page
from tests.planning.test_sweep import outcome

OUTCOMES = (
    outcome(50, 20, choice={"world": "8", "wrap": "2"}, command=("fsdpdoctor", "b")),
    outcome(
        100, 60, choice={"world": "8", "wrap": "as-is"}, command=("fsdpdoctor", "a")
    ),
    outcome(
        0,
        0,
        choice={"world": "8", "wrap": "<b>"},
        fits=False,
        reason="needs 90.0 of 78.1 GiB, in layers.0, forward",
        needed_bytes=90 << 30,
        room_bytes=round(78.1 * 2**30),
    ),
    outcome(0, 0, choice={"world": "8", "wrap": "9"}, fits=None, reason="timed out"),
)
SWEEP = Sweep(
    script="train.py",
    device="H100",
    outcomes=OUTCOMES,
    price_per_hour=3.6,
    handles={"micro-batch": "--bs"},
)


def shown(sweep: Sweep) -> list[str]:
    """Lines of a wide terminal."""
    out = io.StringIO()
    show_sweep(sweep, Console(file=out, width=120, highlight=False, markup=False))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_table_has_the_fastest_first_and_what_does_not_fit_below() -> None:
    """With its reason; the front is marked, prices are of a million tokens."""
    rows = [line.split() for line in shown(SWEEP)[2:6]]
    assert rows == [
        ["*", "8", "as-is", "100", "1,000", "ms", "60.0", "10.000"],
        ["*", "8", "2", "50", "1,000", "ms", "20.0", "20.000"],
        ["8", "<b>", "needs", "90.0", "of", "78.1", "GiB"],
        ["8", "9", "timed", "out"],
    ]


def test_what_was_varied_and_the_best_are_said_below() -> None:
    """A command for each that can be used."""
    assert shown(SWEEP)[6:] == [
        "* nothing faster takes as little memory; tokens/s are of one device",
        "price: of a million tokens, where a device's hour costs 3.6",
        "the script's own settings were varied: micro-batch by --bs",
        "2 configurations of them cannot be used",
        "",
        "the best, as a command each:",
        "  fsdpdoctor a",
        "  fsdpdoctor b",
    ]


def test_json_says_the_same() -> None:
    """In the table's order; nothing of a speed that no job would have."""
    said = json.loads(encode_sweep(SWEEP))
    each = said["configurations"]
    assert [one["tokens_per_second"] for one in each] == [100.0, 50.0, None, None]
    assert [one["price_per_million"] for one in each] == [10.0, 20.0, None, None]
    assert [one["fits"] for one in each] == [True, True, False, None]
    assert [one["on_front"] for one in each] == [True, True, False, False]
    assert each[2]["reason"] == "needs 90.0 of 78.1 GiB, in layers.0, forward"
    assert each[2]["step_ns"] is None
    assert said["best"] == [0, 1]


def test_the_page_draws_what_can_be_used() -> None:
    """A point for each, numbers at the best, the device's memory, what does not fit
    with its reason, and no markup of the script's.
    """
    large = outcome(
        200,
        0,
        choice={"world": "8", "wrap": "4"},
        fits=False,
        reason="needs 90 <GiB>",
        needed_bytes=90 << 30,
        room_bytes=78 << 30,
    )
    page = sweep_page(replace(SWEEP, outcomes=(*OUTCOMES, large)))
    assert re.findall('<circle class="([a-z]*)"', page) == ["out", "best", "best"]
    assert "<title>world 8, wrap 4: needs 90 &lt;GiB&gt;</title>" in page
    assert "the device has 78.0 GiB" in page
    assert "<b>" not in page
    assert page.count('<tr class="out">') == 3
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    (line,) = re.findall(r'<polyline class="front" points="([^"]*)"', page)
    xs = [float(point.split(",")[0]) for point in line.split()]
    assert xs == sorted(xs)
    assert len(xs) == 2


def test_a_page_of_nothing_says_so() -> None:
    """Where no configuration could be rehearsed."""
    page = sweep_page(
        Sweep(
            script="t.py",
            device="d",
            outcomes=OUTCOMES[3:],
            price_per_hour=None,
            handles={},
        )
    )
    assert "No configuration has a speed" in page
    assert "<svg" not in page


def test_a_model_that_is_given_no_tokens_has_samples() -> None:
    """In the table's heading, in the price and in JSON."""
    images = outcome(0, 20, tokens=None, samples=50, command=("a",))
    sweep = replace(SWEEP, outcomes=(images,))
    assert shown(sweep)[1].split() == ["world", "samples/s", "step", "GiB", "price"]
    assert shown(sweep)[2].split()[2] == "50"
    assert "price: of a million samples" in shown(sweep)[4]
    (said,) = json.loads(encode_sweep(sweep))["configurations"]
    assert (said["tokens_per_second"], said["samples_per_second"]) == (None, 50.0)
    assert "Samples per second of a device" in sweep_page(sweep)
