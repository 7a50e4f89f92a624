"""Faults put into a small job on 64 modelled GPUs are found, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from fsdpdoctor.analysis.timeline import timelines
from fsdpdoctor.network import parse_network
from fsdpdoctor.open_paths import open_paths
from fsdpdoctor.report.diagnosis import diagnose
from fsdpdoctor.report.value import Report
from fsdpdoctor.schema import Kind, Phase
from tests.rig.virtual_device import Job, record

FAST = parse_network("360GB/s@30us")


def job(**changed: object) -> Job:
    """A healthy one, but for what is changed."""
    plain: dict[str, object] = {
        "world_size": 64,
        "width": 2048,
        "batch": 8,
        "length": 1024,
        "blocks": 8,
        "steps": 6,
        "wire": FAST,
    }
    return Job(**(plain | changed))  # type: ignore[arg-type]


def judged(of: Job, folder: Path) -> Report:
    """The report of its recorded run."""
    record(of, folder / "run")
    return diagnose(open_paths([folder / "run"]))


def inside_out() -> DeviceMesh:
    """Eight nodes of eight: replicas inside a node, shards across nodes."""
    ranks = torch.arange(64).view(8, 8).T
    return DeviceMesh("cuda", ranks, mesh_dim_names=("replicate", "shard"))


def read(x: torch.Tensor) -> None:
    """What a debugging line does."""
    x.sum().item()


FAULTS = {
    "embedding and head in the root": (
        job(vocabulary=65536, batch=2),
        "FD203",
        {"<root>"},
    ),
    "HSDP the wrong way round": (
        job(mesh=inside_out, wire=parse_network("intra=360GB/s@15us,inter=ib400")),
        "FD501",
        {"<root>", "layers.0"},
    ),
    "a slow wire": (
        job(wire=parse_network("5GB/s")),
        "FD101",
        {f"layers.{i}" for i in range(8)},
    ),
    "every module a unit": (job(wrap="all"), "FD202", {"layers.0.norm", "layers.0.up"}),
    "one unit": (
        job(wrap="root", wire=parse_network("ib400")),
        "FD201",
        {"<root>"},
    ),
    "a slow host, small layers": (
        job(width=256, batch=1, length=128, blocks=24, host_scale=3.0),
        "FD103",
        {"layers.0", "layers.23"},
    ),
    "no prefetch in backward": (
        job(backward_prefetch=0, wire=parse_network("ib400")),
        "FD105",
        {"layers.6", "layers.5"},
    ),
    "a number read in each layer": (job(each_block=read), "FD104", set()),
    "too little memory": (job(memory_gib=1.5), "FD302", set()),
    "gradients reduced in each micro-batch": (
        job(micro_batches=4, wire=parse_network("10GB/s")),
        "FD108",
        {"<root>", "layers.0"},
    ),
}


# FSDP2 warns of a unit that returns a view, as a linear layer of its own does.
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
@pytest.mark.parametrize("name", list(FAULTS))
def test_a_seeded_fault_is_found(name: str, tmp_path: Path) -> None:
    """With its code, and at the units that have it."""
    of, code, units = FAULTS[name]
    report = judged(of, tmp_path)
    found: set[str] = set()
    for finding in report.findings:
        if finding.code == code:
            found |= {*finding.units, code}
    assert found >= units | {code}


def test_a_number_read_is_seen_once(tmp_path: Path) -> None:
    """A layer of the recorder's is not called again by what answers for the device."""
    record(job(each_block=read, steps=2), tmp_path / "run")
    (data,) = open_paths([tmp_path / "run"]).load()
    counts = [len(t.of(Kind.SYNC).start_ns) for t in timelines(data)]
    assert counts[0] == 8
    spans = data.steps[0].spans
    phases = spans.phase[spans.kind == Kind.SYNC].tolist()
    assert set(phases) == {Phase.FORWARD}


def test_a_healthy_job_is_silent(tmp_path: Path) -> None:
    """Nothing is said of FSDP2; FD900 says that time goes elsewhere."""
    report = judged(job(), tmp_path)
    assert {finding.code for finding in report.findings} <= {"FD900"}
