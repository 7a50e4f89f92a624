"""The plan that this job kept before its launcher started it again.

It lies in the folder of the attempt that kept it. Our own launcher, or `--out`, has
attempts' folders named alike; under torchrun alone a note beside them leads there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.plan_file import (
    read_plan_file,
    settings_of,
    words,
    write_plan_file,
)
from fsdpdoctor.recorder.autotune.ranking import Candidate
from fsdpdoctor.recorder.storage.run_folder import launched_by, number

PLAN = "plan.json"
"""In the run's folder."""

_ATTEMPT = re.compile(r"(.+)-restart(\d+)(?:-\d+)?")


def save_kept(folder: Path, candidate: Candidate) -> None:
    """Leave it for `run --apply`, and for the next attempt. Raises OSError."""
    write_plan_file(folder / PLAN, candidate.plan, candidate.apply)
    if number("TORCHELASTIC_MAX_RESTARTS", 0):
        note = _note(folder)
        new = note.with_suffix(".new")
        new.write_text(json.dumps({"folder": folder.name, "attempt": _attempt()}))
        new.replace(note)


def _attempt() -> int:
    return number("TORCHELASTIC_RESTART_COUNT", 0)


def _note(folder: Path) -> Path:
    """Of all attempts of a launcher, beside their folders."""
    key = hashlib.sha256("|".join(launched_by()).encode()).hexdigest()[:16]
    return folder.parent / f".kept-{key}.json"


def kept_before(folder: Path, world_size: int) -> Candidate | None:
    """What an attempt before this one kept last, of a job of as many ranks."""
    for earlier in _attempts_before(folder):
        try:
            if not (earlier / PLAN).exists():
                continue
            header = json.loads((earlier / "run.json").read_bytes())
            if header["world_size"] != world_size:
                return None  # other memory, other wires
            content = read_plan_file(earlier / PLAN)
            settings = settings_of(content["apply"])
        except (OSError, ValueError, KeyError, TypeError, FsdpDoctorError):
            return None
        return Candidate(
            summary="; ".join(words(settings)),
            plan=content.get("plan") or {},
            apply=content["apply"],
            code="",
            step_ns=0,
            bytes=0,
        )
    return None


def _attempts_before(folder: Path) -> Iterator[Path]:
    """Their folders, the last one first."""
    found = _ATTEMPT.fullmatch(folder.name)
    if found is None:
        yield from _noted_before(folder)
        return
    for attempt in range(int(found[2]) - 1, 0, -1):
        yield folder.with_name(f"{found[1]}-restart{attempt}")
    yield folder.with_name(found[1])


def _noted_before(folder: Path) -> Iterator[Path]:
    try:
        said = json.loads(_note(folder).read_bytes())
        if said["attempt"] < _attempt():
            yield folder.with_name(said["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # nothing was kept, or nobody can say what
