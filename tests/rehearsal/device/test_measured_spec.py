"""A device's file from what was measured on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fsdpdoctor.rehearsal.device.measured_spec import (
    AttentionTime,
    MatmulTime,
    Measured,
    errors_of,
    spec_of,
    to_toml,
)
from fsdpdoctor.rehearsal.device.pricing.attention import (
    Attention,
    backward_ns,
    forward_ns,
)
from fsdpdoctor.rehearsal.device.pricing.matmul import matmul_ns
from fsdpdoctor.rehearsal.device.spec import load_spec

TRUTH = load_spec("a100_80gb")
SHAPES = [(1, m, 4096, 4096) for m in (512, 4096, 16384)]
CALL = Attention(
    batch=2,
    heads=32,
    kv_heads=32,
    queries=4096,
    keys=4096,
    head_dim=128,
    value_dim=128,
    itemsize=2,
    causal=True,
)


def measured() -> Measured:
    """What a device with a known file would be measured to be."""
    return Measured(
        name='An "A"',
        capability=(8, 0),
        sms=TRUTH.sms,
        memory_gib=79.15,
        context_gib=0.5,
        matmuls=[
            MatmulTime(
                dtype="bfloat16",
                itemsize=2,
                shape=shape,
                ns=matmul_ns(TRUTH, "bfloat16", 2, shape),
            )
            for shape in SHAPES
        ],
        rates={"bfloat16": 240.0, "float16": 240.0, "tf32": 120.0, "float32": 15.0},
        attention=[
            AttentionTime(
                call=CALL,
                forward_ns=forward_ns(TRUTH, CALL),
                backward_ns=backward_ns(TRUTH, CALL),
            )
        ],
        bandwidth_gb_s=TRUTH.bandwidth_gb_s * TRUTH.bandwidth_share,
        copy_gb_s=25.0,
        pageable_gb_s=8.0,
        launch_us=4.0,
        kernel_us=TRUTH.kernel_us,
        dispatch_us=9.0,
    )


def test_its_prices_are_the_measured_times() -> None:
    """Within what four digits and short kernels leave: 2 %."""
    spec = spec_of(measured(), price_per_hour=1.5)
    errors = errors_of(spec, measured())
    assert {kind: len(each) for kind, each in errors.items()} == {
        "matrix products": 3,
        "attention": 2,
    }
    assert max(abs(e) for each in errors.values() for e in each) < 0.02
    assert spec.attention_forward_tflops == pytest.approx(190, rel=0.01)
    assert spec.attention_backward_tflops == pytest.approx(150, rel=0.01)
    assert spec.price_per_hour == 1.5
    # One large product of each type, beside bfloat16's.
    assert spec.tf32_tflops == pytest.approx(spec.bf16_tflops / 2, rel=0.001)
    assert spec.fp8_tflops == spec.bf16_tflops  # it has none
    assert spec.context_gib == 1.5  # and NCCL's


def test_a_slower_host_is_said_as_a_factor() -> None:
    """Nine microseconds for an operation where a server of today takes six."""
    assert measured().host_scale == 1.5


def test_the_file_is_read_back(tmp_path: Path) -> None:
    """Every number and every name, quotes too."""
    spec = spec_of(measured())
    path = tmp_path / "own.toml"
    path.write_text(to_toml(spec, "first\nsecond"))
    assert load_spec(str(path)) == spec
    assert path.read_text().startswith('# first\n# second\nname = "An \\"A\\" (m')
    priced = replace(spec, price_per_hour=2.0)
    path.write_text(to_toml(priced, ""))
    assert load_spec(str(path)) == priced
