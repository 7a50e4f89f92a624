"""Draws small Kineto traces, event by event, as torch.profiler would write them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Event = dict[str, object]

MAIN, AUTOGRAD = 100, 101
"""Host threads."""

COMPUTE, COPY_IN, GATHER, SCATTER = 7, 20, 22, 24
"""Streams."""


@dataclass(slots=True, kw_only=True)
class DrawnTrace:
    """A trace in the making. Times are microseconds."""

    pid: int = 4000
    events: list[Event] = field(default_factory=list)
    metadata: dict[str, object] = field(default_factory=dict)
    _correlation: int = 0

    def host(
        self,
        name: str,
        start: float,
        end: float,
        *,
        cat: str = "user_annotation",
        tid: int = MAIN,
        args: Mapping[str, object] | None = None,
    ) -> None:
        """An annotation, operator or runtime call of the host."""
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": self.pid,
                "tid": tid,
                "ts": start,
                "dur": round(end - start, 3),
                "args": dict(args or {}),
            }
        )

    def device(
        self,
        name: str,
        start: float,
        end: float,
        *,
        launched: float | None = None,
        stream: int = COMPUTE,
        cat: str = "kernel",
        tid: int = MAIN,
        call: str = "cudaLaunchKernel",
        args: Mapping[str, object] | None = None,
    ) -> None:
        """Device work, and its launch where `launched` says when that was."""
        self._correlation += 1
        common = {"correlation": self._correlation}
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": start,
                "dur": round(end - start, 3),
                "args": {"device": 0, "stream": stream, **common, **(args or {})},
            }
        )
        if launched is not None:
            self.host(
                call, launched, launched + 1, cat="cuda_runtime", tid=tid, args=common
            )

    def text(self, separator: str = ",\n") -> str:
        """The file's text. `separator` is what lies between its events."""
        head = json.dumps(self.metadata)[1:-1]
        events = separator.join(json.dumps(event) for event in self.events)
        comma = ", " if head else ""
        return f'{{{head}{comma}"traceEvents": [\n{events}\n]}}'

    def write(self, path: Path) -> Path:
        """Write the trace, packed if its name says so."""
        content = self.text().encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path


def rank_metadata(rank: int, world_size: int) -> dict[str, object]:
    """What a distributed job's traces begin with."""
    info = {"backend": "nccl", "rank": rank, "world_size": world_size}
    return {"schemaVersion": 1, "distributedInfo": info}


def collective(
    name: str,
    in_nelems: int,
    out_nelems: int,
    *,
    group: str = "1",
    seq: int | None = None,
) -> dict[str, object]:
    """The arguments of a communication kernel."""
    said: dict[str, object] = {
        "Collective name": name,
        "In msg nelems": in_nelems,
        "Out msg nelems": out_nelems,
        "Group size": 4,
        "dtype": "BFloat16",
        "Process Group Name": group,
        "Process Group Ranks": "[0, 1, 2, 3]",
    }
    return said if seq is None else {**said, "Seq": seq}


def annotation_texts(names: Sequence[str]) -> list[str]:
    """The JSON text of one annotation per name, a microsecond each."""
    return [
        f'{{"ph": "X", "cat": "user_annotation", "name": "{name}", "pid": 1, "tid": 1, '
        f'"ts": {at}.5, "dur": 1, "args": {{"External id": {at}}}}}'
        for at, name in enumerate(names)
    ]
