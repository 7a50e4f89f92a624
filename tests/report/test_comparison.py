"""Comparison: what differs between two drawn runs, to the nanosecond, and what not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fsdpdoctor.quantities import MS
from fsdpdoctor.report import report_of
from fsdpdoctor.report.comparison import (
    Difference,
    Subject,
    compare,
    encode_comparison,
)
from fsdpdoctor.run import RankData
from fsdpdoctor.testing import draw, measured, unit

EXPOSED = """
    micro_batch 0000000000000000
    all_gather  .0000.1111......
    wait        .0000.1111......
    forward     .....0....111...
    backward    .............100
"""
"""Each unit's gather is waited for: 4 ms a step."""

TWICE = f"""
    {EXPOSED}
    backward_all_gather .............1..
"""
"""layers.1 is gathered for its backward, too."""


def subject(name: str, *ranks: RankData) -> Subject:
    """One side, with the report of its measures."""
    m = measured(*ranks)
    return Subject(name=name, measures=m, report=report_of(m))


def drawn(name: str, picture: str = EXPOSED, **known: Any) -> Subject:
    """A run of one rank."""
    return subject(name, draw(picture, **known))


def test_a_run_that_is_compared_with_itself() -> None:
    """Both medians, and nothing between them."""
    found = compare(drawn("a"), drawn("b"))

    assert (found.a, found.b) == ("a", "b")
    assert found.step_time_ns == (16 * MS, 16 * MS)
    assert (found.differences, found.not_compared) == ((), ())


def test_settings_come_first_then_counts_then_the_largest_time() -> None:
    """One unit's policy and its second gather; what is exact has no noise to exceed."""
    kept = (unit("layers.0"), unit("layers.1", reshard_after_forward=False))

    found = compare(drawn("a", TWICE), drawn("b", EXPOSED, units=kept)).differences

    assert [(d.kind, d.figure, d.unit, d.a, d.b) for d in found[:2]] == [
        ("setting", "reshard_after_forward", "layers.1", True, False),
        ("count", "all_gathers.backward", "layers.1", 1.0, 0.0),
    ]
    assert (found[1].change, found[1].noise) == (-1.0, None)


def test_units_that_one_run_has() -> None:
    """They are named on the side that has them, and only common ones are measured."""
    other = (unit("layers.0"), unit("blocks.1"))

    found = compare(drawn("a"), drawn("b", units=other))

    assert found.differences == (
        Difference(kind="setting", figure="unit", unit="layers.1", a=True, b=False),
        Difference(kind="setting", figure="unit", unit="blocks.1", a=False, b=True),
    )
    assert found.not_compared == ()


def test_runs_without_a_common_unit() -> None:
    """It is said, as nothing below the step can be compared."""
    other = (unit("blocks.0"), unit("blocks.1"))

    found = compare(drawn("a"), drawn("b", units=other))

    assert found.not_compared == ("units: the runs have no unit of the same name",)


def test_a_time_has_to_exceed_its_noise() -> None:
    """Steps 2 ms longer, whose lengths spread by 1 ms: four standard errors are 3 ms
    of six steps, so nothing; of steps that do not spread it is half a percent.
    """
    data = draw(EXPOSED)
    longer = replace(
        data, steps=tuple(replace(s, end_ns=s.end_ns + 2 * MS) for s in data.steps)
    )
    spread = replace(
        data,
        steps=tuple(
            replace(step, end_ns=step.end_ns + (1 + 2 * (index % 2)) * MS)
            for index, step in enumerate(data.steps)
        ),
    )
    a = subject("a", data)

    (length, *_) = compare(a, subject("b", longer)).differences
    assert (length.figure, length.a, length.b) == ("step_time_ns", 16 * MS, 18 * MS)
    assert (length.change, length.noise) == (2 * MS, round(18 * MS * 0.005))
    assert compare(a, subject("b", spread)).differences == ()


def test_too_few_steps_have_no_noise() -> None:
    """It is said of the side that has them; times are left out."""
    data = draw(EXPOSED)
    short = replace(data, steps=data.steps[:2])

    found = compare(subject("a", data), subject("b", short))

    assert [d for d in found.differences if d.kind == "time"] == []
    assert found.not_compared[0].startswith("times: b has ")


def test_json_and_words_say_the_same() -> None:
    """Every field by its name; the headline gives both lengths."""
    kept = (unit("layers.0"), unit("layers.1", reshard_after_forward=False))
    found = compare(drawn("a"), drawn("b", units=kept))

    assert json.loads(encode_comparison(found)) == {
        "schema_version": 1,
        "a": "a",
        "b": "b",
        "step_time_ns": [16 * MS, 16 * MS],
        "differences": [
            {
                "kind": "setting",
                "figure": "reshard_after_forward",
                "unit": "layers.1",
                "a": True,
                "b": False,
                "change": None,
                "noise": None,
            }
        ],
        "not_compared": [],
    }
