"""Units of embeddings alone, gathered in a backward that needs none of it (FD301)."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.quoting import name_list
from fsdpdoctor.changes.unit_tree import first_path
from fsdpdoctor.detectors.base import level
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import (
    all_units,
    gathered_bytes,
    per_step,
    unit_sums,
)
from fsdpdoctor.detectors.remedies import has, model_comment, needs_torch
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.quantities import count, ms, size
from fsdpdoctor.schema import Kind, Phase

TABLES = frozenset({"Embedding", "EmbeddingBag"})
"""torch's: their backward needs the indices alone. Another class may do more."""

# As FD101: below it a fix is lost in the step's jitter.
EMBEDDING_SHARE = 0.05

CALL = "set_unshard_in_backward"


def embedding_in_backward(m: Measures) -> Iterator[Finding]:
    """Tables whose gather in backward moves bytes that nothing reads."""
    gathers = unit_sums(m, "all_gathers", Phase.BACKWARD)
    names = [
        fqn
        for fqn, spec in all_units(m).items()
        if spec.module_class in TABLES and not spec.is_root and gathers.get(fqn)
    ]
    if not names or not len(m.step_ns):
        return
    stalls = exposed(m).of(Kind.ALL_GATHER, phase=Phase.BACKWARD).named(*names)
    cost_ns = stalls.ns_per_step if m.stalls_known else None
    moved = per_step(m, gathered_bytes(m, names, Phase.BACKWARD))
    wait = "" if cost_ns is None else f", {ms(cost_ns)} exposed"
    yield Finding(
        severity=level((cost_ns or 0) / float(m.step_ns.mean()), EMBEDDING_SHARE),
        confidence=Confidence.HIGH,
        summary=f"{count(len(names), 'unit')} of embeddings alone ({size(moved)} per "
        f"step) gathered in backward, which needs no weight of an embedding{wait}",
        units=tuple(names),
        phase="backward",
        ranks=stalls.ranks(),
        cost_ns_per_step=cost_ns,
        cost_bytes=moved,
        evidence={"gathered_bytes": moved, "exposed_ns": cost_ns},
        advice=(_advice(m, names),) if has(m, CALL) else (),
        places=stalls.places(),
    )


def _advice(m: Measures, names: list[str]) -> Advice:
    listed = name_list([first_path(fqn) for fqn in names])
    return Advice(
        text=f"No all-gather of these units in backward{needs_torch(m, CALL)}. Not "
        "where the same weight also projects to the output.",
        code="\n".join(
            [
                model_comment(m, names[0]),
                f"tables = {listed}",
                "for name in tables:",
                f"    model.get_submodule(name).{CALL}(False)",
            ]
        ),
        memory_cost_bytes=0,
    )
