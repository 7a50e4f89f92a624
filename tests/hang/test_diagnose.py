"""Who a hung job waits for: real injected faults, and drawn ones."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.hang.diagnose import Culprit, Operation, Why, diagnose
from fsdpdoctor.hang.flight_recorder import load_dump, load_dumps
from fsdpdoctor.hang.match_units import bytes_of
from tests.importers.real_traces import real


def injected(folder: Path) -> list[int]:
    """The ranks into which the log says a fault was injected."""
    log = (folder / "fault_injection.log").read_text()
    match = re.search(r"Fault ranks: \[([\d, ]+)\]", log)
    assert match is not None
    return [int(rank) for rank in match[1].split(",")]


def test_t17_a_device_that_stopped() -> None:
    """Ranks 12 and 14 hold an all-gather that their peers have finished: the others
    wait for one or both, across pipeline, tensor and expert groups.
    """
    folder = real("flight_recorder/gpu_error_1st")
    found = diagnose(load_dumps([folder]))

    assert [culprit.rank for culprit in found.culprits] == injected(folder)
    assert found.culprits[0] == Culprit(
        rank=12,
        why=Why.BEHIND,
        operation=Operation(
            group="41", members=(12, 13), seq=42806, name="_all_gather_base"
        ),
        waiting=(0, 1, 3, 4, 5, 7, 8, 9, 11, 13, 15),  # not 14's pipeline: 2, 6, 10
    )
    assert found.mismatches == ()
    assert found.without_dump == ()
    assert found.in_a_circle == ()


def test_t17_a_host_that_stopped() -> None:
    """Ranks 9 and 14 never enqueued the all_to_all in which their peers wait."""
    folder = real("flight_recorder/lock_gil_1st")
    found = diagnose(load_dumps([folder]))

    assert [(c.rank, c.why) for c in found.culprits] == [
        (rank, Why.NEVER_JOINED) for rank in injected(folder)
    ]
    assert found.culprits[1].operation == Operation(
        group="72", members=tuple(range(8, 16)), seq=45265, name="all_to_all"
    )
    # Rank 1 sends to rank 9, so it waits for that one only.
    assert found.culprits[1].waiting == (0, *range(2, 9), *range(10, 14), 15)


def dumped(
    folder: Path,
    rank: int,
    operations: Sequence[tuple[int, str, str]],
    *,
    enqueued: int,
    ranks: Sequence[int] = (0, 1, 2),
) -> Path:
    """A dump with the number, name and state of each operation in one group."""
    entries = [
        {
            "record_id": order,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "profiling_name": f"nccl:{name}",
            "input_sizes": [[4]],
            "output_sizes": [[12]],
            "input_dtypes": ["Float"],
            "output_dtypes": ["Float"],
            "state": state,
            "is_p2p": False,
        }
        for order, (seq, name, state) in enumerate(operations)
    ]
    dump = {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(ranks)}},
        "pg_status": {"0": {"last_enqueued_collective": enqueued}},
        "entries": entries,
    }
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps(dump, protocol=2))
    return path


def test_all_members_are_in_it(tmp_path: Path) -> None:
    """Where nobody is missing, nobody is named: the collective itself does not end."""
    for rank in range(3):
        dumped(tmp_path, rank, [(5, "all_reduce", "started")], enqueued=5)

    found = diagnose(load_dumps([tmp_path]))

    assert found.culprits == ()
    assert found.stuck == (
        Operation(group="0", members=(0, 1, 2), seq=5, name="all_reduce"),
    )


def test_a_different_collective_under_the_same_number(tmp_path: Path) -> None:
    """The one rank that enqueued something else is named, with what it should be."""
    for rank in range(3):
        name = "broadcast" if rank == 1 else "all_reduce"
        dumped(tmp_path, rank, [(5, name, "scheduled")], enqueued=5)

    found = diagnose(load_dumps([tmp_path]))

    assert [(c.rank, c.why, c.waiting) for c in found.culprits] == [
        (1, Why.MISMATCH, (0, 2))
    ]
    assert found.mismatches[0].versions == {
        "all_reduce (['Float'] -> ['Float'])": (0, 2),
        "broadcast (['Float'] -> ['Float'])": (1,),
    }


def test_r24_partial_sets(tmp_path: Path) -> None:
    """A rank without a dump is listed, and not accused."""
    for rank in (0, 2):
        dumped(tmp_path, rank, [(5, "all_reduce", "scheduled")], enqueued=5)
    (tmp_path / "fault.log").write_text("not a dump")

    found = diagnose(load_dumps([tmp_path]))

    assert found.ranks == (0, 2)
    assert found.without_dump == (1,)
    assert found.culprits == ()


def test_nothing_pending(tmp_path: Path) -> None:
    """Dumps of a job that did not hang say so by naming nothing."""
    dumped(tmp_path, 0, [(5, "all_reduce", "completed")], enqueued=5, ranks=(0,))

    found = diagnose(load_dumps([tmp_path]))

    assert (found.culprits, found.stuck, dict(found.standing_at)) == ((), (), {})


def test_json_dumps(tmp_path: Path) -> None:
    """What torch writes as JSON is read, too."""
    path = dumped(tmp_path, 4, [(5, "all_reduce", "scheduled")], enqueued=5)
    content = pickle.loads(path.read_bytes())
    target = tmp_path / "dump_4.json"
    target.write_text(json.dumps(content))

    assert load_dump(target).entries == load_dump(path).entries
    with pytest.raises(InputError, match="both of rank 4"):
        load_dumps([path, target])


def test_long_words(tmp_path: Path) -> None:
    """A name that nobody could read is kept by its two ends; ranks are all kept."""
    name, ranks = "a" * 1_000_000, tuple(range(5000))
    path = dumped(tmp_path, 0, [(5, name, "scheduled")], enqueued=5, ranks=ranks)
    dump = load_dump(path)

    shown = f"{'a' * 495}...(999005 characters)...{'a' * 500}"
    assert [entry.operation for entry in dump.entries] == [shown]
    assert dump.groups == {"0": ranks}


def test_sizes_of_many_tensors_and_of_none(tmp_path: Path) -> None:
    """A call of a thousand tensors has its bytes; what is no size or dtype has none."""
    path = dumped(tmp_path, 0, [(5, "all_gather", "scheduled")], enqueued=5)
    content = pickle.loads(path.read_bytes())
    found = []
    for sizes, dtypes in (
        ([[3, 4]] * 1000, ["Float"]),
        ([[12]], [5]),
        ([[1e300, 1e300]], ["Float"]),
        ("(" * 3000, ["Float"]),
    ):
        entry = content["entries"][0]
        entry |= {"output_sizes": sizes, "output_dtypes": dtypes}
        path.write_bytes(pickle.dumps(content, protocol=2))
        found.append(bytes_of(load_dump(path).entries[0]))

    assert found == [48_000, 16, 16, 16]  # else of the other side


class Hostile:
    """Runs a command when it is unpickled by the usual means."""

    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("must not run",))


def test_r15_a_pickle_runs_no_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every pickle protocol is read, and none may name a global."""
    path = tmp_path / "dump_0"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps({"entries": Hostile()}, protocol=protocol))
        with pytest.raises(InputError, match=r"it asks for \w+\.print"):
            load_dump(path)
    assert capsys.readouterr().out == ""


def test_damaged_dumps(tmp_path: Path) -> None:
    """Cut anywhere, empty or of another shape: one sentence."""
    whole = dumped(tmp_path, 0, [(5, "all_reduce", "scheduled")], enqueued=5)
    content = whole.read_bytes()
    path = tmp_path / "cut_1"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match="cut_1"):
            load_dump(path)
    others: list[object] = [[1], {"entries": []}, {"pg_config": {}, "entries": [{}]}]
    for other in others:
        path.write_bytes(pickle.dumps(other))
        with pytest.raises(InputError, match="cut_1"):
            load_dump(path)
    with pytest.raises(InputError, match="no rank at the end of its name"):
        load_dump(tmp_path / "dump")


def test_a_dump_that_repeats_itself_is_not_written_out(tmp_path: Path) -> None:
    """A kilobyte of pickle whose sizes, written out, would fill any memory."""
    nested: object = "lol"
    for _ in range(12):
        nested = [nested] * 10
    entry = {
        "record_id": 0,
        "process_group": ("0", "pg"),
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": 1,
        "state": "scheduled",
        "input_sizes": nested,
    }
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps({"pg_config": {}, "entries": [entry]}))

    with pytest.raises(InputError, match="expected words or sizes, found a list"):
        load_dump(path)


def test_an_empty_group_is_damage(tmp_path: Path) -> None:
    """It has no name to be found by."""
    entry = {"record_id": 0, "process_group": [], "profiling_name": "x"}
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps({"pg_config": {}, "entries": [entry]}))

    with pytest.raises(InputError, match="no Flight Recorder dump that is known"):
        load_dump(path)
