"""Files of a run that lie in another's place."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.run import open_run, save_run
from fsdpdoctor.run_writer import RankWriter, write_run_header
from fsdpdoctor.schema import RankHeader, RunHeader, Spans
from fsdpdoctor.untrusted.origin import foreign_stream
from tests.test_run import a_step

HEADER = RankHeader(rank=1, world_size=2, run_id="mine")


def written(folder: Path, run_id: str) -> Path:
    """A run of two ranks with a step each."""
    header = RunHeader(run_id=run_id, source="recorded", world_size=2)
    write_run_header(folder, header)
    for rank in range(2):
        writer = RankWriter(folder, replace(HEADER, rank=rank, run_id=run_id))
        writer.write_step(a_step(rank, Spans.build(0)))
        writer.write_step(a_step(rank + 5, Spans.build(0)))
        writer.close()
    return folder


def test_files_in_their_places_are_read(tmp_path: Path) -> None:
    """Of each rank its steps; a run that is saved anew is one that can be read."""
    run = open_run(written(tmp_path / "run", "mine"))
    steps = [[step.step for step in data.steps] for data in run.load()]
    assert steps == [[0, 5], [1, 6]]

    save_run(replace(run, header=replace(run.header, run_id="other")), tmp_path / "b")
    again = [*open_run(tmp_path / "b").load()]
    assert [[step.step for step in data.steps] for data in again] == steps
    assert [(data.truncated, data.header.run_id) for data in again] == [
        (None, "other"),
        (None, "other"),
    ]


@pytest.mark.parametrize(("rank", "world_size"), [(1, 3), (2, 2)])
def test_a_rank_of_another_job_is_not_read(
    tmp_path: Path, rank: int, world_size: int
) -> None:
    """Where headers do not name their run: of more ranks, or with a number too high."""
    folder = written(tmp_path / "run", "")
    header = replace(HEADER, rank=rank, world_size=world_size, run_id="")
    RankWriter(folder, header).close()

    *others, odd = open_run(folder).sources
    for source in others:
        assert len(source.load().steps) == 2
    with pytest.raises(InputError, match=f"rank {rank} of {world_size}, and run.json"):
        odd.load()


def test_a_stream_of_another_rank_is_not_read(tmp_path: Path) -> None:
    """Two that are swapped look like any: their numbers would be another rank's."""
    folder = written(tmp_path / "run", "mine")
    shutil.copy(folder / "rank00000.arrows", folder / "rank00001.arrows")

    first, second = open_run(folder).load()

    assert (len(first.steps), first.truncated) == (2, None)
    assert second.steps == ()
    path = folder / "rank00001.arrows"
    assert second.truncated == f"{path} is not read: it is of rank 0"


def test_files_of_another_run_are_not_read(tmp_path: Path) -> None:
    """A stream, and a header, that were copied in from elsewhere."""
    folder, other = written(tmp_path / "run", "mine"), written(tmp_path / "o", "theirs")
    shutil.copy(other / "rank00001.arrows", folder)
    shutil.copy(other / "rank00000.json", folder)

    first, second = open_run(folder).sources

    path = folder / "rank00001.arrows"
    assert second.load().truncated == (
        f"{path} is not read: it is of another run: theirs"
    )
    with pytest.raises(InputError) as refused:
        first.load()
    assert str(refused.value) == (
        f"{folder / 'rank00000.json'} is of another run: theirs, and run.json of mine"
    )


def test_what_does_not_say_whose_it_is_may_be_anyone_s(tmp_path: Path) -> None:
    """Records of earlier versions have neither the field nor the keys."""
    folder = written(tmp_path / "run", "")
    for path in (folder / "run.json", folder / "rank00000.json"):
        said = json.loads(path.read_text())
        path.write_text(json.dumps(said | {"run_id": "x" if "source" in said else ""}))

    assert [len(data.steps) for data in open_run(folder).load()] == [2, 2]


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, None),
        ({}, None),
        ({b"other": b"\xff"}, None),
        ({b"fsdpdoctor.rank": b"\xff1"}, "it is of rank \ufffd1"),
        ({b"fsdpdoctor.run_id": b"x" * 900}, f"it is of another run: {'x' * 80}"),
    ],
)
def test_metadata_says_what_it_likes(
    metadata: dict[bytes, bytes] | None, said: str | None
) -> None:
    """Absent, of others, no text, long."""
    assert foreign_stream(metadata, HEADER) == said
