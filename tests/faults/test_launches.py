"""Ways to start a training, and to record it twice, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fsdpdoctor.run import open_run
from tests.faults.jobs import (
    GLOO_ABORTS,
    SCRIPTS,
    TRAIN,
    Ended,
    last_whole,
    losses_in,
    note,
    python,
    recorder,
)
from tests.rig.ranks import run_python, run_torchrun

pytestmark = [pytest.mark.faults, pytest.mark.ranks]


RENDEZVOUS = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")


def restarted(folder: Path, *, recorded: bool) -> Ended:
    """A job whose ranks a launcher starts again, under `run` in the folder or not."""
    folder.mkdir()
    training = ("--max-restarts", "1", TRAIN, "elastic", str(folder))
    if recorded:
        options = (*recorder(folder / "run"), "--nproc-per-node", "2")
        done = run_python(*options, *RENDEZVOUS, *training)
    else:
        done = run_torchrun(2, *training)
    return Ended(
        status=(done.status,),
        stdout=tuple(sorted(done.stdout.splitlines())),
        losses=tuple(losses_in(folder)),
        stderr=done.stderr,
    )


def test_a_launcher_restarts_the_ranks(tmp_path: Path) -> None:
    """Both attempts have a record, each with its end."""
    for at in range(3):  # a rank of either may end of gloo's own fault
        plain = restarted(tmp_path / f"plain-{at}", recorded=False)
        folder = tmp_path / f"recorded-{at}"
        ours = restarted(folder, recorded=True)
        if GLOO_ABORTS not in plain.stderr + ours.stderr:
            break
    first = list(open_run(folder / "run").load())
    second = list(open_run(folder / "run-restart1").load())
    ended = [rank.header.ended[:30] for rank in (*first, *second)]
    note("elastic restart", plain, ours, "; ".join(ended), last_whole(second[0]))

    assert ours.trained == plain.trained, (plain.stderr + ours.stderr)[-9000:]
    assert first[1].header.ended == "exception: ValueError: staged"
    assert [rank.header.ended for rank in second] == ["done", "done"]
    assert [last_whole(rank) for rank in second] == [17, 17]


SPAWNS = """
import os, time, torch.multiprocessing as mp
def work(rank):
    begun = time.process_time()
    while time.process_time() < begun + 1:
        pass
    print("trained", rank, flush=True)
if __name__ == "__main__":
    mp.spawn(work, nprocs=1)
"""


def test_ranks_that_the_script_spawns_are_named(tmp_path: Path) -> None:
    """They are not recorded, which one line says, and the record."""
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    plain = python(str(script), cwd=tmp_path)
    ours = python(*recorder(tmp_path / "run"), str(script), cwd=tmp_path)
    (rank,) = open_run(tmp_path / "run").load()
    note("mp.spawn", plain, ours, rank.header.ended, "not recorded, and said")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    said = "nothing was trained in this process, and its child processes are not"
    assert ours.stderr.count(said) == 1
    assert rank.header.warnings[0].startswith(said)


def test_a_run_within_a_run_is_one_record(tmp_path: Path) -> None:
    """One record and one report, and the script's own end."""
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, sys.argv[1:])\nsys.exit(5)\n")
    plain = python(str(script), "x", cwd=tmp_path)
    outer = ("-m", "fsdpdoctor", "run", "--out", "outer")
    inner = ("-m", "fsdpdoctor", "run", "--out", "inner")
    ours = python(*outer, *inner, str(script), "x", cwd=tmp_path)
    note("run within run", plain, ours, "exit: 5", "")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert not (tmp_path / "inner").exists()
    assert open_run(tmp_path / "outer").sources[0].load().header.ended == "exit: 5"
    assert ours.stderr.count("fsdpdoctor: recorded in outer") == 1
    assert "recorded in inner" not in ours.stderr


SECOND = """
import subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
print(done.returncode, done.stdout, done.stderr.count("training goes on"))
"""


def test_two_processes_of_one_rank_have_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one leaves the files of the first as they are."""
    script, inner = tmp_path / "outer.py", tmp_path / "inner.py"
    script.write_text(SECOND)
    inner.write_text("print('inner')\n")
    run = {"folder": str(tmp_path / "run"), "run_id": "one"}
    monkeypatch.setenv("FSDPDOCTOR_RUN", json.dumps(run))
    again = (sys.executable, "-m", "fsdpdoctor", "run", "--no-report", str(inner))
    ours = python("-m", "fsdpdoctor", "run", str(script), *again, cwd=tmp_path)

    assert (ours.status, ours.stdout) == ((0,), ("0 inner\n 1\n",))
    assert open_run(tmp_path / "run").sources[0].load().header.ended == "done"


def test_a_removed_folder_is_not_named(tmp_path: Path) -> None:
    """The closing line never names a record that is not there."""
    script = tmp_path / "script.py"
    script.write_text("import shutil\nshutil.rmtree('run')\nprint('fine')\n")
    plain = Ended(status=(0,), stdout=("fine\n",), losses=())
    ours = python("-m", "fsdpdoctor", "run", "--out", "run", str(script), cwd=tmp_path)
    note("folder removed", plain, ours, "", "")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert "again with" not in ours.stderr
    assert "nothing is recorded in run" in ours.stderr


SELF = """
import os, sys
print(sys.flags.optimize, sys.stdin is None or sys.stdin.read(), __debug__)
print(os.environ.get("LANG"), sys.getfilesystemencoding(), __file__)
import warnings
try:
    warnings.warn("mine")
except UserWarning as error:
    print("raised", error)
"""


@pytest.mark.parametrize(
    "flags", [(), ("-O",), ("-OO",), ("-W", "error"), ("-B", "-u"), ("-X", "dev")]
)
def test_the_interpreter_s_flags_hold(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """For the script, and for us."""
    script = tmp_path / "script.py"
    script.write_text(SELF)
    plain = python(*flags, str(script), cwd=tmp_path, stdin=subprocess.DEVNULL)
    options = recorder(tmp_path / "run")
    ours = python(*flags, *options, str(script), cwd=tmp_path, stdin=subprocess.DEVNULL)
    note(f"python {' '.join(flags)}", plain, ours, "", "")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert "is not recorded" not in ours.stderr


NOTEBOOK = """
import fsdpdoctor, os, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
os.environ.update(RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", init_method=f"file://{STORE}", rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
with fsdpdoctor.record(RUN):
    for _ in range(5):
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
print(losses)
"""


def test_a_notebook_records_its_cells(tmp_path: Path) -> None:
    """In a kernel, as Jupyter runs it; a cell that raises ends its own record."""
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    cells = [
        f"STORE, RUN = {str(tmp_path / 'store')!r}, {str(tmp_path / 'run')!r}",
        NOTEBOOK,
        "with fsdpdoctor.record(RUN + '2'):\n    1 / 0",
        "print('alive')",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbclient.NotebookClient(book, timeout=240, allow_errors=True).execute()
    (rank,) = open_run(tmp_path / "run").load()

    assert (rank.header.ended, last_whole(rank)) == ("done", 4)
    assert [unit.numel for unit in rank.header.units] == [20]
    assert book.cells[3].outputs[0].text == "alive\n"
    ended = open_run(tmp_path / "run2").sources[0].load().header.ended
    assert ended == "exception: ZeroDivisionError: division by zero"


def test_scripts_lie_where_the_table_looks() -> None:
    """A script that is not found would fail both ways, and be equal."""
    assert all((SCRIPTS / name).is_file() for name in ("train.py", "alone.py"))
