"""The verdict's box: what the report's verdict says, and nothing else."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.finding import Advice
from fsdpdoctor.quantities import MS
from fsdpdoctor.renderers.report_view import content_of
from fsdpdoctor.report.value import BestChange, FindingRow, MostToGain, Verdict
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.verdict_box import verdict_box
from tests.dashboard.pages.test_findings import row
from tests.rig.changed import replace

BEST = BestChange(
    text="prefetch two ahead",
    code="model.x()",
    apply={"forward_prefetch": 2},
    predicted_gain_ns=20 * MS,
    gain_range_ns=(15 * MS, 25 * MS),
    memory_cost_bytes=3 << 20,
)
FIRST = MostToGain(code="FD402", text="feed it faster", up_to_ns=40 * MS)


def shown(
    library: Library, verdict: Verdict, findings: tuple[FindingRow, ...] = ()
) -> str:
    """The box of a run of 100 ms a step with this verdict."""
    run = library.wait("before")
    step = replace(run.report.step_time_ns, mean=100 * MS)
    report = replace(run.report, verdict=verdict, step_time_ns=step, findings=findings)
    run = replace(run, report=report)
    context = Context(base="/", theme="light", runs=(run,))
    return str(verdict_box(context, run, content_of(report)))


def test_the_best_change_can_be_taken(library: Library) -> None:
    """Its gain with the range, its memory, its code, and a command that tries it."""
    found = shown(
        library,
        Verdict(kind="exposed", text="It waits", best_change=BEST, floor_ns=60 * MS),
    )

    assert "It waits." in found
    assert "Best change: -20.0 ms per step (20.0 % of the step)" in found
    assert "predicted 15.0 ms to 25.0 ms; +3.00 MiB of memory per rank" in found
    assert "Copy code" in found
    assert "--forward-prefetch 2 --save plan.json" in found


def test_one_bar_has_now_then_and_the_floor(library: Library) -> None:
    """Its pieces are shares of the mean step: floor, what is left, what is gained."""
    found = shown(
        library,
        Verdict(kind="exposed", text="It waits", best_change=BEST, floor_ns=60 * MS),
    )

    pieces = re.findall(r"className='(\w+)', style=\{'width': '([\d.]+)%'\}", found)
    assert pieces == [("floor", "60.000"), ("left", "20.000"), ("gain", "20.000")]
    assert "now 100 ms, after the change 80.0 ms, it cannot go below 60.0 ms" in found


def test_what_has_most_to_gain_is_told_before_the_best_change(library: Library) -> None:
    """It says that no simulation backs it."""
    verdict = Verdict(kind="input", text="It waits", floor_ns=60 * MS)
    both = shown(library, replace(verdict, most_to_gain=FIRST, best_change=BEST))

    assert both.index("up to 40.0 ms per step (40.0 % of the step)") < both.index(
        "Best change"
    )
    assert "explain?run=before&code=FD402" in both
    assert "; what it costs, not simulated" in both


def test_without_a_gain_there_is_a_first_thing_to_try(library: Library) -> None:
    """What the verdict is of goes before the first finding; what has nothing to change
    is nothing to try, and then there is no box.
    """
    first = Advice(text="Prefetch it.", code="a = 1\nb = 2")
    rows = (
        row("FD101", 3, advice=(first,)),
        row("FD408", 0, advice=(Advice(text="Look at dmesg."),)),
    )
    ended = Verdict(kind="ended", text="It ended", code="FD408", floor_ns=60 * MS)
    waits = replace(ended, code="FD101")

    found = shown(library, ended, rows)
    assert "First to try" in found
    assert "Look at dmesg." in found
    assert "Copy code" not in found
    found = shown(library, waits, rows)
    assert "Prefetch it." in found
    assert "2 lines" in found
    none = Advice(text="Nothing to change: it is so.")
    assert "todo" not in shown(library, waits, (row("FD101", 3, advice=(none,)),))
    assert "todo" not in shown(library, waits, ())


def test_other_changes_are_a_click_away(library: Library) -> None:
    """With the knobs of What-if as the best change has them."""
    verdict = Verdict(kind="exposed", text="It waits", best_change=BEST)

    assert "whatif?run=before&plan=%7B%22forward_prefetch%22%3A2%7D" in shown(
        library, verdict
    )


def test_what_is_gravest_stands_alone(library: Library) -> None:
    """What costs most beside it comes below, as a sentence of its own."""
    verdict = Verdict(kind="ended", text="Rank 1 ended; beside that, it waits")
    found = shown(library, verdict)

    assert "H1('Rank 1 ended.')" in found
    assert "Beside that, it waits." in found
