"""Ranks measured by a dask cluster: the same report, to the nanosecond."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fsdpdoctor.analysis.dask_executor import cluster_executor
from fsdpdoctor.cli import main
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.run import in_memory, save_run
from fsdpdoctor.schema import RunHeader
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
