"""What a unit is called for a reader: by its name in its model, and of which model.

A record tells units of one name apart by the number of their tree, which means nothing
to whoever reads it. All that shows a unit asks here what to call it; what looks one
unit up by another, or in another run, goes on with their own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fsdpdoctor.analysis.no_grad import OF_TREE, model_name
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.renderers.formatting import unit_name, units, visible
from fsdpdoctor.report.model_rows import ModelRow
from fsdpdoctor.report.value import Report, UnitRow


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitNames:
    """The units of one run, or of two that stand beside each other."""

    model_of: Mapping[str, str] = field(default_factory=dict)  # empty: of one model

    def __call__(self, unit: str) -> str:
        """Where units of all models stand together."""
        if not self.model_of:
            return unit_name(unit)
        if unit not in self.model_of:
            return unit_name(self.words(unit))
        return f"{self.within(unit)} of {visible(self.model_of[unit])}"

    def within(self, unit: str) -> str:
        """Where all are of one model, which is said once."""
        return unit_name(OF_TREE.sub("", unit) if self.model_of else unit)

    def listed(self, names: Sequence[str]) -> str:
        """Several, siblings of a model together."""
        mine: dict[str, list[str]] = {}
        for name in names:
            model = self.model_of.get(name)
            of = "" if model is None else f" of {visible(model)}"
            mine.setdefault(of, []).append(self.within(name))
        return " and ".join(f"{units(own)}{of}" for of, own in mine.items())

    def model(self, names: Sequence[str]) -> str | None:
        """The one model of several that all of these are of."""
        of = {self.model_of.get(name) for name in names}
        model = of.pop() if len(of) == 1 else None
        return None if model is None else visible(model)

    def of_finding(self, names: Sequence[str]) -> str:
        """Those of a finding, whose summary has the model where it is of one."""
        if self.model(names) is None:
            return self.listed(names)
        return units([self.within(name) for name in names])

    def words(self, text: str) -> str:
        """A sentence that names units, as they are called here."""
        if not self.model_of:
            return text
        models = {
            found[1]: model
            for unit, model in self.model_of.items()
            if (found := OF_TREE.search(unit))
        }

        def of(found: re.Match[str]) -> str:
            model = models.get(found[1])
            return "" if model is None else f" of {model}"

        return OF_TREE.sub(of, text)

    def beside(self, other: UnitNames) -> UnitNames:
        """Those of two runs; what both have is called as here."""
        return UnitNames(model_of={**other.model_of, **self.model_of})


def names_of(rows: Sequence[UnitRow], models: Sequence[ModelRow]) -> UnitNames:
    """Of a report's rows."""
    if len(models) < 2:
        return UnitNames()
    return UnitNames(model_of={row.unit: models[row.model].name for row in rows})


def names_in(report: Report) -> UnitNames:
    """Of a report."""
    return names_of(report.units, report.models)


def names_on(rank: RankMeasures) -> UnitNames:
    """The same of one rank's record, for what is drawn before there is a report."""
    numbers = {spec.model for spec in rank.units}
    if len(numbers) < 2:
        return UnitNames()
    known = () if rank.header.model is None else rank.header.model.models
    return UnitNames(
        model_of={spec.fqn: model_name(known, spec.model) for spec in rank.units}
    )


def by_model(
    rows: Sequence[UnitRow], models: Sequence[ModelRow]
) -> Iterator[tuple[str | None, list[UnitRow]]]:
    """The units of each model that has any, under its name and what it is there for;
    None in their place where there is one model.
    """
    if len(models) < 2:
        yield None, [*rows]
        return
    for number, model in enumerate(models):
        if mine := [row for row in rows if row.model == number]:
            yield f"{visible(model.name)}, {model.role}", mine
