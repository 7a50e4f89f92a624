"""What is tried, in which order, and what is kept of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fsdpdoctor.recorder.autotune.decisions import What
from fsdpdoctor.recorder.autotune.ranking import Candidate, Ranking
from fsdpdoctor.recorder.autotune.step_lengths import Block
from fsdpdoctor.recorder.autotune.trials import Fate
from fsdpdoctor.recorder.autotune.tuning import PROBE, ROUND, Tuning

Length = Callable[[str], float]
"""Of the next step, under some settings."""


def candidate(name: str, step_ns: int) -> Candidate:
    """One that is predicted to take so long."""
    return Candidate(summary=name, plan={}, apply={}, code="", step_ns=step_ns, bytes=0)


def ranking(**predicted_ns: int) -> Ranking:
    """Of a step that takes 1,000 ns as it is."""
    found = tuple(candidate(name, ns) for name, ns in predicted_ns.items())
    return Ranking(measured_ns=1000, candidates=found)


def play(tuning: Tuning, length: Length) -> list[tuple[What, str, int]]:
    """What was proposed, with its steps, where every rank agrees to everything."""
    said = []
    force = "as it is"
    while (proposal := tuning.proposal()) is not None:
        name = proposal.candidate.summary
        said.append((proposal.what, name, sum(n for n, _ in proposal.blocks)))
        if proposal.what is What.KEEP:
            force = name
            tuning.keeps()
            continue
        blocks = [
            Block(tried, [length(name if tried else force) for _ in range(steps)])
            for steps, tried in proposal.blocks
        ]
        tuning.ran(blocks, length(force))
    return said


def steady(lengths: Mapping[str, float]) -> Length:
    """Steps of one length each, with half a percent of noise."""
    chance = random.Random(0)
    return lambda name: lengths[name] * chance.gauss(1, 0.005)


def tuned(ranked: Ranking, length: Length) -> tuple[Tuning, list[str], list[Any]]:
    """The tuning, what it said, what was proposed."""
    lines: list[str] = []
    tuning = Tuning(ranked, lines.append, lambda: True)
    return tuning, lines, play(tuning, length)


def test_the_best_is_kept_and_nothing_less_is_tried() -> None:
    """One step first, then rounds until it is sure; what promises less than what is
    kept has no turn.
    """
    tuning, lines, proposed = tuned(
        ranking(both=700, one=800, little=998),
        steady({"as it is": 1000, "both": 700}),
    )

    steps = sum(n for n, _ in ROUND)
    assert proposed == [
        (What.TRY, "both", sum(n for n, _ in PROBE)),
        (What.TRY, "both", steps),
        (What.KEEP, "both", 0),
    ]
    assert [kept.candidate.summary for kept in tuning.kept] == ["both"]
    assert abs(tuning.gain_share - 0.3) < 0.01
    assert len(lines) == 1
    assert lines[0].startswith("both: kept: the step takes -30.")
    assert tuning.stopped == "nothing else promises 0.5 % of a step"
    (trial,) = tuning.trials
    assert (trial.summary, trial.predicted_ns, trial.fate) == ("both", 700, Fate.KEPT)
    assert trial.low_ns < trial.measured_ns < trial.high_ns


def test_what_does_not_hold_is_put_back_and_the_next_is_tried() -> None:
    """A wrong prediction costs its trial; a gain is kept on top of the last."""
    tuning, lines, _ = tuned(
        ranking(wrong=600, small=900, more=890),
        steady({"as it is": 1000, "wrong": 1100, "small": 900, "more": 890}),
    )

    assert [line.split(": the step")[0] for line in lines] == [
        "wrong: put back",
        "small: kept",
        "more: kept",
    ]
    fates = [(trial.summary, trial.fate) for trial in tuning.trials]
    assert fates == [
        ("wrong", Fate.PUT_BACK),
        ("small", Fate.KEPT),
        ("more", Fate.KEPT),
    ]
    assert abs(tuning.gain_share - 0.11) < 0.005


def test_a_far_slower_step_is_the_only_one() -> None:
    """No second step runs under settings that take twice as long."""
    _, lines, proposed = tuned(
        ranking(bad=500), steady({"as it is": 1000, "bad": 2000})
    )

    assert [steps for _, _, steps in proposed] == [1]
    assert lines[0].startswith("bad: put back: its first step took")


def test_what_there_is_room_for_is_tried() -> None:
    """Of the rungs the fastest that fits, of the rest what fits; a refusal is no try,
    and what has had its turn has no other. On top of what is kept, less is needed.
    """
    lines: list[str] = []
    made = ranking(all=500, lists=900)
    rungs = [
        replace(candidate(name, ns), bytes=size)
        for name, ns, size in (("three", 600, 30), ("two", 700, 20), ("one", 800, 10))
    ]
    made = replace(
        made,
        candidates=(replace(made.candidates[0], bytes=40), made.candidates[1]),
        rungs=(*rungs,),
    )
    tuning = Tuning(made, lines.append, lambda: True)
    asked = []
    room = iter([25, 15, 9])
    for _ in range(3):
        proposal = tuning.proposal()
        assert proposal is not None
        asked.append((proposal.candidate.summary, proposal.bytes))
        tuning.no_room("no room", next(room))
    assert asked == [("all", 40), ("two", 20), ("one", 10)]
    found = play(tuning, steady({"as it is": 1000, "lists": 900}))
    assert [name for _, name, _ in found] == ["lists"] * 3
    assert lines[:3] == [f"{n}: not tried: no room" for n in ("all", "two", "one")]


def test_what_holds_as_much_as_was_too_much_is_not_tried() -> None:
    """Memory got short in a trial: the next is what holds less."""
    lines: list[str] = []
    made = ranking(all=500, half=700, alike=510)
    held = {"all": 40, "half": 20, "alike": 40}
    made = replace(
        made,
        candidates=tuple(replace(c, bytes=held[c.summary]) for c in made.candidates),
        rungs=(replace(candidate("rung", 600), bytes=39),),
    )
    tuning = Tuning(made, lines.append, lambda: True)
    assert tuning.proposal() is not None
    tuning.over("memory got short on rank 0")

    found = play(tuning, steady({"as it is": 1000, "rung": 1000, "half": 700}))
    assert [name for what, name, _ in found if what is What.KEEP] == ["half"]
    assert next(name for _, name, _ in found) == "rung"


def test_noise_keeps_nothing() -> None:
    """Eight candidates that change nothing, on a machine whose steps differ by 10 % and
    that slowly gets busier: of 40 runs, 39 keep nothing.
    """
    names = {f"c{at}": 600 + at for at in range(8)}
    kept = 0
    for seed in range(40):
        chance = random.Random(seed)
        steps = iter(range(10**9))

        def length(
            name: str, chance: random.Random = chance, steps: Any = steps
        ) -> float:
            busy = 1 + 0.0001 * next(steps)
            return float(1000 * busy * chance.lognormvariate(0, 0.1))

        tuning, _, _ = tuned(ranking(**names), length)
        kept += bool(tuning.kept)
    assert kept <= 1


def test_the_time_ends_it() -> None:
    """A trial that has begun is ended; no other begins."""
    lines: list[str] = []
    left = iter([True, False])
    tuning = Tuning(ranking(one=700, two=710), lines.append, lambda: next(left))

    play(tuning, steady({"as it is": 1000, "one": 1000, "two": 710}))

    assert tuning.kept == []
    assert tuning.stopped == "the time was up"


def test_without_predictions_nothing_is_tried() -> None:
    """It says why there are none."""
    withheld = Ranking(measured_ns=1000, withheld="the replay is off")
    tuning, _, proposed = tuned(withheld, steady({}))

    assert (proposed, tuning.stopped) == ([], "the replay is off")


def test_what_ranks_refuse_is_not_tried() -> None:
    """It is said, and the next has its turn."""
    lines: list[str] = []
    tuning = Tuning(ranking(one=700, two=710), lines.append, lambda: True)
    assert tuning.proposal() is not None
    tuning.refused("rank 3: no room")

    following = tuning.proposal()

    assert lines == ["one: not tried: rank 3: no room"]
    assert following is not None
    assert following.candidate.summary == "two"
