"""Spans as an OpenTelemetry collector gets them, where its packages are installed."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.quantities import MS
from tests.integrations.drawn import STEPS, save

OTLP = "opentelemetry.exporter.otlp.proto.http"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The bodies of the requests that a collector on this machine gets."""
    pytest.importorskip(OTLP, reason="needs fsdpdoctor[otlp]")
    got: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            got.append(gzip.decompress(body) if packed else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *said: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        yield got
        server.shutdown()
        thread.join()


def decoded(bodies: list[bytes]) -> list[tuple[dict[str, Any], Any]]:
    """Each span with its resource's attributes."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    found = []
    for body in bodies:
        request = trace_service_pb2.ExportTraceServiceRequest()
        request.ParseFromString(body)
        for of in request.resource_spans:
            resource = values(of.resource.attributes)
            found += [(resource, span) for one in of.scope_spans for span in one.spans]
    return found


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as Python has them."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


@pytest.mark.filterwarnings("ignore")  # OpenTelemetry's own
def test_a_collector_gets_steps_and_units(
    collector: list[bytes], tmp_path: Path
) -> None:
    """A trace for each step of each rank, whose spans are inside the step."""
    run = str(save(tmp_path / "run"))
    said = CliRunner().invoke(main, ["export", run, "--to", "otlp"])
    spans = decoded(collector)
    steps = [(resource, span) for resource, span in spans if span.name == "step"]
    by_id = {span.span_id: span for _, span in steps}

    assert said.stderr == f"sent {len(spans)} spans\n"
    assert [
        (resource["fsdpdoctor.rank"], values(span.attributes)["fsdpdoctor.step"])
        for resource, span in steps
    ] == [(rank, step) for rank in (0, 1) for step in STEPS]
    assert {r["service.name"] for r, _ in spans} == {"fsdpdoctor"}
    assert len({span.trace_id for _, span in steps}) == len(steps)
    gathers = [span for _, span in spans if span.name == "all_gather"]
    assert [
        (
            values(span.attributes)["fsdpdoctor.unit"],
            span.end_time_unix_nano - span.start_time_unix_nano,
            span.start_time_unix_nano - by_id[span.parent_span_id].start_time_unix_nano,
        )
        for span in gathers[:2]
    ] == [("layers.0", 4 * MS, 1 * MS), ("layers.1", 4 * MS, 7 * MS)]


SECRET = "hunter2-9f8e7d6c5b4a39281706f5e4d3c2b1a0"

PLANTED = f"""
import torch
from torch.distributed.fsdp import fully_shard
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
raise RuntimeError("cannot log in with password={SECRET}")
"""
"""A training whose command line, environment and error hold a secret."""


@pytest.mark.ranks
@pytest.mark.filterwarnings("ignore")  # OpenTelemetry's own
def test_planted_secrets_do_not_leave(
    collector: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a plain export nor by one that is told to leave more out."""
    script = tmp_path / "train.py"
    script.write_text(PLANTED)
    monkeypatch.setenv("NCCL_AUTH_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    run = tmp_path / "run"
    trained = subprocess.run(
        [
            *(sys.executable, "-m", "fsdpdoctor", "run", "--nproc-per-node", "1"),
            *("--out", str(run), str(script), "--api-key", SECRET),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert SECRET in trained.stderr  # it was there to be leaked

    for options in ((), ("--redact",), ("--mask-names",)):
        collector.clear()
        command = ["export", str(run), "--to", "otlp", *options]
        sent = CliRunner().invoke(main, command)
        assert sent.exit_code == 0, sent.output
        assert len(decoded(collector)) > 0
        assert [body for body in collector if SECRET.encode() in body] == []
        assert SECRET not in sent.output


@pytest.mark.filterwarnings("ignore")  # OpenTelemetry's own
def test_nobody_at_the_address_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line; and a folder is none of its arguments."""
    pytest.importorskip(OTLP, reason="needs fsdpdoctor[otlp]")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    run = str(save(tmp_path / "run"))
    nobody = CliRunner().invoke(main, ["export", run, "--to", "otlp"])
    folder = CliRunner().invoke(
        main, ["export", run, "--to", "otlp", str(tmp_path / "x")]
    )

    assert (nobody.exit_code, folder.exit_code) == (2, 2)
    assert nobody.stderr.splitlines()[-1].startswith(
        "Error: the collector did not take"
    )
    assert folder.stderr == (
        "Error: spans are sent, and not written: otlp takes no folder\n"
    )
