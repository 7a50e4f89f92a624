"""Columns of a history as they fill, and stacks that are kept once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fsdpdoctor.memory_snapshot.snapshot import NOT_RECORDED, Frame, History, Stack

MOST_FRAMES = 1024
"""Of a stack. Python itself stops at 1,000."""

LONGEST_TEXT = 4096
"""Of a file's or a function's name: longer ones are cut."""


def as_text(value: object) -> str:
    """What has to be words. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"expected words, found {type(value).__name__}")
    return value[:LONGEST_TEXT]


class Taken:
    """Counts what is walked through, so that it ends: a small pickle may hold one list
    a million times, and that a million times.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, entries: int) -> None:
        """Raise ValueError where more is held than so many bytes can say."""
        self._left -= entries
        if self._left < 0:
            raise ValueError("its lists hold more entries than the file has bytes")


class Interned:
    """Stacks, frames and texts by what they are, each kept once."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._frames: dict[Frame, Frame] = {}
        self._frame_of: dict[int, Frame] = {}  # by the dict that says it
        self._stack_of: dict[Stack, int] = {}
        self._stack_of_dicts: dict[tuple[int, ...], int] = {}  # by the dicts' ids
        self._text_of: dict[str, int] = {"": 0}

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return tuple(self._stack_of)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._text_of)

    def stack(self, frames: object) -> int:
        """The number of a stack. Raises TypeError where it is none."""
        if not isinstance(frames, list | tuple):
            raise TypeError(f"expected a list of frames, found {type(frames).__name__}")
        self._taken.take(len(frames))
        dicts = tuple(map(id, frames))  # the pickle's value outlives them here
        known = self._stack_of_dicts.get(dicts)
        if known is None:
            stack = tuple(self._frame(one) for one in frames[:MOST_FRAMES])
            known = self._stack_of.setdefault(stack, len(self._stack_of))
            self._stack_of_dicts[dicts] = known
        return known

    def text(self, text: object) -> int:
        """The number of a text."""
        return self._text_of.setdefault(as_text(text), len(self._text_of))

    def _frame(self, said: object) -> Frame:
        known = self._frame_of.get(id(said))
        if known is not None:
            return known
        if not isinstance(said, dict):
            raise TypeError(f"expected a frame, found {type(said).__name__}")
        line = said.get("line", 0)
        frame = Frame(
            as_text(said["filename"]),
            line if isinstance(line, int) and -1 <= line < 1 << 31 else 0,
            as_text(said["name"]),
        )
        frame = self._frames.setdefault(frame, frame)
        self._frame_of[id(said)] = frame
        return frame


class HistoryColumns:
    """A history's columns, to be filled row by row."""

    def __init__(self, rows: int) -> None:
        def column(value: int) -> npt.NDArray[np.int64]:
            return np.full(rows, value, np.int64)

        self.action = column(0)
        self.address = column(0)
        self.size_bytes = column(0)
        self.stream = column(0)
        self.time_us = column(NOT_RECORDED)
        self.stack = column(NOT_RECORDED)
        self.metadata = column(0)

    def history(self) -> History:
        """The same, as they are read."""
        return History(
            action=self.action.astype(np.int8),
            address=self.address,
            size_bytes=self.size_bytes,
            stream=self.stream,
            time_us=self.time_us,
            stack=self.stack.astype(np.int32),
            metadata=self.metadata.astype(np.int32),
        )
