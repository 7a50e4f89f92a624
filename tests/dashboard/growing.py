"""A run that somebody is writing: half of a finished one, and a process that lives."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Growing:
    """A folder whose ranks are one process, which goes on until it is ended."""

    def __init__(self, finished: Path, folder: Path, writer: int) -> None:
        folder.mkdir()
        self.folder = folder
        for file in finished.iterdir():
            if file.is_file():
                (folder / file.name).write_bytes(file.read_bytes())
        self._streams = {f: f.read_bytes() for f in folder.glob("*.arrows")}
        self._headers = {f: f.read_text() for f in folder.glob("rank*.json")}
        for file, content in self._streams.items():
            file.write_bytes(content[: len(content) * 2 // 3])
        host = socket.gethostname()
        for file, text in self._headers.items():
            text = text.replace('"done"', '"running"')
            text = re.sub(r'"pid": ?-?\d+', f'"pid": {writer}', text)
            text = re.sub(r'"host": ?(null|"[^"]*")', f'"host": "{host}"', text)
            file.write_text(text)

    def grow(self) -> None:
        """The other steps are written."""
        for file, content in self._streams.items():
            file.write_bytes(content)

    def finish(self) -> None:
        """All is written, and each rank says that it has ended."""
        self.grow()
        for file, text in self._headers.items():
            file.write_text(text)


@contextmanager
def writer() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a training."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
