"""What is opened as a file is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.storage.regular_file import exists, is_file, is_folder, read_regular


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    """The first bytes with `cut`; without it a larger one is refused."""
    path = tmp_path / "file"
    path.write_bytes(b"12345")

    assert read_regular(path) == b"12345"
    assert read_regular(path, 5) == b"12345"
    assert read_regular(path, 3, cut=True) == b"123"
    with pytest.raises(InputError, match="is too large: expected at most 4 bytes"):
        read_regular(path, 4)


def test_a_file_larger_than_memory_is_refused(tmp_path: Path) -> None:
    """Eight terabytes, of which the disk holds nothing."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 43)

    for most in (None, 1 << 43):
        with pytest.raises(InputError, match="file does not fit into memory"):
            read_regular(path, most, cut=True)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody writes to it: opening it plainly would never return."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(InputError, match="is a pipe: expected a file"):
        read_regular(tmp_path / "pipe")


def test_a_link_to_a_device_is_not_followed_for_ever(tmp_path: Path) -> None:
    """/dev/zero has no end."""
    (tmp_path / "link").symlink_to("/dev/zero")

    with pytest.raises(InputError, match="is a device: expected a file"):
        read_regular(tmp_path / "link", 10, cut=True)


def test_no_file_has_a_name_too_long(tmp_path: Path) -> None:
    """A script, a model or a device of such a name is none."""
    (tmp_path / "a").touch()

    assert is_file(tmp_path / "a")
    assert is_folder(tmp_path)
    assert not is_file(tmp_path / ("n" * 300))
    assert not is_folder(tmp_path / ("n" * 300))
    assert not exists(tmp_path / ("n" * 300))
    assert exists(tmp_path)
