"""FD502: parameters travel wider than they are computed with."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.frozen_wide import NARROW, gathered_wide
from fsdpdoctor.detectors.judged_steps import (
    all_units,
    gathered_bytes,
    on_cpu,
    per_step,
)
from fsdpdoctor.detectors.remedies import plan_advice
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, size
from fsdpdoctor.schema import Evidence


@detector("FD502", "comm-dtype", needs={Evidence.UNITS, Evidence.CONFIG})
def comm_dtype(m: Measures) -> Iterator[Finding]:
    """All-gathers carry a wider dtype than the model computes in.

    *Why it costs*: float32 parameters under bfloat16 autocast are gathered in
    float32 and cast afterwards, on every rank: twice the bytes. A unit with
    parameters of several dtypes is gathered as raw bytes.

    *What to try*: a `MixedPrecisionPolicy` with `param_dtype=torch.bfloat16` and
    `reduce_dtype=torch.float32`, in place of autocast.

    *When it is wrong*: numerics are yours to judge. Narrower reductions than
    float32 are never advised. Norms and routers are sometimes kept wide on purpose;
    plain float32 training is information on a device, and nothing on CPU.
    """
    specs = all_units(m)
    if not any(spec.gather_dtype for spec in specs.values()):
        raise CannotTell("the dtype of gathers was not recorded", Evidence.CONFIG)
    yield from _wide(m)
    mixed = [fqn for fqn, spec in specs.items() if spec.gather_dtype == "uint8"]
    if mixed:
        yield Finding(
            severity=Severity.INFO,
            confidence=Confidence.HIGH,
            summary=f"{count(len(mixed), 'unit')} gather parameters of several dtypes, "
            "as raw bytes",
            units=tuple(mixed),
            evidence={"gather_dtype": "uint8"},
            advice=(Advice(text="One dtype per unit needs no extra copies."),),
        )


def _wide(m: Measures) -> Iterator[Finding]:
    specs = all_units(m)
    frozen = gathered_wide(specs)  # FD503 speaks of them
    wide = [
        fqn
        for fqn, spec in specs.items()
        if spec.gather_dtype == "float32" and fqn not in frozen
    ]
    model = m.ranks[0].header.model
    autocast = model.autocast_dtype if model else None
    if not wide or (autocast not in NARROW and on_cpu(m)):
        return
    if any(spec.param_dtype for spec in specs.values()):
        return  # a policy is there: these units are wide on purpose
    saved = per_step(m, gathered_bytes(m, wide)) // 2
    why = f" under {autocast} autocast" if autocast in NARROW else ""
    yield Finding(
        severity=Severity.WARNING if autocast in NARROW else Severity.INFO,
        confidence=Confidence.HIGH if autocast in NARROW else Confidence.LOW,
        summary=f"{count(len(wide), 'unit')} gathered in float32{why}; bfloat16 would "
        f"save {size(saved)} per step and rank",
        units=tuple(wide),
        cost_bytes=saved,
        evidence={"gather_dtype": "float32", "autocast_dtype": autocast},
        advice=(
            plan_advice(
                m,
                "Gather and compute in bfloat16, reduce in float32.",
                {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
                memory_cost_bytes=-(
                    2 * max(max(specs[fqn].unsharded_bytes, 0) for fqn in wide) // 2
                ),
            ),
        ),
    )
