"""What hooks in C see is what the live ones see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch.distributed as dist

from fsdpdoctor.rank_end_files import read_beats
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.storage.sampling import EveryStep
from fsdpdoctor.recorder.tape import hooks
from fsdpdoctor.recorder.tape.extension import extension
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import Kind, Spans, StepRecord
from tests.networks import uniform
from tests.recorder import scenarios
from tests.recorder.conftest import Recorded
from tests.recorder.other_calls import base_calls
from tests.recorder.rehearsed import sharded, train
from tests.rig.fake import one_thread, recording_to

pytestmark = pytest.mark.skipif(
    extension() is None, reason="it is not built: pip install . where a compiler is"
)

_OF_CHANCE = {"start_ns", "end_ns", "issued_ns"}
"""Columns in which two runs differ. Ops are numbered as they are read: of a row the
first of its op says which it is."""

_WHEN_IT_PLEASES = {int(Kind.GC)}

_BY_TIME = base_calls
"""In it a wait is its call's own where it comes within microseconds."""

_Rows = Counter[tuple[object, ...]]


def _rows(data: RankData, step: StepRecord) -> _Rows:
    spans = step.spans
    seen: dict[int, int] = {}
    order = spans.start_ns.argsort(kind="stable")
    columns = [
        getattr(spans, name)[order].tolist()
        for name in Spans.columns()
        if name not in _OF_CHANCE
    ]
    names = [name for name in Spans.columns() if name not in _OF_CHANCE]
    found: _Rows = Counter()
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        if row["kind"] in _WHEN_IT_PLEASES:
            continue
        row["name"] = data.name(row["name"])
        op = row.pop("op")
        seen.setdefault(op, row["unit"])
        found[(*row.values(), op >= 0, seen[op])] += 1
    return found


def _memory(step: StepRecord) -> _Rows:
    memory = step.memory
    columns = memory.unit, memory.phase, memory.unsharded_bytes
    return Counter(zip(*(column.tolist() for column in columns), strict=True))


def _calls(step: StepRecord, data: RankData) -> _Rows:
    calls = step.call_sites
    sites: Iterable[str | None] = map(data.name, calls.site.tolist())
    return Counter(zip(calls.within.tolist(), sites, strict=True))


def _counters(step: StepRecord, data: RankData) -> _Rows:
    return Counter(map(data.name, step.counters.name.tolist()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", [s.__name__ for s in scenarios.TWO_RANKS if s is not _BY_TIME]
)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_rows_are_those_of_the_live_hooks(
    two: Recorded, two_live: Recorded, name: str, rank: int
) -> None:
    """Every way in which FSDP2 is used here, both ranks, each step."""
    taped, live = two.rank(name, rank), two_live.rank(name, rank)
    assert [s.step for s in taped.steps] == [s.step for s in live.steps]
    for one, other in zip(taped.steps, live.steps, strict=True):
        assert _rows(taped, one) == _rows(live, other)
        assert _memory(one) == _memory(other)
        assert _calls(one, taped) == _calls(other, live)
        assert _counters(one, taped) == _counters(other, live)
    assert taped.header.units == live.header.units


def test_each_row_lies_within_its_step(two: Recorded) -> None:
    """The times are of one clock."""
    data = two.rank("block")
    for step in data.steps:
        spans = step.spans
        assert (spans.start_ns <= spans.end_ns).all()
        assert (spans.start_ns >= step.start_ns).all()
        assert (spans.end_ns <= step.end_ns).all()


def test_every_hook_in_c_has_what_it_asks_for() -> None:
    """In the installed torch."""
    names = internals.TorchSymbols()
    assert names.all_gather_class is not None
    assert names.reduce_scatter_class is not None


def _alone(folder: Path, sampling: EveryStep) -> RankData:
    """Three steps as rank 0 of 4, without replicas."""
    job = Rehearsal(wire=uniform(1e12, 0), world_size=4)
    with one_thread(), rehearsing(job), recording_to(folder, sampling):
        dist.init_process_group("gloo")
        train(sharded(), steps=3)
    return open_run(folder).sources[0].load()


def _collectives(data: RankData) -> list[tuple[int, int, int]]:
    """Of the last step: kind, group and number."""
    spans = data.steps[-1].spans
    columns = spans.kind.tolist(), spans.group.tolist(), spans.seq.tolist()
    return [
        row
        for row in zip(*columns, strict=True)
        if row[0] in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
    ]


def _beats(folder: Path) -> list[tuple[int, ...]]:
    """What a rank did, without when."""
    (path,) = folder.glob("*.beat")
    return [
        (beat.step, beat.micro_batch, beat.unit, beat.kind, beat.seq, beat.group)
        for beat in read_beats(path)
    ]


def test_what_is_between_recorded_steps_is_counted_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no compiler, and so no hook in C."""
    every = _alone(tmp_path / "every", EveryStep())
    taped = _alone(tmp_path / "taped", EveryStep(first=2))
    monkeypatch.setattr(hooks, "extension", lambda: None)
    live = _alone(tmp_path / "live", EveryStep(first=2))
    assert len(_collectives(every)) > 0
    assert _collectives(every) == _collectives(taped) == _collectives(live)
    assert len(_beats(tmp_path / "live")) > 0
    assert _beats(tmp_path / "taped") == _beats(tmp_path / "live")
