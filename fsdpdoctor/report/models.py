"""The report's rows per model, and of their passes without gradients."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import model_name, no_grad_passes, trained_models
from fsdpdoctor.detectors.judged_steps import all_units
from fsdpdoctor.report.model_rows import ModelRow, NoGradRow
from fsdpdoctor.schema import UnitSpec

Role = Literal["trained", "without gradients", "not run"]


def model_rows(m: Measures) -> tuple[ModelRow, ...]:
    """Each model with units, by its number."""
    units: dict[int, list[UnitSpec]] = defaultdict(list)
    for spec in all_units(m).values():
        units[spec.model].append(spec)
    header = m.ranks[0].header.model if m.ranks else None
    names = () if header is None else header.models
    trained = trained_models(m)
    ran = {row.model for row in no_grad_passes(m)}
    rows = []
    for number in range(max(units, default=-1) + 1):
        specs = units[number]
        role: Role = "without gradients" if number in ran else "not run"
        rows.append(
            ModelRow(
                name=model_name(names, number),
                role="trained" if number in trained else role,
                units=len(specs),
                numel=None
                if any(spec.numel < 0 for spec in specs)
                else sum(spec.numel for spec in specs),
            )
        )
    return tuple(rows)


def no_grad_rows(m: Measures) -> tuple[NoGradRow, ...]:
    """Passes without gradients, the costliest first."""
    steps = max(len(m.step_ns), 1)
    return tuple(
        NoGradRow(
            model=row.model,
            where=row.where,
            purpose=row.purpose,
            passes_per_step=row.passes / steps,
            steps_share=row.steps / steps,
            all_gathers_per_step=row.all_gathers / steps,
            ns_per_step=round(row.ns / steps),
            exposed_ns_per_step=round(row.exposed_ns / steps)
            if m.stalls_known
            else None,
        )
        for row in no_grad_passes(m)
    )
