"""Measuring a device: tried on the processor, where there is no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fsdpdoctor.errors import UsageError
from fsdpdoctor.rehearsal.device.measured_spec import errors_of, spec_of
from fsdpdoctor.rehearsal.measure_device import GPU, Sizes, _calls_for, measure
from tests.rig.virtual_device import Job, rehearsed

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


def test_a_modelled_device_is_measured_to_be_what_its_file_says() -> None:
    """Closed: each price, each rate, and the host's, within what rounding leaves."""
    sizes = replace(GPU, matmuls=GPU.matmuls[:5], seconds=0.0)
    with rehearsed(Job()) as log:
        assert log.rig is not None
        truth = log.rig.device.spec
        found = measure("cuda", sizes)
    spec = spec_of(found)
    errors = [e for each in errors_of(spec, found).values() for e in each]
    assert max(map(abs, errors)) < 0.02
    assert (found.capability, found.sms) == (truth.capability, truth.sms)
    assert (found.kernel_us, found.launch_us) == (truth.kernel_us, truth.launch_us)
    assert found.host_scale == 1.0
    near = pytest.approx
    moved = truth.bandwidth_gb_s * truth.bandwidth_share
    assert found.bandwidth_gb_s == near(moved, rel=0.01)
    assert spec.copy_gb_s == near(truth.copy_gb_s, rel=0.01)
    assert spec.pageable_gb_s == near(truth.pageable_gb_s, rel=0.01)
    assert spec.attention_forward_tflops == near(truth.attention_forward_tflops, 0.01)
    assert spec.attention_backward_tflops == near(truth.attention_backward_tflops, 0.01)
    # Of bfloat16's: the data sheet's, but for how short the product is.
    for name in ("fp16", "tf32", "fp32", "fp8"):
        share = getattr(truth, f"{name}_tflops") / truth.bf16_tflops
        assert getattr(spec, f"{name}_tflops") / spec.bf16_tflops == near(share, 0.03)


@pytest.mark.parametrize(
    ("ns", "calls"), [(0.0, 50), (10_000.0, 50), (1e6, 2), (2e6, 1), (1e9, 1)]
)
def test_short_kernels_are_run_one_after_the_other(ns: float, calls: int) -> None:
    """Two milliseconds of them, and at most fifty."""
    assert _calls_for(ns) == calls


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
