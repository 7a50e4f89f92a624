"""What frames a trace's events: the keys before them, and where they begin."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from fsdpdoctor.importers.reader import chunks as module
from fsdpdoctor.importers.reader.chunks import Framing, chunks, read_head


class InParts(BytesIO):
    """A file that gives some bytes at a time, as one does that is unpacked."""

    def __init__(self, content: bytes, part: int) -> None:
        super().__init__(content)
        self.part = part

    def read1(self, size: int | None = -1, /) -> bytes:
        """No more than a part."""
        return self.read(min(self.part, size or self.part))


def test_a_head_is_read_without_its_events(tmp_path: Path) -> None:
    """Events that are damaged do not matter to it; a file without any says so."""
    whole, none = tmp_path / "whole.json", tmp_path / "none.json"
    keys = '{"schemaVersion": 1, "distributedInfo": {"rank": 3}, '
    whole.write_text(keys + '"traceEvents": [{"ph": "X"}, {"damaged')
    none.write_text('{"schemaVersion": 1}')

    heads = read_head(whole), read_head(none)

    assert heads[0].head.decode() == keys
    assert [head.has_events for head in heads] == [True, False]
    assert [head.broken for head in heads] == [None, None]


def test_events_come_in_order_and_nothing_is_lost() -> None:
    """Each chunk is where it says; the last one holds what follows the events."""
    first, second = '{"ph": "X", "name": "a"}', '{"ph": "X", "name": "b"}'
    rest = '], "last": 2}'
    content = f'{{"schemaVersion": 1, "traceEvents": [{first},\n{second}{rest}'
    framing = Framing()
    found = list(chunks(BytesIO(content.encode()), framing))

    assert framing.head.decode() == '{"schemaVersion": 1, '
    assert [(chunk.offset, chunk.text.decode()) for chunk in found] == [
        (content.index(first), first),
        (content.index(second), second + rest),
    ]
    assert list(chunks(BytesIO(b'{"schemaVersion": 1}'), Framing())) == []


@pytest.mark.parametrize("part", [1, 7, 20, 63, 64, 200])
def test_blocks_that_come_in_parts_are_cut_between_events(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole events, each where it says, and all of them, however large parts are."""
    monkeypatch.setattr(module, "BLOCK", 64)
    events = [f'{{"ph": "X", "name": "{"n" * (at % 40)}{at}"}}' for at in range(50)]
    content = f'{{"traceEvents": [{",".join(events)}]}}'
    found = list(chunks(InParts(content.encode(), part), Framing()))

    assert all(content.startswith(one.text.decode(), one.offset) for one in found)
    texts = [one.text.decode() for one in found]
    assert ",".join(texts) == ",".join(events) + "]}"
    assert all(text.endswith('"}') for text in texts[:-1])
    assert [one.last for one in found] == [False] * (len(found) - 1) + [True]
    assert len(found) > 10
