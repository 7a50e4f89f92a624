"""JSON with anyone's names in it."""

from __future__ import annotations

import json

from fsdpdoctor.storage.json_text import json_text


def test_what_is_not_seen_is_an_escape_and_reads_back_as_it_was() -> None:
    """Escape sequences, C1 controls, turned directions, a tag beyond 16 bits."""
    name = "\x1b[31m\x7f\x9b\u202e\u2028\ufeff\U000e0041 caf\u00e9"

    text = json_text({"name": name})

    assert text.isascii() is False
    assert "\\u001b[31m\\u007f\\u009b\\u202e\\u2028\\ufeff\\udb40\\udc41 caf" in text
    assert json.loads(text) == {"name": name}


def test_half_a_pair_becomes_a_question_mark() -> None:
    """UTF-8 has no lone surrogates."""
    assert json_text({"name": "\ud800x"}) == '{\n "name": "?x"\n}\n'


def test_plain_text_is_left_as_it_is() -> None:
    """Letters of any script."""
    assert json_text(["\u4e2d"], indent=2) == '[\n  "\u4e2d"\n]\n'
