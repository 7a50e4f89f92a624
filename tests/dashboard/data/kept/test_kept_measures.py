"""Measures in a file: each rank is read when something of it is looked at."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.report import encode, report_of
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.kept import kept_measures
from fsdpdoctor_dashboard.data.kept.kept_measures import (
    KeptRanks,
    keep_measures,
    open_measures,
    read_measures,
)


@pytest.fixture(scope="module")
def measures(runs: dict[str, Path]) -> Measures:
    """Of 64 ranks."""
    return measure(open_run(runs["wide"]))


@pytest.fixture(scope="module")
def folder(measures: Measures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they are kept."""
    kept = tmp_path_factory.mktemp("kept")
    keep_measures(measures, kept)
    return kept


def test_the_report_of_what_was_kept_is_the_report(
    measures: Measures, folder: Path
) -> None:
    """To the byte, whether ranks are read together or one by one."""
    expected = encode(report_of(measures))
    for found in (read_measures(folder), open_measures(folder)):
        assert found is not None
        assert encode(report_of(found)) == expected


def test_only_ranks_that_are_asked_for_are_read(
    measures: Measures, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all ranks together tell reads none of them."""
    read: list[int] = []
    real = KeptRanks._made

    def counted(self: KeptRanks, at: int) -> object:
        read.append(at)
        return real(self, at)

    monkeypatch.setattr(KeptRanks, "_made", counted)
    found = open_measures(folder)

    assert found is not None
    assert found.rank_numbers == measures.rank_numbers
    assert found.evidence == measures.evidence
    assert found.median_step_ns == measures.median_step_ns
    assert found.stalls_known == measures.stalls_known
    assert found.alignment.clocks == measures.alignment.clocks
    assert found.alignment.matched == measures.alignment.matched
    assert len(found.ranks) == 64
    assert read == []
    for _ in range(2):
        steps = found.of(7).steps
        assert np.array_equal(steps.duration_ns, measures.of(7).steps.duration_ns)
    assert found.ranks[-1].rank == 63
    assert [rank.rank for rank in found.ranks[:2]] == [0, 1]
    assert read == [7, 63, 0, 1]


def test_what_only_all_ranks_tell_is_the_same(measures: Measures, folder: Path) -> None:
    """Causes and arrivals of one rank."""
    found = open_measures(folder)

    assert found is not None
    for cause in CAUSES:
        assert np.array_equal(found.causes[5][cause], measures.causes[5][cause])
    for name in ("last_arrival_ns", "last_rank"):
        one, other = getattr(found.alignment, name), getattr(measures.alignment, name)
        assert np.array_equal(one[5], other[5])


def test_columns_stay_in_the_file(folder: Path) -> None:
    """And what ranks say alike is held once."""
    found = open_measures(folder)

    assert found is not None
    one, other = found.ranks[3], found.ranks[4]
    assert not one.collectives.start_ns.flags.writeable
    assert one.header.units is other.header.units
    assert one.names is other.names


@pytest.mark.parametrize("content", [b"", b"half", bytes(64)])
def test_what_is_no_file_of_measures_is_none(tmp_path: Path, content: bytes) -> None:
    """Damaged, or of another version: it is only a cache."""
    assert open_measures(tmp_path) is None
    (tmp_path / "measures.bin").write_bytes(content)
    assert open_measures(tmp_path) is None
    assert read_measures(tmp_path) is None


class Planted:
    """What an unpickler of everything would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("run by a file of the cache",))


def test_a_file_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pickle names the classes of measures, or is refused."""
    planted = pickle.dumps(Planted(), protocol=5)
    end = np.array([0, kept_measures.MEASURES_VERSION], dtype="<i8").tobytes()
    (tmp_path / "measures.bin").write_bytes(planted + end)

    assert open_measures(tmp_path) is None
    assert capsys.readouterr().out == ""
    for module, name in (
        ("os", "system"),
        ("fsdpdoctor.schema.units", "dataclass"),
        ("fsdpdoctor.analysis.dask_executor", "_Cluster"),
    ):
        with pytest.raises(pickle.UnpicklingError, match=name):
            kept_measures._Unpickler(b"", (), ()).find_class(module, name)
