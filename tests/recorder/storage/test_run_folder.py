"""Ranks arrive at one folder without a word between them."""

from __future__ import annotations

import ast
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fsdpdoctor
from fsdpdoctor.errors import UsageError
from fsdpdoctor.recorder.storage import run_folder
from fsdpdoctor.recorder.storage.run_folder import (
    VARIABLE,
    RunLocation,
    agree_on_folder,
    new_location,
    to_environment,
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, and a job of no launcher; it is 12:00."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20260102-120000")
    for name in (VARIABLE, "RANK", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def of_launcher(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    """A rank of torchrun's; each process asks for the first time."""
    monkeypatch.setattr(run_folder, "_asked", itertools.count())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_a_second_run_in_a_second_has_a_number(here: Path) -> None:
    """Named for the script; a name of no letters is that of a run."""
    folders = []
    for script in ("my train.py", "my train.py", "---.py"):
        place = new_location(None, script)
        place.folder.mkdir(parents=True)
        folders.append(place.folder.name)
    assert folders == [
        "my-train-20260102-120000",
        "my-train-20260102-120000-2",
        "run-20260102-120000",
    ]
    third = new_location(None, "my train.py")
    assert third.folder.name == "my-train-20260102-120000-3"


def test_our_own_launcher_has_told_them(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart by torchrun gets a folder of its own; nonsense is no place."""
    place = RunLocation(folder=here / "run", run_id="r1")
    of_launcher(monkeypatch, RANK="0", **to_environment(place))
    assert agree_on_folder(None, "train.py") == place
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert agree_on_folder(None, "train.py") == RunLocation(
        folder=here / "run-restart2", run_id="r1-restart2"
    )
    for words in ("nonsense", "{}", "[]"):
        monkeypatch.setenv(VARIABLE, words)
        with pytest.raises(OSError, match="FSDPDOCTOR_RUN is none of ours"):
            agree_on_folder(None, "train.py")


def test_ranks_of_a_foreign_launcher_agree(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the first one's place, also where a second was about to name its own."""
    of_launcher(monkeypatch, RANK="0", LOCAL_WORLD_SIZE="2", WORLD_SIZE="2")
    first = agree_on_folder(None, "train.py")
    (note,) = (here / "fsdpdoctor-runs").iterdir()
    monkeypatch.setattr(run_folder, "_asked", itertools.count())
    monkeypatch.setattr(Path, "exists", lambda path: False)  # just before it was made
    second = agree_on_folder(None, "train.py")
    assert second == first
    assert json.loads(note.read_text())["run_id"] == first.run_id
    assert list((here / "fsdpdoctor-runs").iterdir()) == [note]


def test_a_restart_under_a_foreign_launcher_has_a_place(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the first attempt's, which has taken what `--out` names, and beside what
    an earlier job has left there: a job that goes on does not end with it.
    """
    of_launcher(monkeypatch, RANK="0", LOCAL_WORLD_SIZE="1", WORLD_SIZE="1")
    found = []
    for attempt, earlier in (("0", None), ("1", None), ("2", "out-restart2")):
        if earlier is not None:
            (here / earlier).mkdir()
            (here / earlier / "run.json").write_text('{"run_id": "of last week"}')
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        monkeypatch.setattr(run_folder, "_asked", itertools.count())
        place = agree_on_folder(Path("out"), "train.py")
        place.folder.mkdir(exist_ok=True)
        header = {"run_id": place.run_id}
        (place.folder / "run.json").write_text(json.dumps(header))
        found.append(place.folder.name)
    assert found == ["out", "out-restart1", "out-restart2-2"]


WRAPPED = """
import os, subprocess, sys
asks = (
    "from fsdpdoctor.recorder.storage.run_folder import agree_on_folder as agree;"
    "print(agree(None, 'train.py').run_id, flush=True)"
)
for rank in "01":
    own = {"RANK": rank} if sys.argv[1] == "given" else {"SLURM_PROCID": rank}
    line = f"export RANK={rank}; {sys.executable} -c \\"{asks}\\"; true"
    env = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **own}
    subprocess.run(["sh", "-c", line], env=env, check=True)
"""


@pytest.mark.parametrize("number", ["given", "of the scheduler"])
def test_ranks_in_shells_of_their_own_agree(here: Path, number: str) -> None:
    """The launcher is above them, whoever has given the rank its number."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", VARIABLE)}
    done = subprocess.run(
        [sys.executable, "-c", WRAPPED, number],
        env={**kept, "PYTHONPATH": str(Path(fsdpdoctor.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.split()
    assert first == second
    assert len(list((here / "fsdpdoctor-runs").iterdir())) == 1


def test_a_rank_is_not_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job has begun: it is not recorded where somebody else's run is."""
    (here / "run").mkdir()
    (here / "run/run.json").write_text('{"run_id": "another"}')
    of_launcher(monkeypatch, RANK="0", LOCAL_WORLD_SIZE="1", WORLD_SIZE="1")
    with pytest.raises(FileExistsError, match="holds another run already"):
        agree_on_folder(Path("run"), "train.py")


def test_a_note_of_somebody_else_s_is_said(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any place where nothing can be recorded: training goes on."""
    of_launcher(monkeypatch, RANK="0", LOCAL_WORLD_SIZE="1", WORLD_SIZE="1")
    agree_on_folder(None, "train.py")
    (note,) = (here / "fsdpdoctor-runs").iterdir()
    note.write_text("")
    monkeypatch.setattr(run_folder, "_asked", itertools.count())
    with pytest.raises(OSError, match="is none of ours"):
        agree_on_folder(None, "train.py")


def test_nodes_share_an_id_without_a_disk(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what the launcher tells all of them; another job has another one."""
    job = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}
    ids = []
    for node, port in (("one", "1"), ("two", "1"), ("one-again", "2")):
        folder = here / node
        folder.mkdir()
        monkeypatch.chdir(folder)
        of_launcher(monkeypatch, RANK="0", MASTER_PORT=port, **job)
        ids.append(agree_on_folder(None, "train.py").run_id)
    assert ids[0] == ids[1] != ids[2]


def test_another_runs_files_are_not_mixed_in(here: Path) -> None:
    """Whatever its header looks like."""
    (here / "run").mkdir()
    for header in ('{"run_id": "another"}', "{", "[]"):
        (here / "run/run.json").write_text(header)
        with pytest.raises(UsageError, match="holds another run already"):
            new_location(Path("run"), "train.py")


def test_latest_leads_to_the_newest(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder of runs alone; without links there is none, and nothing is left."""
    runs = here / "fsdpdoctor-runs"
    for name in ("a", "b"):
        (runs / name).mkdir(parents=True)
        run_folder.point_latest(runs / name)
    assert (runs / "latest").resolve() == runs / "b"
    (here / "elsewhere/c").mkdir(parents=True)
    run_folder.point_latest(here / "elsewhere/c")
    assert [path.name for path in (here / "elsewhere").iterdir()] == ["c"]

    def refuses(path: Path, to: str) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuses)
    run_folder.point_latest(runs / "a")
    assert (runs / "latest").resolve() == runs / "b"
    assert sorted(path.name for path in runs.iterdir()) == ["a", "b", "latest"]


def test_a_launchers_number_may_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is what is taken where there is none."""
    assert run_folder.number("N", 7, {"N": "3"}) == 3
    assert run_folder.number("N", 7, {"N": "three"}) == 7
    assert run_folder.number("N", 7, {}) == 7


def test_a_job_is_named_where_the_kernel_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without /proc the launcher's process alone tells jobs apart."""
    monkeypatch.setattr(run_folder, "_asked", itertools.repeat(0))
    whole = run_folder._job_key(None)

    def absent(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", absent)
    keys = {run_folder._job_key(None) for _ in range(2)}
    assert len(keys) == 1
    assert keys != {whole}


@pytest.mark.parametrize(
    "code",
    ["None", "0", "3", "-3", "300", "256", "True", "2**70", "-2**70", "0.0", "''"],
)
def test_an_exit_has_the_status_of_its_process(code: str) -> None:
    """0 to 255, whatever a script asks for."""
    command = [sys.executable, "-S", "-c", f"import sys; sys.exit({code})"]
    status = subprocess.run(command, check=False, capture_output=True).returncode
    asked: object = -(2**70) if code == "-2**70" else 2**70
    if "**" not in code:
        asked = ast.literal_eval(code)
    ended = run_folder.how_it_ended(SystemExit(asked))

    assert run_folder.exit_status(asked) == status
    assert ended == (f"exit: {status}" if status else "done")


class Mute(Exception):
    """It cannot say itself."""

    def __str__(self) -> str:
        raise OSError("no text")


def test_an_error_without_words_is_named_by_its_class() -> None:
    """Of the script's own, which fails where it is asked."""
    assert run_folder.how_it_ended(Mute()) == "exception: Mute: "
    assert run_folder.how_it_ended(SystemExit(Mute())) == "exit: 1"


def _as_another(error: BaseException) -> type[BaseException]:
    return SystemExit


Poses = type("Poses", (Exception,), {"__class__": property(_as_another)})
"""It says that it is of another class, as a mock does."""


@pytest.mark.parametrize("error", [GeneratorExit("left"), Poses("left")])
def test_an_error_is_what_its_process_takes_it_for(error: BaseException) -> None:
    """Python prints these as any other, and ends with status 1."""
    ended = run_folder.how_it_ended(error)

    assert ended == f"exception: {type(error).__name__}: left"


def test_a_pipe_in_a_runs_place_is_not_waited_for(here: Path) -> None:
    """Neither as its header, nor as the note by which ranks agree."""
    (here / "run").mkdir()
    os.mkfifo(here / "run" / "run.json")
    with pytest.raises(UsageError, match="holds another run already"):
        run_folder.new_location(here / "run", "train.py")
    with pytest.raises(OSError, match="is a pipe: expected a file"):
        run_folder.text_of(here / "run" / "run.json")
