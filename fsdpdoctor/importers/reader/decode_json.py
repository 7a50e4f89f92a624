"""Decodes whole events with msgspec: the path that needs no compiler.

The unit of work is a chunk: the text of one or more events, without the array's
brackets. `_scan` (C) does the same from the same chunk and gives the same rows;
what it is not sure of it leaves to this module.
"""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.reader.timestamps import (
    few_decimals,
    ns_of_numbers,
    ns_of_text,
)
from fsdpdoctor.importers.reader.trace_file import (
    CATEGORIES,
    COMM_OP_PREFIXES,
    NO_STREAM_U32,
    Cat,
    CommArgs,
    Int64s,
)
from fsdpdoctor.schema import NO_TIME, UNKNOWN, distinct
from fsdpdoctor.schema.string_table import StringTable

Scalar: TypeAlias = int | float | str | None

_DECIMAL = re.compile(r"-?[0-9]{1,18}")
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,15}")
_INT64 = 2**63
_NO_RAW = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments that are read. All others are skipped undecoded."""

    external: Scalar = msgspec.field(name="External id", default=UNKNOWN)
    correlation: Scalar = UNKNOWN
    stream: Scalar = UNKNOWN
    device: Scalar = UNKNOWN
    bytes: Scalar = UNKNOWN
    collective: Scalar = msgspec.field(name="Collective name", default=None)
    in_nelems: Scalar = msgspec.field(name="In msg nelems", default=None)
    out_nelems: Scalar = msgspec.field(name="Out msg nelems", default=None)
    dtype: Scalar = None
    group: Scalar = msgspec.field(name="Process Group Name", default=None)
    description: Scalar = msgspec.field(name="Process Group Description", default=None)
    ranks: Scalar = msgspec.field(name="Process Group Ranks", default=None)
    size: Scalar = msgspec.field(name="Group size", default=None)
    seq: Scalar = msgspec.field(name="Seq", default=UNKNOWN)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_RAW)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_RAW)


NO_ARGS = Args()


class Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """An event with a duration: the only kind whose rows are kept."""

    cat: str = ""
    name: str = ""
    pid: Scalar = UNKNOWN
    tid: Scalar = UNKNOWN
    ts: int | float | None = None
    dur: int | float = 0
    args: Args = NO_ARGS


class _Times(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """The same event, for its times' text."""

    ts: msgspec.Raw = _NO_RAW
    dur: msgspec.Raw = _NO_RAW


_OTHERS = [
    msgspec.defstruct(f"_Other{ord(tag)}", [], tag_field="ph", tag=tag, gc=False)
    for tag in "BEIMCDNOPRSTVabcefinpstv()"
]
"""The other phases of the trace format: counted, their fields skipped."""

_events: msgspec.json.Decoder[list[msgspec.Struct]] = msgspec.json.Decoder(
    list[functools.reduce(operator.or_, _OTHERS, Complete)]  # type: ignore[misc]
)
_times: msgspec.json.Decoder[list[msgspec.Struct]] = msgspec.json.Decoder(
    list[functools.reduce(operator.or_, _OTHERS, _Times)]  # type: ignore[misc]
)
_args = msgspec.json.Decoder(Args)
_raw_events = msgspec.json.Decoder(list[msgspec.Raw])

DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for a chunk that is not as expected."""


Row = tuple[Complete, int, int]
"""An event with its start and duration in nanoseconds."""


class OpRows(NamedTuple):
    """Where the operators and annotations of a chunk ran that have an External id, as
    the columns of `Ops`.
    """

    external: Int64s
    start_ns: Int64s
    tid: Int64s


class DecodedRows(NamedTuple):
    """The kept rows of a chunk. `comm_args` are of the rows in `comm_rows`.

    A decoder that was asked to leaves out operators that are not kept by their name:
    of them there are `ops` alone, and in `left_pids` what processes they were in.
    """

    events: int  # of every kind
    cat: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    start_ns: Int64s  # NO_TIME where it has none
    duration_ns: Int64s  # NO_TIME where it is no number
    pid: Int64s
    tid: Int64s
    external: Int64s
    correlation: Int64s
    stream: Int64s
    device: Int64s
    bytes: Int64s
    comm_rows: Int64s
    comm_args: list[Args]
    unread: Mapping[str, int]  # complete events of each category that is not kept
    ops: OpRows
    left_pids: Sequence[int] = ()


def decode_chunk(chunk: bytes, names: StringTable) -> DecodedRows:
    """The rows of a chunk. Raises one of `DAMAGED` where any event is damaged."""
    text = b"[" + chunk + b"]"
    decoded = _events.decode(text)
    kept = [e for e in decoded if type(e) is Complete and e.cat in CATEGORIES]
    times = None
    if few_decimals(chunk):
        times = _times_of_numbers(kept)
    if times is None:
        times = _times_of_text(text, decoded)
    cats = [event.cat for event in decoded if type(event) is Complete]
    unread = Counter(cat for cat in cats if cat and cat not in CATEGORIES)
    return rows_of(kept, len(decoded), times, names, dict(unread))


def kept_texts(chunk: bytes) -> list[bytes]:
    """The events' own text, of the rows of a chunk in their order. Raises as
    `decode_chunk`.
    """
    text = b"[" + chunk + b"]"
    events = zip(_raw_events.decode(text), _events.decode(text), strict=True)
    return [
        bytes(raw)
        for raw, event in events
        if type(event) is Complete and event.cat in CATEGORIES
    ]


def decode_args(text: bytes) -> Args:
    """The arguments of one event. Raises one of `DAMAGED`."""
    return _args.decode(text)


def decode_event(text: bytes) -> Row | str:
    """One event with its exact times; where it is no row, the category that it has as
    a complete event, or nothing.
    """
    decoded = _events.decode(b"[" + text + b"]")
    event = decoded[0]
    if not isinstance(event, Complete):
        return ""
    if event.cat not in CATEGORIES:
        return event.cat
    start_ns, duration_ns = _times_of_text(b"[" + text + b"]", decoded)
    return event, int(start_ns[0]), int(duration_ns[0])


def rows_of(
    kept: Sequence[Complete],
    events: int,
    times: tuple[Int64s, Int64s],
    names: StringTable,
    unread: Mapping[str, int],
) -> DecodedRows:
    """Columns of decoded events, of which all are kept."""
    arguments = [e.args for e in kept]
    cat = np.array([CATEGORIES[e.cat] for e in kept], dtype=np.int8)
    name = _name_ids([e.name for e in kept], names)
    collective = np.array([a.collective is not None for a in arguments], dtype=np.bool_)
    comm_rows = np.flatnonzero(collective | _calls_comm(cat, name, names)).tolist()
    pid = _thread_ids([e.pid for e in kept], names)
    tid = _thread_ids([e.tid for e in kept], names)
    external = _ints([a.external for a in arguments])
    told = ran(cat, times, external)
    return DecodedRows(
        events=events,
        cat=cat,
        name=name,
        start_ns=times[0],
        duration_ns=times[1],
        pid=pid,
        tid=tid,
        external=external,
        correlation=_ints([a.correlation for a in arguments]),
        stream=streams(_ints([a.stream for a in arguments])),
        device=_ints([a.device for a in arguments]),
        bytes=_ints([a.bytes for a in arguments]),
        comm_rows=np.array(comm_rows, dtype=np.int64),
        comm_args=[arguments[row] for row in comm_rows],
        unread=unread,
        ops=OpRows(external=external[told], start_ns=times[0][told], tid=tid[told]),
    )


def ran(
    cat: npt.NDArray[np.int8], times: tuple[Int64s, Int64s], external: Int64s
) -> npt.NDArray[np.bool_]:
    """The rows that `ops` tells of."""
    start_ns, duration_ns = times
    sound = (start_ns != NO_TIME) & (duration_ns >= 0)  # NO_TIME is below 0, too
    found: npt.NDArray[np.bool_] = sound & on_host(cat) & (external >= 0)
    return found


def on_host(cat: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Which rows are operators and annotations."""
    found: npt.NDArray[np.bool_] = (cat == Cat.CPU_OP) | (cat == Cat.ANNOTATION)
    return found


def _name_ids(texts: list[str], names: StringTable) -> npt.NDArray[np.int32]:
    known = names.ids
    found = [known.get(text, UNKNOWN) for text in texts]
    if UNKNOWN in found:
        found = [names.id(text) for text in texts]
    return np.array(found, dtype=np.int32)


def _calls_comm(
    cat: npt.NDArray[np.int8], name: npt.NDArray[np.int32], names: StringTable
) -> npt.NDArray[np.bool_]:
    """Which rows are host events whose arguments may describe a collective."""
    said = np.zeros(len(names.strings), dtype=np.bool_)
    for one in distinct(name).tolist():
        said[one] = names.strings[one].startswith(COMM_OP_PREFIXES)
    found: npt.NDArray[np.bool_] = said[name] & on_host(cat)
    return found


def streams(stream: Int64s) -> Int64s:
    """Streams with "no stream", which some writers print as unsigned, as UNKNOWN."""
    return np.where(stream == NO_STREAM_U32, UNKNOWN, stream)


def as_int(value: Scalar) -> int:
    """A whole number, however a writer put it; UNKNOWN where it is none."""
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else UNKNOWN
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _INT64 else UNKNOWN
    if isinstance(value, str):
        if _DECIMAL.fullmatch(value):
            return int(value)
        if _HEX.fullmatch(value):
            return int(value, 16)
    return UNKNOWN


def thread_id(value: Scalar, names: StringTable) -> int:
    """A process's or thread's id: its number, or below -1 one made of its name."""
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        return -2 - names.id(value)
    return as_int(value)


class CommIds:
    """What collectives' arguments say, each once, by the number that rows have."""

    def __init__(self) -> None:
        self._ids: dict[CommArgs, int] = {}
        self._of_said: dict[tuple[object, ...], int] = {}

    @property
    def all(self) -> tuple[CommArgs, ...]:
        return tuple(self._ids)

    def id(self, args: Args) -> int:
        """The number of what some arguments say, but for the sequence number. Nearly
        always they say the same as others: then nothing is made of them.
        """
        said = (
            *(_text(args.collective), args.in_nelems, args.out_nelems),
            *(_text(args.dtype), _text(args.group), _text(args.description)),
            *(_text(args.ranks), args.size, bytes(args.dims), bytes(args.types)),
        )
        found = self._of_said.get(said)
        if found is None:
            found = self._ids.setdefault(_comm_args(args), len(self._ids))
            self._of_said[said] = found
        return found


def _comm_args(args: Args) -> CommArgs:
    return CommArgs(
        collective=_text(args.collective),
        in_nelems=_size(args.in_nelems),
        out_nelems=_size(args.out_nelems),
        dtype=_text(args.dtype),
        group=_text(args.group),
        description=_text(args.description),
        ranks=_text(args.ranks),
        size=_size(args.size),
        dims=_raw(args.dims),
        types=_raw(args.types),
    )


def _text(value: Scalar) -> str | None:
    return None if value is None else str(value)


def _size(value: Scalar) -> int | None:
    size = as_int(value)
    return size if size >= 0 else None


def _raw(value: msgspec.Raw) -> str | None:
    return bytes(value).decode("utf-8", "replace") or None


def _ints(values: list[Scalar]) -> Int64s:
    array = np.array(values) if values else np.empty(0, dtype=np.int64)
    if array.dtype == np.int64:
        return array
    return np.array([as_int(value) for value in values], dtype=np.int64)


def _thread_ids(values: list[Scalar], names: StringTable) -> Int64s:
    array = np.array(values) if values else np.empty(0, dtype=np.int64)
    if array.dtype == np.int64:
        return array
    return np.array([thread_id(value, names) for value in values], dtype=np.int64)


def _times_of_numbers(kept: Sequence[Complete]) -> tuple[Int64s, Int64s] | None:
    starts = [e.ts for e in kept if e.ts is not None]
    if len(starts) != len(kept):
        return None
    start_ns = ns_of_numbers(starts)
    duration_ns = ns_of_numbers([e.dur for e in kept])
    if start_ns is None or duration_ns is None:
        return None
    return start_ns, duration_ns


def _times_of_text(
    text: bytes, decoded: Sequence[msgspec.Struct]
) -> tuple[Int64s, Int64s]:
    start_ns: list[int] = []
    duration_ns: list[int] = []
    for event, times in zip(decoded, _times.decode(text), strict=True):
        if isinstance(event, Complete) and event.cat in CATEGORIES:
            assert isinstance(times, _Times)
            start_ns.append(ns_of_text(bytes(times.ts)))
            # A duration may be left out, which is zero, but not be something else.
            duration = bytes(times.dur)
            duration_ns.append(ns_of_text(duration) if duration else 0)
    return (
        np.array(start_ns, dtype=np.int64),
        np.array(duration_ns, dtype=np.int64),
    )
