"""Each fault: training as without us, the record up to its last whole step, and what
was lost is said. `pytest -m faults` writes a table beside the benchmarks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.renderers.reading.stopped_words import stopped_lines
from fsdpdoctor.report import report_of
from fsdpdoctor.run import open_run
from tests.faults.jobs import job, last_whole, note, recorder

pytestmark = [
    pytest.mark.faults,
    pytest.mark.ranks,
    pytest.mark.usefixtures("warm"),
]

AT = 8
LAST = 17
ALL = (LAST, LAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What must have come of it."""

    name: str
    whole: tuple[int, int] = ALL  # the last whole step on disk, at least, by rank
    ended: tuple[str, str] = ("done", "done")  # patterns
    says: str | None = None  # what the report says


RAISED, PEER = "exception: ValueError", "exception: |signal: |running"

TABLE = (
    Fault(name="none"),
    Fault(
        name="kill-one",
        whole=(AT - 1, AT - 2),
        ended=(PEER, "running"),
        says="ended without a word",
    ),
    Fault(
        name="kill-all",
        whole=(AT - 2, AT - 2),
        ended=("running", "running"),
        says="ended without a word",
    ),
    Fault(name="term-one", whole=(AT - 1, AT - 2), ended=(PEER, "signal: SIGTERM")),
    Fault(
        name="term-all",
        whole=(AT - 2, AT - 2),
        ended=("signal: SIGTERM", "signal: SIGTERM"),
    ),
    Fault(name="int-one", whole=(AT - 1, AT - 1), ended=(PEER, "signal: SIGINT")),
    Fault(
        name="int-all",
        whole=(AT - 1, AT - 1),
        ended=("signal: SIGINT", "signal: SIGINT"),
    ),
    Fault(
        name="os-exit-all",
        whole=(AT - 2, AT - 2),
        ended=("running", "running"),
        says="ended without a word",
    ),
    Fault(
        name="os-exit-one",
        whole=(AT - 1, AT - 2),
        ended=(PEER, "running"),
        says="ended without a word",
    ),
    Fault(name="uneven-steps", whole=(AT - 1, AT - 1), ended=(PEER, "done")),
    Fault(name="sys-exit", whole=(AT - 1, AT - 1), ended=("exit: 3", "exit: 3")),
    Fault(name="forward-raises", whole=(AT - 1, AT - 1), ended=(RAISED, PEER)),
    Fault(name="backward-raises", whole=(AT - 1, AT - 1), ended=(RAISED, RAISED)),
    Fault(name="optimizer-raises", whole=(AT - 1, AT - 1), ended=(RAISED, RAISED)),
    Fault(
        name="loader-raises",
        whole=(AT - 1, AT - 1),
        ended=("exception: OSError", "exception: OSError"),
    ),
    Fault(
        name="out-of-memory",
        whole=(AT - 1, AT - 1),
        ended=("exception: OutOfMemoryError", "exception: OutOfMemoryError"),
    ),
    Fault(name="checkpoint-thread-raises"),
    Fault(name="workers-fork"),
    Fault(name="workers-spawn"),
    Fault(name="patch-before"),
    Fault(name="patch-recorded"),
    Fault(name="patch-between"),
    Fault(name="profiler"),
    Fault(name="backward-in-a-thread"),
    Fault(name="collector-off"),
    Fault(name="reload"),
    Fault(name="deepcopy"),
    Fault(name="pickle"),
    Fault(name="compile-per-block"),
    Fault(name="compile-whole"),
    Fault(name="clock-forward"),
    Fault(name="clock-back"),
    Fault(name="second-record"),
    Fault(name="slow-writes"),
    Fault(name="writes-hang", whole=(AT - 2, AT - 2), ended=("running", "running")),
    Fault(
        name="quota-of-one",
        whole=(LAST, AT - 2),
        ended=("done", "detached: OSError"),
    ),
    Fault(name="many-steps", whole=(9_999, 9_999)),
    Fault(name="rebuilt-model"),
    Fault(name="groups-made-again"),
    Fault(name="stderr-closed"),
    Fault(name="function-mode"),
    Fault(name="tracebacks-printed"),
)


@pytest.mark.parametrize("fault", TABLE, ids=lambda fault: fault.name)
def test_trains_as_without_us(fault: Fault, tmp_path: Path) -> None:
    """To the bit, with the same end; the record is whole up to where it broke off."""
    run = tmp_path / "run"
    plain = job(tmp_path / "plain", fault.name)
    ours = job(tmp_path / "recorded", fault.name, *recorder(run))
    ranks = list(open_run(run).load())
    ended = tuple(rank.header.ended for rank in ranks)
    whole = tuple(map(last_whole, ranks))
    note(fault.name, plain, ours, "; ".join(e[:40] for e in ended), whole)

    assert (ours.losses, ours.stdout) == (plain.losses, plain.stdout)
    assert ours.status == plain.status
    assert all(at >= least for at, least in zip(whole, fault.whole, strict=True))
    for said, expected in zip(ended, fault.ended, strict=True):
        assert re.match(expected, said), ended
    if fault.says is not None:
        assert fault.says in _stopped_words(run)


def _stopped_words(run: Path) -> str:
    return "\n".join(stopped_lines(report_of(measure(open_run(run)))))
