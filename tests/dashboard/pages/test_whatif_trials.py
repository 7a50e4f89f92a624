"""A job that tunes itself shows what it has measured, on what was predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.cli.processes.rank_in_place import write_ranking
from fsdpdoctor.recorder.autotune.ranking import Ranking
from fsdpdoctor.recorder.autotune.trials import TRIALS, save_trials
from fsdpdoctor_dashboard.pages.whatif_trials import trials_part
from tests.dashboard.pages.pictures.test_trial_points import RANKED, TRIED


def test_the_page_has_it_of_a_tuned_run_alone(tmp_path: Path) -> None:
    """Before the search has ended, and where nothing could be ranked, there is none."""
    assert trials_part(tmp_path, "light") == []
    write_ranking(tmp_path, Ranking(measured_ns=1, withheld="the replay is off"))
    assert trials_part(tmp_path, "light") == []

    write_ranking(tmp_path, RANKED)
    save_trials(tmp_path, TRIED)
    words = trials_part(tmp_path, "light")[1].children

    assert words == (
        "2 changes ranked, 2 of them measured in the running job. Kept: lists."
    )
    (tmp_path / TRIALS).write_text("{}}")
    assert trials_part(tmp_path, "light") == []
