"""Detectors: what can be wrong with a run, one file per code."""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.accumulation_comm import accumulation_comm
from fsdpdoctor.detectors.allocator_pressure import allocator_pressure
from fsdpdoctor.detectors.base import Detector, judge
from fsdpdoctor.detectors.checkpoint_stall import checkpoint_stall
from fsdpdoctor.detectors.comm_dtype import comm_dtype
from fsdpdoctor.detectors.comm_serialization import comm_serialization
from fsdpdoctor.detectors.compile_interplay import compile_interplay
from fsdpdoctor.detectors.cpu_offload import cpu_offload
from fsdpdoctor.detectors.duplicate_all_gather import duplicate_all_gather
from fsdpdoctor.detectors.exposed_all_gather import exposed_all_gather
from fsdpdoctor.detectors.exposed_reduce_scatter import exposed_reduce_scatter
from fsdpdoctor.detectors.frozen_params import frozen_params
from fsdpdoctor.detectors.hooks_not_run import hooks_not_run
from fsdpdoctor.detectors.host_issue_bound import host_issue_bound
from fsdpdoctor.detectors.host_pause import host_pause
from fsdpdoctor.detectors.host_sync_point import host_sync_point
from fsdpdoctor.detectors.input_stall import input_stall
from fsdpdoctor.detectors.not_fsdp import not_fsdp
from fsdpdoctor.detectors.not_sharded import not_sharded
from fsdpdoctor.detectors.optimizer_overhead import optimizer_overhead
from fsdpdoctor.detectors.other_collectives import other_collectives
from fsdpdoctor.detectors.outside_fsdp import outside_fsdp
from fsdpdoctor.detectors.padding_alignment import padding_alignment
from fsdpdoctor.detectors.prefetch_misconfig import prefetch_misconfig
from fsdpdoctor.detectors.replicas_differ import replicas_differ
from fsdpdoctor.detectors.reshard_policy import reshard_policy
from fsdpdoctor.detectors.root_group_heavy import root_group_heavy
from fsdpdoctor.detectors.run_ended import run_ended
from fsdpdoctor.detectors.script_time import script_time
from fsdpdoctor.detectors.spmd_divergence import spmd_divergence
from fsdpdoctor.detectors.stale_unshard import stale_unshard
from fsdpdoctor.detectors.straggler_rank import straggler_rank
from fsdpdoctor.detectors.topology_mesh import topology_mesh
from fsdpdoctor.detectors.unexplained import unexplained
from fsdpdoctor.detectors.wrap_too_coarse import wrap_too_coarse
from fsdpdoctor.detectors.wrap_too_fine import wrap_too_fine
from fsdpdoctor.finding import Finding, NotJudged, Severity

ALL: tuple[Detector, ...] = (
    exposed_all_gather,
    exposed_reduce_scatter,
    host_issue_bound,
    host_sync_point,
    prefetch_misconfig,
    comm_serialization,
    duplicate_all_gather,
    accumulation_comm,
    wrap_too_coarse,
    wrap_too_fine,
    root_group_heavy,
    padding_alignment,
    reshard_policy,
    allocator_pressure,
    stale_unshard,
    cpu_offload,
    straggler_rank,
    input_stall,
    host_pause,
    optimizer_overhead,
    checkpoint_stall,
    spmd_divergence,
    other_collectives,
    run_ended,
    topology_mesh,
    comm_dtype,
    frozen_params,
    hooks_not_run,
    compile_interplay,
    not_sharded,
    replicas_differ,
    outside_fsdp,
    not_fsdp,
    unexplained,
    script_time,
)
"""Every detector, in report order."""

LAST_RESORT = "FD900"
"""Says where the time goes instead, so it is asked only where nothing else matters."""


def judge_all(m: Measures) -> tuple[list[Finding], list[NotJudged]]:
    """All findings, the worst first, and the detectors that could not tell."""
    findings: list[Finding] = []
    not_judged: list[NotJudged] = []
    for detector in sorted(ALL, key=lambda one: one.code == LAST_RESORT):
        matters = any(f.severity >= Severity.WARNING for f in findings)
        if detector.code == LAST_RESORT and matters:
            continue
        answer = contained(detector, m)
        if isinstance(answer, NotJudged):
            not_judged.append(answer)
        else:
            findings += answer
    findings.sort(key=lambda f: (-f.severity, -(f.cost_ns_per_step or 0), f.code))
    return findings, not_judged


def contained(detector: Detector, m: Measures) -> list[Finding] | NotJudged:
    """A detector's answer. One that fails takes no other's with it, and is told."""
    try:
        return judge(detector, m)
    except Exception as error:  # ours, whatever it is: the user's run is over
        *_, (frame, line) = walk_tb(error.__traceback__)
        place = f"{Path(frame.f_code.co_filename).name}:{line}"
        return NotJudged(
            code=detector.code,
            name=detector.name,
            needs=(),
            reason=f"failed: {error!r} in {place}; this is a fault of fsdpdoctor's, "
            "please report it",
        )
