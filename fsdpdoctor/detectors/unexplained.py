"""FD901: time that nothing recorded explains."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import STALLS_KNOWN, detector, level
from fsdpdoctor.detectors.judged_steps import few_steps, steady
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.quantities import ms, of_step
from fsdpdoctor.schema import Evidence

# Every step has some; more than this could hide what matters most.
LEAST_SHARE, WARNING_SHARE = 0.05, 0.15


@detector(
    "FD901",
    "unexplained",
    needs={Evidence.STEPS, Evidence.STACKS},
    needs_any=STALLS_KNOWN,
)
def unexplained(m: Measures) -> Iterator[Finding]:
    """Part of the step is in no span, and no sample of the stack says what ran.

    *Why it costs*: what is not seen is not judged: the cause of a slow step may be
    there.

    *What to try*: a profile of a few steps with Python stacks
    (`torch.profiler.profile(with_stack=True)`, `py-spy record`) of one rank.

    *When it is wrong*: steps whose edges the recorder guessed; say them with
    `fsdpdoctor.step()`.
    """
    step_ns = steady(m)
    cost_ns = m.budget_ns_per_step().get("other", 0)
    share = cost_ns / step_ns
    if share < LEAST_SHARE:
        return
    yield Finding(
        severity=level(share, WARNING_SHARE),
        confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
        summary=f"{ms(cost_ns)} per step ({of_step(share)}) are in nothing that was "
        "recorded, and no sample of the stack says what ran",
        cost_ns_per_step=cost_ns,
        evidence={"share_of_step": round(share, 4)},
        advice=(
            Advice(
                text="Profile one rank with Python stacks for a few steps: "
                "`py-spy record --native --pid PID`, or "
                "torch.profiler.profile(with_stack=True)."
            ),
        ),
    )
