"""The metrics of a run in progress, asked for as Prometheus does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fsdpdoctor.cli.processes import metrics
from fsdpdoctor.cli.processes.metrics import MetricsServer, RunCollector
from fsdpdoctor.quantities import MS
from fsdpdoctor.testing import draw
from tests.cli.test_cli import save
from tests.rig.ranks import run_python

RULES = Path(__file__).parents[3] / "docs" / "prometheus" / "rules.yml"

PICTURE = """
    forward     0.1.
    backward    ..10
"""


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def asked(url: str, within_s: float = 60) -> str:
    """What a server answers, once it does."""
    end = time.monotonic() + within_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                text: str = answer.read().decode()
                return text
        except OSError:
            assert time.monotonic() < end, url
            time.sleep(0.1)


def test_a_record_is_read_at_a_scrape_and_not_at_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without a whole step answers nothing; a later one what it has."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    registry = CollectorRegistry()
    registry.register(RunCollector(tmp_path / "run"))
    assert generate_latest(registry) == b""
    save(tmp_path / "run", draw(PICTURE))
    assert generate_latest(registry) == b""
    now[0] = metrics.LEAST_S
    families = {
        one.name: one
        for one in text_string_to_metric_families(generate_latest(registry).decode())
    }
    (sample,) = families["fsdpdoctor_step_seconds"].samples
    assert (sample.labels, sample.value) == ({"rank": "0"}, 0.004)


def test_it_answers_beside_the_training_and_ends_after_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process of its own, at the port that was asked for."""
    folder, port = save(tmp_path / "run", draw(PICTURE)), free_port()
    server = MetricsServer(folder, str(port))
    text = asked(f"http://127.0.0.1:{port}/metrics")
    server.close()
    server.close()
    assert 'fsdpdoctor_step_seconds{rank="0"} 0.004' in text
    assert f"metrics at http://127.0.0.1:{port}/metrics" in capfd.readouterr().err


def test_without_the_client_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    MetricsServer(tmp_path, "0").close()
    said = capsys.readouterr().err
    assert "pip install 'fsdpdoctor[prometheus]'" in said


@pytest.mark.parametrize("port", ["http", "70000", "host:"])
def test_what_is_no_port_is_said_before_anything_starts(port: str) -> None:
    """With what was expected."""
    ended = run_python(
        *("-m", "fsdpdoctor", "run", "--prometheus-port", port, "train.py")
    )
    assert ended.status == 2
    assert "expected 9464, or HOST:PORT" in ended.stderr


CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [RULES]
scrape_configs:
  - job_name: fsdpdoctor
    static_configs: [{targets: ["127.0.0.1:PORT"]}]
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here")
def test_a_real_prometheus_scrapes_it_and_a_slow_down_fires(tmp_path: Path) -> None:
    """Its rules load; of the three, the one of slower steps is firing."""
    data = draw(PICTURE, steps=100)
    late = tuple(
        replace(s, end_ns=s.end_ns + 4 * MS) if s.step >= 60 else s for s in data.steps
    )
    folder = save(tmp_path / "run", replace(data, steps=late))
    port, own = free_port(), free_port()
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES.read_text().replace("for: 1m", "for: 1s"))
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.replace("PORT", str(port)).replace("RULES", str(rules)))
    server = MetricsServer(folder, str(port))
    asked(f"http://127.0.0.1:{port}/metrics")
    process = subprocess.Popen(
        [
            *("prometheus", f"--config.file={config}", "--log.level=error"),
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
        env=dict(os.environ),
    )
    try:
        end = time.monotonic() + 60
        firing: set[str] = set()
        while "FsdpStepsGotSlower" not in firing:
            assert time.monotonic() < end
            time.sleep(0.5)
            answer = json.loads(asked(f"http://127.0.0.1:{own}/api/v1/rules"))
            (group,) = answer["data"]["groups"]
            firing = {r["name"] for r in group["rules"] if r["state"] == "firing"}
        assert {r["health"] for r in group["rules"]} == {"ok"}
        assert firing == {"FsdpStepsGotSlower"}
    finally:
        process.terminate()
        process.wait(20)
        server.close()
