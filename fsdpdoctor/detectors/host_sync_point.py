"""FD104: a call made the host wait for the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.rank_tables import HostEvents
from fsdpdoctor.analysis.timeline import Collectives
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.judged_stalls import Exposed, ExposedRows, exposed
from fsdpdoctor.detectors.judged_steps import few_steps, on_cpu, per_step, steady
from fsdpdoctor.detectors.remedies import prefetch, present
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import ms, of_step
from fsdpdoctor.schema import Evidence, Kind, Phase, distinct

# A call that starves the device for less than this share of the step is not worth
# a change of the training loop; to be calibrated on the gallery.
STARVED_SHARE = 0.02

# Of the step: what calls one after the other may cost at most is worth a name from
# here on, as all time is.
FED_SHARE = 0.05

# `docs/detectors.md` D03 has 1 ms of waiting; as a share, so that small models count.
WAIT_SHARE = 0.02


@dataclass(slots=True)
class _Site:
    """One line of code that synchronised."""

    calls: int = 0
    inside: int = 0  # of them, within a forward or backward
    wait_ns: int = 0
    starved_ns: int = 0  # what of the next stall they have made
    fed_ns: int = 0  # at most, between calls that came one after the other
    ranks: set[int] = field(default_factory=set)
    places: list[Location] = field(default_factory=list)


@detector("FD104", "host-sync-point", needs={Evidence.STEPS, Evidence.SYNC_CALLS})
def host_sync_point(m: Measures) -> Iterator[Finding]:
    """A call (`.item()`, `.cpu()`, `synchronize`) made the host wait for the device.

    *Why it costs*: the host loses its lead. Whatever it issues next, most of all
    the next all-gather, starts late, and the device stands still meanwhile. The
    cost given is that idleness, not the wait itself.

    *What to try*: read metrics every N steps or one step late, keep sums on the
    device, copy with `non_blocking=True`. Where the call must stay (token counts of
    experts), prefetch explicitly, so that the next all-gather is issued before it.

    *When it is wrong*: a call at the end of a step, after the optimizer, is judged
    only by what starves after it. On CPU there is no device to wait for.
    """
    if on_cpu(m):
        raise CannotTell("on CPU there is no device to wait for", Evidence.SYNC_CALLS)
    step_ns = steady(m)
    stalls = exposed(m)
    for name, site in sorted(_sites(m, stalls).items()):
        wait_ns, starved_ns = per_step(m, site.wait_ns), per_step(m, site.starved_ns)
        waits = site.inside >= len(m.step_ns) and wait_ns / step_ns >= WAIT_SHARE
        calls = site.calls / len(m.step_ns)
        fed_ns = per_step(m, site.fed_ns)
        if fed_ns / step_ns >= FED_SHARE and fed_ns > starved_ns:
            yield _fed_finding(m, name, site, wait_ns, fed_ns)
            continue
        if starved_ns / step_ns < STARVED_SHARE and not waits:
            continue
        yield Finding(
            severity=level(starved_ns / step_ns, STARVED_SHARE)
            if site.inside
            else Severity.INFO,
            confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
            summary=f"{name} makes the host wait {calls:.3g} times and {ms(wait_ns)} "
            f"per step; the device then stands still for {ms(starved_ns)} "
            f"({of_step(starved_ns / step_ns)})",
            ranks=tuple(sorted(site.ranks)),
            cost_ns_per_step=starved_ns,
            evidence={
                "where": name,
                "calls_per_step": round(calls, 3),
                "inside_forward_or_backward": site.inside > 0,
                "host_wait_ns": wait_ns,
                "device_starved_ns": starved_ns,
            },
            advice=_advice(m),
            places=tuple(site.places[:3]),
        )


def _fed_finding(
    m: Measures, name: str, site: _Site, wait_ns: int, fed_ns: int
) -> Finding:
    """Calls one after the other: the device has only what is issued in between."""
    calls, share = site.calls / len(m.step_ns), fed_ns / steady(m)
    return Finding(
        severity=level(share, FED_SHARE),
        confidence=Confidence.MEDIUM,
        summary=f"{name} makes the host wait {calls:.3g} times and {ms(wait_ns)} per "
        f"step, one time after the other: between them the device has only what the "
        f"host gives it, for up to {ms(fed_ns)} ({of_step(share)})",
        ranks=tuple(sorted(site.ranks)),
        cost_ns_per_step=fed_ns,
        evidence={
            "where": name,
            "calls_per_step": round(calls, 3),
            "inside_forward_or_backward": False,
            "host_wait_ns": wait_ns,
            "device_fed_ns": fed_ns,
            "part": "compute",
        },
        advice=_advice(m),
        places=tuple(site.places[:3]),
    )


def _fed(rank: RankMeasures, calls: HostEvents) -> Int64s:
    """[calls]: time before each, since one before it outside forwards and backwards,
    in which the host issued what the device ran at once.

    The first wait of such a row is how far the host was ahead: without the calls no
    more than that could have been hidden. Where kernels are known they say what ran
    meanwhile, and labels may lack of what ran in a pass: nothing is guessed there.
    """
    fed = np.zeros(len(calls), dtype=np.int64)
    if Evidence.KERNELS in rank.evidence:
        return fed
    outside = np.flatnonzero(calls.phase == Phase.OTHER)
    order = outside[np.lexsort((calls.start_ns[outside], calls.step[outside]))]
    ahead_ns = 0
    for before, at in pairwise(order.tolist()):
        gap = int(calls.start_ns[at] - calls.end_ns[before])
        waited = int(calls.end_ns[at] - calls.start_ns[at])
        if calls.step[before] != calls.step[at] or gap <= 2 * waited:
            ahead_ns = 0  # the device had more to do than it was given
            continue
        if not fed[before]:
            ahead_ns = int(calls.end_ns[before] - calls.start_ns[before])
        fed[at] = min(gap, ahead_ns)
        ahead_ns -= int(fed[at])
    return fed


def _sites(m: Measures, stalls: Exposed) -> dict[str, _Site]:
    """Synchronising calls of judged steps by where they were made."""
    sites: dict[str, _Site] = defaultdict(_Site)
    for rank in m.ranks:
        syncs = rank.host.kind == Kind.SYNC
        events = rank.host.rows(syncs & rank.in_judged(rank.host.step))
        mine = stalls.rows.rows(stalls.rows_of(rank.rank))
        starved, fed = _starved(events, mine, rank.collectives), _fed(rank, events)
        for at in range(len(events)):
            site = sites[rank.name(int(events.name[at])) or "an unknown call"]
            start, end = int(events.start_ns[at]), int(events.end_ns[at])
            site.calls += 1
            site.inside += events.phase[at] in (Phase.FORWARD, Phase.BACKWARD)
            site.wait_ns += end - start
            site.starved_ns += starved[at]
            site.fed_ns += int(fed[at])
            site.ranks.add(rank.rank)
            site.places.append(_place(rank, int(events.step[at]), start, end))
    for site in sites.values():
        site.places.sort(key=lambda p: p.start_ns - p.end_ns)
    return dict(sites)


def _starved(
    calls: HostEvents, stalls: ExposedRows, collectives: Collectives
) -> list[int]:
    """How long the device stood still because of each call: what of the next stall an
    issue before the wait would have hidden. Calls before one stall share it.
    """
    order = np.argsort(stalls.issued_ns, kind="stable")
    following = np.searchsorted(stalls.issued_ns[order], calls.end_ns)
    starved = [0] * len(calls)
    for at in distinct(following[following < len(order)]):
        before = np.flatnonzero(following == at)
        waits = (calls.end_ns - calls.start_ns)[before]
        last_ns = int(calls.end_ns[before].max())
        whole = _hidden(stalls, int(order[at]), int(waits.sum()), last_ns, collectives)
        until = np.round(whole * np.cumsum(waits) / max(1, int(waits.sum())))
        for call, share in zip(before, np.diff(until, prepend=0), strict=True):
            starved[int(call)] = int(share)
    return starved


def _hidden(
    stalls: ExposedRows, at: int, waited_ns: int, last_ns: int, collectives: Collectives
) -> int:
    """What of a stall calls that waited so long, up to a moment, have made.

    That its collective was not issued, at least. While its bytes moved, too, where it
    is the next all-gather, its lane was free, and it could have been issued before.
    """
    late, issued = int(stalls.host_late[at]), int(stalls.issued_ns[at])
    rest = int(stalls.wire[at]) + int(stalls.tail[at])
    gathers = collectives.kind == Kind.ALL_GATHER
    between = gathers & (collectives.issued_ns >= last_ns)
    is_next = not np.any(collectives.issued_ns[between] < issued)
    if stalls.kind[at] != Kind.ALL_GATHER or stalls.edge[at] or not is_next:
        return late
    if stalls.queued[at]:
        return late
    earlier = gathers & (collectives.issued_ns < issued)
    free_ns = int(collectives.end_ns[earlier].max(initial=issued - waited_ns))
    return late + min(rest, max(0, min(waited_ns, issued - free_ns) - late))


def _place(rank: RankMeasures, step: int, start_ns: int, end_ns: int) -> Location:
    return Location(rank=rank.rank, step=step, start_ns=start_ns, end_ns=end_ns)


def _advice(m: Measures) -> tuple[Advice, ...]:
    return (
        Advice(
            text="Keep the sum on the device and read it every N steps.",
            code="\n".join(
                [
                    "import torch",
                    "",
                    "def log_loss(total, loss, step, every=50):",
                    '    """Add on the device; read once in `every` steps."""',
                    "    total += loss.detach()",
                    "    if step % every == every - 1:",
                    "        print(step, (total / every).item())",
                    "        total.zero_()",
                ]
            ),
            memory_cost_bytes=0,
        ),
        *present(prefetch(m, "forward"), prefetch(m, "backward")),
    )
