"""FD505, compile-interplay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.detectors.compile_interplay import compile_interplay
from fsdpdoctor.finding import Severity
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COUNTER_GRAPH_BREAKS,
    COUNTER_RECOMPILES,
    Counters,
    Evidence,
)
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, without


def counting(name: str, per_step: int) -> RankData:
    """A counter that rises by so many per step."""
    data = draw("forward 00", counters={name: 0})
    steps = tuple(
        replace(
            record,
            counters=Counters.build(1, name=0, time_ns=0, value=per_step * at),
        )
        for at, record in enumerate(data.steps)
    )
    return replace(data, steps=steps)


@pytest.mark.parametrize("name", [COUNTER_RECOMPILES, COUNTER_GRAPH_BREAKS])
def test_counters_that_rise_after_warm_up(name: str) -> None:
    """Two per step, seen five times in six steps."""
    finding = only(compile_interplay, measured(counting(name, 2)))

    assert finding.severity == Severity.WARNING
    assert finding.evidence == {"per_step": round(10 / 6, 4)}
    assert "block.compile()" in codes(finding)[0]


def test_compiled_around_the_units() -> None:
    """The graph breaks at layers.0's hooks."""
    units = (unit("layers.0", compiled="around"), unit("layers.1", compiled="inside"))

    finding = only(compile_interplay, measured(draw("forward 01", units=units)))

    assert finding.units == ("layers.0",)


def test_compiled_inside_and_quiet_is_no_finding() -> None:
    """Counters that stay where warm-up left them."""
    assert found(compile_interplay, measured(counting(COUNTER_RECOMPILES, 0))) == []


def test_without_counters_it_cannot_tell() -> None:
    """Nothing watched the compiler, and no unit lies in a compiled module."""
    m = measured(draw("forward 0", evidence=without(RECORDED, Evidence.COMPILE)))

    assert not_judged(compile_interplay, m).needs == (Evidence.COMPILE,)
