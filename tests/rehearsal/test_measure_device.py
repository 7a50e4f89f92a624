"""Measuring a device: tried on the processor, where there is no other."""

from __future__ import annotations

import pytest
import torch

from fsdpdoctor.errors import UsageError
from fsdpdoctor.rehearsal.device.measured_spec import errors_of, spec_of
from fsdpdoctor.rehearsal.measure_device import GPU, Sizes, measure

TINY = Sizes(
    matmuls=((8, 16, 16), (16, 32, 32)),
    large=16,
    sequences=((1, 32),),
    heads=1,
    moved=1 << 12,
    seconds=0.0,
)


def test_everything_a_file_needs_is_measured() -> None:
    """On the processor: each shape once, each type, and no time of nothing."""
    said: list[str] = []
    found = measure("cpu", TINY, said.append)
    assert [t.shape for t in found.matmuls] == [(1, 8, 16, 16), (1, 16, 32, 32)]
    assert set(found.rates) == {"bfloat16", "float16", "float32", "tf32"}
    assert [(a.call.heads, a.call.keys) for a in found.attention] == [(1, 32)]
    times = [
        found.bandwidth_gb_s,
        found.copy_gb_s,
        found.pageable_gb_s,
        found.launch_us,
        found.kernel_us,
        found.dispatch_us,
    ]
    assert all(time > 0 for time in times)
    assert len(said) == 3
    assert set(errors_of(spec_of(found), found)) == {"matrix products", "attention"}


def test_precision_is_as_it_was() -> None:
    """Products in tf32 are asked for, and asked for no longer."""
    before = torch.get_float32_matmul_precision()
    measure("cpu", TINY)
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_what_to_do() -> None:
    """One line, and how to try it."""
    with pytest.raises(UsageError, match="--device cpu tries it on the processor"):
        measure("cuda")
    with pytest.raises(UsageError, match="only cuda and cpu can be measured"):
        measure("meta", TINY)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_devices_own_prices_are_near_its_times() -> None:
    """Of products and attention, in the middle: a third is the model's, not noise."""
    found = measure("cuda", GPU)
    for errors in errors_of(spec_of(found), found).values():
        middle = sorted(abs(error) for error in errors)[len(errors) // 2]
        assert middle < 0.35
