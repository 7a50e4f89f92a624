"""Ranks agree on a decision, through a store and nothing else.

[Note: Agreeing on a pass] A change of order or number of collectives that one rank
makes and another does not is a hang, or worse. So a decision has a number and a pass
some seconds ahead at which it is to begin, and a verdict: a key that is written once,
`commit` or why not, by whoever comes first. What the store answers to that write is the
verdict for everybody.

1. Rank 0 writes the proposal. It writes `commit` once every rank has written its vote;
   just before the pass, it writes that they were late.
2. A rank votes when it has heard of the proposal before its pass, and can do it; the
   vote says what that comes to here, and votes of different things are none. Before it
   votes, the pass is marked: this rank will not begin it without the verdict. A rank
   that hears too late, or cannot, does not vote, and writes why not.
3. A rank that comes to the pass without knowing the verdict tries to write that it did
   not hear in time, and takes what the store answers. It waits for that, the others
   wait for it in the next collective, as for any rank that is late.

Nobody begins a decision that is not committed; `commit` needs every vote; after a vote
nobody passes the pass without the verdict; there is one verdict. So either all ranks
begin it at the pass, or none does. Votes and verdicts may be late, lost or written
twice: all of them are written once, under a name of their own.

What remains is a rank that has voted and then cannot reach the store at all for as long
as the lead and WAIT_S: it cannot know, no protocol could tell it. It changes nothing,
says so and never votes again. A store that is gone for so long, under torchrun and
where rank 0 holds it alike, is a job about to end.

No store call is made by the training thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from fsdpdoctor.errors import FsdpDoctorError, NoRoomError
from fsdpdoctor.recorder.autotune.decisions import Decision, What

COMMIT = "commit"
LATE = "late: "
"""How a verdict begins that may be otherwise at a later pass."""
GONE = "gone: "
"""How the verdicts of a rank begin that takes part in nothing more."""
SHORT = "short: "
"""How the verdicts of a rank begin that has no memory for it. What it has memory for
follows, in bytes, then `: ` and words."""

WAIT_S = 20.0
"""How long a rank stands at a pass for a verdict that it does not know: once in a job,
since it takes part in no decision afterwards."""


class Store(Protocol):
    """What ranks share. Every call may raise RuntimeError or OSError, done or not."""

    def read(self, key: str) -> str | None:
        """What was written; None: nothing yet."""
        ...

    def has_all(self, keys: Sequence[str]) -> bool:
        """Whether each of them was written."""
        ...

    def put_first(self, key: str, value: str) -> str:
        """Write where nothing was written; what is there then."""
        ...


def _proposal(number: int) -> str:
    return f"{number}/proposal"


def _vote(number: int, rank: int, what: str) -> str:
    return f"{number}/vote/{rank}/{what}"


def _verdict(number: int) -> str:
    return f"{number}/verdict"


class Voter:
    """One rank's part, see [Note: Agreeing on a pass]. `hear` is called by a thread of
    its own, `reached` by the training's.
    """

    def __init__(
        self, store: Store, rank: int, prepare: Callable[[Decision], str]
    ) -> None:
        """`prepare` makes a decision ready, and says in a word what it comes to, the
        same on ranks that would do the same. Raises FsdpDoctorError where it cannot be.
        """
        self._store = store
        self._rank = rank
        self._prepare = prepare
        self.prepared = ""  # what the last one comes to
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._needed = False  # the training stands at the pass
        self._open: Decision | None = None  # proposed, and not yet over
        self._voted = False  # for it; where the store failed it votes again
        self.number = 1  # of that decision, or of the next
        self.next_pass = 0
        self.retired: str | None = None  # why it takes part in nothing more
        self.over = False  # nothing more is proposed
        self.verdicts: dict[int, str] = {}

    def hear(self) -> None:
        """Look for what is new, once. Raises what the store raises."""
        open_, needed = self._open, self._needed
        if open_ is None:
            self._look_for_proposal()
            return
        key = _verdict(open_.number)
        if not self._voted:
            self._vote(open_)
        if needed:
            why = f"{LATE}rank {self._rank} did not hear the verdict in time"
            self._settle(open_, self._store.put_first(key, why))
        elif (verdict := self._store.read(key)) is not None:
            self._settle(open_, verdict)

    def _look_for_proposal(self) -> None:
        number = self.number
        text = self._store.read(_proposal(number))
        if text is None:
            return
        try:
            decision = Decision.of_text(text)
            if decision.number != number:
                raise ValueError(f"it is of decision {decision.number}")
        except ValueError as error:
            self._refuse(number, f"rank {self._rank} cannot read it: {error}")
            return
        if decision.what is What.END:
            self.over = True
        elif self.retired is not None:  # nobody is to wait for its vote
            self._refuse(number, f"{GONE}rank {self._rank}: {self.retired}")
        else:
            self._answer(decision)

    def _answer(self, decision: Decision) -> None:
        number = decision.number
        try:
            self.prepared = self._prepare(decision)
        except NoRoomError as error:
            why = f"{SHORT}{error.fits_bytes}: rank {self._rank}: {error}"
            self._refuse(number, why)
            return
        except FsdpDoctorError as error:
            self._refuse(number, f"rank {self._rank}: {error}")
            return
        if self._opened(decision):
            self._vote(decision)
        else:
            self._refuse(number, f"{LATE}rank {self._rank} heard of it late")

    def _opened(self, decision: Decision) -> bool:
        """Have the training not begin its pass without a verdict; False: it has."""
        with self._lock:
            if self.next_pass > decision.at_pass:
                return False
            self._answered.clear()
            self._voted = False
            self._open = decision
        return True

    def _vote(self, decision: Decision) -> None:
        key = _vote(decision.number, self._rank, self.prepared)
        self._store.put_first(key, "yes")
        self._voted = True

    def _refuse(self, number: int, why: str) -> None:
        # Of a decision for which this rank has not voted there can be no commit.
        self.verdicts[number] = self._store.put_first(_verdict(number), why)
        self.number = number + 1

    def _settle(self, decision: Decision, verdict: str) -> None:
        with self._lock:
            if self._open is not decision:
                return
            self.verdicts[decision.number] = verdict
            if verdict != COMMIT:
                self._over()
        self._answered.set()

    def _over(self) -> None:
        self._open, self._needed = None, False
        self.number += 1

    def reached(
        self, this_pass: int, wait: Callable[[], object] | None = None
    ) -> Decision | None:
        """A pass begins: the decision that begins with it on every rank, if any.

        `wait` returns once `hear` has the verdict, or later than can be waited.
        """
        with self._lock:
            self.next_pass = this_pass + 1
            decision = self._open
            if decision is None or this_pass < decision.at_pass:
                return None
            self._needed = decision.number not in self.verdicts
        if self._needed:
            (wait or self._wait)()
        with self._lock:
            verdict = self.verdicts.get(decision.number)
            if self._open is decision:
                self._over()
            if verdict is None:
                self.retire(
                    "the job's store did not answer: nothing was changed here, and "
                    f"decision {decision.number} may be in force on other ranks"
                )
        return decision if verdict == COMMIT else None

    def _wait(self) -> None:
        self._answered.wait(WAIT_S)

    def retire(self, why: str) -> None:
        """Vote for nothing more."""
        if self.retired is None:
            self.retired = why

    @property
    def waits(self) -> bool:
        """Whether something is proposed that has not begun."""
        return self._open is not None

    def waits_for_store(self) -> bool:
        """Whether the training stands, until `hear` was called."""
        return self._needed


class Proposer:
    """Rank 0's second part: it proposes, and counts votes."""

    def __init__(self, store: Store, world_size: int, voter: Voter) -> None:
        self._store = store
        self._world = world_size
        self._voter = voter
        self._proposed: Decision | None = None

    def propose(self, decision: Decision) -> None:
        """Propose it: at most one at a time. May be repeated where the store failed."""
        self._store.put_first(_proposal(decision.number), decision.to_text())
        self._proposed = decision

    def end(self, number: int) -> None:
        """Propose nothing more."""
        last = Decision(number=number, at_pass=0, what=What.END)
        self._store.put_first(_proposal(number), last.to_text())

    def count(self) -> None:
        """Look at the votes, once. Raises what the store raises."""
        proposed = self._proposed
        if proposed is None:
            return
        if proposed.number in self._voter.verdicts:
            self._proposed = None
            return
        number = proposed.number
        what = self._voter.prepared
        votes = [_vote(number, rank, what) for rank in range(self._world)]
        if self._store.has_all(votes):
            self._store.put_first(_verdict(number), COMMIT)
        elif self._voter.next_pass >= proposed.at_pass:
            missing = [
                rank for rank, key in enumerate(votes) if not self._store.has_all([key])
            ]
            names = ", ".join(map(str, missing[:3]))
            more = "" if len(missing) <= 3 else f" and {len(missing) - 3} more"
            why = f"{LATE}rank {names}{more} had not answered, or otherwise"
            self._store.put_first(_verdict(number), why)
