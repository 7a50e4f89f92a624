"""Files of a rank on a disk that is full, or that the script has taken away."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fsdpdoctor import run_writer
from fsdpdoctor.rank_end_files import read_beats
from fsdpdoctor.run import open_run
from fsdpdoctor.run_writer import (
    Heartbeat,
    OwnFile,
    RankWriter,
    open_file,
    remove_rank,
    write_run_header,
)
from fsdpdoctor.schema import (
    HEARTBEAT,
    HEARTBEAT_SLOTS,
    RankHeader,
    Spans,
    UnitSpec,
)
from tests.test_run import RUN, a_step

HEADER = RankHeader(rank=0, world_size=2)


def no_room(*_: object, **__: object) -> int:
    """A disk that is full."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def writer(tmp_path: Path) -> RankWriter:
    """A rank's files, with a step in them."""
    write_run_header(tmp_path, RUN)
    writer = RankWriter(tmp_path, HEADER)
    writer.write_step(a_step(0, Spans.build(0)))
    return writer


def test_the_last_word_fits_into_the_headers_own_blocks(
    writer: RankWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk has no room for another file it is written over the one there."""
    path = tmp_path / "rank00000.json"
    size = path.stat().st_size
    monkeypatch.setattr(run_writer, "open_file", no_room)
    writer.write_header(replace(HEADER, ended="signal: SIGTERM"))
    assert json.loads(path.read_text())["ended"] == "signal: SIGTERM"
    assert path.stat().st_size == size
    assert size % 4096 == 0


def test_a_header_that_cannot_be_written_says_so_and_is_whole(
    writer: RankWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One too long for its blocks, one that is gone, and that of a run."""
    path = tmp_path / "rank00000.json"
    before = path.read_bytes()
    monkeypatch.setattr(run_writer, "open_file", no_room)
    with pytest.raises(OSError, match="No space left"):
        writer.write_header(replace(HEADER, ended="x" * 5000))
    assert path.read_bytes() == before
    with pytest.raises(OSError, match="No space left"):
        write_run_header(tmp_path, replace(RUN, run_id="another"))
    assert open_run(tmp_path).header.run_id == RUN.run_id
    path.unlink()
    with pytest.raises(OSError, match="No space left"):
        writer.write_header(HEADER)
    assert not list(tmp_path.glob("*.new"))


def test_half_a_header_is_never_seen(
    writer: RankWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills while it is written: the earlier one stays, and no other file."""
    monkeypatch.setattr(run_writer, "write_all", no_room)
    with pytest.raises(OSError, match="No space left"):
        write_run_header(tmp_path, replace(RUN, run_id="another"))
    assert open_run(tmp_path).header == RUN
    assert not list(tmp_path.glob("*.new"))


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """As `ulimit -f` and a quota do: nothing is written behind there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ("detached: OSError in write_all: File too large", "detached"),
        ("exit: 44", "exit: 44"),
        ("done", "done"),
    ],
)
def test_where_no_header_fits_its_end_is_said(
    tmp_path: Path, ended: str, said: str
) -> None:
    """In the one that is there, which is as it was else."""
    units = tuple(UnitSpec(fqn=f"layers.{i}", module_class="Block") for i in range(40))
    header = replace(HEADER, units=units)
    writer = RankWriter(tmp_path, header)
    size = (tmp_path / "rank00000.json").stat().st_size
    with no_file_larger_than(2048):
        writer.write_header(replace(header, units=(), ended=ended, device="cuda"))
    writer.close()
    write_run_header(tmp_path, RUN)

    read = open_run(tmp_path).sources[0].load().header
    assert read == replace(header, ended=said)
    assert (tmp_path / "rank00000.json").stat().st_size == size > 4096
    assert not list(tmp_path.glob("*.new"))


def test_a_header_whose_folder_is_gone_says_its_end(
    writer: RankWriter, tmp_path: Path
) -> None:
    """The file is still open: so it is where the process may no longer open it."""
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    writer.write_header(replace(HEADER, ended="exit: 3"))
    with pytest.raises(OSError, match="No such file"):
        writer.write_header(replace(HEADER, ended="exception: ValueError: no"))
    writer.close()

    assert open_run(moved).sources[0].load().header == replace(HEADER, ended="exit: 3")


def test_a_scripts_own_json_changes_no_header(
    writer: RankWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a quicker package, which gives bytes."""
    monkeypatch.setattr(json, "dumps", lambda value, **_: repr(value).encode())
    writer.write_header(replace(HEADER, ended="done"))
    monkeypatch.undo()

    assert open_run(tmp_path).sources[0].load().header.ended == "done"


def test_an_end_that_has_no_room_leaves_the_header_as_it_was(
    writer: RankWriter, tmp_path: Path
) -> None:
    """It says `running` on, and what failed is told."""
    path = tmp_path / "rank00000.json"
    before = path.read_bytes()
    with no_file_larger_than(1024), pytest.raises(OSError, match="File too large"):
        writer.write_header(replace(HEADER, ended="exception: ValueError: no"))
    assert path.read_bytes() == before


def test_half_an_event_is_none(tmp_path: Path) -> None:
    """Where the file may not grow to its end: events are as they were, or gone."""
    beat = Heartbeat(tmp_path, 0)
    for i in range(80):
        beat.beat(1, 2, i, i, i)
    beat.flush()
    before = read_beats(tmp_path / "rank00000.beat")
    for i in range(80, 100):
        beat.beat(1, 2, i, i, i)
    room = 18 * HEARTBEAT.size + 50
    with no_file_larger_than(room), pytest.raises(OSError, match="the system took"):
        beat.flush()
    beat.close()

    after = read_beats(tmp_path / "rank00000.beat")
    assert len(before) == HEARTBEAT_SLOTS
    # 81 and 82 stand in the slots of 17 and 18; that of 19 is torn.
    assert [b.count for b in after] == [*range(20, 83)]
    assert [b.count for b in before] == [*range(17, 81)]
    assert all(b.unit == b.seq == b.group == b.count - 1 for b in after)


def test_a_pipe_is_no_place_for_a_record(tmp_path: Path) -> None:
    """Nobody may ever read it; nor is written to one that somebody reads."""
    pipe = tmp_path / "rank00000.beat"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):
        open_file(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="is a pipe"):
        open_file(pipe)
    os.close(reader)


def test_names_that_are_no_unicode_can_be_read(tmp_path: Path) -> None:
    """Of arguments, variables, and modules: what cannot be written is a question mark,
    and the rest of the header is as it was.
    """
    write_run_header(tmp_path, replace(RUN, command=("tr\udce9in.py", "--name=\u00e9")))
    unit = UnitSpec(fqn="layers.\ud800", module_class="Block")
    header = replace(HEADER, units=(unit,), environment={"NCCL_X": "a\udcff"})
    RankWriter(tmp_path, header).close()
    run = open_run(tmp_path)
    read = run.sources[0].load().header
    assert run.header.command == ("tr?in.py", "--name=\u00e9")
    assert [one.fqn for one in read.units] == ["layers.?"]
    assert read.environment == {"NCCL_X": "a?"}
    assert replace(read, units=(), environment={}) == HEADER


def test_a_step_is_in_the_file_whole_or_not_at_all(
    writer: RankWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the full disk has taken of it is cut off, and the stream is not ended."""
    path = tmp_path / "rank00000.arrows"
    before = path.read_bytes()

    def half(file: int, content: bytes) -> None:
        os.write(file, content[: len(content) // 2])
        no_room()

    monkeypatch.setattr(run_writer, "write_all", half)
    with pytest.raises(OSError, match="No space left"):
        writer.write_step(a_step(1, Spans.build(0)))
    writer.close()
    assert path.read_bytes() == before
    assert [s.step for s in open_run(tmp_path).sources[0].load().steps] == [0]


def test_a_descriptor_that_the_script_has_closed_is_left_alone(tmp_path: Path) -> None:
    """Its number may lead to a file of the script's by now."""
    file = OwnFile(tmp_path / "ours")
    number = file._file
    os.close(number)
    with pytest.raises(OSError, match="the script has closed its file"):
        file.append(b"x", 0)
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, number)
    with pytest.raises(OSError, match="the script has closed its file"):
        file.overwrite(b"x", 1)
    file.close()
    os.write(number, b"open")
    assert (tmp_path / "theirs").read_bytes() == b"open"
    for one in {theirs, number}:
        os.close(one)


def test_no_file_of_ours_becomes_a_standard_stream(tmp_path: Path) -> None:
    """A script without stdin prints on, and into no record."""
    kept = os.dup(0)
    os.close(0)
    try:
        file = open_file(tmp_path / "record", new=True)
        assert file > 2
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
        os.close(file)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_a_rank_has_one_record_in_a_folder(tmp_path: Path) -> None:
    """The second one says so; what could not begin is taken back."""
    beat = Heartbeat(tmp_path, 0)
    with pytest.raises(FileExistsError, match="rank 0 has a record in"):
        Heartbeat(tmp_path, 0)
    beat.close()
    RankWriter(tmp_path, HEADER).close()
    (tmp_path / "rank00001.json").write_text("{}")
    remove_rank(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["rank00001.json"]
    remove_rank(tmp_path, 0)
