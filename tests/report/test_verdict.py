"""The verdict: what costs most is said first, and each cost is counted once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

import fsdpdoctor
from fsdpdoctor.finding import Advice
from fsdpdoctor.quantities import MS, ms
from fsdpdoctor.report import diagnose
from fsdpdoctor.report.costs import (
    COMPILING,
    NAMED_SHARE,
    PARTS,
    linked,
    parts_of,
)
from fsdpdoctor.report.value import FindingRow, PartOf, Report
from fsdpdoctor.report.verdict import gain_ns, joined, with_verdict
from fsdpdoctor.run import open_run
from fsdpdoctor.storage.json_value import replace
from tests.gallery.cases import CASES
from tests.recorder.rehearsed import recorded, sharded

TRACES = Path(__file__).parents[2] / "traces"

QUIET = (
    *("device-early-retries", "device-healthy", "device-host-just-ahead"),
    *("device-offload-pinned", "device-reads-at-end", "healthy-compiled-inside"),
    *("healthy-evaluation", "healthy-experts", "healthy-fast-wire"),
    *("healthy-half-frozen", "healthy-kept-unsharded", "healthy-mixed-precision"),
    *("healthy-nearly-even", "healthy-registered-method", "healthy-tables-apart"),
    *("healthy-frozen-narrow", "healthy-short-script", "healthy-unused-head"),
)
"""Runs that lose less than 5 % of a step, and have nothing else wrong."""

COSTS_MOST = {
    **dict.fromkeys(QUIET, ("nothing", None)),
    # They lose less than 5 % of a step, but memory, or what they were set up for.
    "adapter-units": ("nothing", "FD503"),
    "autocast-gathers-wide": ("nothing", "FD502"),
    "frozen-in-float32": ("nothing", "FD503"),
    "idle-head": ("nothing", "FD504"),
    "padded-rows": ("nothing", "FD204"),
    "tables-in-root": ("nothing", "FD203"),
    "unshard-for-nothing": ("nothing", "FD303"),
    # They wait for gathers and reductions, and a finding says why.
    "accumulation-reduces-each": ("exposed", "FD108"),
    "adapters-only": ("exposed", "FD503"),
    "device-one-communicator": ("exposed", "FD106"),
    "every-linear-a-unit": ("exposed", "FD202"),
    "frozen-in-backward": ("exposed", "FD503"),
    "nested-in-checkpoint": ("exposed", "FD202"),
    "one-unit-for-all": ("exposed", "FD201"),
    "prefetch-never-runs": ("exposed", "FD105"),
    "prefetch-skips-a-block": ("exposed", "FD105"),
    "slow-rank": ("exposed", "FD401"),
    # They wait, and nothing but the wire, or gloo, is to blame.
    "checkpoint-often": ("exposed", "FD101"),
    "device-reads-in-blocks": ("exposed", "FD101"),
    "device-slow-wire": ("exposed", "FD101"),
    "device-two-communicators": ("exposed", "FD102"),
    "exposed-all-gather": ("exposed", "FD101"),
    "exposed-reduce-scatter": ("exposed", "FD102"),
    "healthy-accumulation-once": ("exposed", "FD102"),
    "healthy-async-checkpoint": ("exposed", "FD101"),
    "healthy-checkpointing": ("exposed", "FD101"),
    "healthy-dropped-together": ("exposed", "FD101"),
    "healthy-hsdp": ("exposed", "FD401"),
    "healthy-ignored-head": ("exposed", "FD101"),
    "healthy-llama": ("exposed", "FD101"),
    "healthy-loader": ("exposed", "FD101"),
    "healthy-norm-by-hand": ("exposed", "FD101"),
    "healthy-prefetch": ("exposed", "FD101"),
    # Their time goes elsewhere.
    "compiled-around": ("pause", "FD902"),
    "device-busy-host": ("host", "FD103"),
    "device-offload-pageable": ("optimizer", "FD304"),
    "garbage-every-step": ("pause", "FD403"),
    "healthy-frozen-heap": ("pause", "FD902"),
    "optimizer-gathers": ("other_collectives", "FD407"),
    "slow-loader": ("input", "FD402"),
    "slow-script": ("pause", "FD902"),
    "slow-optimizer": ("optimizer", "FD404"),
    # Their result is wrong, or they end.
    "ddp-instead": ("fault", "FD506"),
    "evaluation-keeps-root": ("fault", "FD504"),
    "device-allocator-retries": ("fault", "FD302"),
    "head-outside": ("fault", "FD508"),
    "killed-rank": ("ended", "FD408"),
    "one-rank-drops-a-micro-batch": ("ended", "FD406"),
    "optimizer-too-early": ("fault", "FD504"),
    "seeds-of-their-own": ("fault", "FD507"),
    "sliced-mesh": ("fault", "FD501"),
}
"""What costs most, and the finding that says why: by hand, from what was done to each
run."""

UNEXPLAINED_SHARE = 0.05


@cache
def report(case: str) -> Report:
    """A case's report, with predictions."""
    return diagnose(open_run(TRACES / case))


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_names_what_costs_most(case: str) -> None:
    """As the table has it, which was made from what was done to each run."""
    verdict = report(case).verdict

    assert (verdict.kind, verdict.code) == COSTS_MOST[case]


@pytest.mark.parametrize("case", CASES)
def test_what_is_named_has_an_answer(case: str) -> None:
    """A kind of cost above 5 % of a step, part by part, has a finding that says what
    to do.
    """
    one = report(case)
    step_ns = one.step_time_ns.mean or 0
    answered = {
        part
        for finding in one.findings
        if finding.advice and finding.cost_ns_per_step
        for part in parts_of(finding)
    }
    named = [
        parts
        for kind in PARTS
        for parts in ([PARTS[kind]] if kind == "exposed" else zip(PARTS[kind]))
        if sum(one.budget_ns_per_step[part] for part in parts) >= NAMED_SHARE * step_ns
    ]

    assert [parts for parts in named if not answered.intersection(parts)] == []


def test_a_pause_is_named_with_its_own_time() -> None:
    """Not with that of all pauses, which are said beside it where they are 1 %."""
    one = report("garbage-every-step")
    step_ns = one.step_time_ns.mean or 0
    found = next(f for f in one.findings if f.code == "FD403")
    other_ns = step_ns // 10
    budget = {**one.budget_ns_per_step, "checkpoint": other_ns, "script": 0}
    both = with_verdict(replace(one, budget_ns_per_step=budget)).verdict.text

    said = f"({ms(found.cost_ns_per_step or 0)} of {ms(step_ns)} on average)"
    assert one.verdict.text.startswith("Garbage collection takes")
    assert one.verdict.text.count(said) == 1
    assert f"{said}, other pauses {ms(other_ns)}" in both


ROWS = {
    "FD402": "input",
    "FD403": "gc",
    "FD404": None,  # the part that its evidence names
    "FD405": "checkpoint",
    "FD901": "other",
    "FD902": "script",
}
"""Codes that speak of one row of the budget, whole."""

TOGETHER = ("FD104", "FD407")
"""Codes that have a finding for each line of the script: together no more than the
rows."""


@pytest.mark.parametrize("case", CASES)
def test_a_findings_cost_is_the_budgets_row(case: str) -> None:
    """Where both mean the same thing they are one figure; a part is no larger."""
    one = report(case)
    budget = one.budget_ns_per_step
    for finding in one.findings:
        cost_ns = finding.cost_ns_per_step
        if cost_ns is None or COMPILING in parts_of(finding):
            continue
        if finding.code in ROWS:
            row = ROWS[finding.code] or str(finding.evidence["part"])
            assert cost_ns == budget[row], finding.summary
        assert parts_of(finding), finding.code
        rows_ns = sum(budget[part] for part in parts_of(finding))
        assert cost_ns <= rows_ns + len(parts_of(finding)), finding.summary
    for code in TOGETHER:
        mine = [f for f in one.findings if f.code == code]
        rows = {part for f in mine for part in parts_of(f)}
        together_ns = sum(f.cost_ns_per_step or 0 for f in mine)
        assert together_ns <= sum(budget[part] for part in rows) + len(mine)


def test_what_waits_for_a_late_host_is_one_cost() -> None:
    """FD103 and FD104 speak of the gathers that FD101 says are exposed; collections
    speak of no gather, and passes without gradients of none that trains.
    """
    late = row("FD103", 9 * MS, evidence={"collectives_issued_late_ns": 9 * MS})
    call = row("FD104", 3 * MS, evidence={"where": "train.py:3"})
    evaluation = row("FD301", 4 * MS, evidence={"passes_per_step": 1.0})
    rows = [row("FD101", 5 * MS), late, call, row("FD403", 2 * MS), evaluation]
    whole = PartOf(code="FD103", index=1)

    assert list(linked(rows)) == [whole, None, whole, None, None]
    assert parts_of(evaluation) == {"no_grad"}


@pytest.mark.parametrize("case", CASES)
def test_next_to_nothing_stays_unexplained(case: str) -> None:
    """At most 5 % of the mean step is time that no span and no line has."""
    one = report(case)

    assert one.unexplained_ns_per_step is not None
    assert one.step_time_ns.mean is not None
    share = one.unexplained_ns_per_step / one.step_time_ns.mean
    assert share <= UNEXPLAINED_SHARE


def test_what_is_wrong_but_costs_no_time_is_said() -> None:
    """Beside that there is nothing to gain."""
    assert report("tables-in-root").verdict.text == (
        "Nothing to gain beyond 1.5 % of a step; beside that, the root unit holds "
        "embed.weight, head.weight: 128 MiB, 512.0 times the median unit, gathered "
        "for 99.0 % of the step"
    )


@pytest.mark.parametrize("case", CASES)
def test_no_cost_is_counted_twice(case: str) -> None:
    """What is part of another finding names one that is part of none."""
    findings = report(case).findings
    parts = [f.part_of for f in findings if f.part_of is not None]

    assert [findings[part.index].code for part in parts] == [
        part.code for part in parts
    ]
    assert [findings[part.index].part_of for part in parts] == [None] * len(parts)


@pytest.mark.parametrize("case", CASES)
def test_the_floor_is_the_step_without_what_is_lost(case: str) -> None:
    """Floor and lost parts add up to the mean step."""
    one = report(case)
    lost = {
        *("exposed_all_gather", "exposed_reduce_scatter", "exposed_all_reduce"),
        *("exposed_other_communication", "input", "gc", "checkpoint", "sync"),
        *("host_bound", "script", "other"),
    }
    budget = one.budget_ns_per_step

    assert one.verdict.floor_ns == sum(budget[p] for p in budget if p not in lost)


def row(
    code: str, cost_ns: int | None = None, severity: str = "warning", **changes: object
) -> FindingRow:
    """A finding with only what the verdict looks at."""
    fields: dict[str, object] = {
        "code": code,
        "name": "",
        "severity": severity,
        "confidence": "high",
        "units": (),
        "phase": None,
        "ranks": (),
        "cost_ns_per_step": cost_ns,
        "cost_bytes": None,
        "summary": "",
        "evidence": {},
        "advice": (),
        "places": (),
    }
    return FindingRow(**fields | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("Nothing waits", "beside that, nothing waits"),
        ("Critic #2, trained: It waits", "beside that, Critic #2, trained: It waits"),
    ],
)
def test_a_class_keeps_its_name_in_a_sentence(then: str, said: str) -> None:
    """What else begins a second statement does so in small letters."""
    assert joined("a fault.", then) == f"A fault; {said}"


def test_a_symptom_is_part_of_its_cause() -> None:
    """Of equal severity and cost, the finding that says why stands for both."""
    rows = [row("FD101", 5 * MS), row("FD105", 5 * MS)]

    assert list(linked(rows)) == [PartOf(code="FD105", index=1), None]


def test_what_is_gathered_for_a_checkpoint_is_a_part_of_it() -> None:
    """Where the save is the costlier one; a metric's reductions are not."""
    gathers = row("FD407", 5 * MS, evidence={"in": "checkpoint"})
    metric = row("FD407", 4 * MS, evidence={"in": "script"})

    rows = [gathers, row("FD405", 9 * MS), metric]
    assert list(linked(rows)) == [PartOf(code="FD405", index=1), None, None]
    assert list(linked([gathers, row("FD405", 3 * MS)])) == [None, None]


def test_two_collectives_are_not_each_others_part() -> None:
    """Each moment that compute stood still is one call's: both add up."""
    rows = [row("FD407", 3 * MS, "info"), row("FD407", 1 * MS, "info")]

    assert list(linked(rows)) == [None, None]


LATE = row("FD401", 5 * MS, evidence={"at_other_collectives_ns": 4 * MS})
FOR_LATE = row("FD407", 7 * MS, evidence={"waiting_for_last_rank_ns": 5 * MS})


def test_a_call_that_waits_for_a_late_rank_is_a_part_of_it() -> None:
    """Though it costs more; one that takes time itself is counted apart."""
    own = replace(FOR_LATE, evidence={"waiting_for_last_rank_ns": 3 * MS})

    assert list(linked([FOR_LATE, LATE])) == [PartOf(code="FD401", index=1), None]
    assert list(linked([own, LATE])) == [None, None]


def test_a_rank_that_is_late_at_calls_explains_no_exposed_gather() -> None:
    """4 of its 5 ms are waited for elsewhere; with 2 of them it does."""
    gathers = row("FD101", 3 * MS)
    mostly = replace(LATE, evidence={"at_other_collectives_ns": 2 * MS})

    assert list(linked([gathers, LATE])) == [None, None]
    assert list(linked([gathers, mostly])) == [PartOf(code="FD401", index=1), None]


def test_the_verdict_on_calls_that_wait_names_the_late_rank() -> None:
    """And says so; the change with most to gain is not to leave out the call."""
    base = report("healthy-llama")
    advised = replace(FOR_LATE, advice=(Advice(text="Take it out."),))
    budget = {"exposed_other_communication": 7 * MS, "forward": 13 * MS}
    made = with_verdict(
        replace(
            base,
            findings=(advised, replace(LATE, advice=(Advice(text="Wait less."),))),
            budget_ns_per_step=budget,
            step_time_ns=replace(base.step_time_ns, mean=20 * MS),
            no_grad=(),
        )
    ).verdict

    assert (made.kind, made.code) == ("other_collectives", "FD401")
    assert made.text == (
        "Collectives that FSDP2 did not issue are exposed for 35.0 % of every step "
        "(7.00 ms of 20.0 ms on average), mostly for a late rank"
    )
    assert made.most_to_gain is not None
    assert made.most_to_gain.text == "Wait less."


def test_the_costliest_holds_the_others() -> None:
    """A whole is no smaller than its parts; of equals the most severe stands."""
    rows = [row("FD108", 5 * MS, "critical"), row("FD102", 9 * MS, "warning")]
    equal = [row("FD102", 5 * MS, "info"), row("FD108", 5 * MS, "critical")]

    assert list(linked(rows)) == [PartOf(code="FD102", index=1), None]
    assert list(linked(equal)) == [PartOf(code="FD108", index=1), None]


def test_what_must_change_is_no_part_of_information() -> None:
    """The costlier information is counted in the warning, and not the other way."""
    rows = [row("FD101", 5 * MS), row("FD401", 9 * MS, "info")]

    assert list(linked(rows)) == [None, PartOf(code="FD101", index=0)]


@pytest.mark.parametrize("case", CASES)
def test_no_warning_is_counted_in_information(case: str) -> None:
    """In no report."""
    findings = report(case).findings
    into = [(f, findings[f.part_of.index]) for f in findings if f.part_of is not None]

    assert [f.summary for f, of in into if of.severity == "info" != f.severity] == []


@pytest.mark.parametrize(
    "other",
    [
        row("FD102", 3 * MS),
        row("FD101", 3 * MS, phase="backward"),
        row("FD101", 3 * MS, units=("layers.1",)),
        row("FD402", 3 * MS),
        row("FD101", None),
    ],
    ids=["reductions", "other phase", "other unit", "other kind", "no cost"],
)
def test_what_shares_no_time_is_counted_apart(other: FindingRow) -> None:
    """Gathers and reductions, phases, units and kinds of cost do not overlap."""
    one = row("FD101", 5 * MS, phase="forward", units=("layers.0",))

    assert list(linked([one, other])) == [None, None]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (row("FD403", 5 * MS), row("FD902", 3 * MS)),
        (row("FD405", 5 * MS), row("FD403", 3 * MS)),
        (
            row("FD404", 5 * MS, evidence={"part": "optimizer"}),
            row("FD404", 3 * MS, evidence={"part": "clip"}),
        ),
    ],
    ids=["collections, lines", "saves, collections", "step, clipping"],
)
def test_parts_of_one_kind_are_apart(one: FindingRow, other: FindingRow) -> None:
    """What stops the loop by a collection does not stop it by a line of the script."""
    assert list(linked([one, other])) == [None, None]


def test_what_a_finding_gives() -> None:
    """The largest prediction; else its cost, unless it is only information."""
    lose, win = (Advice(text="", predicted_gain_ns=gain) for gain in (-2 * MS, 3 * MS))

    assert gain_ns(row("FD101", 5 * MS, advice=(lose, win))) == 3 * MS
    assert gain_ns(row("FD101", 5 * MS, advice=(lose,))) == 0
    assert gain_ns(row("FD402", 5 * MS)) == 5 * MS
    assert gain_ns(row("FD404", 5 * MS, "info")) == 0


@pytest.mark.parametrize(
    ("optimizers", "step", "said"),
    [(False, False, True), (False, True, False), (True, False, False)],
    ids=["none", "said by hand", "one"],
)
def test_steps_that_nothing_ends_are_told_what_would(
    optimizers: bool, step: bool, said: bool, tmp_path: Path
) -> None:
    """A model runs; one optimizer steps once, which is one whole step at most."""
    with recorded(tmp_path):
        model = sharded()
        for _ in range(5):
            model(torch.ones(2, 8)).backward()
            if step:
                fsdpdoctor.step()
        if optimizers:
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    text = diagnose(open_run(tmp_path)).verdict.text

    assert text.endswith("call fsdpdoctor.step()") is said
