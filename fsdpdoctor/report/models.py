"""The report's rows per model, and of their passes without gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import models_of, no_grad_passes
from fsdpdoctor.detectors.judged_steps import all_units
from fsdpdoctor.report.model_rows import ModelRow, NoGradRow
from fsdpdoctor.schema import UnitSpec


def model_rows(m: Measures) -> tuple[ModelRow, ...]:
    """Each model with units, by its number."""
    units: dict[int, list[UnitSpec]] = defaultdict(list)
    for spec in all_units(m).values():
        units[spec.model].append(spec)
    known = models_of(m)
    rows = []
    for number, specs in sorted(units.items()):
        name, role = known.get(number, ("model", "not run"))
        rows.append(
            ModelRow(
                name=name,
                role=role,
                units=len(specs),
                numel=None
                if any(spec.numel < 0 for spec in specs)
                else sum(spec.numel for spec in specs),
            )
        )
    return tuple(rows)


def places(m: Measures) -> Mapping[int, int]:
    """Where each model stands in `models`, by its number in the record: there are
    models without a unit, such as a loss that is sharded and has no parameters.
    """
    return {number: at for at, number in enumerate(models_of(m))}


def no_grad_rows(m: Measures) -> tuple[NoGradRow, ...]:
    """Passes without gradients, the costliest first."""
    steps, place = max(len(m.step_ns), 1), places(m)
    return tuple(
        NoGradRow(
            model=place.get(row.model, 0),
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
