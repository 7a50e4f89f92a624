"""`fsdpdoctor tune`: what is run when, and what is kept."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.cli.processes.trial_runs import TrialRuns, why_failed
from fsdpdoctor.errors import FsdpDoctorError, UsageError
from fsdpdoctor.plan_file import read_settings
from fsdpdoctor.run import open_run
from fsdpdoctor.tune import (
    Candidate,
    Failed,
    Measured,
    Outcome,
    TuneLimits,
    Tuner,
    Tuning,
    Verdict,
    Which,
    promises_same_bits,
)
from tests.rig.changed import replace
from tests.rig.ranks import TRAIN, run_python
from tests.simulate.steps import step

BASE = "as it is"


def candidate(plan: Plan) -> Candidate:
    """A plan to try; nothing looks at its step here."""
    return Candidate(plan=plan, step=step(2))


ASYNC = candidate(Plan(unshard_async_op=True))
PREFETCH = candidate(Plan(forward_prefetch=1))
KEEP = candidate(Plan(reshard_after_forward={"*": False}))
MERGE = candidate(Plan(merge=2))
ALL = (ASYNC, PREFETCH, KEEP, MERGE)


@dataclass
class Drawn:
    """Runs that take and give what was drawn: by plan, one after the other."""

    outcomes: Mapping[str, Sequence[Outcome | int]]
    seconds: float = 60.0
    order: list[str] = field(default_factory=list)
    now: float = 0.0

    def run(self, candidate: Candidate | None) -> Outcome:
        """The next outcome of a plan; its last one again where there is no more."""
        name = BASE if candidate is None else str(candidate.plan)
        drawn = self.outcomes[name]
        found = drawn[min(self.order.count(name), len(drawn) - 1)]
        self.order.append(name)
        self.now += self.seconds
        return measured(found) if isinstance(found, int) else found

    def clock(self) -> float:
        """Seconds that the runs have taken."""
        return self.now


def measured(step_ms: int, *bits: str) -> Measured:
    """A run of so long a step."""
    return Measured(step_ns=step_ms * 1_000_000, bits=bits or ("a", "b"))


def tuned(
    drawn: Drawn,
    budget: TuneLimits | None = None,
    candidates: Sequence[Candidate] = ALL,
) -> Tuning:
    """The whole of it."""
    tuner = Tuner(drawn.run, drawn.clock, budget or TuneLimits(max_runs=20))
    tuner.measure_baseline()
    return tuner.tune(candidates)


def verdicts(tuning: Tuning) -> dict[str, Verdict]:
    """By plan, in the order of the table."""
    return {
        str(row.candidate.plan): row.verdict for row in tuning.rows if row.candidate
    }


def names(*candidates: Candidate) -> list[str]:
    """As they are in `Drawn`."""
    return [str(c.plan) for c in candidates]


def drawn(base: Sequence[Outcome | int], *each: Sequence[Outcome | int]) -> Drawn:
    """Outcomes of the script as it is, and of ALL."""
    return Drawn({BASE: base, **dict(zip(names(*ALL), each, strict=False))})


def test_rounds_are_interleaved_and_the_slower_half_goes() -> None:
    """Four candidates, two, one; the script as it is after each round."""
    runs = drawn([100], [90], [70], [80], [95])
    tuning = tuned(runs)

    assert runs.order == [
        BASE,
        *names(ASYNC, PREFETCH, KEEP, MERGE),
        BASE,
        *names(PREFETCH, KEEP),
        BASE,
        *names(PREFETCH),
        BASE,
    ]
    assert verdicts(tuning) == {
        "forward prefetch 1": Verdict.KEPT,
        "reshard after forward: False": Verdict.FASTER,
        "unshard async op": Verdict.FASTER,
        "merge 2": Verdict.FASTER,
    }
    assert tuning.stopped is None


def test_a_gain_within_the_noise_is_none() -> None:
    """The script's own runs differ by 30 ms: 12 ms less may be luck."""
    tuning = tuned(drawn([100, 70, 100], [88]), candidates=[ASYNC])

    assert verdicts(tuning) == {"unshard async op": Verdict.NO_GAIN}
    assert tuning.kept is None


def test_a_tiny_gain_is_none() -> None:
    """Runs that agree to the nanosecond do not make 1 % worth a change."""
    assert tuned(drawn([1000], [990]), candidates=[ASYNC]).kept is None


def test_of_changes_as_fast_the_cheaper_one_is_kept() -> None:
    """Merging takes more lines than a flag."""
    tuning = tuned(
        drawn([100], [70], [], [], [70]),
        candidates=[MERGE, ASYNC],
    )

    assert tuning.kept is not None
    assert tuning.kept.candidate == ASYNC


def test_failing_candidates_are_rows_with_their_reason() -> None:
    """They are not run again, and do not end the tuning."""
    runs = drawn(
        [100], [Failed(reason="out of memory")], [70], [70, Failed(reason="x")], [99]
    )
    tuning = tuned(runs)
    failures = {str(r.candidate.plan): r.failure for r in tuning.rows if r.candidate}

    assert failures == {
        "forward prefetch 1": None,
        "merge 2": None,
        "unshard async op": "out of memory",
        "reshard after forward: False": "x",
    }
    assert runs.order.count("unshard async op") == 1
    assert tuning.kept is not None
    assert tuning.kept.candidate == PREFETCH


def test_nothing_is_kept_where_all_fail() -> None:
    """One round; the script as it is remains."""
    late = [Failed(reason="timed out")]
    runs = drawn([100], late, late, late, late)
    tuning = tuned(runs)

    assert set(verdicts(tuning).values()) == {Verdict.FAILED}
    assert tuning.kept is None
    assert len(runs.order) == 6


def test_a_script_that_fails_as_it_is_ends_the_tuning() -> None:
    """There is nothing to compare with."""
    tuner = Tuner(
        drawn([Failed(reason="died")]).run, lambda: 0.0, TuneLimits(max_runs=5)
    )

    with pytest.raises(FsdpDoctorError, match="the script as it is: died"):
        tuner.measure_baseline()


def test_other_bits_drop_a_change_that_promises_the_same() -> None:
    """Merging promises nothing: another order of sums is allowed."""
    tuning = tuned(
        drawn([100], [60, measured(60, "a", "c")], [80], [90], [measured(70, "d", "e")])
    )

    assert verdicts(tuning)["merge 2"] is Verdict.KEPT
    tuning = tuned(drawn([100], [measured(60, "a", "c")], [80], [90], [95]))

    assert verdicts(tuning) == {
        "forward prefetch 1": Verdict.KEPT,
        "reshard after forward: False": Verdict.FASTER,
        "merge 2": Verdict.FASTER,
        "unshard async op": Verdict.OTHER_BITS,
    }


def test_bits_are_not_judged_where_the_script_has_none_of_its_own() -> None:
    """Runs of the script as it is differ: so may those of a change."""
    runs = drawn([measured(100, "a"), measured(100, "b")], [measured(60, "c")])
    tuning = tuned(runs, candidates=[ASYNC])

    assert tuning.deterministic is False
    assert verdicts(tuning) == {"unshard async op": Verdict.KEPT}


def test_runs_end_with_their_number() -> None:
    """Of seven runs, two candidates get a look; the last one was not needed."""
    runs = drawn([100], [70], [80], [60], [60])
    tuning = tuned(runs, TuneLimits(max_runs=6))

    assert runs.order == [
        BASE,
        *names(ASYNC, PREFETCH),
        BASE,
        *names(ASYNC),
        BASE,
    ]
    assert tuning.stopped == "6 runs were made"
    assert tuning.kept is not None
    assert tuning.kept.candidate == ASYNC


def test_no_run_is_started_that_would_end_too_late() -> None:
    """Minutes are counted by the longest run so far."""
    runs = drawn([100], [70], [80], [60], [60])
    tuning = tuned(runs, TuneLimits(max_runs=20, seconds=3.5 * 60))

    assert runs.order == [BASE, *names(ASYNC, PREFETCH)]
    assert tuning.stopped == "the time was up"
    assert verdicts(tuning)["merge 2"] is Verdict.NOT_RUN
    with pytest.raises(UsageError, match="--max-runs is 1"):
        TuneLimits(max_runs=1)


@pytest.mark.parametrize(
    ("plan", "same"),
    [
        (Plan(forward_prefetch=1, unshard_async_op=True), True),
        (Plan(reshard_after_forward={"layers.1": False}), True),
        (Plan(accumulation="last"), False),
        (Plan(merge=2), False),
        (Plan(forward_prefetch=1, reduce_dtype="bfloat16"), False),
    ],
)
def test_what_promises_the_same_bits(plan: Plan, same: bool) -> None:
    """Moving a gather does; another order of sums, or dtype, does not."""
    assert promises_same_bits(plan) is same
    assert Which(same_bits=True).takes(plan) is same


def test_what_a_running_job_can_be_told_needs_no_restart() -> None:
    """A merge on top of it does."""
    lists, which = Plan(forward_prefetch=1), Which(restart_only=True)
    both = replace(lists, merge=2)

    assert [which.takes(plan) for plan in (lists, both)] == [False, True]
    assert [Which().takes(plan) for plan in (lists, both)] == [True, True]


@pytest.mark.parametrize(
    ("status", "log", "said"),
    [
        (None, "", "timed out"),
        (1, "x\n[rank0]: torch.OutOfMemoryError: CUDA out of\n", "out of memory"),
        (-9, "step 1\n", "killed, perhaps for its memory"),
        (1, "a\n  File x\n[rank1]: ValueError: no\nlater\n", "ValueError: no"),
        (2, "Error: plan.json was not applied: x\n", "Error: plan.json was not"),
        (3, "bye\n", "ended with status 3"),
    ],
)
def test_why_a_run_failed(status: int | None, log: str, said: str) -> None:
    """One line, from the status and what was printed."""
    assert why_failed(status, log).startswith(said)


def test_a_run_that_hangs_is_ended(tmp_path: Path) -> None:
    """With its children, after its time; the next one may start."""
    script = (
        "import pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '99'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(99)\n"
    )
    said: list[str] = []
    runs = TrialRuns(
        launch=[sys.executable, "-c", script],
        options=[],
        script=[],
        folder=tmp_path / "runs",
        timeout_s=5.0,
        say=said.append,
    )

    assert runs.run(None) == Failed(reason="timed out")
    assert said[0].startswith("run-00: as it is: timed out")
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process is there, and not only its exit status."""
    try:
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such.py",), "cannot run no-such.py"),
        ((str(TRAIN),), "say how the ranks are started"),
        (("--nproc-per-node", "2", "--max-runs", "1", str(TRAIN)), "--max-runs is 1"),
    ],
)
def test_says_in_one_line_what_is_wrong(arguments: tuple[str, ...], said: str) -> None:
    """Before anything runs."""
    ended = run_python("-m", "fsdpdoctor", "tune", *arguments)

    assert (ended.status, ended.stderr.count("\n")) == (2, 1)
    assert said in ended.stderr


@pytest.mark.ranks
@pytest.mark.slow
def test_tunes_a_job_of_two_ranks(tmp_path: Path) -> None:
    """Three short runs of the rig's Llama: each row has a result, bits are the same,
    the runs are there to look at, and a plan that was kept is one that can be applied.
    """
    ended = run_python(
        *("-m", "fsdpdoctor", "tune", "--nproc-per-node", "2", "--same-bits", "--json"),
        *("--max-runs", "3", "--steps", "6", "--out", str(tmp_path / "tune")),
        *(str(TRAIN), "--steps", "500"),
        timeout_s=1200,
    ).ok()

    found = json.loads(ended.stdout)
    (row,) = found["candidates"]
    runs = [open_run(tmp_path / f"tune/run-0{i}") for i in range(3)]
    assert row["verdict"] in ("kept", "no gain")
    assert row["bits"] == [found["baseline"]["bits"][0]]
    assert len(found["baseline"]["runs_ns"]) == 2
    assert [bool(run.header.applied) for run in runs] == [False, True, False]
    assert all(len(run.sources[0].load().steps) == 6 for run in runs)
    if row["verdict"] == "kept":
        read_settings(tmp_path / "tune/plan.json")
