"""What ranks left of where they stood, see `rank_end`: read, and written again."""

from __future__ import annotations

import os
import re
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import msgspec

from fsdpdoctor.errors import InputError
from fsdpdoctor.rank_end import FATAL_SUFFIX, GONE, STALL_SUFFIX, Fatal, Frame, Stall
from fsdpdoctor.schema import HEARTBEAT, HEARTBEAT_BEFORE, HEARTBEAT_SLOTS
from fsdpdoctor.storage.regular_file import read_regular
from fsdpdoctor.untrusted.headers import checked_values, short_word

MOST_BYTES = 1 << 20
"""A stall is some kilobytes; more is none of ours."""

STOPPED = ("T", "t")
"""The kernel's letters for a process that a signal, or a debugger, stopped."""

_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d{1,9}) in (?P<name>.+)')
_LAUNCHER = "/fsdpdoctor/recorder/launch/run_script.py"
"""In whose frames a recorded script runs."""

_REASON = re.compile(r"Fatal Python error: (?P<reason>[^\n]{1,200})")


@dataclass(frozen=True, slots=True)
class Beat:
    """One event of a rank's heartbeat; ids as in `Spans`."""

    count: int
    step: int
    micro_batch: int
    unit: int
    kind: int
    phase: int
    seq: int
    group: int
    time_ns: int
    size: int = 0  # bytes of a collective outside FSDP2's units; 0: not told


def read_beats(path: Path) -> tuple[Beat, ...]:
    """A rank's last events, oldest first; empty where it left none."""
    try:
        content = read_regular(path, HEARTBEAT.size * HEARTBEAT_SLOTS, cut=True)
    except (OSError, InputError):
        return ()  # an import has none
    before = len(content) <= HEARTBEAT_BEFORE.size * HEARTBEAT_SLOTS
    slot = HEARTBEAT_BEFORE if before else HEARTBEAT
    whole = min(len(content) // slot.size, HEARTBEAT_SLOTS) * slot.size
    found = [Beat(*values) for values in slot.iter_unpack(content[:whole])]
    return tuple(sorted((b for b in found if b.count > 0), key=lambda b: b.count))


def read_stall(stem: Path) -> Stall | None:
    """A rank's own word that nothing progresses; None where it left none."""
    content = _content(stem.with_suffix(STALL_SUFFIX))
    if not content:
        return None
    try:
        return checked_values(msgspec.json.decode(content, type=Stall), content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InputError):
        return None  # damaged, or of a later version: as if it were not there


def read_fatal(stem: Path) -> Fatal | None:
    """What a fatal signal left; None where there was none."""
    path = stem.with_suffix(FATAL_SUFFIX)
    text = _content(path).decode(errors="replace")
    found = _REASON.search(text)
    if found is None:
        return None
    # Of a native thread, which has no Python stack: then the main thread's, the last.
    _, marked, current = text.partition("Current thread")
    blocks = (current if marked else text[found.end() :]).strip("\n").split("\n\n")
    block = blocks[0] if marked else _last_thread(blocks)
    block = block.partition(_LAUNCHER)[0]
    frames = [
        Frame(
            file=short_word(match["file"]),
            line=int(match["line"]),
            function=short_word(match["name"]),
            user=is_users(match["file"]),
        )
        for match in _FRAME.finditer(block)
    ]
    return Fatal(
        reason=found["reason"].strip(),
        stack=tuple(frames[::-1]),
        native=not marked,
        time_unix_ns=path.stat().st_mtime_ns,
    )


def write_evidence(
    stem: Path, beats: tuple[Beat, ...], stall: Stall | None, fatal: Fatal | None
) -> None:
    """Write what the functions above read. Raises OSError."""
    if beats:
        slots = b"".join(HEARTBEAT.pack(*astuple(beat)) for beat in beats)
        stem.with_suffix(".beat").write_bytes(slots)
    if stall is not None:
        stem.with_suffix(STALL_SUFFIX).write_bytes(msgspec.json.encode(stall))
    if fatal is not None:
        thread = "Thread 0x0:" if fatal.native else "Current thread 0x0:"
        lines = [f"Fatal Python error: {fatal.reason}", "", thread]
        lines += [
            f'  File "{frame.file}", line {frame.line} in {frame.function}'
            for frame in reversed(fatal.stack)
        ]
        stem.with_suffix(FATAL_SUFFIX).write_text("\n".join(lines), encoding="utf-8")


def _last_thread(blocks: list[str]) -> str:
    threads = [block for block in blocks if block.startswith("Thread 0x")]
    return threads[-1] if threads else blocks[0]


def is_users(path: str) -> bool:
    """Whether a file of a stack is the user's, told by its name alone."""
    return not (
        path.startswith(("<", "torch/", "fsdpdoctor/"))
        or "site-packages/torch/" in path
        or "/fsdpdoctor/" in path
        or re.search(r"/lib/python3\.\d+/(?!site-packages/)", path)
    )


CLOCK_SET_NS = 60 * 10**9
"""By so much the system's clock may differ from when a rank began, without having been
set, or the machine started again."""


def process_state(
    host: str | None, pid: int, since_unix_ns: int, unix_minus_clock_ns: int = 0
) -> str | None:
    """The kernel's letter for a process, `GONE` where it has ended; None where that
    cannot be known here: another host, no /proc, or a clock that was set since, so that
    another process might have the number.
    """
    if pid <= 0 or not Path("/proc/self/stat").exists():
        return None
    if host != os.uname().nodename:  # as `socket.gethostname`, without its imports
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return GONE
    was_set_ns = time.time_ns() - time.perf_counter_ns() - unix_minus_clock_ns
    if unix_minus_clock_ns and abs(was_set_ns) > CLOCK_SET_NS:
        return None
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK") + _booted_unix_s()
    if started_s * 1e9 > since_unix_ns + 60e9:
        return GONE  # the number was given to another process since
    return GONE if fields[0] in ("Z", "X") else fields[0]


def _booted_unix_s() -> float:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, MOST_BYTES, cut=True)
    except (OSError, InputError):
        return b""
