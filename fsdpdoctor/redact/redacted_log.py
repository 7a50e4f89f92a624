"""What a job prints, kept in a file without secrets: the rule of `redact`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import IO

from fsdpdoctor import redact
from fsdpdoctor.redact.secret_shapes import KEY_BEGINS, KEY_ENDS

LEFT_S = 10.0
"""Waited for the rest of the output once the job has ended. What it started, and left
behind, may hold its end of the pipe for ever."""


class RedactedLog(Thread):
    """Reads a job's output to its end, and writes it down line by line.

    It reads on where nothing can be written, for a job must not wait for us.
    """

    def __init__(self, output: IO[bytes], path: Path) -> None:
        super().__init__(daemon=True, name="redacted log")
        self._output, self._path = output, path
        self._known = redact.known_secrets()

    def run(self) -> None:
        """Copy until nobody can write any more."""
        with contextlib.suppress(OSError), self._path.open("wb", buffering=0) as log:
            for line in self._clean():
                log.write(line.encode(errors="replace"))
        for _ in pieces(self._output):
            pass

    def finish(self) -> None:
        """Wait for what is still on its way."""
        self.join(LEFT_S)
        if not self.is_alive():
            self._output.close()

    def _clean(self) -> Iterator[str]:
        in_key = False  # a private key has a line of its own for each 64 characters
        for piece in pieces(self._output):
            line = piece.decode(errors="replace")
            if in_key:
                in_key = KEY_ENDS.search(line) is None
                continue
            yield redact.text(line, self._known)
            in_key = bool(KEY_BEGINS.search(line)) and not KEY_ENDS.search(line)


def pieces(output: IO[bytes]) -> Iterator[bytes]:
    """Lines; of one that is longer than is looked at, as many whole words."""
    rest = b""
    while line := output.readline(redact.MOST_TEXT - len(rest)):
        whole, rest = rest + line, b""
        if len(whole) == redact.MOST_TEXT and not whole.endswith(b"\n"):
            words, blank, last = whole.rpartition(b" ")
            if blank and words:
                whole, rest = words + blank, last
        yield whole
    if rest:
        yield rest
