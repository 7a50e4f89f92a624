"""Findings of one of several models say which, by its class and what it is there for.

A record tells units of one name apart by the number of their tree, which means nothing
to whoever reads it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import OF_TREE, models_of
from fsdpdoctor.finding import Finding
from fsdpdoctor.storage.json_value import replace


def of_its_model(finding: Finding, m: Measures) -> Finding:
    """The finding, whose words name the model where there are several."""
    models = models_of(m)
    if len(models) < 2:
        return finding
    model_of, model_of_tree = _owners(m)
    mine = {model_of[unit] for unit in finding.units if unit in model_of}

    def of(match: re.Match[str]) -> str:
        number = model_of_tree.get(int(match[1]), 0)
        # Of one model its name stands in front of all.
        return "" if mine == {number} else f" of {models[number][0]}"

    advice = tuple(
        replace(one, text=OF_TREE.sub(of, one.text)) for one in finding.advice
    )
    summary = OF_TREE.sub(of, finding.summary)
    if len(mine) == 1:
        name, role = models[next(iter(mine))]
        summary = f"{name}, {role}: {summary}"
    return replace(finding, summary=summary, advice=advice)


@lru_cache(maxsize=1)
def _owners(m: Measures) -> tuple[dict[str, int], dict[int, int]]:
    """The model of each unit, and of each tree."""
    specs = [spec for rank in m.ranks for spec in rank.units]
    return (
        {spec.fqn: spec.model for spec in specs},
        {spec.tree: spec.model for spec in specs},
    )
