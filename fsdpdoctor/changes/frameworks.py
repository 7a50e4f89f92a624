"""A plan's lines for what shards the user's model.

Each text goes to one place and runs, or parses, there as it is. It changes what the
plan changes: what a framework does beside, it still does.
"""

from __future__ import annotations

from collections.abc import Sequence

from fsdpdoctor.changes.accelerate import accelerate
from fsdpdoctor.changes.code import code
from fsdpdoctor.changes.lightning import fabric, lightning
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.snippet import Snippet
from fsdpdoctor.changes.torchtitan import torchtitan
from fsdpdoctor.changes.unit_tree import UnitTree
from fsdpdoctor.schema import BlockSpec

DIALECTS = ("fully_shard", "torchtitan", "accelerate", "lightning", "fabric")
"""What `whatif --code` knows."""


def snippets(
    dialect: str,
    plan: Plan,
    before: UnitTree,
    after: UnitTree,
    blocks: Sequence[BlockSpec] = (),
) -> list[Snippet]:
    """A plan in one of DIALECTS. `after` are the units as the plan makes them."""
    if dialect == "torchtitan":
        return [*torchtitan(plan, before, after)]
    if dialect == "accelerate":
        return [*accelerate(plan, before, after, blocks)]
    if dialect == "lightning":
        return [*lightning(plan, before, after)]
    if dialect == "fabric":
        return [*fabric(plan, before, after)]
    text = code(plan, before, after)
    return [Snippet(where="after sharding", text=text)] if text else []


def code_in(
    dialect: str,
    plan: Plan,
    before: UnitTree,
    after: UnitTree,
    blocks: Sequence[BlockSpec] = (),
) -> str:
    """All snippets in one text; a comment says where each goes."""
    found = snippets(dialect, plan, before, after, blocks)
    if dialect == "fully_shard":
        return "".join(snippet.text for snippet in found)
    return "\n\n".join(f"# {snippet.where}:\n{snippet.text}" for snippet in found)
