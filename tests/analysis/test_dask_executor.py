"""Ranks measured by a dask cluster: the same report, to the nanosecond."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from fsdpdoctor.analysis.dask_executor import AHEAD, cluster_executor
from fsdpdoctor.cli import main
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.run import in_memory, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.version import __version__
from tests.importers.generated import generated_rank

RANKS = 5
CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


def analyze(*args: str | Path) -> Result:
    """Run the command in this process."""
    words = ["analyze", "--no-cache", "--json", *(str(arg) for arg in args)]
    return CliRunner().invoke(main, words)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of two worker processes, in another folder."""
    pytest.importorskip("distributed", reason="dask is of the extra [cluster]")
    script = tmp_path_factory.mktemp("cluster") / "cluster.py"
    script.write_text(CLUSTER)
    with subprocess.Popen(
        [sys.executable, script],
        cwd=script.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five ranks' traces, one of which is damaged."""
    folder = tmp_path_factory.mktemp("traces")
    for rank in range(RANKS):
        data = generated_rank(rank=rank, world_size=RANKS, layers=2)
        path = folder / f"rank{rank}.json"
        write_trace(data, path, TraceOptions(made_from="a test"))
    broken = folder / "rank3.json"
    broken.write_bytes(broken.read_bytes()[:2000])
    return folder


@pytest.mark.ranks
def test_a_cluster_gives_the_same_report(
    scheduler: str, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, damaged ranks included; a relative path is found from workers'
    own folder.
    """
    local = analyze(traces)
    monkeypatch.chdir(traces.parent)
    remote = analyze(traces.name, "--scheduler", scheduler)

    assert local.exit_code == 0
    assert '"world_size": 5' in local.stdout
    assert remote.stdout == local.stdout


@pytest.mark.ranks
def test_a_recorded_run_and_urls(scheduler: str, tmp_path: Path) -> None:
    """Folders of runs too, and through fsspec."""
    header = RunHeader(run_id="a", source="recorded", world_size=2, device="cuda")
    ranks = [generated_rank(rank=rank, world_size=2) for rank in (0, 1)]
    save_run(in_memory(header, ranks), tmp_path / "run")
    local = analyze(tmp_path / "run")

    assert local.exit_code == 0
    for path in (str(tmp_path / "run"), f"local://{tmp_path}/run"):
        assert analyze(path, "--scheduler", scheduler).stdout == local.stdout


@pytest.mark.ranks
def test_workers_keep_the_order(scheduler: str) -> None:
    """Results come in the order of what was asked, whoever is first."""
    with cluster_executor(scheduler) as executor:
        assert list(executor.map(abs, range(0, -20, -1))) == list(range(20))


def test_workers_hold_the_results_of_a_few_ranks(played: type[Client]) -> None:
    """However many there are: each is let go of as it is taken."""
    made: list[Client] = []

    class Kept(played):  # type: ignore[misc, valid-type]
        def __init__(self, address: str, **more: object) -> None:
            super().__init__(address, **more)
            made.append(self)

    sys.modules["distributed"].Client = Kept  # type: ignore[attr-defined]
    with cluster_executor("tcp://s:8786") as executor:
        assert list(executor.map(abs, range(0, -100, -1))) == list(range(100))

    assert made[0].most_held == AHEAD
    assert made[0].held == []


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense"])
def test_no_scheduler(
    address: str, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that says what was tried."""
    pytest.importorskip("distributed", reason="dask is of the extra [cluster]")
    monkeypatch.setattr("fsdpdoctor.analysis.dask_executor.CONNECT_S", 1)
    result = analyze(traces, "--scheduler", address)

    assert result.exit_code == 2
    assert f"no dask scheduler answers at {address}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# A scheduler that is played: what it says decides, and needs no process.


class Client:
    """Answers as its workers would."""

    workers: dict[str, object] = {"tcp://w:1": __version__}  # noqa: RUF012

    def __init__(self, address: str, **_: object) -> None:
        self.closed = False
        self.held: list[Future] = []
        self.most_held = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def run(self, function: Callable[[], str], **_: object) -> dict[str, object]:
        """What each worker answers."""
        assert function() == __version__
        return self.workers

    def nthreads(self) -> dict[str, int]:
        """Of each worker."""
        return dict.fromkeys(self.workers, 1)

    def submit(self, call: Callable[[int], int], one: int, **_: object) -> Future:
        """A call, whose result is held until it is let go of."""
        future = Future(self, call(one))
        self.held.append(future)
        self.most_held = max(self.most_held, len(self.held))
        return future


class Future:
    """What a call gave, on its worker."""

    def __init__(self, client: Client, gave: int) -> None:
        self._client = client
        self._gave = gave

    def result(self) -> int:
        """Brought here."""
        return self._gave

    def release(self) -> None:
        """Let go of."""
        self._client.held.remove(self)


class KilledWorker(Exception):
    """As dask calls it."""


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    """The scheduler, in place of dask's."""

    class Played(Client):
        """One for each test."""

    distributed = SimpleNamespace(Client=Played, KilledWorker=KilledWorker)
    monkeypatch.setitem(sys.modules, "distributed", distributed)
    return Played


def refused(address: str = "tcp://s:8786") -> str:
    """What is said of a scheduler that cannot be used."""
    with pytest.raises(FsdpDoctorError) as raised, cluster_executor(address):
        pytest.fail("its workers were used")
    return str(raised.value)


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, and on every worker."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "pip install 'fsdpdoctor[cluster]'" in refused()


def test_a_scheduler_without_workers_is_none(played: type[Client]) -> None:
    """It says how one is started."""
    played.workers = {}
    assert "has no worker" in refused()
    assert "`dask worker tcp://s:8786 --nthreads 1`" in refused()


@pytest.mark.parametrize("version", ["0.0.1", ModuleNotFoundError("fsdpdoctor")])
def test_workers_of_another_version_are_not_used(
    version: object, played: type[Client]
) -> None:
    """All ranks must be measured alike; a worker without it says its error."""
    played.workers = {"tcp://w:1": __version__, "tcp://w:2": version}
    said = refused()
    assert f"worker tcp://w:2 has fsdpdoctor {version}, this is {__version__}" in said


def test_a_worker_that_dies_says_what_to_do(played: type[Client]) -> None:
    """Most probably of its memory; what else is raised inside is passed on."""
    with (
        pytest.raises(
            FsdpDoctorError, match="a worker died more than once on one rank"
        ),
        cluster_executor("tcp://s:8786"),
    ):
        raise KilledWorker("rank 3")
    with pytest.raises(KeyError), cluster_executor("tcp://s:8786"):
        raise KeyError("ours")
