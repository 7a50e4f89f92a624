"""How far the host was ahead when a unit's pass ended on the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.analysis.host_lead import host_leads_ns
from fsdpdoctor.analysis.rank_measures import measure_rank
from fsdpdoctor.analysis.timeline import Timeline, timelines
from fsdpdoctor.quantities import MS, US
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import NO_TIME, Flag, Kind, Lane, Phase, Spans
from fsdpdoctor.testing import Drawing, draw
from tests.importers.drawn_trace import AUTOGRAD
from tests.importers.kineto.drawn_step import fsdp2_step, imported

PASSES = draw(
    """
    forward   .000.11...
    backward  .......111
""",
    Drawing(device="cuda", clock="cuda", steps=1),
)
NAMES = ("pre_forward", "post_forward", "pre_backward", "post_backward")


def hooked(*hooks: tuple[str, int, int, int], data: RankData = PASSES) -> Timeline:
    """The passes, with hooks on the host: name, unit, start and end in ms."""
    step = data.steps[0]
    spans = Spans.build(
        len(hooks),
        kind=Kind.HOOK,
        lane=Lane.HOST,
        phase=[Phase.BACKWARD if "back" in h[0] else Phase.FORWARD for h in hooks],
        unit=[h[1] for h in hooks],
        start_ns=[step.start_ns + h[2] * MS for h in hooks],
        end_ns=[step.start_ns + h[3] * MS for h in hooks],
        name=[NAMES.index(h[0]) for h in hooks],
    )
    step = replace(step, spans=Spans.concat([step.spans, spans]))
    (line,) = timelines(replace(data, steps=(step,), names=NAMES))
    return line


def leads(line: Timeline) -> list[int]:
    """Of unit 0's forward, unit 1's forward, unit 1's backward."""
    found = host_leads_ns(line, line.of(Kind.FORWARD, Kind.BACKWARD))
    return [int(lead) for lead in found]


HOOKS = (
    ("pre_forward", 0, 0, 0),
    ("post_forward", 0, 1, 1),
    ("pre_forward", 1, 1, 2),
    ("post_forward", 1, 7, 7),
    ("pre_backward", 1, 7, 7),
    ("post_backward", 1, 8, 9),
)


def test_a_lead_is_from_the_hook_to_the_end_on_the_device() -> None:
    """Unit 0 ends at 4 and its hook began at 1; unit 1 ends as its hook begins."""
    assert leads(hooked(*HOOKS)) == [3 * MS, 0, 2 * MS]


def test_hooks_that_are_not_all_there_tell_nothing() -> None:
    """One post-forward of unit 0 too many: which is its is not guessed."""
    line = hooked(*HOOKS, ("post_forward", 0, 2, 2))

    assert leads(line) == [NO_TIME, 0, 2 * MS]


def test_a_pass_in_which_the_host_waited_tells_nothing() -> None:
    """It synchronised within unit 1's forward: of course the device had caught up."""
    line = hooked(*HOOKS)
    sync = Spans.build(
        1,
        kind=Kind.SYNC,
        lane=Lane.HOST,
        start_ns=line.start_ns + 3 * MS,
        end_ns=line.start_ns + 6 * MS,
    )
    step = replace(line.record, spans=Spans.concat([line.record.spans, sync]))
    (line,) = timelines(replace(line.data, steps=(step,)))

    assert leads(line) == [3 * MS, NO_TIME, 2 * MS]


@pytest.mark.parametrize("flag", [Flag.ABORTED, Flag.END_ESTIMATED])
def test_an_end_that_was_not_seen_tells_nothing(flag: Flag) -> None:
    """An exception, or the root's forward, ended it."""
    line = hooked(*HOOKS)
    calls = line.of(Kind.FORWARD, Kind.BACKWARD)
    marked = replace(calls, flags=np.full(len(calls), flag, dtype=np.int16))

    assert host_leads_ns(line, marked).tolist() == [NO_TIME] * 3


def test_on_the_host_s_clock_there_is_no_lead() -> None:
    """Host and device are one."""
    on_host = replace(PASSES, header=replace(PASSES.header, clock="host"))

    assert leads(hooked(*HOOKS, data=on_host)) == [NO_TIME] * 3


@pytest.mark.parametrize(("launched", "held"), [(172, 1), (235, 0)])
def test_a_traces_kernel_that_is_held_up(
    launched: float, held: int, tmp_path: Path
) -> None:
    """The root's second kernel in backward begins as the gather of layers.0 ends, 24.5
    us after its first one: launched before that, nothing else explains it.
    """
    trace = fsdp2_step()
    trace.device("head_weights", 254.5, 255, launched=launched, tid=AUTOGRAD)
    rank = measure_rank(imported(trace, tmp_path))
    gaps = rank.held_up

    assert len(gaps) == held
    for unit, by, ns in zip(gaps.unit, gaps.by_unit, gaps.duration_ns, strict=True):
        assert (rank.unit_name(unit), rank.unit_name(by)) == ("<root>", "layers.0")
        assert ns == 24.5 * US
