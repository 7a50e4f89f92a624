"""Content: a report in words. Every renderer lays out this one value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.finding import Advice, NotJudged
from fsdpdoctor.quantities import (
    NOT_MEASURED,
    count,
    ms,
    of_step,
    percent,
    signed_percent,
    size,
)
from fsdpdoctor.renderers.formatting import (
    counted,
    mean_words,
    ranges,
    visible,
    visible_lines,
    whole,
)
from fsdpdoctor.renderers.reading.finding_order import counted_in
from fsdpdoctor.renderers.reading.memory_words import start_and_memory
from fsdpdoctor.renderers.reading.stopped_words import rank_words, stopped_lines
from fsdpdoctor.renderers.reading.unit_names import names_in
from fsdpdoctor.renderers.tables import (
    Table,
    collective_table,
    no_grad_table,
    other_table,
    rank_table,
    unit_tables,
)
from fsdpdoctor.report.value import (
    BestChange,
    ByCause,
    CaptureOverlap,
    FindingRow,
    MostToGain,
    Report,
)
from fsdpdoctor.schema import COLLECTIVE_KINDS

PART_WORDS = {
    "exposed_all_gather": "exposed all-gather",
    "exposed_reduce_scatter": "exposed reduce-scatter",
    "exposed_all_reduce": "exposed all-reduce",
    "exposed_other_communication": "exposed other communication",
    "no_grad": "passes without gradients",
    "gc": "garbage collection",
    "sync": "synchronising calls",
    "host_bound": "waiting for the host",
    "compute": "other compute",
    "memcpy": "memory copies",
    "input": "waiting for input",
    "copy": "copy-in and copy-out",
    "recompute": "recomputation",
    "script": "the script's own lines",
    "other": "not explained",
}
"""The step budget's parts whose own name is not the word for them."""

CAUSE_WORDS = {cause: cause.replace("_", " ") for cause in CAUSES}
"""Of a stall's causes, in their order."""

WRAPPERS = {"fsdp2": "FSDP2", "fsdp1": "FSDP1", "ddp": "DDP", "none": "no FSDP"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceWords:
    """One change: what to do with what it costs and wins, and code to paste."""

    text: str
    code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingWords:
    """One finding, ready to be laid out."""

    severity: str
    code: str
    name: str
    cost: str | None
    summary: str
    where: str | None
    confidence: str
    advice: tuple[AdviceWords, ...]
    model: str | None = None  # of several the one it is of, as the summary has it


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPart:
    """One part of the mean step."""

    part: str
    words: str
    ns: int
    share: float

    @property
    def exposed(self) -> bool:
        return self.part.startswith("exposed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A report in words, in the order in which it is read."""

    headline: str  # the verdict
    lead: tuple[str, ...]  # the best change, and exposed time by cause
    facts: tuple[str, ...]
    alerts: tuple[str, ...]  # what makes the rest less than whole
    findings: tuple[FindingWords, ...]
    no_findings: str | None
    units: tuple[Table, ...]  # of each model
    no_grad: Table | None
    budget: tuple[BudgetPart, ...]
    budget_total: str
    collectives: Table | None
    others: Table | None  # outside FSDP2: collectives, and the script's lines
    ranks: Table | None  # None for one rank
    not_judged: tuple[str, ...]
    health: tuple[str, ...]


def content_of(report: Report) -> Content:
    """All that is shown of a report."""
    mean = report.step_time_ns.mean
    return Content(
        headline=visible(f"{report.verdict.text.rstrip('.')}."),
        lead=tuple(_lead(report)),
        facts=(*_facts(report), *start_and_memory(report)),
        alerts=tuple(visible(alert) for alert in _alerts(report)),
        findings=tuple(_finding(finding, report) for finding in report.findings),
        no_findings=_no_findings(report),
        units=unit_tables(report.units, report.models),
        no_grad=no_grad_table(report.no_grad, report.models),
        budget=_budget(report),
        budget_total=NOT_MEASURED if mean is None else mean_words(mean),
        collectives=collective_table(report.collectives),
        others=other_table(report.other_collectives, report.script),
        ranks=rank_table(report.ranks) if len(report.ranks) > 1 else None,
        not_judged=tuple(_not_judged(report.not_judged)),
        health=tuple(visible(line) for line in _health(report)),
    )


def _lead(report: Report) -> Iterator[str]:
    first, best = report.verdict.most_to_gain, report.verdict.best_change
    mean = report.step_time_ns.mean
    if first is not None:
        yield _most_to_gain(first, mean)
    if best is not None:
        what = "Best change" if first is None else "Best change of FSDP2's settings"
        yield f"{what}, {_best_change(best, mean)}"
    yield exposed_line(report)


def _most_to_gain(first: MostToGain, mean: int | None) -> str:
    """What costs more than any simulated change wins, and what to do about it."""
    share = f" ({of_step(first.up_to_ns / mean)})" if mean else ""
    return (
        f"Most to gain, up to {ms(first.up_to_ns)} per step{share}, {first.code}: "
        f"{visible(first.text)}"
    )


def _best_change(best: BestChange, mean: int | None) -> str:
    """The change that wins most, and what it is predicted to win."""
    share = f" ({of_step(best.predicted_gain_ns / mean)})" if mean else ""
    low, high = best.gain_range_ns
    gain = f"wins {ms(best.predicted_gain_ns)} per step{share}"
    effects = [f"predicted {ms(low)} to {ms(high)}"]
    if best.memory_cost_bytes:
        word = "costs" if best.memory_cost_bytes > 0 else "saves"
        effects.append(f"{word} {size(abs(best.memory_cost_bytes))} per rank")
    return f"{gain}: {visible(best.text)} ({', '.join(effects)})"


def exposed_line(report: Report) -> str:
    """Exposed milliseconds per step by cause, in one line."""
    exposed, mean = report.exposed_ns_per_step, report.step_time_ns.mean
    if mean is None:
        return _without_steps(report.capture)
    if exposed.total is None:
        return (
            f"exposed time not measured: the source shows neither stalls nor kernels "
            f"(mean step {ms(mean)})"
        )
    share = of_step(exposed.total / mean if mean else 0.0)
    start = f"exposed {ms(exposed.total)} of {ms(mean)} per step on average ({share})"
    kinds = [
        f"{kind.label} {_bare(total)} ({_causes(exposed.by_kind_and_cause[kind.key])})"
        for kind in COLLECTIVE_KINDS
        if (total := getattr(exposed, kind.key))
    ]
    line = f"{start}: {', '.join(kinds)}" if kinds else start
    others = report.budget_ns_per_step.get("exposed_other_communication", 0)
    return f"{line}; outside FSDP2 {_bare(others)} more" if others else line


def _without_steps(capture: CaptureOverlap | None) -> str:
    """What a source without a whole step can say."""
    if capture is None:
        return "exposed time not measured: no whole step was recorded"
    if not capture.communication_ns:
        return "no communication in the whole capture, and no whole step in it"
    share = percent(capture.exposed_ns / capture.communication_ns)
    return (
        f"exposed {ms(capture.exposed_ns)} in the whole capture ({share} of its "
        "communication, all ranks together): it has no whole step, so not by step "
        "or cause"
    )


def _bare(ns: int) -> str:
    return ms(ns).removesuffix(" ms")  # the line has said so


def _causes(by_cause: ByCause) -> str:
    words = []
    for cause in CAUSES:
        if cause in ("straggler", "wire") and by_cause.wire_or_straggler is not None:
            continue  # said as one
        ns: int | None = getattr(by_cause, cause)
        if ns is None:
            words.append(f"{cause.replace('_', '-')} {NOT_MEASURED}")
        elif ns:
            words.append(f"{cause.replace('_', '-')} {_bare(ns)}")
    if by_cause.wire_or_straggler is not None:
        untold = _bare(by_cause.wire_or_straggler)
        words.append(f"straggler or wire {untold}")
    return ", ".join(words)


def _facts(report: Report) -> Iterator[str]:
    run, health, step = report.run, report.health, report.step_time_ns
    what = [_models(report)] if run.model_class else []
    if run.numel:
        what.append(f"{whole(run.numel)} parameters")
    if run.wrapper:
        wrapped = WRAPPERS.get(run.wrapper, visible(run.wrapper))
        many = f", {count(len(report.units), 'unit')}" if report.units else ""
        what.append(f"{wrapped}{many}")
    ranks = count(run.world_size, "rank")
    if run.hosts and run.hosts > 1:
        ranks += f" on {count(run.hosts, 'host')}"
    what.append(f"{ranks}, {visible(run.device_name or run.device)}")
    what.append(f"torch {visible(run.torch)}" if run.torch else "torch version unknown")
    yield f"{visible(run.source)}: {', '.join(what)}"
    if run.steps is None or step.median is None or step.p95 is None:
        return
    steps = _step_words(step.median, step.p95, health.judged_steps)
    if run.micro_batches and run.micro_batches != 1:
        steps += f", {counted(run.micro_batches)} micro-batches each"
    share = report.overlap_share.all
    if share is not None:
        steps += f"; {percent(share)} of communication overlapped"
    yield steps


NAMED_MODELS = 4


def _models(report: Report) -> str:
    """All that have units: their parameters are counted together."""
    names = [visible(model.name) for model in report.models]
    if len(names) < 2:
        return visible(report.run.model_class or "")
    if len(names) > NAMED_MODELS:
        return f"{len(names)} models ({names[0]} to {names[-1]})"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _step_words(median: int, p95: int, judged: Sequence[int]) -> str:
    """How long a step took; of a single one there is no p95."""
    if len(judged) == 1:
        return f"step {ms(median)} median, of one step ({judged[0]})"
    many = f"{count(len(judged), 'step')} ({ranges(judged)})"
    return f"step {ms(median)} median, {ms(p95)} p95 over {many}"


def _alerts(report: Report) -> Iterator[str]:
    run, health = report.run, report.health
    yield from run.notes
    yield from stopped_lines(report)
    if health.missing_ranks:
        yield (
            f"{rank_words(health.missing_ranks)} of {run.world_size} left no record "
            "that can be read: figures are of the others"
        )
    for cut in health.truncated:
        yield f"rank {cut.rank}: {cut.reason}"
    yield from health.warnings


def _finding(finding: FindingRow, report: Report) -> FindingWords:
    costs = []
    if finding.cost_ns_per_step is not None:
        costs.append(f"{ms(finding.cost_ns_per_step)} per step")
    if finding.part_of is not None:
        costs.append(counted_in(finding, finding.part_of, report.findings))
    if finding.cost_bytes is not None:
        costs.append(size(finding.cost_bytes))
    where, named = [], names_in(report)
    if finding.units:
        where.append(named.of_finding(finding.units))
    if finding.phase:
        where.append(finding.phase)
    if finding.ranks:
        where.append(rank_words(finding.ranks))
    return FindingWords(
        severity=finding.severity,
        code=finding.code,
        name=finding.name,
        cost=", ".join(costs) or None,
        summary=visible(finding.summary),
        where="; ".join(where) or None,
        confidence=finding.confidence,
        advice=tuple(_advice(advice) for advice in finding.advice),
        model=named.model(finding.units),
    )


def _advice(advice: Advice) -> AdviceWords:
    effects = []
    if advice.predicted_gain_ns is not None:
        word = "gain" if advice.predicted_gain_ns >= 0 else "loss"
        effect = f"predicted {word} {ms(abs(advice.predicted_gain_ns))} per step"
        if advice.predicted_error_ns is not None:
            effect += f" (+-{ms(advice.predicted_error_ns)})"
        effects.append(effect)
    if advice.memory_cost_bytes is not None:
        cost = advice.memory_cost_bytes
        word = "costs" if cost >= 0 else "saves"
        effects.append(
            f"{word} {size(abs(cost))} per rank" if cost else "costs no memory"
        )
    text = visible(advice.text)
    return AdviceWords(
        text=f"{text.rstrip('.')} ({', '.join(effects)})." if effects else text,
        code=visible_lines(advice.code.strip("\n")) if advice.code else None,
    )


def _no_findings(report: Report) -> str | None:
    if report.findings:
        return None
    if report.run.steps is None:
        return "Nothing was judged: no whole step was recorded."
    return "No finding."


def _budget(report: Report) -> tuple[BudgetPart, ...]:
    total = sum(report.budget_ns_per_step.values())
    return tuple(
        BudgetPart(
            part=part,
            words=PART_WORDS.get(part, part.replace("_", " ")),
            ns=ns,
            share=ns / total,
        )
        for part, ns in report.budget_ns_per_step.items()
        if ns
    )


def _not_judged(rows: Sequence[NotJudged]) -> Iterator[str]:
    """One line per reason."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        by_reason.setdefault(row.reason, []).append(f"{row.code} {row.name}")
    for reason, detectors in by_reason.items():
        yield f"{', '.join(detectors)}: {visible(reason)}"


def _health(report: Report) -> Iterator[str]:
    health, recorder = report.health, report.recorder
    steps = f"steps: {len(health.judged_steps)} judged"
    for name, numbers in (
        ("warm-up", health.warm_up_steps),
        ("outlier", health.outlier_steps),
        ("incomplete", health.incomplete_steps),
    ):
        if numbers:
            steps += f"; {name} {ranges(numbers)} set aside"
    yield steps
    if health.clock_residual_ns is not None:
        clocks = f"clocks: largest residual {ms(health.clock_residual_ns)}"
        if health.unsplit_collectives:
            clocks += (
                f"; arrivals of {count(health.unsplit_collectives, 'collective')} "
                "closer than that, no straggler told"
            )
        yield clocks
    if health.predictions_withheld is not None:
        yield f"no gains are predicted: {health.predictions_withheld}"
    elif health.replay_error is not None:
        yield (
            "predicted gains: the simulator's replay of this run as it was is off by "
            f"{signed_percent(health.replay_error)} of the step"
        )
    if recorder.overhead_share is not None:
        ran, recorded = recorder.steps_ran, recorder.steps_recorded
        yield (
            f"recorder: {percent(recorder.overhead_share)} of the step time, "
            f"{count(recorded, 'step')} recorded{f' of {ran}' * (ran > recorded)}"
        )
    if health.events is not None:
        events = f"events: {health.events:,} read"
        for name, number in (
            ("repaired", health.repaired),
            ("dropped", health.dropped),
        ):
            if number is not None:
                events += f", {number:,} {name}"
        yield events
