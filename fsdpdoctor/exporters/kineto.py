"""Writes a rank's record as the trace torch.profiler would have made of it.

Labels, launches with correlation ids, streams and process-group arguments are all
there, so that importing the file gives back the same spans, and other tools can read
it. A written trace says in its head that it is synthetic, and of what it was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
from isal import igzip

from fsdpdoctor.exporters.device_rows import STREAMS
from fsdpdoctor.exporters.kineto_events import Event, StepEvents
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import SYNTHETIC_KEY, Evidence, Lane

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What a written trace holds beside the record."""

    made_from: str  # "a simulation", "a recorded run": shown wherever it is read
    flows: bool = False  # the arrows from launches to kernels, as torch writes them
    operators: int = 0  # CPU operators per kernel launch, to be of a real trace's size


def write_trace(data: RankData, path: Path, options: TraceOptions) -> None:
    """Write a trace; it is packed where `path` ends in `.gz`."""
    opened: object = (
        igzip.open(path, "wt", compresslevel=1)  # type: ignore[no-untyped-call]
        if path.suffix == ".gz"
        else path.open("w", encoding="utf-8")
    )
    with cast("IO[str]", opened) as file:
        base_ns = _base_ns(data)
        file.write(json.dumps(_head(data, options, base_ns), indent=2)[:-2])
        file.write(',\n  "traceEvents": [')
        separator = "\n  "
        for event in trace_events(data, options):
            file.write(separator + event.text(base_ns))
            separator = ",\n  "
        file.write("\n  ]\n}\n")


def trace_events(data: RankData, options: TraceOptions) -> Iterator[Event]:
    """The events of a rank, step by step. A correlation id is used once a file."""
    correlation = external = 0
    if data.steps:
        yield from _before(data)
    for record in data.steps:
        step = StepEvents(
            data=data,
            record=record,
            correlation=correlation,
            external=external,
            flows=options.flows,
            operators=options.operators,
        )
        yield from step.events()
        correlation, external = step.correlation, step.external


def _before(data: RankData) -> Iterator[Event]:
    """The device's lag behind the host when the first step began, as one kernel that
    was launched before: without it, that step would seem to begin with the host's.
    """
    first = data.steps[0]
    lag_ns = first.start_ns - first.host_start_ns
    if data.header.clock == "cuda" and lag_ns > 0:
        args = {"device": 0, "stream": STREAMS[Lane.COMPUTE]}
        name = "work of steps before this trace"
        stream = STREAMS[Lane.COMPUTE]
        yield Event("X", "kernel", name, stream, first.host_start_ns, lag_ns, args, 0)


def _base_ns(data: RankData) -> int:
    """The origin of the file's times: whole seconds, like Kineto's.

    Times since it must be small enough for a float64 of microseconds with three
    decimals, which is what other tools read them into.
    """
    starts = [record.host_start_ns for record in data.steps]
    starts += [int(r.spans.start_ns.min()) for r in data.steps if len(r.spans)]
    first = min(starts, default=0)
    return max(first // _SECOND_NS - 1, 0) * _SECOND_NS


def _head(data: RankData, options: TraceOptions, base_ns: int) -> dict[str, object]:
    header = data.header
    devices: list[dict[str, object]] = []
    if header.clock == "cuda" or Evidence.KERNELS in data.evidence:
        name = header.device_name or header.device
        memory = max(header.device_bytes, 0)
        devices = [{"id": 0, "name": name, "totalGlobalMem": memory}]
    groups = [
        {
            "pg_name": group.name,
            "pg_desc": "default_pg" if group.role == "world" else group.role or "",
            "pg_size": group.size,
            "ranks": list(group.ranks),
        }
        for group in header.groups
    ]
    return {
        "schemaVersion": 1,
        SYNTHETIC_KEY: options.made_from,
        "deviceProperties": devices,
        "distributedInfo": {
            "backend": next((g.backend for g in header.groups if g.backend), "nccl"),
            "rank": header.rank,
            "world_size": header.world_size,
            "pg_count": len(groups),
            "pg_config": groups,
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": int(np.int64(base_ns)),
    }
