"""Which ranks are stages of a pipeline: they pass each other activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsdpdoctor.analysis.rank_measures import RankMeasures

POINT_TO_POINT = ("send", "recv")


def stages(ranks: Sequence[RankMeasures]) -> dict[int, int]:
    """The stage of each rank that sends or receives: its place in the group."""
    found: dict[int, int] = {}
    for rank in ranks:
        names = [at for at, name in enumerate(rank.names) if name in POINT_TO_POINT]
        used = np.unique(rank.others.group[np.isin(rank.others.name, names)])
        for group in used[(used >= 0) & (used < len(rank.header.groups))].tolist():
            members = rank.header.groups[group].ranks
            if rank.rank in members:
                found[rank.rank] = members.index(rank.rank)
    return found
