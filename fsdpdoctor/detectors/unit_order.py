"""The units of a measured run as a tree, and the order in which they ran."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import model_name
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


def orders(m: Measures) -> dict[int, list[str]]:
    """Units in that order, by their tree: FSDP2 gathers none of one for another."""
    of = {unit.fqn: unit.tree for unit in unit_tree_of(m).units}
    found: dict[int, list[str]] = {}
    for name in forward_order(m):
        found.setdefault(of[name], []).append(name)
    return found


def backward_order(m: Measures) -> list[str]:
    """Units as their backwards begin, each root's together."""
    return [
        names[at]
        for names in reversed(orders(m).values())
        for at in unit_tree.backward_order(tuple(names))
    ]


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


def tree_of_one(m: Measures, names: Collection[str]) -> UnitTree | None:
    """The units of the one model that some units are of; None where they are of
    several, or of one that cannot be named beside others.
    """
    tree = unit_tree_of(m)
    if len(tree.models) < 2:
        return tree
    header = m.ranks[0].header.model
    numbers = {unit.model for unit in tree.units}
    mine = {unit.model for unit in tree.units if unit.fqn in names}
    if header is None or len(numbers) < 2 or len(mine) != 1:
        return None
    (number,) = mine
    name = model_name(header.models, number)
    return replace(
        tree.of_model(number),
        called=f"{name}, one of {len(numbers)} in this process",
    )


def that_ran(m: Measures, tree: UnitTree) -> UnitTree:
    """Of a tree only the units that ran, in their order."""
    ran = set(forward_order(m))
    return replace(tree, units=tuple(unit for unit in tree.units if unit.fqn in ran))
