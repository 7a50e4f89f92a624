"""Passes without gradients: what they are for, how many there are, what they cost."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.rank_tables import Passes
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import UNKNOWN, Flag, Kind, Phase, distinct

Purpose = Literal["generation", "evaluation", "reference", "loop", "pass"]

_GENERATES = re.compile(r"generat|sampl|rollout|decod|autoregress", re.IGNORECASE)
_EVALUATES = re.compile(r"eval|valid|test|perplexity|benchmark", re.IGNORECASE)

GROWING = 3
"""So many passes of one step whose inputs are one token, or one longer each time."""

OF_TREE = re.compile(r" \[tree=(\d+)\]")
"""What tells units of one name apart in a record: no part of what they are called."""

NOT_EVERY_STEP = 0.5
"""What runs in fewer of the steps is an evaluation between them."""

Key = tuple[int, str | None]
"""A model and the line that runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGrad:
    """The passes of one model at one line, in the judged steps of all ranks."""

    model: int  # in ModelSpec.models
    where: str | None  # "train.py:43"
    purpose: Purpose
    passes: int
    steps: int  # that have any
    ns: int
    exposed_ns: int
    all_gathers: int

    @property
    def repeated(self) -> bool:
        """Whether a step runs several, with the same weights."""
        return self.passes > self.steps


def no_grad_passes(m: Measures) -> tuple[NoGrad, ...]:
    """The costliest first."""
    found: dict[Key, _Sums] = defaultdict(_Sums)
    trained = trained_models(m)
    for rank in m.ranks:
        _add(rank, found)
    steps = len(m.step_ns)
    rows = [
        NoGrad(
            model=key[0],
            where=key[1],
            purpose=_purpose(sums, trained=key[0] in trained, of_steps=steps),
            passes=sums.passes,
            steps=sums.steps,
            ns=sums.ns,
            exposed_ns=sums.exposed_ns,
            all_gathers=sums.all_gathers,
        )
        for key, sums in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.ns, row.model, row.where or "")))


def trained_models(m: Measures) -> frozenset[int]:
    """Models that any unit of had a backward, in any step."""
    return frozenset(
        rank.units[unit].model
        for rank in m.ranks
        for unit in distinct(
            rank.unit_times.unit[
                (rank.unit_times.phase == Phase.BACKWARD) & (rank.unit_times.calls > 0)
            ]
        ).tolist()
    )


Role = Literal["trained", "without gradients", "not run"]


@lru_cache(maxsize=1)  # asked for every finding of one run
def models_of(m: Measures) -> Mapping[int, tuple[str, Role]]:
    """Each model with units by its number: its name, and what it is there for."""
    header = m.ranks[0].header.model if m.ranks else None
    names = () if header is None else header.models
    trained = trained_models(m)
    ran = {row.model for row in no_grad_passes(m)}
    numbers = {spec.model for rank in m.ranks for spec in rank.units}

    def role(number: int) -> Role:
        if number in trained:
            return "trained"
        return "without gradients" if number in ran else "not run"

    return {at: (model_name(names, at), role(at)) for at in sorted(numbers)}


@dataclass(slots=True)
class _Sums:
    passes: int = 0
    steps: int = 0
    ns: int = 0
    exposed_ns: int = 0
    all_gathers: int = 0
    evaluating: int = 0  # with the module in evaluation mode
    growing: int = 0
    functions: str = ""


def _add(rank: RankMeasures, found: dict[Key, _Sums]) -> None:
    passes = rank.no_grad_passes
    passes = passes.rows(rank.in_judged(passes.step))
    passes = passes.rows(np.argsort(passes.start_ns, kind="stable"))
    if not len(passes):
        return
    gathers = rank.collectives
    gathers = gathers.rows(
        (gathers.kind == Kind.ALL_GATHER) & (gathers.flags & Flag.NO_GRAD != 0)
    )
    stalls = rank.no_grad_stalls
    issued = _within(passes, gathers.start_ns, np.ones(len(gathers), np.int64))
    waited = _within(passes, stalls.start_ns, stalls.duration_ns)
    keys = [_key(rank, passes, at) for at in range(len(passes))]
    for key in dict.fromkeys(one for one, _ in keys):
        mine = np.array([one == key for one, _ in keys])
        rows, sums = passes.rows(mine), found[key]
        sums.passes += len(rows)
        sums.steps += len(distinct(rows.step))
        sums.ns += int((rows.end_ns - rows.start_ns).sum())
        sums.exposed_ns += int(waited[mine].sum())
        sums.all_gathers += int(issued[mine].sum())
        sums.evaluating += int((rows.flags & Flag.EVAL != 0).sum())
        sums.growing += _growing(rows)
        sums.functions = next(words for one, words in keys if one == key)


def _within(passes: Passes, start_ns: Int64s, amount: Int64s) -> Int64s:
    """[passes] what of some amounts began in each."""
    at = np.searchsorted(passes.start_ns, start_ns, side="right") - 1
    inside = (at >= 0) & (start_ns < passes.end_ns[np.maximum(at, 0)])
    return np.bincount(at[inside], amount[inside], len(passes)).astype(np.int64)


def _key(rank: RankMeasures, passes: Passes, at: int) -> tuple[Key, str]:
    """The model and the line of a pass, and the functions around it."""
    unit, name = int(passes.unit[at]), int(passes.name[at])
    place, _, functions = (rank.name(name) or "").partition(" ")
    model = rank.units[unit].model if unit != UNKNOWN else 0
    return (model, place if place not in ("", "?") else None), functions


def _growing(rows: Passes) -> int:
    """Passes whose input is one longer than the one before in the step, or one."""
    following = np.diff(rows.step) == 0
    longer = (np.diff(rows.value) == 1) | (rows.value[1:] == 1)
    return int((following & longer).sum())


def _purpose(sums: _Sums, *, trained: bool, of_steps: int) -> Purpose:
    if _GENERATES.search(sums.functions) or sums.growing >= GROWING * sums.steps:
        return "generation"
    if _EVALUATES.search(sums.functions):
        return "evaluation"
    if not trained:
        return "reference"
    if sums.steps < NOT_EVERY_STEP * of_steps or sums.evaluating == sums.passes:
        return "evaluation"
    return "loop" if sums.passes > sums.steps else "pass"


PURPOSES: dict[Purpose, str] = {
    "generation": "generation",
    "evaluation": "evaluation",
    "reference": "a model that never trains",
    "loop": "a loop without gradients",
    "pass": "a pass without gradients",
}
"""In words."""


def model_name(models: Sequence[str], number: int) -> str:
    """A model by its class; of several of one class, by which of them it is."""
    name = models[number] if number < len(models) else "model"
    same = [at for at, other in enumerate(models) if other == name]
    return f"{name} #{same.index(number) + 1}" if len(same) > 1 else name


def by_model(m: Measures, names: Sequence[str]) -> list[list[str]]:
    """Some units, each model's apart: their names are its own."""
    of = {spec.fqn: spec.model for rank in m.ranks for spec in rank.units}
    apart: dict[int, list[str]] = defaultdict(list)
    for name in names:
        apart[of.get(name, 0)].append(name)
    return list(apart.values())
