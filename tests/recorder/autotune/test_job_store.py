"""Keys in the job's store: written once, and asked for again over a new connection."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from fsdpdoctor.recorder.autotune.job_store import JobStore, job_store


def test_what_is_written_first_stays() -> None:
    """Alone, the store is in this process."""
    store = job_store("run", alone=True)

    assert store.read("1/verdict") is None
    assert store.put_first("1/verdict", "commit") == "commit"
    assert store.put_first("1/verdict", "late: rank 1") == "commit"
    assert store.read("1/verdict") == "commit"
    assert not store.has_all(["1/verdict", "1/vote/0"])
    assert store.has_all(["1/verdict"])


def test_a_call_that_failed_is_made_over_a_new_connection() -> None:
    """The first connection breaks; the caller is told, and may ask again."""
    stores: Any = dist
    there = [None, stores.HashStore()]
    store = JobStore(lambda: there.pop(0) or Broken(), "prefix/")

    with pytest.raises(OSError, match="broken"):
        store.read("a")
    assert store.put_first("a", "b") == "b"
    assert there == []


class Broken:
    """A connection that is gone."""

    def check(self, keys: list[str]) -> bool:
        """Nobody answers."""
        raise OSError("broken")


def test_without_an_address_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that says not where it meets is not tuned."""
    monkeypatch.delenv("MASTER_ADDR", raising=False)

    with pytest.raises(OSError, match="no MASTER_ADDR and MASTER_PORT"):
        job_store("run", alone=False).read("a")


def test_ranks_meet_where_the_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two connections to one store."""
    stores: Any = dist
    master = stores.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(master.port))
    first, second = job_store("run", alone=False), job_store("run", alone=False)

    assert first.put_first("1/vote/0", "yes") == "yes"
    assert second.read("1/vote/0") == "yes"
