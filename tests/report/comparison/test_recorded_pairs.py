"""Pairs of recorded trainings with one thing changed, and repeated ones with none."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.report import report_of
from fsdpdoctor.report.comparison import Comparison, Subject, compare
from fsdpdoctor.run import open_run
from tests.rig.ranks import run_python

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

TRAIN = Path(__file__).parents[2] / "rig" / "scripts" / "train.py"


def recorded(folder: Path, *asked: str, ranks: int = 2) -> Subject:
    """A training under `fsdpdoctor run`, all steps of it."""
    run_python(
        *("-m", "fsdpdoctor", "run", "--nproc-per-node", str(ranks), "--no-report"),
        *("--every", "1", "--out", str(folder), str(TRAIN), "--steps", "24", *asked),
    ).ok()
    measures = measure(open_run(folder))
    return Subject(name=folder.name, measures=measures, report=report_of(measures))


CHANGES = {
    "prefetch": ("prefetch", ("--fault", "prefetch"), 2),
    "wrap": ("units", ("--fault", "every-linear"), 2),
    "dtype": ("mp_policy", ("--bf16",), 2),
    "reshard": ("reshard_after_forward", ("--fault", "keep"), 2),
    "longer": ("tokens", ("--sequence", "64"), 2),
    "world": ("world_size", (), 3),
}
"""What is changed: the setting that is named, the script's arguments, the ranks."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The script as it is."""
    return recorded(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize("change", CHANGES)
def test_the_one_thing_that_was_changed_is_named(
    change: str, plain: Subject, tmp_path: Path
) -> None:
    """Alone, whatever else of the units differs because of it."""
    setting, asked, ranks = CHANGES[change]
    found = compare(plain, recorded(tmp_path / "run", *asked, ranks=ranks))

    assert len(found.changed) == 1, found.changed
    assert found.changed[0].startswith(setting)


def test_a_rank_that_sleeps_is_named_with_what_it_sleeps(
    plain: Subject, tmp_path: Path
) -> None:
    """No setting is: the script's last rank takes 400 ms of each step for itself."""
    asked = ("--fault", "slow-rank", "--sleep-ms", "400")
    found = compare(plain, recorded(tmp_path / "run", *asked))

    assert found.changed == ()
    assert (found.regression_share or 0) > 0
    own = [d for d in found.differences if d.rank is not None]
    assert max(own, key=lambda d: d.change or 0).rank == 1
    assert 200e6 < max(d.change or 0 for d in own) < 800e6


def test_two_changes_are_both_named(plain: Subject, tmp_path: Path) -> None:
    """And neither gets the credit."""
    found = compare(plain, recorded(tmp_path / "run", "--bf16", "--fault", "prefetch"))

    assert sorted(name.split()[0] for name in found.changed) == [
        "mp_policy",
        "prefetch",
    ]
    assert "2 settings were changed at once" in found.conclusion


def test_repeated_runs_do_not_differ(tmp_path: Path) -> None:
    """21 pairs of seven runs of one script: in at most one is the step called longer,
    which a busy machine can make it.
    """
    runs = [recorded(tmp_path / str(index)) for index in range(7)]
    found: list[Comparison] = [compare(a, b) for a, b in combinations(runs, 2)]

    assert {each.changed for each in found} == {()}
    exact = {d.figure for each in found for d in each.differences if d.kind != "time"}
    assert exact == set()
    assert sum(bool(each.regression_share) for each in found) <= 1
