"""Either all ranks begin a decision at its pass, or none does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from fsdpdoctor.errors import PlanError
from fsdpdoctor.recorder.autotune.agreement import COMMIT, GONE, LATE, Proposer, Voter
from fsdpdoctor.recorder.autotune.decisions import Decision, What

Keys = dict[str, str]


class FaultyStore:
    """One rank's way to the keys that all share.

    A call may fail before it reached them, after, or long before it reaches them: then
    the write lies in `late`, and is done at some other moment.
    """

    def __init__(self, keys: Keys, fails: Callable[[], str]) -> None:
        self._keys = keys
        self._fails = fails
        self.late: list[tuple[str, str]] = []

    def read(self, key: str) -> str | None:
        """Also fails."""
        if self._fails():
            raise RuntimeError("timeout")
        return self._keys.get(key)

    def has_all(self, keys: Sequence[str]) -> bool:
        """Also fails."""
        if self._fails():
            raise RuntimeError("timeout")
        return all(key in self._keys for key in keys)

    def put_first(self, key: str, value: str) -> str:
        """Written once, whoever comes first."""
        fault = self._fails()
        if fault == "late":
            self.late.append((key, value))
        if fault in ("before", "late"):
            raise RuntimeError("timeout")
        there = self._keys.setdefault(key, value)
        if fault == "after":
            raise RuntimeError("timeout")
        return there


@dataclass
class World:
    """Ranks that train and listen, one small step of one of them at a time."""

    ranks: int
    chance: random.Random
    fault_share: float = 0.0
    down: set[int] = field(default_factory=set)  # ranks that reach no store
    skew: int = 1  # passes that one may be ahead of the last
    speed: dict[int, float] = field(default_factory=dict)
    able: Callable[[int], str | None] = lambda rank: None
    comes_to: dict[int, str] = field(default_factory=dict)  # what a rank would do

    def __post_init__(self) -> None:
        self.keys: Keys = {}
        self.stores = [
            FaultyStore(self.keys, self._fault_of(r)) for r in range(self.ranks)
        ]
        self.voters = [
            Voter(self.stores[r], r, self._prepare(r)) for r in range(self.ranks)
        ]
        self.proposer = Proposer(self.stores[0], self.ranks, self.voters[0])
        self.passes = [0] * self.ranks
        self.standing: set[int] = set()
        self.begun: dict[int, list[tuple[int, int]]] = {}  # by number: rank, pass

    def _prepare(self, rank: int) -> Callable[[Decision], str]:
        def prepare(decision: Decision) -> str:
            if (why := self.able(rank)) is not None:
                raise PlanError(why)
            return self.comes_to.get(rank, "the same")

        return prepare

    def _fault_of(self, rank: int) -> Callable[[], str]:
        def fault() -> str:
            if rank in self.down:
                return "before"
            if self.chance.random() >= self.fault_share:
                return ""
            return self.chance.choice(["before", "after", "late"])

        return fault

    def propose(self, decision: Decision) -> None:
        """Until it is in the store."""
        for _ in range(1000):
            try:
                self.proposer.propose(decision)
            except RuntimeError:
                continue
            return

    def listens(self, rank: int) -> None:
        """A round of a rank's thread."""
        try:
            self.voters[rank].hear()
            if rank == 0:
                self.proposer.count()
        except RuntimeError:
            pass
        store = self.stores[rank]
        if store.late and self.chance.random() < 0.3:
            self.keys.setdefault(*store.late.pop(0))

    def trains(self, rank: int) -> None:
        """A rank begins its next pass, if the collectives let it."""
        if rank in self.standing or self.passes[rank] - min(self.passes) >= self.skew:
            return
        this, voter = self.passes[rank], self.voters[rank]
        self.standing.add(rank)
        decision = voter.reached(this, lambda: self._wait(voter))
        self.standing.discard(rank)
        self.passes[rank] = this + 1
        if decision is not None:
            self.begun.setdefault(decision.number, []).append((rank, this))

    def _wait(self, voter: Voter) -> None:
        number = voter.number
        for _ in range(3000):
            if number in voter.verdicts:
                return
            self.something()

    def something(self) -> None:
        """A step of a rank that chance names."""
        rank = self.chance.randrange(self.ranks)
        if self.chance.random() < self.speed.get(rank, 0.5):
            self.trains(rank)
        else:
            self.listens(rank)

    def runs(self, passes: int) -> None:
        """Until every rank has begun so many passes."""
        while min(self.passes) < passes:
            self.something()


def decision(number: int, at_pass: int) -> Decision:
    """One that any rank can do."""
    return Decision(number=number, at_pass=at_pass, what=What.KEEP)


def all_or_none(world: World, number: int, at_pass: int) -> bool:
    """Whether it has begun, everywhere at its pass."""
    begun = sorted(world.begun.get(number, []))
    assert begun in ([], [(rank, at_pass) for rank in range(world.ranks)])
    return bool(begun)


def seeds(count: int) -> Iterator[random.Random]:
    """Chances, the same in every run of the test."""
    return (random.Random(seed) for seed in range(count))


def test_a_quiet_job_agrees() -> None:
    """Ranks that listen often enough all begin at the pass, whoever is ahead."""
    for chance in seeds(50):
        world = World(4, chance, speed=dict.fromkeys(range(4), 0.1))
        world.propose(decision(1, 30))
        world.runs(40)

        assert all_or_none(world, 1, 30)
        assert [voter.verdicts for voter in world.voters] == [{1: COMMIT}] * 4


@pytest.mark.parametrize("skew", [1, 6])
def test_lost_late_and_repeated_messages_divide_nobody(skew: int) -> None:
    """Every second call of the store fails, some after they were done, some are done
    long after they failed; ranks are fast and slow. Both answers come, never two.
    """
    agreed = 0
    for chance in seeds(60):
        world = World(3, chance, fault_share=0.5, skew=skew)
        world.speed = {rank: chance.choice([0.1, 0.5, 0.9]) for rank in range(3)}
        pass_, number = 0, 1
        for _ in range(4):
            number = world.voters[0].number
            pass_ = max(world.passes) + chance.choice([1, 3, 10, 30])
            world.propose(decision(number, pass_))
            world.runs(pass_ + 3)
            agreed += all_or_none(world, number, pass_)
            assert not any(voter.retired for voter in world.voters)
    assert 20 < agreed < 220


def test_a_rank_that_cannot_hear_keeps_all_from_it() -> None:
    """It has not voted, so nobody begins; nobody waits for it."""
    world = World(3, random.Random(1), down={2}, speed={0: 0.1, 1: 0.1})
    world.propose(decision(1, 10))
    world.runs(20)

    assert not all_or_none(world, 1, 10)
    assert world.voters[0].verdicts == {
        1: f"{LATE}rank 2 had not answered, or otherwise"
    }


def test_a_rank_that_refuses_says_why() -> None:
    """What one cannot do, none does; the next decision is agreed on."""
    world = World(3, random.Random(2), speed=dict.fromkeys(range(3), 0.1))
    world.able = lambda rank: "it has no room" if rank == 1 else None
    world.propose(decision(1, 20))
    world.runs(25)
    world.able = lambda rank: None
    world.propose(decision(2, 60))
    world.runs(65)

    assert not all_or_none(world, 1, 20)
    assert world.voters[0].verdicts[1] == "rank 1: it has no room"
    assert all_or_none(world, 2, 60)


def test_ranks_that_would_do_different_things_do_nothing() -> None:
    """Each could; what it comes to is in its vote."""
    world = World(3, random.Random(6), speed=dict.fromkeys(range(3), 0.1))
    world.comes_to = {1: "something else"}
    world.propose(decision(1, 20))
    world.runs(25)

    assert not all_or_none(world, 1, 20)
    assert "rank 1 had not answered, or otherwise" in world.voters[0].verdicts[1]


def test_a_rank_that_has_lost_the_store_changes_nothing_and_says_so() -> None:
    """After its vote nobody can tell it the verdict. It never votes again."""
    world = World(2, random.Random(3), speed={0: 0.1, 1: 0.1})
    world.propose(decision(1, 20))
    while "1/vote/1/the same" not in world.keys:
        world.something()
    world.down = {1}
    world.runs(25)

    assert world.begun == {1: [(0, 20)]}
    assert world.voters[1].retired == (
        "the job's store did not answer: nothing was changed here, and decision 1 may "
        "be in force on other ranks"
    )
    world.down = set()
    world.propose(decision(2, 60))
    world.runs(65)
    assert not all_or_none(world, 2, 60)
    assert world.voters[0].verdicts[2].startswith(f"{GONE}rank 1: the job's store")


def test_a_proposal_of_another_version_is_refused() -> None:
    """What a rank cannot read it does not vote for."""
    world = World(2, random.Random(4), speed={0: 0.1, 1: 0.1})
    world.keys["1/proposal"] = '{"number": 1, "of": "a later version"}'
    world.runs(20)

    assert world.begun == {}
    assert "cannot read it" in world.voters[1].verdicts[1]


def test_the_end_is_heard_by_all() -> None:
    """Then no rank asks the store any more."""
    world = World(3, random.Random(5))
    world.proposer.end(1)
    world.runs(20)

    assert [voter.over for voter in world.voters] == [True] * 3
