"""What was measured by line of the user's code, over the judged steps of all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import UNKNOWN, Activity, Phase, Within, distinct

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledFrom:
    """Where collectives of one kind come from."""

    where: str | None  # "train.py:43"; None: the source does not say
    via: str | None  # what was called there: "full_tensor"
    kind: str  # "all_reduce"
    group: str | None
    within: Within
    phase: Phase


@dataclass(slots=True, kw_only=True)
class Calls:
    """The collectives of one `CalledFrom`, summed over judged steps and ranks."""

    count: int = 0
    most: int = 0  # of one rank
    steps: int = 0  # in so many judged steps of one rank
    bytes: int = 0
    sized: int = 0  # of `count`, those of a known size
    ns: int = 0
    exposed_ns: int = 0
    own_ns: int = 0  # of `exposed_ns`, without waiting for the last rank
    ranks: tuple[int, ...] = ()


def calls(m: Measures) -> dict[CalledFrom, Calls]:
    """All collectives that are not FSDP2's, by where they come from."""
    least = _least_exposed(m)
    found: dict[CalledFrom, Calls] = defaultdict(Calls)
    for rank in m.ranks:
        rows = rank.others.rows(rank.in_judged(rank.others.step))
        ids = np.stack(
            (rows.site, rows.via, rows.name, rows.group, rows.within, rows.phase),
            axis=1,
        )
        own_ns = _own(rank, rows.step, rows.group, rows.seq, rows.exposed_ns, least)
        keys, which = np.unique(ids, axis=0, return_inverse=True)
        for at, key in enumerate(keys.tolist()):
            mine = which.reshape(-1) == at
            into = found[_called_from(rank, key)]
            sizes = rows.bytes[mine]
            into.count += int(mine.sum())
            into.most = max(into.most, int(mine.sum()))
            into.steps = max(into.steps, len(distinct(rows.step[mine])))
            into.bytes += int(sizes[sizes != UNKNOWN].sum())
            into.sized += int((sizes != UNKNOWN).sum())
            into.ns += int(rows.duration_ns[mine].sum())
            into.exposed_ns += int(rows.exposed_ns[mine].sum())
            into.own_ns += int(own_ns[mine].sum())
            into.ranks = tuple(sorted({*into.ranks, rank.rank}))
    return dict(found)


def _called_from(rank: RankMeasures, key: list[int]) -> CalledFrom:
    site, via, name, group, within, phase = key
    groups = rank.header.groups
    return CalledFrom(
        where=_known(rank.name(site)),
        via=_known(rank.name(via)),
        kind=kind_word(rank.name(name)),
        group=groups[group].name if 0 <= group < len(groups) else None,
        within=Within(within),
        phase=Phase(phase),
    )


_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


def kind_word(name: str | None) -> str:
    """One word for a collective, whichever its source wrote."""
    if name is None:
        return "collective"
    bare = name.lower().replace("_", "")
    kinds = (kind for start, kind in _KINDS.items() if bare.startswith(start))
    return next(kinds, name)


def _known(text: str | None) -> str | None:
    return None if text in ("", "?") else text


_Matched = tuple[int, str, int]
"""A collective over ranks: step, group and number in it."""


def _least_exposed(m: Measures) -> dict[_Matched, int]:
    """The shortest wait for each collective: the last rank's, who waits for nobody."""
    least: dict[_Matched, int] = {}
    for rank in m.ranks:
        rows = rank.others
        for key, exposed in zip(
            _matched(rank, rows.step, rows.group, rows.seq),
            rows.exposed_ns.tolist(),
            strict=True,
        ):
            if key is not None:
                least[key] = min(least.get(key, exposed), exposed)
    return least


def _matched(
    rank: RankMeasures, step: Int64s, group: Int32s, seq: Int64s
) -> Iterator[_Matched | None]:
    groups = rank.header.groups
    for at, of, number in zip(step.tolist(), group.tolist(), seq.tolist(), strict=True):
        known = number != UNKNOWN and 0 <= of < len(groups)
        yield (at, f"{groups[of].name} {groups[of].ranks}", number) if known else None


def _own(
    rank: RankMeasures,
    step: Int64s,
    group: Int32s,
    seq: Int64s,
    exposed_ns: Int64s,
    least: dict[_Matched, int],
) -> Int64s:
    """[N] the exposed time that is the collective's own."""
    keys = _matched(rank, step, group, seq)
    return np.array(
        [
            exposed if key is None else min(exposed, least[key])
            for key, exposed in zip(keys, exposed_ns.tolist(), strict=True)
        ],
        dtype=np.int64,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GapLine:
    """A line, or two, of the script to which time outside all spans goes."""

    where: str
    until: str | None  # the second of two
    activity: Activity


def gap_lines(m: Measures) -> dict[GapLine, int]:
    """Nanoseconds of judged steps of all ranks, by line, the most first."""
    found: dict[GapLine, int] = defaultdict(int)
    for rank in m.ranks:
        rows = rank.gaps.rows(rank.in_judged(rank.gaps.step))
        for activity, site, until, ns in zip(
            rows.activity.tolist(),
            rows.site.tolist(),
            rows.until.tolist(),
            rows.ns.tolist(),
            strict=True,
        ):
            line = GapLine(
                where=rank.name(site) or "?",
                until=rank.name(until) if until not in (UNKNOWN, site) else None,
                activity=Activity(activity),
            )
            found[line] += ns
    return dict(sorted(found.items(), key=lambda item: -item[1]))
