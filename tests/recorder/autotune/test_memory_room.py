"""A change is tried only where there is memory for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.errors import NoRoomError
from fsdpdoctor.quantities import GIB
from fsdpdoctor.recorder.autotune import memory_room
from fsdpdoctor.recorder.autotune.memory_room import MemoryRoom, host_memory


def room(monkeypatch: pytest.MonkeyPatch, free: int, total: int) -> MemoryRoom:
    """As it was looked at."""
    monkeypatch.setattr(memory_room, "host_memory", lambda: (free, total))
    found = MemoryRoom(None)
    found.look()
    return found


def refused(found: MemoryRoom, more_bytes: int) -> tuple[str, int]:
    """Why, and what would fit."""
    with pytest.raises(NoRoomError) as error:
        found.need(more_bytes)
    return str(error.value), error.value.fits_bytes


def test_what_fits_with_a_margin_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.2 times 10 GiB and 5 % of 100 are 17."""
    room(monkeypatch, 17 * GIB, 100 * GIB).need(10 * GIB)
    words, fits_bytes = refused(room(monkeypatch, 16 * GIB, 100 * GIB), 10 * GIB)
    assert words == (
        "16.0 GiB of memory are free, and 17.0 GiB are to be: 10.0 GiB more, with a "
        "margin"
    )
    assert fits_bytes == int(11 * GIB / 1.2)


def test_what_takes_nothing_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefetch lists of FSDP2's own depth, say: but half of the margin has to be free,
    or its trial would be ended at once.
    """
    tight = room(monkeypatch, 3 * GIB, 100 * GIB)
    tight.need(0)
    assert refused(tight, 1)[1] == 0

    assert refused(room(monkeypatch, 2 * GIB, 100 * GIB), 0) == (
        "2.00 GiB of memory are free, and 5.00 GiB are to be: 0 B more, with a margin",
        -1,
    )


def test_what_is_not_known_is_not_there() -> None:
    """Before the first look; what takes nothing may be tried."""
    MemoryRoom(None).need(0)
    assert refused(MemoryRoom(None), 1) == ("how much memory is free is not known", 0)


def test_half_a_margin_is_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.5 % of what there is."""
    assert not room(monkeypatch, 25, 1000).over
    assert room(monkeypatch, 24, 1000).over
    assert not MemoryRoom(None).over


def test_a_containers_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less what it holds, but not its files' pages; shared by the host's two ranks."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:   8000 kB\nMemAvailable:   4000 kB\n")

    assert host_memory(meminfo, tmp_path / "none") == (2000 * 1024, 4000 * 1024)

    (tmp_path / "memory.max").write_text("2000000\n")
    (tmp_path / "memory.current").write_text("1500000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\ninactive_file 100000\n")
    assert host_memory(meminfo, tmp_path) == (300_000, 1_000_000)


def test_no_limit_is_none(tmp_path: Path) -> None:
    """`max` is how the kernel says it; without both nothing is known."""
    (tmp_path / "memory.max").write_text("max\n")

    assert host_memory(tmp_path / "none", tmp_path) == (None, None)
