"""Forwards and backwards that an exception ended, after which the script went on."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.judged_steps import all_counter_rows
from fsdpdoctor.detectors.remedies import model_that
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count
from fsdpdoctor.schema import COUNTER_LEFT_OPEN, UNKNOWN

RESET = "reset_iter_state"
"""Of FSDPModule, since torch 2.13."""


def broken_off(m: Measures) -> Iterator[Finding]:
    """What FSDP2 was left in: a backward, and forwards."""
    yield from _backward(m)
    yield from _forwards(m)


def _backward(m: Measures) -> Iterator[Finding]:
    since = {
        rank.rank: rank.header.model.broken_off_step
        for rank in m.ranks
        if rank.header.model is not None
        and rank.header.model.broken_off_step != UNKNOWN
    }
    if not since:
        return
    yield Finding(
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        summary="an exception broke off a backward, and the script went on: from step "
        f"{min(since.values())} on the modules that had been in it run no hooks, and "
        "are not trained",
        ranks=tuple(sorted(since)),
        phase="backward",
        evidence={"from_step": min(since.values())},
        advice=(
            _reset(m)
            if _can_reset(m)
            else Advice(
                text="Build the model and its optimizer anew where the exception is "
                f"caught: this torch has no {RESET}().",
                memory_cost_bytes=0,
            ),
        ),
    )


def _forwards(m: Measures) -> Iterator[Finding]:
    """In recorded steps: of others nothing is known."""
    times = {
        rank.rank: int(all_counter_rows(rank, COUNTER_LEFT_OPEN).value.sum())
        for rank in m.ranks
    }
    most = max(times.values(), default=0)
    if not most:
        return
    were = "a forward was" if most == 1 else f"{count(most, 'forward')} were"
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        summary=f"{were} broken off by an exception in recorded steps, and the script "
        "went on: what was gathered stays so, and computes with old weights where "
        "the optimizer steps before the next forward",
        ranks=tuple(sorted(rank for rank, n in times.items() if n)),
        phase="forward",
        evidence={"forwards": most},
        advice=(
            _reset(m)
            if _can_reset(m)
            else Advice(
                text="Free what is gathered where the exception is caught.",
                code="from torch.distributed.fsdp import FSDPModule\n\n"
                f"{_whose(m)}\n# In the except block, on all ranks:\n"
                "for module in model.modules():\n"
                "    if isinstance(module, FSDPModule):\n"
                "        module.reshard()",
                memory_cost_bytes=0,
            ),
        ),
    )


def _can_reset(m: Measures) -> bool:
    return not m.run.available or RESET in m.run.available


def _whose(m: Measures) -> str:
    return model_that(m, "was broken off")


def _reset(m: Measures) -> Advice:
    return Advice(
        text="Give the iteration up on every rank where the exception is caught: "
        f"{RESET}() of the root module, and no gradients.",
        code=f"{_whose(m)}\n# In the except block, on all ranks:\n"
        f"optimizer.zero_grad(set_to_none=True)\nmodel.{RESET}()",
        memory_cost_bytes=0,
    )
