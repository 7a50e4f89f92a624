"""Run folders: what a rank wrote is what is read, and damage is said."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.errors import InputError, NewerFormatError
from fsdpdoctor.run import is_run_folder, open_run
from fsdpdoctor.run_writer import Heartbeat, RankWriter, write_run_header
from fsdpdoctor.schema import (
    HEARTBEAT,
    HEARTBEAT_BEFORE,
    Counters,
    Kind,
    MemorySamples,
    RankHeader,
    RunHeader,
    Spans,
    StepRecord,
    UnitSpec,
)
from fsdpdoctor.schema.string_table import StringTable

RUN = RunHeader(run_id="r1", source="recorded", world_size=2, command=("train.py",))
UNIT = UnitSpec(fqn="layers.0", module_class="Block", reshard_after_forward=2)


def a_step(step: int, spans: Spans) -> StepRecord:
    """A step of 9 ns."""
    return StepRecord(
        step=step,
        start_ns=step * 10,
        end_ns=step * 10 + 9,
        host_start_ns=step * 10,
        host_end_ns=step * 10 + 9,
        micro_batches=1,
        spans=spans,
        memory=MemorySamples.build(time_ns=[step], rss_bytes=[5]),
        counters=Counters.build(0),
    )


def write_rank(folder: Path, rank: int, steps: int = 3, world_size: int = 2) -> None:
    """A rank of a few small steps."""
    header = RankHeader(rank=rank, world_size=world_size, units=(UNIT,))
    writer = RankWriter(folder, header)
    names = StringTable()
    for step in range(steps):
        spans = Spans.build(
            kind=[Kind.FORWARD, Kind.SYNC],
            start_ns=[step * 10, step * 10 + 1],
            end_ns=[step * 10 + 5, step * 10 + 2],
            name=[-1, names.id(f"train.py:{step}")],
        )
        writer.write_step(a_step(step, spans), names.take_new())
    writer.close()


def test_reads_what_was_written(tmp_path: Path) -> None:
    """Headers, scalars, tables and names come back whole."""
    write_run_header(tmp_path, RUN)
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1)

    run = open_run(tmp_path)
    data = run.sources[1].load()

    assert run.header == RUN
    assert run.ranks == (0, 1)
    assert run.missing_ranks == ()
    assert data.header.units == (UNIT,)
    assert data.names == ("train.py:0", "train.py:1", "train.py:2")
    assert [s.step for s in data.steps] == [0, 1, 2]
    assert data.steps[2].spans.start_ns.tolist() == [20, 21]
    assert data.steps[2].spans.kind.tolist() == [Kind.FORWARD, Kind.SYNC]
    assert data.name(int(data.steps[2].spans.name[1])) == "train.py:2"
    assert data.steps[1].memory.rss_bytes.tolist() == [5]
    assert data.steps[1].complete is True
    assert data.truncated is None


def test_a_cut_stream_keeps_its_whole_steps(tmp_path: Path) -> None:
    """At whatever byte a rank was killed, the steps before it are there."""
    write_run_header(tmp_path, RUN)
    write_rank(tmp_path, 0)
    path = tmp_path / "rank00000.arrows"
    content = path.read_bytes()
    seen = set()
    for length in np.linspace(0, len(content), 60).astype(int):
        path.write_bytes(content[:length])
        data = open_run(tmp_path).sources[0].load()
        seen.add(len(data.steps))
        assert [s.step for s in data.steps] == list(range(len(data.steps)))
        assert (data.truncated is None) == (length == len(content)) or len(
            data.steps
        ) == 3
    assert seen == {0, 1, 2, 3}


def test_ranks_of_several_nodes_make_one_run(tmp_path: Path) -> None:
    """Each node's folder holds its own ranks; together they are the run."""
    for node in (0, 1):
        write_run_header(tmp_path / str(node), RUN)
        write_rank(tmp_path / str(node), node)

    assert open_run(tmp_path / "0").missing_ranks == (1,)
    assert open_run(tmp_path / "0", tmp_path / "1").ranks == (0, 1)
    with pytest.raises(InputError, match="rank 0 is in both"):
        open_run(tmp_path / "0", tmp_path / "0")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """A reader never guesses at fields it does not know."""
    write_run_header(tmp_path, replace(RUN, schema_version=99))

    with pytest.raises(NewerFormatError, match=r"format 99.*reads up to 2"):
        open_run(tmp_path)


def test_a_header_nested_without_end_is_damage(tmp_path: Path) -> None:
    """It would take all of the stack to read it."""
    write_rank(tmp_path, 0)
    nested = "[" * 100_000 + "]" * 100_000
    (tmp_path / "run.json").write_text(f'{{"schema_version": 1, "x": {nested}}}')

    (said,) = open_run(tmp_path).warnings
    assert f"{tmp_path / 'run.json'} is damaged: it is nested too deeply" in said


def test_a_file_that_is_named_oddly_is_left_out(tmp_path: Path) -> None:
    """A copy, a negative rank, digits of another script: the others are read."""
    write_run_header(tmp_path, RUN)
    write_rank(tmp_path, 0)
    odd = ("rank-1", "rank0", "rank000000", "rank\u0663")
    for name in odd:
        (tmp_path / f"{name}.json").write_text("{}")

    run = open_run(tmp_path)

    assert run.ranks == (0,)
    assert sorted(run.warnings) == sorted(
        f"left out: {tmp_path / name}.json is not named as a rank's file is"
        for name in odd
    )


def test_a_rank_that_lies_costs_only_itself(tmp_path: Path) -> None:
    """One has another's header, one a pipe for a stream; the third is measured."""
    write_run_header(tmp_path, replace(RUN, world_size=3))
    for rank in range(3):
        write_rank(tmp_path, rank, world_size=3)
    (tmp_path / "rank00001.json").write_bytes(
        (tmp_path / "rank00000.json").read_bytes()
    )
    (tmp_path / "rank00002.arrows").unlink()
    os.mkfifo(tmp_path / "rank00002.arrows")

    found = measure(open_run(tmp_path))

    assert found.rank_numbers == (0, 2)
    assert found.missing_ranks == (1,)
    assert found.warnings == (
        f"rank 1: {tmp_path / 'rank00001.json'} is damaged: it says that it is rank 0",
    )
    assert found.of(2).truncated == (
        f"{tmp_path / 'rank00002.arrows'} is a pipe: expected a file"
    )


def test_what_is_wrong_with_a_header_is_said_in_one_line(tmp_path: Path) -> None:
    """The word that is none of those expected may be a megabyte."""
    write_run_header(tmp_path, RUN)
    RankWriter(tmp_path, RankHeader(rank=0, world_size=2)).close()
    path = tmp_path / "rank00000.json"
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, "evidence": ["n" * 1_000_000]}))
    with pytest.raises(InputError, match="is damaged: Invalid enum value") as raised:
        open_run(tmp_path).sources[0].load()

    assert len(str(raised.value)) < 5_000


@pytest.mark.parametrize("damage", ["missing", "cut", "folder"])
def test_a_run_s_own_header_may_be_lost(tmp_path: Path, damage: str) -> None:
    """Its ranks say what there is to measure; what only it said is not made up."""
    write_run_header(tmp_path, RUN)
    for rank in range(2):
        write_rank(tmp_path, rank)
    path = tmp_path / "run.json"
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[:-9])
    elif damage == "folder":
        path.mkdir()

    run = open_run(tmp_path)

    assert is_run_folder(tmp_path)
    assert [len(rank.steps) for rank in run.load()] == [3, 3]
    assert (run.header.world_size, run.header.device) == (2, "cpu")
    assert (run.header.command, run.header.torch) == ((), None)
    (said,) = run.warnings
    assert said.endswith(
        "what its ranks say is read, the command and versions are lost"
    )
    assert str(path) in said


def test_a_step_that_lies_ends_the_stream_there(tmp_path: Path) -> None:
    """The steps before it are whole."""
    write_run_header(tmp_path, RUN)
    header = RankHeader(rank=0, world_size=2, units=(UNIT,))
    writer = RankWriter(tmp_path, header)
    for step, kind in enumerate((Kind.FORWARD, 99)):
        spans = Spans.build(1, kind=kind, start_ns=0, end_ns=1)
        writer.write_step(a_step(step, spans))
    writer.close()

    (data,) = open_run(tmp_path).load()

    assert [step.step for step in data.steps] == [0]
    assert data.truncated == (
        f"{tmp_path / 'rank00000.arrows'} breaks off: kind of a row is 99, which is "
        "no kind (1 whole steps before it were read)"
    )
    beat = Heartbeat(tmp_path, 0)
    for step in (40, 41):
        beat.step = step
        beat.beat(Kind.FORWARD, 1, 0)
    beat.flush()
    beat.close()
    (data,) = open_run(tmp_path).load()
    assert str(data.truncated).endswith("were read); its last event was in step 41")


def test_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    """Missing, foreign and damaged folders each get their own sentence."""
    with pytest.raises(InputError, match="does not exist"):
        open_run(tmp_path / "none")
    with pytest.raises(InputError, match=r"has no run\.json"):
        open_run(tmp_path)
    write_run_header(tmp_path, RUN)
    with pytest.raises(InputError, match="no rank's record"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text('{"schema_version": 1, "run_id": 3')
    with pytest.raises(InputError, match="damaged"):
        open_run(tmp_path)


def test_the_heartbeat_keeps_the_last_events(tmp_path: Path) -> None:
    """The ring holds the newest slots, oldest first."""
    beat = Heartbeat(tmp_path, 0)
    for step in range(70):
        beat.step, beat.micro_batch = step, 0
        beat.beat(Kind.ALL_GATHER, 1, 1, seq=step, group=0)
    beat.flush()
    write_run_header(tmp_path, RUN)
    write_rank(tmp_path, 0)

    beats = open_run(tmp_path).sources[0].load().beats

    assert [b.step for b in beats] == list(range(6, 70))
    # A file of an earlier version, whose slots end before the size.
    path = tmp_path / "rank00000.beat"
    slots = list(HEARTBEAT.iter_unpack(path.read_bytes()))
    path.write_bytes(b"".join(HEARTBEAT_BEFORE.pack(*slot[:-1]) for slot in slots))
    assert open_run(tmp_path).sources[0].load().beats == beats
    assert (beats[-1].unit, beats[-1].kind) == (1, Kind.ALL_GATHER)


def test_one_damaged_rank_does_not_cost_the_others(tmp_path: Path) -> None:
    """It is named among the missing, with its reason; all damaged is an error."""
    write_run_header(tmp_path, RUN)
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1)
    (tmp_path / "rank00001.json").write_text("{")

    m = measure(open_run(tmp_path))

    assert [rank.rank for rank in m.ranks] == [0]
    assert m.missing_ranks == (1,)
    assert m.warnings[0].startswith("rank 1: ")
    (tmp_path / "rank00000.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        measure(open_run(tmp_path))


def test_an_open_run_does_not_grow(tmp_path: Path) -> None:
    """What a run in progress writes after it was opened is seen by the next opening."""
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    write_rank(whole, 0, steps=5)
    write_rank(growing, 0, steps=3)
    write_run_header(growing, RUN)
    opened = open_run(growing)
    stream = (whole / "rank00000.arrows").read_bytes()
    (growing / "rank00000.arrows").write_bytes(stream)

    seen = [len(run.sources[0].load().steps) for run in (opened, open_run(growing))]

    assert seen == [3, 5]
