"""Plans and knobs say the same, both ways, and an address holds either."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.changes.plan import ALL, Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor_dashboard.pages import whatif
from fsdpdoctor_dashboard.pages.plan_knobs import (
    AS_IT_WAS,
    KNOBS,
    Knobs,
    control_values,
    knobs_of,
    knobs_of_values,
    plan_of_text,
    plan_text,
    rest_options,
    setting,
)

PLANS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "lists": {"forward_prefetch": 0, "backward_prefetch": 4},
    "too far ahead for a slider": {"forward_prefetch": 9},
    "every unit": {"reshard_after_forward": {ALL: False}},
    "some units": {"reshard_after_forward": {"layers.3": False, "layers.2": 4}},
    "groups": {"merge": 3, "split_root": True, "replicate": 2, "world_size": 16},
    "a merge that no list has": {"merge": 7},
    "buffers": {"max_input_buffers": 2, "separate_reduce_scatter_group": True},
    "buffers that no box says": {"max_input_buffers": 3},
    "a switch turned off": {"unshard_async_op": False},
    "types": {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
    "another class": {"wrap": "Block", "accumulation": "keep", "micro_batches": 4},
    "units ahead of one": {"forward_prefetch_of": {"layers.0": 2}},
    "links": {"bandwidth": "intra=nvlink4,inter=ib400"},
}


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS.keys())
def test_controls_ask_for_the_plan_they_were_set_to(changes: dict[str, Any]) -> None:
    """Whatever it is: what no control says is a box of its own."""
    plan = Plan(**changes)
    values = control_values(knobs_of(plan))

    assert (
        knobs_of_values([values[name] for name in KNOBS]).plan(blocking=False) == plan
    )


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS.keys())
def test_an_address_holds_a_plan(changes: dict[str, Any]) -> None:
    """As `whatif --json` says it; nothing for no change."""
    plan = Plan(**changes)

    assert plan_of_text(plan_text(plan)) == plan
    assert plan_text(plan) == (
        json.dumps(plan.changes, separators=(",", ":")) if changes else ""
    )


@pytest.mark.parametrize("text", ["{", "[]", '"x"', '{"merge":"two"}', '{"merge":0}'])
def test_a_damaged_plan_is_refused(text: str) -> None:
    """By a sentence, whatever somebody wrote into the address."""
    with pytest.raises(UsageError):
        plan_of_text(text)


def test_boxes_are_only_for_what_no_control_says() -> None:
    """Each has the words of its change, and is taken back by itself."""
    plan = Plan(merge=7, wrap="Block", forward_prefetch=2)
    knobs = knobs_of(plan)

    assert knobs.forward_prefetch == 2
    assert [option["label"] for option in rest_options(knobs)] == [
        "merge 7",
        "wrap Block",
    ]
    values = control_values(knobs)
    values["rest"] = values["rest"][1:]
    left = knobs_of_values([values[name] for name in KNOBS]).plan(blocking=False)
    assert left == Plan(wrap="Block", forward_prefetch=2)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (1e21, "world_size is 1e+21; expected a whole number"),
        (2.5, "world_size is 2.5; expected a whole number"),
        ([], "world_size is []; expected a whole number"),
        ({"a": 1}, "world_size is {'a': 1}; expected a whole number"),
        ("9" * 5000, f"world_size is {'9' * 40}; expected a whole number"),
    ],
)
def test_what_is_no_number_is_told(typed: object, said: str) -> None:
    """A box sends what is typed into it, and a browser anything."""
    values = control_values(Knobs()) | {"world_size": typed}

    with pytest.raises(UsageError) as told:
        knobs_of_values([values[name] for name in KNOBS])

    assert str(told.value) == said


def test_whole_numbers_are_taken_as_browsers_send_them() -> None:
    """A slider's may be a float, and a box's of words."""
    values = control_values(Knobs()) | {"world_size": 64.0, "micro_batches": "8"}

    knobs = knobs_of_values([values[name] for name in KNOBS])

    assert knobs == Knobs(world_size=64, micro_batches=8)


def test_a_prefetch_that_blocks_the_host_is_made_not_to() -> None:
    """On a device without streams a list alone hides nothing."""
    knobs = knobs_of(Plan(forward_prefetch=1))

    assert knobs.plan(blocking=True) == Plan(forward_prefetch=1, unshard_async_op=True)


def test_a_row_sets_every_control() -> None:
    """Those of another plan, too: none is left as somebody had it."""
    found = json.loads(setting(Plan(merge=2)))

    assert list(found["values"]) == list(KNOBS)
    assert found["values"]["forward_prefetch"] == AS_IT_WAS
    assert found["plan"] == '{"merge":2}'


def test_scripts_know_all_controls() -> None:
    """whatif.js sets them in the order in which the server asks them."""
    assets = whatif.__file__.replace("pages/whatif.py", "assets/whatif.js")
    with open(assets, encoding="utf-8") as file:  # noqa: PTH123
        text = file.read()
    listed = re.search(r"const KNOBS = \[(.*?)\];", text, re.DOTALL)
    assert listed is not None

    assert re.findall(r'"(\w+)"', listed[1]) == list(KNOBS)
