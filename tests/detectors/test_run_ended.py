"""FD408, run-ended."""

from __future__ import annotations

import pytest

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.run_ended import run_ended
from fsdpdoctor.detectors.spmd_divergence import spmd_divergence
from fsdpdoctor.finding import Location, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.rank_end import (
    GONE,
    Call,
    EndKind,
    Fatal,
    Frame,
    GroupCount,
    Position,
    RankEnd,
    Stall,
)
from fsdpdoctor.rank_end_files import Beat
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import UNKNOWN, Kind, Phase
from fsdpdoctor.testing import TRACED, draw, measured
from tests.detectors.answers import found, not_judged, only
from tests.rig.changed import replace

TWO_LAYERS = """
    all_gather  01........
    forward     ..00001111
"""

TIMED_OUT = "Timed out waiting 20000ms for recv operation to complete"
CLOSED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:4711"
GATHER = Frame(
    file="torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
    line=119,
    function="__call__",
    user=False,
)


def ended(
    data: RankData, how: str, at_ms: int, kind: Kind = Kind.ALL_GATHER, step: int = 9
) -> RankData:
    """A rank that ended so, its last event the gather of layers.1 in backward."""
    beat = Beat(
        count=99,
        step=step,
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


def raising(
    rank: int, kind: str, message: str, line: int, at_ms: int, call: str | None = None
) -> RankData:
    """A rank that an exception ended at a line of train.py, in a collective or not."""
    stack = (Frame(file="train.py", line=line, function="main", user=True),)
    end = RankEnd(
        kind=EndKind.EXCEPTION,
        time_unix_ns=at_ms * MS,
        exception=kind,
        message=message,
        position=Position(
            step=9,
            stack=(*stack, GATHER) if call else stack,
            call=Call(name=call, group="shard") if call else None,
        ),
    )
    data = ended(draw(TWO_LAYERS, rank=rank), f"exception: {kind}: {message}", at_ms)
    return replace(data, header=replace(data.header, end=end))


def standing(
    rank: int, line: int, seq: int, call: str | None, neighbours: dict[str, str]
) -> RankData:
    """A rank that says that nothing progresses."""
    stack = (Frame(file="train.py", line=line, function="main", user=True),)
    position = Position(
        step=9,
        stack=(*stack, GATHER) if call else stack,
        call=Call(name=call, group="0") if call else None,
        groups=(GroupCount(name="0", ranks=(0, 1, 2), seq=seq),),
    )
    stall = Stall(
        rank=rank,
        pid=1,
        written_unix_ns=1,
        after_s=5.0,
        position=position,
        neighbours=neighbours,
    )
    return replace(ended(draw(TWO_LAYERS, rank=rank), "running", 100), stall=stall)


@pytest.mark.parametrize(
    ("inside", "where"), [(False, "after"), (True, "at")], ids=["past it", "in it"]
)
def test_an_error_after_the_optimizer_is_not_said_to_be_in_it(
    inside: bool, where: str
) -> None:
    """Its frames tell; what began last is an optimizer's step either way."""
    data = raising(0, "ValueError", "no batch", 12, 100)
    end = data.header.end
    assert end is not None
    assert end.position is not None
    optimizer = Frame(
        file="torch/optim/optimizer.py", line=9, function="wrapper", user=False
    )
    stack = (*end.position.stack, optimizer) if inside else end.position.stack
    position = replace(end.position, stack=stack)
    last = replace(data.beats[0], kind=Kind.OPTIMIZER, unit=UNKNOWN, phase=0)
    header = replace(data.header, end=replace(end, position=position))
    data = replace(data, header=header, beats=(replace(last, micro_batch=UNKNOWN),))

    assert only(run_ended, measured(data)).summary == (
        "rank 0 raised ValueError: no batch at train.py:12 in main, "
        f"{where} optimizer in step 9"
    )


def test_a_killed_rank_is_named_with_where_it_was() -> None:
    """Rank 0 left no word; rank 1 was ended 10 ms later."""
    m = ranks("running", "signal: SIGTERM")
    finding = only(run_ended, m)

    assert finding.severity == Severity.CRITICAL
    assert finding.ranks == (0,)
    assert finding.units == ("layers.1",)
    assert finding.phase == "backward"
    assert finding.evidence["last_whole_step"] == 8
    assert finding.summary == (
        "rank 0 was ended without a word (as by SIGKILL) at all-gather of layers.1 "
        "(backward) in step 9, micro-batch 0, 10.0 ms before the last event elsewhere"
    )
    assert finding.places == (
        Location(rank=0, step=9, start_ns=100 * MS, end_ns=100 * MS, unit="layers.1"),
    )
    assert found(spmd_divergence, m) == []


def test_an_exception_comes_before_the_signal_it_caused() -> None:
    """Rank 1 raised; torchrun then ended rank 0."""
    finding = only(run_ended, ranks("signal: SIGTERM", "exception: ValueError: no"))

    assert finding.ranks == (1,)
    assert "rank 1 raised ValueError: no at all-gather" in finding.summary


def test_done_or_still_running_is_no_finding() -> None:
    """All ranks alike, and the same collectives."""
    assert found(run_ended, ranks("done", "done")) == []
    assert found(run_ended, ranks("running", "running")) == []


def test_a_recording_that_stopped_is_no_rank_that_stopped() -> None:
    """Only where it stopped for a lost peer is the other one's end a fault."""
    ours = "detached: TypeError in _wait:10: no int"  # not a peer
    disk = "detached: OSError in write_all:9: [Errno 110] Connection timed out"
    peer = "detached: RuntimeError in _wait:10: Connection closed by peer"

    assert found(run_ended, ranks(disk, "running")) == []
    assert found(run_ended, ranks(ours, "done")) == []
    assert found(run_ended, ranks(ours, "running")) == []
    assert only(run_ended, ranks(peer, "running")).ranks == (1,)


def test_the_same_exception_everywhere_is_the_scripts() -> None:
    """Numbers may differ; the mesh clash is translated, and the line is said."""
    clash = "All operands in aten.stack.default must have the same mesh, at {}"
    m = measured(
        raising(0, "RuntimeError", clash.format(7), 60, 100),
        raising(1, "RuntimeError", clash.format(8), 60, 104),
    )

    finding = only(run_ended, m)

    assert finding.ranks == (0, 1)
    assert finding.evidence["cause"] == "same exception"
    assert finding.evidence["lines"] == {
        "0": "train.py:60 in main",
        "1": "train.py:60 in main",
    }
    assert "all 2 ranks raised the same RuntimeError" in finding.summary
    assert "as in clipping over all of them) at train.py:60 in main" in finding.summary
    assert finding.advice[0].text.startswith("Work per mesh")
    assert found(spmd_divergence, m) == []


def test_lost_connections_follow_from_the_one_exception() -> None:
    """Rank 1's own error came later than rank 0's, and is the cause all the same."""
    m = measured(
        raising(0, "RuntimeError", CLOSED, 40, 100, "all_gather_single"),
        raising(1, "KeyError", "'label'", 31, 150),
    )

    finding = only(run_ended, m)

    assert finding.ranks == (1,)
    assert finding.summary == (
        "rank 1 raised KeyError: 'label' at train.py:31 in main, at all-gather of "
        "layers.1 (backward) in step 9, micro-batch 0; rank 0 lost it and ended of that"
    )


def test_a_library_word_in_the_users_own_error_is_no_lost_peer() -> None:
    """A ValueError about a timeout is the script's own."""
    m = measured(
        raising(0, "RuntimeError", TIMED_OUT, 40, 100, "all_gather_single"),
        raising(1, "ValueError", "request timed out", 31, 150),
    )

    assert only(run_ended, m).ranks == (1,)


def test_a_rank_outside_the_collective_in_which_others_wait() -> None:
    """Ranks 0 and 2 have issued number 41, rank 1 has not."""
    m = measured(
        standing(0, 40, 41, "all_gather_single", {}),
        standing(1, 31, 40, None, {}),
        standing(2, 40, 41, "all_gather_single", {}),
    )

    finding = only(run_ended, m)

    assert finding.ranks == (1,)
    assert finding.evidence["cause"] == "elsewhere"
    assert finding.evidence["waits_for"] == {"0": [1], "2": [1]}
    assert finding.summary == (
        "rank 1 does not come: it is at train.py:31 in main, at all-gather of layers.1 "
        "(backward) in step 9, micro-batch 0; ranks 0 and 2 wait in all_gather_single "
        "of layers.1 (backward), #41 of group 0, at train.py:40 in main in step 9, "
        "micro-batch 0"
    )


def test_a_device_host_that_is_ahead_is_not_to_blame() -> None:
    """Rank 1 is outside, and has issued what the others wait in: all are together."""
    m = measured(
        standing(0, 40, 41, "all_gather_single", {}),
        standing(1, 45, 41, None, {}),
    )

    assert found(run_ended, m) == []
    assert found(spmd_divergence, m) == []


def test_a_stopped_rank_is_told_by_its_neighbours() -> None:
    """It writes nothing itself; the kernel's letter T is SIGSTOP."""
    silent = ended(draw(TWO_LAYERS, rank=1), "running", 90)
    stopped = measured(standing(0, 40, 41, "all_gather_single", {"1": "T"}), silent)
    locked = measured(standing(0, 40, 41, "all_gather_single", {"1": "R"}), silent)

    assert only(run_ended, stopped).ranks == (1,)
    assert "is stopped by a signal (SIGSTOP)" in only(run_ended, stopped).summary
    assert only(run_ended, locked).evidence["states"] == {
        "0": "standing still",
        "1": "says nothing",
    }


def test_every_rank_ended_from_outside() -> None:
    """A preemption is no fault of the run."""
    finding = only(run_ended, ranks("signal: SIGTERM", "signal: SIGTERM"))

    assert finding.severity == Severity.WARNING
    assert finding.ranks == (0, 1)
    assert "every rank was ended from outside (SIGTERM)" in finding.summary


def signalled(rank: int, signal: str, at_ms: int) -> RankData:
    """A rank that a signal ended, at a line of train.py outside every collective."""
    stack = (Frame(file="train.py", line=22, function="main", user=True),)
    end = RankEnd(
        kind=EndKind.SIGNAL,
        time_unix_ns=at_ms * MS,
        signal=signal,
        position=Position(
            step=9,
            stack=stack,
            groups=(GroupCount(name="0", ranks=(0, 1, 2), seq=40),),
        ),
    )
    data = ended(draw(TWO_LAYERS, rank=rank), f"signal: {signal}", at_ms)
    return replace(data, header=replace(data.header, end=end))


def test_a_rank_that_a_signal_ended_did_not_stay_away() -> None:
    """The other lost it in a collective, after that."""
    lost = raising(1, "RuntimeError", CLOSED, 40, 120, "all_gather_single")
    finding = only(run_ended, measured(signalled(0, "SIGINT", 100), lost))

    assert finding.ranks == (0,)
    assert finding.summary == (
        "rank 0 was ended by a signal (SIGINT) in step 9, micro-batch 0; rank 1 lost "
        "it, and ended of that"
    )


def test_a_rank_that_the_launcher_ended_stayed_away() -> None:
    """The other gave up on it before, or had stood still, as it said."""
    late = raising(1, "RuntimeError", TIMED_OUT, 40, 90, "all_gather_single")
    for other in (late, standing(1, 40, 41, "all_gather_single", {})):
        finding = only(run_ended, measured(signalled(0, "SIGTERM", 100), other))
        assert finding.evidence["cause"] == "elsewhere"
        assert finding.ranks == (0,)


def test_a_capture_does_not_say_how_it_ended() -> None:
    """Nothing is clear that was not recorded."""
    answer = not_judged(run_ended, measured(draw(TWO_LAYERS, evidence=TRACED)))

    assert answer.reason == "not measured: only a record says how a run ended"


def test_an_abort_out_of_no_line_of_python_is_communications() -> None:
    """Gloo's thread ends a rank whose collective is not the others'; where the main
    thread stood need not be known. Of Python's own abort nothing of it is said.
    """
    fatal = Fatal(reason="Aborted", native=True, time_unix_ns=100 * MS)
    first = replace(ended(draw(TWO_LAYERS, rank=0), "running", 100), fatal=fatal)
    other = raising(1, "RuntimeError", CLOSED, 5, 110, call="all_gather")
    finding = only(run_ended, measured(first, other))
    its_own = replace(first, fatal=replace(fatal, native=False))
    plain = only(run_ended, measured(its_own, other))

    assert finding.ranks == (0,)
    assert finding.summary == (
        "rank 0 was ended by a fatal signal (Aborted) at all-gather of layers.1 "
        "(backward) in step 9, micro-batch 0, 10.0 ms before the last event elsewhere; "
        "a thread without Python ended it, as gloo's does when ranks' collectives do "
        "not fit each other"
    )
    assert "under `if rank == 0`" in finding.advice[0].text
    assert finding.evidence["cause"] == "aborted"
    assert plain.evidence["cause"] == "crashed"
    assert plain.summary.endswith("10.0 ms before the last event elsewhere")
    assert "under `if rank == 0`" not in plain.advice[0].text


def test_a_rank_that_left_no_time_is_not_said_to_be_early() -> None:
    """It has no heartbeat: neither is its last moment that of 1970, nor is it the first
    of several that failed.
    """
    killed = replace(ended(draw(TWO_LAYERS, rank=0), "running", 100), beats=())
    other = ended(draw(TWO_LAYERS, rank=1), "signal: SIGTERM", 110)
    finding = only(run_ended, measured(killed, other))
    words = ("exception: ValueError: a", "exception: TypeError: b")
    first, second = (ended(draw(TWO_LAYERS, rank=r), words[r], 100) for r in (0, 1))
    failed = only(run_ended, measured(replace(first, beats=()), second))

    assert finding.ranks == (0,)
    assert finding.summary == "rank 0 was ended without a word (as by SIGKILL)"
    assert failed.ranks == (1,)


def leaving(rank: int, at_ms: int, message: str | None) -> RankData:
    """A rank that ended itself by `sys.exit`."""
    data = raising(rank, "SystemExit", "", 12, at_ms)
    end = data.header.end
    assert end is not None
    end = replace(end, kind=EndKind.EXIT, exception=None, status=1, message=message)
    return replace(data, header=replace(data.header, ended="exit: 1", end=end))


def test_an_exit_is_said_with_its_message() -> None:
    """Of one rank, and of all alike; there is no traceback to read."""
    (alone,) = found(run_ended, measured(leaving(0, 100, "no data")))
    both = only(run_ended, measured(*(leaving(r, 100, "no data") for r in range(2))))

    assert alone.summary.startswith("rank 0 ended itself with exit status 1: no data")
    assert both.summary.startswith(
        "all 2 ranks ended themselves with the same exit status 1: no data"
    )
    assert {alone.advice[0].text, both.advice[0].text} == {
        "Look at why the script ends itself at this line."
    }


def test_ranks_that_are_all_gone_at_one_place_are_blamed_alike() -> None:
    """As `os._exit` leaves them; where one of them did less it went first."""
    both = [
        replace(ended(draw(TWO_LAYERS, rank=rank), "running", 100), process=GONE)
        for rank in range(2)
    ]
    less = replace(both[1], beats=(replace(both[1].beats[0], seq=39),))
    together = only(run_ended, measured(*both))
    apart = only(run_ended, measured(both[0], less))

    assert (together.severity, together.ranks) == (Severity.WARNING, (0, 1))
    assert together.summary == (
        "all 2 ranks ended without a word at all-gather of layers.1 (backward) in "
        "step 9, micro-batch 0: by os._exit, or killed together"
    )
    assert (apart.severity, apart.ranks) == (Severity.CRITICAL, (1,))
