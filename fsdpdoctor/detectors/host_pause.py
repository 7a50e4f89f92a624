"""FD403: garbage collection stopped the training loop."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import detector, level
from fsdpdoctor.detectors.host_events import Pauses, pauses, whose
from fsdpdoctor.detectors.judged_steps import few_steps, per_step, steady
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.quantities import ms, of_step
from fsdpdoctor.schema import COUNTER_PYTHON_OBJECTS, Evidence, Kind

# `docs/detectors.md` L02: a schedule for collections won 1.5 % per step at 512 GPUs;
# below 2 % of one rank's own step it is noise on a small job.
WARNING_SHARE = 0.02

OLDEST_GENERATION = 2

BY_HAND = (
    "All generations are collected in every step, which Python does not do by itself: "
    "the script calls gc.collect() (or a library does, beside empty_cache()). Remove "
    "the call, or make it gc.collect(1) in every hundredth step, the same one on all "
    "ranks; gc.freeze() after set-up keeps what stays out of it."
)


@detector("FD403", "host-pause", needs={Evidence.STEPS, Evidence.GC})
def host_pause(m: Measures) -> Iterator[Finding]:
    """Python's garbage collector stopped the training loop.

    *Why it costs*: the host issues nothing meanwhile. Ranks collect at different
    times, and every other rank waits for the one that does, so on many ranks the
    job loses far more than one rank's share.

    *What to try*: collect on all ranks in the same step: switch automatic
    collection off and collect the young generations every few hundred steps;
    `gc.freeze()` after set-up. Objects that grow from step to step are a leak of
    their own.

    *When it is wrong*: collections of the youngest generation are frequent and
    short; only their sum counts. A pause that the device outlasts costs nothing on
    that rank: the cost is the budget's, of time in which nothing else went on.
    """
    step_ns = steady(m)
    stops = pauses(m, Kind.GC)
    paused_ns = per_step(m, stops.total_ns)
    if paused_ns / step_ns < WARNING_SHARE:
        return
    # As the budget has it: a pause under work that goes on without the host, under a
    # wait that another rank prolongs or in a pass without gradients is not lost again.
    cost_ns = m.budget_ns_per_step()["gc"]
    hidden_ns = paused_ns - cost_ns
    taken, beside = f"{ms(cost_ns)} per step ({of_step(cost_ns / step_ns)})", ""
    if not cost_ns:
        taken = f"{ms(hidden_ns)} per step under what goes on or waits meanwhile"
    elif hidden_ns / step_ns >= WARNING_SHARE:
        beside = f", and {ms(hidden_ns)} more under what goes on or waits meanwhile"
    yield Finding(
        severity=level(cost_ns / step_ns, WARNING_SHARE),
        confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
        summary=f"garbage collection takes {taken}{beside}, {ms(stops.longest_ns)} at "
        f"the longest{whose(m, stops)}",
        ranks=stops.mostly,
        cost_ns_per_step=cost_ns,
        evidence=_evidence(m, stops, paused_ns),
        advice=_advice(m, stops),
        places=stops.places,
    )


def _advice(m: Measures, stops: Pauses) -> tuple[Advice, ...]:
    together = Advice(
        text="Collect on every rank in the same step.",
        code="\n".join(
            [
                "import gc",
                "",
                "gc.disable()  # once, before training",
                "",
                "def collect_together(step, every=100):",
                '    """Call in every step, on every rank."""',
                "    if step % every == 0:",
                "        gc.collect(1)",
            ]
        ),
        memory_cost_bytes=0,
    )
    if not _by_hand(m, stops):
        return (together,)
    # Switching automatic collection off changes nothing about a script's own calls.
    return (Advice(text=BY_HAND, memory_cost_bytes=0), together)


def _by_hand(m: Measures, stops: Pauses) -> bool:
    """Whether every step has a collection of all generations, on the ranks that collect
    at all. Python's own are far between: each has to be paid for by many young ones.
    """
    for rank in m.ranks:
        events = rank.host.rows(
            (rank.host.kind == Kind.GC) & (rank.host.value == OLDEST_GENERATION)
        )
        steps = {*rank.judged_steps.tolist()}
        if rank.rank in stops.ranks and not steps <= {*events.step.tolist()}:
            return False
    return bool(stops.values.get(OLDEST_GENERATION))


def _evidence(
    m: Measures, stops: Pauses, paused_ns: int
) -> dict[str, str | int | float | None]:
    return {
        "collections_per_step": stops.per_step,
        "oldest_generation": stops.values.get(OLDEST_GENERATION, 0),
        "longest_ns": stops.longest_ns,
        "paused_ns": paused_ns,
        "new_objects_per_step": _growth(m),
    }


def _growth(m: Measures) -> int | None:
    """Python objects that each step leaves behind; None: not counted."""
    slopes = []
    for rank in m.ranks:
        names = [rank.name(int(name)) for name in rank.counters.name]
        rows = [at for at, name in enumerate(names) if name == COUNTER_PYTHON_OBJECTS]
        if len(rows) < 2:
            continue
        first, last = rows[0], rows[-1]
        steps = int(rank.counters.step[last] - rank.counters.step[first])
        if steps > 0:
            grown = int(rank.counters.value[last] - rank.counters.value[first])
            slopes.append(round(grown / steps))
    return max(slopes, default=None)
