"""Which device a trace is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.importers import import_run
from fsdpdoctor.importers.device_kind import device_kind, device_of_categories
from tests.importers.test_misread import drawn, kernels, measured, reported, warned


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("nccl", "cuda"),
        ("cpu:gloo,cuda:nccl", "cuda"),
        ("cpu:gloo", "cpu"),
        ("gloo", "cpu"),
        ("npu:hccl", "npu"),
        ("cpu:gloo,neuron:xla", "neuron"),
        ("mccl", "mtia"),
        (None, "cpu"),
    ],
)
def test_a_backend_names_the_device(backend: str | None, said: str) -> None:
    """Its own word before the colon; a library's that is of one kind alone."""
    assert device_kind({"distributedInfo": {"backend": backend}}) == said


@pytest.mark.parametrize(
    ("categories", "said"),
    [
        (["hpu_op", "hpu_runtime"], "hpu"),
        (["mtia_ccp_events"], "mtia"),
        (["acme_kernels"], "accelerator"),
    ],
)
def test_categories_that_are_not_read_name_it(categories: list[str], said: str) -> None:
    """By their first word, where that is a device's."""
    assert device_of_categories(categories) == said


def test_kernels_are_of_no_cpu(tmp_path: Path) -> None:
    """A head without devices and without a job says nothing against them."""
    trace = drawn(world_size=1)
    trace.metadata.clear()
    trace.write(tmp_path / "rank0.json")

    assert reported(measure(import_run([tmp_path]))).run.device == "cuda"


def test_events_that_are_not_read_are_said_once(tmp_path: Path) -> None:
    """Not beside advice to profile a device that was profiled."""
    trace = drawn()
    for event in kernels(trace):
        event["cat"] = "hpu_op"
    m = measured(tmp_path, trace)

    assert warned(m, "not read: hpu_op (8)")
    assert not warned(m, "ProfilerActivity")
