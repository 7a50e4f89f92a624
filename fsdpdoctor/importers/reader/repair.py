"""The second pass over a chunk that did not decode: keep every event that can be.

Real traces hold backslashes of Windows paths, control characters, quotes inside
names, bytes that are not UTF-8, `nan`, and ends that were never written
(pytorch/kineto#336, pytorch/pytorch#136180, #98432, #130622). One bad event never
costs its neighbours, and what was repaired or dropped is counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

import msgspec

from fsdpdoctor.importers.reader.chunks import Chunk
from fsdpdoctor.importers.reader.decode_json import (
    DAMAGED,
    Args,
    Complete,
    Row,
    Scalar,
    decode_event,
)
from fsdpdoctor.importers.reader.timestamps import ns_of_text
from fsdpdoctor.importers.reader.trace_file import CATEGORIES
from fsdpdoctor.schema import NO_TIME

_BETWEEN = re.compile(r"[\s,]*")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ENDS_KEY = re.compile(r"\s*:")
_ENDS_VALUE = re.compile(r'\s*(?:\}|,\s*"[^"]{0,200}"\s*:|$)')
_ENDS_ITEM = re.compile(r"\s*(?:\]|,|$)")
_NO_NUMBER = re.compile(r"[-+]?(?:nan\b(?:\([^)]*\))?|inf(?:inity)?\b)", re.IGNORECASE)
_ARRAY_END = re.compile(r"\}(\s*\])")

MOST_MENDED = 1 << 20
"""Bytes of a damaged event that are gone through one by one. Whole ones may be larger;
real ones have at most some kilobytes."""


@dataclass(slots=True, kw_only=True)
class Salvaged:
    """What a chunk still held."""

    rows: list[Row] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)  # of `rows`, mended
    events: int = 0  # read, of every kind
    unread: Counter[str] = field(default_factory=Counter)  # see `DecodedRows`
    repaired: int = 0  # of `events`
    dropped: int = 0
    damaged_at: int | None = None  # bytes, of the first event not read as it stands
    truncated_at: int | None = None  # bytes, of an event whose end is missing
    tail: bytes | None = None  # what follows the array's end, where that was met


def salvage(chunk: Chunk, separator: bytes) -> Salvaged:
    """Read a chunk event by event, mending and leaving out as little as can be."""
    found = Salvaged()
    text = chunk.text.decode("latin-1")  # one character a byte: offsets stay true
    between = separator.decode("latin-1")
    decoder = json.JSONDecoder(strict=False)
    at = 0
    while (at := _skip(text, at)) < len(text):
        if text[at] == "]":
            found.tail = chunk.text[at + 1 :]
            break
        end: int | None
        try:
            end = decoder.raw_decode(text, at)[1]
        except (ValueError, RecursionError):
            end = _probable_end(text, at, between)
            if end is None and not chunk.last:
                end = len(text)  # only the file's last piece can be cut off
        if end is None:  # nothing closes it
            found.truncated_at = chunk.offset + at
            break
        _read_event(found, chunk.text[at:end], chunk.offset + at)
        at = end
    return found


def _skip(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _probable_end(text: str, at: int, separator: str) -> int | None:
    """Where an event that does not parse ends: at the next separator."""
    found = text.find(separator, at + 1)
    if found >= 0:
        return found + separator.index("}") + 1
    end = None
    for match in _ARRAY_END.finditer(text, at):
        end = match.start(1)
    return end


def _read_event(found: Salvaged, text: bytes, offset: int) -> None:
    read = _decode(text)
    if read is not None:
        _take(found, read, text)
        return
    if found.damaged_at is None:
        found.damaged_at = offset
    if len(text) > MOST_MENDED:
        found.dropped += 1
        return
    # The second reading takes a backslash before a closing quote for a path's end.
    for path_ends in (False, True):
        mended = mend(text, path_ends=path_ends).encode("utf-8", "replace")
        read = _decode(mended)
        if read is not None:
            _take(found, read, mended)
            found.repaired += 1
            return
    found.dropped += 1


def _take(found: Salvaged, read: Row | str, text: bytes) -> None:
    found.events += 1
    if not isinstance(read, str):
        found.rows.append(read)
        found.texts.append(text)
    elif read:
        found.unread[read] += 1


def _decode(text: bytes) -> Row | str | None:
    """What `decode_event` gives; None where an event does not decode."""
    try:
        return decode_event(text)
    except msgspec.ValidationError:
        return _decode_loosely(text)
    except DAMAGED:
        return None


def _decode_loosely(text: bytes) -> Row | str | None:
    """The same of an event of valid JSON, whatever the types of its values."""
    try:
        event = json.loads(text, parse_float=_decimal)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    cat, name, args = event.get("cat"), event.get("name"), event.get("args")
    if event.get("ph") != "X" or not isinstance(cat, str):
        return ""
    if cat not in CATEGORIES:
        return cat
    row = Complete(
        cat=cat,
        name=name if isinstance(name, str) else json.dumps(name, default=str),
        pid=_scalar(event.get("pid")),
        tid=_scalar(event.get("tid")),
        args=_loose_args(args if isinstance(args, dict) else {}),
    )
    return row, _loose_ns(event.get("ts")), _loose_ns(event.get("dur", 0))


def _decimal(text: str) -> Decimal:
    """A number with its decimals; NaN where its exponent is beyond all bounds."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


def _loose_args(args: dict[str, object]) -> Args:
    values: dict[str, object] = {}
    for spec in msgspec.structs.fields(Args):
        if spec.encode_name not in args:
            continue
        value = args[spec.encode_name]
        if spec.name in ("dims", "types"):
            values[spec.name] = msgspec.Raw(json.dumps(value, default=str))
        else:
            values[spec.name] = _scalar(value)
    return Args(**values)  # type: ignore[arg-type]


def _scalar(value: object) -> Scalar:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return value


def _loose_ns(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        return NO_TIME
    return ns_of_text(str(value).encode("ascii", "replace"))


def mend(text: bytes, *, path_ends: bool) -> str:
    r"""An event's text with what JSON forbids made harmless.

    Bytes that are not UTF-8 become `\xNN` in the string, a backslash that begins
    no escape is doubled, control characters and inner quotes are escaped, and
    numbers that are none become null.
    """
    given = text.decode("utf-8", "backslashreplace")
    out: list[str] = []
    nesting: list[str] = []
    value_next = False
    at = 0
    while at < len(given):
        char = given[at]
        if char == '"':
            in_object = not nesting or nesting[-1] == "{"
            ends = _ENDS_ITEM
            if in_object:
                ends = _ENDS_VALUE if value_next else _ENDS_KEY
            string, at = _mend_string(given, at + 1, ends, path_ends=path_ends)
            out.append(f'"{string}"')
            continue
        if char in "{[":
            nesting.append(char)
        elif char in "}]" and nesting:
            nesting.pop()
        value_next = char == ":" or (value_next and char not in ",{[]}")
        if number := _NO_NUMBER.match(given, at):
            out.append("null")
            at = number.end()
            continue
        out.append(char)
        at += 1
    return "".join(out)


def _mend_string(
    text: str, at: int, ends: re.Pattern[str], *, path_ends: bool
) -> tuple[str, int]:
    """The mended inside of a string that begins at `at`, and where to go on."""
    out: list[str] = []
    while at < len(text):
        char = text[at]
        if char == '"':
            if ends.match(text, at + 1):
                return "".join(out), at + 1
            out.append('\\"')
            at += 1
        elif char == "\\":
            escape = _escape(text, at)
            if path_ends and escape == '\\"' and ends.match(text, at + 2):
                escape = "\\"
            out.append(_valid_escape(escape))
            at += len(escape)
        else:
            out.append(f"\\u{ord(char):04x}" if ord(char) < 0x20 else char)
            at += 1
    return "".join(out), at


def _escape(text: str, at: int) -> str:
    """The escape sequence at a backslash, or the backslash alone."""
    following = text[at + 1 : at + 2]
    if following and following in '"\\/bfnrt':
        return text[at : at + 2]
    if pair := _PAIR.match(text, at):
        return pair[0]
    if following == "u" and _HEX4.match(text, at + 2):
        return text[at : at + 6]
    return "\\"


def _valid_escape(escape: str) -> str:
    if escape == "\\":
        return "\\\\"
    if len(escape) == 6 and 0xD800 <= int(escape[2:], 16) < 0xE000:
        return "\\ufffd"  # half of a surrogate pair
    return escape
