"""Spans as an OpenTelemetry collector gets them, where its packages are installed."""

from __future__ import annotations

import gzip
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
