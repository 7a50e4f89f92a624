"""A part of a change, and where in somebody's set-up it goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsdpdoctor.changes.code import (
    prefetch_lists,
    same_units,
    set_policies,
    switches,
)
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.unit_tree import TreeUnit, UnitTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Lines, and where they go."""

    where: str
    text: str


def snippet(where: str, lines: Iterable[str]) -> Iterator[Snippet]:
    """One, or none where there are no lines."""
    text = "\n".join(lines)
    if text:
        yield Snippet(where=where, text=text)


def inner(tree: UnitTree) -> list[TreeUnit]:
    """Units below the model's own."""
    return [unit for unit in tree.units if unit.modules != ("",)]


def own_units(before: UnitTree, after: UnitTree) -> bool:
    """Whether `fully_shard` has to be told other things of some units."""
    told = {unit.fqn: unit.reshard_after_forward for unit in before.units}
    return not same_units(before, after) or any(
        type(unit.reshard_after_forward) is int
        and told[unit.fqn] != unit.reshard_after_forward
        for unit in after.units
    )


def settings(plan: Plan, before: UnitTree, after: UnitTree) -> list[str]:
    """What is set on a sharded model, whoever has sharded it."""
    return [
        *set_policies(before, after),
        *switches(plan, after),
        *prefetch_lists(plan, after),
    ]


def uniform(before: UnitTree, after: UnitTree) -> bool | None:
    """The policy that all units but the root get, None where they differ or it is
    what they had.
    """
    told = {unit.fqn: unit.reshard_after_forward for unit in before.units}
    changed = [u for u in after.units if told.get(u.fqn) != u.reshard_after_forward]
    wanted = {unit.reshard_after_forward for unit in inner(after)}
    if not changed or any(unit.modules == ("",) for unit in changed):
        return None
    return wanted.pop() is True if wanted in ({True}, {False}) else None


def indented(lines: Iterable[str]) -> list[str]:
    """A block's lines."""
    split = [line for text in lines for line in text.split("\n")]
    return [f"    {line}" if line else "" for line in split]
