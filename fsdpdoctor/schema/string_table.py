"""Names as numbers: a record holds each once."""

from __future__ import annotations


class StringTable:
    """Interns strings: ids are given in the order in which they first came.

    They are what `Spans.name` and `Counters.name` hold, and the names of a trace.
    """

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.strings: list[str] = []
        self._written = 0

    def id(self, text: str) -> int:
        """The id of a string, a new one where it is new."""
        known = self.ids.get(text)
        if known is None:
            known = self.ids[text] = len(self.strings)
            self.strings.append(text)
        return known

    def take_new(self) -> list[str]:
        """The strings added since the last call, for `RankWriter.write_step`."""
        new = self.strings[self._written :]
        self._written = len(self.strings)
        return new

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self.strings)
