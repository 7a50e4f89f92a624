"""A file of `torch.cuda.memory._dump_snapshot` becomes a Snapshot.

Layouts differ by torch: a list of segments alone (1.12), blocks whose stacks lie in a
`history` (1.13 to 2.0), no times (before 2.1), no annotations (before 2.6).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from fsdpdoctor.errors import InputError
from fsdpdoctor.memory_snapshot.columns import (
    HistoryColumns,
    Interned,
    Taken,
    as_text,
)
from fsdpdoctor.memory_snapshot.snapshot import (
    ACTIONS,
    NOT_RECORDED,
    Action,
    Annotation,
    Block,
    BlockState,
    History,
    Segment,
    Snapshot,
)
from fsdpdoctor.quantities import GIB, size
from fsdpdoctor.storage.plain_pickle import NotPlainError, load_plain
from fsdpdoctor.storage.regular_file import open_regular

MAX_BYTES = GIB
"""A history of 100,000 events with stacks of 40 frames takes some 30 MiB, and what is
read takes 3 times a file's size in memory."""

EXPECTED = "expected what torch.cuda.memory._dump_snapshot writes"

_GZIP = b"\x1f\x8b"
_STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "active_awaiting_free": BlockState.AWAITING_FREE,
    "active_pending_free": BlockState.AWAITING_FREE,  # as the code calls it
    "inactive": BlockState.INACTIVE,
}


def read_snapshot(path: Path) -> Snapshot:
    """Read one file. Raises InputError where it is damaged, hostile or none."""
    content = _content(path)
    if not content:
        raise InputError(
            f"{path} is empty: {EXPECTED}; its writer was stopped before it wrote"
        )
    try:
        value = load_plain(content)
    except NotPlainError as error:
        raise InputError(
            f"{path} cannot be read as a memory snapshot: {error}; {EXPECTED}. Dump it "
            "anew"
        ) from None
    try:
        return _Reader(path, len(content)).snapshot(value)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{path} is no memory snapshot that is known here ({error}); {EXPECTED}"
        ) from None


def _content(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            head = file.read(2)
            file.seek(0)
            if head == _GZIP:
                with gzip.open(file) as packed:
                    content = packed.read(MAX_BYTES + 1)
            else:
                content = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} cannot be unpacked: {error}; pack it anew") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise InputError(
            f"{path} has more than {size(MAX_BYTES)}, and reading takes 3 times "
            "that in memory: record a shorter history, for example "
            "_record_memory_history(max_entries=100_000)"
        )
    return content


class _Reader:
    """Makes one Snapshot; what is said twice is kept once."""

    def __init__(self, path: Path, length: int) -> None:
        self._path = path
        # Every list entry takes a byte of the file, unless one list stands in many.
        self._taken = Taken(length)
        self._interned = Interned(self._taken)
        self._unknown_actions: set[str] = set()

    def snapshot(self, value: object) -> Snapshot:
        """Of the whole pickle. Raises TypeError and its like where it is another."""
        if isinstance(value, list):  # segments alone
            value = {"segments": value}
        said = as_mapping(value)
        if "segments" not in said and "device_traces" not in said:
            raise ValueError('it has neither "segments" nor "device_traces"')
        segments = self._list(said.get("segments", []))
        traces = self._list(said.get("device_traces", []))
        return Snapshot(
            path=self._path,
            segments=tuple(self._segment(as_mapping(one)) for one in segments),
            histories=tuple(self._history(one) for one in traces),
            annotations=self._annotations(said.get("external_annotations", [])),
            settings=_settings(said.get("allocator_settings")),
            unknown_actions=tuple(sorted(self._unknown_actions)),
            stacks=self._interned.stacks,  # last: by now they are all known
            texts=self._interned.texts,
        )

    def _list(self, value: object) -> Sequence[object]:
        if not isinstance(value, list | tuple):
            raise TypeError(f"expected a list, found {type(value).__name__}")
        self._taken.take(len(value))
        return value

    def _segment(self, said: Mapping[str, object]) -> Segment:
        address = as_count(said["address"])
        blocks = []
        at = address
        for one in self._list(said["blocks"]):
            block = self._block(as_mapping(one), at)
            at = block.address + block.size_bytes
            blocks.append(block)
        pool = self._list(said.get("segment_pool_id", (0, 0)))
        return Segment(
            device=as_count(said.get("device", 0)),
            address=address,
            total_bytes=as_count(said["total_size"]),
            stream=as_int(said.get("stream", 0)),
            is_large=said.get("segment_type", "large") == "large",
            is_expandable=bool(said.get("is_expandable", False)),
            pool=(as_int(pool[0]), as_int(pool[1])),
            blocks=tuple(blocks),
        )

    def _block(self, said: Mapping[str, object], address: int) -> Block:
        """`address`: where it lies if it does not say so."""
        frames = said.get("frames")
        requested = said.get("requested_size")
        history = self._list(said.get("history", []))
        if history:  # of several allocations in it, the newest comes first
            newest = as_mapping(history[0])
            frames = newest.get("frames", frames)
            requested = newest.get("real_size") if requested is None else requested
        state = as_text(said["state"])
        if state not in _STATES:
            raise ValueError(f"a block's state is {state[:80]!r}")
        size_bytes = as_count(said["size"])
        return Block(
            address=as_count(said.get("address", address)),
            size_bytes=size_bytes,
            requested_bytes=size_bytes if requested is None else as_count(requested),
            state=_STATES[state],
            stack=self._interned.stack(frames) if frames else NOT_RECORDED,
            metadata=self._interned.text(said.get("user_metadata", "")),
        )

    def _history(self, trace: object) -> History:
        entries = self._list(trace)
        columns = HistoryColumns(len(entries))
        for row, one in enumerate(entries):
            entry = as_mapping(one)
            word = as_text(entry["action"])
            action = ACTIONS.get(word)
            if action is None:
                self._unknown_actions.add(word)
                action = Action.SNAPSHOT  # which moves no memory
            key = "device_free" if action is Action.OOM else "addr"
            frames = entry.get("frames")
            columns.action[row] = action
            columns.address[row] = as_count(entry.get(key, 0))
            columns.size_bytes[row] = as_count(entry["size"])
            columns.stream[row] = as_int(entry.get("stream", 0))
            columns.time_us[row] = as_int(entry.get("time_us", NOT_RECORDED))
            if frames is not None:
                columns.stack[row] = self._interned.stack(frames)
            text = entry.get("user_metadata")
            if text:
                columns.metadata[row] = self._interned.text(text)
        return columns.history()

    def _annotations(self, value: object) -> tuple[Annotation, ...]:
        found = []
        for one in self._list(value):
            said = as_mapping(one)
            if not {"name", "stage", "time_us"} <= set(said):
                continue  # other metadata of a range, which nothing here reads
            found.append(
                Annotation(
                    as_int(said["time_us"]),
                    as_text(said["name"]),
                    as_text(said["stage"]) == "START",
                )
            )
        return tuple(sorted(found, key=lambda one: one.time_us))


def _settings(value: object) -> str:
    if not isinstance(value, dict):
        return ""
    return as_text(value.get("PYTORCH_CUDA_ALLOC_CONF") or "")


def as_mapping(value: object) -> Mapping[str, object]:
    """What has to be a dict. Raises TypeError."""
    if not isinstance(value, dict):
        raise TypeError(f"expected a mapping, found {type(value).__name__}")
    return value


def as_int(value: object) -> int:
    """What has to be a whole number of 64 bits. Raises TypeError, OverflowError."""
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, found {type(value).__name__}")
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError("a number has more than 64 bits")
    return value


def as_count(value: object) -> int:
    """The same, and not below 0."""
    number = as_int(value)
    if number < 0:
        raise ValueError(f"a size or an address is {number}")
    return number
