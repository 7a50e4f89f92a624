"""A run's store: what is packed, kept in the cache and mapped again is the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from fsdpdoctor.schema import Spans
from fsdpdoctor_dashboard.data import tiles
from fsdpdoctor_dashboard.data.store import (
    KEPT_STORES,
    build_store,
    cache_folder,
    fingerprint_of,
    forget_oldest,
    open_store,
    save_store,
)
from tests.dashboard.data.test_tiles import spans_of, store_of, track_of


def test_a_cached_store_is_the_store(tmp_path: Path) -> None:
    """Mapped from disk it gives the same tiles, areas and columns."""
    spans = spans_of([(i % 10, i * 1000, 1500, i % 5) for i in range(500)])
    store = store_of(spans, rank=3)
    save_store(store, tmp_path / "cache")
    again = open_store(tmp_path / "cache")

    assert again is not None
    assert again.area(5, 300_000, [3]) == store.area(5, 300_000, [3])
    for level, index in ((16, 3), (tiles.whole_level(store), 0)):
        assert tiles.tile(again, level, index, [3], condensed=False) == tiles.tile(
            store, level, index, [3], condensed=False
        )
    for name in Spans.columns():
        assert np.array_equal(
            again.spans[3].column(name), store.spans[3].column(name)
        ), name
    assert np.array_equal(again.spans[3].column("unit"), spans.unit)
    assert again.spans[3].value("bytes", 0) is None


def test_a_mapped_store_holds_one_file_open(tmp_path: Path) -> None:
    """However many ranks and columns: a server may hold a thousand files, not more."""
    tracks = [track_of(spans_of([(0, 0, 9, 1), (6, 3, 4, 2)]), r) for r in range(64)]
    save_store(build_store(tracks, "test"), tmp_path / "cache")
    before = len(list(Path("/proc/self/fd").iterdir()))
    store = open_store(tmp_path / "cache")

    assert store is not None
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_the_cache_keeps_what_was_used_last(tmp_path: Path) -> None:
    """Stores beyond the limit go, the longest unused first."""
    store = store_of(spans_of([(0, 0, 5, 1)]))
    folders = [tmp_path / f"timeline-{i:02}" for i in range(KEPT_STORES + 2)]
    for age, folder in enumerate(folders):
        save_store(store, folder)
        os.utime(folder, (1000 + age, 1000 + age))
    assert open_store(folders[0]) is not None  # used now
    forget_oldest(folders[-1])

    assert sorted(tmp_path.iterdir()) == [folders[0], *folders[3:]]


def test_a_run_is_known_by_its_files(tmp_path: Path) -> None:
    """By path, size and time, in whatever order they are named."""
    files = [tmp_path / "rank00000.arrows", tmp_path / "run.json"]
    for file in files:
        file.write_bytes(b"12")
        os.utime(file, (1000, 1000))
    before = fingerprint_of(files)

    assert len(before) == 20
    assert fingerprint_of(files[::-1]) == before
    os.utime(files[1], (1000, 1001))
    touched = fingerprint_of(files)
    files[1].write_bytes(b"123")
    os.utime(files[1], (1000, 1001))
    assert len({before, touched, fingerprint_of(files), fingerprint_of([])}) == 4


def test_stores_lie_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the variable says, and nowhere where it is empty."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert cache_folder("abc") == tmp_path / "timeline-abc"
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert cache_folder("abc") is None


def test_a_broken_cache_is_no_cache(tmp_path: Path) -> None:
    """A store of another version, or half of one, is made anew."""
    save_store(store_of(spans_of([(0, 0, 5, 1)])), tmp_path / "cache")
    (tmp_path / "cache" / "columns.bin").write_bytes(b"half")

    assert open_store(tmp_path / "cache") is None
    assert open_store(tmp_path / "none") is None
