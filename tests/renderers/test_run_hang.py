"""`fsdpdoctor hang RUN`: staged hangs and deaths of real jobs, and drawn ones.

The faults are those of `tests/benchmarks/hangs.py`, which repeats them and keeps a
table.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.run import in_memory, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.testing import draw
from tests.benchmarks.hangs import FAULTS, NEVER_S, stage
from tests.detectors.test_run_ended import TWO_LAYERS, raising

FAST = ("raise", "same-exception")
TIMEOUT_S = 12


def answer(folder: Path, *options: str) -> str:
    """What the command prints of a run."""
    result = CliRunner().invoke(main, ["hang", str(folder), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def written(folder: Path) -> Path:
    """A run in which rank 1 raised and rank 0 lost it."""
    ranks = [
        raising(0, "RuntimeError", "Connection closed by peer", 40, 100, "all_reduce"),
        raising(1, "KeyError", "'label'", 31, 150),
    ]
    save_run(
        in_memory(RunHeader(run_id="a", source="recorded", world_size=2), ranks), folder
    )
    return folder


def test_a_run_in_which_nothing_is_wrong(tmp_path: Path) -> None:
    """Said in a sentence; each rank has its line."""
    data = [draw(TWO_LAYERS, rank=rank) for rank in range(2)]
    header = RunHeader(run_id="a", source="recorded", world_size=2)
    save_run(in_memory(header, data), tmp_path / "run")

    lines = answer(tmp_path / "run").splitlines()

    assert lines[0] == "no rank says that it stands still, and none ended of a fault"
    assert lines[-2:] == ["  rank 0: done", "  rank 1: done"]


def test_the_stacks_of_ranks_that_ended(tmp_path: Path) -> None:
    """The line of each rank, the blamed one's first; a later attempt is named."""
    folder = written(tmp_path / "run")
    (tmp_path / "run-restart1").mkdir()

    lines = answer(folder).splitlines()

    first = lines.index("stack of rank 1, innermost last:")
    assert lines[first + 1] == "  train.py:31 in main"
    assert lines.index("stack of rank 0, innermost last:") > first
    assert lines[-1] == (
        f"note: the launcher started again, into {tmp_path / 'run-restart1'}"
    )


def test_json_has_every_rank(tmp_path: Path) -> None:
    """With its state, its line and its stack."""
    said = json.loads(answer(written(tmp_path / "run"), "--json"))

    assert said["schema_version"] == 1
    assert [(r["rank"], r["state"], r["place"]) for r in said["ranks"]] == [
        (0, "lost a peer", "train.py:40 in main"),
        (1, "raised", "train.py:31 in main"),
    ]
    assert said["flight_recorder"] is None


@pytest.mark.ranks
@pytest.mark.parametrize("name", FAST)
def test_a_fault_is_named(name: str, tmp_path: Path) -> None:
    """Culprit, place and cause after the end, on two ranks."""
    answers = stage(name, 2, tmp_path, timeout_s=NEVER_S)

    assert [(a.moment, a.wrong) for a in answers] == [("afterwards", [])]


@pytest.mark.ranks
def test_a_hang_is_named_while_it_hangs(tmp_path: Path) -> None:
    """A rank that does not come out of its loader, live and after a SIGTERM."""
    answers = stage("endless", 2, tmp_path, timeout_s=NEVER_S)

    assert [(a.moment, a.wrong) for a in answers] == [("live", []), ("afterwards", [])]


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("timeout_s", [TIMEOUT_S, NEVER_S])
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_named(
    name: str, timeout_s: int, restarts: int, nproc: int, tmp_path: Path
) -> None:
    """With and without timeouts, on two and four ranks, and after a restart."""
    if timeout_s == NEVER_S and restarts and FAULTS[name].hangs:
        pytest.skip("without a timeout nothing restarts")
    answers = stage(name, nproc, tmp_path, timeout_s=timeout_s, restarts=restarts)

    assert [a.wrong for a in answers] == [[] for _ in answers]
    assert answers[-1].moment == "afterwards"
