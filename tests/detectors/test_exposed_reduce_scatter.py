"""FD102, exposed-reduce-scatter."""

from __future__ import annotations

from fsdpdoctor.detectors.base import judge
from fsdpdoctor.detectors.exposed_reduce_scatter import exposed_reduce_scatter
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without

WAITING = """
    backward        ..11111111....00000000..
    reduce_scatter  ..........1111........00
    rs_wait         ..........1111........00
"""


def test_the_last_reduction_has_nothing_to_hide_under() -> None:
    """4 of 24 ms for layers.1; the 2 ms of layers.0, the last, are left out."""
    m = measured(draw(WAITING, CUDA), source="rehearsal")
    finding = only(exposed_reduce_scatter, m)

    assert finding.units == ("layers.1",)
    assert finding.phase == "backward"
    assert finding.cost_ns_per_step == 4 * MS
    assert finding.severity == Severity.CRITICAL
    assert finding.evidence["last_of_backward_ns"] == 2 * MS
    assert codes(finding)[0].endswith("set_reduce_scatter_max_input_buffers(2)")


def test_one_rank_cannot_tell_a_late_rank_from_the_wire() -> None:
    """The same 4 of 24 ms without another rank raise no alarm."""
    finding = only(exposed_reduce_scatter, measured(draw(WAITING, CUDA)))

    assert finding.cost_ns_per_step == 4 * MS
    assert finding.severity == Severity.INFO


def test_on_cpu_it_is_information() -> None:
    """FSDP2 always waits for gloo's reduce-scatter: both units, no alarm."""
    finding = only(exposed_reduce_scatter, measured(draw(WAITING)))

    assert finding.severity == Severity.INFO
    assert finding.cost_ns_per_step == 6 * MS
    assert finding.units == ("layers.1", "layers.0")
    assert codes(finding) == []


def test_all_reduces_are_called_all_reduces() -> None:
    """Where no reduce-scatter ran, neither the name nor the words speak of one."""
    m = measured(
        draw(
            """
            backward    ..11111111....00000000..
            all_reduce  ..........1111........00
            ar_wait     ..........1111........00
        """,
            CUDA,
        )
    )
    answer = judge(exposed_reduce_scatter, m)

    assert isinstance(answer, list)
    assert [finding.name for finding in answer] == ["exposed-all-reduce"]
    assert exposed_reduce_scatter.also == ("exposed-all-reduce",)
    assert "for the all-reduces of" in answer[0].summary


LAST = """
    backward        ..1111111100000000..{more}
    reduce_scatter  ..........1111....00
    rs_wait         ..................00
"""


def test_a_hidden_reduction_is_no_finding() -> None:
    """Only the last of the backward is waited for: 2 of 50 ms."""
    m = measured(draw(LAST.format(more="1" * 30), CUDA))

    assert found(exposed_reduce_scatter, m) == []


def test_the_last_reduction_is_information() -> None:
    """2 of 20 ms are named, though nothing could hide them."""
    finding = only(exposed_reduce_scatter, measured(draw(LAST.format(more=""), CUDA)))

    assert (finding.severity, finding.cost_ns_per_step) == (Severity.INFO, 2 * MS)
    assert "2.00 ms of it for the last of each backward" in finding.summary


def test_without_stalls_it_cannot_tell() -> None:
    """No waits and no kernels: no answer."""
    evidence = without(RECORDED, Evidence.STALLS)

    answer = not_judged(
        exposed_reduce_scatter, measured(draw(WAITING, evidence=evidence))
    )

    assert set(answer.needs) == {Evidence.STALLS, Evidence.KERNELS}
