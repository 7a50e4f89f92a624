"""Writes the files of a run. The recorder uses it, so: numpy and nanoarrow only.

See [Note: A run on disk] in `schema`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from nanoarrow.ipc import StreamWriter

from fsdpdoctor.schema import (
    HEARTBEAT,
    HEARTBEAT_SLOTS,
    UNKNOWN,
    RankHeader,
    RunHeader,
    StepRecord,
    rank_stem,
)
from fsdpdoctor.schema.step_batch import batch_of, origin_of
from fsdpdoctor.schema.step_message import Messages, messages_like

_BLOCK = 4096
_SLACK = 1024
"""A rank's header leaves so much room that its last word fits in its own blocks, where
the disk has no other."""


def write_json(path: Path, header: RunHeader | RankHeader, *, slack: int = 0) -> None:
    """Put a header in place of an earlier one, whole or not at all.

    With slack, where the disk has no room for another, it is written over the one
    that is there.
    """
    text = _as_json(header)
    content = text
    if slack:
        content = text.ljust(-(-(len(text) + slack) // _BLOCK) * _BLOCK - 1) + b"\n"
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        file = OwnFile(new)
        try:
            file.append(content, 0)
        finally:
            file.close()
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        if not slack or not _written_over(path, text):
            raise


def _as_json(header: RunHeader | RankHeader) -> bytes:
    """A field in each line: laid out further, it would take four times as long, of
    which a training waits for some. Names that are no Unicode, as of arguments and
    files may be, lose what no reader takes.
    """
    # First what changes at the end, see `_end_put_in`.
    names = sorted((f.name for f in fields(header)), key=lambda name: name != "ended")
    lines = (f'"{name}": {_dumped(getattr(header, name))}' for name in names)
    return ("{\n" + ",\n".join(lines) + "\n}").encode("utf-8", "replace")


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


_dumped = json.JSONEncoder(
    default=_fields_of, allow_nan=False, ensure_ascii=False
).encode
"""Not `json.dumps`: a script may put a quicker one there, which gives bytes."""


def _written_over(path: Path, text: bytes) -> bool:
    """Whether it has taken the place of what is there, which else stays whole."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(file).st_size
        before = os.pread(file, size, 0)
        if len(text) >= size:
            return False
        written = _put(file, text.ljust(size - 1) + b"\n")
        if written < size:
            _put(file, before[:written])
        return written == size
    except OSError:
        return False
    finally:
        os.close(file)


_RUNNING = b'"ended": "running"'


def _end_put_in(file: OwnFile, header: RankHeader) -> bool:
    """Whether the header that is there says at least how the rank ended."""
    word = "detached" if header.ended.startswith("detached") else header.ended
    said = f'"ended":{_dumped(word)}'.encode("utf-8", "replace")
    if word == "running" or len(said) > len(_RUNNING):
        return False
    try:
        at = os.pread(file.number(), _BLOCK, 0).find(_RUNNING)
        put = _put(file.number(), said.ljust(len(_RUNNING)), at) if at >= 0 else 0
    except OSError:
        return False
    return put == len(_RUNNING)


def _put(file: int, content: bytes, at: int = 0) -> int:
    """Write over what is there, as much of it as the system takes: how many bytes."""
    done = 0
    with contextlib.suppress(OSError):
        while done < len(content):
            done += os.pwrite(file, content[done:], at + done)
    return done


_CREATED = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def open_file(path: Path, *, new: bool = False, flags: int = _CREATED) -> int:
    """Create a file, under a descriptor that is none of the three standard ones: a
    script may have closed those, and go on printing. With `new` there must be none.
    Raises OSError, also of a pipe: that somebody reads it is not waited for.
    """
    flags |= getattr(os, "O_CLOEXEC", 0) | os.O_NONBLOCK | (os.O_EXCL if new else 0)
    low: list[int] = []
    file = os.open(path, flags, 0o666)
    if stat.S_ISFIFO(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is a pipe")
    try:
        while file <= 2:
            low.append(file)
            file = os.dup(file)
    finally:
        for taken in low:
            os.close(taken)
    return file


def _identity(file: int) -> tuple[int, int] | None:
    try:
        there = os.fstat(file)
    except OSError:
        return None
    return there.st_dev, there.st_ino


_PIECE = 1 << 20


class OwnFile:
    """A file that stays open. The script may close its descriptor, as a daemon closes
    all there are, and get the same number for a file of its own: what is there is asked
    before each use, and is left alone.
    """

    def __init__(self, path: Path, *, new: bool = False, flags: int = _CREATED) -> None:
        self._file = open_file(path, new=new, flags=flags)
        self._identity = _identity(self._file)

    def number(self) -> int:
        """Its descriptor, for one use. Raises OSError where the script has it."""
        if self._file < 0 or _identity(self._file) != self._identity:
            raise OSError("the script has closed its file")
        return self._file

    def append(self, content: bytes, size: int) -> None:
        """Write all of it behind the first `size` bytes, or nothing. Raises OSError."""
        file = self.number()
        try:
            write_all(file, content)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, size)
            raise

    def overwrite(self, content: bytes, piece: int) -> None:
        """Write from the beginning on, in pieces of this size: one for which there is
        no room is zeros, and those after it stay as they were. Raises OSError.
        """
        file = self.number()
        done = _put(file, content)
        if done < len(content):
            torn = done % piece
            _put(file, bytes(torn), done - torn)
            raise OSError(f"the system took {done:,} of {len(content):,} bytes")

    def pieces(self, path: Path, start: int, end: int) -> Iterator[bytes]:
        """What it holds between two bytes, read through its name. Raises OSError."""
        self.number()
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _identity(file) != self._identity:
                raise OSError("there is another file in its place")
            while start < end:
                piece = os.pread(file, min(_PIECE, end - start), start)
                if not piece:
                    raise OSError("it has been cut off")
                start += len(piece)
                yield piece
        finally:
            os.close(file)

    def close(self) -> None:
        """Close it; later calls do nothing."""
        file, self._file = self._file, -1
        if file >= 0 and self._identity == _identity(file):
            os.close(file)


def write_all(file: int, content: bytes) -> None:
    """Write to a descriptor, in as many pieces as the system takes."""
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


def write_run_header(folder: Path, header: RunHeader) -> None:
    """Write `run.json`; `folder` is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", header)


class RankWriter:
    """One rank's files in a run folder. Each step is on its way to disk when
    `write_step` returns; the operating system keeps it if the process is killed.
    """

    def __init__(self, folder: Path, header: RankHeader) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / rank_stem(header.rank)
        self._header_path = stem.with_suffix(".json")
        self._header_file: OwnFile | None = None  # the one that is there, open
        self.write_header(header)
        self._path = stem.with_suffix(".arrows")
        self._file = OwnFile(self._path)
        self._size = 0
        self._broken = False
        self._bytes = io.BytesIO()
        self._stream = StreamWriter.from_writable(self._bytes)
        self._messages: Messages | None = None  # what writes all but the first step
        self._origin = origin_of(header)

    def write_header(self, header: RankHeader) -> None:
        """Replace what the rank says of itself. Where that cannot be any more (no file
        may be so large, the process has given up its rights, the folder was moved), at
        least its end is said in the header that is there. Raises OSError.
        """
        try:
            write_json(self._header_path, header, slack=_SLACK)
        except OSError:
            if self._header_file is None or not _end_put_in(self._header_file, header):
                raise
            return
        self._close_header()
        with contextlib.suppress(OSError):
            self._header_file = OwnFile(self._header_path, flags=os.O_RDWR)

    def _close_header(self) -> None:
        file, self._header_file = self._header_file, None
        if file is not None:
            file.close()

    def write_step(self, record: StepRecord, new_names: Sequence[str] = ()) -> None:
        """Append a step. `new_names` get the next ids, in order, from 0 on."""
        if self._messages is not None:
            self._append(self._messages.of(record, new_names))
            return
        begins = not self._size
        origin = self._origin if begins else {}  # a stream says it once
        self._stream.write_array(batch_of(record, new_names, origin))
        content = self._encoded()
        self._append(content)
        if begins:
            self._messages = messages_like(content, record, new_names)

    def close(self) -> None:
        """End the stream. Without it readers see all steps, and a cut-off tail."""
        try:
            self._stream.close()
            if self._size and not self._broken:  # nothing ends what never began
                self._append(self._encoded())
        finally:
            self._file.close()
            self._close_header()

    def _encoded(self) -> bytes:
        content = self._bytes.getvalue()
        self._bytes.seek(0)
        self._bytes.truncate()
        return content

    def _append(self, content: bytes) -> None:
        """A step is in the file whole, or not at all."""
        try:
            self._file.append(content, self._size)
        except OSError:
            self._broken = True
            raise
        self._size += len(content)

    def _between(self, start: int, end: int) -> bytes:
        """What is in the stream between two bytes. Raises OSError."""
        return b"".join(self._file.pieces(self._path, start, end))

    def _begin_with(self, first: bytes, start: int) -> None:
        """Put something in place of the stream's first bytes, up to `start`: whoever
        reads it finds it as before, or whole. Raises OSError.
        """
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        size = 0
        try:
            file = OwnFile(new)
            try:
                for piece in chain(
                    [first], self._file.pieces(self._path, start, self._size)
                ):
                    file.append(piece, size)
                    size += len(piece)
                new.replace(self._path)
            except OSError:
                file.close()
                raise
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file, self._size = file, size


def remove_rank(folder: Path, rank: int) -> None:
    """Take back the files of a rank whose record could not begin."""
    for suffix in (".json", ".arrows", ".beat"):
        with contextlib.suppress(OSError):
            (folder / rank_stem(rank)).with_suffix(suffix).unlink(missing_ok=True)


_SLOT = HEARTBEAT.size


class Heartbeat:
    """A rank's last events, in a file that outlives the process.

    See [Note: The heartbeat] in `schema`. `beat` costs about a third of a microsecond
    and touches no file; `flush`, which may fail and may take its time, does. Nothing is
    mapped: a page that the disk has no room for, or that somebody has cut off, would
    end the process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ring = bytearray(HEARTBEAT.size * HEARTBEAT_SLOTS)
        # Who makes this file has the rank, in this folder.
        path = (folder / rank_stem(rank)).with_suffix(".beat")
        try:
            self._file = OwnFile(path, new=True)
        except FileExistsError:
            raise FileExistsError(
                f"rank {rank} has a record in {folder} already"
            ) from None
        self._count = self._written = 0
        self._pack = HEARTBEAT.pack_into
        self.step = 0  # that events are of from here on, and the micro-batch in it
        self.micro_batch = UNKNOWN

    @property
    def count(self) -> int:
        """How many events there were."""
        return self._count

    def beat(
        self,
        kind: int,
        phase: int,
        unit: int,
        seq: int = UNKNOWN,
        group: int = UNKNOWN,
        size: int = 0,
    ) -> None:
        """Overwrite the oldest slot with what happens now."""
        self.beat_at(perf_counter_ns(), kind, phase, unit, seq, group, size)

    def beat_at(
        self,
        time_ns: int,
        kind: int,
        phase: int,
        unit: int,
        seq: int = UNKNOWN,
        group: int = UNKNOWN,
        size: int = 0,
    ) -> None:
        """The same of what happened then."""
        self._count = count = self._count + 1
        self._pack(
            self._ring,
            (count - 1) % HEARTBEAT_SLOTS * _SLOT,
            count,
            self.step,
            self.micro_batch,
            unit,
            kind,
            phase,
            seq,
            group,
            time_ns,
            size,
        )

    def flush(self) -> None:
        """Bring the file up to date. Raises OSError."""
        count = self._count
        if count != self._written:
            self._file.overwrite(bytes(self._ring), _SLOT)
            self._written = count

    def close(self) -> None:
        """Close the file, which stays."""
        self._written = self._count  # nothing more is brought there
        self._file.close()
