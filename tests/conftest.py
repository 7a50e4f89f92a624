"""What holds for every test."""

from __future__ import annotations

import pytest

from fsdpdoctor import detectors
from fsdpdoctor.detectors.base import judge


@pytest.fixture(autouse=True)
def no_detector_fails_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's report survives a detector that raises; a test of ours must not."""
    monkeypatch.setattr(detectors, "contained", judge)
