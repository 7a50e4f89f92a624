"""`fsdpdoctor run --apply`, as a user types it, on two ranks over gloo."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from fsdpdoctor.changes.plan import Plan, save_plan
from fsdpdoctor.cli import main
from fsdpdoctor.cli import run as run_command
from fsdpdoctor.cli.run_options import RunOptions
from fsdpdoctor.recorder.launch import run_script
from fsdpdoctor.recorder.launch.run_script import Target
from fsdpdoctor.recorder.storage import run_folder
from fsdpdoctor.recorder.storage.run_folder import VARIABLE
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import UNKNOWN, Kind, Phase
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.settings import settings
from tests.rig.ranks import TRAIN, Finished, run_ranks

STEPS = 4

COLLECTIVES = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)


def recorded(folder: Path, *options: str, fault: str = "none") -> list[Finished]:
    """The rig's Llama, recorded on two ranks."""
    run = ("-m", "fsdpdoctor", "run", "--no-report", "--every", "1", "--check-bits")
    training = (str(TRAIN), "--steps", str(STEPS), "--fault", fault)
    return run_ranks(2, *run, "--out", str(folder), *options, *training)


def ranks(folder: Path) -> list[RankData]:
    """What each rank left."""
    return [source.load() for source in open_run(folder).sources]


class Issued(NamedTuple):
    """A collective, and whose hook asked for it."""

    kind: str
    unit: str
    phase: str
    by_unit: str


def schedule(data: RankData) -> list[Issued]:
    """Every collective of a whole run, in the order in which it was issued."""
    found = []
    names = [unit.fqn for unit in data.header.units]
    for step in data.steps:
        spans = step.spans
        for row in spans.issued_ns.argsort(kind="stable"):
            if spans.kind[row] in COLLECTIVES:
                by = spans.by_unit[row]
                found.append(
                    Issued(
                        kind=Kind(spans.kind[row]).name,
                        unit=names[spans.unit[row]],
                        phase=Phase(spans.phase[row]).name,
                        by_unit="" if by == UNKNOWN else names[by],
                    )
                )
    return found


def bits(folder: Path) -> list[str]:
    """The hash of each rank's parameters."""
    return [path.read_text() for path in sorted(folder.glob("bits*"))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script as it is."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    for finished in recorded(folder):
        finished.ok()
    return folder


def saved(plain: Path, path: Path, plan: Plan) -> None:
    """A plan for the model that the run recorded."""
    base = calibrate(ranks(plain)[0])
    save_plan(
        plan, path, settings(plan, changed(plan, base.step, base.constraints).step)
    )


@pytest.mark.ranks
def test_an_untouched_script_runs_as_the_edited_one(
    tmp_path: Path, plain: Path
) -> None:
    """Llama with a plan for prefetch: the same collectives in the same order as in
    the script that sets the lists itself, and not the ones of the script as it was.
    """
    layers = {f"model.layers.{i}": 1 for i in range(3)}
    plan = tmp_path / "plan.json"
    saved(plain, plan, Plan(forward_prefetch_of=layers))
    for finished in recorded(tmp_path / "applied", "--apply", str(plan)):
        finished.ok()
    for finished in recorded(tmp_path / "edited", fault="prefetch"):
        finished.ok()

    edited = [schedule(data) for data in ranks(tmp_path / "edited")]
    applied = [schedule(data) for data in ranks(tmp_path / "applied")]
    before = [schedule(data) for data in ranks(plain)]

    assert applied == edited
    assert applied != before
    # Earlier, from the hook of the unit before; not more, nor others.
    assert [i[:3] for i in applied[0]] == [i[:3] for i in before[0]]
    assert bits(tmp_path / "applied") == bits(plain)
    assert open_run(tmp_path / "applied").header.applied == (
        "forward prefetch lists of 5 units, up to 1 ahead",
    )


@pytest.mark.ranks
def test_a_plan_that_does_not_fit_ends_the_job(tmp_path: Path, plain: Path) -> None:
    """Every rank says so in one line and ends with status 2; nothing was trained."""
    path = tmp_path / "plan.json"
    saved(plain, path, Plan(forward_prefetch=1))
    path.write_text(path.read_text().replace("model.layers.3", "model.layers.7"))

    ended = recorded(tmp_path / "refused", "--apply", str(path))

    line = (
        f"Error: {path} was not applied: it names model.layers.7, no unit of this "
        "model, whose units are <root>; model.layers.0; model.layers.1; "
        "model.layers.2; model.layers.3\n"
    )
    assert [(e.status, e.stderr, e.stdout) for e in ended] == [(2, line, "")] * 2
    assert json.loads((tmp_path / "refused/run.json").read_bytes())["applied"] == []
    assert [data.header.ended for data in ranks(tmp_path / "refused")] == [
        "exception: PlanError: " + line.removeprefix("Error: ").strip()
    ] * 2


# In this process: what ranks are started with, and where nothing can be recorded.


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Started]:
    """What torchrun was started with: nothing is, and the process stays."""
    started: list[Started] = []

    def torchrun(options: list[str], target: Target, own: list[str]) -> None:
        started.append(Started(options, target, own))
        raise SystemExit(0)

    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", VARIABLE)}
    monkeypatch.setattr(os, "environ", kept)
    monkeypatch.setattr(run_script, "torchrun", torchrun)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return started


class Started(NamedTuple):
    """A call of torchrun's."""

    options: list[str]
    target: Target
    own: list[str]


def typed(*words: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(main, ["run", *words])


def test_ranks_are_started_with_what_was_asked(
    became: list[Started], tmp_path: Path
) -> None:
    """Every option of ours that was given, in one folder that all are told."""
    recording = ("--steps", "4:9", "--every", "2", "--stop-after", "20")
    more = ("--check-bits", "--kineto", "2", "--live", "--hang-after", "30")
    limit = ("--max-size", "2GiB")
    words = ("--nproc-per-node", "4", "--out", "runs/a", "--no-report")
    typed(*words, *recording, *limit, *more, "train.py", "--lr", "1")
    ((options, target, own),) = became
    assert options == ["--nproc-per-node=4", "--standalone"]
    assert target == Target(name="train.py", is_module=False, args=("--lr", "1"))
    assert own == [
        *("--steps", "4:9", "--every", "2", "--stop-after", "20", "--check-bits"),
        *("--kineto", "2", "--max-size", "2GiB", "--live"),
        *("--hang-after", "30.0", "--no-report"),
    ]
    place = json.loads(os.environ[VARIABLE])
    assert place["folder"] == str(tmp_path / "runs/a")


def test_a_rank_that_finds_no_place_trains_unrecorded(
    became: list[Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves no run of another id, which would refuse the ranks after it."""

    def full(out: Path | None, script: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder, "agree_on_folder", full)
    # A script's folder comes first on it, for the rest of a process of its own.
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = typed("--no-report", "--out", "runs/a", "train.py")
    assert done.exit_code == 0
    assert done.stdout == "trained\n"
    assert done.stderr.count("is not recorded, training goes on") == 1
    assert not (tmp_path / "runs").exists()


def test_what_is_no_size_is_said(became: list[Started]) -> None:
    """Before ranks are started."""
    done = typed("--nproc-per-node", "4", "--max-size", "much", "train.py")
    assert done.exit_code == 2
    assert "--max-size is 'much', expected a size, as 500MB or 2GiB" in done.output
    assert became == []


def test_a_job_of_several_nodes_is_torchruns_own(became: list[Started]) -> None:
    """Its options are passed on, and then it is not told to stand alone."""
    typed("--nproc-per-node", "gpu", "--nnodes", "2", "-m", "pkg.train")
    ((options, target, own),) = became
    assert options == ["--nproc-per-node=gpu", "--nnodes=2"]
    assert target.is_module
    assert "--no-report" not in own


def test_no_ranks_are_started_for_a_script_that_is_not_there(
    became: list[Started],
) -> None:
    """One line, instead of one from each rank."""
    result = typed("--nproc-per-node", "4", "none.py")
    assert result.exit_code == 2
    assert result.stderr == "Error: cannot run none.py: there is no such file\n"
    assert became == []


def test_where_nobody_may_look_ranks_are_started_all_the_same(
    became: list[Started], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of them says that it is not recorded."""

    def refuses(*_: object) -> None:
        raise PermissionError("not for you")

    monkeypatch.setattr(run_folder, "new_location", refuses)
    typed("--nproc-per-node", "4", "train.py")
    assert len(became) == 1
    place = json.loads(os.environ[VARIABLE])
    assert place["folder"] == str(tmp_path / "fsdpdoctor-runs/unrecorded")
    monkeypatch.setattr(run_folder, "agree_on_folder", refuses)
    asked: Any = SimpleNamespace(out=None, target=SimpleNamespace(name="train.py"))
    assert run_command._place(asked).run_id == ""  # not recorded


def test_a_process_has_one_record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`run` inside of `record()`: it says into which one it goes."""
    monkeypatch.chdir(tmp_path)
    session: Any = SimpleNamespace(folder=tmp_path / "runs/a")
    assert run_command._of(session).folder == tmp_path / "runs/a"
    said = "fsdpdoctor: this process is recorded into runs/a, and not a second time\n"
    assert capsys.readouterr().err == said


def test_without_a_dashboard_there_is_no_live_view(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is said, and the training begins."""
    monkeypatch.setitem(sys.modules, "fsdpdoctor.cli.processes.live", None)
    target = Target(name="train.py", is_module=False, args=())
    asked = RunOptions(
        target=target, out=None, steps=None, every=None, report=True, live=True
    )
    assert [*run_command._beside(asked, tmp_path)] == []
    assert "fsdpdoctor: no live view: ModuleNotFoundError" in capsys.readouterr().err
