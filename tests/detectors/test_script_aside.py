"""FD902, where every N-th step is so long that it is set aside."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.script_time import ADVICE, script_time
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Activity, Evidence
from fsdpdoctor.testing import RECORDED, Drawing, Sample, draw, measured
from tests.detectors.answers import found, only
from tests.rig.changed import replace

WIDTH = 100
LONG = "forward " + "0" * 10 + "." * (WIDTH - 10)


def one_rank(long: tuple[int, ...], what: Activity, rank: int = 0) -> RankData:
    """Ten steps of 10 ms of compute; the long ones have 90 ms of one line more."""
    sample = Sample(at=50, activity=what, site="train.py:8")
    drawn = Drawing(evidence=(*RECORDED, Evidence.STACKS), samples=(sample,))
    data = draw(LONG, drawn, steps=10, rank=rank)
    none = draw(LONG, drawn, steps=10, samples=())
    steps = []
    for step, short in zip(data.steps, none.steps, strict=True):
        end_ns = short.start_ns + 10 * MS
        cut = replace(short, end_ns=end_ns, host_end_ns=end_ns)
        steps.append(step if step.step in long else cut)
    return replace(data, steps=tuple(steps))


def of(*long: int, what: Activity = Activity.USER) -> Measures:
    """A run of two ranks, of which only the first has long steps."""
    return measured(one_rank(long, what), one_rank((), what, rank=1))


def test_every_fourth_step_writes_histograms() -> None:
    """Two of 100 ms, 90 of them in a line, beside eight of 10 ms: 180 of 280 ms."""
    finding = only(script_time, of(5, 9))

    assert (finding.severity, finding.ranks) == (Severity.WARNING, (0,))
    assert finding.cost_ns_per_step is None
    assert finding.summary == (
        "2 long steps (5, 9), which no mean counts, spend 90.0 ms each in the script's "
        "own lines on rank 0, 64.3 % of the recorded time after warm-up, most of it at "
        "train.py:8"
    )
    assert finding.evidence == {
        "share_of_recorded_time": 0.6429,
        "steps": [5, 9],
        "lines": [{"where": "train.py:8", "activity": "user", "ns": 180 * MS}],
    }
    (advice,) = finding.advice
    assert advice.text == ADVICE[Activity.USER].format(line="train.py:8")


def test_one_long_step_is_no_habit() -> None:
    """A busy machine may have been the reason."""
    assert found(script_time, of(5)) == []


def test_what_saves_is_told_elsewhere() -> None:
    """FD405 has it."""
    assert found(script_time, of(5, 9, what=Activity.CHECKPOINT)) == []
