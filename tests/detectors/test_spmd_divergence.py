"""FD406, spmd-divergence."""

from __future__ import annotations

from dataclasses import replace

from fsdpdoctor.analysis.measures import Measures, reduce
from fsdpdoctor.analysis.rank_measures import measure_rank
from fsdpdoctor.detectors.spmd_divergence import spmd_divergence
from fsdpdoctor.finding import Confidence, Location, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import Beat, RankData
from fsdpdoctor.schema import Evidence, GroupSpec, Kind, Phase, RunHeader
from fsdpdoctor.testing import RECORDED, TRACED, draw, measured, unit
from tests.detectors.answers import found, not_judged, only, without

TWO_LAYERS = """
    all_gather  01........
    forward     ..00001111
"""


def ended(
    data: RankData, how: str, at_ms: int, kind: Kind = Kind.ALL_GATHER
) -> RankData:
    """A rank that ended so, its last event the gather of layers.1 in backward."""
    beat = Beat(
        count=99,
        step=9,
        micro_batch=0,
        unit=1,
        kind=kind,
        phase=Phase.BACKWARD,
        seq=40,
        group=0,
        time_ns=at_ms * MS,
    )
    return replace(data, header=replace(data.header, ended=how), beats=(beat,))


def ranks(*how: str) -> Measures:
    """Ranks that ended in these ways, each 10 ms after the one before."""
    return measured(
        *(
            ended(draw(TWO_LAYERS, rank=rank), text, 100 + 10 * rank)
            for rank, text in enumerate(how)
        )
    )


def test_a_killed_rank_is_named_with_where_it_was() -> None:
    """Rank 0 left no word; rank 1 was ended 10 ms later."""
    finding = only(spmd_divergence, ranks("running", "signal: SIGTERM"))

    assert finding.severity == Severity.CRITICAL
    assert finding.ranks == (0,)
    assert finding.units == ("layers.1",)
    assert finding.phase == "backward"
    assert finding.evidence["last_whole_step"] == 8
    assert finding.summary == (
        "rank 0 was ended without a word at all_gather of layers.1 (backward) in step "
        "9, micro-batch 0, 10.0 ms before the last event elsewhere"
    )
    assert finding.places == (
        Location(rank=0, step=9, start_ns=100 * MS, end_ns=100 * MS, unit="layers.1"),
    )


def test_an_exception_comes_before_the_signal_it_caused() -> None:
    """Rank 1 raised; torchrun then ended rank 0."""
    finding = only(
        spmd_divergence, ranks("signal: SIGTERM", "exception: ValueError: no")
    )

    assert finding.ranks == (1,)
    assert "ended (exception: ValueError: no)" in finding.summary


def test_done_or_still_running_is_no_finding() -> None:
    """All ranks alike, and the same collectives."""
    assert found(spmd_divergence, ranks("done", "done")) == []
    assert found(spmd_divergence, ranks("running", "running")) == []


def test_a_recording_that_stopped_is_no_rank_that_stopped() -> None:
    """Only where it stopped for a lost peer is the other one's end a fault."""
    ours = "detached: TypeError in _wait:10: no int"  # not a peer
    peer = "detached: RuntimeError in _wait:10: Connection closed by peer"

    assert found(spmd_divergence, ranks(ours, "done")) == []
    assert found(spmd_divergence, ranks(ours, "running")) == []
    assert only(spmd_divergence, ranks(peer, "running")).ranks == (1,)


def test_a_different_unit_at_the_same_place() -> None:
    """The second gather of step 3 moves other bytes on rank 1."""
    here = draw(TWO_LAYERS)
    there = draw(TWO_LAYERS, rank=1, bytes=3 << 20)

    finding = only(spmd_divergence, measured(here, there))

    assert finding.ranks == (0, 1)
    assert finding.units == ("layers.0",)
    assert finding.summary == (
        "ranks 0 and 1 differ in step 3, collective 0 of group shard: rank 0 has "
        "all_gather of layers.0 (1.00 MiB), rank 1 has all_gather of layers.0 "
        "(3.00 MiB)"
    )


def test_a_collective_that_one_rank_leaves_out() -> None:
    """Rank 1 never gathers layers.1."""
    skipping = draw(
        TWO_LAYERS.replace("01........", "0........."),
        rank=1,
        units=(unit("layers.0"), unit("layers.1")),
    )

    finding = only(spmd_divergence, measured(draw(TWO_LAYERS), skipping))

    assert finding.units == ("layers.1",)
    assert finding.evidence["1"] == "rank 1 has no more"
    assert finding.evidence["position"] == 1


def test_groups_of_unknown_ranks_are_not_compared() -> None:
    """Groups of one name on two ranks may be two groups; one rank may list both."""
    groups = (GroupSpec(name="0", ranks=(), size=2),) * 2
    here = draw(TWO_LAYERS, groups=groups)
    there = draw(TWO_LAYERS, rank=1, groups=groups, bytes=3 << 20)

    assert found(spmd_divergence, measured(here, there)) == []


def test_a_capture_proves_less_than_a_record() -> None:
    """It drops events, and begins elsewhere."""
    here = draw(TWO_LAYERS, evidence=TRACED)
    there = draw(TWO_LAYERS, evidence=TRACED, rank=1, bytes=3 << 20)

    finding = only(spmd_divergence, measured(here, there))

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LOW)


def test_ranks_without_a_record_are_named() -> None:
    """One of two left nothing, and the other was recorded live."""
    data = ended(draw(TWO_LAYERS), "done", 100)
    header = RunHeader(run_id="drawn", source="recorded", world_size=2)

    finding = only(
        spmd_divergence, reduce(header, [measure_rank(data)], missing_ranks=(1,))
    )

    assert finding.severity == Severity.WARNING
    assert finding.ranks == (1,)


def test_one_trace_of_a_job_cannot_tell() -> None:
    """A single rank, and no word of how it ended."""
    assert not_judged(spmd_divergence, measured(draw(TWO_LAYERS))).needs == (
        Evidence.RANKS,
    )
    bare = draw(TWO_LAYERS, evidence=without(RECORDED, Evidence.STEPS))
    assert not_judged(spmd_divergence, measured(bare)).needs == (Evidence.STEPS,)
