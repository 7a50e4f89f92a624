"""FD407: collectives that no FSDP unit issued take much of the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from fsdpdoctor.analysis.call_sites import CalledFrom, Calls, calls
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.sharding_code import dimensions
from fsdpdoctor.detectors.base import STALLS_KNOWN, detector, level
from fsdpdoctor.detectors.judged_steps import (
    all_units,
    few_steps,
    on_cpu,
    per_step,
    steady,
)
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity, Value
from fsdpdoctor.quantities import count, ms, of_step, size
from fsdpdoctor.schema import Evidence, Phase, Within

# `docs/detectors.md` D26.
WARNING_SHARE, CRITICAL_SHARE = 0.03, 0.15

# D26: more than so many small ones per step and micro-batch can be one.
MANY, SMALL_BYTES = 4, 1 << 20

# Below this share of the step even many small ones are not worth a change, nor one in
# each micro-batch.
LEAST_SHARE = 0.01

REDUCES_GRADIENTS = ("ddp", "fsdp1")
"""Wrappers whose own collectives these are; FD506 speaks of the wrapper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """One call site and kind; its groups together."""

    where: str | None
    via: str | None
    kind: str
    within: Within
    phase: Phase

    @property
    def untold(self) -> bool:
        """Whether nothing says who issues it: a trace's, which may be a layer's."""
        return self.where is None and self.within == Within.SCRIPT

    @property
    def of_pipeline(self) -> bool:
        """Whether a schedule of torch.distributed.pipelining issues it."""
        return self.kind in ("send", "recv") and self.via in ("step", "eval")

    @property
    def of_model(self) -> bool:
        """Whether a layer or a stage issues it: another parallelism."""
        return (
            self.of_pipeline
            or self.within == Within.UNIT
            or self.phase in (Phase.FORWARD, Phase.BACKWARD)
        )


@detector(
    "FD407",
    "other-collectives",
    needs={Evidence.STEPS, Evidence.OTHER_COLLECTIVES},
    needs_any=STALLS_KNOWN,
)
def other_collectives(m: Measures) -> Iterator[Finding]:
    """Collectives that no FSDP unit issued stop the training loop.

    The script's own, an optimizer's that needs whole matrices, clipping by hand, a
    metric's, a loader's, an export's, another parallelism's: each is named with the
    line that calls it, what it runs in, how many there are in a step and what they
    cost.

    *Why it costs*: nothing hides them unless they are asynchronous and waited for
    late. Each has a latency of its own, so many small ones cost far more than one of
    their size together.

    *What to try*: gather unit by unit and not parameter by parameter; stack scalars
    into one tensor and read it when it is logged; clip with
    `torch.nn.utils.clip_grad_norm_`; let each rank load its own part of the batch.

    *When it is wrong*: one small collective per step is normal (a gradient norm),
    and what it waits for is then the last rank: FD401 says which; over gloo, where it
    takes turns with all else on the host's cores, it is information. Those of tensor,
    context or expert parallelism are how it works: they are named, as information.
    What runs under compute costs nothing and is not counted.
    """
    step_ns = steady(m)
    wrapper = m.ranks[0].header.model.wrapper if m.ranks[0].header.model else None
    for site, found in _by_site(m).items():
        if site.phase == Phase.BACKWARD and wrapper in REDUCES_GRADIENTS:
            continue
        finding = _judge(m, site, found, step_ns)
        if finding is not None:
            yield finding


def _by_site(m: Measures) -> dict[_Site, Calls]:
    sites: dict[_Site, Calls] = defaultdict(Calls)
    for of, found in calls(m).items():
        sites[_site(of)].add(found)
    return dict(sorted(sites.items(), key=lambda item: -item[1].exposed_ns))


def _site(of: CalledFrom) -> _Site:
    return _Site(
        where=of.where, via=of.via, kind=of.kind, within=of.within, phase=of.phase
    )


def _judge(m: Measures, site: _Site, found: Calls, step_ns: float) -> Finding | None:
    cost_ns = per_step(m, found.exposed_ns)
    own_share = per_step(m, found.own_ns) / step_ns
    steps = max(max(int(rank.judged.sum()) for rank in m.ranks), 1)
    each = found.most / steps
    mean = found.bytes / found.sized if found.sized else 0.0
    micro_batches = _micro_batches(m)
    many = each > MANY * micro_batches and mean <= SMALL_BYTES
    needed = micro_batches * (_dimensions(m) if site.kind == "all_reduce" else 1)
    single = each <= needed and mean <= SMALL_BYTES and site.kind != "barrier"
    share = own_share if single else cost_ns / step_ns
    # What the script reduces in each micro-batch, it can add up and reduce once.
    repeated = single and each >= 2 * needed / micro_batches and not site.of_model
    if share < (LEAST_SHARE if many or repeated else WARNING_SHARE):
        return None
    severity = level(share, WARNING_SHARE, CRITICAL_SHARE)
    if many and not site.of_model:
        severity = max(severity, Severity.WARNING)
    if single and (site.within == Within.CLIP or on_cpu(m)):
        severity = (
            Severity.INFO
        )  # on busy cores its own time is mostly a process's turn
    return Finding(
        severity=Severity.INFO if site.of_model or site.untold else severity,
        confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
        summary=_summary(site, _number(site, found, mean, steps), cost_ns, step_ns)
        + _of_last_rank(m, site, found),
        phase=_PHASES.get(site.phase),
        ranks=found.ranks,
        cost_ns_per_step=cost_ns,
        evidence=_evidence(m, site, found, each),
        advice=(Advice(text=_NEEDED),)
        if single and site.within == Within.CLIP
        else _advice(site, each, mean),
    )


_PHASES = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}

_WITHIN = {
    Within.OPTIMIZER: " inside the optimizer's step",
    Within.CLIP: " while gradients are clipped",
    Within.LOADER: " while the next batch is loaded",
    Within.CHECKPOINT: " while state is saved or exported",
    Within.UNIT: " inside a unit: another parallelism's, or a layer's own",
    Within.SCRIPT: "",
}


def _summary(site: _Site, number: str, cost_ns: int, step_ns: float) -> str:
    call = f" ({site.via})" if site.via and site.via != site.kind else ""
    where = f" at {site.where}{call}" if site.where else f" that no unit issued{call}"
    return (
        f"{number}{where}{_WITHIN[site.within]}: compute stands still "
        f"for {ms(cost_ns)} per step ({of_step(cost_ns / step_ns)})"
    )


_ONE_RANK = "; whether for a late rank or for the wire, this record cannot tell"


def _of_last_rank(m: Measures, site: _Site, found: Calls) -> str:
    """What of the cost is a wait for the last rank, where that is most of it."""
    if not m.late_ranks_told:
        return _ONE_RANK if site.untold else ""
    waited = found.exposed_ns - found.own_ns
    if waited * 2 < found.exposed_ns:
        return ""
    return f", {ms(per_step(m, waited))} of them until the last rank has come"


def _number(site: _Site, found: Calls, mean: float, steps: int) -> str:
    """How many there are in a step that has any, how large, and which steps have."""
    number = count(round(found.most / max(found.steps, 1)), site.kind.replace("_", "-"))
    sizes = f" of {size(round(mean))} each" if mean else ""
    if found.steps < steps:
        return f"{number}{sizes} in {found.steps} of {steps} judged steps"
    return f"{number} a step{sizes}"


def _evidence(
    m: Measures, site: _Site, found: Calls, each: float
) -> Mapping[str, Value]:
    return {
        "where": site.where,
        "called": site.via,
        "kind": site.kind,
        "in": site.within.name.lower(),
        "per_step": round(each, 4),
        "bytes": round(found.bytes / found.sized) if found.sized else None,
        "ns_per_step": per_step(m, found.ns),
        "waiting_for_last_rank_ns": per_step(m, found.exposed_ns - found.own_ns)
        if m.late_ranks_told
        else None,
    }


@lru_cache(maxsize=1)  # each finding asks the same of one run
def _dimensions(m: Measures) -> int:
    """Of the meshes that units are on, together: a norm over all parameters needs a
    reduction over each.
    """
    meshes = {spec.mesh for spec in all_units(m).values() if spec.mesh}
    return max(sum(len(dimensions(mesh)) for mesh in meshes), 1)


@lru_cache(maxsize=1)
def _micro_batches(m: Measures) -> float:
    known = [
        float(rank.steps.micro_batches[rank.judged].clip(1).mean())
        for rank in m.ranks
        if rank.judged.any()
    ]
    return max(known, default=1.0)


_UNIT_BY_UNIT = """\
import torch
from torch.distributed.fsdp import FSDPModule

# Instead of full_tensor() on every parameter: one all-gather per unit.
with torch.no_grad():
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.unshard()
            # read unit.named_parameters() here: they are whole now
            unit.reshard()"""

_STACKED = """\
import torch
import torch.distributed as dist

def reduce_together(values):
    \"\"\"All metrics of a step in one all-reduce; read it when it is logged.\"\"\"
    stacked = torch.stack([value.detach().float().reshape(()) for value in values])
    dist.all_reduce(stacked)
    return stacked / dist.get_world_size()"""

_CLIPPED = """\
import torch

# Instead of a collective per parameter, before optimizer.step():
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"""


def _advice(site: _Site, each: float, mean: float) -> tuple[Advice, ...]:
    """What helps, by what they run in and what they are."""
    if site.of_pipeline:
        return (Advice(text=_PIPELINE),)
    if site.of_model:
        text = (
            "It belongs to how the model is split: overlap it (asynchronous tensor "
            "parallelism, a larger micro-batch), or split over fewer ranks."
        )
        return (Advice(text=text),)
    if site.untold:
        return (Advice(text=_UNTOLD),)
    if site.within == Within.OPTIMIZER:
        reduces = site.kind in ("all_reduce", "reduce")
        return (Advice(text=_OPTIMIZER_REDUCES if reduces else _OPTIMIZER),)
    if site.within == Within.CLIP:
        return (Advice(text=_CLIP, code=_CLIPPED, memory_cost_bytes=0),)
    if site.within == Within.LOADER:
        return (Advice(text=_LOADER),)
    if site.within == Within.CHECKPOINT and site.via in _SAVES:
        return (Advice(text=_SAVE),)
    if site.within == Within.CHECKPOINT and site.via in _STATES:
        return (Advice(text=_EXPORT),)
    if site.kind == "barrier":
        return (Advice(text=_BARRIER),)
    if site.kind == "all_gather" and (site.via in _WHOLE or each > MANY):
        return (Advice(text=_GATHER, code=_UNIT_BY_UNIT),)
    if site.kind in ("all_reduce", "reduce") and mean > SMALL_BYTES:
        return (Advice(text=_LARGE),)
    if site.kind in ("all_reduce", "reduce"):
        return (Advice(text=_METRICS, code=_STACKED, memory_cost_bytes=0),)
    if site.kind in ("send", "recv"):
        return (Advice(text=_POINT_TO_POINT),)
    return (Advice(text=_ANY),)


_UNTOLD = (
    "Which line issues them is not in the trace: `fsdpdoctor run` says it, or "
    "torch.profiler with with_stack=True. Those of tensor parallelism are how it works."
)
_WHOLE = ("full_tensor", "redistribute", "get_model_state_dict", "state_dict")

_STATES = ("get_model_state_dict", "get_optimizer_state_dict", "get_state_dict")
_EXPORT = (
    "Keep shards: without full_state_dict nothing is gathered, and "
    "torch.distributed.checkpoint saves and loads them, on any number of ranks, too. "
    "Where whole tensors are needed, take them less often."
)
_SAVES = ("save", "async_save", "load")
_SAVE = (
    "They are the checkpoint's own: each call agrees on a plan and says when it is "
    "done. Put what is saved into one call, save less often, or use async_save."
)

_OPTIMIZER = (
    "The optimizer gathers one tensor at a time: let one rank own each matrix and "
    "exchange them all in one all-to-all, or gather in a few large batches with "
    "async_op=True while others are being computed, or use an optimizer that works on "
    "the shards."
)
_OPTIMIZER_REDUCES = (
    "The optimizer reduces one tensor at a time: put the step's numbers (sums of "
    "squares over each rank's shards) into one tensor, and reduce it once for all."
)
_CLIP = "Clip with the built-in function, which needs one collective per mesh."
_NEEDED = "Nothing to change: a norm over all parameters needs one collective per mesh."
_LOADER = (
    "Let each rank read its own part of the batch (a sampler by rank), or send "
    "tensors of a known shape in one broadcast; fetch the next batch while this one "
    "trains."
)
_BARRIER = "Take the barrier out: every collective of the next step waits anyway."
_GATHER = (
    "Work on the shards (`parameter.to_local()`) where it goes element by element, as "
    "an average of the weights does, or adds up what ranks have, as a norm does. Else "
    "gather unit by unit, not parameter by parameter with full_tensor(): unshard() "
    "brings all parameters of a unit in one all-gather. Or do it less often."
)
_METRICS = (
    "Stack what is reduced into one tensor, reduce it once, and only in the steps in "
    "which it is logged."
)
_PIPELINE = (
    "A stage waits for its neighbour: the pipeline's bubble. More micro-batches, an "
    "interleaved schedule, or stages that take equally long make it smaller."
)
_LARGE = (
    "If these are gradients, let FSDP2 reduce them while backward goes on: a mesh with "
    'a "replicate" dimension, or a unit around what has none. Else issue it with '
    "async_op=True and wait for it where the result is needed."
)
_POINT_TO_POINT = (
    "Give them to torch.distributed.batch_isend_irecv together, and wait after the "
    "compute that does not need them."
)
_ANY = (
    "Batch them into one collective, or issue it with async_op=True and wait for it "
    "where the result is needed."
)
