"""What every hook on FSDP2 is made from."""

from __future__ import annotations

from typing import NamedTuple

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.process_groups import Groups
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.storage.recording import Recording


class HookContext(NamedTuple):
    """Where hooks write, and where they look up whom they were called for."""

    recording: Recording
    units: Units
    groups: Groups
    names: internals.TorchSymbols
