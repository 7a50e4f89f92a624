"""FD402: the step waited for its data."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import detector, level
from fsdpdoctor.detectors.host_events import pauses, whose
from fsdpdoctor.detectors.judged_steps import few_steps, steady
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.quantities import count, ms, of_step
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind

# `docs/detectors.md` D17: 5 % of the step in the data loader.
WARNING_SHARE = 0.05


@detector("FD402", "input-stall", needs={Evidence.STEPS, Evidence.INPUT})
def input_stall(m: Measures) -> Iterator[Finding]:
    """The step waited in the data loader.

    *Why it costs*: nothing else runs meanwhile, and where one rank's loader is
    slower the others wait for it at the next collective.

    *What to try*: worker processes, or more of them, `pin_memory=True`, a larger
    `prefetch_factor`, less work per sample; a look at whether every rank reads only
    its own share.

    *When it is wrong*: on a device, only the part in which the device had nothing
    left to do counts. The first all-gather looks alike in a trace, but has a
    collective running.
    """
    step_ns = steady(m)
    cost_ns = m.budget_ns_per_step()["input"]
    if cost_ns / step_ns < WARNING_SHARE:
        return
    waits = pauses(m, Kind.INPUT)
    workers = max(waits.values, key=lambda n: waits.values[n], default=UNKNOWN)
    yield Finding(
        severity=level(cost_ns / step_ns, WARNING_SHARE),
        confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
        summary=f"{ms(cost_ns)} per step ({of_step(cost_ns / step_ns)}) pass waiting "
        f"for the data loader{_of(workers)}{whose(m, waits)}",
        ranks=waits.mostly,
        cost_ns_per_step=cost_ns,
        evidence={
            "share_of_step": round(cost_ns / step_ns, 4),
            "waits_per_step": waits.per_step,
            "median_ns": waits.median_ns,
            "longest_ns": waits.longest_ns,
            "workers": None if workers == UNKNOWN else workers,
            "ns_per_step_by_rank": dict(waits.by_rank),
        },
        advice=(_advice(workers),),
        places=waits.places,
    )


def _of(workers: int) -> str:
    return "" if workers < 1 else f" and its {count(workers, 'worker')}"


def _advice(workers: int) -> Advice:
    """By how many worker processes there are; UNKNOWN: as if there were none."""
    enough = max(4, 2 * workers)
    text = "Load in worker processes, ahead of need; each"
    if workers > 0:
        text = (
            f"Load in more worker processes than {workers}, where there are cores for "
            "them, or do less work per sample; each"
        )
    return Advice(
        text=f"{text} worker holds its own batches in host memory.",
        code="\n".join(
            [
                "from torch.utils.data import DataLoader",
                "",
                "def faster_loader(dataset, **arguments):",
                '    """Your DataLoader\'s arguments, with workers ahead."""',
                f"    ahead = dict(num_workers={enough}, prefetch_factor=4)",
                "    ahead |= dict(pin_memory=True, persistent_workers=True)",
                "    return DataLoader(dataset, **(arguments | ahead))",
            ]
        ),
        memory_cost_bytes=0,
    )
