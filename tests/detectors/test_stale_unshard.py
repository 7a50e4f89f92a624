"""FD303, stale-unshard."""

from __future__ import annotations

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.stale_unshard import stale_unshard
from fsdpdoctor.finding import Location, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence, Flag, Kind, Spans
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, without
from tests.rig.changed import replace

STALE = """
    forward  0011....
    stale    ....0000
"""


def test_gathered_and_freed_for_nothing() -> None:
    """layers.0 in every step; layers.1's list names it."""
    units = (unit("layers.0"), unit("layers.1", forward_prefetch=(0,)))

    finding = only(stale_unshard, measured(draw(STALE, units=units)))

    assert finding.severity == Severity.WARNING
    assert finding.units == ("layers.0",)
    assert finding.evidence["windows_per_step"] == {"layers.0": 1.0}
    assert finding.evidence["prefetched_by"] == {"layers.0": ["layers.1"]}
    assert 'listed = ["layers.1"]' in codes(finding)[0]
    assert finding.places[0] == Location(
        rank=0, step=3, start_ns=28 * MS, end_ns=32 * MS, unit="layers.0"
    )


DROPPED = """
    forward             0011................
    backward            ....11111111111111..
    dropped_all_gather  .....00.............
    backward_wait       .....00.............
"""


EVALUATED = f"eval_all_gather {'.' * 30}0"


def test_a_frozen_unit_gathered_in_backward_for_nothing() -> None:
    """2 of 20 ms for layers.0, which has no backward."""
    finding = only(stale_unshard, measured(draw(DROPPED)))

    assert (finding.units, finding.phase) == (("layers.0",), "backward")
    assert finding.cost_ns_per_step == 2 * MS
    assert finding.severity == Severity.WARNING
    assert finding.evidence["frozen"] is True


def test_the_gather_after_a_pass_without_gradients_is_small() -> None:
    """The unit trains: what is gathered is what ran before the step's forward."""
    picture = "\n".join(line + "." * 40 for line in DROPPED.strip().splitlines())
    drawn = picture.replace("111111..", "110000..")
    finding = only(stale_unshard, measured(draw(f"{drawn}\n{EVALUATED}")))

    assert finding.evidence["frozen"] is False
    assert finding.severity == Severity.INFO
    assert "pass without gradients" in finding.summary


def test_a_gather_for_a_backward_that_is_over_is_the_lists_fault() -> None:
    """No pass ran without gradients: prefetch lists name units in another order."""
    drawn = DROPPED.replace("111111..", "110000..")
    finding = only(stale_unshard, measured(draw(drawn)))

    assert finding.summary.endswith(
        "2.00 ms exposed: the backward of a unit prefetches what has no backward "
        "after it"
    )
    assert finding.advice[0].text.startswith("Backward prefetch lists name units in")


def test_the_gather_after_a_seldom_evaluation_is_named() -> None:
    """One of six steps begins with one, and that one ends with such a gather."""
    picture = "\n".join(line + "." * 40 for line in DROPPED.strip().splitlines())
    evaluated = draw(picture.replace("111111..", "110000..") + f"\n{EVALUATED}")
    plain = draw("forward 0011" + "." * 56 + "\nbackward ....110000")
    steps = (*plain.steps[:3], evaluated.steps[3], *plain.steps[4:])

    finding = only(stale_unshard, measured(replace(plain, steps=steps)))

    assert finding.evidence["gathers_per_step"] == {"layers.0": 0.1667}
    assert finding.severity == Severity.INFO
    assert finding.advice[0].text.startswith("One gather after such passes")


def test_whole_tensors_that_are_held_from_step_to_step() -> None:
    """6 of 8 MiB of parameters, at the end of every step; 0.5 MiB are no finding."""
    held = {
        "tensors.gathered: train.py:9 (full_tensor)": 6 << 20,
        "tensors.gathered: train.py:4 (full_tensor)": 1 << 19,
    }
    finding = only(stale_unshard, measured(draw("forward 0011", counters=held)))

    assert (finding.severity, finding.cost_bytes) == (Severity.WARNING, 6 << 20)
    assert finding.summary == (
        "6.00 MiB that were gathered at train.py:9 (full_tensor) stay alive from step "
        "to step: 75.0 % of what all parameters take"
    )


def test_a_used_window_is_no_finding() -> None:
    """The same window, with a use in it."""
    used = STALE.replace("stale", "unsharded")

    assert found(stale_unshard, measured(draw(used))) == []


def by_hand(picture: str) -> Measures:
    """A picture whose unshards are the user's own calls."""
    data = draw(picture)

    def called(spans: Spans) -> Spans:
        own = np.where(spans.kind == Kind.UNSHARDED, Flag.MANUAL, 0)
        return replace(spans, flags=(spans.flags | own).astype(spans.flags.dtype))

    steps = tuple(replace(step, spans=called(step.spans)) for step in data.steps)
    return measured(replace(data, steps=steps))


def test_unsharded_by_hand_to_be_read() -> None:
    """Between micro-batches a window needs no forward; under one it does."""
    between = """
        micro_batch  0000....
        forward      0011....
        stale        ....0000
    """
    under = between.replace("0000....", "00000000", 1)

    assert found(stale_unshard, by_hand(between)) == []
    assert only(stale_unshard, by_hand(under)).units == ("layers.0",)


def test_without_windows_it_cannot_tell() -> None:
    """Use shows only in windows; and a run needs a whole step."""
    evidence = without(RECORDED, Evidence.WINDOWS)

    m = measured(draw(STALE, evidence=evidence))
    assert not_judged(stale_unshard, m).needs == (Evidence.WINDOWS,)
    assert not_judged(stale_unshard, measured(draw(STALE, steps=0))).needs == (
        Evidence.STEPS,
    )
