"""Flight Recorder dumps: what each rank had enqueued and not finished when it hung.

Dumps are pickles, which could run any code: only plain data is let in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpdoctor.errors import InputError
from fsdpdoctor.storage.plain_pickle import load_plain
from fsdpdoctor.storage.regular_file import read_regular
from fsdpdoctor.untrusted.headers import LONGEST_WORD, short_word

MAX_BYTES = 1 << 30
"""A ring of 20 000 entries with stacks is some 50 MB; more than this is no dump."""

MOST_VALUES = 1 << 17
"""In one value of a dump: the ranks of a group are the longest."""

_RANK_IN_NAME = re.compile(r"(\d{1,7})(?:\.(?:pkl|pickle|json|bin))?$")
_NOT_A_DUMP = re.compile(r"\.(?:log|txt|md)$", re.IGNORECASE)
_PEER = re.compile(r"(?:send|recv) (\d+)(?:->|<-)(\d+)")

COMPLETED = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operation of a dump."""

    order: int  # among all operations of the rank
    group: str  # name of the process group
    seq: int  # within the group; point-to-point has its own numbers
    operation: str  # "_all_gather_base", "send 0->3"
    sizes: str  # of inputs and outputs, as text
    dtypes: str
    state: str  # "scheduled", "started", "completed"
    point_to_point: bool

    @property
    def pending(self) -> bool:
        return self.state != COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """One rank's dump."""

    path: Path
    rank: int
    version: str
    groups: Mapping[str, tuple[int, ...]]  # global ranks, by group name
    enqueued: Mapping[str, int]  # last collective enqueued, by group name, if known
    entries: tuple[Entry, ...]  # oldest first

    @property
    def pending(self) -> tuple[Entry, ...]:
        """What was enqueued and not seen to finish, oldest first."""
        return tuple(entry for entry in self.entries if entry.pending)


def load_dumps(
    paths: Sequence[Path], on_left_out: Callable[[str], None] | None = None
) -> tuple[Dump, ...]:
    """Read dumps, or folders of dumps, ascending by rank.

    Raises InputError where a file is none, or two are of one rank. With `on_left_out`
    a folder's files that cannot be read are left out, and it hears why.
    """
    dumps: dict[int, Dump] = {}
    others: list[str] = []
    for path in paths:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            if path.is_dir() and (not file.is_file() or _NOT_A_DUMP.search(file.name)):
                continue
            try:
                dump = load_dump(file)
            except InputError as error:
                if on_left_out is None or not path.is_dir():
                    raise
                others.append(str(error))
                continue
            if dump.rank in dumps:
                raise InputError(
                    f"{dumps[dump.rank].path} and {file} are both of rank {dump.rank}: "
                    "give the dumps of one hang"
                )
            dumps[dump.rank] = dump
    if not dumps:
        why = f": {others[0]}" if others else ""
        more = f" (and {len(others) - 1} files more)" if others[1:] else ""
        raise InputError(f"no dump found in {', '.join(map(str, paths))}{why}{more}")
    if on_left_out is not None:
        for other in others:
            on_left_out(other)
    return tuple(dumps[rank] for rank in sorted(dumps))


def load_dump(path: Path) -> Dump:
    """Read one dump. Raises InputError."""
    match = _RANK_IN_NAME.search(path.name)
    if match is None:
        raise InputError(
            f"{path} has no rank at the end of its name; expected one such as "
            "nccl_trace_rank_3 or _dump_3"
        )
    content = _load(path)
    try:
        groups = _groups(_mapping(content["pg_config"]))
        entries = tuple(_entry(_mapping(e)) for e in _list(content["entries"]))
        return Dump(
            path=path,
            rank=int(match[1]),
            version=_text(content.get("version")),
            groups=groups,
            enqueued=_enqueued(_mapping(content.get("pg_status", {})), groups, entries),
            entries=tuple(sorted(entries, key=lambda entry: entry.order)),
        )
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{path} is no Flight Recorder dump that is known here ({error!r}); "
            "expected what torch 2.4 or later writes on a NCCL timeout"
        ) from None


def _load(path: Path) -> Mapping[str, object]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} is larger than any Flight Recorder dump")
        content = read_regular(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if not content:
        raise InputError(f"{path} is empty: its rank was stopped before it dumped")
    try:
        if content[:1] == b"{":
            return _mapping(json.loads(content))
        return _mapping(load_plain(content))
    except (ValueError, TypeError, RecursionError) as error:  # of JSON too
        raise InputError(
            f"{path} cannot be read as a Flight Recorder dump: {error}"
        ) from None


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a mapping, found {type(value).__name__}")
    return value


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {type(value).__name__}")
    return value


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _text(value: object) -> str:
    """A value of a few words or sizes, no longer than they may be."""
    return short_word(_whole_text(value))


def _whole_text(value: object) -> str:
    """A value of a few words or sizes, or a list of ranks. A pickle of a kilobyte may
    hold a list of itself ten times, of that ten times, and so on: what is larger is
    none of torch's.
    """
    left = [value]
    for _ in range(MOST_VALUES):
        if not left:
            return str(value)
        one = left.pop()
        if isinstance(one, list | tuple):
            left += one[:MOST_VALUES]
        elif not isinstance(one, str | int | float | None) or (
            isinstance(one, str) and len(one) > LONGEST_WORD and one is not value
        ):
            break
    raise TypeError(f"expected words or sizes, found a {type(value).__name__}")


def _groups(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    groups = {}
    for name, one in config.items():
        said = _mapping(one)
        ranks = re.findall(r"\d+", _whole_text(said["ranks"]))
        groups[_text(said.get("name", name))] = tuple(int(rank) for rank in ranks)
    return groups


def _entry(said: Mapping[str, object]) -> Entry:
    point_to_point = bool(said.get("is_p2p"))
    group = said["process_group"]
    name = group[0] if isinstance(group, list | tuple) else group
    operation = _text(said["profiling_name"])
    key = "p2p_seq_id" if point_to_point else "collective_seq_id"
    return Entry(
        order=_int(said["record_id"]),
        group=_text(name),
        seq=_int(said[key]),
        operation=operation.removeprefix("nccl:"),
        sizes=_both(said, "sizes"),
        dtypes=_both(said, "dtypes"),
        state=_text(said["state"]),
        point_to_point=point_to_point,
    )


def _both(said: Mapping[str, object], of: str) -> str:
    given, made = (said.get(f"{side}_{of}") for side in ("input", "output"))
    return f"{_all_of(given)} -> {_all_of(made)}"


def _all_of(tensors: object) -> str:
    """Of a call with hundreds of tensors, too."""
    return _text(tensors) if isinstance(tensors, str) else _whole_text(tensors)


def _enqueued(
    status: Mapping[str, object],
    groups: Mapping[str, tuple[int, ...]],
    entries: Sequence[Entry],
) -> dict[str, int]:
    """The last collective that a rank enqueued in each group.

    A status is by the group's number, its ranks are by its name. Both count up with
    the groups' creation, so that they pair in order; where they do not add up, only
    the entries are believed.
    """
    last: dict[str, int] = {}
    if len(status) == len(groups) and all(name.isdecimal() for name in groups):
        numbers = sorted(status, key=int)
        for name, number in zip(sorted(groups, key=int), numbers, strict=True):
            last[name] = _int(_mapping(status[number])["last_enqueued_collective"])
    for entry in entries:
        if not entry.point_to_point:
            last[entry.group] = max(last.get(entry.group, -1), entry.seq)
    return last


def peer_of(entry: Entry, members: Sequence[int], rank: int) -> int | None:
    """The other rank of a point-to-point operation, None where it is not known."""
    match = _PEER.search(entry.operation)
    if match is None:
        return None
    ends = [int(match[1]), int(match[2])]
    if max(ends) >= len(members):
        return None
    others = [members[end] for end in ends if members[end] != rank]
    return others[0] if others else None
