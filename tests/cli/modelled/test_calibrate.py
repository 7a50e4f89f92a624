"""`fsdpdoctor calibrate`, tried on the processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.rehearsal import measure_device
from fsdpdoctor.rehearsal.device.spec import load_spec
from tests.rehearsal.test_measure_device import TINY


def test_it_writes_a_file_that_a_rehearsal_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the price, and the host's factor in its head."""
    monkeypatch.setattr(measure_device, "SMALL", TINY)
    path = tmp_path / "own.toml"
    arguments = ["calibrate", "--device", "cpu", "--out", str(path), "--price", "2.5"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    spec = load_spec(str(path))
    assert (spec.name, spec.price_per_hour) == ("CPU (modelled)", 2.5)
    assert "rehearse with --host" in path.read_text()
    assert result.stdout.startswith("matrix products: the file's prices are ")
    assert f"rehearse --on {path} --host" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_is_refused() -> None:
    """One line, exit status 2."""
    result = CliRunner().invoke(main, ["calibrate"])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: there is no CUDA device here")
