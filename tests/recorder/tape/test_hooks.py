"""What hooks in C see is what the live ones see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.tape.extension import extension
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Kind, Spans, StepRecord
from tests.recorder import scenarios
from tests.recorder.conftest import Recorded
from tests.recorder.other_calls import base_calls

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
