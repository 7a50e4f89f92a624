"""FD401: the others wait for one rank, step after step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.call_sites import gap_lines
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import MIN_JUDGED_STEPS
from fsdpdoctor.analysis.step_budget import PARTS
from fsdpdoctor.detectors.base import STALLS_KNOWN, CannotTell, detector, level
from fsdpdoctor.detectors.judged_steps import per_step, steady
from fsdpdoctor.detectors.late_ranks import LateRanks, Where, late_ranks, words_of
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.quantities import ms, of_step, percent
from fsdpdoctor.schema import UNKNOWN, Evidence, median

# Of the step, lost to one rank by the mean rank; to be calibrated on the gallery.
# 5 % is what FD101 warns at: waiting for a rank is exposed time like any other.
WARNING_SHARE, CRITICAL_SHARE = 0.05, 0.15

# At each place of the step apart, a rank must be last in more steps than chance makes
# it: what makes a rank late does so at the same place in every step, a busy machine
# here and there. The usual 5 %, shared by all places of the step, since each of them
# is one more chance to be wrong. With six processes per core, 60 % of the steps (a
# fixed share, as in public reports) named a healthy rank in one job of three.
CHANCE = 0.05

# At such a place the median lateness must stand out of its own scatter between
# steps (median absolute deviation). Seen with five busy processes per core: 4.0 where
# a rank slept for 60 ms. Chance reaches that too, with medians of 1 % of the step.
BEYOND_NOISE = 2.0

# More tokens than the others' mean by this share explain a late rank.
MORE_TOKENS = 1.10

# Parts of the budget that say what a late rank did while the others waited.
OWN_PARTS = tuple(
    part for part in PARTS if not part.startswith("exposed_") and part != "no_grad"
)

EXPOSED = tuple(part for part in PARTS if part.startswith("exposed_"))

WORDS = {
    "input": "waiting in its data loader",
    "gc": "collecting garbage",
    "checkpoint": "saving or loading a checkpoint",
    "optimizer": "in its optimizer",
    "forward": "in its forward",
    "backward": "in its backward",
    "recompute": "recomputing activations",
    "sync": "in synchronising calls",
    "host_bound": "with a late host",
    "script": "in the script's own lines",
    "other": "outside the training code that was recorded",
}

OTHERS_NS = "at_other_collectives_ns"
"""Of the evidence: what of the cost is waited for at collectives of no unit."""


@detector(
    "FD401",
    "straggler-rank",
    needs={Evidence.STEPS, Evidence.COLLECTIVES},
    needs_any=STALLS_KNOWN,
)
def straggler_rank(m: Measures) -> Iterator[Finding]:
    """The same rank arrives last at collectives, and the others wait for it.

    *Why it costs*: a collective ends when its last rank has come. The time the
    others lose there is no network time, and no faster link helps. It counts at the
    script's own collectives, too: a barrier, or a flag that is reduced in each step,
    takes in what would else be waited for at the next all-gather.

    *What to try*: whatever that rank does more of: more tokens (balance or pack by
    length), garbage collection (one schedule for all ranks), a slow data loader, a
    busy or throttled host.

    *When it is wrong*: only a rank that is last in most steps, beyond what varies
    between steps, and that waits less than the others, is named. Ranks that take
    turns are reported as information: their work varies, or the machine is busy.
    Clocks of different hosts are aligned on the ends of collectives; differences
    below what that leaves are not judged.
    """
    if len(m.ranks) < 2 or not m.alignment.matched:
        raise CannotTell("no two ranks' collectives could be matched", Evidence.RANKS)
    step_ns = steady(m)
    waits = late_ranks(m)
    if len(waits.steps) < MIN_JUDGED_STEPS:
        raise CannotTell(
            f"{len(waits.steps)} steps were judged on every rank, "
            f"{MIN_JUDGED_STEPS} are needed",
            Evidence.STEPS,
        )
    if not waits.told and not waits.others and m.alignment.unsplit:
        raise CannotTell(
            "the clocks' residual is larger than the arrivals' spread", Evidence.RANKS
        )
    late = waits.persistent(CHANCE, BEYOND_NOISE)
    typical = [sum(median(net) for net in one.values()) for one in late]
    at = int(np.argmax(typical))
    # Chance gives every rank a few such places; only what is beyond it counts.
    beyond = typical[at] - max(np.delete(typical, at))
    always = beyond / step_ns >= WARNING_SHARE
    saved_ns = _waits_less_ns(m, waits.ranks[at]) if always else 0.0
    if saved_ns / step_ns >= WARNING_SHARE:
        yield _one_rank(m, waits, at, late[at], saved_ns)
        return
    total_ns = round(float(waits.of_units_ns.sum(axis=0).mean()))
    if total_ns / step_ns >= CRITICAL_SHARE:
        yield _nobody(waits, total_ns, step_ns, waits.ranks[at] if always else None)


def _waits_less_ns(m: Measures, rank: int) -> float:
    """How much less a rank waits per step than the others do, as the mean rank's. What
    makes it late it does instead of waiting. Where it comes last and waits as long as
    they, collectives end later for it than for others, and nothing that it does would
    make the step shorter: two ranks of gloo on one host are so.
    """
    waited = {
        one.rank: sum(float(one.budget_ns[part][one.judged].mean()) for part in EXPOSED)
        for one in m.ranks
        if one.judged.any()
    }
    own = waited.pop(rank)
    others = float(np.mean([*waited.values()])) if waited else own
    return (others - own) * len(waited) / (len(waited) + 1)


def _one_rank(
    m: Measures,
    waits: LateRanks,
    at: int,
    late: dict[Where, npt.NDArray[np.float64]],
    saved_ns: float,
) -> Finding:
    rank = waits.ranks[at]
    step_ns = float(m.step_ns.mean())
    caused = np.array([waits.caused_ns[where][at] for where in late])  # [place, step]
    beside = [waits.caused_ns[where][at] for where in late if where in waits.others]
    cost_ns = round(min(float(caused.sum(axis=0).mean()), saved_ns))
    leads = float((np.array(list(late.values())).sum(axis=0) > 0).mean())
    why, differences = _why(m, rank)
    worst = int(np.argmax(caused.sum(axis=0)))
    totals = waits.total_ns
    first = max(late, key=lambda where: median(late[where]))
    return Finding(
        severity=level(cost_ns / step_ns, WARNING_SHARE, CRITICAL_SHARE),
        confidence=Confidence.HIGH if leads == 1.0 else Confidence.MEDIUM,
        summary=f"rank {rank} arrives last in {percent(leads)} of the steps; the ranks "
        f"wait {ms(cost_ns)} per step ({of_step(cost_ns / step_ns)}) for it{why}",
        ranks=(rank,),
        cost_ns_per_step=cost_ns,
        evidence={
            "share_of_steps": round(leads, 4),
            "last_arrivals": int(waits.late[at]),
            "arrivals_told": waits.told,
            "caused_ns_per_step": {
                str(r): round(float(totals[i].mean()))
                for i, r in enumerate(waits.ranks)
            },
            "places": len(late),
            "late_most_at": words_of(first),
            "more_than_others_ns": dict(differences),
            OTHERS_NS: round(float(sum(one.mean() for one in beside))),
        },
        advice=_advice(differences, why),
        places=_places(m, rank, waits.steps[worst]),
    )


def _places(m: Measures, rank: int, step: int) -> tuple[Location, ...]:
    """The worst step of the late rank."""
    mine = m.of(rank)
    row = int(np.flatnonzero(mine.steps.step == step)[0])
    start, end = int(mine.steps.start_ns[row]), int(mine.steps.end_ns[row])
    return (Location(rank=rank, step=step, start_ns=start, end_ns=end),)


def _why(m: Measures, rank: int) -> tuple[str, dict[str, int]]:
    """What the late rank had more of than the others' mean, largest first."""
    mine = m.of(rank)
    others = [r for r in m.ranks if r.rank != rank]
    differences = {
        part: round(
            float(mine.budget_ns[part][mine.judged].mean())
            - float(np.mean([r.budget_ns[part][r.judged].mean() for r in others]))
        )
        for part in OWN_PARTS
    }
    ordered = dict(
        sorted(((p, d) for p, d in differences.items() if d > 0), key=lambda x: -x[1])
    )
    tokens = [r.steps.tokens[r.judged] for r in (mine, *others)]
    if all((t != UNKNOWN).all() and len(t) for t in tokens):
        ratio = float(tokens[0].mean()) / float(np.mean([t.mean() for t in tokens[1:]]))
        if ratio >= MORE_TOKENS:
            return f"; it processes {ratio:.2f} times the others' tokens", ordered
    if not ordered:
        return "", ordered
    part = next(iter(ordered))
    doing = WORDS.get(part, f"in {part}")
    line = _line(m, rank) if part == "script" else None
    at = f" ({line} most of all)" if line else ""
    return f"; it spends {ms(ordered[part])} more per step {doing}{at}", ordered


def _line(m: Measures, rank: int) -> str | None:
    """The line of the script on which a rank spends most more than the others' mean."""
    mine = {
        one.rank: {line.where: per_step(of, ns) for line, ns in gap_lines(of).items()}
        for one in m.ranks
        for of in (replace(m, ranks=(one,)),)
    }
    own = mine.pop(rank)
    more = {
        line: ns - sum(other.get(line, 0) for other in mine.values()) / len(mine)
        for line, ns in own.items()
    }
    return max(more, key=lambda line: more[line], default=None)


REMEDIES = {
    "gc": "Collect garbage on all ranks in the same step: FD403.",
    "input": "See this rank's data loader: FD402.",
    "checkpoint": "See this rank's checkpoints: FD405.",
    "optimizer": "See this rank's optimizer: FD404.",
    "script": "Do what this rank runs between its passes in every N-th step, in a "
    "thread, or on all ranks at once; FD902 has the lines.",
}
"""What to do about what a late rank does more of."""

OTHERWISE = (
    "Compare this rank's host and device with the others': load, pinning, clocks, "
    "temperature; and its share of the work."
)


def _advice(differences: dict[str, int], why: str) -> tuple[Advice, ...]:
    if "tokens" in why:
        return (
            Advice(text="Give every rank as many tokens: pack or group by length."),
        )
    part = next(iter(differences), "")
    return (Advice(text=REMEDIES.get(part, OTHERWISE)),)


def _nobody(
    waits: LateRanks, total_ns: int, step_ns: float, last: int | None
) -> Finding:
    """No rank is to blame, and still much time is lost to late ones; `last`: the one
    that comes last for good, and waits as long as the others.
    """
    if last is None:
        says = "ranks take turns at being late"
        change = (
            "Work that varies between ranks, or a machine with more busy processes "
            "than cores."
        )
    else:
        says = f"rank {last} comes last, and waits as long as the others itself"
        change = (
            "Nothing that it does makes it late: collectives end later for it than for "
            "others. Look at the transport between them; on one host gloo does so."
        )
    return Finding(
        severity=Severity.INFO,
        confidence=Confidence.LOW,
        summary=f"{says}: {ms(total_ns)} per step "
        f"({of_step(total_ns / step_ns)}) of waiting for them",
        ranks=waits.ranks,
        cost_ns_per_step=total_ns,
        evidence={
            "caused_ns_per_step": {
                str(r): round(float(waits.of_units_ns[i].mean()))
                for i, r in enumerate(waits.ranks)
            }
        },
        advice=(Advice(text=change),),
    )
