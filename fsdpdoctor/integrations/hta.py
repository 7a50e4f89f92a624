"""HolisticTraceAnalysis beside us: its tables of a trace, and its figures against ours.

Where the two differ, our own kernels are counted once more by HTA's rules, one rule
after the other. A rule is named as the reason only where it moves our figure, and a
difference counts as explained only where all of them together give HTA's figure.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from fsdpdoctor.errors import FsdpDoctorError, MissingDependencyError, UsageError
from fsdpdoctor.exporters.device_rows import WORK
from fsdpdoctor.importers.reader.decoders import default_decoder
from fsdpdoctor.importers.reader.read_trace import scan_file
from fsdpdoctor.importers.reader.trace_file import Cat, TraceFile
from fsdpdoctor.intervals import intersect, total_ns, union
from fsdpdoctor.run import RankData, Run
from fsdpdoctor.schema import (
    COMMUNICATION_LANES,
    NO_TIME,
    Evidence,
    Kind,
    Spans,
    is_any,
    one_of,
)

PYTHON = "FSDPDOCTOR_HTA_PYTHON"
"""The variable that names the python of an environment that has HTA."""

NEEDS_HTA = (
    "hta is not installed: pip install 'fsdpdoctor[hta]', or in an environment of its "
    f"own, whose python {PYTHON} names"
)

SAME_SHARE = 5.1e-5
"""Shares that print alike as percent with two decimals, as HTA rounds them."""

_COMMUNICATION = re.compile("nccl.*Kernel")
_NO_COMPUTE = re.compile("(nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")
"""What HTA goes by, at the beginning of a kernel's name."""

LEAST_STEPS = 2
"""Of the profiler's: with fewer, HTA leaves no kernel out."""

SAME_IDLE = 1e-3
"""Of the capture: where kernels touch, HTA's rounding is off by a microsecond each."""

_US = 1000


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Overlap of one rank: part of its communication that ran under compute."""

    rank: int
    share: float | None  # None: there was no communication


class KernelType(msgspec.Struct, frozen=True, kw_only=True):
    """Time in which kernels of one type, or of several at once, ran; all ranks."""

    kind: str
    ns: int


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's device: how long it was captured, and idle meanwhile."""

    rank: int
    idle_ns: int
    capture_ns: int


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Why one stream was idle, as HTA sees it, and for how long."""

    rank: int
    stream: int
    category: str
    ns: int


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Launched kernels that had not begun."""

    rank: int
    stream: int
    mean: float
    most: float


class HtaTables(msgspec.Struct, frozen=True, kw_only=True):
    """What HTA says of a run; a table that it could not make is empty."""

    version: str
    overlap: tuple[Share, ...] = ()
    kernel_types: tuple[KernelType, ...] = ()
    busy: tuple[Busy, ...] = ()
    idle: tuple[Idle, ...] = ()
    queue: tuple[Queue, ...] = ()
    errors: Mapping[str, str] = msgspec.field(default_factory=dict)  # by table


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one rank's whole capture."""

    communication_ns: int
    overlapped_ns: int
    idle_ns: int
    capture_ns: int

    @property
    def share(self) -> float | None:
        if not self.communication_ns:
            return None
        return self.overlapped_ns / self.communication_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One rank's figures: ours, and HTA's where it has any."""

    rank: int
    ours: Figures
    share: float | None
    idle_ns: int | None
    because: tuple[str, ...]  # HTA's rules that move our figures; empty: none does
    explained: bool | None  # by its rules, ours are HTA's; None: it made no figure


def hta_tables(run: Run) -> HtaTables:
    """Have HTA read the same traces, in a process of its own.

    Raises UsageError where they are no traces, MissingDependencyError where there is
    no HTA.
    """
    if run.header.source != "kineto":
        raise UsageError(
            "--with-hta reads traces of torch.profiler; of a recorded run they are "
            "made by: fsdpdoctor export RUN --to hta"
        )
    python = os.environ.get(PYTHON)
    if python is None and importlib.util.find_spec("hta") is None:
        raise MissingDependencyError(NEEDS_HTA)
    files = {source.rank: str(Path(source.where).absolute()) for source in run.sources}
    script = Path(__file__).with_name("hta_tables.py")
    try:
        ended = subprocess.run(
            [python or sys.executable, str(script)],
            input=json.dumps(files).encode(),
            capture_output=True,
            check=True,
        )
        return msgspec.json.decode(ended.stdout, type=HtaTables)
    except (OSError, subprocess.CalledProcessError, msgspec.DecodeError) as error:
        raise FsdpDoctorError(f"HTA did not run: {error}") from None


def compared(run: Run, tables: HtaTables) -> tuple[Compared, ...]:
    """Its figures beside ours, of each rank whose trace has kernels."""
    shares = {row.rank: row.share for row in tables.overlap}
    idle = {row.rank: row.idle_ns for row in tables.busy}
    kernels = (_Kernels.of(source.load(), Path(source.where)) for source in run.sources)
    return tuple(
        _compared(one, shares.get(one.rank), idle.get(one.rank))
        if one.rank in shares or one.rank in idle
        else _alone(one)
        for one in kernels
        if one is not None
    )


def _alone(kernels: _Kernels) -> Compared:
    """Of a rank of which HTA made no figure: there is nothing to be like."""
    return Compared(
        rank=kernels.rank,
        ours=kernels.figures(),
        share=None,
        idle_ns=None,
        because=(),
        explained=None,
    )


def _compared(kernels: _Kernels, share: float | None, idle_ns: int | None) -> Compared:
    ours = kernels.figures()
    because = []
    seen = ours
    for words, rule in _RULES:
        kernels = rule(kernels)
        now = kernels.figures()
        if not _same(now, seen):
            because.append(words)
        seen = now
    same_idle = (
        idle_ns is None or abs(seen.idle_ns - idle_ns) <= SAME_IDLE * seen.capture_ns
    )
    return Compared(
        rank=kernels.rank,
        ours=ours,
        share=share,
        idle_ns=idle_ns,
        because=tuple(because),
        explained=_alike(seen.share, share) and same_idle,
    )


def _same(one: Figures, other: Figures) -> bool:
    """Whether no figure that is shown differs."""
    least_ns = SAME_IDLE * other.capture_ns
    return (
        _alike(one.share, other.share)
        and abs(one.idle_ns - other.idle_ns) <= least_ns
        and abs(one.communication_ns - other.communication_ns) <= least_ns
    )


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= SAME_SHARE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kernels:
    """A rank's device work, as parallel columns."""

    rank: int
    spans: Spans
    names: Sequence[str]  # [N]
    communication: npt.NDArray[np.bool_]  # [N]
    compute: npt.NDArray[np.bool_]  # [N]
    profiler_steps: int  # by their names in the file

    @classmethod
    def of(cls, data: RankData, path: Path) -> _Kernels | None:
        if Evidence.KERNELS not in data.evidence:
            return None
        parts = [record.spans for record in data.steps]
        spans = Spans.concat([*parts, data.outside])
        spans = spans.rows(one_of(spans.kind, WORK))
        trace = scan_file(path, default_decoder())
        communication = is_any(spans.lane, *COMMUNICATION_LANES)
        memory = is_any(spans.kind, Kind.MEMCPY, Kind.MEMSET)
        return cls(
            rank=data.rank,
            spans=spans,
            names=_names(spans, trace),
            communication=communication,
            compute=~communication & ~memory,
            profiler_steps=sum(name.startswith("ProfilerStep") for name in trace.names),
        )

    def only(self, rows: npt.NDArray[np.bool_]) -> _Kernels:
        """Some of them."""
        return replace(
            self,
            spans=self.spans.rows(rows),
            names=[name for name, keep in zip(self.names, rows, strict=True) if keep],
            communication=self.communication[rows],
            compute=self.compute[rows],
        )

    def figures(self) -> Figures:
        start, end = self.spans.start_ns, self.spans.end_ns
        whole = union(start, end)
        communication = union(start[self.communication], end[self.communication])
        compute = union(start[self.compute], end[self.compute])
        capture = int(end.max() - start.min()) if len(start) else 0
        return Figures(
            communication_ns=total_ns(communication),
            overlapped_ns=total_ns(intersect(communication, compute)),
            idle_ns=capture - total_ns(whole),
            capture_ns=capture,
        )


def _names(spans: Spans, trace: TraceFile) -> list[str]:
    """Of kernels as the file has them: a run names a collective by what it does."""
    events = trace.events
    rows = np.flatnonzero(is_any(events.cat, Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET))
    if not len(rows) or not len(spans):
        return [""] * len(spans)
    starts, ends = events.start_ns[rows], events.ends(rows)
    base_ns = int(spans.start_ns.min() - starts.min())
    named = {
        (start + base_ns, end + base_ns): trace.names[name]
        for start, end, name in zip(
            starts.tolist(), ends.tolist(), events.name[rows].tolist(), strict=True
        )
    }
    at = zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True)
    return [named.get(key, "") for key in at]


def _launched(kernels: _Kernels) -> _Kernels:
    if kernels.profiler_steps < LEAST_STEPS:
        return kernels
    return kernels.only(kernels.spans.issued_ns != NO_TIME)


def _by_name(kernels: _Kernels) -> _Kernels:
    def matching(pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
        return np.array([bool(pattern.match(n)) for n in kernels.names], dtype=np.bool_)

    memory = is_any(kernels.spans.kind, Kind.MEMCPY, Kind.MEMSET)
    return replace(
        kernels,
        communication=matching(_COMMUNICATION) & ~memory,
        compute=~matching(_NO_COMPUTE) & ~memory,
    )


def _rounded(kernels: _Kernels) -> _Kernels:
    spans = kernels.spans
    start_ns = -(-spans.start_ns // _US) * _US
    end_ns = spans.end_ns // _US * _US
    return replace(
        kernels,
        spans=replace(spans, start_ns=start_ns, end_ns=np.maximum(start_ns, end_ns)),
    )


_RULES: tuple[tuple[str, Callable[[_Kernels], _Kernels]], ...] = (
    ("HTA leaves out kernels whose launch is not in the trace", _launched),
    ("HTA knows communication by names that begin with nccl", _by_name),
    ("HTA rounds starts up and ends down to microseconds", _rounded),
)
"""HTA's, in words, in the order in which it applies them."""
