"""A script runs under `fsdpdoctor run` as it would without it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipapp
from pathlib import Path

import pytest

from fsdpdoctor.run import open_run
from tests.rig.ranks import ROOT, Finished, run_python, run_torchrun, start

RUN = ("-m", "fsdpdoctor", "run", "--no-report")


def write(folder: Path, text: str, name: str = "script.py") -> str:
    """A script's path."""
    path = folder / name
    path.write_text(text)
    return str(path)


def both(tmp_path: Path, text: str, *args: str) -> tuple[Finished, Finished]:
    """How a script ends without us, and with us."""
    script = write(tmp_path, text)
    out = ("--out", str(tmp_path / "run"))
    return run_python(script, *args), run_python(*RUN, *out, script, *args)


def ended(tmp_path: Path) -> str:
    """What the record says of the end."""
    return open_run(tmp_path / "run").sources[0].load().header.ended


def test_the_script_sees_what_it_would_see(tmp_path: Path) -> None:
    """Its name, arguments, path, module, file; and its output is its own."""
    plain, recorded = both(
        tmp_path,
        "import sys, __main__, pickle\n"
        "class A: pass\n"
        "print(__name__, sys.argv, sys.path[0], __file__, __main__.A is A)\n"
        "print(type(pickle.loads(pickle.dumps(A()))) is A, __builtins__)\n",
        "--lr",
        "1",
        "-m",
        "--",
        "x",
    )

    assert (recorded.status, recorded.stdout) == (plain.status, plain.stdout)
    assert recorded.stderr == ""
    assert ended(tmp_path) == "done"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_workers_give_back_objects_of_the_script_s_classes(
    tmp_path: Path, method: str
) -> None:
    """A spawned worker knows the script as `__mp_main__`, as does what it returns."""
    plain, recorded = both(
        tmp_path,
        "import multiprocessing, sys\n"
        "class Item:\n"
        "    def __init__(self, value): self.value = value\n"
        "def double(item): return Item(2 * item.value)\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:\n"
        "        found = pool.map_async(double, [Item(3)]).get(60)\n"
        "    print([type(item) is Item and item.value for item in found])\n",
        method,
    )

    assert (plain.status, plain.stdout) == (0, "[6]\n")
    assert (recorded.status, recorded.stdout) == (plain.status, plain.stdout)


@pytest.mark.parametrize("as_module", [False, True])
def test_a_script_has_modules_of_our_names(tmp_path: Path, as_module: bool) -> None:
    """What we import is not found in its folder, and it finds its own."""
    write(tmp_path, "MINE = 'my click'\n", "click.py")
    write(tmp_path, "raise SystemExit(77)\n", "nanoarrow.py")
    (tmp_path / "rich").mkdir()
    write(tmp_path / "rich", "MINE = 'my rich'\n", "__init__.py")
    for name in ("shlex", "statistics", "profile"):  # a library of Python's as well
        write(tmp_path, f"MINE = 'my {name}'\n", f"{name}.py")
    train = (
        "import click, rich, shlex, statistics, profile\n"
        "print(click.MINE, rich.MINE, shlex.MINE, statistics.MINE, profile.MINE)\n"
    )
    write(tmp_path, train, "train.py")
    argv = ("-m", "train") if as_module else ("train.py",)
    recorded = subprocess.run(
        (sys.executable, *RUN, "--out", "run", *argv),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    told = "my click my rich my shlex my statistics my profile\n"
    assert (recorded.returncode, recorded.stdout) == (0, told)
    assert (recorded.stderr, ended(tmp_path)) == ("", "done")


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    """A package's __main__, its own arguments, relative imports."""
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("WORD = 'hello'\n")
    text = (
        "import sys\nfrom .words import WORD\n"
        "print(WORD, __name__, __package__, __spec__.name, sys.argv[1:])\n"
    )
    write(package, text, "__main__.py")
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"}
    out = ("--out", str(tmp_path / "run"))

    plain = run_python("-m", "trainer", "-v", env=env)
    recorded = run_python(*RUN, *out, "-m", "trainer", "-v", env=env)

    assert plain.ok().stdout == "hello __main__ trainer trainer.__main__ ['-v']\n"
    assert (recorded.status, recorded.stdout) == (plain.status, plain.stdout)


SELF = """
import atexit, sys
import words
atexit.register(lambda: print(globals().get("__file__")))
frame = sys._getframe()
print(__file__, frame.f_code.co_filename, sys.argv, sys.path[0], words.WORD)
print(__spec__, __package__, __cached__, type(__loader__), sorted(globals()))
"""


@pytest.mark.parametrize("name", ["script.py", "./script.py"])
def test_a_script_knows_itself_by_a_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It may leave the working directory; what Python sets in `__main__`, we set."""
    write(tmp_path, "WORD = 'hello'\n", "words.py")
    write(tmp_path, SELF)
    monkeypatch.chdir(tmp_path)

    plain = run_python(name)
    recorded = run_python(*RUN, "--out", "run", name)

    assert str(tmp_path) in plain.stdout
    assert (recorded.status, recorded.stdout) == (plain.status, plain.stdout)


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_or_zip_file_runs_as_with_python(tmp_path: Path, packed: bool) -> None:
    """As `python app.pyz` does, with what is in it."""
    app = tmp_path / "app"
    app.mkdir()
    write(app, "WORD = 'hello'\n", "words.py")
    text = "import sys, words\nprint(__file__, __package__, sys.argv, sys.path[0])\n"
    write(app, text, "__main__.py")
    target = app
    if packed:
        target = tmp_path / "app.pyz"
        zipapp.create_archive(app, target)

    plain = run_python(str(target), "x")
    recorded = run_python(*RUN, "--out", str(tmp_path / "run"), str(target), "x")

    assert (recorded.status, recorded.stdout) == (plain.status, plain.stdout)
    assert str(target) in plain.stdout


def test_a_folder_without_a_main_is_no_script(tmp_path: Path) -> None:
    """One line says so, and nothing is run."""
    out = ("--out", str(tmp_path / "run"))
    recorded = run_python(*RUN, *out, str(tmp_path))

    assert recorded.status == 2
    assert recorded.stderr == f"Error: cannot run {tmp_path}: it holds no __main__.py\n"


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("import sys; sys.exit(3)", 3, "exit: 3"),
        ("import sys; sys.exit('no')", 1, "exit: 1"),
        ("import sys; sys.exit()", 0, "done"),
        ("raise ValueError('broken')", 1, "exception: ValueError: broken"),
        ("raise EOFError", 1, "exception: EOFError: "),
        ("raise BrokenPipeError('x')", 1, "exception: BrokenPipeError: x"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "signal: SIGINT"),
        ("def f(:", 1, ""),
    ],
)
def test_ends_as_the_script_ends(
    tmp_path: Path, text: str, status: int, said: str
) -> None:
    """The same status and, to the letter, the same traceback."""
    plain, recorded = both(tmp_path, f"import os\n{text}\n")

    assert (plain.status, recorded.status) == (status, status)
    assert recorded.stderr == plain.stderr
    if said:
        assert ended(tmp_path) == said


def test_a_traceback_starts_at_the_script(tmp_path: Path) -> None:
    """Chained exceptions of nested calls read as without us."""
    plain, recorded = both(
        tmp_path,
        "def f():\n"
        "    try:\n"
        "        1 / 0\n"
        "    except ZeroDivisionError as error:\n"
        "        raise RuntimeError('outer') from error\n"
        "f()\n",
    )

    assert recorded.stderr == plain.stderr
    assert "fsdpdoctor" not in recorded.stderr


WAITING = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_as_before(tmp_path: Path, number: signal.Signals) -> None:
    """The process dies of the signal, and the record says so where it can."""
    script = write(tmp_path, WAITING)
    ready = tmp_path / "ready"
    out = ("--out", str(tmp_path / "run"))
    started = start((sys.executable, *RUN, *out, script, str(ready)), {})
    deadline = time.monotonic() + 120
    while not ready.exists():
        assert time.monotonic() < deadline, started.finished().stderr
        time.sleep(0.05)

    started.process.send_signal(number)
    finished = started.finished()

    assert finished.status == -number
    expected = "running" if number == signal.SIGKILL else f"signal: {number.name}"
    assert ended(tmp_path) == expected


def test_sigterm_does_not_wait_for_a_call_that_never_returns(tmp_path: Path) -> None:
    """A rank may hang in a collective: the main thread runs no handler then."""
    text = (
        "import ctypes, pathlib, sys\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "ctypes.CDLL(None).sleep(600)\n"
        "ctypes.CDLL(None).sleep(600)\n"
    )
    script, ready = write(tmp_path, text), tmp_path / "ready"
    out = ("--out", str(tmp_path / "run"))
    started = start((sys.executable, *RUN, *out, script, str(ready)), {})
    deadline = time.monotonic() + 120
    while not ready.exists():
        assert time.monotonic() < deadline, started.finished().stderr
        time.sleep(0.05)
    time.sleep(0.2)

    started.process.send_signal(signal.SIGTERM)

    assert started.finished().status == -signal.SIGTERM
    assert ended(tmp_path) == "signal: SIGTERM"


def test_an_event_loop_s_wake_up_descriptor_is_its_own(tmp_path: Path) -> None:
    """It is told that nobody had one; while it has it SIGTERM acts as without us, and
    is noted again once it has given it back.
    """
    text = (
        "import ctypes, os, signal, sys\n"
        "read, write = os.pipe()\n"
        "os.set_blocking(write, False)\n"
        "print(signal.set_wakeup_fd(write), signal.getsignal(signal.SIGTERM).name)\n"
        "if sys.argv[1] == 'given':\n"
        "    print(signal.set_wakeup_fd(-1) == write)\n"
        "sys.stdout.flush()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "ctypes.CDLL(None).sleep(600)\n"
        "ctypes.CDLL(None).sleep(600)\n"
    )
    kept_plain, kept = both(tmp_path, text, "kept")
    said_kept = ended(tmp_path)
    shutil.rmtree(tmp_path / "run")
    plain, given = both(tmp_path, text, "given")

    assert (kept.status, kept.stdout) == (-signal.SIGTERM, kept_plain.stdout)
    assert (given.status, given.stdout) == (-signal.SIGTERM, plain.stdout)
    assert (said_kept, ended(tmp_path)) == ("running", "signal: SIGTERM")


def test_the_user_s_own_handler_is_left_alone(tmp_path: Path) -> None:
    """It runs, and the process goes on as it says."""
    _, recorded = both(
        tmp_path,
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('mine'))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(0.2)\n"
        "print('after')\n",
    )

    assert (recorded.status, recorded.stdout) == (0, "mine\nafter\n")


@pytest.mark.ranks
def test_starts_torchrun_and_passes_its_status_on(tmp_path: Path) -> None:
    """Two ranks in one folder; a rank's failure is the command's."""
    script = write(
        tmp_path,
        "import os, sys\nprint('rank', os.environ['RANK'])\n"
        "sys.exit(int(sys.argv[1]))\n",
    )
    run = (*RUN, "--nproc-per-node", "2", "--out")

    good = run_python(*run, str(tmp_path / "good"), script, "0")
    bad = run_python(*run, str(tmp_path / "bad"), script, "7")

    assert sorted(good.ok().stdout.split("\n")) == ["", "rank 0", "rank 1"]
    assert open_run(tmp_path / "good").ranks == (0, 1)
    assert bad.status == 1  # torchrun's own
    assert "exitcode  : 7" in bad.stderr


@pytest.mark.ranks
@pytest.mark.parametrize(
    "command",
    [("-m", "fsdpdoctor"), ("--no-python", sys.executable, "-m", "fsdpdoctor")],
)
def test_ranks_of_torchrun_agree_on_a_folder(
    tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word between them; `latest` leads to it."""
    monkeypatch.chdir(tmp_path)
    script = write(tmp_path, "print('trained')\n", "my train.py")

    for _ in range(2):
        run_torchrun(2, *command, "run", "--no-report", script).ok()

    runs = tmp_path / "fsdpdoctor-runs"
    folders = [p for p in runs.iterdir() if p.is_dir() and not p.is_symlink()]
    assert len(folders) == 2
    assert all(open_run(folder).ranks == (0, 1) for folder in folders)
    assert all(folder.name.startswith("my-train-") for folder in folders)
    assert (runs / "latest").resolve() in folders


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    """Another run's files are never mixed in."""
    script = write(tmp_path, "")
    run = (*RUN, "--out", str(tmp_path / "run"), script)
    run_python(*run).ok()

    again = run_python(*run)

    assert again.status == 2
    assert again.stderr.startswith("Error: ")
    assert "holds another run already: name a new folder with --out" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such.py",), "cannot run no-such.py: No such file"),
        (("-m", "no_such_module"), "cannot run -m no_such_module"),
        (("--steps", "5", "x.py"), "--steps is '5', expected A:B"),
        (("--steps", "5:5", "x.py"), "--steps 5:5 holds no step"),
        (("--every", "0", "x.py"), "--every is 0, expected 1 or more"),
    ],
)
def test_says_in_one_line_what_is_wrong(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """No traceback, status 2, and no folder is left."""
    finished = run_python(*RUN, *arguments)

    assert finished.status == 2
    assert finished.stderr.startswith("Error: ")
    assert said in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_says_how_to_get_torch(tmp_path: Path) -> None:
    """Without torch there is one clear line."""
    blocker = (
        "import importlib.util as u, sys\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'torch' else real(n, *a)\n"
        "sys.argv = ['fsdpdoctor', 'run', 'x.py']\n"
        "from fsdpdoctor.cli import main\n"
        "main()\n"
    )

    finished = run_python(write(tmp_path, blocker))

    assert finished.status == 2
    assert finished.stderr.startswith("Error: recording needs torch")
    assert "pip install torch" in finished.stderr
