"""The verdict: what costs most, why, the best change, and what cannot be gained.

It is made once, from the report's own figures, and every front end says it first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.report.costs import (
    COMPILING,
    NAMED_SHARE,
    PARTS,
    SEVERITY,
    SYMPTOMS,
    CostKind,
    kind_of,
    linked,
    lost_ns,
    parts_of,
    share_time,
    waits_for_a_rank,
)
from fsdpdoctor.report.most_to_gain import most_to_gain
from fsdpdoctor.report.value import (
    BestChange,
    Exposed,
    FindingRow,
    Health,
    Report,
    Verdict,
)
from fsdpdoctor.storage.json_value import replace

ENDED = ("FD408", "FD406")
"""Codes that say why a run ended, the one that knows more first."""

FAULTS = frozenset({"FD302", "FD501", "FD504", "FD506", "FD507", "FD508"})
"""Codes that, when critical, cost more than time: a wrong result, or no memory."""

FAULTS_WITHOUT_COST = frozenset({"FD108"})
"""Codes that, when critical, are such a fault where they cost no time: gradients that
are left over, not reductions that wait.
"""

MOST_OF_THE_TIME = 0.5
"""From this share of the recorded time on nothing in the mean step costs as much."""

CAUSE_WORDS = {
    "host_late": "for the host, which issues collectives too late",
    "queued": "in a queue behind other collectives",
    "straggler": "for a late rank",
    "wire": "for bytes on the wire",
    "tail": "after the collective has ended",
    "wire_or_straggler": "for the wire or for a late rank, which cannot be told apart",
}


OF_MODEL = re.compile(r"\S+( #\d+)?, (trained|without gradients|not run): ")
"""How a finding of one of several models begins: with the name of a class."""


def with_verdict(report: Report) -> Report:
    """The report with its findings in the order of what they give, and its verdict."""
    findings = sorted(report.findings, key=_order)
    linked_rows = tuple(
        replace(finding, part_of=part_of)
        for finding, part_of in zip(findings, linked(findings), strict=True)
    )
    report = replace(report, findings=linked_rows)
    return replace(report, verdict=_verdict(report))


def _order(finding: FindingRow) -> tuple[bool, int, int, int, str]:
    """Faults first, then by gain, severity and cost."""
    return (
        not _is_fault(finding),
        -gain_ns(finding),
        -SEVERITY[finding.severity],
        -(finding.cost_ns_per_step or 0),
        finding.code,
    )


def _is_fault(finding: FindingRow) -> bool:
    if finding.severity != "critical":
        return False
    uncosted = finding.code in FAULTS_WITHOUT_COST and not finding.cost_ns_per_step
    return finding.code in (*ENDED, *FAULTS) or uncosted


def _is_most(finding: FindingRow) -> bool:
    """Whether it takes most of the recorded time, in steps that no mean has."""
    share = finding.evidence.get("share_of_recorded_time")
    return (
        finding.code == "FD902"
        and isinstance(share, (int, float))
        and share >= MOST_OF_THE_TIME
    )


def gain_ns(finding: FindingRow) -> int:
    """What acting on a finding gives per step: as predicted, else what it costs.

    What is only information promises nothing that was not predicted.
    """
    predicted = [
        advice.predicted_gain_ns
        for advice in finding.advice
        if advice.predicted_gain_ns is not None
    ]
    if predicted:
        return max(*predicted, 0)
    return 0 if finding.severity == "info" else finding.cost_ns_per_step or 0


def _verdict(report: Report) -> Verdict:
    mean = report.step_time_ns.mean
    budget = report.budget_ns_per_step
    lost = sum(lost_ns(budget, kind) for kind in PARTS) + _without_gradients(report)
    floor = None if mean is None else mean - lost
    verdict = _of_costs(report) if mean else _without_steps(report)
    apart = next((f.summary for f in report.findings if _is_most(f)), None)
    if apart is not None:
        verdict = replace(verdict, text=joined(apart, verdict.text))
    fault = next((f for f in report.findings if _is_fault(f)), None)
    if fault is not None:
        beside = verdict.text if verdict.kind not in ("nothing", "unexplained") else ""
        verdict = replace(
            verdict,
            kind="ended" if fault.code in ENDED else "fault",
            text=joined(fault.summary, beside),
            code=fault.code,
        )
    elif (ended := _ended(report.health)) is not None:
        beside = verdict.text if verdict.kind != "nothing" else ""
        verdict = replace(verdict, kind="ended", text=joined(ended, beside), code=None)
    best = _best_change(report.findings)
    first = most_to_gain(report.findings, best, mean)
    return replace(verdict, most_to_gain=first, best_change=best, floor_ns=floor)


def joined(first: str, then: str) -> str:
    """Two statements as one sentence."""
    first = f"{first[:1].upper()}{first[1:]}"
    if not then:
        return first
    if OF_MODEL.match(then) is None:
        then = f"{then[:1].lower()}{then[1:]}"
    return f"{first.rstrip('.')}; beside that, {then}"


def _ended(health: Health) -> str | None:
    """How a run ended that no finding explains; one that goes on has not ended."""
    stopped = [row for row in health.stopped if row.ended != "running"]
    if not stopped:
        return None
    first = min(stopped, key=lambda row: (row.step is None, row.step or 0, row.rank))
    step = "" if first.step is None else f" in step {first.step}"
    return f"The run ended: rank {first.rank} stopped of {first.ended}{step}"


def _without_steps(report: Report) -> Verdict:
    capture = report.capture
    if capture is not None and capture.communication_ns:
        share = percent(capture.exposed_ns / capture.communication_ns)
        return Verdict(
            kind="exposed",
            text=f"{share} of the capture's communication is exposed; it has no whole "
            "step, so nothing was judged by step",
        )
    text = "Nothing was judged: no whole step was recorded"
    return Verdict(kind="nothing", text=f"{text}{_why_no_step(report)}")


def _why_no_step(report: Report) -> str:
    """Of a model that ran, where no optimizer of torch's did."""
    run = report.run
    nobody = run.source == "recorded" and run.configuration.get("optimizers") == []
    if not nobody or run.model_class is None or report.health.stopped:
        return ""
    return (
        ". A step ends where an optimizer of torch's steps, and none did: where one of "
        "the script's own ends, call fsdpdoctor.step()"
    )


def _of_costs(report: Report) -> Verdict:
    """What the mean step lost most to."""
    mean = report.step_time_ns.mean or 1
    costs = _costs(report)
    kind = max(costs, key=lambda kind: costs[kind])
    cost = costs[kind]
    if cost < NAMED_SHARE * mean:
        return _little(report, mean)
    return Verdict(
        kind=kind,
        text=_sentence(kind, cost, mean, report),
        cost_ns_per_step=cost,
        code=_code_of(kind, _about(report, kind)),
    )


def _little(report: Report, mean: int) -> Verdict:
    """Where no part of the step is lost that is worth a name."""
    lost = _without_gradients(report) + sum(
        lost_ns(report.budget_ns_per_step, one) for one in PARTS
    )
    text = f"Nothing to gain beyond {percent(lost / mean)} of a step"
    warned = [f for f in report.findings if SEVERITY[f.severity] >= 1]
    if not warned:
        return Verdict(kind="nothing", text=text, cost_ns_per_step=lost)
    # The host's launches are work and lost time at once, and a record cannot tell.
    bound = next((f for f in warned if f.code == "FD103"), None)
    if bound is not None:
        said = bound.summary
        return Verdict(
            kind="host", text=f"{said[:1].upper()}{said[1:]}", code=bound.code
        )
    first = warned[0]
    return Verdict(
        kind="nothing",
        text=joined(text, first.summary),
        cost_ns_per_step=lost,
        code=first.code,
    )


def _about(report: Report, kind: CostKind) -> Sequence[FindingRow]:
    """The findings that may say more of a cost: of pauses, of the longest."""
    if kind != "pause":
        return report.findings
    longest = _longest_pause(report)
    return [f for f in report.findings if kind_of(f) == kind and longest in parts_of(f)]


def _code_of(kind: CostKind, findings: Sequence[FindingRow]) -> str | None:
    """The first finding of a kind; in a symptom's place what explains most of it."""
    mine = [finding for finding in findings if kind_of(finding) == kind]
    if not mine:
        return None
    first = mine[0]
    if waits_for_a_rank(first) and first.part_of is not None:
        return first.part_of.code
    if first.code not in SYMPTOMS:
        return first.code
    causes = (
        finding.code
        for finding in mine
        if finding.code not in SYMPTOMS
        and SEVERITY[finding.severity] >= 1
        and share_time(first, finding)
        and (finding.cost_ns_per_step or 0) * 2 >= (first.cost_ns_per_step or 0)
    )
    return next(causes, first.code)


def _costs(report: Report) -> Mapping[CostKind, int]:
    """Nanoseconds of the mean step, by what they were lost to."""
    budget = report.budget_ns_per_step
    costs: dict[CostKind, int] = {kind: lost_ns(budget, kind) for kind in PARTS}
    costs["exposed"] += _without_gradients(report)
    costs["pause"] += _compiling_ns(report)
    if any(kind_of(finding) == "optimizer" for finding in report.findings):
        costs["optimizer"] = lost_ns(budget, "optimizer")
    return costs


def _compiling_ns(report: Report) -> int:
    """What compiling again takes, of passes that are work in the budget."""
    return sum(
        finding.cost_ns_per_step or 0
        for finding in report.findings
        if COMPILING in parts_of(finding)
    )


def _without_gradients(report: Report) -> int:
    """What passes without gradients wait, which the budget has in one part with all
    else of them.
    """
    return sum(row.exposed_ns_per_step or 0 for row in report.no_grad)


def _sentence(kind: CostKind, cost: int, mean: int, report: Report) -> str:
    if kind == "pause":
        return _pause(report, cost, mean)
    share = _share(cost, mean)
    budget = report.budget_ns_per_step
    if kind == "exposed":
        apart = _without_gradients(report)
        if apart * 2 > cost:
            return f"Compute waits {share}, mostly in passes without gradients"
        mostly = _mostly(report.exposed_ns_per_step, cost - apart)
        beside = f", {ms(apart)} of it in passes without gradients" if apart else ""
        return f"Compute waits {share}{mostly}{beside}"
    if kind == "host":
        waits = budget.get("sync", 0) > budget.get("host_bound", 0)
        what = (
            "calls that wait for the device take"
            if waits
            else "the device waits for the host"
        )
        return f"{what[:1].upper()}{what[1:]} {share}"
    late = kind == "other_collectives" and _for_a_late_rank(report.findings, cost)
    return f"{_PLAIN[kind]} {share}{', mostly for a late rank' if late else ''}"


def _for_a_late_rank(findings: Sequence[FindingRow], cost: int) -> bool:
    """Whether most of a cost is calls that wait for the rank that is always late."""
    waits = (
        finding.cost_ns_per_step or 0
        for finding in findings
        if waits_for_a_rank(finding)
        and finding.part_of is not None
        and finding.part_of.code == "FD401"
    )
    return sum(waits) * 2 > cost


def _share(cost: int, mean: int) -> str:
    return f"{percent(cost / mean)} of every step ({ms(cost)} of {ms(mean)} on average)"


def _pause(report: Report, cost: int, mean: int) -> str:
    """What stopped the loop longest, and what the others make together."""
    longest = _longest_pause(report)
    words, row = _PAUSES[longest], next(iter(report.script), None)
    if longest == "script" and row is not None:
        until = row.until_line
        where = row.where if row.until is None else f"from {row.where} to {until}"
        words = f"The script's own code outside the model ({where} most of all) takes"
    own = _pauses(report)[longest]
    others = cost - own
    beside = f", other pauses {ms(others)}" if others * 100 >= mean else ""
    return f"{words} {_share(own, mean)}{beside}"


def _longest_pause(report: Report) -> str:
    costs = _pauses(report)
    return max(costs, key=lambda part: costs[part])


def _pauses(report: Report) -> Mapping[str, int]:
    """What each kind of pause takes of the mean step."""
    costs = {**report.budget_ns_per_step, COMPILING: _compiling_ns(report)}
    return {part: costs.get(part, 0) for part in _PAUSES}


_PAUSES = {
    "gc": "Garbage collection takes",
    "checkpoint": "Saving checkpoints takes",
    "script": "The script's own code outside the model takes",
    COMPILING: "Compiling again takes",
}

_PLAIN: Mapping[CostKind, str] = {
    "input": "Waiting for input takes",
    "optimizer": "The optimizer takes",
    "other_collectives": "Collectives that FSDP2 did not issue are exposed for",
    "unexplained": "Nothing recorded explains",
}


def _mostly(exposed: Exposed, cost: int) -> str:
    """The cause with the largest part, where causes are known."""
    causes = {cause: getattr(exposed.by_cause, cause) or 0 for cause in CAUSE_WORDS}
    cause = max(causes, key=lambda cause: causes[cause])
    if not causes[cause]:
        return ""
    word = "mostly " if causes[cause] * 2 > cost else "most of all "
    return f", {word}{CAUSE_WORDS[cause]}"


def _best_change(findings: Sequence[FindingRow]) -> BestChange | None:
    """The advice that wins most, of those that win more than their own error."""
    backed = [
        advice
        for finding in findings
        for advice in finding.advice
        if advice.predicted_gain_ns is not None
        and advice.predicted_gain_ns > (advice.predicted_error_ns or 0)
    ]
    if not backed:
        return None
    best = max(backed, key=lambda advice: advice.predicted_gain_ns or 0)
    gain, error = best.predicted_gain_ns or 0, best.predicted_error_ns or 0
    return BestChange(
        text=best.text,
        code=best.code,
        apply=best.change,
        predicted_gain_ns=gain,
        gain_range_ns=(gain - error, gain + error),
        memory_cost_bytes=best.memory_cost_bytes,
    )
