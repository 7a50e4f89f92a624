"""`run --live`: a dashboard beside the training, which never knows of it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("torch", reason="records runs")

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.cli.processes import live
from fsdpdoctor.finding import NotJudged
from fsdpdoctor.report import report_of
from fsdpdoctor.report.value import StoppedRank
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.in_progress import report_so_far, still_going
from fsdpdoctor_dashboard.server.presence import FAREWELL_S
from tests.dashboard.synthetic import Shape, write_run
from tests.rig.changed import replace
from tests.rig.ranks import TRAIN, Started, run_python, start

pytestmark = pytest.mark.ranks

RUN = ("-m", "fsdpdoctor", "run", "--live", "--no-report")
PATIENCE_S = 90.0
"""Two Python processes start and import on a machine that is busy."""

WAITING = """
import pathlib, sys, time
print("training")
stop = pathlib.Path(sys.argv[1])
while not stop.exists():
    time.sleep(0.05)
"""


def _until(true: Callable[[], object], what: str) -> object:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


def _said(started: Started) -> str:
    """What a process has written to stderr so far."""
    return os.pread(started.stderr.fileno(), 1 << 20, 0).decode()


def _url(started: Started) -> str:
    def found() -> re.Match[str] | None:
        assert started.process.poll() is None, _said(started)
        return re.search(r"live at (\S+) until", _said(started))

    match = _until(found, f"an address on stderr: {_said(started)}")
    assert isinstance(match, re.Match)
    address: str = match[1]
    return address


def _page(url: str) -> tuple[Callable[[str], str], Callable[[], None]]:
    """A browser that was let in: asks for a path, and says that it leaves."""
    jar = urllib.request.HTTPCookieProcessor(CookieJar())
    browser = urllib.request.build_opener(jar)
    browser.open(url, timeout=30).close()
    base = url.split("?")[0]

    def ask(path: str) -> str:
        with browser.open(base + path, timeout=30) as answer:
            content: bytes = answer.read()
            return content.decode()

    def leave() -> None:
        browser.open(base + "left", data=b"", timeout=30).close()

    return ask, leave


def _asked(url: str) -> Callable[[str], str]:
    """The first of them."""
    return _page(url)[0]


def _fails(ask: Callable[[str], str]) -> bool:
    try:
        ask("api/revision?run=run")
    except OSError:
        return True
    return False


def _gone(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as answer:
        answer.close()
        return False
    except OSError:
        return True
    return False


@pytest.mark.slow
def test_a_training_is_followed_and_then_left_alone(tmp_path: Path) -> None:
    """Steps appear while ranks go on; at the end stderr says how to look again."""
    folder = tmp_path / "run"
    started = start(
        (
            sys.executable,
            *("-m", "fsdpdoctor", "run", "--nproc-per-node", "2", "--live"),
            *("--no-report", "--out", str(folder), str(TRAIN)),
            *("--steps", "12", "--fault", "slow-rank", "--sleep-ms", "250"),
        ),
        {},
    )
    url = _url(started)
    ask = _asked(url)
    _until(lambda: '"live":true' in ask("api/revision?run=run"), "it is read")
    first = ask("api/revision?run=run")
    _until(lambda: ask("api/revision?run=run") != first, "more steps are seen")
    finished = started.finished().ok()

    words = finished.stderr.splitlines()
    assert sum("live at" in line for line in words) == 1
    assert f"again with: fsdpdoctor view {folder}" in finished.stderr
    _until(lambda: _gone(url), "the dashboard ends")


@pytest.mark.slow
def test_under_torchrun_one_rank_starts_it(tmp_path: Path) -> None:
    """Every rank is asked for a live view; only the first of them gives one."""
    stop = tmp_path / "stop"
    script = tmp_path / "wait.py"
    script.write_text(WAITING)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    out = ("--out", str(tmp_path / "run"))
    command = (sys.executable, *launcher, *RUN, *out, str(script), str(stop))
    started = start(command, {})
    url = _url(started)
    stop.touch()
    finished = started.finished().ok()

    assert finished.stdout == "training\n" * 2
    assert finished.stderr.count("live at") == 1
    assert finished.stderr.count("again with: fsdpdoctor view") == 1
    _until(lambda: _gone(url), "the dashboard ends")


@pytest.mark.slow
def test_who_looks_is_answered_after_the_end(tmp_path: Path) -> None:
    """A page that asks is told for how long; when it is left, the dashboard ends."""
    stop = tmp_path / "stop"
    script = tmp_path / "wait.py"
    script.write_text(WAITING)
    command = (sys.executable, *RUN, "--out", str(tmp_path / "run"), str(script))
    started = start((*command, str(stop)), {})
    ask, leave = _page(_url(started))
    assert json.loads(ask("alive")) == {"left_s": None}
    stop.touch()
    finished = started.finished().ok()
    ended = time.monotonic()

    assert "stays while its page is open, at most 30 min" in finished.stderr
    while time.monotonic() - ended < FAREWELL_S + 3:
        left = json.loads(ask("alive"))["left_s"]
        time.sleep(1)
    assert 0 < left < 30 * 60
    leave()
    _until(lambda: _fails(ask), "the dashboard ends")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_it_ends_however_the_training_ends(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A rank that is killed says nothing any more, and its dashboard ends, too."""
    script = tmp_path / "wait.py"
    script.write_text(WAITING)
    out = ("--out", str(tmp_path / "run"))
    command = (sys.executable, *RUN, *out, str(script), str(tmp_path / "never"))
    started = start(command, {})
    url = _url(started)
    started.process.send_signal(number)
    began = time.monotonic()
    finished = started.finished()

    # Nobody waits for the dashboard: it holds none of the training's streams.
    assert time.monotonic() - began < FAREWELL_S
    assert finished.status == -number
    _until(lambda: _gone(url), "the dashboard ends")


def test_it_serves_a_record_until_nobody_holds_the_pipe(tmp_path: Path) -> None:
    """The process beside a training, alone: an address, answers, and its end."""
    folder = write_run(tmp_path / "run", Shape(ranks=1, layers=2, steps=6))
    theirs, ours = os.pipe()
    module = (sys.executable, "-m", "fsdpdoctor.cli.processes.live")
    with subprocess.Popen(
        (*module, str(folder), str(theirs)),
        pass_fds=(theirs,),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(theirs)
        assert process.stderr is not None
        words = process.stderr.read()  # it lets go of the stream, and goes on
        address = re.search(r"live at (\S+) until the training ends\n", words)
        assert address, words
        ask, leave = _page(address[1])
        assert json.loads(ask("alive")) == {"left_s": None}
        os.close(ours)
        leave()
        assert process.wait(PATIENCE_S) == 0
    assert "from another machine: ssh" in words


def test_what_cannot_be_started_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No process can be had: the training goes on, and nothing has to be closed."""

    def none_left(*_: object) -> None:
        raise OSError("no process is left")

    monkeypatch.setattr(live, "Beside", none_left)
    live.LiveView(tmp_path).close()

    said = "no live view: it could not be started (no process is left)"
    assert capsys.readouterr().err == f"fsdpdoctor: {said}\n"


def test_without_the_extra_the_training_goes_on(tmp_path: Path) -> None:
    """One line says what is missing; status and output are the script's."""
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['dash'] = None\n"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}

    finished = run_python(*RUN, "--out", str(tmp_path / "r"), str(script), env=env)

    assert (finished.status, finished.stdout) == (0, "trained\n")
    assert finished.stderr == (
        "fsdpdoctor: no live view: the dashboard needs dash: pip install "
        "'fsdpdoctor[dashboard]'; the training goes on without it\n"
    )


def test_a_script_has_no_child_it_did_not_start(tmp_path: Path) -> None:
    """Who waits for its children is not kept waiting by a dashboard."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "try:\n"
        "    print(os.waitpid(-1, 0))\n"
        "except ChildProcessError:\n"
        "    print('no children')\n"
        "print('RANK' in os.environ)\n"
    )

    finished = run_python(*RUN, "--out", str(tmp_path / "r"), str(script))

    assert (finished.status, finished.stdout) == (0, "no children\nFalse\n")


def _measured(folder: Path, pid: int, host: str) -> Measures:
    """A run of one rank that has not ended, in a process of that number."""
    for header in write_run(folder, Shape(ranks=1, layers=2, steps=6)).glob(
        "rank*.json"
    ):
        text = header.read_text()
        text = re.sub(r'"ended": ?"done"', '"ended": "running"', text)
        text = re.sub(r'"pid": ?-?\d+', f'"pid": {pid}', text)
        header.write_text(re.sub(r'"host": ?(null|"[^"]*")', f'"host": "{host}"', text))
    return measure(open_run(folder))


def test_going_is_seen_from_the_processes_of_this_host(tmp_path: Path) -> None:
    """A process that lives goes on; one that is gone, or elsewhere, is not known to."""
    here = socket.gethostname()
    gone = 2**22 + 1  # above the highest number that Linux gives

    assert still_going(_measured(tmp_path / "a", os.getpid(), here))
    assert not still_going(_measured(tmp_path / "b", gone, here))
    assert not still_going(_measured(tmp_path / "c", os.getpid(), "elsewhere"))


def test_a_run_in_progress_has_no_rank_that_stopped(tmp_path: Path) -> None:
    """What only the end can show is not judged, and no rank is said to have ended."""
    shape = Shape(ranks=2, layers=4, steps=6, gather_us=500)
    plain = report_of(measure(open_run(write_run(tmp_path / "run", shape))))
    stopped = StoppedRank(
        rank=1,
        ended="running",
        step=3,
        micro_batch=0,
        unit=None,
        phase="forward",
        doing=None,
        group=None,
        seq=None,
    )
    divergence = replace(plain.findings[0], code="FD406", name="spmd-divergence")
    report = replace(
        plain,
        findings=(divergence, *plain.findings),
        health=replace(plain.health, stopped=(stopped,), missing_ranks=(2,)),
    )

    reason = "the run is still going: it is judged when all ranks have ended"
    early = NotJudged(code="FD406", name="spmd-divergence", needs=(), reason=reason)
    assert report_so_far(report) == replace(
        plain, not_judged=(*plain.not_judged, early)
    )
