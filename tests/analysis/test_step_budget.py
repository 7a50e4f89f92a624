"""Each stretch of a step is given to one part, by what is known of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fsdpdoctor.analysis.step_budget import divide
from fsdpdoctor.analysis.timeline import timeline_of
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import NO_TIME, Activity, Evidence
from fsdpdoctor.testing import RECORDED, TRACED, Call, Sample, draw

INPUT_AMID_FORWARD = """
    forward  00000.....
    input    ..000000..
"""

OTHERS = """
    forward     00........
    other       .00000....
    other_wait  ......00..
"""


def parts(picture: str, **changes: Any) -> dict[str, int]:
    """What each part of a step was given, in ms, where that is anything."""
    data = draw(picture, steps=1, **changes)
    (step,) = data.steps
    found = divide(timeline_of(data, step)).ns
    assert sum(found.values()) == step.duration_ns
    return {part: ns // MS for part, ns in found.items() if ns}


@pytest.mark.parametrize(
    ("clock", "kernels", "forward", "paused"),
    [
        ("host", False, 2, 6),  # the same thread: it paused amid its forward
        ("cuda", False, 5, 3),  # the device worked on
        ("host", True, 0, 6),  # kernels say what was computed, and there are none
    ],
)
def test_a_pause_of_the_host_is_the_step_s_where_nothing_runs_beside_it(
    clock: str, kernels: bool, forward: int, paused: int
) -> None:
    """A loader's 6 ms, 3 of them amid a forward of 5."""
    evidence = (*RECORDED, Evidence.KERNELS) if kernels else RECORDED
    found = parts(INPUT_AMID_FORWARD, clock=clock, evidence=evidence)

    assert found.get("forward", 0) == forward
    assert found["input"] == paused


ONE = (Call(kind="all_reduce", site="train.py:4"),)


@pytest.mark.parametrize(
    ("picture", "exposed"),
    [(OTHERS, 2), (OTHERS.replace("other_wait  ......00..", ""), 4)],
)
def test_others_are_exposed_where_they_were_waited_for(
    picture: str, exposed: int
) -> None:
    """Where no wait was seen, wherever nothing was computed beside them."""
    found = parts(picture, clock="cuda", calls=ONE)

    assert found["exposed_other_communication"] == exposed


def test_on_the_host_nothing_is_waited_for_that_was_not_seen_to_be() -> None:
    """It may run in a thread beside the script."""
    found = parts(OTHERS.replace("other_wait  ......00..", ""), calls=ONE)

    assert "exposed_other_communication" not in found


def test_the_script_s_lines_are_taken_from_what_is_not_explained() -> None:
    """6 ms without a span, of which samples name those around them."""
    samples = tuple(
        Sample(at=at, activity=Activity.USER, site="train.py:7") for at in (4.5, 5.5)
    )
    assert parts("forward  0000......") == {"forward": 4, "other": 6}
    named = parts("forward  0000......", samples=samples)
    assert named == {"forward": 4, "script": 6}


@pytest.mark.parametrize(("clock", "copy"), [("host", 5), ("cuda", 3)])
def test_a_copy_in_is_the_step_s_where_it_has_no_stream(clock: str, copy: int) -> None:
    """2 ms before the gather, 3 ms after it; on a device the first has a stream."""
    picture = """
        copy_in   00........
        copy_out  ....000...
        forward   .......000
    """
    assert parts(picture, clock=clock)["copy"] == copy


@pytest.mark.parametrize(
    ("optimizer", "passes", "stepped", "computed"),
    [
        ("xxxxxxxxxx", "..000.....", 7, 3),  # a closure's
        ("xxxxx.....", "000.......", 2, 3),  # it begins with the step
        ("xxxxx.....", "..000.....", 2, 3),  # it ends with it
        ("xx..xxxx..", ".....00...", 4, 2),  # in the second of two
        ("...xxx....", "00........", 3, 2),  # before it
        (".xxx......", "..0000....", 3, 2),  # not inside
        ("..xx......", "0000000...", 2, 5),  # the step is in the pass
    ],
)
def test_passes_within_an_optimizer_s_step_are_not_the_optimizer_s(
    optimizer: str, passes: str, stepped: int, computed: int
) -> None:
    """Those of a closure; where they overlap otherwise, it is the optimizer's."""
    found = parts(f"optimizer  {optimizer}\nmicro_batch  {passes}")

    assert (found["optimizer"], found["compute"]) == (stepped, computed)


LAUNCHED = "kernel  ..00...00."
"""Two kernels on the device, and 2, 3 and 1 ms beside them."""


@pytest.mark.parametrize(
    ("picture", "issued", "bound"),
    [
        (LAUNCHED, (1, 6), 3),  # 1 of the first gap's, 2 of the second's
        (LAUNCHED, (2, 7), 5),  # all of both; nothing was launched after the third
        (LAUNCHED, (3, 8), 5),  # said to be launched after it ran: no more than the gap
        (LAUNCHED, (0, 1), 0),  # they were in the queue
        (LAUNCHED, (1, None), 1),  # of one it is not known
        (LAUNCHED, (None, 5), 3),  # the next that is known tells for both gaps
        (LAUNCHED, (None, None), 0),
        ("kernel  0000000000", (0,), 0),
    ],
)
def test_the_device_waits_for_the_host_until_the_next_launch(
    picture: str, issued: tuple[int | None, ...], bound: int
) -> None:
    """From where it ran dry."""
    data = draw(picture, steps=1, clock="cuda", evidence=TRACED)
    (step,) = data.steps
    begins = step.start_ns
    at = [NO_TIME if ms is None else begins + ms * MS for ms in issued]
    spans = replace(step.spans, issued_ns=np.array(at, dtype=np.int64))
    found = divide(timeline_of(data, replace(step, spans=spans))).ns

    assert found["host_bound"] == bound * MS
