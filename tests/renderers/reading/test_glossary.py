"""The glossary: each word once, found where it is used and nowhere inside another."""

from __future__ import annotations

import pytest

from fsdpdoctor.renderers.reading.glossary import TERMS, split_terms, term_of


def test_each_word_has_one_meaning() -> None:
    """No name stands for two terms, and each meaning is a sentence."""
    names = [name.lower() for term in TERMS for name in (term.name, *term.also)]

    assert len(names) == len(set(names))
    assert [t.name for t in TERMS if not t.meaning.endswith(".")] == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Exposed 51.2 ms per step: all-gather 49.6", ["Exposed", "per step"]),
        ("times last", ["times last"]),
        ("the last step gains", []),
        ("wired, lasting, steps_per", []),
        ("straggler or wire", ["straggler or wire"]),
        ("a unit, another unit, two units", ["unit"]),
    ],
)
def test_terms_are_found_as_words(words: str, found: list[str]) -> None:
    """The longest that fits, the first time it is met; nothing of the text is lost."""
    pieces = split_terms(words)
    terms = [piece[0] for piece in pieces if not isinstance(piece, str)]

    assert terms[: len(found)] == found
    assert found or not terms
    assert "".join(p if isinstance(p, str) else p[0] for p in pieces) == words


def test_a_term_is_found_by_any_of_its_names() -> None:
    """As written in tables, whatever the case; no other word is a term."""
    assert term_of("Clock off") is term_of("clock offset")
    assert term_of("colour") is None
