"""What a sweep goes through, and which configurations are worth it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor.planning.sweep import (
    Dimension,
    Outcome,
    best,
    cannot_fit,
    choices,
    front,
    parse_sweep,
    plan_of,
    replicas_of,
)


def outcome(speed: int, gib: int, **more: Any) -> Outcome:
    """So many tokens in a second."""
    given: dict[str, Any] = {
        "choice": {"world": "8"},
        "fits": True,
        "step_ns": 10**9,
        "tokens": speed,
        "reserved_bytes": gib << 30,
    }
    return Outcome(**(given | more))


def test_dimensions_have_ranges_lists_and_defaults() -> None:
    """A range doubles, a list is what it says, a bare name has its own values."""
    assert parse_sweep("world=8..64, micro-batch=1/3..12,reshard,lr=a/b") == (
        Dimension(name="world", values=("8", "16", "32", "64")),
        Dimension(name="micro-batch", values=("1", "3", "6", "12")),
        Dimension(name="reshard", values=("true", "false")),
        Dimension(name="lr", values=("a", "b")),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--sweep is empty"),
        ("World=8", "'World=8' is no dimension"),
        ("world=8,world=16", "names world twice"),
        ("world", "which values of world"),
        ("world=x", "world=x; expected a number of ranks"),
        ("world=16..8", "world=16..8 is no range"),
        (f"world={'9' * 5000}", "world=99999999999999999999...; expected at most"),
        (f"world=2..{'9' * 5000}", "expected a number of ranks"),
        ("world=2..100000000000000", "world=2097152; expected at most 1,048,576"),
        ("reshard=maybe", "reshard=maybe; expected as-is, true, false or a number of"),
        ("wrap=2/", "has an empty value"),
        ("checkpointing=yes", "expected as-is, on or off"),
    ],
)
def test_what_is_no_sweep_is_refused(text: str, message: str) -> None:
    """One line that says which part is wrong."""
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_sweep(text)


def test_hsdp_needs_several_replicas_of_several_ranks() -> None:
    """What is not another job than without it is left out."""
    found = choices(parse_sweep("world=8/16/12,hsdp=off/on/2"), 8)
    assert [(c["world"], c["hsdp"]) for c in found] == [
        ("8", "off"),
        ("8", "2"),
        ("16", "off"),
        ("16", "on"),
        ("16", "2"),
        ("12", "off"),
        ("12", "2"),
    ]
    assert [replicas_of(c, 8) for c in found] == [1, 2, 1, 2, 2, 1, 2]


def test_a_slip_of_the_pen_is_refused() -> None:
    """Nobody waits for thousands of rehearsals."""
    with pytest.raises(UsageError, match="16,384 configurations; at most 2,000"):
        choices([Dimension(name=f"d{i}", values=("a", "b")) for i in range(14)], 8)


@pytest.mark.parametrize(
    ("choice", "plan"),
    [
        ({}, None),
        ({"reshard": "as-is", "wrap": "as-is", "hsdp": "on"}, None),
        ({"reshard": "false"}, Plan(reshard_after_forward={"*": False})),
        ({"wrap": "3"}, Plan(merge=3)),
        ({"wrap": "root-split"}, Plan(split_root=True)),
        ({"wrap": "Block"}, Plan(wrap="Block")),
        (
            {"reshard": "8", "hsdp": "on"},
            Plan(reshard_after_forward={"*": 8}, world_size=32, replicate=4),
        ),
    ],
)
def test_what_is_said_to_fsdp2(choice: dict[str, str], plan: Plan | None) -> None:
    """Only what differs from the script."""
    assert plan_of({"world": "32", **choice}, 8) == plan


def test_nothing_faster_on_the_front_takes_as_little_memory() -> None:
    """A slower one is on it where it needs less; of two alike, one."""
    fast, small, twin = outcome(100, 60), outcome(50, 20), outcome(50, 20)
    slower, broken = outcome(90, 70), outcome(500, 10, fits=False)
    assert front([slower, small, broken, fast, twin]) == [fast, small]


def test_the_best_have_room_to_spare() -> None:
    """One whose allocator gave its cache back is slower than it seems."""
    tight = outcome(200, 78, tight=True)
    others = [outcome(100 - i, 50) for i in range(4)]
    assert best([tight, *others]) == others[:3]
    assert best([tight]) == [tight]
    assert best([outcome(1, 1, fits=None)]) == []


def test_a_larger_one_of_what_did_not_fit_need_not_run() -> None:
    """Only where nothing else differs."""
    failed = outcome(1, 1, fits=False, choice={"world": "8", "micro-batch": "4"})
    assert cannot_fit({"world": "8", "micro-batch": "8"}, [failed]) == failed
    assert cannot_fit({"world": "8", "micro-batch": "2"}, [failed]) is None
    assert cannot_fit({"world": "16", "micro-batch": "8"}, [failed]) is None
    fits = outcome(1, 1, choice={"world": "8", "micro-batch": "4"})
    assert cannot_fit({"world": "8", "micro-batch": "8"}, [fits]) is None


def test_a_million_tokens_have_a_price() -> None:
    """Of an hour's: 1,000 tokens a second are 3.6 million an hour."""
    assert outcome(1000, 1).price_per_million(7.2) == pytest.approx(2.0)
    assert outcome(1000, 1).price_per_million(None) is None
    assert outcome(1000, 1, fits=False).price_per_million(7.2) is None
