"""A sweep's rehearsals, played: no process is started."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from fsdpdoctor.cli.processes import sweep_runs
from fsdpdoctor.cli.processes.sweep_runs import SweepRuns, SweptScript
from fsdpdoctor.plan_file import read_settings
from fsdpdoctor.planning.script_settings import Handle
from fsdpdoctor.planning.sweep import Outcome, choices, parse_sweep
from tests.rig.virtual_device import Job, record

GIB = 1 << 30
JOB = Job(width=64, blocks=2, vocabulary=64, length=16, steps=3)


class Played:
    """What a rehearsal leaves: it takes 30 GiB for each sequence, of 78."""

    def __init__(self, recorded: Path) -> None:
        self.recorded = recorded
        self.commands: list[list[str]] = []
        self.environments: list[Mapping[str, str]] = []
        self.fails: Callable[[list[str]], bool] = lambda command: False
        self.fragmented = False

    def run_logged(
        self,
        command: Sequence[str],
        log: Path,
        timeout_s: float | None,
        environment: Mapping[str, str] | None = None,
        started: object = None,
    ) -> int:
        """In the place of a process."""
        words = list(command)
        self.commands.append(words)
        self.environments.append(dict(environment or {}))
        if self.fails(words):
            log.write_text("ValueError: no such model\n")
            return 1
        log.write_text("")
        shutil.copytree(self.recorded, words[words.index("--out") + 1])
        needed = int(words[words.index("--bs") + 1]) * 30 * GIB
        verdict = {
            "fits": needed <= 78 * GIB and not self.fragmented,
            "reserved_bytes": 80 * GIB if self.fragmented else needed,
            "needed_bytes": needed,
            "room_bytes": 78 * GIB,
            "place": "layers.1, forward",
            "retries": 0,
        }
        Path(words[words.index("--verdict") + 1]).write_text(json.dumps(verdict))
        return 0

    def said(self, name: str) -> list[str]:
        """What an option was, by rehearsal."""
        return [words[words.index(name) + 1] for words in self.commands]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two blocks and a root."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    record(JOB, folder)
    return folder


@pytest.fixture
def played(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """In the place of every process."""
    found = Played(recorded)
    monkeypatch.setattr(sweep_runs, "run_logged", found.run_logged)
    return found


def sweep(
    tmp_path: Path, what: str, *, source: str = "", args: tuple[str, ...] = ()
) -> tuple[list[Outcome], list[str]]:
    """Of a script in the folder, one rehearsal after the other."""
    script = tmp_path / "train.py"
    script.write_text(source)
    said: list[str] = []
    runs = SweepRuns(
        swept=SweptScript(
            script=str(script),
            args=args,
            is_module=False,
            handles={"micro-batch": Handle(option="--bs")},
            options=("--on", "h100"),
            node_size=8,
        ),
        folder=tmp_path / "sweep",
        jobs=1,
        say=said.append,
    )
    return runs.run(choices(parse_sweep(what), 8)), said


def test_each_configuration_is_a_rehearsal(played: Played, tmp_path: Path) -> None:
    """With its job, its options and what the script is told; tokens are a rank's."""
    found, _ = sweep(
        tmp_path,
        "world=8/16,hsdp,checkpointing=as-is/on,micro-batch=2",
        args=("--lr", "1"),
    )
    assert [w for w in played.commands[0] if w.startswith("--")] == [
        *("--on", "--world-size", "--stop-after", "--no-report", "--out"),
        *("--verdict", "--lr", "--bs"),
    ]
    assert [" ".join(one.command).split(" ", 4)[4] for one in found] == [
        f"{job} {tmp_path}/train.py --lr 1 --bs 2"
        for job in (
            "--world-size 8",
            "--world-size 8 --checkpointing on",
            "--world-size 16",
            "--world-size 16 --checkpointing on",
            "--mesh 2x8",
            "--mesh 2x8 --checkpointing on",
        )
    ]
    assert {one.tokens for one in found} == {JOB.batch * JOB.length}
    assert {one.reserved_bytes for one in found} == {60 * GIB}
    assert all(one.usable and one.step_ns for one in found)


def test_what_does_not_fit_ends_its_larger_ones(played: Played, tmp_path: Path) -> None:
    """They are not rehearsed, and say why; others go on."""
    found, _ = sweep(tmp_path, "world=8/16,micro-batch=2..16")
    assert played.said("--bs") == ["2", "4", "2", "4"]
    assert [one.fits for one in found] == [True, False, False, False] * 2
    assert found[1].reason == "needs 120.0 of 78.0 GiB, in layers.1, forward"
    assert found[2].reason == "not even micro-batch 4 fits"
    assert found[3].reason == "not even micro-batch 4 fits"


def test_a_sweep_that_was_broken_off_goes_on(played: Played, tmp_path: Path) -> None:
    """What is there is not rehearsed again, unless the script has changed; a cut line
    is as if it were not there.
    """
    first, _ = sweep(tmp_path, "world=8,micro-batch=1")
    results = tmp_path / "sweep" / sweep_runs.RESULTS
    results.write_text(results.read_text() + '{"of": "x", "outc')
    found, said = sweep(tmp_path, "world=8,micro-batch=1/2")
    assert said[0] == "1 of 2 were rehearsed before"
    assert played.said("--bs") == ["1", "2"]
    assert found[0].per_second == first[0].per_second
    sweep(tmp_path, "world=8,micro-batch=1/2", source="changed = 1")
    assert played.said("--bs") == ["1", "2", "1", "2"]


def test_a_rehearsal_that_fails_says_why(played: Played, tmp_path: Path) -> None:
    """The others are rehearsed."""
    played.fails = lambda words: words[words.index("--bs") + 1] == "1"
    found, said = sweep(tmp_path, "world=8,micro-batch=1/2")
    assert [(one.fits, one.reason) for one in found] == [
        (None, "ValueError: no such model"),
        (True, ""),
    ]
    assert said[0].startswith("1 of 2: world 8, micro-batch 1: ValueError: no such mod")


def test_units_are_changed_by_a_plan_of_the_scripts_own(
    played: Played, tmp_path: Path
) -> None:
    """Made once, from the script as it is; its file is what the command names."""
    found, said = sweep(tmp_path, "world=16,micro-batch=1,reshard=as-is/false,wrap")
    assert said.count("rehearsing the script as it is, for its units") == 1
    assert len(played.commands) == 5  # and the script as it is, for its units
    plans = tmp_path / "sweep" / "plans"
    assert sorted(path.name for path in plans.iterdir()) == [
        "merge-2.json",
        "reshard-false-merge-2.json",
        "reshard-false.json",
    ]
    kept = read_settings(plans / "reshard-false.json")
    assert {unit: said.reshard_after_forward for unit, said in kept.units.items()} == {
        "<root>": False,
        "layers.0": False,
        "layers.1": False,
    }
    assert kept.groups is None
    merged = read_settings(plans / "merge-2.json")
    assert merged.groups == (("layers.0", "layers.1"),)
    assert "--apply" not in found[0].command
    assert str(plans / "merge-2.json") in found[1].command


def test_what_cannot_be_asked_of_the_model_is_said_of_its_row(
    played: Played, tmp_path: Path
) -> None:
    """Other configurations are rehearsed."""
    found, _ = sweep(tmp_path, "world=16,micro-batch=1,wrap=as-is/NoSuchClass")
    assert [one.fits for one in found] == [True, None]
    assert "NoSuchClass" in found[1].reason
    assert len(played.commands) == 2  # as it is, and for its units


def test_fragmented_memory_is_not_said_to_be_too_little(
    played: Played, tmp_path: Path
) -> None:
    """It needs less than there is, in pieces that take more."""
    played.fragmented = True
    (found,), _ = sweep(tmp_path, "world=8,micro-batch=2")
    assert (found.fits, found.reason) == (
        False,
        "fragmented: reserves 80.0 of 78.0 GiB for 60.0, in layers.1, forward",
    )
