"""The allocator's own events, where the profiler recorded them (`profile_memory`).

They are instants, whose fields no decoder reads: they are found by their name in the
text of a chunk, whichever decoder reads its other events.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import msgspec
import numpy as np

from fsdpdoctor.importers.reader.timestamps import ns_of_text
from fsdpdoctor.importers.reader.trace_file import MemoryEvents
from fsdpdoctor.schema import NO_TIME

NAME = b'"[memory]"'
MEMORY_KEY = b'"profile_memory"'
"""What the head of a trace says that has such events."""

ON_DEVICE = 1
"""The `Device Type` of CUDA, as c10 numbers them; the CPU's is 0."""


_Whole = Annotated[int, msgspec.Meta(ge=-1, lt=2**62)]
"""What fits a column. Other numbers are damage."""


class _Args(msgspec.Struct):
    allocated: _Whole = msgspec.field(name="Total Allocated")
    reserved: _Whole = msgspec.field(name="Total Reserved")
    device: _Whole = msgspec.field(name="Device Id")
    kind: _Whole = msgspec.field(name="Device Type")


class _Event(msgspec.Struct):
    name: str
    ts: msgspec.Raw
    args: _Args


_decoder = msgspec.json.Decoder(_Event)


def memory_events(chunk: bytes) -> MemoryEvents:
    """The device allocator's events of a chunk. A damaged one is left out."""
    rows = [
        (time_ns, event.args.device, event.args.allocated, event.args.reserved)
        for event in _events(chunk)
        if event.args.kind == ON_DEVICE
        and (time_ns := ns_of_text(bytes(event.ts))) != NO_TIME
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return MemoryEvents(
        time_ns=columns[0],
        device=columns[1],
        allocated_bytes=columns[2],
        reserved_bytes=columns[3],
    )


def _events(chunk: bytes) -> Iterator[_Event]:
    at = chunk.find(NAME)
    while at >= 0:
        begin = chunk.rfind(b"{", 0, at)
        args_end = chunk.find(b"}", at)
        end = chunk.find(b"}", args_end + 1)
        if begin >= 0 and 0 <= args_end < end:
            with contextlib.suppress(msgspec.DecodeError):
                yield _decoder.decode(chunk[begin : end + 1])
        at = chunk.find(NAME, at + 1)
