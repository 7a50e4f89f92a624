"""`fsdpdoctor run --prometheus-port`: the run in progress, for Prometheus to scrape.

The server is a process beside the training, see [Note: Beside the training]. It reads
the run's folder when it is asked, and seldom: a record that takes long to read is read
less often.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.cli.processes.beside import begin_beside, fall_silent
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.recorder.launch.start_beside import Beside
from fsdpdoctor.run import open_run

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

NEEDS_CLIENT = "metrics need prometheus-client: pip install 'fsdpdoctor[prometheus]'"

LEAST_S = 5.0
SHARE = 20
"""The record is read again after so many times what reading it took."""

LAST_S = 60.0
"""After the training's end: for the last scrape."""


class MetricsServer:
    """A server that was started beside the training, until `close`."""

    def __init__(self, folder: Path, address: str) -> None:
        """Start it at a port, or `HOST:PORT`; one line says where it cannot be."""
        self._beside: Beside | None = None
        if importlib.util.find_spec("prometheus_client") is None:
            _say(f"no metrics: {NEEDS_CLIENT}; the training goes on without them")
            return
        try:
            self._beside = Beside(__name__, folder, address)
        except (OSError, subprocess.CalledProcessError) as error:
            _say(f"no metrics: the server could not be started ({error})")

    def close(self) -> None:
        """The training has ended."""
        if self._beside is not None:
            self._beside.close()
            self._beside = None


class RunCollector:
    """What Prometheus is given of a run's folder at each scrape."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._metrics: list[Metric] = []
        self._next_s = 0.0

    def collect(self) -> Iterable[Metric]:
        """The metrics, at most so old as reading the record makes worth it."""
        from fsdpdoctor.exporters.prometheus import metrics_of

        with self._lock:
            began = time.monotonic()
            if began >= self._next_s:
                try:
                    self._metrics = list(metrics_of(measure(open_run(self._folder))))
                except FsdpDoctorError:
                    self._metrics = []  # no whole step yet
                took = time.monotonic() - began
                self._next_s = time.monotonic() + max(LEAST_S, SHARE * took)
            return self._metrics


def _say(words: str) -> None:
    click.echo(f"fsdpdoctor: {words}", err=True)


def serve_metrics(folder: Path, pipe: int, address: str) -> None:
    """Answer scrapes until the training has ended, and a little longer."""
    name, _, number = address.rpartition(":")
    host, port = name or "127.0.0.1", int(number)
    ended = begin_beside(folder, pipe)
    if ended is None:
        return
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(RunCollector(folder))
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        _say(f"no metrics: {host}:{port} cannot be had ({error.strerror})")
        return
    _say(f"metrics at http://{host}:{server.server_port}/metrics")
    fall_silent()
    ended.wait()
    time.sleep(LAST_S)


if __name__ == "__main__":
    serve_metrics(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
