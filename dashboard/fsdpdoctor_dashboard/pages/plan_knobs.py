"""A plan as it stands in the What-if page's knobs, and in the page's address."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from fsdpdoctor.changes.plan import ACCUMULATION, ALL, Plan, plan_of
from fsdpdoctor.errors import UsageError
from fsdpdoctor.schema import ITEMSIZE

KNOBS = (
    "forward_prefetch",
    "backward_prefetch",
    "reshard",
    "merge",
    "switches",
    "param_dtype",
    "reduce_dtype",
    "accumulation",
    "replicate",
    "world_size",
    "micro_batches",
    "bandwidth",
    "rest",
)
"""The controls' ids after `knob-`, in the order of `Knobs`' fields."""

AS_IT_WAS = -1
"""Where a slider stands that changes nothing."""
MOST_AHEAD = 4
"""Of units, on a slider."""
MERGES = {"2": "two", "3": "three", "4": "four"}
SWITCHES = {
    "split_root": "split embedding and head from the root",
    "separate_reduce_scatter_group": "reduce-scatters on a communicator of their own",
    "max_input_buffers": "two reduce-scatter input buffers",
    "unshard_async_op": "unshards that do not block (CPU)",
}
BUFFERS = 2
SLIDERS = ("forward_prefetch", "backward_prefetch")
NUMBERS = ("replicate", "world_size", "micro_batches")
WORDS = ("param_dtype", "reduce_dtype", "accumulation", "bandwidth")
_WHOLE = re.compile(r"-?[0-9]{1,18}(?:\.0*)?")
MOST_SAID = 40
"""Characters of what is no number."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """The page's controls, as they stand. None, and empty: as the run was."""

    forward_prefetch: int | None = None
    backward_prefetch: int | None = None
    reshard: str | None = None  # "true", "false"
    merge: int | None = None
    switches: tuple[str, ...] = ()  # fields of Plan that are turned on
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    accumulation: str | None = None
    replicate: int | None = None
    world_size: int | None = None
    micro_batches: int | None = None
    bandwidth: str | None = None
    rest: Mapping[str, Any] = field(default_factory=dict)  # what no control says

    def plan(self, *, blocking: bool) -> Plan:
        """The plan they ask for. Raises UsageError."""
        given: dict[str, Any] = {
            name: value
            for name in (*SLIDERS, "merge", *NUMBERS, *WORDS)
            if (value := getattr(self, name)) is not None
        }
        if self.reshard is not None:
            given["reshard_after_forward"] = {ALL: self.reshard == "true"}
        for switch in self.switches:
            given[switch] = BUFFERS if switch == "max_input_buffers" else True
        lists = set(SLIDERS) & set(given)
        if lists and blocking:
            # Without it a prefetched gather blocks the host at once, and hides nothing.
            given.setdefault("unshard_async_op", True)
        return _checked({**given, **self.rest})


def _checked(changes: Mapping[str, Any]) -> Plan:
    try:
        return plan_of(changes)
    except msgspec.ValidationError as error:
        raise UsageError(f"the plan cannot be read: {error}") from None


def knobs_of_values(values: Sequence[object]) -> Knobs:
    """The controls' values as `Knobs`; what is left alone is None.

    Raises UsageError: a browser may send anything.
    """
    given = dict(zip(KNOBS, values, strict=True))
    numbers: dict[str, Any] = {
        name: _number(name, given[name]) for name in (*SLIDERS, "merge", *NUMBERS)
    }
    texts: dict[str, Any] = {
        name: str(given[name]) if given[name] else None for name in WORDS
    }
    switches, rest = given["switches"], given["rest"]
    return Knobs(
        reshard=str(given["reshard"]) if given["reshard"] else None,
        switches=tuple(map(str, switches)) if isinstance(switches, list) else (),
        rest=_merged(rest) if isinstance(rest, list) else {},
        **numbers,
        **texts,
    )


def _number(name: str, value: object) -> int | None:
    """A slider's or a box's; boxes send what is typed, also `1e21` and 2.5."""
    if value in (None, "", AS_IT_WAS):
        return None
    if not _WHOLE.fullmatch(said := str(value)):
        raise UsageError(f"{name} is {said[:MOST_SAID]}; expected a whole number")
    return int(said.partition(".")[0])


def _merged(parts: Sequence[object]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= _object(str(part))
    return merged


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError("the plan is damaged: it is no JSON object")
    return found


def knobs_of(plan: Plan) -> Knobs:
    """The controls that ask for a plan; what none can say is in `rest`."""
    told: dict[str, Any] = {}
    switches: list[str] = []
    rest: dict[str, Any] = {}
    for name, value in plan.changes.items():
        if name == "reshard_after_forward" and _is_for_all(value):
            told["reshard"] = str(value[ALL]).lower()
        elif name in SWITCHES and value == (BUFFERS if "buffers" in name else True):
            switches.append(name)
        elif _has_control(name, value):
            told[name] = value
        else:
            rest[name] = value
    return Knobs(switches=tuple(switches), rest=rest, **told)


def _is_for_all(policies: Mapping[str, bool | int]) -> bool:
    return set(policies) == {ALL} and isinstance(policies[ALL], bool)


def _has_control(name: str, value: Any) -> bool:
    """Whether a control of the page can stand at a value."""
    choices: dict[str, Sequence[str]] = {
        "merge": tuple(MERGES),
        "accumulation": ACCUMULATION,
        "param_dtype": tuple(ITEMSIZE),
        "reduce_dtype": tuple(ITEMSIZE),
    }
    if name in SLIDERS:
        return 0 <= int(value) <= MOST_AHEAD
    if name in choices:
        return str(value) in choices[name]
    return name in NUMBERS or name == "bandwidth"


def control_values(knobs: Knobs) -> dict[str, Any]:
    """What each control is set to, by its name in `KNOBS`."""
    found: dict[str, Any] = {name: getattr(knobs, name) for name in KNOBS}
    for name in SLIDERS:
        found[name] = AS_IT_WAS if found[name] is None else found[name]
    found["merge"] = None if knobs.merge is None else str(knobs.merge)
    found["switches"] = list(knobs.switches)
    found["rest"] = [option["value"] for option in rest_options(knobs)]
    return found


def rest_options(
    knobs: Knobs, named: Callable[[str], str] = str
) -> list[dict[str, str]]:
    """A box for each change that no control says: to be taken back. `named` says what
    units are called.
    """
    return [
        {"label": _checked({name: value}).words(named), "value": _text({name: value})}
        for name, value in knobs.rest.items()
    ]


def plan_text(plan: Plan) -> str:
    """A plan as an address holds it: what `whatif --json` calls `plan`."""
    return _text(plan.changes) if plan.changes else ""


def _text(changes: Mapping[str, Any]) -> str:
    return json.dumps(changes, separators=(",", ":"))


def plan_of_text(text: str) -> Plan:
    """The plan that an address asks for. Raises UsageError."""
    return _checked(_object(text)) if text else Plan()


def setting(plan: Plan, named: Callable[[str], str] = str) -> str:
    """What a row or a point of the page sets: whatif.js hands it to the controls."""
    knobs = knobs_of(plan)
    return json.dumps(
        {
            "plan": plan_text(plan),
            "values": control_values(knobs),
            "rest": rest_options(knobs, named),
        },
        separators=(",", ":"),
    )
