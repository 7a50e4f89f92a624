r"""Cuts a trace file into chunks of whole events, in bounded memory.

The array of events is never parsed to be cut: a file repeats one separator between
its events (`\n  },\n  {` with its own indentation, or `}, {"ph":` in files of one
line), which is learned from its first events. A cut that was wrong, because a
string or a nested list held the same bytes, does not decode, and is then put right
by `repair`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

from fsdpdoctor.importers.reader.decompress import UNPACK_ERRORS, open_trace

BLOCK = 2 << 20
"""Bytes read at a time: chunks of this size keep a worker far below 250 MB."""

HEAD_BLOCK = 1 << 16
"""Bytes of the head that are read at first, and then twice as many each time: of a
file that is only asked what it is no more need be unpacked.
"""

MAX_HEAD = 64 << 20
"""Bytes before the events. Kineto's own head is a few kilobytes; 1024 process groups
of 1024 ranks would make some 6 MB."""

MAX_CHUNK = 64 << 20
"""Bytes without a separator, after which a file is taken for damaged."""

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_GAP = re.compile(rb"\s*,\s*\{")
_FIRST_KEY = re.compile(rb'\s*"[^"\\]{1,64}"\s*:')
_NEWLINE_SEPARATOR = re.compile(rb"\n[ \t]*\}\s*,\s*\n[ \t]*\{")
_ANY_SEPARATOR = re.compile(rb'\}\s*,\s*\{\s*"[^"\\]{1,64}"\s*:')


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some events' text, and where in the (unpacked) file it stands."""

    offset: int
    text: bytes
    last: bool = False  # what follows the events may be in it


@dataclass(slots=True, kw_only=True)
class Framing:
    """What surrounds the chunks of one file. `chunks` fills it in as it goes."""

    head: bytes = b""
    separator: bytes = b""
    size: int = 0  # bytes unpacked so far
    broken: str | None = None  # why reading stopped before the end
    has_events: bool = False  # an array of events was found


class _Reader:
    """Reads on over damage: what can be unpacked is, and the rest is named."""

    def __init__(self, file: BufferedIOBase, framing: Framing) -> None:
        self._file = file
        self._framing = framing

    def read(self, size: int) -> bytes:
        """So many bytes; fewer or none at the end or where the file breaks off."""
        return b"".join(self.read_parts(size))

    def read_parts(self, size: int) -> list[bytes]:
        """The same as it comes: joined with what it follows, it is copied once."""
        parts: list[bytes] = []
        length = 0
        while length < size and self._framing.broken is None:
            try:
                part = self._file.read1(size - length)
            except UNPACK_ERRORS as error:
                self._framing.broken = str(error)
                break
            if not part:
                break
            parts.append(part)
            length += len(part)
        self._framing.size += length
        return parts


def read_head(path: Path) -> Framing:
    """Only what precedes a file's events, unpacked no further than needed."""
    framing = Framing()
    with open_trace(path) as file:
        _find_events(_Reader(file, framing), framing)
    return framing


def chunks(file: BufferedIOBase, framing: Framing) -> Iterator[Chunk]:
    """The events of an open trace, about a block at a time.

    The last chunk is the only one that may hold more than events: the array's
    end and the keys after it, or an event that was cut off.
    """
    reader = _Reader(file, framing)
    block = _find_events(reader, framing)
    if not framing.has_events:
        return
    if len(block) < BLOCK // 4:
        block += reader.read(BLOCK)
    separator = framing.separator = _learn_separator(block)
    offset = framing.size - len(block)
    rest, before = b"", [b""]
    while block:
        # Cutting in the newest part only, each byte is copied once.
        cut = _cut(block, separator, force=len(rest) > BLOCK)
        if not cut and any(before):
            before, block = [b""], b"".join((*before, block))
            cut = _cut(block, separator, force=len(rest) > BLOCK)
        if cut:
            text = b"".join((rest, *before, memoryview(block)[:cut]))
            yield Chunk(offset=offset, text=text)
            begin = block.index(b"{", cut)
            offset += len(text) + begin - cut
            rest = block[begin:]
        elif len(rest) > MAX_CHUNK:
            yield Chunk(offset=offset, text=rest + block)
            offset += len(rest) + len(block)
            rest = b""
        else:
            rest += block
        *before, block = reader.read_parts(BLOCK) or [b""]
    yield Chunk(offset=offset, text=rest, last=True)


def _find_events(reader: _Reader, framing: Framing) -> bytes:
    """Read up to the array of events; what was read after its bracket."""
    buffer = b""
    while len(buffer) < MAX_HEAD:
        block = reader.read(max(min(HEAD_BLOCK, BLOCK), len(buffer)))
        if not block:
            break
        buffer += block
        start = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
        if start[:1] == b"[":  # the format's other layout: a bare array
            framing.has_events = True
            return start[1:]
        if found := _EVENTS_KEY.search(buffer):
            framing.head = buffer[: found.start()]
            framing.has_events = True
            return buffer[found.end() :]
    framing.head = buffer
    return b""


def _learn_separator(buffer: bytes) -> bytes:
    """The bytes between two events, from one's closing brace to the next's opening.

    With the line break before the brace where there is one, which no string can
    hold; else with the next event's first key, which makes a chance match rare.
    """
    text = buffer[:BLOCK].decode("latin-1")
    start = text.find("{")
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text, max(start, 0))
    except (ValueError, RecursionError):
        return _guess_separator(buffer)
    gap = _GAP.match(buffer, end)
    if gap is None:
        return _guess_separator(buffer)
    newline = buffer.rfind(b"\n", 0, end)
    indent = buffer[newline : end - 1]
    if newline >= 0 and not indent.strip():
        return buffer[newline : gap.end()]
    separator = buffer[end - 1 : gap.end()]
    if b"\n" in separator:
        return separator
    key = _FIRST_KEY.match(buffer, gap.end())
    return separator + (key[0] if key else b"")


def _guess_separator(buffer: bytes) -> bytes:
    found = _NEWLINE_SEPARATOR.search(buffer) or _ANY_SEPARATOR.search(buffer)
    return found[0] if found else b"},{"


def _cut(block: bytes, separator: bytes, *, force: bool) -> int:
    """Where to cut: after the closing brace before the last separator; 0: nowhere.

    `force` takes anything that looks like one: the file has another than it began
    with.
    """
    found = block.rfind(separator)
    if found >= 0:
        return found + separator.index(b"}") + 1
    last = 0
    if force:
        for match in _ANY_SEPARATOR.finditer(block):
            last = match.start() + 1
    return last
