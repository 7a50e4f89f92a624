"""A run as OpenTelemetry spans, sent by OTLP over HTTP.

Each step of each rank is a trace: the step, and in it what its units, collectives and
waits did. Names of spans are few (`step`, `forward`, `all_gather`); which unit, phase
and rank is in attributes, under `fsdpdoctor.`, as OpenTelemetry asks of names that it
has no convention for. Where to send it, headers, certificates and time-outs are read
from its own variables, `OTEL_EXPORTER_OTLP_ENDPOINT` and the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fsdpdoctor.errors import FsdpDoctorError, need
from fsdpdoctor.run import RankData, Run
from fsdpdoctor.schema import (
    COLLECTIVE_KINDS,
    UNKNOWN,
    WAIT_OF,
    Flag,
    Kind,
    Lane,
    Phase,
    Spans,
    StepRecord,
    one_of,
)
from fsdpdoctor.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

SHOWN = (
    *(Kind.ROOT_FORWARD, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER, Kind.CLIP),
    *(*COLLECTIVE_KINDS, Kind.COLLECTIVE, *WAIT_OF.values(), Kind.COLLECTIVE_WAIT),
    *(Kind.SYNC, Kind.GC, Kind.INPUT, Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD),
    Kind.UNSHARDED,
)
"""What units, collectives, waits and the host did. Kernels are left to traces."""

SERVICE = "fsdpdoctor"
"""`service.name`, where the variable gives no other."""

SERVICE_VARIABLE = "OTEL_SERVICE_NAME"

BATCH = 512
"""Spans of one request, as OpenTelemetry's own processor sends them."""


def send(run: Run) -> int:
    """Send all steps of a run; how many spans that were.

    Raises MissingDependencyError, and FsdpDoctorError where nobody took them.
    """
    need("opentelemetry.exporter.otlp.proto.http", "otlp")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter = OTLPSpanExporter()
    sent = 0
    for data in run.load():
        for batch in _batches(spans_of(run, data)):
            if exporter.export(batch) != SpanExportResult.SUCCESS:
                raise FsdpDoctorError(
                    f"the collector did not take rank {data.rank}'s spans; it is "
                    "looked for at OTEL_EXPORTER_OTLP_ENDPOINT, else localhost:4318"
                )
            sent += len(batch)
    exporter.shutdown()
    return sent


def spans_of(run: Run, data: RankData) -> Iterator[ReadableSpan]:
    """The spans of one rank, step by step; a step comes after what is in it."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    provider = TracerProvider(
        sampler=ALWAYS_ON, resource=_resource(run, data), shutdown_on_exit=False
    )
    tracer = provider.get_tracer(SERVICE, __version__)
    shift_ns = data.header.unix_minus_clock_ns
    for record in data.steps:
        step: Any = tracer.start_span(
            "step",
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            start_time=record.start_ns + shift_ns,
            attributes=_of_step(data, record),
        )
        inside = trace.set_span_in_context(step)
        rows = record.spans.rows(one_of(record.spans.kind, SHOWN))
        for at in range(len(rows)):
            span: Any = tracer.start_span(
                Kind(int(rows.kind[at])).key,
                context=inside,
                start_time=int(rows.start_ns[at]) + shift_ns,
                attributes=_attributes(data, rows, at),
            )
            span.end(int(rows.end_ns[at]) + shift_ns)
            yield span
        step.end(record.end_ns + shift_ns)
        yield step


def _resource(run: Run, data: RankData) -> Any:
    from opentelemetry.sdk.resources import Resource

    header = data.header
    found: dict[str, str | int] = {
        "service.name": SERVICE,
        "service.version": __version__,
        "service.instance.id": f"{run.header.run_id}/{data.rank}",
        "fsdpdoctor.run.id": run.header.run_id,
        "fsdpdoctor.rank": data.rank,
        "fsdpdoctor.world_size": header.world_size,
        "fsdpdoctor.source": run.header.source,
        "fsdpdoctor.device": header.device_name or header.device,
    }
    if header.host is not None:
        found["host.name"] = header.host
    if header.pid != UNKNOWN:
        found["process.pid"] = header.pid
    if SERVICE_VARIABLE in os.environ:
        del found["service.name"]
    return Resource.create(found)


def _of_step(data: RankData, record: StepRecord) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "fsdpdoctor.step": record.step,
        "fsdpdoctor.rank": data.rank,
    }
    if record.micro_batches != UNKNOWN:
        found["fsdpdoctor.micro_batches"] = record.micro_batches
    return found


def _attributes(data: RankData, rows: Spans, at: int) -> dict[str, str | int]:
    units = data.header.units
    unit, number = int(rows.unit[at]), int(rows.micro_batch[at])
    found: dict[str, str | int] = {
        "fsdpdoctor.lane": Lane(int(rows.lane[at])).key,
        "fsdpdoctor.phase": Phase(int(rows.phase[at])).key,
    }
    if 0 <= unit < len(units):
        found["fsdpdoctor.unit"] = units[unit].fqn
    if number != UNKNOWN:
        found["fsdpdoctor.micro_batch"] = number
    if (size := int(rows.bytes[at])) != UNKNOWN:
        found["fsdpdoctor.bytes"] = size
    if rows.flags[at] & Flag.RECOMPUTE:
        found["fsdpdoctor.recompute"] = True
    if name := data.name(int(rows.name[at])):
        found["fsdpdoctor.operation"] = name
    return found


def _batches(spans: Iterator[ReadableSpan]) -> Iterator[Sequence[ReadableSpan]]:
    batch: list[ReadableSpan] = []
    for span in spans:
        batch.append(span)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
