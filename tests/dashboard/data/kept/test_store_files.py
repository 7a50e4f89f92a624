"""A store on disk: a rank's columns are looked up when somebody looks at the rank."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor_dashboard.data.kept import store_files
from fsdpdoctor_dashboard.data.kept.store_files import (
    forget_oldest,
    map_store,
    saving,
    section_of,
)
from fsdpdoctor_dashboard.data.rank_series import part_of
from fsdpdoctor_dashboard.data.slices import RankNames, Track, marks_of
from fsdpdoctor_dashboard.data.store import build_store, open_store, save_store
from tests.dashboard.data.test_tiles import spans_of, track_of
from tests.rig.changed import replace

RANKS = 40


def tracks() -> list[Track]:
    """Ranks that begin one after the other, the last of them first."""
    return [
        track_of(
            spans_of([(i % 10, (99 - rank + i) * 1000, 1500, i % 5) for i in range(9)]),
            rank,
        )
        for rank in range(RANKS)
    ]


def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ranks whose columns are looked up from now on."""
    seen: list[int] = []
    real = store_files._Parts._open

    def counted(self: store_files._Parts, rank: int) -> object:
        seen.append(rank)
        return real(self, rank)

    monkeypatch.setattr(store_files._Parts, "_open", counted)
    return seen


def test_only_ranks_that_are_looked_at_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a store looks at none, and so does asking which there are."""
    save_store(build_store(tracks(), "test"), tmp_path / "cache")
    seen = opened(monkeypatch)
    store = open_store(tmp_path / "cache")

    assert store is not None
    assert (len(store.ranks), store.end > 0, 7 in store.spans) == (RANKS, True, True)
    assert store.facts[7].ended == "running"
    assert seen == []
    assert len(store.series(7)) > 0
    assert len(store.spans[7]) == 9
    assert store.one(7, 99) is None
    assert seen == [7]


def test_few_ranks_stay_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were asked for last; the others are looked up again."""
    save_store(build_store(tracks(), "test"), tmp_path / "cache")
    monkeypatch.setattr(store_files, "KEPT_PARTS", 3)
    seen = opened(monkeypatch)
    found = map_store(tmp_path / "cache")

    assert found is not None
    for rank in (0, 1, 2, 0, 3, 0, 1):
        assert rank in found.parts
        found.parts[rank]
    assert seen == [0, 1, 2, 3, 1]


def test_ranks_are_written_one_after_the_other(tmp_path: Path) -> None:
    """Without knowing the first moment of all before the last of them is there."""
    together, apart = tmp_path / "together", tmp_path / "apart"
    save_store(build_store(tracks(), "test"), together)
    with saving(apart, "test", 0) as writer:
        for track in tracks():
            section = section_of(part_of(track, marks_of(track), 0))
            writer.add(track.rank, section, track.names, track.facts)

    for name in ("index.json", "columns.bin"):
        assert (apart / name).read_bytes() == (together / name).read_bytes()
    store = open_store(apart)
    assert store is not None
    assert store.origin_ns == (99 - RANKS + 1) * 1000
    assert min(int(s.starts[0]) for s in store.series(RANKS - 1)) == 0


def test_names_are_written_once(tmp_path: Path) -> None:
    """Those of all ranks are the same, but of one."""
    names = RankNames(units=("a", "b"))
    named = [replace(track, names=names) for track in tracks()]
    other = RankNames(units=("c",))
    named[5] = replace(named[5], names=other)
    save_store(build_store(named, "test"), tmp_path / "cache")
    index = json.loads((tmp_path / "cache" / "index.json").read_text())
    found = map_store(tmp_path / "cache")

    assert index["names"] == [[["a", "b"], [], [], []], [["c"], [], [], []]]
    assert found is not None
    assert [r for r in found.names if found.names[r] == other] == [5]
    assert found.names[6] == names


def test_large_stores_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few they are; the one that was used last stays."""
    folders = [tmp_path / f"timeline-{i}" for i in range(3)]
    for age, folder in enumerate(folders):
        folder.mkdir()
        (folder / "columns.bin").write_bytes(bytes(100))
        os.utime(folder, (1000 + age, 1000 + age))
    monkeypatch.setattr(store_files, "KEPT_BYTES", 200)
    forget_oldest(folders[2])
    assert sorted(tmp_path.iterdir()) == folders[1:]
    monkeypatch.setattr(store_files, "KEPT_BYTES", 1)
    forget_oldest(folders[2])
    assert sorted(tmp_path.iterdir()) == folders[2:]


def test_columns_are_not_copied(tmp_path: Path) -> None:
    """They stay in the file, which the system may drop from memory."""
    save_store(build_store(tracks(), "test"), tmp_path / "cache")
    store = open_store(tmp_path / "cache")

    assert store is not None
    for series in store.series(3):
        assert not series.start.flags.owndata
        assert not series.start.flags.writeable
        assert np.shares_memory(series.start, store.series(3)[0].start.base)


def test_a_store_is_kept_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its fingerprint; nowhere where the user wants no cache."""
    monkeypatch.setattr(store_files, "default_folder", lambda: tmp_path)
    assert store_files.cache_folder("abc") == tmp_path / "timeline-abc"
    monkeypatch.setattr(store_files, "default_folder", lambda: None)
    assert store_files.cache_folder("abc") is None
