"""A tuning whose decisions follow each other within few steps, on candidates that are
there from the start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fsdpdoctor.recorder.autotune import autotuner, conductor, start, tuning
from fsdpdoctor.recorder.autotune.paired_test import Gain, Judgement
from fsdpdoctor.recorder.autotune.ranking import RANKED, Candidate, Ranking

Tried = Mapping[str, Mapping[str, Any]]
"""What a plan file has under `apply`, by name."""


def ranking(tried: Tried) -> Ranking:
    """All of them promise something."""
    found = [
        Candidate(
            summary=name, plan={}, apply=apply, code="", step_ns=100 - 10 * at, bytes=0
        )
        for at, (name, apply) in enumerate(tried.items())
    ]
    return Ranking(measured_ns=1000, candidates=tuple(found))


Patch = tuple[Any, str, Any]
"""An owner, a name, and what is to be there."""


def in_a_hurry(tried: Tried, kept: str) -> list[Patch]:
    """With these a job tries them one after the other, and keeps one of them, whatever
    was measured.
    """
    turns = iter([*tried] * 100)

    def by_turns(gains: Any, looks: int) -> tuple[Judgement, Gain]:
        gain = Gain(share=0.5, low=0.5, high=0.5)
        is_kept = next(turns) == kept
        return Judgement.KEEP if is_kept else Judgement.DROP, gain

    return [
        (conductor, "LEAD_S", 0.05),
        (autotuner, "LOOK_EVERY_S", 0.01),
        (tuning, "ROUND", tuning.ROUND[:4]),
        (tuning, "QUADS", 1),
        (tuning, "FAR_SLOWER", 1e9),
        (tuning, "judge", by_turns),
    ]


def no_search(tried: Tried) -> list[Patch]:
    """With these the ranking is there before anything has run."""

    class NoSearch:
        """In place of the process that ranks."""

        def __init__(self, module: str, folder: Path) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / RANKED).write_text(json.dumps(asdict(ranking(tried))))

        def close(self) -> None:
            """Nothing has begun."""

    return [(start, "Beside", NoSearch)]


def hurry(tried: Tried, kept: str) -> None:
    """Both from here on, in a process that is one rank of a job. Called again before
    each job.
    """
    put(*in_a_hurry(tried, kept), *no_search(tried))


def put(*patches: Patch) -> None:
    """Set them, for good: the process is the job's."""
    for owner, name, value in patches:
        setattr(owner, name, value)


@contextmanager
def unhurried() -> Iterator[None]:
    """At its end all is as it was, whatever was put."""
    owners = (autotuner, conductor, start, tuning)
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, names in zip(owners, before, strict=True):
            vars(owner).update(names)
