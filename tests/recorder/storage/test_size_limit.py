"""A record that has a limit stays below it, and says what it leaves out."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor import run_writer
from fsdpdoctor.errors import UsageError
from fsdpdoctor.recorder.storage.size_limit import (
    LimitedWriter,
    max_bytes_of,
    writer_of,
)
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.run_writer import RankWriter, write_run_header
from fsdpdoctor.schema import RankHeader, Spans, StepRecord, StepTimes
from fsdpdoctor.schema.string_table import StringTable
from tests.test_run import RUN, a_step

HEADER = RankHeader(rank=0, world_size=1)
ALONE = replace(RUN, world_size=1)
EVERY = 4
"""One step in so many is recorded."""


def nth(number: int, names: StringTable) -> StepRecord:
    """A recorded step with 50 spans, and the three before it that were not."""
    step = number * EVERY
    others = [s for s in range(step - EVERY + 1, step) if s >= 0]
    spans = Spans.build(
        kind=[2] * 50,
        start_ns=[step * 10] * 50,
        name=[names.id(f"train.py:{number}")] * 50,
    )
    times = StepTimes.build(
        len(others),
        step=others,
        start_ns=[s * 10 for s in others],
        end_ns=[s * 10 + 9 for s in others],
    )
    return replace(a_step(step, spans), unrecorded=times)


def folder_bytes(folder: Path) -> int:
    """Of all that lies in it, and of the heartbeat, which has its place there."""
    return sum(path.stat().st_size for path in folder.iterdir()) + 64 * 56


def written(folder: Path, most: int, steps: int) -> LimitedWriter:
    """A rank that has recorded so many steps, in a folder of no more than `most`."""
    write_run_header(folder, ALONE)
    writer, names = LimitedWriter(folder, HEADER, most), StringTable()
    for number in range(steps):
        writer.write_step(nth(number, names), names.take_new())
        if writer.is_full:
            writer.thin()
        assert folder_bytes(folder) <= most
    return writer


def read(folder: Path) -> RankData:
    """Rank 0."""
    return open_run(folder).sources[0].load()


def times_of(data: RankData) -> list[tuple[int, int, int]]:
    """Step, start and end of the steps without detail, as they stand in the record."""
    tables = [record.unrecorded for record in data.steps]
    return [
        row
        for t in tables
        for row in zip(
            t.step.tolist(), t.start_ns.tolist(), t.end_ns.tolist(), strict=True
        )
    ]


def said(limit: str, steps: int) -> str:
    """What the header has of the steps that have no detail any more."""
    kept = f"of the oldest {steps} recorded steps only the times are kept"
    return f"--max-size {limit} for this rank: {kept}"


def test_oldest_steps_keep_their_times_alone(tmp_path: Path) -> None:
    """The newest have their detail, names and all; no step is told twice, or lost."""
    written(tmp_path, 150_000, 60).close()
    data = read(tmp_path)
    detailed = [record.step for record in data.steps]
    first = detailed[0]
    assert data.truncated is None
    assert detailed == list(range(first, 240, EVERY))
    assert 5 <= len(detailed) < 30
    others = [s for s in range(237) if s not in detailed]
    assert times_of(data) == [(s, s * 10, s * 10 + 9) for s in others]
    for record in data.steps:
        assert record.spans.start_ns.tolist() == [record.step * 10] * 50
        assert {data.name(n) for n in record.spans.name.tolist()} == {
            f"train.py:{record.step // EVERY}"
        }
    assert data.header.warnings == (said("146 KiB", first // EVERY),)


def test_nothing_is_thinned_below_the_limit(tmp_path: Path) -> None:
    """And the file is the one that is written without one."""
    (tmp_path / "limited").mkdir()
    (tmp_path / "plain").mkdir()
    written(tmp_path / "limited", 10_000_000, 10).close()
    names = StringTable()
    plain = writer_of(tmp_path / "plain", HEADER, None)
    assert type(plain) is RankWriter
    for number in range(10):
        plain.write_step(nth(number, names), names.take_new())
    plain.close()
    limited, other = (
        (tmp_path / name / "rank00000.arrows").read_bytes()
        for name in ("limited", "plain")
    )
    assert limited == other
    assert read(tmp_path / "limited").header.warnings == ()


def test_the_copy_is_within_the_limit_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that has no more room than that, nothing fails."""
    most: list[int] = []
    put = Path.replace

    def replace_noted(self: Path, target: Path) -> Path:
        most.append(folder_bytes(tmp_path))
        return put(self, target)

    monkeypatch.setattr(Path, "replace", replace_noted)
    written(tmp_path, 150_000, 60).close()
    assert len(most) > 4
    assert max(most) <= 150_000


def test_times_are_forgotten_where_they_alone_take_too_much(tmp_path: Path) -> None:
    """The oldest first, and how many is said."""
    writer, names = LimitedWriter(tmp_path, HEADER, 100_000), StringTable()
    write_run_header(tmp_path, ALONE)
    for number in range(400):
        writer.write_step(nth(number, names), names.take_new())
        if writer.is_full:
            writer.thin()
    writer.close()
    data = read(tmp_path)
    detailed = [record.step for record in data.steps]
    times = times_of(data)
    others = [s for s in range(1597) if s not in detailed]
    assert times == [(s, s * 10, s * 10 + 9) for s in others[-len(times) :]]
    forgotten = f", and nothing of the oldest {len(others) - len(times):,} steps"
    assert data.header.warnings == (said("97.7 KiB", detailed[0] // EVERY) + forgotten,)


def test_a_copy_that_the_disk_does_not_take_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record goes on to its limit, and then ends with words; all can be read."""
    made = run_writer.OwnFile

    def full(path: Path, **how: Any) -> run_writer.OwnFile:
        if path.suffix == ".new" and ".arrows" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return made(path, **how)

    monkeypatch.setattr(run_writer, "OwnFile", full)
    with pytest.raises(OSError, match=r"--max-size leaves 135 KiB for this rank's"):
        written(tmp_path, 150_000, 60)
    data = read(tmp_path)
    assert [record.step for record in data.steps][:3] == [0, 4, 8]
    assert len(data.steps) == 17
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_rank_that_is_killed_meanwhile_leaves_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before its copy takes the file's place, or after, with no word of it yet."""
    write_run_header(tmp_path, ALONE)
    writer, names = LimitedWriter(tmp_path, HEADER, 150_000), StringTable()
    number = 0
    while not writer.is_full:
        writer.write_step(nth(number, names), names.take_new())
        number += 1
    put = os.replace

    class Killed(BaseException):
        """Nothing runs after it."""

    def killed(self: Path, target: Path) -> None:
        if moment == "after":
            put(self, target)
        raise Killed

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(Killed):
        writer.thin()
    data = read(tmp_path)
    assert data.truncated is None
    steps = [record.step for record in data.steps]
    assert steps[-1] == (number - 1) * EVERY
    known = sorted([*steps, *(s for s, _, _ in times_of(data))])
    assert known == list(range(steps[-1] + 1))
    assert (steps[0] == 0) == (moment == "before")


def test_a_file_that_somebody_else_has_put_there_is_left_alone(tmp_path: Path) -> None:
    """What is not ours is not copied, and not replaced."""
    write_run_header(tmp_path, ALONE)
    writer, names = LimitedWriter(tmp_path, HEADER, 150_000), StringTable()
    number = 0
    while not writer.is_full:
        writer.write_step(nth(number, names), names.take_new())
        number += 1
    path = tmp_path / "rank00000.arrows"
    path.rename(tmp_path / "moved")
    path.write_bytes(b"theirs")
    writer.thin()
    assert path.read_bytes() == b"theirs"
    writer.close()


def test_each_rank_has_its_part(tmp_path: Path) -> None:
    """Of what is given for all together."""
    writer = writer_of(tmp_path, replace(HEADER, world_size=4), 400_000)
    assert isinstance(writer, LimitedWriter)
    header = (tmp_path / "rank00000.json").stat().st_size
    with pytest.raises(
        OSError, match=f"leaves {round((100_000 - 2 * header - 64 * 56) / 1024, 1)} KiB"
    ):
        writer.write_step(a_step(0, Spans.build(2000)))
    writer.close()


@pytest.mark.parametrize("text", ["", "much", "0", "-5MB", "1e400"])
def test_what_is_no_size_is_said(text: str) -> None:
    """Before anything starts."""
    with pytest.raises(UsageError, match=f"--max-size is '{text}', expected a size"):
        max_bytes_of(text)


def test_sizes() -> None:
    """As other options take them."""
    assert max_bytes_of(None) is None
    assert max_bytes_of("500MB") == 500_000_000
    assert max_bytes_of("1.5GiB") == 3 << 29
    assert max_bytes_of("4096") == 4096
