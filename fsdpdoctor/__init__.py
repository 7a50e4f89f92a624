"""fsdpdoctor: what a PyTorch FSDP2 run waits for, on which unit and rank, and why.

Importing it imports nothing else: each name comes from its module when it is first
asked for, and torch when `record` is entered. docs/api.md has them all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fsdpdoctor.version import __version__

if TYPE_CHECKING:
    from fsdpdoctor.api import RunReport, diagnose, log_to, open
    from fsdpdoctor.errors import FsdpDoctorError
    from fsdpdoctor.importers import import_run
    from fsdpdoctor.recorder import record, step
    from fsdpdoctor.run import Run, open_run

__all__ = [
    "FsdpDoctorError",
    "Run",
    "RunReport",
    "__version__",
    "diagnose",
    "import_run",
    "log_to",
    "open",
    "open_run",
    "record",
    "step",
]

_HOME = {
    "FsdpDoctorError": "fsdpdoctor.errors",
    "Run": "fsdpdoctor.run",
    "RunReport": "fsdpdoctor.api",
    "diagnose": "fsdpdoctor.api",
    "import_run": "fsdpdoctor.importers",
    "log_to": "fsdpdoctor.api",
    "open": "fsdpdoctor.api",
    "open_run": "fsdpdoctor.run",
    "record": "fsdpdoctor.recorder",
    "step": "fsdpdoctor.recorder",
}
"""Where each name is. A test holds it to `__all__` and to the imports above."""

if not TYPE_CHECKING:  # a type checker would take any name for one that is here

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
