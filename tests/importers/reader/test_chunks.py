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
