"""Comparison: what differs between two drawn runs, to the nanosecond, and what not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fsdpdoctor.quantities import MS
from fsdpdoctor.report import report_of
from fsdpdoctor.report.comparison import (
    Subject,
    compare,
    encode_comparisons,
)
from fsdpdoctor.report.comparison.difference import Difference
from fsdpdoctor.report.value import FindingRow
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import ModelSpec, UnitSpec
from fsdpdoctor.testing import draw, measured, unit
from tests.rig.changed import replace

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
    """Steps 2 ms longer, whose lengths spread by 1 ms: four standard errors are 8 ms
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

    assert json.loads(encode_comparisons((found,))) == {
        "schema_version": 1,
        "a": "a",
        "b": "b",
        "step_time_ns": [16 * MS, 16 * MS],
        "regression_share": 0.0,
        "conclusion": "No difference of the step beyond noise; one setting was "
        "changed: reshard_after_forward of layers.1: True to False",
        "changed": ["reshard_after_forward of layers.1: True to False"],
        "findings_gone": [],
        "findings_new": [],
        "differences": [
            {
                "kind": "setting",
                "figure": "reshard_after_forward",
                "unit": "layers.1",
                "rank": None,
                "a": True,
                "b": False,
                "change": None,
                "noise": None,
            }
        ],
        "not_compared": [],
    }


def longer(data: RankData, ms: list[float], first: int = 0) -> RankData:
    """The same rank with steps that are longer, the i-th by the i-th amount, anew."""
    extra = [round(ms[index % len(ms)] * MS) for index in range(len(data.steps))]
    steps = tuple(
        replace(s, end_ns=s.end_ns + more)
        for s, more in zip(data.steps, extra, strict=True)
    )
    return replace(data, steps=steps)


def test_a_machine_that_slowly_gets_busier_spreads_over_the_run() -> None:
    """Steps beside each other are alike, quarters are not: no difference is sure."""
    drift = longer(draw(EXPOSED, steps=24), [0.25 * index for index in range(24)])
    flat = longer(draw(EXPOSED, steps=24), [5.0])

    found = compare(subject("a", drift), subject("b", flat))

    assert found.regression_share == 0.0
    assert found.conclusion == (
        "No difference of the step beyond noise; no setting was changed"
    )
    assert compare(subject("a", flat), subject("b", flat)).conclusion == (
        "Nothing differs"
    )


def test_several_changes_at_once_are_credited_to_none() -> None:
    """Each is named once; one change is named with what it did."""
    one = (unit("layers.0"), unit("layers.1", reshard_after_forward=False))
    two = tuple(replace(u, param_dtype="bfloat16") for u in one)
    data = longer(draw(EXPOSED, units=two), [4.0])

    both = compare(drawn("a"), subject("b", data))
    single = compare(drawn("a", units=one), subject("b", data))

    assert both.changed == (
        "mp_policy (param_dtype) of all units: not set to bfloat16",
        "reshard_after_forward of layers.1: True to False",
    )
    assert both.conclusion == (
        "The step is 25.0 % slower; 2 settings were changed at once, so that none can "
        "be credited with what differs: mp_policy (param_dtype) of all units: not set "
        "to bfloat16, reshard_after_forward of layers.1: True to False"
    )
    assert single.conclusion == (
        "The step is 25.0 % slower; one setting was changed: mp_policy (param_dtype) "
        "of all units: not set to bfloat16"
    )


UNITS = (unit("layers.0"), unit("layers.1"))


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("unshard_async_op", False, True, "False to True"),
        ("unshard_in_backward", True, False, "True to False"),
        ("separate_reduce_scatter_group", False, True, "False to True"),
        ("reduce_scatter_max_input_buffers", 1, 2, "1 to 2"),
        ("checkpointed", False, True, "False to True"),
        ("compiled", None, "inside", "not set to inside"),
        # What a loop sets anew before each micro-batch is told of none of them.
        ("requires_gradient_sync", True, None, "True to by micro-batch"),
        ("requires_all_reduce", True, None, "True to by micro-batch"),
        ("reshard_after_backward", None, True, "by micro-batch to True"),
    ],
)
def test_what_is_set_after_sharding_is_a_setting(
    name: str, before: Any, after: Any, said: str
) -> None:
    """Each call that advice names: it was changed, and nothing else was."""
    a, b = (
        drawn(run, units=tuple(replace(u, **{name: value}) for u in UNITS))
        for run, value in (("a", before), ("b", after))
    )

    assert compare(a, b).changed == (f"{name} of all units: {said}",)


def test_what_a_trace_or_an_older_torch_does_not_say_was_not_changed() -> None:
    """It follows from the source, and from torch."""
    known: dict[str, Any] = {
        "unshard_async_op": False,
        "unshard_in_backward": True,
        "requires_gradient_sync": True,
        "requires_all_reduce": True,
        "reshard_after_backward": True,
        "checkpointed": True,
        "compiled": "inside",
        "separate_reduce_scatter_group": False,
        "reduce_scatter_max_input_buffers": 1,
    }
    told = tuple(replace(u, **known) for u in UNITS)
    newer: dict[str, Any] = {
        name: None for name in known if name.startswith(("sep", "reduce_"))
    }
    older = tuple(replace(u, **newer) for u in told)

    def of(units: tuple[UnitSpec, ...], **run: str) -> Subject:
        m = measured(draw(EXPOSED, units=units), **run)
        return Subject(name="run", measures=m, report=report_of(m))

    assert compare(of(UNITS, source="kineto"), of(told)).changed == (
        "source: kineto to recorded",
    )
    assert compare(of(older, torch="2.7.1"), of(told)).changed == (
        "torch: 2.7.1 to 2.13.0",
    )


def test_what_follows_from_a_change_is_none_of_its_own() -> None:
    """Another number of ranks is another mesh of each unit."""
    more = tuple(unit(name, mesh="(4)") for name in ("layers.0", "layers.1"))

    found = compare(drawn("a"), drawn("b", units=more, world_size=4))

    assert {d.figure for d in found.differences} >= {"world_size", "mesh"}
    assert found.changed == ("world_size: 2 to 4",)


SLOWER = """
    micro_batch 0000000000000000000
    all_gather  .0000.1111.........
    wait        .0000.1111.........
    forward     .....0....111111...
    backward    ................100
"""


def test_a_rank_that_got_slower_is_named() -> None:
    """Its own part of the step; the other's, which waits, is none."""
    ranks = [draw(EXPOSED, rank=rank, world_size=2) for rank in (0, 1)]
    slow = draw(SLOWER, rank=1, world_size=2)

    found = compare(subject("a", *ranks), subject("b", ranks[0], slow))

    own = [
        (d.figure, d.rank, d.a, d.b) for d in found.differences if d.rank is not None
    ]
    assert own == [("budget_ns_per_step.forward", 1, 4 * MS, 7 * MS)]
    assert "no setting was changed: rank 1 differs from the others" in found.conclusion


def test_findings_that_went_and_came() -> None:
    """With what they cost."""
    free = EXPOSED.replace("wait        .0000.1111", "wait        ..........")
    there = compare(drawn("a"), drawn("b", free))
    back = compare(drawn("b", free), drawn("a"))

    codes = [row.code for row in drawn("a").report.findings]
    left = [row.code for row in drawn("b", free).report.findings]
    assert "FD101" in codes
    assert "FD101" not in left
    assert "FD101" in [row.code for row in there.findings_gone]
    assert [row.code for row in back.findings_new] == [
        row.code for row in there.findings_gone
    ]


def test_repeated_runs_of_the_first_widen_the_noise_of_the_step() -> None:
    """What they differ by is no regression."""
    a, b = subject("a", draw(EXPOSED)), subject("b", longer(draw(EXPOSED), [2.0]))

    assert compare(a, b).regression_share == 2 / 16
    assert compare(a, b, spread_ns=2 * MS).regression_share == 0.0


def finding(phase: str | None, *units: str) -> FindingRow:
    """One FD101, which says where it is of."""
    return FindingRow(
        code="FD101",
        name="exposed-all-gather",
        severity="warning",
        confidence="high",
        units=units,
        phase=phase,
        ranks=(0,),
        cost_ns_per_step=MS,
        cost_bytes=None,
        summary=" ".join((phase or "either", *units)),
        evidence={},
        advice=(),
        places=(),
    )


def with_findings(*findings: FindingRow) -> Subject:
    """A run of two models that has these alone."""
    units = (unit("layers.0"), unit("layers.0 [tree=1]", tree=1, model=1))
    spec = ModelSpec(wrapper="fsdp2", models=("Actor", "Critic"))
    m = measured(draw("forward 0.1", units=units, model=spec))
    report = replace(report_of(m), findings=findings)
    return Subject(name="run", measures=m, report=report)


ACTOR, CRITIC = "layers.0", "layers.0 [tree=1]"


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        (
            [finding("forward", ACTOR), finding("backward", ACTOR)],
            [finding("backward", ACTOR)],
            ["forward layers.0"],
        ),
        (
            [finding("forward", ACTOR), finding("forward", CRITIC)],
            [finding("forward", ACTOR)],
            ["forward layers.0 [tree=1]"],
        ),
        ([finding("forward", ACTOR, CRITIC)], [finding("forward", CRITIC)], []),
        ([finding("forward", ACTOR)], [finding(None, ACTOR)], []),  # little is left
        ([finding("forward", ACTOR)], [finding("forward")], []),  # of whichever unit
        ([finding("forward", ACTOR)], [], ["forward layers.0"]),
    ],
)
def test_a_finding_went_from_its_phase_and_its_model(
    before: list[FindingRow], after: list[FindingRow], gone: list[str]
) -> None:
    """What is left of the same code elsewhere is another one."""
    a, b = with_findings(*before), with_findings(*after)

    assert [row.summary for row in compare(a, b).findings_gone] == gone
    assert [row.summary for row in compare(b, a).findings_new] == gone
    assert compare(a, b).findings_new == ()
