"""Which rank a trace file is of: by its own word, its name, or the user's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.importers.reader.chunks import Framing, chunks, read_head
from fsdpdoctor.importers.reader.decompress import open_trace
from fsdpdoctor.importers.reader.read_trace import read_metadata
from fsdpdoctor.schema import UNKNOWN
from fsdpdoctor.untrusted.headers import MOST_RANKS

_NAME_PATTERNS = (
    re.compile(r"(?:^|[^a-z])(?:global_?)?rank[-_.=]?(\d{1,7})(?!\d)", re.I),
    re.compile(
        r"(?:^|[^a-z])(?:worker|trainer|process|proc)[-_.=]?(\d{1,7})(?!\d)", re.I
    ),
    re.compile(r"(?:^|[-_.])r(\d{1,7})(?:[-_.]|$)", re.I),
)
"""How tools put the rank in a file's name, the most telling first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedFile:
    """A trace file and the rank it is of."""

    path: Path
    rank: int
    world_size: int  # as the file says it, or UNKNOWN
    notes: tuple[str, ...] = ()


def rank_files(
    paths: Sequence[Path], rank_regex: str | None = None
) -> list[RankedFile]:
    """Find the rank of every file, ascending. `rank_regex` is searched in the path;
    its first group is the rank, and it then decides alone.

    Raises InputError, with names, where a rank is not found or found twice.
    """
    pattern = _compile(rank_regex)
    found = [_rank_of(path, pattern) for path in paths]
    unknown = [path for path, rank, _, _ in found if rank is None]
    if unknown and len(paths) == 1 and pattern is None:
        note = (
            f"{paths[0].name} does not say its rank, nor does its name: taken as rank 0"
        )
        return [
            RankedFile(path=paths[0], rank=0, world_size=found[0][2], notes=(note,))
        ]
    if unknown:
        shown = ", ".join(path.name for path in unknown[:5])
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise InputError(
            f"no rank is known for {shown}{more}: expected distributedInfo in the file "
            "or a name like rank3.json; say where it is with --rank-regex "
            "'node(\\d+)'"
        )
    by_rank: dict[int, Path] = {}
    for path, rank, _, _ in found:
        assert rank is not None
        if rank in by_rank:
            raise InputError(
                f"{by_rank[rank]} and {path} are both of rank {rank}: give each rank's "
                "trace once, or say where the rank is in the name with --rank-regex"
            )
        by_rank[rank] = path
    files = [
        RankedFile(path=path, rank=rank or 0, world_size=world_size, notes=notes)
        for path, rank, world_size, notes in found
    ]
    return sorted(files, key=lambda file: file.rank)


def _compile(rank_regex: str | None) -> re.Pattern[str] | None:
    if rank_regex is None:
        return None
    try:
        pattern = re.compile(rank_regex)
    except re.error as error:
        raise UsageError(
            f"--rank-regex {rank_regex!r} does not parse: {error}"
        ) from None
    if pattern.groups < 1:
        raise UsageError(
            f"--rank-regex {rank_regex!r} has no group: put the rank's digits in "
            "parentheses, as in 'rank(\\d+)'"
        )
    return pattern


def _rank_of(
    path: Path, pattern: re.Pattern[str] | None
) -> tuple[Path, int | None, int, tuple[str, ...]]:
    """A file, its rank or None, its world size or UNKNOWN, and notes."""
    info = _distributed_info(path)
    said = _whole(info.get("rank"))
    world_size = _whole(info.get("world_size"))
    size = UNKNOWN if world_size is None else world_size
    if pattern is not None:
        return path, _match(pattern, path), size, ()
    if said is not None:
        return path, said, size, ()
    named = rank_of_name(path.name)
    notes = () if named is None else (f"rank {named} is from the name {path.name}",)
    return path, named, size, notes


def rank_in_name(path: Path, rank_regex: str | None) -> int | None:
    """The rank in a path: by the user's expression where there is one."""
    pattern = _compile(rank_regex)
    return rank_of_name(path.name) if pattern is None else _match(pattern, path)


def _match(pattern: re.Pattern[str], path: Path) -> int | None:
    match = pattern.search(str(path))
    digits = match[1] if match else None
    return int(digits) if digits is not None and digits.isdecimal() else None


def rank_of_name(name: str) -> int | None:
    """The rank in a file's name, or None."""
    for pattern in _NAME_PATTERNS:
        if match := pattern.search(name):
            return int(match[1])
    return None


def _distributed_info(path: Path) -> dict[str, object]:
    """`distributedInfo` from the head of a file, which is where Kineto puts it; only
    where neither that nor the name has a rank is the whole file read for its tail.
    """
    framing = read_head(path)
    info = read_metadata(framing.head).get("distributedInfo")
    if isinstance(info, dict) and "rank" in info:
        return info
    head = info if isinstance(info, dict) else {}
    if rank_of_name(path.name) is not None:
        return head
    tail = read_metadata(b"", _tail(path)).get("distributedInfo")
    return head | tail if isinstance(tail, dict) else head


def _tail(path: Path) -> bytes:
    """What follows the last event of a file."""
    framing = Framing()
    last = b""
    with open_trace(path) as file:
        for chunk in chunks(file, framing):
            last = chunk.text
    # Up to the key the piece holds an event and other keys; what is looked for is
    # one object, so the keys before it are not needed.
    at = last.rfind(b'"distributedInfo"')
    return last[at:] if at >= 0 else b""


def _whole(value: object) -> int | None:
    """A number of ranks, or of one; None where it can be none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= MOST_RANKS else None
