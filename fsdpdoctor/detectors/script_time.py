"""FD902: the script's own lines, outside every pass, take much of the step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fsdpdoctor.analysis.call_sites import GapLine, gap_lines
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import detector, level
from fsdpdoctor.detectors.judged_steps import few_steps, on_cpu, per_step, steady
from fsdpdoctor.detectors.script_aside import Aside, script_aside
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity, Value
from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.schema import Activity, Evidence, percentiles

# What is named must have an answer: `docs/detectors.md` D26. A loop that makes its own
# batches and prints spends a fifth of a small model's step on CPU.
LEAST_SHARE, WARNING_SHARE = 0.05, 0.25

# Of the steps: a machine with more busy processes than cores stops any line for a while
# in some of them, which is no fault of the line.
UNDISTURBED = 0.25

# Per step: so much is worth a change, in however few of the steps it is spent; and less
# than so little is what a scheduler takes, and not the script.
LARGE_NS, LEAST_NS = 50_000_000, 5_000_000

# As many lines as fit a sentence.
NAMED_LINES = 3

WORDS = {
    Activity.USER: "code of its own",
    Activity.INPUT: "input",
    Activity.LOGGING: "logging",
    Activity.SLEEP: "sleeping",
    Activity.SYNC: "waiting for a result",
    Activity.CHECKPOINT: "saving",
    Activity.COMPILE: "compiling",
    Activity.COLLECTIVE: "communication",
}
"""What a line does."""

ADVICE = {
    Activity.USER: "Do {line} ahead or less often: data that it makes belongs in a "
    "Dataset behind a DataLoader with workers, figures for people in every N-th step. "
    "`py-spy record --pid PID` shows what it calls.",
    Activity.INPUT: "Make the batches of {line} ahead of need: a DataLoader with "
    "num_workers and prefetch_factor.",
    Activity.LOGGING: "Log at {line} in every N-th step, and on one rank.",
    Activity.SLEEP: "Do not sleep at {line} between steps: wait for what it waits for, "
    "or in a thread.",
    Activity.SYNC: "Read the result at {line} in every N-th step, or one step late: "
    "until it is there nothing else is issued.",
    Activity.CHECKPOINT: "Save less often at {line}, or in the background "
    "(torch.distributed.checkpoint.async_save).",
    Activity.COMPILE: "{line} compiles in steps that should only run: compile before "
    "training, with shapes that do not change.",
    Activity.COLLECTIVE: "Fewer calls at {line}: one for all values, and only where "
    "they are used.",
    Activity.EDGE: "Look at what runs {line}: move it out of the loop, into workers, "
    "or into every N-th step.",
}
"""What to do about a line, by what it was seen doing."""


@detector("FD902", "script-time", needs={Evidence.STEPS, Evidence.STACKS})
def script_time(m: Measures) -> Iterator[Finding]:
    """Much of the step goes to lines of the script outside the model.

    Samples of the training thread's stack say which lines, and what they do: code of
    the script's own, making input, logging, a sleep, a read of a result, saving,
    compiling. A gap too short for a sample is named by the lines around it.

    Of every N-th step that is so long that no mean has it, the lines are told apart,
    with their share of the recorded time.

    *Why it costs*: no pass runs meanwhile, and on a device nothing was left to do. On
    one rank alone it makes the others wait, too.

    *What to try*: workers for what makes data, every N-th step for what people read, a
    thread for what may happen later. A profile of the line says which call it is.

    *When it is wrong*: a C call that holds the interpreter hides its line: the line
    before it is named. On CPU a small model's step is short, and what is around it is
    much of it: up to a quarter that is information. So is what only some steps have,
    as on a machine that is busy with something else, below 50 ms per step, and all
    below 5 ms.
    """
    step_ns = steady(m)
    aside = script_aside(m)
    if aside is not None:
        yield _set_aside(aside)
    cost_ns = m.budget_ns_per_step().get("script", 0)
    share = cost_ns / step_ns
    if share < LEAST_SHARE:
        return
    lines = {line: per_step(m, ns) for line, ns in gap_lines(m).items()}
    first = list(lines)[:NAMED_LINES]
    named = ", ".join(f"{ms(lines[line])} {_told(line)}" for line in first)
    yield Finding(
        severity=level(max(_sure(m, cost_ns), _sampled(lines)) / step_ns, WARNING_SHARE)
        if _is_the_scripts(m, cost_ns)
        else Severity.INFO,
        confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
        summary=f"the script's own lines outside the model take {ms(cost_ns)} per step "
        f"({percent(share)} of the step): {named}",
        ranks=_ranks(m),
        cost_ns_per_step=cost_ns,
        evidence={
            "share_of_step": round(share, 4),
            "lines": [_row(line, ns) for line, ns in list(lines.items())[:10]],
        },
        advice=_advice([line for line in first if lines[line] >= LEAST_SHARE * step_ns])
        or _advice(first[:1]),
    )


def _set_aside(aside: Aside) -> Finding:
    """No mean step has it, so no cost per step is given."""
    where, what, _ = aside.lines[0]
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=aside.says(),
        ranks=(aside.rank,),
        evidence={
            "share_of_recorded_time": round(aside.share, 4),
            "steps": list(aside.steps),
            "lines": [
                {"where": line, "activity": activity.key, "ns": ns}
                for line, activity, ns in aside.lines[:10]
            ],
        },
        advice=(Advice(text=ADVICE[what].format(line=where)),),
    )


def _is_the_scripts(m: Measures, cost_ns: int) -> bool:
    """Whether a machine that is busy with something else does not explain it."""
    return cost_ns >= LARGE_NS or (
        cost_ns >= LEAST_NS and _undisturbed(m) >= WARNING_SHARE
    )


def _undisturbed(m: Measures) -> float:
    """The share of the step in those that were disturbed least, of the worst rank."""
    shares = (
        rank.budget_ns["script"][rank.judged] / step_ns
        for rank in m.ranks
        if len(step_ns := rank.steps.duration_ns[rank.judged])
    )
    at = (100 * UNDISTURBED,)
    return max(float(percentiles(share, at)[0]) for share in shares)


def _sure(m: Measures, cost_ns: int) -> int:
    """What counts where only edges name lines: a device stood still meanwhile; of a
    host, all that is known is that it was no pass.
    """
    return cost_ns // 2 if on_cpu(m) else cost_ns


def _sampled(lines: Mapping[GapLine, int]) -> int:
    """What samples saw."""
    return sum(ns for line, ns in lines.items() if line.activity != Activity.EDGE)


def _told(line: GapLine) -> str:
    """What only its edges name may be any of the lines between them."""
    if line.activity == Activity.EDGE:
        return _between(line)
    return f"at {line.where} ({WORDS[line.activity]})"


def _between(line: GapLine) -> str:
    if line.until is None:
        return f"around {line.where}"
    return f"between {line.where} and {line.until}"


def _row(line: GapLine, ns: int) -> Value:
    return {
        "where": line.where,
        "until": line.until,
        "activity": line.activity.key,
        "ns_per_step": ns,
    }


def _advice(lines: Sequence[GapLine]) -> tuple[Advice, ...]:
    """One for each line."""
    return tuple(
        Advice(text=ADVICE[line.activity].format(line=_words(line))) for line in lines
    )


def _words(line: GapLine) -> str:
    """A line inside a sentence of advice."""
    return line.where if line.activity != Activity.EDGE else _between(line)


def _ranks(m: Measures) -> tuple[int, ...]:
    """Those that spend as much of their own steps on it."""
    return tuple(
        rank.rank
        for rank in m.ranks
        if int(rank.budget_ns["script"][rank.judged].sum())
        >= LEAST_SHARE * int(rank.steps.duration_ns[rank.judged].sum())
        > 0
    )
