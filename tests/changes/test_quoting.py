"""Names in code to paste: whatever they hold, they are read back as they were."""

from __future__ import annotations

import ast
import re

import pytest

from fsdpdoctor.changes.code import code
from fsdpdoctor.changes.frameworks import DIALECTS, snippets
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.quoting import name_list, quoted
from fsdpdoctor.changes.unit_tree import TreeUnit, UnitTree
from fsdpdoctor.schema import BlockSpec

HOSTILE = (
    'a"); import os; os.abort(); ("',
    "it's",
    "both ' and \"",
    "line\nimport os",
    "back\\slash",
    "{i}",
    "\u202e\x00",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_literal_holds_the_name_and_no_more(name: str) -> None:
    """Read back it is the name, in one line of ASCII-safe text."""
    literal = quoted(name)

    assert ast.literal_eval(literal) == name
    assert "\n" not in literal


def test_plain_names_have_double_quotes() -> None:
    """As in a formatted script."""
    assert quoted("layers.0") == '"layers.0"'


@pytest.mark.parametrize("step", [1, -1])
def test_many_names_that_count_up_are_a_range(step: int) -> None:
    """The list that it makes is the list that was given, braces and all."""
    names = [f"a{{b}}.{at}" for at in range(20)][::step]
    text = name_list(names)

    assert len(text) < 60
    assert eval(text) == names


@pytest.mark.parametrize("tails", [("00", "01"), ("0", "2"), ("0", "x")])
def test_names_that_do_not_count_up_are_listed(tails: tuple[str, str]) -> None:
    """A leading zero, a gap, a word: each name is written out."""
    names = [f"layers.{tail}" for tail in tails] * 7

    assert ast.literal_eval(name_list(names)) == names


PLANS = (
    Plan(forward_prefetch=2, backward_prefetch=1),
    Plan(forward_prefetch_of={HOSTILE[0]: 0}),
    Plan(reshard_after_forward={"*": False}),
    Plan(reshard_after_forward={"*": 2}),
    Plan(merge=2),
    Plan(replicate=2),
    Plan(param_dtype="bfloat16", accumulation="keep", unshard_async_op=True),
)


def hostile(*, reshard: bool | int = True, dtype: str | None = None) -> UnitTree:
    """A root, and units whose names end literals, lines and loops."""
    root = TreeUnit(
        fqn="<root>",
        is_root=True,
        reshard_after_forward=False,
        mesh="(replicate=2, shard=4)",
    )
    units = [
        TreeUnit(
            fqn=name,
            reshard_after_forward=reshard,
            param_dtype=dtype,
            mesh="(replicate=2, shard=4)",
        )
        for name in HOSTILE
    ]
    return UnitTree(units=(root, *units), device="cpu", world_size=8)


def strings(text: str) -> set[str]:
    """Every string in some code; it has to parse."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        assert not (isinstance(node, ast.Attribute) and node.attr == "abort")
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_units_of_any_name_come_out_as_strings(dialect: str, plan: Plan) -> None:
    """What is printed parses, and calls nothing that a name holds."""
    before = hostile()
    reshard = plan.reshard_after_forward.get("*", True)
    after = hostile(reshard=reshard, dtype=plan.param_dtype)
    if plan.merge:
        merged = TreeUnit(fqn=", ".join(HOSTILE), reshard_after_forward=True)
        after = UnitTree(units=(after.units[0], merged))
    block = BlockSpec(container="x", module_class="B\n- y", count=2, units=2, numel=1)

    for snippet in snippets(dialect, plan, before, after, [block]):
        if snippet.text.startswith("--"):
            # Of a command line: switches of the framework's own, and no unit's name.
            assert re.fullmatch(r"(--[a-z_.]+ [a-z0-9]+\n?)+", snippet.text)
        elif "config_file" not in snippet.where and ".toml" not in snippet.where:
            strings(snippet.text)


def test_every_hostile_name_is_there() -> None:
    """None is dropped or cut short."""
    text = code(Plan(forward_prefetch=1), hostile(), hostile())

    assert set(HOSTILE) <= strings(text)
