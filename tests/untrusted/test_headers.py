"""Headers that decode and lie."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.schema import GroupSpec, ModelSpec, RankHeader, RunHeader, UnitSpec
from fsdpdoctor.untrusted.headers import (
    LONGEST_WORD,
    MOST_RANKS,
    checked_header,
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
