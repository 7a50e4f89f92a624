"""The process beside a tuned training leaves what is worth trying."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fsdpdoctor.changes.plan import plan_of
from fsdpdoctor.cli.processes.rank_in_place import (
    rank_candidates,
    ranked,
    write_ranking,
)
from fsdpdoctor.plan_file import settings_of
from fsdpdoctor.recorder.autotune.ranking import RANKED, Ranking, read_ranking
from fsdpdoctor.simulate.plans.change_step import changed
from tests.rig.fake import Job, recording_to, train_fake
from tests.simulate.plans.test_in_place import on


def test_candidates_survive_their_file(tmp_path: Path) -> None:
    """Each says the plan, the same by name of unit, and code; nothing else needs a new
    start.
    """
    base = on("slow", blocking=True)
    made = ranked(base)
    assert read_ranking(tmp_path) is None
    write_ranking(tmp_path, made)

    found = read_ranking(tmp_path)

    assert found == made
    assert found is not None
    first = found.candidates[0]
    calibration = base.calibration
    step = changed(plan_of(first.plan), calibration.step, calibration.constraints).step
    said = settings_of(first.apply)
    assert {name: one.forward_prefetch for name, one in said.units.items()} == {
        unit.fqn: tuple(step.units[u].fqn for u in unit.forward_prefetch)
        for unit in step.units
    }
    assert "set_modules_to_forward_prefetch" in first.code
    assert first.step_ns < found.measured_ns


def test_a_poor_replay_ranks_nothing() -> None:
    """It says why."""
    base = replace(on("slow"), error=0.5)
    assert ranked(base) == Ranking(
        measured_ns=base.calibration.measured_ns, withheld=base.why_withheld
    )


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    """It is never half believed."""
    (tmp_path / RANKED).write_text("{}")
    with pytest.raises(ValueError, match="is damaged"):
        read_ranking(tmp_path)


def test_it_waits_for_steps_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded run is enough; it lowers no priority but its own."""
    monkeypatch.setattr(os, "nice", lambda by: 0)
    from fsdpdoctor.cli.processes import rank_in_place
    from fsdpdoctor.network import parse_network

    monkeypatch.setattr(rank_in_place, "LOOK_S", 0.01)
    job = Job(wire=parse_network("50MB/s"), blocks=3, steps=10, forward_ns=10**6)
    train_fake(job, lambda: recording_to(tmp_path))
    there, here = os.pipe()

    rank_candidates(tmp_path, there)

    os.close(here)
    said = json.loads((tmp_path / RANKED).read_text())
    assert said["measured_ns"] > 0
    assert threading.active_count() < 50
