"""Paths that are not on this machine: `s3://`, `gs://` and all that fsspec knows.

universal_pathlib's UPath has the same methods, and is no `Path`: all that takes one
would have to say so, and its errors are each store's own. Here they become ours.
"""

from __future__ import annotations

import importlib
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from fsdpdoctor.errors import InputError, MissingDependencyError, UsageError

NEEDS_FSSPEC = (
    "{url} is read through fsspec, which is not installed: pip install "
    "'fsdpdoctor[cluster]', and the file system's own package (s3fs, gcsfs, adlfs)"
)

BLOCK = 1 << 18
"""Bytes handed on at a time; fsspec itself fetches some megabytes ahead."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ADDRESS = re.compile(r"\[[^]]*\]")
"""A host given as an IPv6 address: its colons are no chain's."""
_CHAIN = "::"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(:?)/(?!/)")
_NO_HOST = "::"
"""Ends the first part of a path whose URL has three slashes, as hdfs:///user/me."""


def path_of(text: str | os.PathLike[str]) -> Path:
    """The path that a word on the command line names: on this machine, or remote.

    Raises UsageError for an empty word, which would be the current folder, and for a
    URL inside another (`zip://a.json::s3://b/c.zip`).
    """
    if isinstance(text, Path):
        return text
    text = os.fspath(text)
    if not text:
        raise UsageError("an empty name: expected a path.")
    if not _URL.match(text):
        return Path(text)
    if _CHAIN in _ADDRESS.sub("", text):
        raise UsageError(f"{text} is inside an archive: copy and unpack it here first")
    parts = urlsplit(text)
    if parts.scheme == "file":
        from urllib.request import url2pathname  # and http and ssl with it: 20 ms

        return Path(url2pathname(parts.path))
    if not parts.netloc:
        return RemotePath(f"{parts.scheme}{_NO_HOST}{parts.path}")
    return RemotePath(text)


class RemotePath(PosixPath):
    """A path whose first part is a scheme. Opened anew wherever it is used, so that
    it pickles. Raises FileNotFoundError as a local one does, else InputError.
    """

    __slots__ = ()

    def __str__(self) -> str:
        text = super().__str__()
        match = _SCHEME.match(text)
        assert match is not None
        slashes = "///" if match[2] else "//"
        return f"{match[1]}:{slashes}{text[match.end() :]}"

    def __fspath__(self) -> str:
        raise UsageError(f"{self} cannot be read from there: copy it here first")

    def as_uri(self) -> str:
        """What a database is opened by; it must be a file."""
        return self.__fspath__()

    def open(self, mode: str = "r", *_: Any, **__: Any) -> IO[Any]:  # type: ignore[override]
        """The file's bytes, fetched as they are read."""
        assert mode == "rb"
        with self._system() as (system, key):
            return io.BufferedReader(system.open(key, "rb"), BLOCK)

    def read_bytes(self) -> bytes:
        """All of them."""
        with self.open("rb") as file:
            content: bytes = file.read()
        return content

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Only the size is known."""
        with self._system() as (system, key):
            size = int(system.info(key).get("size") or 0)
        return os.stat_result((0, 0, 0, 0, 0, 0, size, 0, 0, 0))

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether a file or folder is there."""
        with self._system() as (system, key):
            return bool(system.exists(key))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether a file is there."""
        with self._system() as (system, key):
            return bool(system.isfile(key))

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether a folder, or the common start of some keys, is there."""
        with self._system() as (system, key):
            return bool(system.isdir(key))

    def is_symlink(self) -> bool:
        """Object stores have none."""
        return False

    def resolve(self, strict: bool = False) -> RemotePath:
        """A remote path is whole already."""
        return self

    def absolute(self) -> RemotePath:
        """The same."""
        return self

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        """What is right below it."""
        with self._system() as (system, key):
            names = [entry["name"] for entry in system.ls(key, detail=True)]
        for name in sorted(names):
            yield self / name.rstrip("/").rpartition("/")[2]

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """What is right below it and fits."""
        return (path for path in self.iterdir() if fnmatch(path.name, pattern))

    def rglob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """All files below it that fit."""
        with self._system() as (system, key):
            found = [self._below(key, name) for name in system.find(key)]
        return (path for path in sorted(found) if fnmatch(path.name, pattern))

    def matching(self) -> list[Path]:
        """What the path names, taken as a pattern."""
        with self._system() as (system, key):
            names = sorted(system.glob(key))
            return [path_of(system.unstrip_protocol(name)) for name in names]

    def _below(self, key: str, name: str) -> RemotePath:
        return self / name.strip("/").removeprefix(key.strip("/")).lstrip("/")

    @contextmanager
    def _system(self) -> Iterator[tuple[Any, str]]:
        """The file system, and this path's key in it."""
        try:
            fsspec: Any = importlib.import_module("fsspec.core")
        except ModuleNotFoundError:
            raise MissingDependencyError(NEEDS_FSSPEC.format(url=self)) from None
        try:
            yield fsspec.url_to_fs(str(self))
        except FileNotFoundError:
            raise
        except ImportError as error:
            raise MissingDependencyError(f"cannot read {self}: {error}") from None
        # Every store's package has exceptions of its own.
        except Exception as error:
            raise InputError(f"cannot read {self}: {error}") from error
