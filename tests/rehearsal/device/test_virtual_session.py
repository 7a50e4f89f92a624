"""A recorded rehearsal says what the virtual device says, to the nanosecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fsdpdoctor import recorder
from fsdpdoctor.analysis.timeline import timelines
from fsdpdoctor.open_paths import open_paths
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.storage.sampling import sampling_of
from fsdpdoctor.report.diagnosis import diagnose
from fsdpdoctor.schema import Kind
from tests.rig.virtual_device import (
    Job,
    Log,
    build,
    launched,
    record,
    rehearsed,
    train,
)

JOBS = {
    "no prefetch": Job(backward_prefetch=0),
    "FSDP2's own": Job(),
    "one ahead": Job(forward_prefetch=1, backward_prefetch=1),
    "two ahead": Job(forward_prefetch=2, backward_prefetch=2),
    "HSDP": Job(replicas=2),
    "kept after forward": Job(reshard=False),
    "resharded to four": Job(reshard=4),
    "accumulation": Job(micro_batches=2, sync_last=True),
    "a communicator for each direction": Job(separate_group=True),
    "host-bound": Job(host_scale=20.0),
    "tight memory": Job(memory_gib=0.9),
}


@pytest.mark.parametrize("name", list(JOBS))
def test_stalls_collectives_and_memory_are_the_devices(
    name: str, tmp_path: Path
) -> None:
    """Each stall of compute, each collective, and the peak, as integers."""
    log = record(JOBS[name], tmp_path / "run")
    run = open_paths([tmp_path / "run"])

    (data,) = run.load()
    steps = [t for t in timelines(data) if t.record.complete]
    begun, ended = steps[0].start_ns, steps[-1].end_ns
    stalls = sorted(
        (int(a), int(b))
        for t in steps
        for a, b in zip(t.stalls.start_ns, t.stalls.end_ns, strict=True)
        if b > a
    )
    assert stalls == sorted(
        (w.start_ns, w.end_ns)
        for w in log.stood_still()
        if begun <= w.start_ns and w.end_ns <= ended
    )
    assert stalls

    ends = sorted(int(e) for t in steps for e in t.collectives.end_ns)
    issued = sorted(int(i) for t in steps for i in t.collectives.issued_ns)
    of_fsdp = [
        t
        for t in log.transfers
        if t.kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
        and begun <= t.issue_ns <= ended
    ]
    assert ends == sorted(t.end_ns for t in of_fsdp)
    assert issued == sorted(t.issue_ns for t in of_fsdp)

    assert log.rig is not None
    peaks = np.concatenate([t.record.memory.peak_bytes for t in steps])
    assert int(peaks.max()) == log.rig.ledger.peak


def test_unshard_windows_are_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the end of the copy-out's kernel to where compute stands at the reshard."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    freed: list[int] = []
    to_sharded: Any = FSDPParamGroup._to_sharded
    job = Job(steps=2)
    with rehearsed(job) as log:
        assert log.rig is not None
        times = log.rig.device.times

        def noted(group: FSDPParamGroup) -> None:
            if not group.is_sharded:
                freed.append(times.free_ns(0))
            to_sharded(group)

        monkeypatch.setattr(FSDPParamGroup, "_to_sharded", noted)
        recorder.start(
            RecordingConfig(
                folder=tmp_path / "run", run_id="v", sampling=sampling_of(None, 1)
            )
        )
        train(job)
        recorder.stop()
    run = open_paths([tmp_path / "run"])
    (data,) = run.load()
    windows = [
        (int(a), int(b))
        for t in timelines(data)
        for a, b in zip(
            t.of(Kind.UNSHARDED).start_ns, t.of(Kind.UNSHARDED).end_ns, strict=True
        )
    ]
    copied = [
        k.end_ns
        for k in log.device.kernels
        if k.name.startswith("fsdp.split_with_sizes_copy")
    ]
    assert sorted(a for a, _ in windows) == sorted(copied)
    assert sorted(b for _, b in windows) == sorted(freed)


def test_the_report_adds_up_to_the_log(tmp_path: Path) -> None:
    """Exposed time per step, as `analyze` prints it, is the device's own sum."""
    log = record(Job(steps=6), tmp_path / "run")
    report = diagnose(open_paths([tmp_path / "run"]))

    judged = report.health.judged_steps
    run = open_paths([tmp_path / "run"])
    (data,) = run.load()
    spans = [(t.start_ns, t.end_ns) for t in timelines(data) if t.record.step in judged]
    total = sum(
        w.end_ns - w.start_ns
        for w in log.stood_still()
        for a, b in spans
        if a <= w.start_ns < b
    )
    exposed = report.exposed_ns_per_step
    assert exposed.all_gather is not None
    assert exposed.reduce_scatter is not None
    assert (exposed.all_gather + exposed.reduce_scatter) * len(spans) == total


def test_the_recorder_changes_no_time(tmp_path: Path) -> None:
    """Not by a nanosecond, and not by a byte: the log is that of the bare training."""
    job = Job(steps=2)
    with rehearsed(job) as bare:
        train(job)
    seen = record(job, tmp_path / "run")

    def last_step(log: Log) -> list[tuple[str, int]]:
        """Its first base, before all steps, is the one thing that is waited for."""
        kernels = log.device.kernels[-300:]
        return [(k.name, k.end_ns - kernels[0].end_ns) for k in kernels]

    assert last_step(seen) == last_step(bare)
    assert bare.rig is not None
    assert seen.rig is not None
    assert seen.rig.ledger.peak == bare.rig.ledger.peak


def test_sharded_parameters_get_random_numbers() -> None:
    """As trainers initialise them: torch asks for a generator's state on the way."""
    with rehearsed(Job()):
        dist.init_process_group("nccl")
        model = build(Job())
        for parameter in model.parameters():
            torch.nn.init.trunc_normal_(parameter, 0.0, 0.02)
        assert model.head.weight.to_local().shape == (256, 1024)


def test_what_is_left_behind_is_torchs_own() -> None:
    """After a rehearsal nothing of torch is replaced."""
    import time

    before = (torch.cuda.is_available, torch.Tensor.device, time.perf_counter_ns)
    with rehearsed(Job()):
        assert torch.cuda.is_available()
    assert before == (
        torch.cuda.is_available,
        torch.Tensor.device,
        time.perf_counter_ns,
    )
    assert not torch.cuda.is_available()


def test_a_result_that_was_given_is_written_and_not_read(log: Log) -> None:
    """As without `out`: two tensors are moved, not three."""
    x = torch.ones(1 << 20, device="cuda")
    out = torch.empty_like(x)
    since = len(log.device.kernels)
    torch.mul(x, 2.0, out=out)
    x.mul(2.0)
    x.mul_(2.0)
    lengths = [length for _, length in launched(log, since)]
    assert lengths == [lengths[0]] * 3


def test_products_of_float32_are_faster_in_tf32(log: Log) -> None:
    """Also where the same product was priced before."""
    x = torch.ones(1024, 1024, device="cuda")
    since = len(log.device.kernels)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            x @ x
    finally:
        torch.set_float32_matmul_precision(before)
    exact, fast, again = (length for _, length in launched(log, since))
    assert exact == again > 4 * fast
