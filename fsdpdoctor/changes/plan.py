"""Plan: what to change about a run. None, and empty: leave it as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.plan_file import read_plan_file, write_plan_file
from fsdpdoctor.schema import ITEMSIZE
from fsdpdoctor.untrusted.headers import short_word

ALL = "*"
"""In `Plan.reshard_after_forward`: every unit but the root."""

ACCUMULATION = ("every", "last", "keep")
"""When gradients are reduced: after every micro-batch (FSDP2's default), only after
the last; `keep` also keeps parameters unsharded between micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Changed settings. Names of units are FQNs as in the report.

    A regrouping comes first; what else a plan says of units is said of the new ones.
    """

    forward_prefetch: int | None = None  # how many units ahead; 0: no lists
    backward_prefetch: int | None = None  # 0: FSDP2's default order, one ahead
    forward_prefetch_of: Mapping[str, int] = field(default_factory=dict)
    backward_prefetch_of: Mapping[str, int] = field(default_factory=dict)
    unshard_async_op: bool | None = None
    reshard_after_forward: Mapping[str, bool | int] = field(default_factory=dict)
    merge: int | None = None  # this many neighbours become one unit
    split_root: bool = False  # embedding, and the rest, out of the root's unit
    wrap: str | None = None  # a module class that repeats: a unit each
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    replicate: int | None = None  # HSDP's replicas; 1: none
    world_size: int | None = None
    bandwidth: str | None = None  # links, as `rehearse --bandwidth` takes them
    separate_reduce_scatter_group: bool | None = None
    max_input_buffers: int | None = None
    accumulation: str | None = None  # one of ACCUMULATION
    micro_batches: int | None = None

    def __post_init__(self) -> None:
        for name in ("forward_prefetch", "backward_prefetch"):
            if (depth := getattr(self, name)) is not None and depth < 0:
                raise UsageError(f"{name} is {depth}; expected 0 or more")
        for name in ("merge", "max_input_buffers", "micro_batches", "world_size"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise UsageError(f"{name} is {count}; expected 1 or more")
        for name in ("param_dtype", "reduce_dtype"):
            if (dtype := getattr(self, name)) is not None and dtype not in ITEMSIZE:
                raise UsageError(
                    f"{name} is {dtype!r}; expected one of {', '.join(ITEMSIZE)}"
                )
        if self.accumulation is not None and self.accumulation not in ACCUMULATION:
            raise UsageError(
                f"accumulation is {self.accumulation!r}; "
                f"expected one of {', '.join(ACCUMULATION)}"
            )

    @property
    def changes(self) -> dict[str, Any]:
        """What it changes, by field."""
        default = Plan.__dataclass_fields__
        result = {}
        for f in fields(self):
            value = getattr(self, f.name)
            is_left = value is None or value == {}
            # By identity: a prefetch of 0 units is a change, and equal to False.
            if not is_left and (value is not False or default[f.name].default is None):
                result[f.name] = value
        return result

    def __str__(self) -> str:
        return self.words(str)

    def words(self, named: Callable[[str], str]) -> str:
        """What it changes, with units as `named` calls them."""
        if not self.changes:
            return "no change"
        return ", ".join(_words(name, v, named) for name, v in self.changes.items())


def _words(name: str, value: Any, named: Callable[[str], str]) -> str:
    words = name.replace("_", " ")
    if isinstance(value, Mapping):
        each = ", ".join(f"{named(unit)} {v}" for unit, v in value.items())
        each = each.replace(f"{ALL} ", "")
        return f"{words}: {each}"
    return words if value is True else f"{words} {value}"


def save_plan(plan: Plan, path: Path, apply: Mapping[str, Any]) -> None:
    """Write a plan, and beside it (`apply`) what it comes to for the run's model.

    `run --apply` needs only `apply`, which names every unit and setting.
    """
    write_plan_file(path, plan.changes, apply)


def load_plan(path: Path) -> Plan:
    """Read a plan back. Raises InputError."""
    content = read_plan_file(path)
    try:
        return plan_of(content.get("plan"))
    except msgspec.ValidationError as error:
        raise InputError(f"{path} is damaged: {short_word(str(error))}") from None


def plan_of(changes: object) -> Plan:
    """The plan that makes some changes, by field. Raises msgspec.ValidationError."""
    return msgspec.convert(changes, type=Plan)
