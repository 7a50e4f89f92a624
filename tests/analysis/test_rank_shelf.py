"""Measured ranks are as they were, wherever their columns lie."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from fsdpdoctor.analysis import rank_shelf
from fsdpdoctor.analysis.by_rank import ByRank, LastOf
from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.rank_shelf import given_back, tables_of
from fsdpdoctor.detectors import judged_stalls
from fsdpdoctor.report import report_of
from fsdpdoctor.report.value import encode
from fsdpdoctor.run import Run, open_run
from fsdpdoctor.schema import Table
from fsdpdoctor.storage import spill
from tests.dashboard.synthetic import Shape, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Five ranks of three units."""
    folder = tmp_path_factory.mktemp("shelf") / "run"
    write_run(folder, Shape(ranks=5, layers=2, steps=4, kernels=1))
    return open_run(folder)


def on_files(run: Run, monkeypatch: pytest.MonkeyPatch) -> Measures:
    """The run measured with every two ranks in a file."""
    one = measure(run).ranks[0]
    size = sum(c.nbytes for table in tables_of(one) for _, c in table.items())
    monkeypatch.setattr(rank_shelf, "BATCH_BYTES", size)
    monkeypatch.setattr(rank_shelf, "AT_A_TIME", 2)
    return measure(run)


def columns(rank: RankMeasures) -> list[Any]:
    """Every column of every table."""
    return [c.tolist() for table in tables_of(rank) for _, c in table.items()]


def test_columns_from_a_file_are_those_that_went_there(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of each rank's, and again once their pages were given back."""
    in_memory = measure(run)
    mapped = on_files(run, monkeypatch)

    assert not in_memory.ranks[0].collectives.start_ns.flags.owndata
    for _ in range(2):
        assert list(map(columns, mapped.ranks)) == list(map(columns, in_memory.ranks))


def test_a_report_is_the_same_from_files(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every figure, finding and rank of it."""
    in_memory = encode(report_of(measure(run), run))
    monkeypatch.setattr(judged_stalls, "MANY", 0)
    monkeypatch.setattr(spill, "HELD_BYTES", 100)

    assert encode(report_of(on_files(run, monkeypatch), run)) == in_memory


def test_what_ranks_say_alike_is_held_once(run: Run) -> None:
    """Units and groups are thousands of objects of each rank."""
    first, *others = (rank.header for rank in measure(run).ranks)

    for other in others:
        assert other.units is first.units
        assert other.groups is first.groups
        assert other.evidence is first.evidence


def test_going_through_gives_back_what_was_passed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time, and the rest at the end; where there are fewer, nothing."""
    monkeypatch.setattr(rank_shelf, "AT_A_TIME", 2)
    ranks = measure(run).ranks
    given: list[int] = []
    looked: list[int] = []

    def mappings(*tables: Table) -> tuple[()]:
        looked.append(len(tables))
        return ()

    monkeypatch.setattr(rank_shelf, "mappings", mappings)
    monkeypatch.setattr(rank_shelf, "give_back", lambda mapped: given.append(1))

    three = given_back(ranks[:3], lambda rank: (rank.collectives,))
    for _ in three:
        given.append(0)
    for _ in given_back(ranks[:1], lambda rank: (rank.collectives,)):
        given.append(0)

    assert given == [0, 0, 1, 0, 1, 0]
    assert looked == [2, 1]

    for _ in three:
        given.append(0)

    assert given[6:] == [0, 0, 1, 0, 1]
    assert looked == [2, 1]  # dozens of passes look for the same


def test_of_a_rank_several_things_are_asked_in_a_row() -> None:
    """They are made once for it, and anew for the next."""
    made: list[int] = []

    def make(rank: int) -> int:
        made.append(rank)
        return 10 * rank

    found: Mapping[int, int] = ByRank((1, 2), LastOf(make))

    assert (found[1], found[1], found[2], found[1]) == (10, 10, 20, 10)
    assert made == [1, 2, 1]
    assert list(found) == [1, 2]
    assert len(found) == 2
    with pytest.raises(KeyError):
        found[3]
    assert pickle.loads(pickle.dumps(found)) == {1: 10, 2: 20}


def test_another_process_gets_all_of_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that lie in this one's files, and what is made when asked for."""
    mapped = on_files(run, monkeypatch)

    sent = pickle.loads(pickle.dumps(mapped))

    assert list(map(columns, sent.ranks)) == list(map(columns, mapped.ranks))
    assert encode(report_of(sent, run)) == encode(report_of(mapped, run))
