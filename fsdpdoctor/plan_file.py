"""The part of a plan file that `run --apply` reads: every unit and setting by name.

Standard library only: the recorder carries this module into other people's training
jobs. `changes.plan` writes the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdpdoctor.errors import InputError, NewerFormatError
from fsdpdoctor.schema import ROOT
from fsdpdoctor.storage.regular_file import MOST_HEADER, read_regular

PLAN_VERSION = 1
"""Of plan files. Readers refuse a larger one."""

FOR_ALL_UNITS = (
    *("param_dtype", "reduce_dtype", "unshard_async_op"),
    *("separate_reduce_scatter_group", "max_input_buffers", "accumulation"),
)
"""Settings that a plan file says once."""

NOT_APPLICABLE: Mapping[str, str] = {
    "bandwidth": "other links",
    "micro_batches": "another number of micro-batches",
}
"""What a plan may ask about, and no recorder can change in a running script."""

KNOWN_PLAN = frozenset(
    {
        "forward_prefetch",
        "backward_prefetch",
        "forward_prefetch_of",
        "backward_prefetch_of",
        "unshard_async_op",
        "reshard_after_forward",
        "merge",
        "split_root",
        "wrap",
        "param_dtype",
        "reduce_dtype",
        "replicate",
        "world_size",
        "bandwidth",
        "separate_reduce_scatter_group",
        "max_input_buffers",
        "accumulation",
        "micro_batches",
    }
)
"""Fields of `changes.plan.Plan`, which the recorder does not carry."""

KNOWN_APPLY = frozenset(
    {
        "units",
        "groups",
        "mesh",
        "parameters",
        "param_dtype",
        "reduce_dtype",
        "unshard_async_op",
        "separate_reduce_scatter_group",
        "max_input_buffers",
        "accumulation",
        "micro_batches",
    }
)
KNOWN_UNIT = frozenset(
    {"reshard_after_forward", "forward_prefetch", "backward_prefetch"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSettings:
    """What a plan says of one unit. None: leave it as it is."""

    reshard_after_forward: bool | int | None = None
    forward_prefetch: tuple[str, ...] | None = None  # units
    backward_prefetch: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a plan comes to for one model. None, and empty: leave it as it is."""

    units: Mapping[str, UnitSettings]  # every unit, as the plan groups them
    groups: tuple[tuple[str, ...], ...] | None = None  # modules of each unit, no root
    mesh: tuple[int, int] | None = None  # replicas, shards
    world_size: int | None = None
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    unshard_async_op: bool | None = None
    separate_reduce_scatter_group: bool | None = None
    max_input_buffers: int | None = None
    accumulation: str | None = None  # "every", "last", "keep"
    micro_batches: int | None = None  # of the step that the plan was made from
    parameters: int | None = None  # elements of the model that it was made for
    path: Path = field(default_factory=Path)

    @property
    def by_unit(self) -> bool:
        """Whether anything is said of single units."""
        return any(said != UnitSettings() for said in self.units.values())

    @property
    def regroups(self) -> bool:
        """Whether units must be made by other `fully_shard` calls than the script's.

        A number of ranks to reshard to can be said to `fully_shard` only.
        """
        return self.groups is not None or any(
            type(said.reshard_after_forward) is int for said in self.units.values()
        )

    @property
    def named(self) -> tuple[tuple[str, ...], ...]:
        """The modules of each unit that it says something of, the root's too."""
        said = [unit for unit, one in self.units.items() if one != UnitSettings()]
        return tuple(module_names(unit) for unit in said)

    @property
    def modules(self) -> tuple[tuple[str, ...], ...]:
        """The modules of each unit but the root, parents before children."""
        if self.groups is not None:
            return self.groups
        return tuple(module_names(unit) for unit in self.units if unit != ROOT)


def module_names(unit: str) -> tuple[str, ...]:
    """The FQNs of a unit's modules; of the root the empty one.

    What tells units of one name apart (`[pg=2]`, `[tree=1]`, `#2`) is no part of them.
    """
    name = re.sub(r"( \[(pg|tree)=\d+\]| #\d+)+$", "", unit)
    return ("",) if name == ROOT else tuple(name.split(", "))


def read_settings(path: Path) -> Settings:
    """What a plan file says to apply. Raises InputError."""
    content = read_plan_file(path)
    plan = content.get("plan")
    if isinstance(plan, dict):
        for name, what in NOT_APPLICABLE.items():
            if name in plan:
                raise InputError(
                    f"{path} asks for {what} ({name}), which cannot be applied to a "
                    "running script: save a plan without it"
                )
    try:
        return _settings(content["apply"], plan or {}, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is damaged: {type(error).__name__} {error}. "
            "Save it again with `fsdpdoctor whatif --save`"
        ) from None


def settings_of(apply: Mapping[str, Any]) -> Settings:
    """What a plan's `apply` says. Raises InputError."""
    try:
        return _settings(dict(apply), {}, Path())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"no plan: {type(error).__name__} {error}") from None


def write_plan_file(
    path: Path, plan: Mapping[str, Any], apply: Mapping[str, Any]
) -> None:
    """Write a plan, and beside it (`apply`) what it comes to for a run's model. Raises
    OSError.
    """
    content = {"plan_version": PLAN_VERSION, "plan": dict(plan), "apply": dict(apply)}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def read_plan_file(path: Path) -> dict[str, Any]:
    """A plan file's content, its version checked. Raises InputError."""
    try:
        content = json.loads(read_regular(path, MOST_HEADER))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no plan: {error}") from None
    if not isinstance(content, dict) or "plan_version" not in content:
        raise InputError(
            f"{path} is no plan: it has no plan_version. "
            "Expected a file that `fsdpdoctor whatif --save` wrote"
        )
    version = content["plan_version"]
    if not isinstance(version, int) or version > PLAN_VERSION:
        raise NewerFormatError(
            f"{path} has plan format {version}, this fsdpdoctor reads up to "
            f"{PLAN_VERSION}: upgrade with pip install -U fsdpdoctor"
        )
    if unknown := _unknown(content):
        # Half a plan is another plan.
        raise InputError(
            f"{path} says {unknown}, which this fsdpdoctor does not know: nothing of "
            "it is applied. Upgrade with pip install -U fsdpdoctor, or save it again"
        )
    return content


def _unknown(content: dict[str, Any]) -> str | None:
    """The first setting of a plan file that no reader of this version knows."""
    plan, apply = content.get("plan"), content.get("apply")
    places: list[tuple[str, Any, frozenset[str]]] = [
        ("plan", plan, KNOWN_PLAN),
        ("apply", apply, KNOWN_APPLY),
    ]
    units = apply.get("units") if isinstance(apply, dict) else None
    if isinstance(units, dict):
        places += [(f"apply.units.{n}", said, KNOWN_UNIT) for n, said in units.items()]
    for where, said, known in places:
        if isinstance(said, dict) and (others := sorted(set(said) - known)):
            return f"{where}.{others[0]}"
    return None


def _settings(apply: dict[str, Any], plan: dict[str, Any], path: Path) -> Settings:
    groups, mesh = apply.get("groups"), apply.get("mesh")
    settings = Settings(
        units={name: _unit(said) for name, said in apply["units"].items()},
        groups=None if groups is None else tuple(_names(group) for group in groups),
        mesh=None if mesh is None else (int(mesh["replicate"]), int(mesh["shard"])),
        world_size=_checked(plan, "world_size", int),
        param_dtype=_checked(apply, "param_dtype", str),
        reduce_dtype=_checked(apply, "reduce_dtype", str),
        unshard_async_op=_checked(apply, "unshard_async_op", bool),
        separate_reduce_scatter_group=_checked(
            apply, "separate_reduce_scatter_group", bool
        ),
        max_input_buffers=_checked(apply, "max_input_buffers", int),
        accumulation=_checked(apply, "accumulation", str),
        micro_batches=_checked(apply, "micro_batches", int),
        parameters=_checked(apply, "parameters", int),
        path=path,
    )
    if settings.accumulation in ("last", "keep") and settings.micro_batches is None:
        raise ValueError("accumulation without micro_batches")
    return settings


def _checked(content: dict[str, Any], name: str, kind: type) -> Any:
    value = content.get(name)
    if value is not None and type(value) is not kind:
        raise TypeError(f"{name} is {value!r}, expected {kind.__name__}")
    return value


def _names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise TypeError(f"{names!r} is no list of names")
    return tuple(names)


def _unit(said: Any) -> UnitSettings:
    size = said.get("reshard_after_forward")
    if size is not None and not isinstance(size, int):
        raise TypeError(f"reshard_after_forward is {size!r}")
    forward, backward = said.get("forward_prefetch"), said.get("backward_prefetch")
    return UnitSettings(
        reshard_after_forward=size,
        forward_prefetch=None if forward is None else _names(forward),
        backward_prefetch=None if backward is None else _names(backward),
    )


def words(settings: Settings) -> tuple[str, ...]:
    """What a plan changes, one thing a line, as a run's header holds it."""
    said = list(settings.units.values())
    lines: list[str] = []
    if settings.groups is not None:
        lines.append(f"regrouped into {len(settings.units)} units")
    for name in ("forward_prefetch", "backward_prefetch"):
        lists = [getattr(unit, name) for unit in said]
        if given := [one for one in lists if one is not None]:
            depth = max(len(one) for one in given)
            lines.append(
                f"{name.replace('_', ' ')} lists of {len(given)} units, up to {depth} "
                "ahead"
            )
    policies: dict[str, int] = {}
    for unit in said:
        if unit.reshard_after_forward is not None:
            policy = str(unit.reshard_after_forward)
            policies[policy] = policies.get(policy, 0) + 1
    lines += [f"reshard_after_forward={p} for {n} units" for p, n in policies.items()]
    if settings.mesh is not None:
        lines.append(f"mesh of {settings.mesh[0]} replicas x {settings.mesh[1]} shards")
    for name in FOR_ALL_UNITS:
        if (value := getattr(settings, name)) is not None:
            lines.append(f"{name} {value}")
    return tuple(lines)


def bits_file(folder: Path, rank: int) -> Path:
    """Where a rank writes the hash of its parameters, beside its record."""
    return folder / f"bits{rank:05d}.txt"
