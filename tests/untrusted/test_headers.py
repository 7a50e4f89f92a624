"""Headers that decode and lie."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import msgspec
import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.rank_end import Call, Position, Stall
from fsdpdoctor.schema import (
    GroupSpec,
    MemoryMoment,
    MemoryStep,
    ModelSpec,
    RankHeader,
    RunHeader,
    UnitSpec,
)
from fsdpdoctor.schema.units import IdleParentSpec, ReplicaKind, ReplicaSpec
from fsdpdoctor.untrusted.headers import (
    LONGEST_WORD,
    MOST_RANKS,
    MOST_WORDS,
    checked_header,
    checked_values,
    short_word,
)

UNIT = UnitSpec(fqn="layers.0", module_class="Block", shard_group=0)
RANK = RankHeader(
    rank=0,
    world_size=2,
    units=(UNIT,),
    groups=(GroupSpec(name="0", ranks=(0, 1), size=2),),
    model=ModelSpec(wrapper="fsdp2", forward_order=(0,)),
)
MODEL = ModelSpec(wrapper="fsdp2")
IDLE = IdleParentSpec(fqn="", module_class="Net", params=1, units=(0, -2))
BUFFER = ReplicaKind.BUFFER
MEMORY = MemoryStep(step=0)
MOMENT = MemoryMoment(time_ns=0, phase=9, event="forward")
RUN = RunHeader(run_id="x", source="recorded", world_size=2)


def checked(header: Any) -> Any:
    """As it is read from a file."""
    return checked_header(header, json.dumps(asdict(header)).encode())


def test_a_header_that_tells_the_truth_is_left_as_it_is() -> None:
    """The very same object: most headers are."""
    assert checked(RANK) is RANK
    assert checked(RUN) is RUN


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (
            replace(RUN, world_size=10**9),
            f"world_size is 1000000000; expected 1 to {MOST_RANKS:,}",
        ),
        (replace(RUN, world_size=0), "world_size is 0"),
        (replace(RUN, schema_version=0), "schema_version is 0"),
        (replace(RUN, every=0), "every is 0; expected 1 or more"),
        (
            replace(RUN, started_unix_ns=1 << 62),
            "started_unix_ns is 4611686018427387904",
        ),
        (replace(RANK, rank=-1), "rank is -1"),
        (
            replace(RANK, health={"events": -(10**30)}),
            "health of events is -1000000000",
        ),
        (
            replace(RANK, units=(replace(UNIT, forward_prefetch=(1,)),)),
            "forward_prefetch of unit 0 names number 1 of 1",
        ),
        (
            replace(RANK, units=(replace(UNIT, backward_prefetch=(-1,)),)),
            "backward_prefetch of unit 0 names number -1 of 1",
        ),
        (
            replace(RANK, units=(replace(UNIT, model=1_000_000_000),)),
            "model of unit 0 names number 1000000000 of 1",
        ),
        (
            replace(RANK, units=(replace(UNIT, model=-2),)),
            "model of unit 0 names number -2 of 1",
        ),
        (
            replace(RANK, units=(replace(UNIT, replicate_group=7),)),
            "replicate_group of unit 0 names number 7 of 1",
        ),
        (replace(RANK, units=()), "forward_order names number 0 of 0"),
        (
            replace(RANK, model=replace(MODEL, idle_parents=(IDLE,))),
            "idle_parents names number -2 of 1",
        ),
        (
            replace(RANK, replicas=(ReplicaSpec(name="a", kind=BUFFER, steps=(1, 2)),)),
            "a replica has 0 values of 2 steps",
        ),
        (
            replace(RANK, memory=replace(MEMORY, moments=(MOMENT,))),
            "phase of memory names number 9 of 4",
        ),
    ],
)
def test_a_lie_is_told_in_a_line(header: Any, words: str) -> None:
    """Which field, what it says, and what could be."""
    with pytest.raises(InputError) as raised:
        checked(header)

    assert words in str(raised.value)


def test_words_that_nobody_could_read_keep_their_ends() -> None:
    """In units, groups, messages; a megabyte becomes a thousand characters."""
    long = "a" * 500 + "b" * 10**6 + "c" * 500
    header = replace(
        RANK,
        units=(replace(UNIT, fqn=long),),
        warnings=(long,),
        environment={"x": long},
    )

    shown = "a" * 500 + "...(1000000 characters)..." + "c" * 500
    found = checked(header)

    assert found.units[0].fqn == found.warnings[0] == found.environment["x"] == shown
    assert found.groups == RANK.groups
    assert short_word("x" * LONGEST_WORD) == "x" * LONGEST_WORD


def test_more_words_than_anybody_reads() -> None:
    """Of a command line: those before, and how many there were."""
    header = replace(RUN, command=("x",) * 100_000, notes=("x",) * MOST_WORDS)
    found = checked(header)

    assert found.command == (*("x",) * MOST_WORDS, "...(99000 more)")
    assert found.notes == header.notes


def test_what_else_a_rank_left() -> None:
    """Words and numbers of a stall are those of a header."""
    position = Position(step=3, call=Call(name="a" * 10**6))
    stall = Stall(rank=1, pid=2, written_unix_ns=3, after_s=5.0, position=position)
    content = msgspec.json.encode(stall)
    call = checked_values(stall, content).position.call

    assert call is not None
    assert len(call.name) == 1000 + len("...(999000 characters)...")
    late = replace(stall, after_s=1e300)
    with pytest.raises(InputError, match="after_s is 1e\\+300, which is out of range"):
        checked_values(late, msgspec.json.encode(late))
