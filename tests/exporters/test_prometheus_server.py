"""A real Prometheus scrapes a run: its rules load, and the right one fires."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor.cli.processes.metrics import RunCollector
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import in_memory, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.testing import draw
from tests.cli.test_cli import PICTURE

RULES = Path(__file__).parents[2] / "docs" / "prometheus" / "rules.yml"

PATIENCE_S = 90.0

CONFIGURATION = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: fsdpdoctor
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""

pytestmark = pytest.mark.slow


def save(folder: Path, *, last_ms: int) -> Path:
    """A run of 60 steps of 16 ms, the last 20 at `last_ms` for each of those."""
    first = draw(PICTURE, steps=40)
    last = draw(PICTURE, steps=20, first_step=40, scale_ns=last_ms * MS)
    header = RunHeader(run_id="drawn", source="recorded", world_size=1)
    steps = (*first.steps, *last.steps)
    save_run(in_memory(header, [replace(first, steps=steps)]), folder)
    return folder


@contextmanager
def scraped(run: Path, folder: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes a run."""
    client = pytest.importorskip(
        "prometheus_client", reason="needs fsdpdoctor[prometheus]"
    )
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs Debian's package prometheus")
    registry = client.CollectorRegistry()
    registry.register(RunCollector(run))
    server, thread = client.start_http_server(0, addr="127.0.0.1", registry=registry)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    rules = (
        RULES.read_text().replace("for: 1m", "for: 2s").replace("for: 5m", "for: 2s")
    )
    (folder / "rules.yml").write_text(rules)
    text = CONFIGURATION.format(port=server.server_port)
    (folder / "prometheus.yml").write_text(text)
    asked = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    )
    process = subprocess.Popen([program, *asked], stderr=subprocess.DEVNULL)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(timeout=30)
        server.shutdown()
        server.server_close()
        thread.join()


def answer(address: str) -> Any:
    """What its interface says, None where it does not yet."""
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            return json.load(response)["data"]
    except (urllib.error.URLError, ConnectionError):
        return None


def alerts(address: str) -> dict[str, str]:
    """Its alerts once one fires, by name; a figure was scraped and held before."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = answer(f"{address}/api/v1/alerts") or {"alerts": []}
        states = {one["labels"]["alertname"]: one["state"] for one in found["alerts"]}
        if "firing" in states.values():
            return states
        time.sleep(0.5)
    raise AssertionError(f"no alert fires: {states}")


def test_promtool_takes_the_rules() -> None:
    """All three of them."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs Debian's package prometheus")
    said = subprocess.run(
        [program, "check", "rules", RULES], capture_output=True, text=True, check=True
    )

    assert "SUCCESS: 3 rules found" in said.stdout


def test_steps_that_got_slower_fire_their_alert(tmp_path: Path) -> None:
    """Twice as slow as the median: that one, and the exposed half of each step."""
    run = save(tmp_path / "run", last_ms=2)
    with scraped(run, tmp_path) as address:
        alerts(address)
        end = time.monotonic() + PATIENCE_S
        while (found := alerts(address)).get("FsdpStepsGotSlower") != "firing":
            assert time.monotonic() < end, found
            time.sleep(0.5)
        (one,) = answer(f"{address}/api/v1/query?query=fsdpdoctor_step_seconds")[
            "result"
        ]

    assert "FsdpNoProgress" not in found
    assert (one["metric"]["rank"], float(one["value"][1])) == ("0", 0.032)


def test_steps_that_stay_alike_do_not(tmp_path: Path) -> None:
    """The exposed half of each step fires; that steps got slower is no alert at all."""
    run = save(tmp_path / "run", last_ms=1)
    with scraped(run, tmp_path) as address:
        found = alerts(address)

    assert found == {"FsdpMostlyExposed": "firing"}
