"""JSON as it is written: names of anyone's in it, and safe on a terminal."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import msgspec

HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that a terminal obeys, hides or cannot encode: control and
format characters (escape sequences, right-to-left overrides), lone surrogates."""


def json_text(value: Any, indent: int = 1) -> str:
    """A value as JSON text, which reads back as the same: what is not seen is written
    as its escape.
    """
    try:
        content = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # A name from a foreign file holds a lone surrogate, which UTF-8 has not.
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        content = text.encode("utf-8", "replace")
    text = msgspec.json.format(content, indent=indent).decode()
    return _escaped(text) + "\n"


def _escaped(text: str) -> str:
    if text.isascii() and "\x7f" not in text:
        return text
    hidden: dict[str, str | int | None] = {
        character: _escape(character)
        for character in set(text)
        if character != "\n" and unicodedata.category(character) in HIDDEN_CATEGORIES
    }
    return text.translate(str.maketrans(hidden)) if hidden else text


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(
        f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)
    )
