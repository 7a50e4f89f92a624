"""What holds for every test."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings

from fsdpdoctor import detectors
from fsdpdoctor.detectors.base import judge

# How long an example takes says how busy the machine is.
settings.register_profile(
    "ours", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ours")


@pytest.fixture(autouse=True)
def no_detector_fails_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's report survives a detector that raises; a test of ours must not."""
    monkeypatch.setattr(detectors, "contained", judge)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where coverage is measured, lines are noted under the file that reached them."""
    coverage = sys.modules.get("coverage")
    if coverage is not None and (measuring := coverage.Coverage.current()):
        measuring.switch_context(item.nodeid.split("::")[0])
