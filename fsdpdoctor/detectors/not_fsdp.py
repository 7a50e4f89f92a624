"""FD900: sharding is fine; the time goes elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import STALLS_KNOWN, detector
from fsdpdoctor.detectors.judged_steps import few_steps, steady
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.schema import Evidence

# As many as fit a sentence.
NAMED_PARTS = 3

# `docs/detectors.md` D25: with more exposed than this communication is not "fine", even
# where nothing can be changed about it (gloo); its own findings say what it is.
EXPOSED_SHARE = 0.05

WORDS = {
    "exposed_all_gather": "exposed all-gathers",
    "exposed_reduce_scatter": "exposed reduce-scatters",
    "exposed_all_reduce": "exposed all-reduces",
    "exposed_other_communication": "other communication",
    "no_grad": "passes without gradients",
    "compute": "other compute",
    "gc": "garbage collection",
    "clip": "gradient clipping",
    "copy": "FSDP2's copies",
    "host_bound": "waiting for the host",
    "input": "the data loader",
    "script": "the script's own lines",
    "other": "time outside all that was recorded",
}


@detector("FD900", "not-fsdp", needs={Evidence.STEPS}, needs_any=STALLS_KNOWN)
def not_fsdp(m: Measures) -> Iterator[Finding]:
    """Nothing about the sharding costs enough to change: where the time goes.

    It is asked only where no other finding is a warning or worse, and said only
    where little communication is exposed.

    *Why it costs*: a tool that always blames FSDP2 is of no use. If the step is
    slow all the same, the largest parts of it are the place to look.

    *What to try*: kernels that could be fused or compiled, a larger batch, the
    optimizer; a profile of the largest part.

    *When it is wrong*: what a run does not show cannot be told; the detectors that
    lacked their input are listed as not judged.
    """
    step_ns = steady(m)
    parts = m.budget_ns_per_step()
    largest = sorted(parts, key=lambda part: -parts[part])[:NAMED_PARTS]
    exposed_ns = m.exposed_ns_per_step() or 0
    if exposed_ns / step_ns >= EXPOSED_SHARE:
        return
    named = ", ".join(
        f"{WORDS.get(part, part)} {percent(parts[part] / step_ns)}"
        for part in largest
        if parts[part]
    )
    yield Finding(
        severity=Severity.INFO,
        confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
        summary=f"no fault of the sharding costs enough to change: a mean step of "
        f"{ms(step_ns)} goes to {named}; {percent(exposed_ns / step_ns)} is exposed "
        "communication",
        evidence={
            "step_ns": round(step_ns),
            "parts_ns": {part: ns for part, ns in parts.items() if ns},
        },
        advice=(Advice(text=f"Profile first: {WORDS.get(largest[0], largest[0])}."),),
    )
