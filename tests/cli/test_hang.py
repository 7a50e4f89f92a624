"""`fsdpdoctor hang`: ranks, collectives and units of a hang, from dumps."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fsdpdoctor.analysis.timeline import collectives_of
from fsdpdoctor.cli import main
from fsdpdoctor.renderers.hang import NOT_TOLD
from fsdpdoctor.run import RankData, in_memory, save_run
from fsdpdoctor.schema import Kind, RunHeader, Spans
from tests.importers.generated import GATHER_BYTES, SCATTER_BYTES, generated_rank
from tests.importers.real_traces import real

WORLD = 4
GATHERS = "_all_gather_base #42806 in"


def hang(*args: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["hang", *(str(arg) for arg in args)])


class Call(NamedTuple):
    """A collective in a dump."""

    name: str
    given: int  # bytes
    taken: int
    state: str = "completed"


def gather(state: str = "completed", size: int = GATHER_BYTES) -> Call:
    """An all-gather as FSDP2 makes it."""
    return Call("_all_gather_base", size // WORLD, size, state)


def scatter(state: str = "completed") -> Call:
    """A reduce-scatter as FSDP2 makes it."""
    return Call("_reduce_scatter_base", SCATTER_BYTES, SCATTER_BYTES // WORLD, state)


def dump(folder: Path, rank: int, calls: list[Call], first: int = 100) -> None:
    """A dump of one group, its collectives numbered from `first`."""
    folder.mkdir(exist_ok=True)
    entries = [
        {
            "record_id": order,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": first + order,
            "p2p_seq_id": 0,
            "profiling_name": f"nccl:{call.name}",
            "input_sizes": [[call.given]],
            "output_sizes": [[call.taken]],
            "input_dtypes": ["Byte"],
            "output_dtypes": ["Byte"],
            "state": call.state,
            "is_p2p": False,
        }
        for order, call in enumerate(calls)
    ]
    ranks = str(list(range(WORLD)))
    said = {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": {"last_enqueued_collective": first + len(calls) - 1}},
        "entries": entries,
    }
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(said))


def saved(folder: Path, data: RankData) -> Path:
    """A run folder with one rank of four."""
    header = RunHeader(run_id="a", source="recorded", world_size=WORLD, device="cuda")
    save_run(in_memory(header, [data]), folder)
    return folder


def test_t17_ranks_are_named() -> None:
    """The two ranks of the injected fault stand first, with their operation."""
    result = hang(real("flight_recorder/gpu_error_1st"))

    assert result.exit_code == 0
    assert result.stdout.splitlines()[:5] == [
        "16 ranks left a dump, 16 of them with collectives pending",
        f"rank 12 enqueued, and did not finish, {GATHERS} group 41 (ranks 12-13)",
        "  waiting for it: ranks 0-1, 3-5, 7-9, 11, 13, 15",
        f"rank 14 enqueued, and did not finish, {GATHERS} group 42 (ranks 14-15)",
        "  waiting for it: ranks 1-3, 5-7, 9-11, 13, 15",
    ]


def test_t17_json() -> None:
    """The same of the other fault, as JSON."""
    result = hang(real("flight_recorder/lock_gil_1st"), "--json")
    said = json.loads(result.stdout)

    assert [(c["rank"], c["why"]) for c in said["culprits"]] == [
        (9, "never joined"),
        (14, "never joined"),
    ]
    assert said["culprits"][0]["operation"] == {
        "group": "72",
        "members": list(range(8, 16)),
        "seq": 45265,
        "name": "all_to_all",
        "units": None,
        "phases": None,
        "matched_by": None,
    }


def test_a_size_of_one_unit_names_it(tmp_path: Path) -> None:
    """Only the root has this size: no order is needed."""
    data = generated_rank(world_size=WORLD, layers=3, steps=1)
    spans = data.steps[0].spans
    roots = (spans.unit == 0) & (spans.kind == Kind.ALL_GATHER)
    columns = {name: getattr(spans, name) for name in Spans.columns()}
    columns["bytes"] = np.where(roots, 4096, spans.bytes)
    object.__setattr__(data.steps[0], "spans", Spans(**columns))
    run = saved(tmp_path / "run", data)
    for rank in range(WORLD):
        calls = [scatter(), gather("started", 4096)]
        dump(tmp_path / "dumps", rank, calls[:1] if rank == 2 else calls)

    result = hang(tmp_path / "dumps", "--run", run)

    assert result.stdout.splitlines()[1] == (
        "rank 2 never enqueued _all_gather_base #101 of <root>, forward (by size) in "
        "group 0 (ranks 0-3)"
    )


def test_the_order_tells_units_of_one_size(tmp_path: Path) -> None:
    """Every unit has one size; the history before the collective fits one place of
    the step, whichever collective of the step it is.
    """
    data = generated_rank(world_size=WORLD, layers=3, steps=2)
    run = saved(tmp_path / "run", data)
    step = collectives_of(data.steps[-1].spans, 1)
    calls = [
        gather() if kind == Kind.ALL_GATHER else scatter()
        for kind in step.kind.tolist()
    ]
    found = []
    for last in range(len(calls)):
        history = (calls * 2)[: len(calls) + last]
        pending = [*history, calls[last]._replace(state="scheduled")]
        folder = tmp_path / f"dumps{last}"
        for rank in range(WORLD):
            dump(folder, rank, pending if rank else history)
        said = json.loads(hang(folder, "--run", run, "--json").stdout)
        (culprit,) = said["culprits"]
        found.append((culprit["rank"], *culprit["operation"]["units"]))
        assert culprit["operation"]["matched_by"] == "size and order"

    names = [data.unit_name(unit) for unit in step.unit.tolist()]
    assert found == [(0, name) for name in names]


def test_a_run_of_another_model(tmp_path: Path) -> None:
    """No unit is named where none fits, and it is said."""
    run = saved(tmp_path / "run", generated_rank(world_size=WORLD, steps=1))
    for rank in range(WORLD):
        calls = [gather(), gather("started", 96)]
        dump(tmp_path / "dumps", rank, calls[:1] if rank == 2 else calls)

    result = hang(tmp_path / "dumps", "--run", run)

    assert "rank 2 never enqueued _all_gather_base #101 in group 0" in result.stdout
    assert "note: no pending collective is one of the run's" in result.stdout


def test_r24_missing_and_empty_ranks(tmp_path: Path) -> None:
    """A rank whose dump is empty is left out with its reason, one without is named,
    and neither is accused.
    """
    for rank in (0, 1):
        dump(tmp_path, rank, [gather("scheduled")])
    (tmp_path / "nccl_trace_rank_3").touch()

    result = hang(tmp_path)

    empty = tmp_path / "nccl_trace_rank_3"
    assert result.stdout.splitlines() == [
        "2 ranks left a dump, 2 of them with collectives pending",
        NOT_TOLD,
        "oldest pending operation of each rank:",
        "  ranks 0-1: _all_gather_base #100 in group 0 (ranks 0-3)",
        "no dump of ranks 2-3",
        f"note: {empty} is empty: its rank was stopped before it dumped",
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (None, "does not exist; expected a recorded run or a folder of dumps"),
        ("run.json", "run.json is damaged"),
        ("notes.txt", "no dump found in"),
        ("nccl_trace_rank_0", "rank_0 is no Flight Recorder dump that is known here"),
    ],
)
def test_what_is_no_run_and_no_folder_of_dumps(
    make: str | None, message: str, tmp_path: Path
) -> None:
    """One line, and exit status 2."""
    folder = tmp_path / "given"
    if make is not None:
        folder.mkdir()
        (folder / make).write_text("{}")

    result = hang(folder)

    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
