"""What frames a trace's events: the keys before them, and where they begin."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from fsdpdoctor.importers.reader.chunks import Framing, chunks, read_head


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
    """The chunks' texts, from the first event on, are the file's own."""
    events = '{"ph": "X", "name": "a"},\n{"ph": "X", "name": "b"}'
    content = f'{{"schemaVersion": 1, "traceEvents": [{events}], "last": 2}}'
    framing = Framing()
    found = list(chunks(BytesIO(content.encode()), framing))

    assert framing.head.decode() == '{"schemaVersion": 1, '
    assert b"".join(c.text for c in found).decode() == content[content.index(events) :]
    assert found[0].offset == content.index(events)
    assert list(chunks(BytesIO(b'{"schemaVersion": 1}'), Framing())) == []
