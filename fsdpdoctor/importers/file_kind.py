"""What kind of file something is, by its content, so that errors can say it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from enum import StrEnum
from pathlib import Path

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers.reader.decompress import UNPACK_ERRORS, open_trace

SNIFF_BYTES = 1 << 18
"""Kineto's head, with 8 devices and a list of 1024 ranks, is well below."""


class FileKind(StrEnum):
    """The kinds told apart. The value completes "this is ..."."""

    KINETO = "a Kineto (torch.profiler) trace"
    CHAKRA = "a Chakra execution trace (ExecutionTraceObserver)"
    FLIGHT_RECORDER = "a Flight Recorder dump"
    MEMORY_SNAPSHOT = "a CUDA memory snapshot"
    NSYS_SQLITE = "an Nsight Systems SQLite export"
    NSYS_REPORT = "an Nsight Systems report (.nsys-rep)"
    SQLITE = "a SQLite database"
    PICKLE = "a pickle"
    OTHER_JSON = "JSON of another kind"
    EMPTY = "an empty file"
    UNKNOWN = "of a kind that fsdpdoctor does not know"


WHAT_TO_DO: dict[FileKind, str] = {
    FileKind.CHAKRA: (
        "it holds operators without device times; give the Kineto trace that was "
        "recorded beside it"
    ),
    FileKind.FLIGHT_RECORDER: "read it with `fsdpdoctor hang`",
    FileKind.MEMORY_SNAPSHOT: (
        "it holds allocations and no collectives; record the run with "
        "`fsdpdoctor run` for memory by unit"
    ),
    FileKind.NSYS_REPORT: "export it with `nsys export --type sqlite` first",
    FileKind.SQLITE: "expected an Nsight Systems export with its CUPTI tables",
    FileKind.PICKLE: "expected the JSON that torch.profiler exports",
    FileKind.OTHER_JSON: 'expected a "traceEvents" list, as torch.profiler writes it',
    FileKind.EMPTY: "its writer was stopped before it wrote anything",
    FileKind.UNKNOWN: "expected a .json or .json.gz that torch.profiler exported",
}
"""For each kind that is no trace, what its owner can do."""

_EVENTS = re.compile(rb'"traceEvents"\s*:')
_BARE_EVENTS = re.compile(rb"^\[\s*(?:\{|\])")
_EVENT_KEYS = re.compile(rb'"ph"\s*:')
_CHAKRA = re.compile(rb'"schema"\s*:\s*"[\d.]+-chakra')
_CHAKRA_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_NSYS_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV")


def sniff(path: Path) -> FileKind:
    """The kind of a file. Raises InputError where it cannot be read."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a file")
    head = _head(path)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        return FileKind.EMPTY
    if start[:1] in b"{[":
        return _json_kind(start)
    if head.startswith(b"SQLite format 3\0"):
        return _sqlite_kind(path)
    if head[:1] == b"\x80" or head[-1:] == b".":
        return _pickle_kind(head)
    if path.suffix in (".nsys-rep", ".qdrep"):
        return FileKind.NSYS_REPORT
    return FileKind.UNKNOWN


def _head(path: Path) -> bytes:
    parts: list[bytes] = []
    length = 0
    with open_trace(path) as file:
        try:
            while length < SNIFF_BYTES and (part := file.read1(SNIFF_BYTES)):
                parts.append(part)
                length += len(part)
        except UNPACK_ERRORS:
            pass  # a cut archive's beginning is enough to know it by
    return b"".join(parts)


def _json_kind(start: bytes) -> FileKind:
    if _EVENTS.search(start):
        return FileKind.KINETO
    if _CHAKRA.search(start) or _CHAKRA_NODES.search(start):
        return FileKind.CHAKRA
    if b'"pg_config"' in start and b'"entries"' in start:
        return FileKind.FLIGHT_RECORDER
    if _BARE_EVENTS.match(start) and _EVENT_KEYS.search(start):
        return FileKind.KINETO
    return FileKind.OTHER_JSON


def _sqlite_kind(path: Path) -> FileKind:
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        ) as db:
            rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = {name for (name,) in rows}
    except sqlite3.Error:
        return FileKind.SQLITE
    return FileKind.NSYS_SQLITE if tables & set(_NSYS_TABLES) else FileKind.SQLITE


def _pickle_kind(head: bytes) -> FileKind:
    if b"device_traces" in head or b"segments" in head:
        return FileKind.MEMORY_SNAPSHOT
    if b"pg_config" in head or b"entries" in head:
        return FileKind.FLIGHT_RECORDER
    return FileKind.PICKLE
