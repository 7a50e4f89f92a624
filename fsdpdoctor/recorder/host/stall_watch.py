"""Writes down where this rank is while nothing progresses.

[Note: The stall watch] A thread looks twice a second whether the heartbeat, or a
process group's count of collectives, has moved. Training never waits for it, and
notices nothing of it; what it cannot do (write, read a stack) it leaves. It is none of
`threading`'s, which a script may count or join.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import math
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

from fsdpdoctor.rank_end import (
    GONE,
    STALL_SUFFIX,
    GroupCount,
    Position,
    Stall,
    ThreadPosition,
)
from fsdpdoctor.recorder.host.position import Positions, group_counts
from fsdpdoctor.recorder.own_threads import Door, start_thread
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.recorder.storage.run_folder import number, text_of
from fsdpdoctor.schema import rank_stem

_ENCODED = json.JSONEncoder().encode  # a script may put its own into `json.dumps`
LOOK_EVERY_S = 0.5
WRITE_EVERY_S = 1.0
"""While nothing progresses: so old is a living rank's word at most."""


class StallWatch:
    """The watching thread of one recording."""

    def __init__(
        self, recording: Recording, folder: Path, rank: int, after_s: float
    ) -> None:
        self._rec = recording
        self._rank = rank
        self._after_s = after_s
        self._path = (folder / rank_stem(rank)).with_suffix(STALL_SUFFIX)
        self._folder = folder
        self._positions = Positions()
        self._training = _thread.get_ident()
        self._over = _thread.allocate_lock()  # held while it lasts
        self._over.acquire()
        self._stopped = False
        self._door = Door()  # the counts are asked of process groups, in C++
        self._seen: object = None
        self._moved_ns = time.time_ns()
        self._moved_s = self._wrote_s = time.monotonic()
        self._written = False
        self._counts: tuple[GroupCount, ...] = ()
        self._counted_at = -1  # by the heartbeat
        self._threads: tuple[ThreadPosition, ...] = ()  # when it last stood still
        self._stood_s = -math.inf  # until then

    def start(self) -> None:
        """Watch from here on, on a thread that dies with the process."""
        if self._after_s > 0:
            with contextlib.suppress(RuntimeError):  # no more threads to be had
                start_thread(self._watch)

    def stop(self, *, moved_on: bool) -> None:
        """Watch no more; with `moved_on` what was written is taken away."""
        if not self._stopped:
            self._stopped = True
            self._over.release()
            self._door.shut()
        if moved_on:
            self._take_away()

    def position(self) -> Position:
        """Where this rank is as it ends. A thread whose collective has timed out is
        gone by then: it is told where it stood until just now.
        """
        now = self._now(standing=False)
        lately = self._written or time.monotonic() - self._stood_s <= self._after_s
        if now.threads or not lately:
            return now
        return replace(now, threads=self._threads)

    def _now(self, *, standing: bool) -> Position:
        """Where this rank is; groups that are torn down, as they last were.

        Where something has happened since they were counted, they are not told: what
        two ranks counted at two moments is no difference between them.
        """
        now = self._positions.now(
            self._training,
            self._rec.step,
            self._rec.micro_batch,
            self._moved_ns,
            standing=standing,
        )
        if now.groups or self._counted_at != self._rec.heartbeat.count:
            return now
        return replace(now, groups=self._counts)

    def _watch(self) -> None:  # untraced: its own thread
        every = min(LOOK_EVERY_S, self._after_s / 2)
        while not self._over.acquire(timeout=every) and self._door.enter():
            try:
                self._look()
            except Exception:  # whatever fails here: it is no affair of the training's
                continue
            finally:
                self._door.leave()
        self._positions.close()

    def _look(self) -> None:
        counts = group_counts()
        seen = (self._rec.heartbeat.count, counts)
        now = time.monotonic()
        if seen != self._seen:
            self._seen = seen
            if counts:
                self._counts, self._counted_at = counts, seen[0]
            self._positions.forget()
            if self._written:
                self._stood_s = now
            self._moved_ns, self._moved_s = time.time_ns(), now
            self._take_away()
        elif now - self._moved_s >= self._after_s and (
            not self._written or now - self._wrote_s >= WRITE_EVERY_S
        ):
            self._write(now)

    def _write(self, now: float) -> None:
        stall = Stall(
            rank=self._rank,
            pid=os.getpid(),
            written_unix_ns=time.time_ns(),
            after_s=self._after_s,
            position=self._now(standing=True),
            neighbours=dict(self._neighbours()),
        )
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(_ENCODED(asdict(stall)), encoding="utf-8")
        if not self._stopped:
            new.replace(self._path)
        self._written, self._wrote_s = True, now
        self._threads = stall.position.threads

    def _take_away(self) -> None:
        if self._written:
            self._written = False
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _neighbours(self) -> list[tuple[str, str]]:
        """The states of this node's other ranks, by the kernel's letter."""
        local, count = number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1)
        first = self._rank - local
        states = []
        for rank in range(first, first + count):
            if rank == self._rank:
                continue
            path = (self._folder / rank_stem(rank)).with_suffix(".json")
            state = _state_of(path)
            if state is not None:
                states.append((str(rank), state))
        return states


def _state_of(header: Path) -> str | None:
    pid = _pid(header)
    if pid is None:
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return GONE
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[0]


def _pid(header: Path) -> int | None:
    try:
        found = json.loads(text_of(header)).get("pid")
    except (OSError, ValueError, AttributeError):  # or JSON that is no header
        return None
    return found if isinstance(found, int) and found > 0 else None
