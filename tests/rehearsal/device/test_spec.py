"""Devices are files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.errors import UsageError
from fsdpdoctor.rehearsal.device.spec import known_devices, load_spec


@pytest.mark.parametrize("name", known_devices())
def test_every_device_loads_and_has_sources(name: str) -> None:
    """Its shares are shares, and someone said so."""
    spec = load_spec(name)
    assert spec.sources
    assert 0 < spec.matmul_share < 1
    assert 0 < spec.bandwidth_share < 1
    assert spec.allocatable_bytes < spec.memory_bytes


def test_a_file_can_be_like_a_known_device(tmp_path: Path) -> None:
    """It says what differs."""
    path = tmp_path / "mine.toml"
    path.write_text('like = "h200"\nname = "mine"\nmemory_gib = 40.0\nsources = ["me"]')
    spec = load_spec(str(path))
    assert (spec.name, spec.memory_gib, spec.bandwidth_gb_s) == ("mine", 40.0, 4800.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "is no TOML"),
        ('like = "nothing"', "like = 'nothing' is no known device"),
        ('like = "h100"\ncolour = "red"', "unknown colour"),
        ('name = "half"', "missing"),
        ('like = "h100"\nsms = "many"', "sms is 'many'; expected a number"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    """As any wrong argument."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        load_spec(str(path))


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The user sees what to type."""
    with pytest.raises(UsageError, match=r"--on 'h101' .* a100_40gb, .* h100"):
        load_spec("h101")
