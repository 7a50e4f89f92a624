"""Rank 0's thread: from what the tuning proposes to decisions that ranks agree on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fsdpdoctor.quantities import SECOND
from fsdpdoctor.recorder.autotune.agreement import (
    COMMIT,
    GONE,
    LATE,
    SHORT,
    Proposer,
    Store,
    Voter,
)
from fsdpdoctor.recorder.autotune.decisions import Blocks, Decision, What
from fsdpdoctor.recorder.autotune.paired_test import SETTLING_STEPS
from fsdpdoctor.recorder.autotune.ranking import Candidate, Ranking, read_ranking
from fsdpdoctor.recorder.autotune.step_lengths import StepLengths, blocks_of
from fsdpdoctor.recorder.autotune.trials import Trial, save_trials
from fsdpdoctor.recorder.autotune.tuning import Proposal, Tuning

LEAD_S = 1.0
"""From a proposal to its pass: ranks look for one ten times a second. It costs nothing,
the job trains meanwhile as it did before."""

LEAD_STEPS = 3
"""At least, where a step takes longer."""

MOST_LATE = 5
"""Proposals one after the other that came too late for some rank, each with twice the
lead of the one before."""


def over_key(number: int) -> str:
    """Where a rank writes that memory gets short under a decision."""
    return f"{number}/over"


def _room_and_words(verdict: str) -> tuple[int, str]:
    """How many bytes a rank has room for, 0 where it is not for them, and its words."""
    if not verdict.startswith(SHORT):
        return 0, verdict
    fits, _, words = verdict.removeprefix(SHORT).partition(": ")
    return int(fits), words


class Conductor:
    """Called again and again by rank 0's thread; never by the training."""

    def __init__(
        self,
        *,
        store: Store,
        proposer: Proposer,
        voter: Voter,
        lengths: StepLengths,
        folder: Path,
        model: str,
        say: Callable[[str], None],
        in_time: Callable[[], bool],
        kept: Callable[[Candidate], None],
        before: Candidate | None,
    ) -> None:
        """`kept` is called with what is, `before` was before the launcher's restart."""
        self._store = store
        self._proposer = proposer
        self._voter = voter
        self._lengths = lengths
        self._folder = folder
        self._model = model
        self._say = say
        self._in_time = in_time
        self._kept = kept
        self._before = before
        self._asked: Decision | None = None
        self._sent = False
        self._late = 0
        self._noted: list[Trial] = []
        self._usual_ns: float | None = None  # before the trial that is on
        self._short: str | None = None  # of memory, in it
        self.tuning: Tuning | None = None
        self.others: tuple[str, ...] = ()

    def look(self) -> Tuning | None:
        """Do what can be done now; the tuning, once it is over. Raises what the store
        raises, and may be called again; ValueError where the ranking cannot be read.
        """
        self._proposer.count()
        if self._before is not None:
            self._resume(self._before)
            return None
        tuning = self.tuning
        if tuning is None:
            if (why := self._voter.retired) is None:
                self._read()
            else:
                self._withhold(why)
            return None
        if self._asked is not None:
            self._follow(tuning, self._asked)
            self._note(tuning.trials)
        elif tuning.stopped is None:
            self._ask(tuning)
        if self._asked is not None or tuning.stopped is None:
            return None
        self._proposer.end(self._voter.number)
        return tuning

    def _read(self) -> None:
        ranking = read_ranking(self._folder)
        if ranking is not None:
            self.others = ranking.others
            self.tuning = Tuning(ranking, self._say, self._in_time)

    def _resume(self, before: Candidate) -> None:
        """Have what was kept before the restart in force; it is not tuned again."""
        usual_ns, asked = self._lengths.usual_ns(), self._asked
        if asked is None:
            if usual_ns is not None:
                self._send(self._decision(What.KEEP, before, usual_ns))
            return
        if not self._sent:
            self._send(asked)
        verdict = self._voter.verdicts.get(asked.number)
        if verdict is None or self._voter.next_pass <= asked.at_pass:
            return
        self._asked = None
        if verdict == COMMIT:
            self._before = None
            self._kept(before)
            self._say(f"in force as before the restart: {before.summary}")
            self._withhold("it was tuned before its restart")
        elif verdict.startswith(LATE) and self._late < MOST_LATE:
            self._late += 1
        else:
            self._before = None
            _, words = _room_and_words(verdict)
            self._say(f"not in force after the restart: {words}")
            self._withhold("what was kept before the restart cannot be")

    def _withhold(self, why: str) -> None:
        nothing = Ranking(measured_ns=0, withheld=why)
        self.tuning = Tuning(nothing, self._say, self._in_time)

    def _ask(self, tuning: Tuning) -> None:
        usual_ns = self._lengths.usual_ns()
        if usual_ns is None or (proposal := tuning.proposal()) is None:
            return
        self._usual_ns, self._short = usual_ns, None
        blocks = self._in_passes(proposal)
        decision = self._decision(proposal.what, proposal.candidate, usual_ns)
        self._send(replace(decision, blocks=blocks, bytes=proposal.bytes))

    def _decision(self, what: What, candidate: Candidate, usual_ns: float) -> Decision:
        return Decision(
            number=self._voter.number,
            at_pass=self._pass_ahead(usual_ns),
            what=what,
            settings=candidate.apply,
            words=candidate.summary,
            bytes=candidate.bytes,
            model=self._model,
        )

    def _pass_ahead(self, usual_ns: float) -> int:
        lead_s = LEAD_S * 2**self._late
        steps = max(LEAD_STEPS, math.ceil(lead_s * SECOND / usual_ns))
        return self._lengths.ahead(steps)

    def _in_passes(self, proposal: Proposal) -> Blocks:
        passes = self._lengths.passes
        return tuple((steps * passes, tried) for steps, tried in proposal.blocks)

    def _send(self, decision: Decision) -> None:
        self._asked, self._sent = decision, False
        self._proposer.propose(decision)
        self._sent = True

    def _follow(self, tuning: Tuning, asked: Decision) -> None:
        if not self._sent:
            self._send(asked)
        verdict = self._voter.verdicts.get(asked.number)
        if verdict is None:
            return
        if asked.what is What.BACK:
            self._asked = None  # agreed on or not: the trial ends by itself, too
            tuning.over(self._short or "")
        elif verdict != COMMIT:
            self._not_agreed(tuning, verdict)
        elif asked.what is What.KEEP:
            if self._voter.next_pass > asked.at_pass:
                self._asked = None
                self._kept(tuning.keeps())
        else:
            self._trial(tuning, asked)

    def _note(self, trials: Sequence[Trial]) -> None:
        if trials != self._noted:
            self._noted = [*trials]
            with contextlib.suppress(OSError):  # a picture less
                save_trials(self._folder, trials)

    def _not_agreed(self, tuning: Tuning, verdict: str) -> None:
        self._asked = None
        if verdict.startswith(GONE):
            tuning.end(verdict.removeprefix(GONE))
        elif verdict.startswith(SHORT):
            fits_bytes, words = _room_and_words(verdict)
            tuning.no_room(words, fits_bytes)
        elif not verdict.startswith(LATE):
            tuning.refused(verdict)
        elif self._late < MOST_LATE:
            self._late += 1  # and it is proposed again
        else:
            tuning.end(f"ranks did not answer in time ({verdict.removeprefix(LATE)})")

    def _trial(self, tuning: Tuning, asked: Decision) -> None:
        retired = self._voter.retired
        if retired is not None and self._voter.number > asked.number:
            self._asked = None  # it has begun, and ends by itself; nobody measures it
            tuning.end(retired)
        elif self._lengths.until(asked.end_pass):
            self._asked, self._late = None, 0
            lengths = list(self._lengths.known)
            settling = SETTLING_STEPS if len(asked.blocks) > 1 else 0  # or a probe
            blocks = blocks_of(asked, lengths, settling)
            short = self._store.read(over_key(asked.number))
            if short is None:
                tuning.ran(blocks, self._usual_ns)
            else:
                tuning.over(short)
        else:
            self._cut_short(asked)

    def _cut_short(self, asked: Decision) -> None:
        self._short = self._store.read(over_key(asked.number))
        if self._short is not None:
            back = Decision(
                number=self._voter.number,
                at_pass=self._lengths.ahead(LEAD_STEPS),
                what=What.BACK,
                model=self._model,
            )
            self._send(back)
