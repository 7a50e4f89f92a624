"""FD505, compile-interplay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsdpdoctor.detectors.compile_interplay import compile_interplay
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.report.diagnosis import report_of
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COUNTER_COMPILE_NS,
    COUNTER_GRAPH_BREAKS,
    COUNTER_RECOMPILES,
    GRAPH_BREAK_REASON,
    RECOMPILE_REASON,
    Counters,
    Evidence,
)
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, without
from tests.rig.changed import replace


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


def counted(
    steps: Sequence[Mapping[str, int]], picture: str = "forward 00"
) -> RankData:
    """What each step's counters came to."""
    names = tuple(dict.fromkeys(name for step in steps for name in step))
    data = draw(picture, counters=dict.fromkeys(names, 0), steps=len(steps))
    records = tuple(
        replace(
            record,
            counters=Counters.build(
                len(values),
                name=[names.index(name) for name in values],
                time_ns=0,
                value=list(values.values()),
            ),
        )
        for record, values in zip(data.steps, steps, strict=True)
    )
    return replace(data, steps=records)


def test_recompilations_say_why_and_what_they_cost() -> None:
    """Two per step, for a shape; of 2 ms each step compiles 1."""
    name = f"{RECOMPILE_REASON}tensor 'x' size mismatch at index 1. expected ..."
    steps = [
        {COUNTER_RECOMPILES: 2 * at, COUNTER_COMPILE_NS: at * MS, name: 2 * at}
        for at in range(6)
    ]
    finding = only(compile_interplay, measured(counted(steps)))

    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == 1 * MS
    assert finding.summary == (
        "1.67 recompilations per step after warm-up, which take 1.00 ms (50.0 % of the "
        "step); dynamo says: tensor 'x' size mismatch at index 1. expected ..."
    )
    assert "block.compile()" in codes(finding)[0]


def test_a_number_is_not_a_shape() -> None:
    """No padding helps where a plain number is compiled in."""
    name = f"{RECOMPILE_REASON}self.scale == ..."
    steps = [{COUNTER_RECOMPILES: at, name: at} for at in range(6)]
    finding = only(compile_interplay, measured(counted(steps)))

    assert "tensor" in finding.advice[0].text
    assert "pad" not in finding.advice[0].text


def test_a_graph_break_without_a_recompilation_is_said() -> None:
    """Two in warm-up, none after: information, with dynamo's reason."""
    name = f"{GRAPH_BREAK_REASON}Unsupported Tensor.item() call"
    finding = only(
        compile_interplay,
        measured(
            counted([{COUNTER_GRAPH_BREAKS: 2, name: 2, COUNTER_RECOMPILES: 1}] * 6)
        ),
    )

    assert (finding.severity, finding.cost_ns_per_step) == (Severity.INFO, None)
    assert finding.summary == (
        "2 graph breaks while compiling, in every pass since: the pieces run one by "
        "one, with Python in between; dynamo says: Unsupported Tensor.item() call"
    )


def test_graph_breaks_that_go_on_are_a_warning() -> None:
    """Two more in each step."""
    finding = only(compile_interplay, measured(counting(COUNTER_GRAPH_BREAKS, 2)))

    assert finding.severity == Severity.WARNING
    assert finding.evidence["per_step"] == round(10 / 6, 4)


def test_what_compiling_costs_is_said_first() -> None:
    """Half of the step compiles; a fifth of it waits for a gather."""
    steps = [
        {COUNTER_RECOMPILES: at, COUNTER_COMPILE_NS: 10 * at * MS} for at in range(6)
    ]
    picture = """
        all_gather  ....0000............
        wait        ....0000............
        forward     ........000000000000
    """
    report = report_of(measured(counted(steps, picture)))

    assert (report.verdict.kind, report.verdict.code) == ("pause", "FD505")
    assert report.verdict.text.startswith("Compiling again takes 50.0 % of every step")


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
