"""The units of a measured run as a tree, and the order in which they ran."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes import unit_tree
from fsdpdoctor.changes.unit_tree import TreeUnit, UnitTree, unit_of


def forward_order(m: Measures) -> list[str]:
    """Units in the order in which the first rank ran them; empty: not known."""
    for rank in m.ranks:
        model = rank.header.model
        order = rank.first_forward or (model.forward_order if model else ())
        if order:
            return [rank.units[at].fqn for at in order if 0 <= at < len(rank.units)]
    return []


def backward_order(m: Measures) -> list[str]:
    """Units as their backwards begin."""
    order = forward_order(m)
    return [order[at] for at in unit_tree.backward_order(tuple(order))]


@lru_cache(maxsize=1)  # every detector with advice asks it of one run
def unit_tree_of(m: Measures) -> UnitTree:
    """The units of all ranks; those that ran are in the order of their forwards."""
    units: dict[str, TreeUnit] = {}
    for rank in m.ranks:
        names = [spec.fqn for spec in rank.units]
        for spec in rank.units:
            units.setdefault(spec.fqn, unit_of(spec, names))
    ran = [fqn for fqn in forward_order(m) if fqn in units]
    ordered = [*ran, *(fqn for fqn in units if fqn not in ran)]
    return UnitTree(
        units=tuple(units[fqn] for fqn in ordered),
        device=m.run.device,
        world_size=m.run.world_size,
    )


def as_run(m: Measures) -> UnitTree:
    """Only the units that ran, in their order."""
    tree, ran = unit_tree_of(m), set(forward_order(m))
    return replace(tree, units=tuple(unit for unit in tree.units if unit.fqn in ran))
