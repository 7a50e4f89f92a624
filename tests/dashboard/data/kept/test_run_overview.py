"""What is shown of a run as a whole: made once, and kept where its store is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor_dashboard.data.kept import store_files
from fsdpdoctor_dashboard.data.kept.run_overview import overview, whole_run
from fsdpdoctor_dashboard.data.series import Row
from fsdpdoctor_dashboard.data.store import build_store, open_store, save_store
from tests.dashboard.data.test_tiles import spans_of, track_of

SPANS = [(i % 10, i * 1000, 1500, i % 5) for i in range(20)]


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next time no rank is looked at, and it is the same."""
    tracks = [track_of(spans_of(SPANS), rank) for rank in range(3)]
    save_store(build_store(tracks, "test"), tmp_path / "cache")
    store = open_store(tmp_path / "cache")
    assert store is not None
    made = overview(store, tmp_path / "cache")
    monkeypatch.setattr(store_files._Parts, "_open", None)
    again = open_store(tmp_path / "cache")

    assert again is not None
    assert overview(again, tmp_path / "cache") == made
    assert made | whole_run(store) == made
    assert [rank["rank"] for rank in made["ranks"]] == [0, 1, 2]
    assert all(Row.COMPUTE in rank["rows"] for rank in made["ranks"])
    assert made["memory"] is False


def test_without_a_folder_it_is_the_same(tmp_path: Path) -> None:
    """Of a store in memory, or beside a file that is damaged."""
    store = build_store([track_of(spans_of(SPANS), 0)], "test")
    (tmp_path / "overview.json").write_text("{")

    assert overview(store, None) == overview(store, tmp_path)
    assert overview(store, tmp_path / "none") == overview(store, None)
