"""The events of one step: labels of the host, launches, and work of the device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fsdpdoctor.exporters.device_rows import DeviceRow, device_rows
from fsdpdoctor.exporters.hooks import Hooks, hooks_of
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    ROOT,
    UNKNOWN,
    Evidence,
    Flag,
    Hook,
    Kind,
    Phase,
    Spans,
    StepRecord,
    one_of,
)

MAIN_THREAD = 1
BACKEND_THREAD = 2
PASS_THREAD = 3
PROCESS = 1_000_000
"""A process id that no device's number can be."""

HOOK_LABELS: dict[str, Hook] = {
    Hook.PRE_FORWARD: Hook.PRE_FORWARD,
    Hook.POST_FORWARD: Hook.POST_FORWARD,
    Hook.PRE_BACKWARD: Hook.PRE_BACKWARD,
    Hook.POST_BACKWARD: Hook.POST_BACKWARD_ACCUMULATE,
    Hook.POST_BACKWARD_ACCUMULATE: Hook.POST_BACKWARD_ACCUMULATE,
    Hook.INPUTS_TO_DEVICE: Hook.INPUTS_TO_DEVICE,
    Hook.CAST_FORWARD_INPUTS: Hook.CAST_FORWARD_INPUTS,
    Hook.CAST_FORWARD_OUTPUTS: Hook.CAST_FORWARD_OUTPUTS,
}
"""Names of HOOK spans to FSDP2's labels. The root's are made of the micro-batches."""

MARK_NS = 1_000
"""How long a label is that only marks a moment."""

NEXT_BATCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
OPTIMIZER_STEP = "Optimizer.step#Optimizer.step"

C10D = {
    Kind.ALL_GATHER: ("c10d::_allgather_base_", "gloo:all_gather", "_allgather_base"),
    Kind.REDUCE_SCATTER: (
        "c10d::_reduce_scatter_base_",
        "gloo:reduce_scatter",
        "_reduce_scatter_base",
    ),
    Kind.ALL_REDUCE: ("c10d::allreduce_", "gloo:all_reduce", "allreduce"),
}
"""Names of the host's operator, of the backend's event, and in the arguments."""


_CALLS = {Kind.MEMCPY: "cudaMemcpyAsync", Kind.MEMSET: "cudaMemsetAsync"}
_CATEGORIES = {Kind.MEMCPY: "gpu_memcpy", Kind.MEMSET: "gpu_memset"}


class Event(NamedTuple):
    """One event; times in nanoseconds."""

    phase: str
    cat: str
    name: str
    tid: int
    start_ns: int
    duration_ns: int
    args: Mapping[str, object]
    pid: int = PROCESS

    def text(self, base_ns: int) -> str:
        """The event as JSON, with times in microseconds since the file's origin."""
        name = json.dumps(self.name)
        at = _microseconds(self.start_ns - base_ns)
        where = f'"pid": {self.pid}, "tid": {self.tid}, "ts": {at}'
        head = f'{{"ph": "{self.phase}", "cat": "{self.cat}", "name": {name}, {where}'
        if self.phase != "X":
            bound = ', "bp": "e"' if self.phase == "f" else ""
            return f'{head}, "id": {self.args["id"]}{bound}}}'
        return (
            f'{head}, "dur": {_microseconds(self.duration_ns)}, '
            f'"args": {json.dumps(self.args)}}}'
        )


def _microseconds(ns: int) -> str:
    whole, part = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{part:03d}"


@dataclass(slots=True, kw_only=True)
class StepEvents:
    """Makes the events of one step."""

    data: RankData
    record: StepRecord
    correlation: int  # last one used
    external: int  # last External id used
    flows: bool
    operators: int

    def events(self) -> Iterator[Event]:
        """All of them; the host's first."""
        spans = self.record.spans
        record = self.record
        window = (record.host_start_ns, record.host_end_ns)
        if not self.on_device:
            window = (record.start_ns, record.end_ns)
        yield self._host(f"ProfilerStep#{record.step}", *window)
        yield from self._labels(spans)
        yield from self._other_host(spans)
        if self.on_device:
            yield from self._device()
        else:
            yield from self._host_collectives(spans)
            yield from self._optimizers(spans)

    @property
    def on_device(self) -> bool:
        """Whether the record is of a device's lanes."""
        return self.data.header.clock == "cuda" or (
            Evidence.KERNELS in self.data.evidence
        )

    def _host(
        self, name: str, start_ns: int, end_ns: int, cat: str = "user_annotation"
    ) -> Event:
        length = max(end_ns - start_ns, 0)
        return Event("X", cat, name, MAIN_THREAD, start_ns, length, {})

    def _renamed(
        self, spans: Spans, i: int, name: str, cat: str = "user_annotation"
    ) -> Event:
        """A span of the host by a name that is not its own."""
        return self._host(name, int(spans.start_ns[i]), int(spans.end_ns[i]), cat)

    def _label(self, label: str, unit: int, start_ns: int, end_ns: int) -> Event:
        return self._host(_label_text(label, self._unit(unit)), start_ns, end_ns)

    def _unit(self, unit: int) -> str:
        return self.data.unit_name(unit) or ROOT

    def _labels(self, spans: Spans) -> Iterator[Event]:
        hooks = hooks_of(self.data, spans)
        yield from self._roots(spans, hooks)
        for i, name in enumerate(hooks.names):
            label = HOOK_LABELS.get(name)
            if label is None:
                continue
            start, end = int(hooks.spans.start_ns[i]), int(hooks.spans.end_ns[i])
            if label == Hook.POST_BACKWARD_ACCUMULATE:
                end = min(end, start + MARK_NS)
            yield self._label(label, int(hooks.spans.unit[i]), start, end)
        for kind, label in (
            (Kind.REDUCE, Hook.POST_BACKWARD_REDUCE),
            (Kind.RESHARD, Hook.POST_BACKWARD_RESHARD),
        ):
            mine = (spans.kind == kind) & (spans.phase == Phase.BACKWARD)
            for i in np.flatnonzero(mine).tolist():
                start, end = int(spans.start_ns[i]), int(spans.end_ns[i])
                yield self._label(label, int(spans.unit[i]), start, end)
        for i in np.flatnonzero(spans.kind == Kind.UNSHARD).tolist():
            yield from self._unshard(spans, i)

    def _roots(self, spans: Spans, hooks: Hooks) -> Iterator[Event]:
        """The root's labels, which begin and end a micro-batch: on a device, whose
        micro-batches may be in its own time, the root's hooks.
        """
        begin, end = Hook.ROOT_PRE_FORWARD, Hook.ROOT_POST_BACKWARD_CALLBACK
        seen = set(hooks.names) if self.on_device else set()
        for i in np.flatnonzero(spans.kind == Kind.MICRO_BATCH).tolist():
            first, last = int(spans.start_ns[i]), int(spans.end_ns[i])
            if begin not in seen:
                yield self._host(f"FSDP::{begin}", first, first)
            if end not in seen:
                yield self._host(f"FSDP::{end}", max(last - MARK_NS, first), last)
        for i, name in enumerate(hooks.names):
            if name in (begin, end) and name in seen:
                start, stop = hooks.spans.start_ns[i], hooks.spans.end_ns[i]
                yield self._host(f"FSDP::{name}", int(start), int(stop))

    def _unshard(self, spans: Spans, i: int) -> Iterator[Event]:
        """An all_gather label, inside its prefetch's where it was one."""
        unit, start = int(spans.unit[i]), int(spans.start_ns[i])
        end = int(spans.end_ns[i])
        if not self.on_device:
            end = _blocking_end(spans, int(spans.op[i]), end)
        flags = int(spans.flags[i])
        for flag, word in (
            (Flag.FORWARD_PREFETCH, "forward"),
            (Flag.BACKWARD_PREFETCH, "backward"),
        ):
            if flags & flag:
                target = self._unit(unit).split(" [pg=")[0]
                name = "" if target == ROOT else target
                yield self._host(f"FSDP::{word}_prefetch for {name}", start, end)
        yield self._label(Hook.ALL_GATHER, unit, start, end)

    def _other_host(self, spans: Spans) -> Iterator[Event]:
        for i in np.flatnonzero(spans.kind == Kind.INPUT).tolist():
            yield self._renamed(spans, i, NEXT_BATCH)
        for i in np.flatnonzero(spans.kind == Kind.SYNC).tolist():
            name = self.data.name(int(spans.name[i])) or "cudaStreamSynchronize"
            yield self._renamed(spans, i, name, "cuda_runtime")

    def _optimizers(self, spans: Spans) -> Iterator[Event]:
        for i in np.flatnonzero(spans.kind == Kind.OPTIMIZER).tolist():
            yield self._renamed(spans, i, OPTIMIZER_STEP)

    def _host_collectives(self, spans: Spans) -> Iterator[Event]:
        """Operators of c10d and the backend's work, where the host is all there is."""
        for i in np.flatnonzero(one_of(spans.kind, list(C10D))).tolist():
            kind = Kind(int(spans.kind[i]))
            operator, backend, _ = C10D[kind]
            start, end = int(spans.start_ns[i]), int(spans.end_ns[i])
            size, group, seq = spans.bytes[i], spans.group[i], spans.seq[i]
            args = self._collective_args(kind, "", int(size), int(group), int(seq))
            # It returns at once or blocks; the label around it says which.
            length = min(MARK_NS, end - start)
            yield Event("X", "cpu_op", operator, MAIN_THREAD, start, length, args)
            yield Event(
                "X", "user_annotation", backend, BACKEND_THREAD, start, end - start, {}
            )
        for i in np.flatnonzero(spans.kind == Kind.COPY_OUT).tolist():
            start = _wait_start(spans, int(spans.op[i]), int(spans.start_ns[i]))
            yield self._label(
                "all_gather_copy_out", int(spans.unit[i]), start, int(spans.end_ns[i])
            )

    def _device(self) -> Iterator[Event]:
        """Kernels and their launches; labels for copy-outs and the optimizer."""
        rows = device_rows(self.data, self.record)
        optimizer = [row for row in rows if row.phase == Phase.OPTIMIZER]
        if optimizer:
            yield self._host(
                OPTIMIZER_STEP,
                min(row.launched_ns for row in optimizer),
                max(row.launched_ns for row in optimizer) + 1,
            )
        copied: dict[int, list[DeviceRow]] = {}
        for row in rows:
            if row.kind == Kind.COPY_OUT:
                copied.setdefault(row.op, []).append(row)
            yield from self._launch(row)
        for of_one in copied.values():
            yield self._label(
                "all_gather_copy_out",
                of_one[0].unit,
                min(row.launched_ns for row in of_one),
                max(row.launched_ns for row in of_one) + 1,
            )

    def _launch(self, row: DeviceRow) -> Iterator[Event]:
        self.correlation += 1
        args: dict[str, object] = {
            "device": 0,
            "stream": row.stream,
            "correlation": self.correlation,
            **self._collective_args(row.kind, row.name, row.bytes, row.group, row.seq),
        }
        # FSDP2's calls may leave a record's host no time in which it would launch.
        thread, at = PASS_THREAD if row.made else MAIN_THREAD, row.launched_ns
        launched: dict[str, object] = {"correlation": self.correlation}
        # As torch writes it: what an operator launches carries the operator's id.
        for _ in range(self.operators):
            self.external += 1
            args["External id"] = launched["External id"] = self.external
            operator = {"External id": self.external}
            yield Event("X", "cpu_op", "aten::mm", thread, at, MARK_NS, operator)
        call = _CALLS.get(row.kind, "cudaLaunchKernel")
        yield Event("X", "cuda_runtime", call, thread, at, MARK_NS, launched)
        cat = _CATEGORIES.get(row.kind, "kernel")
        length = row.end_ns - row.start_ns
        yield Event("X", cat, row.name, row.stream, row.start_ns, length, args, 0)
        if self.flows:
            flow = {"id": self.correlation}
            yield Event("s", "ac2g", "ac2g", thread, at, 0, flow)
            yield Event("f", "ac2g", "ac2g", row.stream, row.start_ns, 0, flow, 0)

    def _collective_args(
        self, kind: Kind, name: str, size: int, group: int, seq: int
    ) -> dict[str, object]:
        """What a collective's event says of it; of a copy, its bytes."""
        if kind in (Kind.MEMCPY, Kind.MEMSET) and size >= 0:
            return {"bytes": size}
        if kind not in (*C10D, Kind.COLLECTIVE):
            return {}
        said: dict[str, object] = {
            "Collective name": C10D[kind][2] if kind in C10D else name
        }
        parts = 1
        if 0 <= group < len(self.data.header.groups):
            spec = self.data.header.groups[group]
            parts = max(spec.size, 1)
            said["Process Group Name"] = spec.name
            said["Group size"] = spec.size
            said["Process Group Ranks"] = str(list(spec.ranks))
            if seq != UNKNOWN:
                said["Seq"] = seq
        if size >= 0:
            small = size // parts
            said["In msg nelems"] = small if kind == Kind.ALL_GATHER else size
            said["Out msg nelems"] = small if kind == Kind.REDUCE_SCATTER else size
            said["dtype"] = "Byte"
        return said


def _label_text(label: str, unit: str) -> str:
    name, mark, number = unit.partition(" [pg=")
    suffix = "" if name == ROOT else f" ({name})"
    return f"FSDP::{label}{suffix}{mark}{number}"


def _blocking_end(spans: Spans, op: int, end_ns: int) -> int:
    """Where a blocking gather's label ends: with the collective."""
    mine = (spans.op == op) & (spans.kind == Kind.ALL_GATHER)
    mine &= spans.flags & Flag.BLOCKING != 0
    return int(spans.end_ns[mine].max()) if mine.any() else end_ns


def _wait_start(spans: Spans, op: int, start_ns: int) -> int:
    """A copy-out's label begins with the wait before the copy, if that is there."""
    mine = (spans.op == op) & (spans.kind == Kind.ALL_GATHER_WAIT)
    gathers = (spans.op == op) & (spans.kind == Kind.ALL_GATHER)
    if not mine.any() or (spans.flags[gathers] & Flag.BLOCKING != 0).any():
        return start_ns
    return int(spans.start_ns[mine].min())
