"""A disk that is full, gone, slow, or not to be written, under every rank or one."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpdoctor.run import open_run
from tests.faults.jobs import job, last_whole, note, recorder

pytestmark = [
    pytest.mark.faults,
    pytest.mark.ranks,
    pytest.mark.usefixtures("warm"),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, where one may be made."""
    mount = tmp_path / "disk"
    mount.mkdir()
    tool = shutil.which("mount")
    if os.geteuid() != 0 or tool is None:
        pytest.skip("a small disk can be made by root only")
    made = subprocess.run(
        [tool, "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)], check=False
    )
    if made.returncode:
        pytest.skip("no file system may be mounted here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=False)


def fill(disk: Path, leave: int = 0) -> None:
    """Take what is free, all but so many bytes."""
    with (disk / "filler").open("wb", buffering=0) as file:
        free = shutil.disk_usage(disk).free - leave
        try:
            while free > 0:
                free -= file.write(b"\0" * min(free, 4096))
        except OSError:
            return


@pytest.mark.parametrize("left_kb", [0, 4, 8, 12, 16, 20, 24, 40])
def test_a_disk_that_is_full(disk: Path, tmp_path: Path, left_kb: int) -> None:
    """Training is as without us; each rank says once that it is not recorded."""
    fill(disk, left_kb * 1024)
    plain = job(tmp_path / "plain", "none")
    ours = job(tmp_path / "recorded", "none", *recorder(disk / "run"))
    note(f"disk with {left_kb} KB left", plain, ours, "", "")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    said = [line for line in ours.stderr.splitlines() if "training goes on" in line]
    assert len(said) == 2
    assert "Traceback" not in ours.stderr


def test_a_record_with_a_limit(tmp_path: Path) -> None:
    """Each rank thins its own, while training goes on as without us."""
    plain = job(tmp_path / "plain", "none")
    limit = ("--every", "1", "--max-size", "240KB")
    ours = job(tmp_path / "recorded", "none", *recorder(tmp_path / "run"), *limit)
    ranks = list(open_run(tmp_path / "run").load())
    ended = "; ".join(rank.header.ended for rank in ranks)
    whole = tuple(last_whole(rank) for rank in ranks)
    note("a limit for the record", plain, ours, ended, whole)

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert whole == (17, 17)
    assert sum(path.stat().st_size for path in (tmp_path / "run").iterdir()) <= 240_000
    for rank in ranks:
        first = rank.steps[0]
        assert first.unrecorded.step.tolist() == list(range(first.step))
        assert "only the times are kept" in rank.header.warnings[0]


@pytest.mark.parametrize("how", ["full", "vanishes"])
def test_a_disk_that_fails_in_the_middle(disk: Path, tmp_path: Path, how: str) -> None:
    """The steps before stay readable, and training goes on."""
    plain = job(tmp_path / "plain", "disk-fails")

    def fail() -> None:
        losses = tmp_path / "recorded" / "rank0.txt"
        until = time.monotonic() + 120
        while time.monotonic() < until:
            if losses.exists() and losses.read_text().count("\n") >= 5:
                break
            time.sleep(0.02)
        if how == "full":
            fill(disk)
        else:
            subprocess.run(["umount", "-l", str(disk)], check=False)

    thread = threading.Thread(target=fail)
    thread.start()
    ours = job(tmp_path / "recorded", "disk-fails", *recorder(disk / "run"))
    thread.join()
    note(f"disk {how}", plain, ours, "", "")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    if how == "full":
        for rank in open_run(disk / "run").load():
            assert rank.header.ended.startswith("detached: OSError")
            assert [step.step for step in rank.steps][:4] == [0, 1, 2, 3]


def test_a_folder_that_is_removed_in_the_middle(tmp_path: Path) -> None:
    """Nobody is told of a record that is not there, and each rank says it once."""
    run = tmp_path / "run"
    plain = job(tmp_path / "plain", "folder-removed")
    ours = job(tmp_path / "recorded", "folder-removed", *recorder(run))
    note("folder removed by a rank", plain, ours, "", "")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    said = [line for line in ours.stderr.splitlines() if "training goes on" in line]
    assert len(said) == 2, ours.stderr[-3000:]
    assert "Traceback" not in ours.stderr
    assert "again with" not in ours.stderr


def test_a_disk_of_one_rank_is_full(disk: Path, tmp_path: Path) -> None:
    """The other one's record is whole, and says nothing of it."""
    run = tmp_path / "run"
    run.mkdir()
    fill(disk, 8192)
    (run / "rank00001.arrows").symlink_to(disk / "stream")
    plain = job(tmp_path / "plain", "none")
    ours = job(tmp_path / "recorded", "none", *recorder(run))
    first, second = open_run(run).load()
    ended = f"{first.header.ended}; {second.header.ended[:40]}"
    note("disk of one rank full", plain, ours, ended, last_whole(first))

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert (first.header.ended, last_whole(first)) == ("done", 17)
    assert second.header.ended.startswith("detached: OSError")
    assert ours.stderr.count("training goes on") == 1


def test_a_disk_that_is_read_only(disk: Path, tmp_path: Path) -> None:
    """Each rank says once that it is not recorded."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    plain = job(tmp_path / "plain", "none")
    ours = job(tmp_path / "recorded", "none", *recorder(disk / "run"))
    note("disk read-only", plain, ours, "", "")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert ours.stderr.count("is not recorded") == 2
    assert "Traceback" not in ours.stderr


@pytest.mark.parametrize("where", ["a-file", "no-such/../there", "one-rank"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    """It is no folder, or one rank's file is in the way: training goes on."""
    run = tmp_path / "run"
    if where == "a-file":
        run.write_text("not a folder")
    elif where == "one-rank":
        (run / "rank00001.json").mkdir(parents=True)
    else:
        run = Path("/proc/1/fdinfo") / where
    plain = job(tmp_path / "plain", "none")
    ours = job(tmp_path / "recorded", "none", *recorder(run))
    note(f"folder: {where}", plain, ours, "", "")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    said = [line for line in ours.stderr.splitlines() if "is not recorded" in line]
    assert len(said) == (1 if where == "one-rank" else 2)
    assert "Traceback" not in ours.stderr
