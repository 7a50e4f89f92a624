"""`torch.cuda.memory` says what the modelled allocator has."""

from __future__ import annotations

from typing import Any

import torch

from fsdpdoctor.quantities import GIB
from tests.rig.virtual_device import Log

cuda: Any = torch.cuda


def test_free_memory_is_what_the_allocator_could_still_get(log: Log) -> None:
    """Beside what the driver holds; the total is the card's."""
    assert log.rig is not None
    spec = log.rig.device.spec
    assert cuda.mem_get_info() == (spec.allocatable_bytes, spec.memory_bytes)
    x = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert cuda.mem_get_info()[0] == spec.allocatable_bytes - GIB
    del x
    cuda.empty_cache()
    assert cuda.mem_get_info()[0] == spec.allocatable_bytes


def test_figures_follow_tensors(log: Log) -> None:
    """Now and at most, allocated and reserved, until the peak is forgotten."""
    x = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    y = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    del y
    assert cuda.memory_allocated() == GIB
    assert cuda.max_memory_allocated() == 3 * GIB
    assert cuda.memory_reserved() == cuda.max_memory_reserved() == 3 * GIB
    assert cuda.memory_stats()["inactive_split_bytes.all.current"] == 2 * GIB
    assert cuda.memory_stats()["num_ooms"] == 0
    cuda.reset_peak_memory_stats()
    assert cuda.max_memory_allocated() == GIB
    assert x.is_cuda


def test_a_script_may_take_a_part_of_the_card(log: Log) -> None:
    """A share of the card's memory; never more than the driver leaves."""
    assert log.rig is not None
    spec, allocator = log.rig.device.spec, log.rig.device.allocator
    cuda.set_per_process_memory_fraction(0.5)
    assert allocator.capacity == round(spec.memory_bytes / 2)
    cuda.set_per_process_memory_fraction(1.0)
    assert allocator.capacity == spec.allocatable_bytes


def test_reports_that_have_no_content_are_no_errors(log: Log) -> None:
    """A script that dumps what it has used goes on."""
    assert cuda.memory_summary() == "a modelled allocator has no summary"
    assert cuda.memory_snapshot() == []
    cuda.memory._record_memory_history()
    cuda.memory._dump_snapshot("snapshot.pickle")
