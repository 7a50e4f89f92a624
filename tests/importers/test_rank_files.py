"""Which file is of which rank, which step and collective pair, and what is kept."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.importers import ImportOptions, import_run
from fsdpdoctor.importers.rank_files import rank_in_name, rank_of_name
from fsdpdoctor.importers.reader import trace_cache as cache_module
from fsdpdoctor.importers.reader.read_trace import scan_file
from fsdpdoctor.importers.reader.trace_cache import cached_scan, default_folder
from fsdpdoctor.run import RankSource
from fsdpdoctor.untrusted.headers import MOST_RANKS
from tests.importers.drawn_trace import DrawnTrace, collective, rank_metadata
from tests.importers.reader.same_rows import same
from tests.importers.real_traces import real


def traced(rank: int | None, world_size: int = 4, stream: int = 20) -> DrawnTrace:
    """A rank with two all-reduces; None: a trace that says no rank."""
    metadata = {} if rank is None else rank_metadata(rank, world_size)
    trace = DrawnTrace(metadata=metadata)
    trace.host("ProfilerStep#0", 0, 100)
    for at in (10, 50):
        trace.device(
            "ncclDevKernel_AllReduce",
            at,
            at + 5,
            launched=at - 5,
            stream=stream,
            args=collective("allreduce", 8, 8),
        )
    return trace


def test_r17_the_files_own_word_comes_first(tmp_path: Path) -> None:
    """What distributedInfo says decides before the name does."""
    traced(3).write(tmp_path / "rank0.json")
    traced(1).write(tmp_path / "rank7.json.gz")

    run = import_run([tmp_path])

    assert [(source.rank, Path(source.where).name) for source in run.sources] == [
        (1, "rank7.json.gz"),
        (3, "rank0.json"),
    ]
    assert run.header.world_size == 4
    assert run.missing_ranks == (0, 2)
    assert run.warnings == ()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank12_trace.json.gz", 12),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json", 34),
        ("worker0_step_12.1694128201545.pt.trace.json.gz", 0),
        ("node3_global_rank_5.json", 5),
        ("job-r7.json", 7),
        ("iteration_10.rank2.pt.trace.json", 2),
        ("host_4021.1694128201545.pt.trace.json", None),
        ("trace.json", None),
        ("frank3.json", None),
    ],
)
def test_r17_names_of_files(name: str, rank: int | None) -> None:
    """The ways in which tools put the rank into a name."""
    assert rank_of_name(name) == rank


def test_r17_no_rank(tmp_path: Path) -> None:
    """One file without a rank is rank 0 and says so; several are an error."""
    traced(None).write(tmp_path / "a.json")
    run = import_run([tmp_path / "a.json"])

    assert run.ranks == (0,)
    assert run.warnings == (
        "a.json does not say its rank, nor does its name: taken as rank 0",
        "the traces do not say the world size: taken as 1, from their highest rank",
    )

    traced(None).write(tmp_path / "b.json")
    with pytest.raises(InputError, match=r"no rank is known for a\.json, b\.json"):
        import_run([tmp_path])


@pytest.mark.parametrize("number", [MOST_RANKS + 1, 10**9, 10**18, -1, True, "3", 1.5])
def test_r17_numbers_that_no_job_has_are_not_taken(
    tmp_path: Path, number: object
) -> None:
    """As rank or as world size: ranks that are missing were counted up to there."""
    for key in ("rank", "world_size"):
        trace = traced(1, 4)
        metadata: Any = trace.metadata
        metadata["distributedInfo"][key] = number
        (tmp_path / key).mkdir()
        trace.write(tmp_path / key / "a.json")

    assert import_run([tmp_path / "rank"]).ranks == (0,)
    run = import_run([tmp_path / "world_size"])
    assert (run.ranks, run.header.world_size) == ((1,), 2)


def test_r17_the_real_ones() -> None:
    """T7: two files without a rank, and one folder where the file has one."""
    with pytest.raises(InputError, match="no rank is known for rank_not_found"):
        import_run([real("odd_files/rank_unavailable")])
    assert import_run([real("odd_files/mixed_files")]).ranks == (0,)
    run = import_run([real("odd_files/distributed_info_unavailable")])
    assert run.ranks == (0,)
    assert "does not say its rank" in run.warnings[0]


def test_r17_distributed_info_after_the_events(tmp_path: Path) -> None:
    """A writer that puts the head's keys behind the events is understood, too."""
    text = traced(None).text()
    tail = ', "distributedInfo": {"rank": 5, "world_size": 8}}'
    (tmp_path / "trace.json").write_text(text[: text.rindex("}")] + tail)

    run = import_run([tmp_path])

    assert (run.ranks, run.header.world_size) == ((5,), 8)


def test_a_path_has_the_rank_that_the_user_says() -> None:
    """The expression sees the folders, and decides alone; without one the name does."""
    path = Path("node4") / "rank2.sqlite"

    assert rank_in_name(path, None) == 2
    assert rank_in_name(path, r"node(\d+)") == 4
    assert rank_in_name(path, r"gpu(\d+)") is None


def test_r18_rank_regex(tmp_path: Path) -> None:
    """The user's expression decides alone; a wrong one is told what is wrong."""
    for node in (0, 1):
        traced(0).write(tmp_path / f"node{node}-gpu0.json")

    run = import_run([tmp_path], ImportOptions(rank_regex=r"node(\d+)"))

    assert run.ranks == (0, 1)
    with pytest.raises(UsageError, match="has no group"):
        import_run([tmp_path], ImportOptions(rank_regex="node"))
    with pytest.raises(UsageError, match="does not parse"):
        import_run([tmp_path], ImportOptions(rank_regex="("))


def test_a_link_to_nothing_is_told_as_one(tmp_path: Path) -> None:
    """As a pattern it names itself, for ever: one to itself, and one to what went."""
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "latest").symlink_to("gone")

    for path in (tmp_path / "round", tmp_path / "latest"):
        with pytest.raises(InputError) as told:
            import_run([path])
        assert str(told.value) == (
            f"{path} is a link to nothing that can be read: expected a file, or a "
            "folder of them"
        )


def test_r18_globs_and_folders(tmp_path: Path) -> None:
    """Files, folders and patterns, together, each file once."""
    (tmp_path / "n0").mkdir()
    (tmp_path / "n1").mkdir()
    for rank in range(4):
        traced(rank).write(tmp_path / f"n{rank // 2}" / f"r{rank}.json.gz")

    both = import_run([tmp_path / "n0", f"{tmp_path}/n1/*.json.gz"])
    twice = import_run([tmp_path / "n0", tmp_path / "n0" / "r1.json.gz"])

    assert both.ranks == (0, 1, 2, 3)
    assert twice.ranks == (0, 1)
    with pytest.raises(InputError, match="matches no file as a pattern"):
        import_run([f"{tmp_path}/n7/*.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no trace found in .*empty"):
        import_run([tmp_path / "empty"])


def test_r20_r22_ranks_pair_by_group_and_number(tmp_path: Path) -> None:
    """All ranks make one run; collectives pair by group and number, whatever streams
    the ranks gave them.
    """
    for rank in range(2):
        traced(rank, 2, stream=20 + rank).write(tmp_path / f"{rank}.json")

    keys, streams = [], []
    for data in import_run([tmp_path]).load():
        spans = data.steps[0].spans
        spans = spans.rows(spans.seq >= 0)
        keys.append(
            [
                (data.header.groups[group].name, seq)
                for group, seq in zip(spans.group, spans.seq.tolist(), strict=True)
            ]
        )
        streams.append(set(spans.stream.tolist()))

    assert keys == [[("1", 0), ("1", 1)]] * 2
    assert streams == [{20}, {21}]


def test_numbers_that_the_trace_says_are_kept(tmp_path: Path) -> None:
    """A sequence number in the arguments beats the order in the capture."""
    trace = DrawnTrace(metadata=rank_metadata(0, 4))
    for at, seq in ((10, 41), (50, 42)):
        trace.device(
            "nccl", at, at + 5, launched=at, args=collective("allreduce", 8, 8, seq=seq)
        )
    trace.write(tmp_path / "t.json")
    (data,) = import_run([tmp_path]).load()

    assert data.outside.seq[data.outside.seq >= 0].tolist() == [41, 42]


def step_count(source: RankSource) -> tuple[int, int, int]:
    """What a worker process gives back."""
    return source.rank, len(source.load().steps), os.getpid()


def test_r01_sources_load_in_worker_processes(tmp_path: Path) -> None:
    """A source is small, pickles, and is loaded by whoever needs it."""
    for rank in range(3):
        traced(rank).write(tmp_path / f"{rank}.json")
    run = import_run([tmp_path])

    with concurrent.futures.ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        found = list(pool.map(step_count, run.sources))

    assert [(rank, steps) for rank, steps, _ in found] == [(0, 1), (1, 1), (2, 1)]
    assert os.getpid() not in {pid for _, _, pid in found}
    assert max(len(pickle.dumps(source)) for source in run.sources) < 2000


def test_the_cache_gives_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes out of the cache is what was read, and the file is not read again."""
    path = real("pg_args_a100/nccl_data.json.gz")
    first = cached_scan(path, tmp_path)
    monkeypatch.setattr(cache_module, "scan_file", None)
    again = cached_scan(path, tmp_path)

    assert same(again, scan_file(path))
    assert same(again, first)
    (cached,) = tmp_path.iterdir()
    assert cached.stat().st_size < path.stat().st_size // 3


def test_the_cache_knows_when_a_file_has_changed(tmp_path: Path) -> None:
    """Size or time of change: the file is read again."""
    path = traced(0).write(tmp_path / "t.json")
    before = cached_scan(path, tmp_path / "cache")
    trace = traced(0)
    trace.host("more", 60, 61)
    trace.write(path)

    assert len(cached_scan(path, tmp_path / "cache").events) == len(before.events) + 1


def test_a_damaged_cache_is_no_cache(tmp_path: Path) -> None:
    """Cut or overwritten anywhere, the trace is read again, without a word."""
    path = traced(0).write(tmp_path / "t.json")
    folder = tmp_path / "cache"
    first = cached_scan(path, folder)
    (place,) = folder.iterdir()
    content = place.read_bytes()
    for length in range(0, len(content), 41):
        place.write_bytes(content[:length])
        assert same(cached_scan(path, folder), first)
    place.write_bytes(b"\xff" * 100)
    assert same(cached_scan(path, folder), first)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A file in the folder's place: the trace is read, and that is all."""
    path = traced(0).write(tmp_path / "t.json")
    (tmp_path / "cache").write_text("a file")

    assert len(cached_scan(path, tmp_path / "cache").names) > 0


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's cache folder, where the variable says, or nowhere."""
    monkeypatch.delenv("FSDPDOCTOR_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_folder() == Path("/x/fsdpdoctor/traces")
    monkeypatch.setenv("FSDPDOCTOR_CACHE", "/y")
    assert default_folder() == Path("/y")
    monkeypatch.setenv("FSDPDOCTOR_CACHE", "")
    assert default_folder() is None
