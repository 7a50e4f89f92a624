"""Which settings are tried next, and what is kept: rank 0's part.

A candidate runs for one step first: where that takes far longer, or memory gets short,
nothing more is lost. Then it runs in rounds of A B B A until `paired_test` knows. What
is kept replaces what was kept before; a candidate is tried on top of the script's own
settings, against those that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fsdpdoctor.quantities import ms, percent, signed_percent
from fsdpdoctor.recorder.autotune.decisions import Blocks, What
from fsdpdoctor.recorder.autotune.paired_test import (
    BLOCK_STEPS,
    CONFIDENCE,
    MIN_GAIN,
    QUADS,
    SETTLING_STEPS,
    Gain,
    Judgement,
    judge,
    quad_gains,
)
from fsdpdoctor.recorder.autotune.ranking import Candidate, Ranking
from fsdpdoctor.recorder.autotune.step_lengths import Block
from fsdpdoctor.recorder.autotune.trials import Fate, Trial, trial_of

MOST_TRIES = 8
"""Candidates in all. They are ranked: the eighth promises little."""

FAR_SLOWER = 1.5
"""Of one step: beyond that no spread explains it."""

PROBE: Blocks = ((1, True),)

_HALF = BLOCK_STEPS + SETTLING_STEPS
ROUND: Blocks = (
    (_HALF, False),
    (_HALF, True),
    (_HALF, True),
    (_HALF, False),
) * QUADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What is to be decided next. Blocks are of steps."""

    what: What
    candidate: Candidate
    blocks: Blocks = ()
    bytes: int = 0  # of memory, more than is in use by now


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A candidate that proved itself."""

    candidate: Candidate
    gain: Gain  # against what was kept before, or the script as it was


@dataclass(slots=True, kw_only=True)
class _Trial:
    candidate: Candidate
    gains: list[float] = field(default_factory=list)
    looks: int = 0
    steps: int = 0
    won: Gain | None = None
    probed: bool = False


class Tuning:
    """Goes through a ranking. `say` gets one line for each decision."""

    def __init__(
        self, ranking: Ranking, say: Callable[[str], None], in_time: Callable[[], bool]
    ) -> None:
        self._say = say
        self._in_time = in_time
        self._measured_ns = ranking.measured_ns
        self._left = list(ranking.candidates)
        self._rungs = ranking.rungs
        self._had: list[Candidate] = []  # their turn
        self._tries = 0
        self._now: _Trial | None = None
        self.kept: list[Kept] = []
        self.steps_tried = 0
        self.trials: list[Trial] = []  # what was measured; the last may go on
        self.stopped: str | None = ranking.withheld

    def proposal(self) -> Proposal | None:
        """What to propose; None: it is over, `stopped` says why."""
        now = self._now or self._next()
        if now is None:
            return None
        if now.won is not None:
            return Proposal(what=What.KEEP, candidate=now.candidate)
        if now.probed:
            return Proposal(what=What.TRY, candidate=now.candidate, blocks=ROUND)
        more = max(now.candidate.bytes - self._held_bytes, 0)
        return Proposal(
            what=What.TRY, candidate=now.candidate, blocks=PROBE, bytes=more
        )

    def _next(self) -> _Trial | None:
        if self.stopped is not None:
            return None
        if self._tries >= MOST_TRIES:
            self.stopped = f"{MOST_TRIES} changes were tried"
        elif not self._in_time():
            self.stopped = "the time was up"
        else:
            best_ns = self._best_ns
            self._left = [c for c in self._left if c.step_ns < (1 - MIN_GAIN) * best_ns]
            if not self._left:
                self.stopped = f"nothing else promises {percent(MIN_GAIN)} of a step"
        if self.stopped is not None:
            return None
        self._tries += 1
        self._now = _Trial(candidate=self._left.pop(0))
        self._had.append(self._now.candidate)
        return self._now

    @property
    def _best_ns(self) -> float:
        return self.kept[-1].candidate.step_ns if self.kept else self._measured_ns

    @property
    def _fate(self) -> str:
        tried = self._now is not None and self._now.steps > 0
        return "put back" if tried else "not tried"

    @property
    def _held_bytes(self) -> int:
        return self.kept[-1].candidate.bytes if self.kept else 0

    def refused(self, why: str) -> None:
        """Ranks did not agree to the last proposal, and will not."""
        self._drop(f"{self._fate}: {why}")

    def no_room(self, why: str, fits_bytes: int) -> None:
        """A rank has no memory for what was proposed, but for so much more than now."""
        self._drop(f"{self._fate}: {why}")
        self._tries -= 1
        self._hold_at_most(self._held_bytes + fits_bytes)

    def over(self, why: str) -> None:
        """Memory got short in the last trial."""
        most = -1 if self._now is None else self._now.candidate.bytes - 1
        self._drop(f"put back: {why}")
        self._hold_at_most(most)

    def _hold_at_most(self, most_bytes: int) -> None:
        """What holds more has no turn; what promises most of what does not, has."""
        fitting = [one for one in self._rungs if one.bytes <= most_bytes]
        left = [one for one in self._left if one.bytes <= most_bytes]
        left += [one for one in fitting[:1] if one not in (*left, *self._had)]
        self._left = sorted(left, key=lambda one: one.step_ns)

    def end(self, why: str) -> None:
        """Try nothing more."""
        self.stopped, self._now = self.stopped or why, None

    def _drop(self, words: str) -> None:
        now, self._now = self._now, None
        assert now is not None
        if now.looks:
            self.trials[-1] = replace(self.trials[-1], fate=Fate.PUT_BACK)
        self._say(f"{now.candidate.summary}: {words}")

    def ran(self, blocks: Sequence[Block], usual_ns: float | None) -> None:
        """The last trial's blocks were run, and took so long."""
        now = self._now
        assert now is not None
        steps = sum(len(block.ns) for block in blocks if block.tried)
        now.steps += steps
        self.steps_tried += steps
        if not now.probed:
            self._probed(now, blocks, usual_ns)
            return
        now.gains += list(_gains(blocks))
        if len(now.gains) < QUADS:
            self._drop("put back: its steps could not be told from others")
            return
        now.looks += 1
        judgement, gain = judge(now.gains, now.looks)
        if now.looks > 1:
            self.trials.pop()  # of the round before
        kept = judgement is Judgement.KEEP
        fate = Fate.KEPT if kept else Fate.ON_TRIAL
        self.trials.append(trial_of(now.candidate, gain, blocks, fate))
        words = f"{gain_words(gain)}, {now.steps} steps"
        if judgement is Judgement.DROP:
            self._drop(f"put back: {words}")
        elif judgement is Judgement.KEEP:
            now.won = gain

    def _probed(
        self, now: _Trial, blocks: Sequence[Block], usual_ns: float | None
    ) -> None:
        now.probed = True
        lengths = [ns for block in blocks for ns in block.ns]
        if usual_ns is not None and lengths and min(lengths) > FAR_SLOWER * usual_ns:
            self._drop(f"put back: its first step took {ms(min(lengths))}")

    def keeps(self) -> Candidate:
        """What was to be kept is in force."""
        now, self._now = self._now, None
        assert now is not None
        assert now.won is not None
        self.kept.append(Kept(candidate=now.candidate, gain=now.won))
        words = f"kept: {gain_words(now.won)}, {now.steps} steps"
        self._say(f"{now.candidate.summary}: {words}")
        return now.candidate

    @property
    def gain_share(self) -> float:
        """Of the step as the script had it: each is a share of what the one before
        left.
        """
        left = 1.0
        for kept in self.kept:
            left *= 1 - kept.gain.share
        return 1 - left


def _gains(blocks: Sequence[Block]) -> list[float]:
    found = []
    for at in range(0, len(blocks) - 3, 4):
        a, b, c, d = blocks[at : at + 4]
        if all((a.ns, b.ns, c.ns, d.ns)):
            found.append(quad_gains((a.ns, d.ns), (b.ns, c.ns)))
    return found


def gain_words(gain: Gain) -> str:
    """By how much a step is shorter, and between which bounds that lies."""
    low, high = signed_percent(-gain.high), signed_percent(-gain.low)
    return (
        f"the step takes {signed_percent(-gain.share)} ({low} to {high}, "
        f"{CONFIDENCE:.1%} sure)"
    )
