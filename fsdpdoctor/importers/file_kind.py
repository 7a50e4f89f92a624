"""What kind of file something is, by its content, so that errors can say it."""

from __future__ import annotations

import re
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
    RECORD = "a file of a recorded run"
    REPORT = "a report of fsdpdoctor's own"
    OTHER_JSON = "JSON of another kind"
    EMPTY = "an empty file"
    LFS_POINTER = "a Git LFS pointer, not the file itself"
    ANNEX_POINTER = "a git-annex pointer, not the file itself"
    UTF16 = "text in UTF-16"
    UTF32 = "text in UTF-32"
    ZIP = "a zip archive"
    TAR = "a tar archive"
    SEVEN_ZIP = "a 7-Zip archive"
    ZSTD = "packed with zstd"
    XZ = "packed with xz"
    BZIP2 = "packed with bzip2"
    UNKNOWN = "of a kind that fsdpdoctor does not know"


WHAT_TO_DO: dict[FileKind, str] = {
    FileKind.CHAKRA: (
        "it holds operators without device times; give the Kineto trace that was "
        "recorded beside it"
    ),
    FileKind.FLIGHT_RECORDER: "read it with `fsdpdoctor hang`",
    FileKind.MEMORY_SNAPSHOT: (
        "it holds allocations and no collectives; read it with `fsdpdoctor analyze`, "
        "apart from traces"
    ),
    FileKind.NSYS_REPORT: "export it with `nsys export --type sqlite` first",
    FileKind.SQLITE: "expected an Nsight Systems export with its CUPTI tables",
    FileKind.PICKLE: "expected the JSON that torch.profiler exports",
    FileKind.RECORD: "give the folder that it lies in, with all files of each rank",
    FileKind.REPORT: "give the run that it is of",
    FileKind.OTHER_JSON: 'expected a "traceEvents" list, as torch.profiler writes it',
    FileKind.LFS_POINTER: "fetch it with `git lfs pull`",
    FileKind.ANNEX_POINTER: "fetch it with `git annex get`",
    FileKind.UTF16: "convert it with `iconv -f UTF-16 -t UTF-8`",
    FileKind.UTF32: "convert it with `iconv -f UTF-32 -t UTF-8`",
    FileKind.ZIP: "unpack it and give the traces in it",
    FileKind.TAR: "unpack it and give the traces in it",
    FileKind.SEVEN_ZIP: "unpack it and give the traces in it",
    FileKind.ZSTD: "unpack it with `zstd -d`, or pack it with gzip",
    FileKind.XZ: "unpack it with `xz -d`, or pack it with gzip",
    FileKind.BZIP2: "unpack it with `bzip2 -d`, or pack it with gzip",
    FileKind.EMPTY: "its writer was stopped before it wrote anything",
    FileKind.UNKNOWN: "expected a .json or .json.gz that torch.profiler exported",
}
"""For each kind that is no trace, what its owner can do."""

_BEGINS: tuple[tuple[bytes, FileKind], ...] = (
    (b"\xff\xff\xff\xff", FileKind.RECORD),  # steps, as an Arrow stream
    (b"version https://git-lfs.github.com/spec/", FileKind.LFS_POINTER),
    (b"version https://hawser.github.com/spec/", FileKind.LFS_POINTER),
    (b"/annex/objects/", FileKind.ANNEX_POINTER),
    (b"PK\x03\x04", FileKind.ZIP),
    (b"7z\xbc\xaf\x27\x1c", FileKind.SEVEN_ZIP),
    (b"\x28\xb5\x2f\xfd", FileKind.ZSTD),
    (b"\xfd7zXZ\x00", FileKind.XZ),
    (b"BZh", FileKind.BZIP2),
    # Before UTF-16, whose mark begins as this one does.
    (b"\xff\xfe\x00\x00", FileKind.UTF32),
    (b"\x00\x00\xfe\xff", FileKind.UTF32),
    (b"{\x00\x00\x00", FileKind.UTF32),
    (b"[\x00\x00\x00", FileKind.UTF32),
    (b"\xff\xfe", FileKind.UTF16),
    (b"\xfe\xff", FileKind.UTF16),
    (b"{\x00", FileKind.UTF16),
    (b"[\x00", FileKind.UTF16),
    (b"\x00{", FileKind.UTF16),
    (b"\x00[", FileKind.UTF16),
)
"""What a file of a kind begins with."""

_TAR_MAGIC = slice(257, 262), b"ustar"

_EVENTS = re.compile(rb'"traceEvents"\s*:')
_BARE_EVENTS = re.compile(rb"^\[\s*(?:\{|\])")
_EVENT_KEYS = re.compile(rb'"ph"\s*:')
_CHAKRA = re.compile(rb'"schema"\s*:\s*"[\d.]+-chakra')
_CHAKRA_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_RECORD = re.compile(rb'"(?:run_id|world_size)"\s*:')
_NSYS_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV")


def sniff(path: Path) -> FileKind:
    """The kind of a file. Raises InputError where it cannot be read."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a file")
    head = _head(path)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        return FileKind.EMPTY
    for magic, kind in _BEGINS:
        if head.startswith(magic):
            return kind
    where, magic = _TAR_MAGIC
    if head[where] == magic:
        return FileKind.TAR
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
    if b'"schema_version"' in start and _RECORD.search(start):
        return FileKind.REPORT if b'"verdict"' in start else FileKind.RECORD
    return FileKind.OTHER_JSON


def _sqlite_kind(path: Path) -> FileKind:
    import sqlite3

    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        ) as db:
            db.text_factory = lambda text: text.decode(errors="replace")
            rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = {name for (name,) in rows}
    except (sqlite3.Error, UnicodeDecodeError):  # it quotes damaged bytes, undecoded
        return FileKind.SQLITE
    return FileKind.NSYS_SQLITE if tables & set(_NSYS_TABLES) else FileKind.SQLITE


def _pickle_kind(head: bytes) -> FileKind:
    if b"device_traces" in head or b"segments" in head:
        return FileKind.MEMORY_SNAPSHOT
    if b"pg_config" in head or b"entries" in head:
        return FileKind.FLIGHT_RECORDER
    return FileKind.PICKLE
