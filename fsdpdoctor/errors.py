"""What fsdpdoctor raises.

    FsdpDoctorError
    +-- InputError          a file or folder that cannot be used as it is
    |   +-- NewerFormatError    written by a newer fsdpdoctor
    +-- UsageError          arguments that do not fit together
    |   +-- PlanError           a plan that does not fit the job or its model
    |       +-- NoRoomError         ... or the memory that is free
    +-- RehearsalError      a script that cannot be rehearsed as it is
    +-- MissingDependencyError  an optional package, or torch, is not installed

Every message says what was seen, what was expected and what to do. Only the
CLI turns them into exit codes.
"""

from __future__ import annotations

import importlib.util


class FsdpDoctorError(Exception):
    """Base of everything that fsdpdoctor raises on purpose."""


class InputError(FsdpDoctorError):
    """A file or folder cannot be used: missing, truncated, foreign or hostile."""


class NewerFormatError(InputError):
    """A run was written by a version of fsdpdoctor newer than this one."""


class UsageError(FsdpDoctorError):
    """Arguments that do not fit together, or do not fit the run."""


class PlanError(UsageError):
    """A plan that `run --apply` was given does not fit this torch, job or model."""


class NoRoomError(PlanError):
    """A plan needs more memory than is free; `fits_bytes` more there is."""

    def __init__(self, words: str, fits_bytes: int) -> None:
        super().__init__(words)
        self.fits_bytes = fits_bytes


class RehearsalError(FsdpDoctorError):
    """A script needs what a rehearsal does not have: a GPU, or numbers."""


class MissingDependencyError(FsdpDoctorError):
    """A package that this command needs is not installed."""


def need(module: str, extra: str) -> None:
    """Raise MissingDependencyError, with how to get it, where a module of an optional
    package is not installed, nor perhaps the packages that it is in.
    """
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise MissingDependencyError(
            f"{module} is not installed: pip install 'fsdpdoctor[{extra}]'"
        )
