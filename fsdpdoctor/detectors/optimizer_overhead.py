"""FD404: the optimizer's step, or clipping, takes much of the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import detector, level
from fsdpdoctor.detectors.host_events import pauses, whose
from fsdpdoctor.detectors.judged_steps import few_steps, on_cpu, steady
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import ms, of_step
from fsdpdoctor.schema import Evidence, Kind, OptimizerSpec

# `docs/detectors.md` D18 and M01: 10 % warns; 33 % was seen with many small weights.
WARNING_SHARE, CRITICAL_SHARE = 0.10, 0.30

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch that take `fused=True`; others raise."""


@detector("FD404", "optimizer-overhead", needs={Evidence.STEPS, Evidence.OPTIMIZER})
def optimizer_overhead(m: Measures) -> Iterator[Finding]:
    """The optimizer's step, or gradient clipping, takes much of each step.

    *Why it costs*: nothing overlaps them. FSDP2's parameters are DTensors, whose
    every operation passes a dispatcher on the host: an optimizer that loops over
    parameters is host-bound long before the device is busy. Clipping with a
    collective per parameter is worse.

    *What to try*: `fused=True`, or a compiled optimizer step; the built-in
    `torch.nn.utils.clip_grad_norm_`, which needs one collective per mesh.

    *When it is wrong*: with CPU offload the arithmetic itself runs on the host:
    FD304. On CPU there is no device that waits, and a small model's optimizer is
    a large share by nature: information.
    """
    step_ns = steady(m)
    parts = m.budget_ns_per_step()
    for part, kind in (("optimizer", Kind.OPTIMIZER), ("clip", Kind.CLIP)):
        cost_ns = parts[part]
        if cost_ns / step_ns < WARNING_SHARE:
            continue
        calls = pauses(m, kind)
        word = "the optimizer's step" if part == "optimizer" else "gradient clipping"
        yield Finding(
            severity=Severity.INFO
            if on_cpu(m)
            else level(cost_ns / step_ns, WARNING_SHARE, CRITICAL_SHARE),
            confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
            summary=f"{word} takes {ms(cost_ns)} per step "
            f"({of_step(cost_ns / step_ns)}){whose(m, calls)}",
            ranks=calls.mostly,
            cost_ns_per_step=cost_ns,
            evidence={
                "part": part,
                "share_of_step": round(cost_ns / step_ns, 4),
                "calls_per_step": calls.per_step,
                "median_ns": calls.median_ns,
            },
            advice=_clip() if part == "clip" else _optimizer(m),
            places=calls.places,
        )


def _optimizers(m: Measures) -> tuple[OptimizerSpec, ...]:
    model = m.ranks[0].header.model
    return model.optimizers if model else ()


def _optimizer(m: Measures) -> tuple[Advice, ...]:
    """A fused step, where the optimizer is not fused already."""
    specs = _optimizers(m)
    if specs and all(spec.fused for spec in specs):
        return (Advice(text="It is fused already: a larger batch pays for it."),)
    able = [spec for spec in specs if not spec.fused and _has_fused(spec)]
    if specs and not able:
        return (
            Advice(
                text=f"{_names(specs)} has no fused step in torch; a compiled one is "
                "torch.compile(optimizer.step)."
            ),
        )
    if len(able) < len(specs):
        # Which of them takes the time is not recorded.
        unable = _names([spec for spec in specs if spec not in able and not spec.fused])
        if unable:
            return (
                Advice(
                    text=f"{unable} has no fused step in torch (a compiled one is "
                    f"torch.compile(optimizer.step)); {_names(able)} has one."
                ),
            )
    name = able[0].optimizer_class if able else "AdamW"
    return (
        Advice(
            text=f"Build {name} with fused=True.",
            code="\n".join(
                [
                    "# Where the optimizer is built, before its first step.",
                    "for group in optimizer.param_groups:",
                    '    if "fused" in group:',
                    "        group.update(fused=True, foreach=False)",
                ]
            ),
            memory_cost_bytes=0,
        ),
    )


def _names(specs: Sequence[OptimizerSpec]) -> str:
    return ", ".join(dict.fromkeys(spec.optimizer_class for spec in specs))


def _has_fused(spec: OptimizerSpec) -> bool:
    """Whether the class takes `fused=True`; whose own class it is, is not known."""
    return spec.fused is not None or spec.optimizer_class in FUSED


def _clip() -> tuple[Advice, ...]:
    return (
        Advice(
            text="Clip with the built-in function; read its result only when logged.",
            code="\n".join(
                [
                    "import torch",
                    "",
                    "def clip(model, max_norm):",
                    '    """Instead of a loop over parameters, before the step."""',
                    "    parameters = model.parameters()",
                    "    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)",
                ]
            ),
            memory_cost_bytes=0,
        ),
    )
