"""FD506: the model is not sharded with FSDP2 at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.code import code
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.unit_tree import TreeUnit, UnitTree, block_units
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_steps import all_units
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.schema import ROOT, BlockSpec, Evidence

WRAPPERS = re.compile(r"^module\.|(?<=\.)module\.(?=_fsdp)|_fsdp_wrapped_module\.?")
"""What DDP and FSDP1 put before the names of the model that they wrap."""

SAYS = {
    "ddp": "DistributedDataParallel wraps the model: every rank holds all of it",
    "fsdp1": "FullyShardedDataParallel (FSDP1) wraps the model, not fully_shard",
    "none": "nothing shards or replicates the model: ranks train apart",
    "fsdp2": "fully_shard was called, but no unit holds parameters",
}


@detector("FD506", "not-sharded")
def not_sharded(m: Measures) -> Iterator[Finding]:
    """No FSDP2 unit was found in the model.

    *Why it costs*: with DDP each rank holds all parameters, gradients and optimizer
    states. With FSDP1 the units are flat parameters, and none of FSDP2's knobs
    apply. Without either, ranks do not exchange gradients at all.

    *What to try*: `fully_shard` each block, then the model, and build the optimizer
    afterwards.

    *When it is wrong*: where the model fits, DDP can be the faster choice. One
    process alone has nothing to shard. For a trace that somebody brought it is
    information only.
    """
    if all_units(m):
        return
    model = m.ranks[0].header.model if m.ranks else None
    if model is None:
        raise CannotTell("no model was recorded", Evidence.CONFIG)
    # Who records a run with this tool expects FSDP2; a trace may come from anyone.
    meant = Evidence.CONFIG in m.evidence and m.run.world_size > 1
    known = model.wrapper if model.wrapper in SAYS else "none"
    yield Finding(
        severity=Severity.CRITICAL if meant else Severity.INFO,
        confidence=Confidence.HIGH,
        summary=f"no FSDP2 unit: {SAYS[known]}",
        evidence={"wrapper": model.wrapper, "model_class": model.model_class},
        advice=(_shard(model.blocks),),
    )


def _shard(blocks: tuple[BlockSpec, ...]) -> Advice:
    """The model's own blocks, largest first, then the model."""
    root = TreeUnit(fqn=ROOT, is_root=True)
    units = [root]
    if blocks:
        largest = max(blocks, key=lambda block: block.count * block.numel)
        plain = WRAPPERS.sub("", largest.container)
        units += block_units(replace(largest, container=plain), root)
    return Advice(
        text="Shard each block, then the model.",
        code=code(Plan(), UnitTree(), UnitTree(units=tuple(units))),
    )
