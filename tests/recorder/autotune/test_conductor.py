"""From what is proposed to decisions: retried, refused, cut short and resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fsdpdoctor.errors import NoRoomError, PlanError
from fsdpdoctor.recorder.autotune import step_lengths
from fsdpdoctor.recorder.autotune.agreement import GONE, LATE, Proposer, Voter
from fsdpdoctor.recorder.autotune.conductor import MOST_LATE, Conductor, over_key
from fsdpdoctor.recorder.autotune.decisions import Decision, What
from fsdpdoctor.recorder.autotune.ranking import RANKED, Candidate, Ranking
from fsdpdoctor.recorder.autotune.step_lengths import StepLengths
from fsdpdoctor.recorder.autotune.trials import Fate, read_trials
from tests.recorder.autotune.test_agreement import FaultyStore
from tests.recorder.autotune.test_tuning import candidate, ranking


class Driven:
    """Rank 0 of one or more, whose steps take a millisecond each."""

    def __init__(
        self,
        folder: Path,
        ranked: Ranking | None,
        before: Candidate | None,
        ranks: int,
    ) -> None:
        self.keys: dict[str, str] = {}
        self.store = FaultyStore(self.keys, lambda: "")
        self.unable: str | None = None
        self.room_bytes = 1000
        self.voter = Voter(self.store, 0, self._prepare)
        self.lengths = StepLengths(on_device=False)
        self.said: list[str] = []
        self.kept: list[str] = []
        self.begun: list[Decision] = []
        self.now = 0
        if ranked is not None:
            (folder / RANKED).write_text(json.dumps(asdict(ranked)))
        self.conductor = Conductor(
            store=self.store,
            proposer=Proposer(self.store, ranks, self.voter),
            voter=self.voter,
            lengths=self.lengths,
            folder=folder,
            model="",
            say=self.said.append,
            in_time=lambda: True,
            kept=lambda candidate: self.kept.append(candidate.summary),
            before=before,
        )

    def _prepare(self, decision: Decision) -> str:
        if self.unable is not None:
            raise PlanError(self.unable)
        if decision.bytes > self.room_bytes:
            raise NoRoomError("no room", self.room_bytes)
        return "the same"

    def steps(self, count: int) -> None:
        """Train so many, listening between them; a step that is tried takes half."""
        for _ in range(count):
            self.conductor.look()
            self.voter.hear()
            decision = self.voter.reached(self.now)
            if decision is not None:
                self.begun.append(decision)
            self.lengths.begins(self.now)
            self.now += 1


def driven(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    ranked: Ranking | None,
    before: Candidate | None = None,
    ranks: int = 1,
) -> Driven:
    """One whose clock is its steps."""
    one = Driven(folder, ranked, before, ranks)
    clock = {"ns": 0}

    def tick() -> int:
        last = one.begun[-1] if one.begun else None
        fast = last is not None and last.tries(one.now - 1)
        clock["ns"] += 50_000_000 if fast else 100_000_000
        return clock["ns"]

    monkeypatch.setattr(step_lengths, "perf_counter_ns", tick)
    return one


def test_a_gain_is_kept_and_everybody_hears_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One step, a round, and then for good; ten steps of a tenth of a second ahead."""
    one = driven(monkeypatch, tmp_path, ranking(half=500))
    one.steps(140)

    assert [d.what for d in one.begun] == [What.TRY, What.TRY, What.KEEP]
    assert [d.number for d in one.begun] == [1, 2, 3]
    assert one.kept == ["half"]
    assert one.voter.over
    assert one.said[0].startswith("half: kept: the step takes -50.0 %")
    (trial,) = read_trials(tmp_path)
    assert (trial.summary, trial.fate) == ("half", Fate.KEPT)
    assert (trial.measured_ns, trial.predicted_ns) == (50_000_000, 500)


def test_what_comes_late_is_proposed_again_further_ahead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a rank that never answers; after some times nothing more is tried."""
    one = driven(monkeypatch, tmp_path, ranking(half=500), ranks=2)
    one.steps(800)

    tuning = one.conductor.tuning
    assert tuning is not None
    assert len(one.voter.verdicts) == MOST_LATE + 1
    assert all(verdict.startswith(LATE) for verdict in one.voter.verdicts.values())
    assert tuning.stopped == (
        "ranks did not answer in time (rank 1 had not answered, or otherwise)"
    )
    assert one.begun == []


def test_what_a_rank_cannot_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its words are rank 0's."""
    one = driven(monkeypatch, tmp_path, ranking(half=500))
    one.unable = "there is no room"
    one.steps(40)

    assert one.said == ["half: not tried: rank 0: there is no room"]
    assert one.begun == []


def test_what_a_rank_has_room_for_is_tried_instead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It says how much that is."""
    ranked = ranking(all=400)
    rungs = (replace(candidate("some", 500), bytes=70),)
    all_ = (replace(ranked.candidates[0], bytes=90),)
    one = driven(monkeypatch, tmp_path, replace(ranked, candidates=all_, rungs=rungs))
    one.room_bytes = 80
    one.steps(140)

    assert one.said[0] == "all: not tried: rank 0: no room"
    assert one.kept == ["some"]
    assert [(d.what, d.bytes) for d in one.begun] == [
        *((What.TRY, 70), (What.TRY, 0), (What.KEEP, 0)),
    ]


def test_a_rank_that_is_gone_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No other change would find its vote."""
    one = driven(monkeypatch, tmp_path, ranking(half=500, more=400))
    one.steps(1)  # the ranking is read
    one.voter.retire("the script has set lists itself")
    one.steps(40)

    tuning = one.conductor.tuning
    assert tuning is not None
    assert tuning.stopped == "rank 0: the script has set lists itself"
    assert one.voter.verdicts[1] == f"{GONE}{tuning.stopped}"


def test_short_memory_ends_a_trial_in_its_midst(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three steps after a rank has said so, by a decision of its own."""
    one = driven(monkeypatch, tmp_path, ranking(half=500))
    while len(one.begun) < 2:
        one.steps(1)
    one.keys[over_key(2)] = "memory got short on rank 5"
    before = one.now
    one.steps(8)

    back = one.begun[-1]
    assert back.what is What.BACK
    assert back.at_pass - before <= 4
    assert back.at_pass < one.begun[-2].end_pass
    assert one.said == ["half: put back: memory got short on rank 5"]


def test_a_restart_begins_with_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a search: nothing else is tried, and the next restart finds it, too."""
    one = driven(monkeypatch, tmp_path, None, before=candidate("lists", 0))
    one.steps(40)

    assert [(d.what, d.words) for d in one.begun] == [(What.KEEP, "lists")]
    assert one.kept == ["lists"]
    assert one.said == ["in force as before the restart: lists"]
    assert one.voter.over


def test_a_trial_that_nobody_measures_any_more_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rank 0 itself takes part in nothing more: the others hear the end."""
    one = driven(monkeypatch, tmp_path, ranking(half=500, more=400))
    while len(one.begun) < 2:
        one.steps(1)
    one.voter.retire("detached: KeyError")
    one.steps(3)

    tuning = one.conductor.tuning
    assert tuning is not None
    assert tuning.stopped == "detached: KeyError"
    assert one.voter.over
    assert len(one.begun) == 2


def test_without_a_ranking_a_rank_that_is_gone_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing would ever be proposed."""
    one = driven(monkeypatch, tmp_path, None)
    one.voter.retire("no thread could be started")
    one.steps(3)

    assert one.voter.over


def test_a_plan_of_before_the_restart_that_cannot_be_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is said, and no search was started."""
    one = driven(monkeypatch, tmp_path, None, before=candidate("lists", 0))
    one.unable = "layers.9 is no unit of this model"
    one.steps(40)

    assert one.kept == []
    assert one.said == [
        "not in force after the restart: rank 0: layers.9 is no unit of this model"
    ]
    assert one.voter.over
