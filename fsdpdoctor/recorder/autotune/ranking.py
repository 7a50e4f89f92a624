"""What the simulator, in a process beside this one, thinks worth trying."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RANKED = "autotune-candidates.json"
"""In the run's folder; `cli.processes.rank_in_place` writes it."""

MODULE = "fsdpdoctor.cli.processes.rank_in_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings worth trying, and what is expected of them."""

    summary: str  # for people
    plan: Mapping[str, Any]  # as a plan file has it
    apply: Mapping[str, Any]
    code: str  # to paste
    step_ns: int  # predicted
    bytes: int  # of memory, more than now


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Candidates, the one that promises most first; all are changes to the script's own
    settings, none to another candidate.
    """

    measured_ns: int  # of a step, as it is
    candidates: tuple[Candidate, ...] = ()
    rungs: tuple[Candidate, ...] = ()  # that hold less and less, for who has no room
    withheld: str | None = None  # why there are none
    others: tuple[str, ...] = ()  # what promises more, and needs a new start


def read_ranking(folder: Path) -> Ranking | None:
    """None: not there yet. Raises ValueError, OSError where it cannot be read."""
    path = folder / RANKED
    if not path.exists():
        return None
    try:
        said = json.loads(path.read_bytes())
        return Ranking(
            measured_ns=said["measured_ns"],
            candidates=tuple(Candidate(**one) for one in said["candidates"]),
            rungs=tuple(Candidate(**one) for one in said["rungs"]),
            withheld=said["withheld"],
            others=tuple(said["others"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
