"""What a training is started in: streams, limits, environment, working directory and
names of files, all of which are there before the first line of ours.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdpdoctor.run import RankData, open_run
from tests.faults.jobs import ROOT, SCRIPTS, Ended, last_whole, note, recorder

pytestmark = [pytest.mark.faults, pytest.mark.ranks]

LAST = 13
SHELL = {
    "stderr closed": 'exec "$@" 2>&-',
    "no streams": 'exec "$@" <&- >&- 2>&-',
    "few descriptors": 'ulimit -n 24; exec "$@"',
    "small files": 'ulimit -f 48; exec "$@"',
    "no new session": 'trap "" HUP; exec setsid -w "$@"',
    "working directory sealed": 'mkdir sealed; cd sealed; chmod 500 .; exec "$@"',
    "hardly an environment": 'exec env -i PYTHONPATH="$PYTHONPATH" "$@"',
    "odd environment": "export HOME=/no/such TMPDIR=/no/such LC_ALL=C PYTHONUTF8=0 "
    "PYTHONIOENCODING=ascii:strict TERM= COLUMNS=x LINES=-1 TZ=Nowhere/No "
    'PYTHONCOERCECLOCALE=0; exec "$@"',
    "rank's variables odd": "export RANK=x WORLD_SIZE= LOCAL_RANK=-7 "
    'LOCAL_WORLD_SIZE=1e9; exec "$@"',
    "safe path": 'export PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1; exec "$@"',
    "optimized": 'export PYTHONOPTIMIZE=2; exec "$@"',
    "for debugging": "export PYTHONDEVMODE=1 PYTHONTRACEMALLOC=2 PYTHONHASHSEED=0 "
    'PYTHONMALLOC=debug; exec "$@"',
}
"""How each is started: the command is "$@"."""

ENDED = {
    "no streams": ("exception: AttributeError", LAST),  # the script's own, plain too
    "small files": ("detached: OSError", 0),
}
"""How the record ends, and its last whole step, where that is not as planned."""


def started(shell: str, script: Path, folder: Path, *before: str) -> Ended:
    """Train alone, by a shell's words."""
    folder.mkdir()
    losses = folder / "losses"
    done = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, *before, script, "none", losses],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )
    return Ended(
        status=(done.returncode,),
        stdout=(done.stdout,),
        losses=(losses.read_text() if losses.exists() else "",),
        stderr=done.stderr,
    )


def both(
    name: str, script: Path, folder: Path, shell: str = 'exec "$@"'
) -> tuple[Ended, Ended, RankData]:
    """Trained without us and with us, and what was recorded; it is noted by a name."""
    run = folder / "run"
    plain = started(shell, script, folder / "plain")
    ours = started(shell, script, folder / "ours", *recorder(run))
    (rank,) = open_run(run).load()
    note(name, plain, ours, rank.header.ended[:40], last_whole(rank))
    return plain, ours, rank


@pytest.mark.parametrize("name", SHELL)
def test_trains_as_without_us(name: str, tmp_path: Path) -> None:
    """To the bit, with the same output and status; the record is whole."""
    script = SCRIPTS / "alone.py"
    plain, ours, rank = both(f"started: {name}", script, tmp_path, SHELL[name])
    ended, least = ENDED.get(name, ("done", LAST))

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert plain.losses[0].count("\n") == LAST + 1, plain.stderr[-3000:]
    assert rank.header.ended.startswith(ended)
    assert last_whole(rank) >= least


NAMES = (
    *("nanoarrow", "msgspec", "click", "rich", "isal"),
    *("schema", "recorder", "redact"),
)


def test_files_of_the_script_s_own_have_names_that_we_import(tmp_path: Path) -> None:
    """Beside the script, and first on its path: they are run by nobody but it."""
    script = tmp_path / "recorder.py"
    shutil.copy(SCRIPTS / "alone.py", script)
    for name in NAMES:
        if name != "recorder":
            (tmp_path / f"{name}.py").write_text("print('mine', flush=True)\n1 / 0\n")
    plain, ours, rank = both("names that we import", script, tmp_path)

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert plain.losses[0].count("\n") == LAST + 1, plain.stderr[-3000:]
    assert (rank.header.ended, last_whole(rank)) == ("done", LAST)


SETS_FIRST = """
import os
os.environ["OMP_NUM_THREADS"] = "2"
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
import torch
print(torch.get_num_threads(), torch.distributed.get_debug_level(), flush=True)
import runpy
runpy.run_module("tests.faults.alone", run_name="__main__")
"""


def test_variables_that_the_script_sets_before_it_imports_torch(tmp_path: Path) -> None:
    """Torch reads them then, and never again."""
    script = tmp_path / "early.py"
    script.write_text(SETS_FIRST)
    plain, ours, rank = both("variables set first", script, tmp_path)

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert "DETAIL" in plain.stdout[0]
    assert (rank.header.ended, last_whole(rank)) == ("done", LAST)
