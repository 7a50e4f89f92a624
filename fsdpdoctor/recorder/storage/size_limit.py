"""A record that stays below a size: its oldest steps lose their detail.

[Note: A limited record] `fsdpdoctor run --max-size` is of the whole run; each rank has
an equal part of it, for its header, its heartbeat and its steps. Where steps would take
more than two thirds of that, the oldest become times of steps that were not recorded,
in the first step that stays, until a third is taken: the file and its copy, which takes
its place as a whole, are no more than the part, and whoever is killed meanwhile leaves
the one or the other. No step waits for it: see [Note: Slow disks].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fsdpdoctor.errors import UsageError
from fsdpdoctor.quantities import count, parse_size, size
from fsdpdoctor.run_writer import RankWriter
from fsdpdoctor.schema import (
    HEARTBEAT,
    HEARTBEAT_SLOTS,
    RankHeader,
    StepRecord,
    StepTimes,
)
from fsdpdoctor.schema.step_batch import head_of, with_times

_FULL, _LEFT, _TIMES = (2, 3), (1, 3), (1, 6)
"""Shares of the room for steps: where thinning begins, where it ends, and what times of
steps that have no detail any more may take of it."""
_RETRY = (1, 24)
"""So much more is written before thinning that failed is tried again."""
_TIME_BYTES = 3 * 8
_END_BYTES = 8  # of a stream


def _part(room: int, share: tuple[int, int]) -> int:
    return room * share[0] // share[1]


@dataclass(slots=True, kw_only=True)
class _Step:
    """A step in the stream."""

    start: int  # its first byte
    record: StepTimes  # its own times; none where it was cut off
    before: StepTimes  # of the steps without detail since the last one
    names: list[str]


class LimitedWriter(RankWriter):
    """Writes a rank's files, which take no more than a number of bytes."""

    def __init__(self, folder: Path, header: RankHeader, most: int) -> None:
        self._most = most
        self._steps: list[_Step] = []
        self._thinned = self._forgotten = 0
        self._try_at = 0
        self._room = most  # bytes for steps
        super().__init__(folder, header)

    @property
    def is_full(self) -> bool:
        """Whether it is time to thin; asked while training waits, of no file."""
        another = self._size - self._steps[-1].start if self._steps else 0
        return self._size + another > max(self._try_at, _part(self._room, _FULL))

    def write_header(self, header: RankHeader) -> None:
        """Replace what the rank says of itself, and say what is left out."""
        self._header = header
        if self._thinned:
            header = replace(header, warnings=(*header.warnings, self._left_out()))
        super().write_header(header)
        run_header = self._header_path.with_name("run.json")
        others = HEARTBEAT.size * HEARTBEAT_SLOTS
        others += 2 * self._header_path.stat().st_size  # a new one lies beside it
        if run_header.exists():
            others += run_header.stat().st_size
        self._room = self._most - others

    def write_step(self, record: StepRecord, new_names: Sequence[str] = ()) -> None:
        """Append a step, if there is room for it. Raises OSError."""
        start = self._size
        super().write_step(record, new_names)
        own = [record] if record.complete else []
        self._steps.append(
            _Step(
                start=start,
                record=StepTimes.build(
                    len(own),
                    step=[r.step for r in own],
                    start_ns=[r.start_ns for r in own],
                    end_ns=[r.end_ns for r in own],
                ),
                before=record.unrecorded,
                names=list(new_names),
            )
        )

    def thin(self) -> None:
        """Leave out the oldest steps' detail. What stays is as it was where the disk
        does not take it: then the record ends when it is full.
        """
        if not self.is_full:
            return
        try:
            self._thin()
        except (OSError, RuntimeError, ValueError):
            self._try_at = self._size + _part(self._room, _RETRY)

    def _append(self, content: bytes) -> None:
        if len(content) > _END_BYTES and self._size + len(content) > self._room:
            self._broken = True
            raise OSError(
                f"--max-size leaves {size(max(self._room, 0))} for this rank's steps, "
                f"{size(self._size)} of it taken, and the next takes "
                f"{size(len(content))}"
            )
        super()._append(content)

    def _thin(self) -> None:
        steps, most = self._steps, _part(self._room, _TIMES) // _TIME_BYTES
        first = self._first_to_stay(most)
        if first == 0:
            return
        parts = [part for s in steps[:first] for part in (s.before, s.record)]
        times = StepTimes.concat([*parts, steps[first].before])
        forgotten = max(0, len(times) - most)
        times = times.rows(slice(forgotten, None))
        names = [name for s in steps[: first + 1] for name in s.names]
        ends = [*(s.start for s in steps[first + 1 :]), self._size]
        head = self._between(0, head_of(self._between(0, 8)))
        batch = self._between(max(steps[first].start, len(head)), ends[0])
        beginning = with_times(head + batch, times, names)
        self._begin_with(beginning, ends[0])
        moved = len(beginning) - ends[0]
        kept = _Step(start=0, record=steps[first].record, before=times, names=names)
        self._steps = [kept, *steps[first + 1 :]]
        for step in self._steps[1:]:
            step.start += moved
        self._thinned += sum(len(s.record) for s in steps[:first])
        self._forgotten += forgotten
        self.write_header(self._header)

    def _first_to_stay(self, most: int) -> int:
        """The oldest step whose detail fits, with so many times of those before it; the
        last whole one in any case.
        """
        found = times = 0
        for i, step in enumerate(self._steps):
            times += len(step.before)
            taken = self._size - step.start + min(times, most) * _TIME_BYTES
            if len(step.record):
                found = i
                if taken <= _part(self._room, _LEFT):
                    break
            times += len(step.record)
        return found

    def _left_out(self) -> str:
        words = (
            f"--max-size {size(self._most)} for this rank: of the oldest "
            f"{count(self._thinned, 'recorded step')} only the times are kept"
        )
        if self._forgotten:
            words += f", and nothing of the oldest {count(self._forgotten, 'step')}"
        return words


def writer_of(folder: Path, header: RankHeader, max_bytes: int | None) -> RankWriter:
    """What writes a rank's files; `max_bytes` are of all ranks together."""
    if max_bytes is None:
        return RankWriter(folder, header)
    return LimitedWriter(folder, header, max_bytes // header.world_size)


def max_bytes_of(text: str | None) -> int | None:
    """What `--max-size` asks for. Raises UsageError."""
    if text is None:
        return None
    found = parse_size(text)
    if not found:
        raise UsageError(f"--max-size is {text!r}, expected a size, as 500MB or 2GiB")
    return found
