"""Runs to look at, a server that shows them, and a browser."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from fsdpdoctor_dashboard.data.run_registry import Library
    from tests.dashboard.client import Client
    from tests.dashboard.visits import Visit

from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from tests.dashboard.synthetic import Shape, write_run
from tests.rig.ranks import hear_interrupts

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OTHER_TREE = os.environ.get("FSDPDOCTOR_OTHER_TREE", "")
"""A work tree of another commit, whose server is looked at instead of this one's, on
runs that it wrote itself: see tests/benchmarks/reviewed.py."""
HOSTILE = (
    "<script>window.hacked=1</script>",
    "\"'><img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>{}",
    "\u202egnp.exe\u2066",
    "layers." + "x" * 10_000,
    "=cmd|' /C calc'!A0",
)
"""Names of units that try to be something else than a name."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A dashboard that is up."""

    base: str
    token: str
    pid: int = 0

    @property
    def resident_mb(self) -> float:
        """Memory of the server's process, its mapped files included."""
        return self._status_mb("VmRSS")

    @property
    def own_mb(self) -> float:
        """The same without mapped files, which the system may drop at any time."""
        return self._status_mb("RssAnon")

    def _status_mb(self, name: str) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(s.split()[1]) / 1024 for s in status if s.startswith(name))

    @property
    def url(self) -> str:
        """The address that admits."""
        return f"{self.base}?token={self.token}"


def _environment() -> dict[str, str]:
    if not OTHER_TREE:
        return dict(os.environ)
    path = os.pathsep.join([OTHER_TREE, str(Path(OTHER_TREE) / "dashboard")])
    return os.environ | {"PYTHONPATH": path}


WRITE = """
import json, sys
from pathlib import Path
from tests.dashboard.synthetic import Shape, write_run
write_run(Path(sys.argv[1]), Shape(**json.loads(sys.argv[2])))
"""


def written(path: Path, shape: Shape) -> Path:
    """A run, written by the tree whose server will show it."""
    if not OTHER_TREE:
        return write_run(path, shape)
    fields = json.dumps(
        {f.name: getattr(shape, f.name) for f in dataclasses.fields(shape)}
    )
    command = [sys.executable, "-c", WRITE, str(path), fields]
    subprocess.run(command, check=True, env=_environment(), cwd=OTHER_TREE)
    return path


@contextmanager
def serve_runs(*paths: Path) -> Iterator[Served]:
    """`fsdpdoctor view` in a process of its own, stopped with Ctrl+C at the end."""
    for package in ("dash", "cheroot"):
        pytest.importorskip(package, reason="needs fsdpdoctor[dashboard]")
    command = [sys.executable, "-m", "fsdpdoctor", "view", "--port", "0"]
    process = subprocess.Popen(
        [*command, *map(str, paths)],
        stdout=subprocess.PIPE,
        text=True,
        # Neither name counts.
        env=_environment() | {"HOST": "0.0.0.0", "DASH_DEBUG": "true"},
        cwd=OTHER_TREE or None,
        preexec_fn=hear_interrupts,
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    base, token = url.split("?token=")
    try:
        yield Served(base=base, token=token, pid=process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(timeout=30)
        process.stdout.close()
        assert status == 0


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of the tests' own, which the servers that they start share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs by name: two alike, a wide one, one with hostile names."""
    root = tmp_path_factory.mktemp("runs")
    return {
        "before": written(root / "before", Shape(ranks=4, layers=8, steps=6)),
        "after": written(
            root / "after", Shape(ranks=4, layers=8, steps=6, gather_us=500)
        ),
        "wide": written(root / "wide", Shape(ranks=64, layers=4, steps=4, kernels=2)),
        "hostile": written(
            root / "hostile",
            Shape(ranks=2, layers=len(HOSTILE), steps=4, names=HOSTILE),
        ),
    }


@pytest.fixture(scope="session")
def served(runs: dict[str, Path]) -> Iterator[Served]:
    """All of them on one server."""
    with serve_runs(*runs.values()) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, headless."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright, and Chromium"
    )
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"needs {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def visit(browser: Browser, served: Served) -> Iterator[Visit]:
    """An admitted browser; at the end nothing may have gone wrong."""
    from tests.dashboard.visits import visiting

    with visiting(browser, served) as found:
        yield found


@pytest.fixture(scope="module")
def library(runs: dict[str, Path]) -> Library:
    """Two runs, read."""
    from fsdpdoctor.run import open_run
    from fsdpdoctor_dashboard.data.run_registry import Library

    found = Library([runs["before"], runs["after"]], open_run)
    found.wait("before")
    return found


@pytest.fixture
def admitted(library: Library) -> Client:
    """A client with the cookie."""
    from tests.dashboard.client import Client

    client = Client(library)
    assert client.get("/?token=secret")[0] == 303
    return client
